"""Proximal maps of the barriers: the central path that leads to the projection."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from diffnsd.sets import Box, Free, HalfLine, RollingCone, SecondOrderCone


def minus_barrier(k, p):
    """Sum of the logarithms whose negative is the barrier of a set."""
    match k:
        case HalfLine():
            return jnp.sum(jnp.log(p))
        case Box(lower, upper):
            below = jnp.where(jnp.isfinite(upper), jnp.log(jnp.where(p < upper, upper - p, 1)), 0)
            return jnp.sum(jnp.log(p - lower) + below)
        case SecondOrderCone(mu):
            return jnp.log(p[0] ** 2 - jnp.sum(p[1:] ** 2) / mu**2)
        case RollingCone(mu, mu_r):
            half = (p.shape[0] - 1) // 2
            slip, roll = jnp.sum(p[1 : 1 + half] ** 2), jnp.sum(p[1 + half :] ** 2)
            return jnp.log(p[0] ** 2 - slip / mu**2) + jnp.log(p[0] ** 2 - roll / mu_r**2)
        case _:
            return jnp.zeros(())


@eqx.filter_jit
def evaluate(k, z, kappa):
    p = k.prox(z, kappa)
    weights = jnp.arange(1, 1 + z.size, dtype=z.dtype)
    return dict(
        p=p,
        project=k.project(z),
        gradients=eqx.filter_grad(lambda x: jnp.sum(x[0].prox(x[1], x[2]) * weights))(
            (k, z, kappa)
        ),
        force=kappa * jax.grad(lambda x: minus_barrier(k, x))(p),
    )


def evaluated(k, z, kappa):
    out = jax.tree.map(np.asarray, evaluate(k, jnp.asarray(z), jnp.asarray(kappa)))
    ours = out["p"], out["gradients"]
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(ours)), (z, kappa)
    return out


SETS = {
    "free": (Free(), 2),
    "half line": (HalfLine(), 2),
    "box": (Box(jnp.asarray(-1.0), jnp.asarray(2.0)), 2),
    "unbounded box": (Box(jnp.asarray(0.0), jnp.asarray(jnp.inf)), 2),
    "cone": (SecondOrderCone(jnp.asarray(0.7)), 3),
    "narrow cone": (SecondOrderCone(jnp.asarray(0.05)), 3),
    "planar cone": (SecondOrderCone(jnp.asarray(1.5)), 2),
    "rolling cone": (RollingCone(jnp.asarray(0.7), jnp.asarray(0.05)), 5),
    "planar rolling cone": (RollingCone(jnp.asarray(0.4), jnp.asarray(1.5)), 3),
}
NUMBERS = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1.0, -1.0, 2.0, 1e-9, 1e-300]))


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_stationarity(name, data):
    k, rows = SETS[name]
    z = np.array(data.draw(st.lists(NUMBERS, min_size=rows, max_size=rows)))
    kappa = 10.0 ** data.draw(st.floats(-6, 1))
    out = evaluated(k, z, kappa)
    # `p` is rounded: near the boundary the force moves by up to kappa / distance^2 per rounding.
    slack = 1e-15 * (1 + np.max(np.abs(z)) + np.max(np.abs(out["p"])))
    stiffness = 1 + 40 * np.sum(out["force"] ** 2) / kappa
    np.testing.assert_allclose(out["p"] - z, out["force"], rtol=0, atol=10 * slack * stiffness)
    if isinstance(k, HalfLine):
        np.testing.assert_allclose(out["p"] * (out["p"] - z), kappa, rtol=1e-9)


@pytest.mark.parametrize("name", SETS)
def test_towards_the_projection(name):
    """The distance to the projection falls with `sqrt(kappa)`, or faster away from the kinks."""
    k, rows = SETS[name]
    z = np.random.default_rng(2).normal(size=(30, rows)) * 2
    for kappa in (1e-4, 1e-8, 1e-12, 1e-16):
        for x in z:
            out = evaluated(k, x, kappa)
            # The gap of the path is (number of logarithms) kappa >= |p - P(z)|^2 / 2.
            assert np.linalg.norm(out["p"] - out["project"]) <= 2 * np.sqrt(rows * kappa) + 1e-15


def test_cone_without_friction():
    """The limit is the half line (with two logarithms), and no tangential part."""
    for z in ([1.0, 0.0, 0.0], [1.0, 2.0, 0.0], [-1.0, 0.3, 0.4], [0.0, 0.0, 0.0]):
        k = SecondOrderCone(jnp.asarray(0.0))
        p, rates = prox_and_rates(k, jnp.asarray(z), jnp.asarray(0.1))
        half = HalfLine().prox(jnp.asarray(z[:1]), jnp.asarray(0.2))
        np.testing.assert_allclose(p, [half[0], 0, 0], rtol=1e-13)
        assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(rates))


@eqx.filter_jit
def prox_and_rates(k, z, kappa):
    p = k.prox(z, kappa)
    return p, eqx.filter_jacfwd(lambda x: x[0].prox(x[1], x[2]))((k, z, kappa))


@pytest.mark.parametrize("z", [[0.3, 0.5, -0.2], [0.3, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0] * 3])
def test_derivatives_of_the_rolling_cone(z):
    """As for the cone, by both coefficients."""
    kappa, z = 0.05, jnp.asarray(z)
    k = RollingCone(jnp.asarray(0.7), jnp.asarray(0.2))
    p, (by_set, by_z, by_kappa) = prox_and_rates(k, z, jnp.asarray(kappa))

    def stationary(p, k, z, kappa):
        return p - z - kappa * jax.grad(lambda x: minus_barrier(k, x))(p)

    by = eqx.filter_jit(jax.jacfwd(stationary, (0, 1, 2, 3)))(p, k, z, jnp.asarray(kappa))
    inverse = np.linalg.inv(by[0])
    np.testing.assert_allclose(by_set.mu, -inverse @ np.asarray(by[1].mu), rtol=0, atol=1e-12)
    np.testing.assert_allclose(by_set.mu_r, -inverse @ np.asarray(by[1].mu_r), rtol=0, atol=1e-12)
    np.testing.assert_allclose(by_z, -inverse @ np.asarray(by[2]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(by_kappa, -inverse @ np.asarray(by[3]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "z", [[0.3, 0.5, -0.2], [0.3, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
)
def test_derivatives_of_the_cone(z):
    """The implicit function theorem on the stationarity, on the axis of the cone too."""
    mu, kappa, z = 0.7, 0.05, jnp.asarray(z)
    p, (by_set, by_z, by_kappa) = prox_and_rates(
        SecondOrderCone(jnp.asarray(mu)), z, jnp.asarray(kappa)
    )

    def stationary(p, mu, z, kappa):
        k = SecondOrderCone(mu)
        return p - z - kappa * jax.grad(lambda x: minus_barrier(k, x))(p)

    by = eqx.filter_jit(jax.jacfwd(stationary, (0, 1, 2, 3)))(p, mu, z, kappa)
    inverse = np.linalg.inv(by[0])
    np.testing.assert_allclose(by_set.mu, -inverse @ np.asarray(by[1]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(by_z, -inverse @ np.asarray(by[2]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(by_kappa, -inverse @ np.asarray(by[3]), rtol=0, atol=1e-12)


def test_single_precision():
    for name in ("half line", "box", "cone", "rolling cone"):
        k, rows = SETS[name]
        k32 = jax.tree.map(lambda x: x.astype(jnp.float32), k)
        z = jnp.asarray(np.random.default_rng(4).normal(size=rows))
        single = evaluate(k32, z.astype(jnp.float32), jnp.asarray(1e-2, jnp.float32))["p"]
        assert single.dtype == jnp.float32
        double = evaluate(k, z, jnp.asarray(1e-2))["p"]
        np.testing.assert_allclose(single, double, rtol=0, atol=1e-5)
