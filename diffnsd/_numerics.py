"""Norms and small dense algebra that stay correct under differentiation and `vmap`.

The dense algebra works on *components*: a matrix is an array whose first two axes are rows and
columns and whose trailing axes are anything (contacts, elements of a batch). Every operation is then
elementwise over the trailing axes and vectorises, which LAPACK calls on tiny matrices do not.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from ._jax import evaluated_again, one_by_one

UNROLL_LIMIT = 12
"""Largest order of a matrix that is factorised on components."""

LOOP_LIMIT = 24
"""Largest order of a matrix that is eliminated in a loop over pivots; above it LAPACK is used.

LAPACK takes one matrix of a batch after the other. Measured for 128 of order 14, a loop and LAPACK: 0.5 and
2.0 µs each; of order 20: 2.2 and 3.0 µs; of order 27: 5.3 and 4.7 µs.
"""


def as_float(x, dtype: DTypeLike = float) -> Array:
    """A floating-point array: JAX arrays keep their precision, anything else takes that of `dtype`."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jnp.asarray(x, dtype=dtype)


def dot(a: Array, b: Array) -> Array:
    """Sum over the first axis of `a * b`; the trailing axes are kept."""
    return weighted_sum(a, b)


def weighted_sum(parts: Array, weights: Array, axis: int = 0) -> Array:
    """`Σ_i parts_i weights_i` over an axis of `parts` and the first one of `weights`, a chain of additions.

    Leading axes that only the parts have are kept: with `axis=1` matrices `(m, n, ...)` times vectors
    `(n, ...)`. Components are read by one operation, not one each, which halves such programs.
    """
    weights = weights.reshape(
        weights.shape[:1] + (1,) * (parts.ndim - weights.ndim) + weights.shape[1:]
    )
    pairs = zip(jnp.unstack(parts, axis=axis), jnp.unstack(weights), strict=True)
    return functools.reduce(operator.add, (part * weight for part, weight in pairs))


def short_sum(x: Array, axis: int, limit: int = 8) -> Array:
    """Sum over an axis of at most `limit` entries as a chain of additions, over a longer one as a reduction.

    A reduction of a few terms becomes a call that does not fuse with its surroundings.
    """
    count = x.shape[axis]
    if not 0 < count <= limit:
        return jnp.sum(x, axis=axis)
    return functools.reduce(operator.add, jnp.unstack(x, axis=axis))


def short_product(a: Array, b: Array, limit: int = 8) -> Array:
    """`a @ b` of two matrices, as a chain of additions where at most `limit` terms are summed.

    In a batch XLA calls a library on a CPU for such a product of every element: 128 products of 4 x 4
    matrices take 17 µs, the chain 5.5 µs.
    """
    if not 0 < a.shape[1] <= limit:
        return a @ b
    return weighted_sum(a.T[:, :, None], b[:, None])


def safe_norm(x: Array) -> Array:
    """Euclidean norm over the first axis whose derivative at zero is zero, not NaN.

    **Arguments:** `x`: shape `(k, ...)`. **Returns:** shape `(...)`.
    """
    square = dot(x, x)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def max_abs(x: Array) -> Array:
    """Largest magnitude in an array that may be empty (then 0)."""
    return jnp.max(jnp.abs(x), initial=0.0)


def least(x: Array) -> Array:
    """The least entry of a vector, for decisions; of a few entries a chain, as `short_sum`."""
    return functools.reduce(jnp.minimum, jnp.unstack(x)) if 0 < x.size <= 8 else jnp.min(x)


def is_least(x: Array) -> Array:
    """Which entry of a vector is the least, the first of equal ones; none where all are infinite."""
    if x.size > 8:
        return (jnp.arange(x.size) == jnp.argmin(x)) & jnp.isfinite(x)
    smallest, taken, found = least(x), jnp.array(False), []
    for entry in jnp.unstack(x):
        found.append((entry == smallest) & jnp.isfinite(entry) & ~taken)
        taken = taken | found[-1]
    return jnp.stack(found)


def smallest_entries(x: Array, count: int) -> Array:
    """Indices of the smallest entries of a vector, compared in single precision.

    For that XLA has a kernel on a CPU; other dtypes it sorts whole: 128 times 8 of 190 in 2.5 for 0.11 ms.
    """
    return jax.lax.top_k(-x.astype(jnp.float32), count)[1]


def cross(a: Array, b: Array) -> Array:
    """Cross product over the first axis (length 3)."""
    (u, v, w), (x, y, z) = jnp.unstack(a), jnp.unstack(b)
    return jnp.stack([v * z - w * y, w * x - u * z, u * y - v * x])


