"""Small dense algebra on components."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd._jax import staged
from diffnsd._numerics import (
    LOOP_LIMIT,
    UNROLL_LIMIT,
    is_least,
    lu_solve,
    matrix_inverse,
    matvec,
    weighted_sum,
)

ORDERS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 24, 25]
LANES = (5, 3)


def matrices(n: int):
    """Positive definite plus a skew part, as a mass matrix with gyroscopic terms; batch last."""
    random = np.random.default_rng(n)
    root = random.normal(size=(*LANES, n, n))
    skew = random.normal(size=(*LANES, n, n))
    a = root @ np.swapaxes(root, -1, -2) / n + np.eye(n) + 0.3 * (skew - np.swapaxes(skew, -1, -2))
    return a, random.normal(size=(*LANES, n))


def first_axes(x, count: int):
    """Moves the last `count` axes to the front."""
    return jnp.moveaxis(jnp.asarray(x), range(-count, 0), range(count))


@pytest.mark.parametrize("n", ORDERS)
def test_against_lapack(n):
    # Not compiled: single operations on (5, 3) lanes are, once for all orders.
    a, b = matrices(n)
    rows, right = first_axes(a, 2), first_axes(b, 1)
    x, inverse, product = lu_solve(rows, right), matrix_inverse(rows), matvec(rows, right)
    # Measured: 4e-15 at most.
    solved = np.linalg.solve(a, b[..., None])[..., 0]
    np.testing.assert_allclose(np.moveaxis(x, 0, -1), solved, rtol=0, atol=1e-13)
    inverted = np.moveaxis(inverse, (0, 1), (-2, -1))
    np.testing.assert_allclose(inverted, np.linalg.inv(a), rtol=0, atol=1e-13)
    applied = np.einsum("...ij,...j->...i", a, b)
    np.testing.assert_allclose(np.moveaxis(product, 0, -1), applied, rtol=0, atol=1e-13)


def test_both_sides_of_the_limits_are_tested():
    assert min(ORDERS) < UNROLL_LIMIT < 14 < LOOP_LIMIT < max(ORDERS)


def test_empty_matrices():
    assert lu_solve(jnp.zeros((0, 0)), jnp.zeros(0)).shape == (0,)
    assert matrix_inverse(jnp.zeros((0, 0, 4))).shape == (0, 0, 4)


@pytest.mark.parametrize("n", [3, 14, 25])
def test_solve_is_differentiable(n):
    a, b = matrices(n)
    a, b = jnp.asarray(a[0, 0]), jnp.asarray(b[0, 0])
    da, db = jnp.asarray(matrices(n)[0][1, 1]), jnp.ones(n)
    x = np.linalg.solve(a, b)
    solve = jax.jit(
        lambda a, b: (*jax.jvp(lu_solve, (a, b), (da, db)), *jax.vjp(lu_solve, a, b)[1](b))
    )
    _, tangent, of_a, of_b = solve(a, b)
    np.testing.assert_allclose(tangent, np.linalg.solve(a, db - da @ x), rtol=0, atol=1e-12)
    back = np.linalg.solve(a.T, b)
    np.testing.assert_allclose(of_b, back, rtol=0, atol=1e-12)
    np.testing.assert_allclose(of_a, -np.outer(back, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [5, 14, 25])
def test_one_matrix_for_several_right_hand_sides(n):
    a, b = matrices(n)[0][0, 0], np.random.default_rng(1).normal(size=(n, 4))
    found = lu_solve(jnp.asarray(a)[:, :, None], jnp.asarray(b))
    np.testing.assert_allclose(found, np.linalg.solve(a, b), rtol=0, atol=1e-13)


def test_a_stage_runs_only_if_pending():
    stage = jax.jit(lambda pending, x: staged(pending, lambda y: (y + 1, y[0] > 0), x))
    value, flag = stage(True, jnp.ones(2))
    assert np.all(value == 2) and bool(flag)
    value, flag = stage(False, jnp.ones(2))
    assert np.all(value == 0) and not bool(flag)


def test_weighted_sums_over_either_axis():
    random = np.random.default_rng(5)
    a, x, y = (random.normal(size=s) for s in ((3, 4, 7), (4, 7), (3, 7)))
    np.testing.assert_allclose(
        weighted_sum(jnp.asarray(a), jnp.asarray(x), axis=1), np.einsum("ijl,jl->il", a, x)
    )
    np.testing.assert_allclose(
        weighted_sum(jnp.asarray(a), jnp.asarray(y)), np.einsum("ijl,il->jl", a, y)
    )


def test_the_least_entry_is_one_entry():
    found = is_least(jnp.array([3.0, 1.0, 1.0, np.inf]))
    np.testing.assert_array_equal(found, [False, True, False, False])
    assert not is_least(jnp.full(3, np.inf)).any()
