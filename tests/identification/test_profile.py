"""Profiles of losses with known intervals, and of one with two valleys."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from diffnsd import identification as ident
from diffnsd.identification.information._uncertainty import student_quantile

T = np.linspace(0.0, 2.0, 15)
Y = 2.0 * np.exp(-0.7 * T) + 0.05 * np.random.default_rng(1).normal(size=15)


def line(p):
    return p["a"] + p["b"] * T - Y


def decay(p):
    return p["a"] * jnp.exp(-p["b"] * T) - Y


def fitted(residual, start=(1.0, 0.5), bounds=None):
    model = {"a": jnp.asarray(start[0]), "b": jnp.asarray(start[1])}
    params, _ = ident.parameters(model, lambda m: m, bounds)
    return ident.least_squares(residual, params)


@pytest.mark.slow
def test_a_linear_profile_has_student_s_interval():
    fit = fitted(line)
    found = ident.uncertainty(fit.params, fit.linearisation)
    value, error = found["b"]
    held = ident.profile(line, fit, "b", value + error * np.array([-4, -3, -2, -1, 0, 1, 2, 3, 4]))
    half = stats.t(13).ppf(0.975) * error
    # The interpolation is exact for a parabola; the fits end at 1e-6 of the loss: measured 1e-5.
    np.testing.assert_allclose(held.interval(0.95), [value - half, value + half], rtol=5e-5)
    assert held.converged.all()
    slope = np.polyfit(held.values, held.others["a"], 1)[0]
    np.testing.assert_allclose(slope, -np.mean(T), rtol=5e-5)  # the best intercept


def test_a_nonlinear_profile_is_the_least_loss():
    fit = fitted(decay)
    values = np.linspace(0.6, 0.8, 5)
    held = ident.profile(decay, fit, "b", values[::-1])
    for value, loss, a in zip(held.values, held.losses, held.others["a"], strict=True):
        shape = np.exp(-value * T)  # the best factor is known
        np.testing.assert_allclose(a, shape @ Y / (shape @ shape), rtol=1e-6)
        np.testing.assert_allclose(loss, np.sum((a * shape - Y) ** 2) / 2, rtol=1e-9)


def test_a_side_that_the_data_do_not_exclude():
    fit = fitted(decay)
    value = float(fit.values()["b"])
    held = ident.profile(decay, fit, "b", [value, value + 0.5])
    lo, hi = held.interval(0.9)
    assert lo == -np.inf and value < hi < value + 0.5


def test_two_valleys_are_seen():
    def waves(p):
        return jnp.sin(p["b"] * T) + 0.0 * p["a"] - np.sin(3.0 * T)

    fit = fitted(waves, (0.0, 2.8))
    held = ident.profile(waves, fit, "b", np.linspace(-6.0, 6.0, 49), max_steps=3)
    inner = held.losses[1:-1]
    valleys = np.sum((inner < held.losses[:-2]) & (inner < held.losses[2:]))
    assert valleys > 1


@pytest.mark.slow
def test_bounds_and_names():
    fit = fitted(decay, bounds={"a": (0.0, 5.0), "b": (0.0, 2.0)})
    with pytest.raises(ValueError, match="between"):
        ident.profile(decay, fit, "b", [0.5, 3.0])
    with pytest.raises(KeyError, match="a, b"):
        ident.profile(decay, fit, "c", [0.5])
    with pytest.raises(ValueError, match="finite"):
        ident.profile(decay, fit, "b", [])
    with pytest.raises(ValueError, match="level"):
        ident.profile(decay, fit, "b", [0.7]).interval(95)


@pytest.mark.parametrize("n", [1, 3, 30, 1000])
def test_student_s_quantile(n):
    np.testing.assert_allclose(student_quantile(0.95, n), stats.t(n).ppf(0.975), rtol=1e-9)
