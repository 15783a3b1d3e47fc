"""Norms, scalar kernels and small dense algebra that stay correct under differentiation and `vmap`.

The dense algebra works on *components*: a matrix is an array whose first two axes are rows and
columns and whose trailing axes are anything (contacts, elements of a batch). Every operation is then
elementwise over the trailing axes and vectorises, which LAPACK calls on tiny matrices do not.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array
from numpy.polynomial import Polynomial
from numpy.polynomial.polynomial import polyfromroots, polyval

from ._jax import evaluated_again, one_by_one

UNROLL_LIMIT = 12
"""Largest order of a matrix that is factorised on components; above it LAPACK is used."""


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


def is_least(x: Array) -> Array:
    """Which entry of a vector is the least, the first of equal ones; none where all are infinite."""
    return (jnp.arange(x.size) == jnp.argmin(x)) & jnp.isfinite(x)


def cross(a: Array, b: Array) -> Array:
    """Cross product over the first axis (length 3)."""
    (u, v, w), (x, y, z) = jnp.unstack(a), jnp.unstack(b)
    return jnp.stack([v * z - w * y, w * x - u * z, u * y - v * x])


def skew(x: Array) -> Array:
    """The matrix of the cross product, `skew(x) y = x × y`, shape `(3, 3, ...)`."""
    u, v, w = jnp.unstack(x)
    zero = jnp.zeros_like(u)
    return stacked([[zero, -w, v], [w, zero, -u], [-v, u, zero]])


# Scalar kernels of t = theta^2. The closed forms lose digits like eps / t^k near zero, and their
# derivatives lose more; the Taylor branch is therefore wide (t < 4, 14 terms), which keeps the
# derivatives up to the third order to 1e-12 (float64). The closed form is evaluated at a harmless
# argument inside the Taylor region, so that neither value nor derivative of the branch that is not
# taken can spoil the other (the double `where`).


def _horner(coefficients: list[float], t: Array) -> Array:
    total = jnp.full_like(t, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * t + c
    return total


def _switched(series: Sequence[Fraction], closed: Callable[[Array], Array]) -> Callable:
    coefficients = [float(c) for c in series]

    def kernel(t: Array) -> Array:
        small = t < 4.0
        near = _horner(coefficients, jnp.where(small, t, 0.0))
        return jnp.where(small, near, closed(jnp.sqrt(jnp.where(small, 4.0, t))))

    return kernel


def _alternating(first: int, terms: int, base: int = 1) -> list[Fraction]:
    """`(-1)^j / (base^j (2j + first)!)`: the series of `cos`, `sinc` and their relatives in `t`."""
    return [Fraction((-1) ** j, base**j * math.factorial(2 * j + first)) for j in range(terms)]


cos_kernel = _switched(_alternating(0, 14), jnp.cos)
"""`cos(theta)` as a function of `theta^2`."""
sinc_kernel = _switched(_alternating(1, 14), lambda x: jnp.sin(x) / x)
"""`sin(theta) / theta` as a function of `theta^2`."""
versine_kernel = _switched(_alternating(2, 14), lambda x: 2 * (jnp.sin(x / 2) / x) ** 2)
"""`(1 - cos(theta)) / theta^2` as a function of `theta^2`."""
sine_defect_kernel = _switched(_alternating(3, 14), lambda x: (x - jnp.sin(x)) / x**3)
"""`(theta - sin(theta)) / theta^3` as a function of `theta^2`."""


def bernoulli_numbers(count: int) -> list[Fraction]:
    """`B_0 ... B_(count-1)` with `B_1 = -1/2`, exact (Akiyama-Tanigawa triangle)."""
    out, row = [], []
    for m in range(count):
        row.append(Fraction(1, m + 1))
        for j in range(m, 0, -1):
            row[j - 1] = j * (row[j - 1] - row[j])
        out.append(-row[0] if m == 1 else row[0])
    return out


def lagrange(nodes: Sequence[Fraction]) -> list[np.ndarray]:
    """Coefficients of the Lagrange polynomials of nodes, from the constant up, as rational numbers.

    They are exact, because a rounding error in the tables of a method is the same in every step, and no
    shorter step removes it.
    """
    polynomials = []
    for i, node in enumerate(nodes):
        others = [*nodes[:i], *nodes[i + 1 :]]
        scale = math.prod(node - x for x in others)
        product: Any = polyfromroots(np.array(others, object))
        polynomials.append(product / scale)
    return polynomials


def _bernoulli_series(terms: int) -> list[Fraction]:
    """`|B_2k| / (2k)!` for k = 1 ... terms, the series of `(1 - (theta/2) cot(theta/2)) / theta^2`."""
    numbers = bernoulli_numbers(2 * terms + 1)
    return [abs(numbers[2 * k]) / math.factorial(2 * k) for k in range(1, terms + 1)]


bernoulli_kernel = _switched(  # with cos/sin, not 1/tan, whose derivatives are lost at pi
    _bernoulli_series(20), lambda x: (1 - (x / 2) * jnp.cos(x / 2) / jnp.sin(x / 2)) / x**2
)
"""`(1 - (theta/2) cot(theta/2)) / theta^2` as a function of `theta^2`, for `theta < 2 pi`."""


# Kernels for one step, `theta < pi`: single polynomials in `t` on [0, pi²], economised from the
# exact series, of the lowest degree whose third derivatives are accurate too. No branch, no division,
# no trigonometric function: a step of a Runge-Kutta method on rotations stays one kernel of XLA;
# the switched kernels above would split it into twenty.


def _chebyshev(coefficients: Sequence[Fraction] | np.ndarray) -> list[Fraction]:
    """A polynomial in the Chebyshev basis, by Horner's rule and `2 z T_n = T_(n−1) + T_(n+1)`, exactly."""
    total = [Fraction(0)]
    for c in reversed(coefficients):
        above, total = total, [Fraction(0)] * (len(total) + 1)
        for n, value in enumerate(above):
            total[abs(n - 1)] += value / 2
            total[n + 1] += value / 2
        total[0] += c
    return total


