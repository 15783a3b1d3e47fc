"""Polytopes and products: projections against quadratic programs and known sets, and their laws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import (
    ComplementarityProblem,
    EulerMoreau,
    Interaction,
    Located,
    Model,
    simulate,
    solve_complementarity,
)
from diffnsd.laws import NormalCone, Relay
from diffnsd.relations import FirstOrderLinear
from diffnsd.sets import Box, Free, HalfLine, Polytope, Product
from diffnsd.systems import FirstOrderSystem


def polytope(h, b):
    h, b = jnp.asarray(h), jnp.asarray(b)
    return Polytope(tuple(tuple(row) for row in h), tuple(b))


SQUARE = polytope([[1.0, 0], [-1, 0], [0, 1], [0, -1]], [-1.0, -2, -0.5, -0.5])
PENTAGON_H = np.array([[np.cos(a), np.sin(a)] for a in 0.3 + 2 * np.pi * np.arange(5) / 5])
PENTAGON_B = -np.array([1.0, 1.2, 0.9, 1.1, 1.0])
PENTAGON = polytope(PENTAGON_H, PENTAGON_B)
RANDOM = np.random.default_rng(0)


@eqx.filter_jit
def evaluate(k, z):
    slopes = jax.vmap(jax.jacfwd(k.project), 1, 2)(z)
    return k.project(z), jnp.asarray(k.jacobian(z)), slopes, k.margin(z)


def test_a_box_is_a_polytope():
    """Inside, at faces, corners and outside: points, derivatives and margins."""
    z = RANDOM.uniform(-4, 4, size=(2, 200))
    lower, upper = np.array([-1.0, -0.5])[:, None], np.array([2.0, 0.5])[:, None]
    point, jacobian, ad, margin = evaluate(SQUARE, jnp.asarray(z))
    np.testing.assert_allclose(point, np.clip(z, lower, upper), atol=1e-14)
    inside = (z > lower) & (z < upper)
    expected = np.zeros((2, 2, 200))
    expected[0, 0], expected[1, 1] = inside
    np.testing.assert_allclose(jacobian, expected, atol=1e-14)
    np.testing.assert_allclose(ad, expected, atol=1e-14)
    nearest = np.min(np.minimum(np.abs(z - lower), np.abs(z - upper)), axis=0)
    assert np.all(margin <= nearest + 1e-12) and np.all(margin > 0)


def corners(h, b):
    """Corners of a polygon, from all pairs of its sides."""
    found = []
    for i in range(len(h)):
        for j in range(i):
            if abs(np.linalg.det(h[[i, j]])) > 1e-9:
                corner = np.linalg.solve(h[[i, j]], b[[i, j]])
                if np.all(h @ corner > b - 1e-12):
                    found.append(corner)
    return np.array(found)


def test_the_projection_makes_no_acute_angle_with_the_set():
    """What characterises it: `(z − p) · (c − p) <= 0` for every corner `c`."""
    z = RANDOM.normal(size=(2, 200)) * 2
    point = np.asarray(evaluate(PENTAGON, jnp.asarray(z))[0])
    ends = corners(PENTAGON_H, PENTAGON_B)
    assert len(ends) == 5
    products = np.einsum("ki,ski->si", z - point, ends[:, :, None] - point)
    assert np.max(products) < 1e-13
    # Idempotent, and every point of the set is nearer to it than to the point.
    np.testing.assert_allclose(evaluate(PENTAGON, jnp.asarray(point))[0], point, atol=1e-14)
    assert np.all(PENTAGON_H @ point - PENTAGON_B[:, None] > -1e-14)


def test_parallel_and_repeated_faces():
    strip = polytope([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]], [-1.0, -1.0, -2.0])
    z = jnp.array([[-3.0, 0.2, 4.0], [5.0, -7.0, 0.3]])
    point, jacobian, _, _ = evaluate(strip, z)
    np.testing.assert_allclose(point, [[-1.0, 0.2, 1.0], [5.0, -7.0, 0.3]])
    assert np.all(np.isfinite(jacobian))
    gradient = jax.grad(lambda k: jnp.sum(k.project(z)), allow_int=True)(strip)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(gradient))


@pytest.mark.parametrize("kappa", [1e-1, 1e-4, 1e-8])
def test_the_central_path(kappa):
    """The equation of the proximal map; for the box that of `Box`; its derivative."""
    z = jnp.asarray(RANDOM.uniform(-4, 4, size=(2, 40)))
    prox = eqx.filter_jit(lambda z: SQUARE.prox(z, jnp.asarray(kappa)))(z)
    rows = [Box(jnp.asarray(-1.0), jnp.asarray(2.0)), Box(jnp.asarray(-0.5), jnp.asarray(0.5))]
    boxes = jnp.concatenate(
        [k.prox(x[None], jnp.asarray(kappa)) for k, x in zip(rows, z, strict=True)]
    )
    np.testing.assert_allclose(prox, boxes, atol=1e-9)
    p = np.asarray(eqx.filter_jit(lambda z: PENTAGON.prox(z, jnp.asarray(kappa)))(z))
    slack = PENTAGON_H @ p - PENTAGON_B[:, None]
    assert np.all(slack > 0)
    np.testing.assert_allclose(p - z, kappa * PENTAGON_H.T @ (1 / slack), atol=1e-7)
    # (1 + kappa H^T diag(1/s²) H)^-1
    slope = jax.jacfwd(lambda z: PENTAGON.prox(z, jnp.asarray(kappa)))(z[:, 0])
    exact = np.linalg.inv(
        np.eye(2) + kappa * PENTAGON_H.T @ np.diag(slack[:, 0] ** -2) @ PENTAGON_H
    )
    np.testing.assert_allclose(slope, exact, rtol=1e-5, atol=1e-7)


def test_a_product_is_its_factors():
    mixed = Product(Free(), Product(HalfLine(), Box(jnp.asarray(-1.0), jnp.asarray(1.0)), 1), 2)
    z = jnp.asarray(RANDOM.normal(size=(4, 20)) * 2)
    point, jacobian, ad, margin = evaluate(mixed, z)
    expected = np.concatenate([z[:2], np.maximum(z[2:3], 0), np.clip(z[3:], -1, 1)])
    np.testing.assert_allclose(point, expected)
    np.testing.assert_allclose(jacobian, ad)
    np.testing.assert_allclose(margin, np.min(np.abs([z[2], z[3] - 1, z[3] + 1]), axis=0))
    prox = mixed.prox(z, jnp.asarray(0.1))
    np.testing.assert_allclose(prox[:2], z[:2])
    np.testing.assert_allclose(prox[2] * (prox[2] - z[2]), 0.1, rtol=1e-9)


@pytest.mark.slow
def test_a_normal_cone_in_a_complementarity_problem():
    """`lam` solves the variational inequality: a fixed point of the projection, any step."""
    W = jnp.array([[2.0, 0.5, 0, 0], [0.3, 1.5, 0, 0], [0, 0, 1.0, -0.4], [0, 0, 0.4, 1.0]])
    for q in jnp.asarray(RANDOM.normal(size=(6, 4)) * 3):
        laws = ((NormalCone(PENTAGON_H, PENTAGON_B), (2, 2)),)
        out = solve_complementarity(ComplementarityProblem(W, q, laws))
        z = out.z.reshape(2, 2).T
        step = z - 0.3 * out.w.reshape(2, 2).T
        np.testing.assert_allclose(PENTAGON.project(step), z, atol=1e-8)


@pytest.mark.slow
def test_a_relay_with_coupled_bounds_in_a_first_order_system():
    """A diamond in place of a box; the box itself as a normal cone is the relay."""
    system = FirstOrderSystem.linear(np.zeros((2, 2)))

    def end(law, rows):
        relation = FirstOrderLinear(np.eye(2), 2 * np.eye(2), rows_per_contact=rows)
        model = Model(system, Interaction(relation, law))
        return simulate(model, EulerMoreau(), 0.0, 0.3, 0.01, system.state([1.0, -0.4])).states.v[
            -1
        ]

    box = NormalCone(np.concatenate([np.eye(2), -np.eye(2)]), -np.ones(4))
    np.testing.assert_allclose(end(box, 2), end(Relay(), 1), atol=1e-12)
    diamond = NormalCone([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], -np.ones(4))
    # The corner (−1, 0): all control goes to the larger output.
    np.testing.assert_allclose(end(diamond, 2), [0.4, -0.4], atol=1e-9)


@pytest.mark.nightly
def test_a_switch_of_a_relay_with_coupled_bounds_is_said():
    """Outputs that cross against weak relays: from corner to corner, whose times no method locates."""
    triangle = NormalCone([[1.0, 0], [0, 1], [-1, -1]], -0.5 * np.ones(3))
    system = FirstOrderSystem.linear(np.zeros((2, 2)), np.array([1.0, 0.3]))
    relation = FirstOrderLinear(np.eye(2), 0.2 * np.eye(2), rows_per_contact=2)
    model = Model(system, Interaction(relation, triangle))
    start = system.state([-0.5037, -0.303])
    for method in (EulerMoreau(), Located(EulerMoreau())):
        solution = simulate(model, method, 0.0, 2.0, 0.01, start)
        assert int(np.sum(solution.stats.turned)) == 2
        assert "a relay switched (2 times" in solution.message


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"H must have shape \(p, k\) and b \(p,\)"):
        NormalCone(np.eye(2), np.ones(3))
    assert "row 1 of H is no normal" in (NormalCone([[1.0, 0], [0, 0]], [0.0, 0]).check() or "")
    with pytest.raises(ValueError, match="NormalCone needs at least 2 rows"):
        Interaction(FirstOrderLinear(np.eye(2), np.eye(2)), NormalCone(np.eye(2), np.zeros(2)))
