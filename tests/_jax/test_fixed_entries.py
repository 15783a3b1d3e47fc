"""Entries at fixed places: NumPy's indexing, its transpose written out, and no loop in either."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from diffnsd._jax import entries_at, sums_at

CASES = {
    "no order": ((5, 3), 0, [0, 2, 2, 4]),
    "many of a few": ((3, 7), 1, list(np.random.default_rng(0).integers(0, 7, 90))),
    "a table": ((3, 7, 2), 1, [[1, 2], [3, 3]]),
    "a permutation": ((4,), 0, [3, 1, 2, 0]),
    "one run": ((6,), 0, [1, 2, 3]),
    "two runs": ((9, 2), 0, [5, 6, 7, 0, 1]),
    "one place again and again": ((30, 2), 0, [5] * 40),
    "the last axis": ((2, 4), -1, [3, 0]),
    "none": ((6, 2), 0, []),
}


def whole(shape, axis, places):
    """The matrix `(out, in)` of the indexing, made entry by entry."""
    count = int(np.prod(shape))
    rows = np.take(np.arange(count).reshape(shape), np.array(places, int), axis=axis).reshape(-1)
    return np.eye(count)[rows]


@pytest.mark.parametrize("case", CASES)
def test_values_derivatives_and_batches_are_those_of_the_matrix(case):
    shape, axis, places = CASES[case]
    matrix, rng = whole(shape, axis, places), np.random.default_rng(1)

    def read(x):
        return entries_at(x, places, axis)

    x, along = rng.normal(size=(2, *shape))
    out, moved = jax.jvp(read, (jnp.asarray(x),), (jnp.asarray(along),))
    y = rng.normal(size=out.shape)
    np.testing.assert_array_equal(out.reshape(-1), matrix @ x.reshape(-1))
    np.testing.assert_array_equal(moved.reshape(-1), matrix @ along.reshape(-1))
    _, back = jax.vjp(read, jnp.asarray(x))
    # Up to 40 terms are added in another order: 2e-15.
    expected = (matrix.T @ y.reshape(-1)).reshape(shape)
    np.testing.assert_allclose(back(jnp.asarray(y))[0], expected, atol=1e-14)
    for at in range(len(shape) + 1):
        batch = jnp.stack([jnp.asarray(x), 2 * jnp.asarray(x)], axis=at)
        each = jax.vmap(read, at, 0)(batch)
        np.testing.assert_array_equal(each, jnp.stack([out, 2 * out]))
    twice = jax.vmap(lambda y: back(y)[0], -1, -1)(jnp.stack([y, -y], -1))
    np.testing.assert_allclose(twice[..., 1], -expected, atol=1e-14)


def test_second_derivatives_in_both_orders():
    x = jnp.array([0.3, -1.2, 0.7])

    def f(x):
        return jnp.sum(jnp.sin(entries_at(x, [2, 0, 0, 1]) ** 2))

    # d²/dx² sin x² = 2 cos x² − 4 x² sin x², twice for the entry that is read twice.
    known = np.diag([2, 1, 1] * np.asarray(2 * jnp.cos(x**2) - 4 * x**2 * jnp.sin(x**2)))
    for hessian in (jax.jacfwd(jax.grad(f)), jax.jacrev(jax.grad(f)), jax.jacrev(jax.jacfwd(f))):
        np.testing.assert_allclose(hessian(x), known, atol=1e-14)


def test_neither_direction_is_a_scatter():
    places = np.random.default_rng(2).integers(0, 13, 190)

    def f(x):
        return jnp.sum(entries_at(x, places, 1) ** 2)

    def scatters(function):
        lowered = jax.jit(jax.vmap(jax.grad(function))).lower(jnp.ones((4, 3, 13)))
        return lowered.as_text().count('"stablehlo.scatter"')

    assert scatters(f) == 0
    assert scatters(lambda x: jnp.sum(x[:, places] ** 2)) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, bool])
def test_other_dtypes_keep_theirs(dtype):
    x = jnp.array([0, 1, 0, 1]).astype(dtype)
    np.testing.assert_array_equal(entries_at(x, [3, 2]), x[jnp.array([3, 2])])
    assert entries_at(x, [3, 2]).dtype == x.dtype


def test_sums_of_integers_keep_their_dtype():
    places, y = np.array([0] * 15 + [1, 2, 3, 4, 4]), jnp.ones((20, 2), jnp.int32)
    found = jax.jit(lambda y: sums_at(y, places, 5))(y)
    np.testing.assert_array_equal(found[:, 0], [15, 1, 1, 1, 2])
    assert found.dtype == jnp.int32


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 8), max_size=40), st.integers(1, 3))
def test_sums_are_those_of_a_loop(places, width):
    y = np.random.default_rng(len(places)).normal(size=(len(places), width))
    total = np.zeros((9, width))
    for place, row in zip(places, y, strict=True):
        total[place] += row
    found = sums_at(jnp.asarray(y), np.array(places, int), 9)
    np.testing.assert_allclose(found, total, atol=1e-13)


@pytest.mark.parametrize(
    ("places", "axis", "error", "message"),
    [
        ([0, 3], 0, IndexError, "of an axis of length 3"),
        ([-1], 0, IndexError, "of an axis of length 3"),
        ([True, False, True], 0, TypeError, "must be integers, got an array of bool"),
        ([0.7, 1.2], 0, TypeError, "must be integers, got an array of float64"),
        ([0], 1, IndexError, "out of range"),
    ],
)
def test_places_and_axes_that_do_not_exist_are_refused(places, axis, error, message):
    with pytest.raises(error, match=message):
        entries_at(jnp.zeros(3), places, axis)
