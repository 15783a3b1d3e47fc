"""Losses with several valleys, and outliers of unknown size: against known minima, truth and SciPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from diffnsd import identification as ident


class Line(eqx.Module):
    """A straight line through measured points, in the unit of the data."""

    x: jax.Array
    y: jax.Array

    def __call__(self, params):
        values = params.values()
        return values["slope"] * self.x + values["offset"] - self.y


def line(share=0.2, noise=0.03, seed=0, n=200):
    """Points on `y = 2 x + 1` with normal noise, a share of them moved up by about 5."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    y = 2 * x + 1 + noise * rng.normal(size=n)
    moved = rng.random(n) < share
    y[moved] += rng.uniform(4, 6, moved.sum())
    start = {"slope": jnp.asarray(0.0), "offset": jnp.asarray(0.0)}
    params, _ = ident.parameters(start, lambda m: dict(m), {})
    return Line(jnp.asarray(x), jnp.asarray(y)), params, moved


@pytest.mark.slow
def test_the_scale_of_a_robust_loss_is_found_from_the_data():
    residual, params, moved = line()
    found = ident.robust_least_squares(residual, params, rounds=40, scale_rtol=1e-6, rtol=1e-12)
    plain = ident.least_squares(residual, params).values()
    values = found.fit.values()
    assert abs(float(plain["offset"]) - 1) > 0.5  # outliers pull least squares
    # Measured: 0.009 and 0.010 from the truth, scale 0.041 for 0.03; 6 % of the good points are named.
    assert abs(float(values["offset"]) - 1) < 0.02 and abs(float(values["slope"]) - 2) < 0.02
    assert 0.025 < found.scale < 0.045 and found.settled
    assert np.all(found.outliers[moved]) and np.mean(found.outliers[~moved]) < 0.25

    # SciPy with the scale that was found comes to the same minimum.
    x, y = (np.asarray(a) for a in (residual.x, residual.y))
    peer = optimize.least_squares(
        lambda p: p[0] * x + p[1] - y,
        [0.0, 0.0],
        loss="huber",
        f_scale=1.345 * found.scale,
        xtol=1e-14,
        ftol=1e-14,
        gtol=1e-14,
    )
    np.testing.assert_allclose([values["slope"], values["offset"]], peer.x, atol=2e-6)  # 2e-7
    # The scale is the median's, by SciPy.
    off = peer.x[0] * x + peer.x[1] - y
    np.testing.assert_allclose(
        found.scale,
        stats.median_abs_deviation(off, center=lambda a, axis: 0.0, scale="normal"),
        rtol=1e-2,
    )


@pytest.mark.slow
def test_the_scale_follows_the_unit():
    residual, params, _ = line()
    milli = Line(1000 * residual.x, 1000 * residual.y)
    found, same = (ident.robust_least_squares(r, params) for r in (residual, milli))
    np.testing.assert_allclose(same.scale, 1000 * found.scale, rtol=5e-3)
    with pytest.raises(ValueError, match="tuning must be positive"):
        ident.robust_least_squares(residual, params, tuning=-1.0)


def wells(x):
    """`(x^2 - 1)^2 + 0.3 x` has minima near -1.035 and 0.960, the first deeper by 0.6."""
    return (x**2 - 1) ** 2 + 0.3 * x


def minimise(scale):
    programs = ident.Programs()

    def run(params):
        # Residuals with the same sum of squares, up to a constant: never negative.
        def residual(p):
            return jnp.sqrt(2 * scale * (wells(p["x"]) + 0.5))[None]

        return ident.least_squares(residual, params, programs=programs, throw=False)

    return run


@pytest.mark.slow
def test_several_starts_find_the_deeper_valley():
    start = {"x": jnp.asarray(0.9)}
    params, _ = ident.parameters(start, lambda m: dict(m), {"x": (-2.0, 2.0)})
    alone = minimise(10.0)(params)
    found = ident.several_starts(minimise(10.0), params, count=6)
    exact = [optimize.minimize_scalar(wells, bracket=(s, 0.9 * s), tol=1e-12).x for s in (-1, 1)]
    assert abs(float(alone.values()["x"]) - exact[1]) < 1e-3
    assert abs(float(found.best.values()["x"]) - exact[0]) < 1e-3
    assert len(found.fits) == 6 and found.fits[0].loss == alone.loss
    at = [float(valley.values["x"]) for valley in found.valleys]
    np.testing.assert_allclose(at[:2], exact, atol=1e-3)
    assert sorted(i for valley in found.valleys for i in valley.starts) == list(range(6))
    assert not any("about as good" in sentence for sentence in found.warnings)

    # With ten times less data the other valley cannot be told apart, and that is said.
    rival = ident.several_starts(minimise(1.0), params, count=6)
    assert any("another fit is about as good" in sentence for sentence in rival.warnings)
    with pytest.raises(ValueError, match="at least 2"):
        ident.several_starts(minimise(1.0), params, count=1)


@pytest.mark.slow
def test_further_starts_fill_the_bounds():
    start = {"a": jnp.asarray(0.5), "b": jnp.zeros(3)}
    params, _ = ident.parameters(start, lambda m: dict(m), {"a": (0.0, 1.0)})
    seen = []

    def record(p):
        seen.append(p.values())
        return ident.least_squares(lambda p: p["b"], p, max_steps=1, throw=False)

    ident.several_starts(record, params, count=9, key=jax.random.key(3))
    a = np.sort([float(v["a"]) for v in seen[1:]])
    # Latin hypercube: one start in each eighth.
    np.testing.assert_array_equal(np.floor(8 * a).astype(int), np.arange(8))
    b = np.array([np.asarray(v["b"]) for v in seen[1:]])
    assert 0.5 < b.std() < 1.6  # normal numbers of unit size


def test_a_robust_fit_says_where_all_or_many_are_outliers():
    """A line of four runs: normal noise, one run garbage, and a third of all residuals far away."""
    t, rng = jnp.linspace(0.0, 1.0, 30), np.random.default_rng(0)
    good = np.asarray(3 * t)[None] + 0.01 * rng.normal(size=(4, 30))
    wild, many = good.copy(), good.copy()
    wild[2] = rng.uniform(-20, 20, 30)
    many[:, ::3] += rng.uniform(1, 20, many[:, ::3].shape)

    def said(seen):
        start = {"a": jnp.asarray(1.0)}
        return ident.robust_least_squares(lambda p: p["a"] * t[None] - seen, start).warnings

    assert said(good) == ()  # measured: 20 % of them
    (named,) = said(wild)
    assert "100% of group 2" in named
    (named,) = said(many)
    assert " of the residuals are outliers, of normal noise 18% would be" in named, named
