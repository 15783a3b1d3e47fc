"""Where a gradient comes from: contributions in closed form, and every warning."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import (
    DryFriction,
    Interaction,
    LagrangianSystem,
    Located,
    Model,
    MoreauJean,
    RateRelation,
    State,
)
from diffnsd.diagnostics import explain_gradient
from diffnsd.models import ball_impact_times, ball_state, bouncing_ball, relay_oscillator


def build(parameters):
    return bouncing_ball(parameters["e"]), State(parameters["height"][None], jnp.zeros(1))


def speed(states):
    return states.v[-1, 0]


AT = {"e": jnp.asarray(0.8), "height": jnp.asarray(1.0)}


@pytest.fixture(scope="module")
def located():
    return explain_gradient(speed, AT, build, Located(MoreauJean()), 0.0, 1.2, 0.01)


@pytest.mark.nightly
def test_the_gradient_is_that_of_the_motion(located):
    known = jax.grad(lambda p: ball_state(1.2, p["height"], 0.0, p["e"]).v[0])(AT)
    for name in AT:
        np.testing.assert_allclose(located.gradient[name], known[name], rtol=1e-10)
    assert located.names == ("e", "height") and located.warnings == ()


@pytest.mark.slow
def test_a_second_call_compiles_nothing():
    traced = []

    def final(states):
        traced.append(len(states.v))
        return states.v[-1, 0]

    counts = []
    for height in (1.0, 1.1):
        at = {"e": jnp.asarray(0.8), "height": jnp.asarray(height)}
        explain_gradient(final, at, build, MoreauJean(), 0.0, 0.1, 0.05)
        counts.append(len(traced))
    assert counts[0] == counts[1] > 0


@pytest.mark.nightly
def test_contributions_are_at_the_impacts(located):
    """By `e` only impacts count. The last one: with `w` the speed before, `v(T) = e w − g (T − t2)`;

    without it the ball falls on, and the derivatives of speed and time differ by what is computed
    here. The first contribution is what is left of the derivative by `e`.
    """
    steps = [int(t / 0.01) for t in np.asarray(ball_impact_times(2, 1.0, 0.0, 0.8))]
    where = np.flatnonzero(np.any(np.asarray(located.touched), axis=1))
    assert list(where) == steps and np.array_equal(located.touched, located.struck)
    through = np.asarray(located.through)[:, 0]
    assert np.all(through[~np.asarray(located.touched)[:, 0]] == 0)

    e, g = 0.8, 9.81
    w = np.sqrt(2 * g)  # speed of the first impact; of the second, e w
    # After the second impact v = e² w − g (T − t2) with t2 = w/g + 2 e w/g; falling on, −g (T − w/g) + e w.
    by_e = 2 * e * w + 2 * w - w
    by_w = e**2 + 1 + 2 * e - (1 + e)
    np.testing.assert_allclose(through[steps[1], 0], by_e, rtol=1e-9)
    np.testing.assert_allclose(through[steps[1], 1], by_w * np.sqrt(g / 2), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["missed", "slow", "merged", "drifted", "curved"])
def test_what_makes_it_wrong_is_said_with_step_time_and_contact(located, name):
    """The counts are those of `Solution.stats`, which tests of the methods prove."""
    step = int(np.argmax(np.any(located.struck, axis=1)))
    counted = eqx.tree_at(lambda e: getattr(e, name), located, located.missed.at[step].set(2))
    (words,) = set(counted.warnings) - set(located.warnings)
    when = f"t = {float(located.ts[step]):.4g} s, contact 0"
    assert words.startswith("2 ") and f"first in step {step} ({when})" in words


@pytest.mark.nightly
def test_sliding_that_reverses_is_said_with_step_time_and_contact():
    """A block that is thrown up a slope at 2 m/s stops after 2/5.5 s, and slides back."""

    def thrown(speed):
        block = LagrangianSystem(jnp.eye(1), f_ext=jnp.array([-4.0]))
        rubbing = Interaction(RateRelation(lambda t, q: q), DryFriction(1.5))
        return Model(block, rubbing), block.state([0.0], speed[None])

    found = explain_gradient(speed, jnp.asarray(2.0), thrown, MoreauJean(), 0.0, 1.0, 0.02)
    (words,) = found.warnings
    assert words.startswith("1 turns of sliding friction had no derivative of their times")
    assert "first in step 18 (t = 0.36 s, contact 0)" in words
    kept = explain_gradient(speed, jnp.asarray(2.0), thrown, Located(MoreauJean()), 0.0, 1.0, 0.02)
    assert kept.warnings == ()


@pytest.mark.slow
def test_a_plain_scheme_is_warned_of():
    found = explain_gradient(speed, AT, build, MoreauJean(), 0.0, 1.2, 0.01)
    assert any("Located" in w for w in found.warnings)
    assert any("exactly zero for height" in w for w in found.warnings)
    assert "step 45" in str(found)


@pytest.mark.nightly
def test_no_contact_was_reached():
    found = explain_gradient(speed, AT, build, Located(MoreauJean()), 0.0, 0.3, 0.01)
    (warning,) = found.warnings
    assert "e, height" in warning and "no contact was reached" in warning
    assert not np.any(found.through)


@pytest.mark.slow
def test_sensitivities_that_explode():
    """A pencil that falls over: `v' = k² q`, growth `cosh(k T)`."""

    def falling(x):
        from diffnsd import Interaction, Model
        from diffnsd.laws import NewtonImpact
        from diffnsd.relations import GapRelation
        from diffnsd.systems import LagrangianSystem

        system = LagrangianSystem(np.eye(1), f_int=lambda t, q, v: -25.0 * q)
        contact = Interaction(GapRelation(lambda t, q: q + 1e6), NewtonImpact(0.5))
        return Model(system, contact), State(x, jnp.zeros(1))

    found = explain_gradient(speed, jnp.array([1e-6]), falling, MoreauJean(), 0.0, 3.0, 0.02)
    assert any("Lyapunov time" in w for w in found.warnings)
    np.testing.assert_allclose(found.lyapunov_time, 1 / 5, rtol=0.2)


@pytest.mark.slow
def test_a_point_on_the_edge_between_two_modes():
    """A ball that touches the ground without a load: held or not, nothing says."""

    def floating(height):
        return bouncing_ball(0.5, 0.0), State(height, jnp.zeros(1))

    found = explain_gradient(speed, jnp.zeros(1), floating, MoreauJean(), 0.0, 0.02, 0.01)
    assert any("set-valued" in w and "bundled_gradient" in w for w in found.warnings)


@pytest.mark.slow
def test_a_gradient_that_is_not_finite():
    def loss(states):
        return jnp.sqrt(states.q[-1, 0] - states.q[-1, 0])

    found = explain_gradient(loss, AT, build, MoreauJean(), 0.0, 0.02, 0.01)
    assert any("not finite" in w and "shorten" in w for w in found.warnings)


@pytest.mark.slow
def test_first_order_systems_are_refused():
    from diffnsd import EulerMoreau

    def relay(x):
        return relay_oscillator(), State(None, x)

    with pytest.raises(ValueError, match="mechanical systems"):
        explain_gradient(speed, jnp.ones(3), relay, EulerMoreau(), 0.0, 0.1, 0.1)


def test_parameters_that_build_does_not_take_are_named():
    with pytest.raises(ValueError, match="parameters must be what build takes"):
        explain_gradient(speed, jnp.eye(2), build, MoreauJean(), 0.0, 0.1, 0.1)
