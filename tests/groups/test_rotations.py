"""Rotations: the singular points of their charts, an independent package, and messages."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxlie
import numpy as np
import pytest

from diffnsd.groups import (
    SE3,
    SO3,
    Euclidean,
    JointSpace,
    Pose,
    PoseGroup,
    Product,
    rotate,
    rotation_matrix,
)

GROUP = SO3()


def directions(count, seed=0):
    x = np.random.default_rng(seed).normal(size=(count, 3))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def log_and_derivative():
    """Logarithm at `g` and its derivative along body directions, and the closed form of it."""

    def one(g):
        x = GROUP.log(g)
        derivative = jax.jacfwd(lambda e: GROUP.log(GROUP.compose(g, GROUP.exp(e))))(jnp.zeros(3))
        return x, derivative, jax.vmap(lambda e: GROUP.dexpinv(-x, e), out_axes=1)(jnp.eye(3))

    return eqx.filter_jit(jax.vmap(one))


@pytest.mark.parametrize("distance", [0.0, 1e-15, 1e-12, 1e-9, 1e-3])
def test_logarithm_up_to_and_at_pi(distance, log_and_derivative):
    n = directions(20)
    n[0] = [1, 0, 0]
    w = np.full((20, 1), np.sin(distance / 2))  # exactly 0 at pi, where cos(pi/2) is not
    g = np.concatenate([w, np.cos(distance / 2) * n], axis=1)
    x, derivative, closed = log_and_derivative(jnp.asarray(g))
    np.testing.assert_allclose(x, (np.pi - distance) * n, rtol=0, atol=1e-15 * 4)
    # Measured 4e-16.
    np.testing.assert_allclose(derivative, closed, rtol=0, atol=1e-14)


@pytest.mark.parametrize("angle", [0.0, 1e-300, 1e-160, 1e-12, 1e-6, 0.19, 0.2, 0.21, 1.9, 2.1])
def test_logarithm_near_the_identity(angle, log_and_derivative):
    n = directions(20, 1)
    g = np.concatenate([np.full((20, 1), np.cos(angle / 2)), np.sin(angle / 2) * n], axis=1)
    for sign in (1, -1):  # a quaternion and its negative are one rotation
        x, derivative, closed = log_and_derivative(jnp.asarray(sign * g))
        np.testing.assert_allclose(x, angle * n, rtol=1e-14, atol=0)
        np.testing.assert_allclose(derivative, closed, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_second_derivatives_at_the_singular_points():
    """At 0 the second derivative of `log(exp(x) exp(y))` in y and x is the bracket over two."""
    eye = np.eye(3)

    def mixed(x):
        return jax.jacfwd(lambda y: GROUP.log(GROUP.compose(GROUP.exp(x), GROUP.exp(y))))(
            jnp.zeros(3)
        )

    second = np.asarray(eqx.filter_jit(jax.jacfwd(mixed))(jnp.zeros(3)))  # i, y, x
    bracket = np.stack([[np.cross(eye[x], eye[y]) for x in range(3)] for y in range(3)])
    np.testing.assert_allclose(second, np.moveaxis(bracket, -1, 0) / 2, rtol=0, atol=1e-15)

    at_pi = eqx.filter_jit(jax.hessian(lambda q: jnp.sum(GROUP.log(q))))(
        jnp.array([0.0, 0.6, 0.0, 0.8])
    )
    assert np.all(np.isfinite(at_pi))


@pytest.mark.slow
@pytest.mark.parametrize("group", [SO3(), SE3()], ids=["SO(3)", "SE(3)"])
def test_third_derivatives_across_the_switches_and_at_the_singular_points(group):
    """`log(exp(x))` is linear and `dexp(x, dexpinv(x, w))` constant in x: nothing may be left."""

    def undone(x):
        w = jnp.arange(1.0, group.dim + 1)
        return jnp.concatenate([group.log(group.exp(x)), group.dexp(x, group.dexpinv(x, w))])

    def along(function, direction):
        return lambda x: jax.jvp(function, (x,), (direction,))[1]

    @eqx.filter_jit
    def second_and_third(x, direction):
        second = along(along(undone, direction), direction)
        return second(x), along(second, direction)(x)

    random = np.random.default_rng(11)
    for angle in (0.0, 1e-9, 1e-4, 0.2, 2 - 1e-6, 2 + 1e-6, 3.0, np.pi - 1e-9, np.pi):
        x = np.concatenate([[0.3, -0.2, 0.5], angle * np.array([0.6, -0.48, 0.64])])
        for direction in np.linalg.qr(random.normal(size=(group.dim, 3)))[0].T:
            second, third = second_and_third(jnp.asarray(x[-group.dim :]), jnp.asarray(direction))
            # Measured 3e-15 and 2e-14.
            assert np.max(np.abs(second)) < 2e-14 and np.max(np.abs(third)) < 2e-13, angle


def test_against_jaxlie():
    """Away from 0 and pi, where jaxlie's derivatives are right (its `jlog` is left-trivialised)."""
    angle = np.linspace(0.05, 3.0, 25)
    x = directions(25, 2) * angle[:, None]
    y = directions(25, 3)

    @eqx.filter_jit
    @jax.vmap
    def ours(x, y):
        g = GROUP.exp(x)
        jlog = jax.vmap(lambda e: GROUP.dexpinv(-x, e), out_axes=1)(jnp.eye(3))
        product = GROUP.compose(g, GROUP.exp(y))
        return g, GROUP.log(g), jlog, product, GROUP.Ad(g), rotate(g, y), rotation_matrix(g)

    @eqx.filter_jit
    @jax.vmap
    def theirs(x, y):
        g = jaxlie.SO3.exp(x)
        product = g @ jaxlie.SO3.exp(y)
        return g.wxyz, g.log(), g.jlog(), product.wxyz, g.adjoint(), g.apply(y), g.as_matrix()

    x, y = jnp.asarray(x), jnp.asarray(y)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        oracle = theirs(x, y)
    for a, b in zip(ours(x, y), oracle, strict=True):
        # Measured 2e-15; the sign of a quaternion is free.
        a, b = np.asarray(a), np.asarray(b)
        if a.ndim == 2 and a.shape[1] == 4:
            b = b * np.sign(np.sum(a * b, axis=1, keepdims=True))
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-14)