def skew(x: Array) -> Array:
    """The matrix of the cross product, `skew(x) y = x × y`, shape `(3, 3, ...)`."""
    u, v, w = jnp.unstack(x)
    zero = jnp.zeros_like(u)
    return stacked([[zero, -w, v], [w, zero, -u], [-v, u, zero]])


def lu_solve(a: Array, b: Array) -> Array:
    """Solves `a x = b` on components by Gaussian elimination without pivoting.

    For matrices whose leading minors do not vanish: mass matrices plus positive semidefinite
    terms, possibly with a small unsymmetric part. Orders above `LOOP_LIMIT` go to LAPACK.

    **Arguments:** `a`: shape `(n, n, ...)`; `b`: shape `(n, ...)`. **Returns:** shape `(n, ...)`.
    """
    n = a.shape[0]
    if n > UNROLL_LIMIT:
        a = jnp.broadcast_to(a, (n, n, *b.shape[1:]))
    if n > LOOP_LIMIT:
        lead = jnp.moveaxis(a.reshape((n, n, -1)), 2, 0)
        return one_by_one(jnp.linalg.solve, lead, b.reshape((n, -1)).T).T.reshape(b.shape)
    if n > UNROLL_LIMIT:
        return jax.lax.custom_linear_solve(
            lambda x: matvec(a, x),
            b,
            lambda _, r: _gauss_jordan(a, r),
            lambda _, r: _gauss_jordan(jnp.swapaxes(a, 0, 1), r),
        )
    if n == 0:
        return b
    # Row by row, not entry by entry: every entry would be a separate kernel.
    rest, right, heads = a, b, []
    for _ in range(n):
        pivot, row, first = rest[0, 0], rest[0, 1:], right[0]
        heads.append((pivot, row, first))
        factor = rest[1:, 0] * (1 / pivot)[None]
        rest = rest[1:, 1:] - factor[:, None] * row[None]
        right = right[1:] - factor * first[None]
    # Divides again and keeps no reciprocal: XLA would recompute it, with all that leads to it, in every use.
    solution: list[Array] = []
    for pivot, row, total in reversed(heads):
        for entry, x in zip(jnp.unstack(row), solution, strict=True):
            total = total - entry * x
        solution.insert(0, total / pivot)
    return jnp.stack(solution)


def _gauss_jordan(a: Array, b: Array) -> Array:
    """`lu_solve` with one pivot per iteration of a loop, over what is left after every `STAGE` of them."""
    rest, above = jnp.concatenate([a, b[:, None]], axis=1), []
    while len(rest):
        count = min(STAGE, len(rest))
        index = np.arange(len(rest)).reshape((-1,) + (1,) * (b.ndim - 1))

        def pivot(k, rows, index=index):
            row, column = rows[k] / rows[k, k][None], jnp.where(index == k, 0, rows[:, k])
            return jnp.where((index == k)[:, None], row[None], rows - column[:, None] * row[None])

        rest = jax.lax.fori_loop(0, count, pivot, rest)
        above.append(rest[:count, count:])
        rest = rest[count:, count:]
    solution = above.pop()[:, 0]
    for rows in reversed(above):
        new = rows[:, -1] - weighted_sum(rows[:, :-1], solution, axis=1)
        solution = jnp.concatenate([new, solution])
    return solution


STAGE = 8
"""Pivots after which elimination goes on with a smaller matrix: 128 systems of order 23 in 420 for 720 µs."""


def newton_solve(a: Array, b: Array) -> Array:
    """Solves `a x = b` where iterating corrects rounding errors: `lu_solve`, but shorter.

    Orders 2 and 3 use cofactors, a shorter chain of operations. Their rounding errors have a bias, which
    would show in conserved quantities if repeated over many steps.
    """
    n = a.shape[0]
    if n not in (2, 3):
        return lu_solve(a, b)
    right = jnp.unstack(b)
    rows = [[x * y for x, y in zip(row, right, strict=True)] for row in inverse(entries(a))]
    return jnp.stack([functools.reduce(operator.add, row) for row in rows])