def _economised(series: Callable, degree: int) -> Callable:
    # Rational numbers, and the constant in two parts: rounding errors of coefficients are the same in every
    # step of a long run and add up to a drift; those of operations are a random walk.
    one, square = Fraction(1), Fraction(math.pi**2)

    def substituted(coefficients, inner) -> np.ndarray:
        """The composition of a polynomial with a linear one, `inner`."""
        found: Any = polyval(Polynomial(np.array(inner)), np.array(coefficients))
        return found.coef

    @functools.cache  # when first called: exact arithmetic takes as long as a fifth of the import
    def numbers() -> tuple[float, float, list[float]]:
        scaled = substituted(series(), [square / 2, square / 2])  # in z = 2 t / pi² − 1
        kept = np.polynomial.chebyshev.cheb2poly(_chebyshev(list(scaled))[: degree + 1])
        exact, *others = substituted(kept, [-one, 2 * one / square])
        constant = float(exact)
        return constant, float(exact - Fraction(constant)), [float(c) for c in others]

    def kernel(t: Array) -> Array:
        constant, low, coefficients = numbers()
        return (_horner(coefficients, t) * t + low) + constant

    return kernel


cos_half_near = _economised(lambda: _alternating(0, 30, 4), 10)
"""`cos(theta/2)` as a function of `theta^2`, for `theta <= pi`."""
sinc_half_near = _economised(lambda: _alternating(1, 30, 4), 9)
"""`sin(theta/2) / (theta/2)` as a function of `theta^2`, for `theta <= pi`."""
sine_defect_near = _economised(lambda: _alternating(3, 30), 11)
"""`(theta - sin(theta)) / theta^3` as a function of `theta^2`, for `theta <= pi`."""
bernoulli_near = _economised(lambda: _bernoulli_series(60), 16)
"""`(1 - (theta/2) cot(theta/2)) / theta^2` as a function of `theta^2`, for `theta <= pi`."""


def lu_solve(a: Array, b: Array) -> Array:
    """Solves `a x = b` on components by Gaussian elimination without pivoting.

    For matrices whose leading minors do not vanish: mass matrices plus positive semidefinite
    terms, possibly with a small unsymmetric part. Orders above `UNROLL_LIMIT` go to LAPACK.

    **Arguments:** `a`: shape `(n, n, ...)`; `b`: shape `(n, ...)`. **Returns:** shape `(n, ...)`.
    """
    n = a.shape[0]
    if n > UNROLL_LIMIT:
        lead = jnp.moveaxis(a.reshape((n, n, -1)), 2, 0)
        return one_by_one(jnp.linalg.solve, lead, b.reshape((n, -1)).T).T.reshape(b.shape)
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
    if n > UNROLL_LIMIT:
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
    if a.shape[1] > UNROLL_LIMIT:
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
