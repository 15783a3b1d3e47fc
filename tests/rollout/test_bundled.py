"""Bundled gradients: their average, their error, and what the first order cannot see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import MoreauJean, SaveAt, State, bundled_gradient, simulate
from diffnsd.models import bouncing_ball
from diffnsd.rollout import FirstOrder


def test_a_quadratic_is_unbiased():
    def f(x):
        return jnp.sum(x["a"] ** 2) + 3 * x["b"]

    x = {"a": jnp.array([1.0, -2.0]), "b": jnp.asarray(0.5)}
    out = bundled_gradient(f, x, jax.random.key(0), scale=0.1, samples=2000)
    known = jax.grad(f)(x)
    for found, error, exact in zip(
        *map(jax.tree.leaves, (out.gradient, out.standard_error, known)), strict=True
    ):
        assert np.all(np.abs(found - exact) < 4 * error)
        assert np.all(error < 0.3)


def test_the_time_of_an_impact():
    """Height after an impact by the height of release, 0.5664 exactly; plain time stepping."""

    def end(height):
        start = State(height[None], jnp.zeros(1))
        model, ends = bouncing_ball(0.9), SaveAt.end()
        return simulate(
            model, MoreauJean(), 0.0, 0.8, 1e-2, start, saveat=ends, throw=False
        ).states.q[0]

    key, height = jax.random.key(0), jnp.asarray(1.0)
    out = bundled_gradient(end, height, key, scale=0.05, samples=512)
    assert abs(out.gradient - 0.5664) < 4 * out.standard_error < 0.2  # 0.56 ± 0.02 with 1024
    blind = bundled_gradient(end, height, key, scale=0.05, samples=64, estimator=FirstOrder())
    np.testing.assert_allclose(blind.gradient, 1.0, atol=1e-9)  # no number of samples helps


def test_settings_that_are_refused():
    with pytest.raises(ValueError, match="samples must be at least 2"):
        bundled_gradient(jnp.sum, jnp.zeros(2), jax.random.key(0), scale=1.0, samples=1)
    with pytest.raises(ValueError, match="scale must be finite and more than 0, got -0.1"):
        bundled_gradient(jnp.sum, jnp.zeros(2), jax.random.key(0), scale=-0.1, samples=4)