def implicit_root(
    residual: Callable,
    guess: Array,
    *,
    search: int = 0,
    bound: Array | float = jnp.inf,
    falls: bool = False,
) -> Array:
    """The root of `residual` near a guess, with its derivatives to second order.

        x ← x − J^-1 r(x),     J = dr/dx

    `search` iterations without derivatives, then two with derivatives. Where `r` vanishes, the first of
    these gives the derivative of the implicit function theorem, and the second also the second derivative.

    **Arguments:** `residual`: pure function of arrays like `guess`, shape `()` or `(m,)`; it closes over
    the variables of differentiation. `bound`: largest `|x|` in the search; `falls`: for a scalar residual,
    look only for a root where it falls. Where the slope vanishes, `x` stays.
    """

    def newton(x, finds):
        if x.ndim:
            new = x - lu_solve(jax.jacfwd(residual)(x), residual(x))
        else:
            value, slope = jax.jvp(residual, (x,), (jnp.ones_like(x),))
            usable = slope < 0 if falls else slope != 0
            new = x - jnp.where(usable, value, 0) / jnp.where(usable, slope, 1)
        if not search:
            return new, None
        found = jax.lax.stop_gradient(jnp.clip(new, -bound, bound))
        return jnp.where(finds, found, new), None

    # One loop for both kinds of iterations, because residuals make long programs.
    finds = np.arange(search + 2) < search
    return jax.lax.scan(evaluated_again(newton), jax.lax.stop_gradient(guess), finds)[0]


def matrix_inverse(a: Array) -> Array:
    """Inverse on components of `a`, shape `(n, n, ...)`, for the same matrices as `lu_solve`.

    Gauss-Jordan in place, one pivot per loop iteration: a third of the code to compile, compared with
    the unrolled elimination for n right-hand sides.
    """
    n = a.shape[0]
    if n > LOOP_LIMIT:
        inverted = one_by_one(jnp.linalg.inv, jnp.moveaxis(a.reshape((n, n, -1)), 2, 0))
        return jnp.moveaxis(inverted, 0, 2).reshape(a.shape)
    if n == 0:
        return a
    if n <= 3:
        return stacked(inverse(entries(a)))
    index = np.arange(n).reshape((n,) + (1,) * (a.ndim - 2))

    def pivot(k, a):
        here = index == k
        row, column = a[k], a[:, k]
        reciprocal = 1 / row[k]
        row = jnp.where(here, 1, row) * reciprocal[None]
        column = jnp.where(here, 0, column)
        rest = jnp.where(here[None], 0, a) - column[:, None] * row[None]
        return jnp.where(here[:, None], row[None], rest)

    return jax.lax.fori_loop(0, n, pivot, a)


def entries(a: Array) -> list[list[Array]]:
    """The entries of a matrix as a list of rows."""
    return [list(jnp.unstack(row)) for row in jnp.unstack(a)]


def stacked(rows: list[list[Array]]) -> Array:
    """A matrix from its entries, a list of rows."""
    return jnp.stack([jnp.stack(row) for row in rows])


def hold(a: Array, h: Array | float) -> Array:
    """`∫_0^h exp(s A) ds`, `(n, n)`: what a rate held constant over `h` adds to the state of `x' = A x`.

    The upper right block of the exponential of `h [[A, 1], [0, 0]]`, after C. Van Loan (1978),
    doi:10.1109/TAC.1978.1101743.
    """
    n = a.shape[0]
    rows = jnp.concatenate([a, jnp.eye(n, dtype=a.dtype)], axis=1)
    block = jnp.concatenate([rows, jnp.zeros((n, 2 * n), a.dtype)])
    return jax.scipy.linalg.expm(h * block)[:n, n:]


def matvec(a: Array, x: Array) -> Array:
    """`a x` on components, `(n, n, ...)` times `(n, ...)`."""
    if a.shape[1] > LOOP_LIMIT:
        return jnp.einsum("ij...,j...->i...", a, x)
    return weighted_sum(a, x, axis=1)


def inverse(rows: list[list[Array]]) -> list[list[Array]]:
    """Inverse of a matrix of order 1, 2 or 3 by cofactors, given as a list of rows of arrays."""
    n = len(rows)
    if n == 1:
        return [[1 / rows[0][0]]]
    if n == 2:
        (a, b), (c, d) = rows
        r = 1 / (a * d - b * c)
        return [[d * r, -b * r], [-c * r, a * r]]
    (a, b, c), (d, e, f), (g, h, i) = rows
    p, q, s = e * i - f * h, f * g - d * i, d * h - e * g
    r = 1 / (a * p + b * q + c * s)
    return [
        [p * r, (c * h - b * i) * r, (b * f - c * e) * r],
        [q * r, (a * i - c * g) * r, (c * d - a * f) * r],
        [s * r, (b * g - a * h) * r, (a * e - b * d) * r],
    ]


def unit_matrix(n: int, like: Array) -> Any:
    """The unit matrix, `(n, n, 1, ...)`, with axes of length 1 for the trailing axes of `like (k, ...)`."""
    return np.eye(n, dtype=like.dtype).reshape(n, n, *(1,) * (like.ndim - 1))
