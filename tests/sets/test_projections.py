"""Projections on the sets: what characterises them, and their derivatives on and off the kinks."""

import functools

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings

from diffnsd.sets import Box, Free, HalfLine, RollingCone, SecondOrderCone


def cone(mu):
    return SecondOrderCone(jnp.asarray(mu))


def rolling(mu, mu_r):
    return RollingCone(jnp.asarray(mu), jnp.asarray(mu_r))


# Name, set, rows.
CASES = {
    "free": (Free(), 2),
    "half line": (HalfLine(), 3),
    "box": (Box(jnp.asarray(-1.0), jnp.asarray(2.0)), 3),
    "unbounded box": (Box(jnp.asarray(0.0), jnp.asarray(jnp.inf)), 2),
    "cone": (cone(0.7), 3),
    "planar cone": (cone(0.4), 2),
    "wide cone": (cone(3.0), 3),
    "cone without friction": (cone(0.0), 3),
    "rolling cone": (rolling(0.7, 0.2), 5),
    "planar rolling cone": (rolling(0.4, 1.5), 3),
    "rolling cone without friction": (rolling(0.0, 0.5), 5),
}
CONES = [name for name in CASES if "box" not in name]


@eqx.filter_jit
def evaluate(k, z):
    """Everything that the tests look at; compiled once for all cones of a size."""
    return dict(
        project=k.project(z),
        again=k.project(k.project(z)),
        jacobian=jnp.asarray(k.jacobian(z)),
        ad=jax.jacfwd(k.project)(z),
        margin=k.margin(z),
        # Derivatives of everything that is ever differentiated, in the set and in the point.
        gradients=eqx.filter_grad(
            lambda x: jnp.sum(x[0].project(x[1]) * jnp.arange(1.0, 6.0)[: z.shape[0]])
        )((k, z)),
    )


def evaluated(name, z):
    out = jax.tree.map(np.asarray, evaluate(CASES[name][0], jnp.asarray(z)))
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(out["gradients"])), z
    return out


NUMBERS = st.one_of(
    st.floats(-3, 3),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-9, -1e-9, 1e-160, 1e-300, -1e-300, 5e-324, 1e8]),
)


def points(name):
    k = CASES[name][1]
    return st.lists(NUMBERS, min_size=k, max_size=k).map(np.array)


def members(name, y):
    """A point of the set, without its projection."""
    match CASES[name][0]:
        case HalfLine():
            return np.abs(y)
        case Box(lower, upper):
            return np.asarray(lower) + np.minimum(np.abs(y), np.asarray(upper) - np.asarray(lower))
        case SecondOrderCone(mu):
            length = np.linalg.norm(y[1:])
            tangential = y[1:] / length if length > 0 else y[1:]
            fraction = min(length, 1.0)  # of the opening of the cone
            return np.concatenate([[abs(y[0])], float(mu) * abs(y[0]) * fraction * tangential])
        case RollingCone(mu, mu_r):
            half = (len(y) - 1) // 2
            parts = [np.array([abs(y[0])])]
            for m, part in ((mu, y[1 : 1 + half]), (mu_r, y[1 + half :])):
                length = np.linalg.norm(part)
                direction = part / length if length > 0 else part
                parts.append(float(m) * abs(y[0]) * min(length, 1.0) * direction)
            return np.concatenate(parts)
        case _:
            return y


def in_set(name, p, slack):
    match CASES[name][0]:
        case HalfLine():
            return np.all(p >= -slack)
        case Box(lower, upper):
            return np.all(p >= float(lower) - slack) and np.all(p <= float(upper) + slack)
        case SecondOrderCone(mu):
            return np.linalg.norm(p[1:]) <= float(mu) * p[0] + slack and p[0] >= -slack
        case RollingCone(mu, mu_r):
            half = (len(p) - 1) // 2
            slip, roll = np.linalg.norm(p[1 : 1 + half]), np.linalg.norm(p[1 + half :])
            inside = slip <= float(mu) * p[0] + slack and roll <= float(mu_r) * p[0] + slack
            return inside and p[0] >= -slack
        case _:
            return True


