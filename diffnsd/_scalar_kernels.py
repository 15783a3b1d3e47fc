"""Scalar functions of a squared angle that stay accurate near zero, with their derivatives."""

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.polynomial import Polynomial
from numpy.polynomial.polynomial import polyfromroots, polyval

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
