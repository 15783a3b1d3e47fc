"""Posteriors with closed forms: draws, intervals, evidence, and the sentences about what is wrong."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly, slow
from scipy import stats

import diffnsd as nsd
from diffnsd import identification as ident
from diffnsd._jax import differentiable_once
from diffnsd.identification import NUTS, Ensemble, GaussianNoise, Laplace, Normal
from diffnsd.identification.bayes._mode import find_modes
from diffnsd.identification.bayes._target import target
from diffnsd.identification.bayes._trust import _about_others

NOISE = 0.3


class Line:
    """`y = a + b t` with normal noise, `a ~ N(0, 2)`, `b` flat: the posterior is normal."""

    t = np.linspace(0.0, 3.0, 12)
    y = 1.0 - 0.5 * t + NOISE * np.random.default_rng(3).normal(size=12)
    priors = {"a": Normal(0.0, 2.0)}

    @classmethod
    def params(cls, start=(0.3, 0.1)):
        model = {"a": jnp.asarray(start[0]), "b": jnp.asarray(start[1])}
        return ident.parameters(model, lambda m: m)[0]

    @classmethod
    def residual(cls, params):
        return params["a"] + params["b"] * cls.t - cls.y

    @classmethod
    def exact(cls):
        design = np.stack([np.ones_like(cls.t), cls.t], axis=1)
        precision = design.T @ design / NOISE**2 + np.diag([1 / 4, 0.0])
        covariance = np.linalg.inv(precision)
        return covariance @ (design.T @ cls.y) / NOISE**2, covariance


def noise(residual=Line.residual, deviation=NOISE):
    return GaussianNoise(residual, deviation=deviation)


@pytest.mark.slow
def test_laplace_is_exact_for_a_linear_model():
    mean, covariance = Line.exact()
    key = jax.random.key(0)
    found = ident.posterior(
        noise(), Line.params(), priors=Line.priors, sampler=Laplace(4000), key=key
    )
    at = [float(found.params[name]) for name in "ab"]
    np.testing.assert_allclose(at, mean, rtol=0, atol=1e-9)  # measured 2e-13
    drawn = found.samples[0]
    # 4,000 draws: standard error of a mean 1.6 %, of a deviation 1.1 % of the deviation.
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * 0.016 * covariance[0, 0] ** 0.5)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.1 * covariance[0, 0])
    assert found.warnings == ()
    # The evidence of normal data, N(y; 0, s² I + 4 1 1ᵀ) for `b` known to be flat with density 1.
    n = len(Line.y)
    marginal = NOISE**2 * np.eye(n) + 4.0 * np.ones((n, n))
    precision = np.linalg.inv(marginal)
    t = Line.t
    b = (t @ precision @ Line.y) / (t @ precision @ t)
    r = Line.y - b * t
    log = (
        -0.5 * r @ precision @ r
        - 0.5 * np.linalg.slogdet(2 * np.pi * marginal)[1]
        + 0.5 * np.log(2 * np.pi / (t @ precision @ t))
    )
    # What the densities leave out: (2 pi)^(-n/2) of the noise, 1/(2 sqrt(2 pi)) of the prior.
    left_out = -n / 2 * np.log(2 * np.pi) - np.log(2 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(found.log_evidence + left_out, log, atol=1e-9)  # measured 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [NUTS(draws=600), nightly(Ensemble(draws=600))], ids=repr)
def test_samplers_find_the_normal_posterior(sampler):
    mean, covariance = Line.exact()
    found = ident.posterior(noise(), Line.params(), priors=Line.priors, sampler=sampler)
    deviations = np.sqrt(np.diag(covariance))
    for i, label in enumerate(("a", "b")):
        error = deviations[i] / np.sqrt(found.effective_sizes[i])
        got = found[label]
        assert abs(got[0] - mean[i]) < 4 * error
        assert abs(got[1] / deviations[i] - 1) < 4 / np.sqrt(2 * found.effective_sizes[i])
    lo, hi = found.interval(0.9)["b"]
    np.testing.assert_allclose(
        [lo, hi], mean[1] + 1.645 * deviations[1] * np.array([-1, 1]), atol=0.03
    )
    assert np.all(found.rhat < 1.02) and np.all(found.effective_sizes > 400)
    assert found.divergences == 0


@pytest.mark.nightly
def test_a_share_between_bounds_has_the_beta_distribution():
    """7 successes in 9 trials with a flat prior: Beta(8, 3); the bounds need the transform's volume."""
    params, _ = ident.parameters({"p": jnp.asarray(0.5)}, lambda m: m, {"p": (0.0, 1.0)})

    def log_likelihood(params):
        p = params["p"]
        return 7 * jnp.log(p) + 2 * jnp.log1p(-p)

    found = ident.posterior(log_likelihood, params, sampler=NUTS(draws=1500))
    exact = stats.beta(8, 3)
    n = found.effective_sizes[0]
    assert n > 1000
    assert abs(found["p"][0] - exact.mean()) < 4 * exact.std() / np.sqrt(n)
    quantile = stats.kstest(found.samples[..., 0].ravel()[:: max(1, int(6000 // n))], exact.cdf)
    assert quantile.pvalue > 1e-3
    np.testing.assert_allclose(found.interval(0.9)["p"], exact.interval(0.9), atol=0.02)


@pytest.mark.slow
def test_the_volume_of_transforms_is_their_jacobian():
    """Uniform draws of a value have, in raw numbers, the density that the target gives them."""
    model = {"I": jnp.diag(jnp.array([1.0, 1.2, 1.5])), "m": jnp.asarray(0.4), "s": jnp.ones(2)}
    bounds = {"I": ident.PhysicalInertia(), "m": (0.0, 1.0), "s": (0.0, None)}
    params, _ = ident.parameters(model, lambda m: m, bounds)
    density, x = target(lambda p: jnp.zeros(()), params, {})
    step = 1e-6
    rows, columns = np.triu_indices(3)

    def coordinates(x):
        values = density.unravel(jnp.asarray(x)).values()
        scale = np.where(rows == columns, 1.0, np.sqrt(2.0))  # length in the space of matrices
        return np.concatenate(
            [scale * np.asarray(values["I"])[rows, columns], [values["m"]], values["s"]]
        )

    def volume(x):
        sides = [
            (coordinates(x + step * e) - coordinates(x - step * e)) / (2 * step)
            for e in np.eye(len(x))
        ]
        return np.linalg.slogdet(np.array(sides))[1]

    other = np.asarray(x) + 0.2 * np.random.default_rng(0).normal(size=x.size)
    change = float(density.log_prior(jnp.asarray(other)) - density.log_prior(x))
    np.testing.assert_allclose(change, volume(other) - volume(np.asarray(x)), atol=1e-7)  # 3e-9


@pytest.mark.nightly
def test_friction_from_stopping_distances():
    """The posterior of `mu` from three noisy distances, against quadrature of the closed form."""
    mu_true, sigma = 0.31, 0.02
    speeds = np.array([1.0, 1.5, 2.0])

    def exact(mu):
        return speeds**2 / (2 * mu * 9.81)

    data = exact(mu_true) + sigma * np.array([0.4, -1.1, 0.7])
    block = nsd.models.sliding_block(mu=0.25)
    params, rebuild = ident.parameters(
        block, lambda m: {"mu": m.interactions[0].law.mu}, {"mu": (0.0, 1.0)}
    )

    def residual(params):
        def distance(speed):
            start = nsd.models.block_state(0.0, speed=speed)
            run = nsd.simulate(
                rebuild(params), nsd.MoreauJean(), 0.0, 1.0, 1e-2, start, saveat=nsd.SaveAt.end()
            )
            return run.states.q[0]

        return jax.vmap(distance)(jnp.asarray(speeds)) - data

    likelihood = GaussianNoise(residual, deviation=sigma)
    found = ident.posterior(likelihood, params, sampler=NUTS(chains=2, draws=400, warmup=100))
    grid = np.linspace(0.2, 0.5, 4001)
    log = -np.sum((exact(grid[:, None]) - data) ** 2, axis=1) / (2 * sigma**2)
    weight = np.exp(log - log.max())
    mean = np.sum(grid * weight) / np.sum(weight)
    deviation = np.sqrt(np.sum((grid - mean) ** 2 * weight) / np.sum(weight))
    # A step of 1e-2 moves the distances by 1e-4, the mean by 4e-4 of a deviation.
    error = deviation / np.sqrt(found.effective_sizes[0])
    assert abs(found["mu"][0] - mean) < 4 * error
    assert abs(found["mu"][1] / deviation - 1) < 0.15
    drawn = found.draws(30, jax.random.key(1))
    runs = nsd.rollout(lambda p: residual(p) + data, drawn)
    assert runs.shape == (30, 3)
    band = runs + sigma * jax.random.normal(jax.random.key(2), runs.shape)
    assert ident.coverage(band, data, 0.99) == 1.0


class TestUnknownNoise:
    @pytest.mark.slow
    def test_is_integrated_out(self):
        """With the density 1/s the posterior of a mean is Student's t."""
        y = np.array([1.2, 0.7, 1.9, 1.1, 1.4])
        params, _ = ident.parameters({"a": jnp.asarray(1.0)}, lambda m: m)
        likelihood = GaussianNoise(lambda p: p["a"] - y)
        found = ident.posterior(likelihood, params, sampler=NUTS(draws=1500, target_acceptance=0.9))
        exact = stats.t(df=4, loc=y.mean(), scale=y.std(ddof=1) / np.sqrt(5))
        np.testing.assert_allclose(found.interval(0.8)["a"], exact.interval(0.8), atol=0.05)

    def test_outliers_count_little_with_student_noise(self):
        y = np.array([1.0, 1.1, 0.9, 1.05, 9.0])
        params, _ = ident.parameters({"a": jnp.asarray(1.2)}, lambda m: m)
        plain = ident.posterior(GaussianNoise(lambda p: p["a"] - y, 0.1), params)
        robust = ident.posterior(ident.StudentNoise(lambda p: p["a"] - y, 0.1), params)
        assert abs(float(plain.params["a"]) - y.mean()) < 1e-6
        assert abs(float(robust.params["a"]) - 1.01) < 0.03

    def test_masked_residuals_do_not_count(self):
        y = np.array([1.0, 1.1, 7.0])
        params, _ = ident.parameters({"a": jnp.asarray(1.2)}, lambda m: m)
        mask = np.array([True, True, False])
        for noise in (GaussianNoise, ident.StudentNoise):
            with_mask = noise(lambda p: p["a"] - y, 0.1, mask=mask)(params)
            without = noise(lambda p: p["a"] - y[:2], 0.1)(params)
            np.testing.assert_allclose(with_mask, without, rtol=1e-14)


class TestGuided:
    """`y = a` with teeth: the residual is a saw, whose derivative is 5 everywhere and whose slope is 1."""

    y = 1.0 + 0.2 * np.random.default_rng(5).normal(size=20)

    @classmethod
    def residual(cls, p):
        teeth = 4 * (jnp.mod(p["a"], 0.01) - 0.005)
        return p["a"] + teeth - cls.y

    @pytest.mark.slow
    def test_draws_are_those_of_the_rough_likelihood(self):
        params, _ = ident.parameters({"a": jnp.asarray(1.03)}, lambda m: m)
        rough = GaussianNoise(self.residual, 0.2)
        secant = ident.SecantJacobian(jnp.array([0.1]), frames=20)
        plane = ident.linearise(self.residual, params, jacobian=secant)
        found = ident.posterior(
            ident.Guided(rough, plane, params),
            params,
            sampler=NUTS(draws=1500, target_acceptance=0.6),
            key=jax.random.key(2),
        )
        a = np.linspace(0.6, 1.4, 400_001)
        density = np.array(jax.lax.map(lambda a: rough({"a": a}), jnp.asarray(a), batch_size=1000))
        density = np.exp(density - density.max())
        mean = np.sum(a * density) / density.sum()
        deviation = np.sqrt(np.sum((a - mean) ** 2 * density) / density.sum())
        # Measured: 0.001 and 0.024 of the deviation, R-hat 1.001, 74 % accepted.
        drawn = found["a"]
        assert abs(drawn[0] - mean) < 0.1 * deviation and abs(drawn[1] / deviation - 1) < 0.1
        assert found.rhat[0] < 1.01 and found.acceptance > 0.5 and found.divergences == 0

    def test_derivatives_are_those_of_the_plane(self):
        params, _ = ident.parameters({"a": jnp.asarray(1.0)}, lambda m: m)
        plane = ident.Linearisation(
            residual=jnp.asarray(1.0 - self.y),
            jacobian=jnp.ones((20, 1)),
            curvature=jnp.ones(20),
            mask=jnp.ones(20, bool),
            shapes=((20,),),
        )
        rough = GaussianNoise(self.residual, 0.2)
        guided = ident.Guided(rough, plane, params)
        other = {"a": jnp.asarray(1.1)}
        flat = jax.tree.map(lambda x: jnp.asarray(1.1), params)
        value, slope = jax.value_and_grad(guided)(flat)
        np.testing.assert_allclose(value, rough(other), rtol=1e-14)
        np.testing.assert_allclose(
            jax.tree.leaves(slope)[0], -np.sum(1.1 - self.y) / 0.2**2, rtol=1e-12
        )
        bend = jax.hessian(lambda a: guided(jax.tree.map(lambda _: a, params)))(1.1)
        np.testing.assert_allclose(bend, -20 / 0.2**2, rtol=1e-12)

    def test_walkers_take_it_too(self):
        """Its arrays are arguments of a program, not a part of it."""
        params, _ = ident.parameters({"a": jnp.asarray(1.0)}, lambda m: m)
        guided = ident.Guided(
            GaussianNoise(self.residual, 0.2), ident.linearise(self.residual, params), params
        )
        found = ident.posterior(guided, params, sampler=Ensemble(walkers=4, draws=10, warmup=0))
        assert found.samples.shape == (8, 10, 1) and np.all(np.isfinite(found.log_density))

    def test_another_number_of_parameters(self):
        params = Line.params()
        plane = ident.linearise(Line.residual, params)
        with pytest.raises(ValueError, match="2 columns for 1 parameters"):
            ident.Guided(noise(), plane, {"a": jnp.ones(())})


def with_idle(p):
    return Line.residual(p) + 0.0 * p["c"]


def with_twins(p):
    return p["a"] + p["c"] + p["b"] * Line.t - Line.y


class TestWarnings:
    def test_a_parameter_without_influence(self):
        model = {"a": jnp.ones(()), "b": jnp.ones(()), "c": jnp.ones(())}
        found = ident.posterior(noise(with_idle), ident.parameters(model, lambda m: m)[0])
        assert any("do not determine c:" in text for text in found.warnings)

    def test_two_parameters_that_only_act_together(self):
        model = {"a": jnp.ones(()), "b": jnp.ones(()), "c": jnp.ones(())}
        found = ident.posterior(noise(with_twins), ident.parameters(model, lambda m: m)[0])
        assert any("a combination of a, c" in text for text in found.warnings)

    def test_a_prior_that_the_data_do_not_change(self):
        model = {"a": jnp.ones(()), "b": jnp.ones(()), "c": jnp.ones(())}
        priors = {"c": Normal(0.5, 0.1)}
        found = ident.posterior(
            noise(with_idle), ident.parameters(model, lambda m: m)[0], priors=priors
        )
        assert [text for text in found.warnings if "hardly anything about c" in text]
        assert abs(found["c"][1] - 0.1) < 0.02

    def test_a_prior_that_contradicts_the_data(self):
        found = ident.posterior(noise(), Line.params(), priors={"b": Normal(3.0, 0.05)})
        assert any("the prior of b contradicts the data" in text for text in found.warnings)

    @pytest.mark.parametrize("deviation", [0.05, 5e-4])
    @pytest.mark.parametrize("sampler", [Laplace(), Ensemble(walkers=8, draws=300, warmup=60)])
    def test_a_prior_is_contradicted_whoever_wins(self, sampler, deviation):
        """Data 3.000 +- 0.003 against a centre of 1: the draws follow the data, or the prior."""
        t = np.linspace(0, 1, 30)
        seen = noise(lambda p: p["a"] * t - 3 * t, 0.01)
        params = ident.parameters({"a": jnp.ones(())}, lambda m: m, {"a": (0.0, None)})[0]
        prior = {"a": Normal(1.0, deviation)}
        found = ident.posterior(seen, params, priors=prior, sampler=sampler)
        said = [text for text in found.warnings if "the prior of a contradicts the data" in text]
        assert len(said) == 1 and not any("hardly anything" in text for text in found.warnings)
        if deviation == 0.05:  # exact: 2 / sqrt(0.05^2 + 0.0031^2)
            assert "about 40 standard deviations apart" in said[0] or "about 39.9" in said[0]

    def test_a_prior_is_not_blamed_for_what_chance_does(self):
        """The data are two deviations of the prior from its centre, in a compromise of equals."""
        seen = noise(lambda p: (p["a"] - 2 * np.sqrt(2.0) * np.ones(2)) * np.ones(2), np.sqrt(2.0))
        found = ident.posterior(seen, {"a": jnp.ones(())}, priors={"['a']": Normal(0.0, 1.0)})
        # Exactly 2 sqrt(2) / sqrt(2) = 2 deviations apart.
        assert not any("contradicts" in text for text in found.warnings), found.warnings

    def test_bounds_that_exclude_the_data(self):
        t = np.linspace(0, 1, 30)
        params = ident.parameters({"a": jnp.ones(())}, lambda m: m, {"a": (0.5, 2.0)})[0]
        said = {
            truth: ident.posterior(
                noise(lambda p, truth=truth: (p["a"] - truth) * t, 0.01), params
            ).warnings
            for truth in (3.0, 1.9)
        }
        assert any(
            "the bound 2 of a excludes what the data say, about 3 ± 0.0031" in x for x in said[3.0]
        )
        assert said[1.9] == ()

    @pytest.mark.parametrize(
        "sampler", [Laplace(), slow(Ensemble(walkers=8, draws=200, warmup=200))]
    )
    def test_factors_within_bounds_that_only_act_together(self, sampler):
        t = np.linspace(0, 1, 30)
        model, bounds = {"a": jnp.asarray(1.5), "b": jnp.asarray(2.0)}, (0.1, 10.0)
        params = ident.parameters(model, lambda m: m, {"a": bounds, "b": bounds})[0]
        found = ident.posterior(
            noise(lambda p: (p["a"] * p["b"] - 3) * t, 0.01), params, sampler=sampler
        )
        text = " ".join(found.warnings)
        assert "combination of a, b:" in text or "a and b act together (correlation -" in text

    def test_a_number_within_bounds_without_influence(self):
        model = {"a": jnp.ones(()), "b": jnp.ones(()), "c": jnp.ones(())}
        params = ident.parameters(model, lambda m: m, {"c": (0.0, 10.0)})[0]
        found = ident.posterior(noise(with_idle), params)
        assert any(
            "hardly anything about c: its posterior is as wide as its interval" in x
            for x in found.warnings
        )
        assert not any("about a:" in x or "about b:" in x for x in found.warnings)

    @pytest.mark.parametrize("kind", [GaussianNoise, ident.StudentNoise])
    def test_runs_that_are_no_noise(self, kind):
        """Four runs with noise of 0.01, one of which is garbage; then all are; then none."""
        rng, t = np.random.default_rng(0), np.linspace(0, 1, 30)
        good = 3 * t + 0.01 * rng.normal(size=(4, 30))
        one, wild = good.copy(), rng.uniform(-20, 20, (4, 30))
        one[2] = wild[2]

        def said(seen):
            likelihood = kind(lambda p: p["a"] * t[None] - seen, 0.01)
            found = ident.posterior(likelihood, {"a": jnp.asarray(3.0)})
            return [text for text in found.warnings if text.startswith("the residuals are")]

        assert said(good) == []
        (named,) = said(one)
        assert named.index("run 2") < min(named.find(f"run {i}") % 1000 for i in (0, 1, 3))
        (named,) = said(wild)
        assert all(f"run {i}" in named for i in range(4)) and "in all" in named

    @pytest.mark.parametrize(
        "sampler", [Laplace(starts=4), slow(NUTS(chains=2, draws=100, warmup=50))]
    )
    def test_another_mode_is_named_with_its_share(self, sampler):
        """Of data that tell `a^2 = 1` alone, both signs are equally probable."""
        t = np.linspace(0, 1, 30)
        params = ident.parameters({"a": jnp.asarray(0.9)}, lambda m: m, {"a": (-3.0, 3.0)})[0]
        found = ident.posterior(
            noise(lambda p: (p["a"] ** 2 - 1) * t, 0.02), params, sampler=sampler
        )
        (said,) = (text for text in found.warnings if "another mode" in text)
        assert "about 50% of it" in said and "a = -1" in said and "a = 1" in said, said
        if sampler.correlated:
            assert "1 of the 2 chains begins there (samples[1:2];" in said, said
            # One chain in each mode, which they do not leave: R-hat shows what a single mode would hide.
            assert set(np.sign(found.samples.mean(axis=(1, 2)))) == {-1.0, 1.0}
            assert found.rhat[0] > 1.5  # measured 1.83
            assert any("the chains do not agree" in text for text in found.warnings)

    @pytest.mark.parametrize(
        ("shares", "chains", "counts"),
        [
            ([0.5, 0.5], 4, [2, 2]),
            ([0.02, 0.98], 2, [1, 1]),
            ([0.02, 0.98], 8, [1, 7]),
            ([0.2, 0.5, 0.3], 2, [0, 1, 1]),
            ([0.2, 0.5, 0.3], 10, [2, 5, 3]),
            # Quotas of 1.96, 1.6 and 0.44: the largest remainder has the fourth.
            ([0.49, 0.4, 0.11], 4, [2, 1, 1]),
            ([0.005, 0.995], 4, [0, 4]),
            ([np.nan], 4, [4]),
        ],
    )
    def test_chains_are_given_out_by_share(self, shares, chains, counts):
        given = NUTS(chains=chains).chains_at(np.array(shares))
        assert given.tolist() == counts

    def test_each_of_three_modes_has_its_sentence(self):
        """Normal densities at -6, 0 and 6 that hold 50 %, 30 % and 20 %, and two chains."""
        centres, weights = jnp.array([-6.0, 0.0, 6.0]), jnp.array([0.5, 0.3, 0.2])

        def log_likelihood(p):
            return jax.nn.logsumexp(-0.5 * ((p["a"] - centres) / 0.3) ** 2, b=weights)

        params = ident.parameters({"a": jnp.asarray(0.1)}, lambda m: m)[0]
        found = ident.posterior(log_likelihood, params)
        density, _ = target(log_likelihood, params, {})
        modes = [find_modes(density, jnp.array([x]))[0] for x in (0.1, -5.9, 5.9)]
        left, right = _about_others(modes, found, density, NUTS(chains=2))
        assert "at a = -6, with about 50% of it" in left and "with about 30%: 1 of the 2" in left
        assert "samples[1:2]; beside: samples[0:1]" in left and "pooled" in left
        assert "at a = 6, with about 20% of it" in right and "take chains=3;" in right
        assert all(
            "of the latter alone" in x for x in _about_others(modes, found, density, Laplace())
        )

    @pytest.mark.parametrize(
        "sampler", [Laplace(), nightly(NUTS(chains=2, draws=10, warmup=10, starts=1))]
    )
    def test_a_mode_that_is_not_found_is_said(self, sampler):
        """A density that rises towards a bound for ever has no mode in raw numbers."""
        params = ident.parameters({"a": jnp.asarray(0.5)}, lambda m: m)[0]
        found = ident.posterior(lambda p: jnp.log(p["a"]), params, sampler=sampler)
        assert any("the mode was not found" in text for text in found.warnings), found.warnings

    @pytest.mark.nightly
    def test_two_valleys(self):
        """Chains that start near one of two modes and do not find the other, or disagree."""
        params, _ = ident.parameters({"a": jnp.asarray(0.4)}, lambda m: m)

        def log_likelihood(params):
            return -40 * (params["a"] ** 2 - 1) ** 2

        found = ident.posterior(log_likelihood, params, sampler=Ensemble(walkers=8, draws=100))
        spread = NUTS(chains=4, draws=100, warmup=50)
        away = ident.posterior(log_likelihood, params.with_values({"a": 0.02}), sampler=spread)
        assert any("do not agree" in text for text in found.warnings + away.warnings)

    def test_a_posterior_that_is_not_normal(self):
        params, _ = ident.parameters({"a": jnp.asarray([0.0, 0.1])}, lambda m: m)

        def banana(params):
            x, y = params["a"]
            return -(x**2) / 2 - 50 * (y - x**2) ** 2

        found = ident.posterior(banana, params)
        assert any("is not normal" in text for text in found.warnings)

    @pytest.mark.slow
    def test_a_value_at_its_bound(self):
        params, _ = ident.parameters({"a": jnp.asarray(0.1)}, lambda m: m, {"a": (0.0, 1.0)})
        found = ident.posterior(
            lambda p: -((p["a"] + 0.02) ** 2) / (2 * 0.05**2), params, sampler=NUTS(draws=200)
        )
        assert any("reaches its bound 0" in text for text in found.warnings)

    @pytest.mark.slow
    def test_a_wrong_gradient_costs_acceptance_but_not_truth(self):
        """A rough likelihood: its gradient is that of a ripple, 40 times too steep."""
        params, _ = ident.parameters({"a": jnp.asarray(0.0)}, lambda m: m)

        def log_likelihood(params):
            return -(params["a"] ** 2) / 2 + 0.02 * jnp.sin(2000 * params["a"])

        found = ident.posterior(log_likelihood, params, sampler=Ensemble(walkers=20, draws=800))
        assert abs(found["a"][1] - 1) < 5 / np.sqrt(2 * found.effective_sizes[0])


class TestBadInput:
    def test_a_likelihood_that_is_not_one_number(self):
        with pytest.raises(ValueError, match="one floating.point number.*GaussianNoise"):
            ident.posterior(Line.residual, Line.params())

    def test_an_unknown_parameter(self):
        with pytest.raises(ValueError, match=r"priors has 'c'.*'a', 'b'"):
            ident.posterior(noise(), Line.params(), priors={"c": Normal(0.0, 1.0)})

    def test_a_key_that_is_none(self):
        with pytest.raises(TypeError, match="key"):
            ident.posterior(noise(), Line.params(), key="seed")  # pyright: ignore[reportArgumentType]

    def test_a_prior_that_is_none(self):
        with pytest.raises(TypeError, match=r"prior of a.*Normal\(mean, deviation\)"):
            ident.posterior(noise(), Line.params(), priors={"a": (0.0, 1.0)})  # pyright: ignore[reportArgumentType]

    def test_a_prior_of_another_shape(self):
        with pytest.raises(ValueError, match=r"prior of a has numbers of shape \(2,\)"):
            ident.posterior(noise(), Line.params(), priors={"a": Normal(np.zeros(2), 1.0)})

    def test_a_class_for_a_sampler(self):
        with pytest.raises(TypeError, match="NUTS"):
            ident.posterior(noise(), Line.params(), sampler=NUTS)  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("sampler", [Laplace(), Ensemble()], ids=repr)
    def test_a_start_that_is_not_finite(self, sampler):
        with pytest.raises(ValueError, match="not finite at the start"):
            ident.posterior(lambda p: p["a"] * jnp.nan, Line.params(), sampler=sampler)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: NUTS(chains=1),
            lambda: NUTS(target_acceptance=1.0),
            lambda: Ensemble(walkers=7),
            lambda: Ensemble(stretch=1.0),
            lambda: Laplace(draws=2),
            lambda: Normal(0.0, 0.0),
            lambda: Normal(np.nan, 1.0),
            lambda: ident.LogNormal(-1.0, 1.0),
            lambda: GaussianNoise(Line.residual, deviation=-1.0),
            lambda: GaussianNoise(Line.residual, weight=2.0),
            lambda: ident.StudentNoise(Line.residual, 1.0, freedom=0.0),
        ],
    )
    def test_numbers_out_of_range(self, make):
        with pytest.raises(ValueError):
            make()

    def test_too_few_walkers(self):
        with pytest.raises(ValueError, match=r"Ensemble\(walkers=6\)"):
            ident.posterior(noise(), Line.params(), sampler=Ensemble(walkers=4))


class TestCoverage:
    def test_of_normal_predictions(self):
        rng = np.random.default_rng(0)
        share = ident.coverage(rng.normal(size=(4000, 3000)), rng.normal(size=3000), 0.9)
        assert abs(share - 0.9) < 5 * np.sqrt(0.09 / 3000)

    def test_masked(self):
        predictions = np.zeros((5, 2, 3)) + np.arange(5.0)[:, None, None]
        measured = np.array([[2.0, 2.0, 2.0], [9.0, 9.0, 9.0]])
        assert ident.coverage(predictions, measured, mask=np.array([True, False])) == 1.0
        assert ident.coverage(predictions, measured) == 0.5

    def test_of_another_shape(self):
        with pytest.raises(ValueError, match="one per draw"):
            ident.coverage(np.zeros(3), np.zeros(3))


def test_starts_at_which_the_likelihood_fails_are_left_out():
    """Also a search that has not ended does not take the place of a mode that was found."""

    def density(x):
        x = eqx.error_if(x, x[0] > 5, "the simulation failed")
        return -jnp.sum(x**2)

    zero = jnp.zeros(1)
    best, others = find_modes(density, zero, [zero + 9.0])
    assert best.x == pytest.approx(0, abs=1e-12) and others == ()

    def slope(x):
        """A mode at 0, and a slope that rises without end far from it."""
        return jnp.where(x[0] < 5, -(x[0] ** 2), x[0])

    best, _ = find_modes(slope, zero, [zero + 9.0])
    assert best.x == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_the_mode_where_second_derivatives_are_refused():
    """By differences of the gradient: the same mode, evidence and spread."""

    def density(x):
        return -jnp.sum(jnp.cosh(x - jnp.array([1.0, 2.0]))) - 0.3 * x[0] * x[1]

    start = jnp.array([0.1, 0.2])
    exact, _ = find_modes(density, start)
    found, _ = find_modes(lambda x: density(differentiable_once(x, "not twice")), start)
    # Measured 1e-10.
    np.testing.assert_allclose(found.x, exact.x, rtol=1e-6)
    np.testing.assert_allclose(found.root @ found.root.T, exact.root @ exact.root.T, rtol=1e-7)
    np.testing.assert_allclose(found.log_evidence, exact.log_evidence, rtol=1e-8)