def in_polar(name, d, slack):
    """The polar of the cones, `{d : d . y <= 0 for all y in K}`."""
    match CASES[name][0]:
        case HalfLine():
            return np.all(d <= slack)
        case SecondOrderCone(mu):
            return float(mu) * np.linalg.norm(d[1:]) <= -d[0] + slack
        case RollingCone(mu, mu_r):
            half = (len(d) - 1) // 2
            slip, roll = np.linalg.norm(d[1 : 1 + half]), np.linalg.norm(d[1 + half :])
            return float(mu) * slip + float(mu_r) * roll <= -d[0] + slack
        case _:
            return np.all(np.abs(d) <= slack)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_projection(name, data):
    z, y = data.draw(points(name)), data.draw(points(name))
    out = evaluated(name, z)
    p = out["project"]
    size = 1e-14 * (1 + np.max(np.abs(z)) + np.max(np.abs(y)))
    assert in_set(name, p, size)
    np.testing.assert_allclose(out["again"], p, rtol=1e-14, atol=1e-15)

    # The variational inequality characterises the projection on any convex set.
    member = members(name, y)
    assert in_set(name, member, size)
    assert np.dot(z - p, member - p) <= size * (1 + np.linalg.norm(z) + np.linalg.norm(member))

    # Moreau: z is the sum of its projections on a cone and on the polar cone, at right angles.
    if name in CONES:
        assert in_polar(name, z - p, size)
        assert abs(np.dot(p, z - p)) <= size * (1 + np.linalg.norm(z))

    other = evaluated(name, y)["project"]
    assert np.linalg.norm(p - other) <= np.linalg.norm(z - y) + size