def test_cayley_turns_by_twice_the_arctangent():
    x = jnp.array([0.0, 1.2, 0.0])
    turned = GROUP.log(GROUP.cay(x))
    np.testing.assert_allclose(turned, [0, 2 * np.arctan(0.6), 0], rtol=1e-14)


UNIT = (1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("group", "q", "words"),
    [
        (SO3(), np.array([2.0, 0, 0, 0]), ["norm 2", "divide it by its norm"]),
        (SO3(), np.array([1.0, 0.05, 0, 0]), ["norm 1.00125"]),
        (SO3(), np.full(4, np.nan), ["norm nan"]),
        (SO3(), np.zeros(3), ["(3,)", "(4,)", "scalar first"]),
        (Euclidean(2), np.zeros(3), ["(3,)", "(2,)"]),
        (Euclidean(2), np.zeros((1, 2)), ["(1, 2)"]),
        (Product((Euclidean(1), SO3())), (np.zeros(1), np.zeros(4)), ["norm 0"]),
        (Product((Euclidean(1), SO3())), (np.zeros(1),), ["tuple of 2"]),
        (PoseGroup(1), np.zeros(7), ["Pose(position, orientation)"]),
        (PoseGroup(2), Pose(np.zeros((1, 3)), np.array([UNIT])), ["(1, 3)", "(2, 4)"]),
        (PoseGroup(2), Pose(np.zeros((2, 3)), np.array([UNIT, (0, 3, 4, 0)])), ["norm 5"]),
        (JointSpace(4, (1,)), np.zeros(4), ["(4,)", "(5,)"]),
        (JointSpace(4, (1,)), np.array([0.0, 3.0, 0.0, 4.0, 0.0]), ["norm 5"]),
    ],
)
def test_what_is_wrong_with_an_element(group, q, words):
    message = group.check(q)
    assert message is not None
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("group", "q"),
    [
        (SO3(), np.array([1.0 + 5e-4, 0, 0, 0])),
        (SO3(), np.array([0, 0, 0.6, -0.8])),
        (Euclidean(2), np.zeros(2)),
        (PoseGroup(1), Pose(np.zeros((1, 3)), np.array([UNIT]))),
    ],
)
def test_nothing_is_wrong_with_an_element(group, q):
    assert group.check(q) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "group",
    [SO3(), Euclidean(2), Product((Euclidean(1), SO3())), PoseGroup(2), JointSpace(7, (1, 4))],
)
def test_the_identity_is_an_element(group):
    assert group.check(group.identity()) is None
