"""Expected errors of designs, against closed forms and against errors found by simulation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import identification as ident

NOISE = 0.01


def params(mu=0.3):
    return ident.parameters({"mu": jnp.asarray(mu)}, lambda m: m, {"mu": (0.0, 1.0)})[0]


def distance(params, speed):
    """Where a block thrown with a speed comes to rest."""
    return speed**2 / (2 * params["mu"] * 9.81)


def test_the_error_of_friction_from_a_stopping_distance():
    speeds = jnp.array([0.5, 1.0, 2.0])
    found = ident.informative(distance, params(), speeds, deviation=NOISE)
    exact = NOISE * 2 * 0.3**2 * 9.81 / np.asarray(speeds) ** 2
    np.testing.assert_allclose(found.standard_errors[:, 0], exact, rtol=1e-12)
    assert found.best("mu") == 2
    # Data of the first throw are known before the others are made.
    before = ident.fisher_information(distance, params(), speeds[0], NOISE)
    both = ident.informative(distance, params(), speeds, deviation=NOISE, given=before)
    np.testing.assert_allclose(
        both.standard_errors[:, 0], 1 / np.sqrt(1 / exact**2 + 1 / exact[0] ** 2), rtol=1e-12
    )


def test_the_design_has_a_derivative():
    def error(speed):
        return 1 / jnp.sqrt(ident.fisher_information(distance, params(), speed, NOISE)[0, 0])

    # In raw numbers; the slope of the transform is a constant of the speed.
    value, slope = jax.value_and_grad(error)(jnp.asarray(1.3))
    np.testing.assert_allclose(slope, -2 * value / 1.3, rtol=1e-12)


@pytest.mark.slow
def test_expected_errors_are_those_of_repeated_experiments():
    """Through contact: friction and restitution from the frames of a bouncing block."""
    model = nsd.models.sliding_block(mu=0.3)
    free, rebuild = ident.parameters(model, lambda m: {"mu": m.interactions[0].law.mu})

    def observe(p, speed):
        start = nsd.models.block_state(0.0, speed=speed)
        run = nsd.simulate(rebuild(p), nsd.MoreauJean(), 0.0, 0.4, 1e-2, start)
        return run.states.q[::10, 0]

    speeds = jnp.array([0.6, 1.2])
    found = ident.informative(observe, free, speeds, deviation=NOISE)
    truth = observe(free, speeds[1])

    class Residual(eqx.Module):
        data: jax.Array

        def __call__(self, p):
            return (observe(p, speeds[1]) - self.data) / NOISE

    programs, estimates = ident.Programs(), []
    rng = np.random.default_rng(0)
    for _ in range(60):
        data = truth + jnp.asarray(NOISE * rng.normal(size=truth.shape))
        fit = ident.least_squares(Residual(data), free, programs=programs, max_steps=8, throw=False)
        estimates.append(float(fit.values()["mu"]))
    # 60 repetitions know a deviation to 9 %.
    assert abs(np.std(estimates) / found.standard_errors[1, 0] - 1) < 0.3
    assert found.standard_errors[1, 0] < found.standard_errors[0, 0]


def test_what_a_design_does_not_determine():
    both = ident.parameters({"a": jnp.ones(()), "b": jnp.ones(())}, lambda m: m)[0]
    observe = lambda p, x: jnp.stack([p["a"] + x * p["b"], p["a"] + x * p["b"]])  # noqa: E731
    found = ident.informative(observe, both, jnp.array([0.0, 1.0]))
    assert np.isfinite(found.standard_errors[0, 0]) and np.isinf(found.standard_errors[0, 1])
    assert np.all(np.isinf(found.standard_errors[1]))


def test_bad_input():
    with pytest.raises(ValueError, match="given has shape"):
        ident.informative(distance, params(), jnp.ones(2), given=jnp.eye(2))
    with pytest.raises(ValueError, match=r"designs \[0\].*no finite derivative"):
        ident.informative(lambda p, x: jnp.sqrt(p["mu"] - 0.3) * x, params(), jnp.ones(1))
    with pytest.raises(KeyError, match="mu"):
        ident.informative(distance, params(), jnp.ones(2)).best("e")


@pytest.mark.nightly
def test_the_gradient_of_an_expected_error_through_impacts():
    """A design is improved by it: second derivatives through located impacts, against the closed form."""
    times = 0.05 * jnp.arange(1.0, 13.0)
    method = nsd.Located(nsd.MoreauJean(), max_impacts=1)

    def stepped(x):
        e, g, height, speed = x
        start = nsd.State(height[None], speed[None])
        model = nsd.models.bouncing_ball(e, g)
        return nsd.simulate(model, method, 0.0, 0.6, 0.05, start, throw=False).states.q[1:, 0]

    def exact(x):
        e, g, height, speed = x
        q = jax.vmap(lambda t: nsd.models.ball_state(t, height, speed, e, g).q)(times)
        return q[:, 0]

    def error(observe, start):
        x = jnp.concatenate([jnp.array([0.8, 9.81]), start])
        information = ident.fisher_information(lambda x, _: observe(x), x, None, 2e-3)
        return jnp.sqrt(jnp.linalg.inv(information)[0, 0])

    def along(observe):
        start, aside = jnp.array([0.5, 0.4]), jnp.array([1.0, 0.5])
        return eqx.filter_jit(lambda: jax.jvp(lambda s: error(observe, s), (start,), (aside,)))()

    (value, slope), (true, true_slope) = along(stepped), along(exact)
    # Measured: 2e-15 and 2e-14.
    np.testing.assert_allclose(value, true, rtol=1e-10)
    np.testing.assert_allclose(slope, true_slope, rtol=1e-9)


def test_what_no_design_determines_is_said():
    """A slope is seen in every design but one at time 0; a number without influence in none."""

    def observe(numbers, time):
        return numbers["slope"] * time + 0.0 * numbers["idle"]

    numbers, _ = ident.parameters({"slope": 1.0, "idle": 2.0}, lambda m: m)
    found = ident.informative(observe, numbers, jnp.array([0.0, 1.0, 2.0]))
    assert len(found.warnings) == 2
    assert any("design 0 of 3 does not determine slope" in text for text in found.warnings)
    assert any("none of the designs determines idle" in text for text in found.warnings)