@pytest.mark.parametrize("name", ["cone", "planar cone", "rolling cone", "planar rolling cone"])
@pytest.mark.parametrize("unit", [2.0**-100, 2.0**100])
def test_cones_in_float32_know_no_unit(name, unit):
    """`P(s z) = s P(z)` to rounding where the square of `s z` is 0 or infinite."""
    k, rows = CASES[name]
    k = jax.tree.map(lambda x: x.astype(np.float32), k)
    for z in np.random.default_rng(0).normal(size=(20, rows)).astype(np.float32):
        for one in (k.project, k.jacobian, jax.jacfwd(k.project), jax.jacrev(k.project), k.margin):
            scale = unit if one in (k.project, k.margin) else 1.0
            here, there = map(np.asarray, (one(jnp.asarray(z)), one(jnp.asarray(z * unit))))
            np.testing.assert_allclose(there, scale * here, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_derivative_away_from_kinks(name, data):
    z = data.draw(points(name))
    out = evaluated(name, z)
    # The map is firmly nonexpansive, so its derivatives are symmetric between 0 and 1, everywhere.
    jacobian = out["jacobian"]
    np.testing.assert_allclose(jacobian, jacobian.T, rtol=0, atol=1e-15)
    spectrum = np.linalg.eigvalsh(jacobian)
    assert spectrum[0] >= -1e-14 and spectrum[-1] <= 1 + 1e-14
    if out["margin"] > 1e-6 * (1 + np.max(np.abs(z))):
        np.testing.assert_allclose(jacobian, out["ad"], rtol=0, atol=1e-13)


@functools.cache
def neighbours(k):
    random = np.random.default_rng(k)
    return random.normal(size=(400, k))


KINKS = [
    ("half line", [0.0, 1.0, -1.0]),
    ("half line", [0.0, 0.0, 0.0]),
    ("box", [-1.0, 2.0, 0.5]),
    ("cone", [0.0, 0.0, 0.0]),
    ("cone", [1.0, 0.7, 0.0]),
    ("cone", [1.0, -0.42, 0.56]),
    ("cone", [-0.7, 0.0, 1.0]),
    ("planar cone", [0.0, 0.0]),
    ("planar cone", [1.0, -0.4]),
    ("planar cone", [-0.4, 1.0]),
    ("cone without friction", [0.0, 0.0, 0.0]),
    ("cone without friction", [1.0, 0.0, 0.0]),
    ("cone without friction", [-1.0, 0.0, 0.0]),
    ("cone without friction", [0.0, 1.0, 0.0]),
    ("planar rolling cone", [0.0, 0.0, 0.0]),
    ("planar rolling cone", [1.0, 0.4, 0.3]),
    ("planar rolling cone", [1.0, 0.4, -1.5]),
    ("planar rolling cone", [-1.0, 1.0, 0.4]),
]


@pytest.mark.parametrize(("name", "z"), KINKS)
def test_derivative_at_a_kink_is_one_of_its_neighbours(name, z):
    """The B-subdifferential: limits of the derivative at neighbours where there is one."""
    k, z = CASES[name][0], np.array(z)
    jacobian = evaluated(name, z)["jacobian"]
    near = jnp.asarray(z + 1e-7 * neighbours(len(z)))
    around = np.asarray(eqx.filter_jit(lambda x: jax.vmap(jax.jacfwd(k.project))(x))(near))
    # Measured at most 0.02 where the cone's mantle has a family of limits, else 1e-7.
    assert np.min(np.max(np.abs(around - jacobian), axis=(1, 2))) < 0.05


def test_an_open_contact_is_chosen_at_the_apex():
    """All cones take the derivative 0 at the apex, as the half line does."""
    for name in ("half line", "cone", "planar cone", "cone without friction", "rolling cone"):
        k = CASES[name][1]
        assert np.all(evaluated(name, np.zeros(k))["jacobian"] == 0)


def test_without_friction_the_cone_is_a_half_line():
    """Also where the tangential part is exactly zero, as in a vertical fall."""
    for normal in (-2.0, -1e-12, 0.0, 1e-12, 3.0):
        for tangential in ([0.0, 0.0], [1.0, -2.0]):
            out = evaluated("cone without friction", np.array([normal, *tangential]))
            np.testing.assert_array_equal(out["project"], [max(normal, 0), 0, 0])
            np.testing.assert_array_equal(out["jacobian"], np.diag([float(normal > 0), 0, 0]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), mu=st.sampled_from([0.0, 1e-12, 0.3, 2.0]))
@example(data=None, mu=0.3)
def test_cone_on_components_and_in_single_precision(data, mu):
    """Trailing axes are lanes, `mu` may differ between them, and dtypes are kept."""
    z = np.zeros(3) if data is None else data.draw(points("cone"))
    z = np.clip(z, -1e3, 1e3)
    lanes = np.stack([z, -z, z + 1, 0 * z], axis=-1)
    mus = np.array([mu, 0.0, 0.5, mu])
    batched = _lanes(jnp.asarray(mus), jnp.asarray(lanes))
    for i in range(4):
        alone = evaluate(cone(mus[i]), jnp.asarray(lanes[:, i]))
        np.testing.assert_array_equal(batched[0][:, i], alone["project"])
        np.testing.assert_array_equal(batched[1][:, :, i], alone["jacobian"])
    single = _lanes(jnp.asarray(mus, jnp.float32), jnp.asarray(lanes, jnp.float32))
    assert {x.dtype for x in single} == {jnp.dtype("float32")}
    np.testing.assert_allclose(single[0], batched[0], rtol=0, atol=1e-6 * (1 + np.max(np.abs(z))))


def test_bounds_may_differ_between_contacts():
    lower, upper = np.array([-1.0, 0.0, -np.inf]), np.array([2.0, np.inf, 1.0])
    z = np.random.default_rng(6).normal(size=(2, 3)) * 3
    k = Box(jnp.asarray(lower), jnp.asarray(upper))
    np.testing.assert_array_equal(k.project(jnp.asarray(z)), np.clip(z, lower, upper))
    p = np.asarray(k.prox(jnp.asarray(z), jnp.asarray(0.1)))
    # Measured 6e-16.
    force = 0.1 * (1 / (p - lower) - 1 / (upper - p))
    np.testing.assert_allclose(p - z, force, rtol=0, atol=1e-13)


@eqx.filter_jit
def _lanes(mu, z):
    k = SecondOrderCone(mu)
    return k.project(z), jnp.asarray(k.jacobian(z)), k.margin(z)


@pytest.mark.parametrize(
    ("name", "z", "distance"),
    [
        ("half line", [0.5, -0.2, 3.0], 0.2),
        ("box", [0.0, 5.0, -1.3], 0.3),
        ("cone", [2.0, 0.0, 0.0], 1.4 / np.sqrt(1.49)),
        ("cone", [0.0, 1.0, 0.0], 0.7 / np.sqrt(1.49)),
        ("rolling cone", [2.0, 1.0, 0.0, 0.1, 0.0], 0.3 / np.sqrt(1.04)),
        ("planar rolling cone", [-1.0, 0.0, 0.0], 1.0 / np.sqrt(1 + 0.16 + 2.25)),
        ("free", [1.0, 2.0], np.inf),
    ],
)
def test_margin_is_the_distance_to_the_nearest_kink(name, z, distance):
    np.testing.assert_allclose(evaluated(name, np.array(z))["margin"], distance, rtol=1e-14)
