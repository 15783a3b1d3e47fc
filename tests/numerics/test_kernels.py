"""Norms and scalar kernels, in value and in derivative."""

from decimal import Decimal, localcontext
from math import comb, factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd._numerics import cross, dot, max_abs, safe_norm, skew
from diffnsd._scalar_kernels import (
    bernoulli_kernel,
    cos_kernel,
    sinc_kernel,
    sine_defect_kernel,
    versine_kernel,
)

# The oracle is exact: the kernels are entire functions of t, or (Bernoulli) a quotient of two, so
# their Taylor coefficients at any t are sums of rationals, taken here in 60 decimal digits.

TERMS = 60
DERIVATIVES = 4


def entire(coefficient, t: Decimal) -> list[Decimal]:
    """Taylor coefficients of order 0 to 3 at `t` of the series with these coefficients at 0."""
    powers = [Decimal(1)]
    while len(powers) < TERMS:
        powers.append(powers[-1] * t)
    return [
        sum(coefficient(j) * comb(j, d) * powers[j - d] for j in range(d, TERMS))
        for d in range(DERIVATIVES)
    ]


def quotient(a: list[Decimal], b: list[Decimal]) -> list[Decimal]:
    out: list[Decimal] = []
    for d in range(DERIVATIVES):
        out.append((a[d] - sum(b[d - i] * out[i] for i in range(d))) / b[0])
    return out


def reciprocal_factorial(first: int):
    return lambda j: Decimal((-1) ** j) / factorial(2 * j + first)


def bernoulli_numerator(j: int) -> Decimal:
    """`sinc(s) - cos(s)`, `s^2 = t/4`, over t."""
    k = j + 1
    return (
        Decimal((-1) ** k) * (Decimal(1) / factorial(2 * k + 1) - Decimal(1) / factorial(2 * k))
    ) / Decimal(4) ** k


def bernoulli_denominator(j: int) -> Decimal:
    return Decimal((-1) ** j) / factorial(2 * j + 1) / Decimal(4) ** j


ORACLES = {
    "cos": (cos_kernel, lambda t: entire(reciprocal_factorial(0), t)),
    "sinc": (sinc_kernel, lambda t: entire(reciprocal_factorial(1), t)),
    "versine": (versine_kernel, lambda t: entire(reciprocal_factorial(2), t)),
    "sine_defect": (sine_defect_kernel, lambda t: entire(reciprocal_factorial(3), t)),
    "bernoulli": (
        bernoulli_kernel,
        lambda t: quotient(entire(bernoulli_numerator, t), entire(bernoulli_denominator, t)),
    ),
}

POINTS = np.concatenate(
    [
        [0.0, 1e-300, 1e-16],
        np.logspace(-12, np.log10(20.0), 60),
        [3.9, np.nextafter(4.0, 0.0), 4.0, np.nextafter(4.0, 5.0), 4.1],
    ]
)


@pytest.fixture(scope="module")
def computed():
    """Value and three derivatives of every kernel at all points, compiled once."""

    @jax.jit
    @jax.vmap
    def evaluate(t):
        out = {}
        for name, (kernel, _) in ORACLES.items():
            first = jax.grad(kernel)
            second = jax.grad(first)
            out[name] = jnp.stack([kernel(t), first(t), second(t), jax.grad(second)(t)])
        return out

    return evaluate(jnp.asarray(POINTS))


@pytest.mark.parametrize("name", ORACLES)
def test_kernels_and_derivatives_are_exact_across_the_switch(name, computed):
    oracle = ORACLES[name][1]
    with localcontext() as context:
        context.prec = 60
        exact = np.array(
            [[float(c * factorial(d)) for d, c in enumerate(oracle(Decimal(t)))] for t in POINTS]
        )
    # cos and sinc have zeros in the interval: their error is measured against the size at 0.
    size = np.abs(exact) if name in ("sine_defect", "bernoulli") else np.abs(exact[:1])
    error = np.max(np.abs(np.asarray(computed[name]) - exact) / size, axis=0)
    # Measured at most 2e-16, 4e-15, 2e-14, 3e-13 for the value and the three derivatives.
    assert np.all(error < [1e-15, 2e-14, 1e-13, 1e-12]), error


def test_kernels_in_single_precision():
    t = jnp.asarray(POINTS, jnp.float32)
    evaluate = jax.jit(lambda t: [kernel(t) for kernel, _ in ORACLES.values()])
    for single, double in zip(evaluate(t), evaluate(t.astype(jnp.float64)), strict=True):
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, double, rtol=0, atol=2e-6 * float(jnp.max(double)))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_norm(k):
    x = np.random.default_rng(k).normal(size=(k, 4, 5))
    np.testing.assert_allclose(safe_norm(jnp.asarray(x)), np.linalg.norm(x, axis=0), rtol=1e-15)
    gradient = jax.vmap(jax.grad(safe_norm), 1, 1)(jnp.asarray(x[:, :, 0]))
    np.testing.assert_allclose(
        gradient, x[:, :, 0] / np.linalg.norm(x[:, :, 0], axis=0), rtol=1e-14
    )


def test_norm_and_all_its_derivatives_vanish_at_zero():
    zero = jnp.zeros(3)
    assert safe_norm(zero) == 0
    assert np.all(np.asarray(jax.grad(safe_norm)(zero)) == 0)
    assert np.all(np.asarray(jax.jvp(safe_norm, (zero,), (jnp.ones(3),))[1]) == 0)
    assert np.all(np.asarray(jax.hessian(safe_norm)(zero)) == 0)


def test_products():
    a, b = np.random.default_rng(0).normal(size=(2, 3, 7))
    np.testing.assert_allclose(dot(jnp.asarray(a), jnp.asarray(b)), np.sum(a * b, 0), rtol=1e-13)
    np.testing.assert_allclose(
        cross(jnp.asarray(a), jnp.asarray(b)), np.cross(a, b, axis=0), rtol=1e-13
    )
    applied = np.einsum("ij...,j...->i...", np.asarray(skew(jnp.asarray(a))), b)
    np.testing.assert_allclose(applied, np.cross(a, b, axis=0), rtol=1e-13)


def test_largest_magnitude_of_nothing_is_zero():
    assert max_abs(jnp.zeros((0,))) == 0
    assert max_abs(jnp.asarray([1.0, -3.0])) == 3
