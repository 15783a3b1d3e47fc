"""Events: where a run ends, what is saved after it, and what can be differentiated."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import (
    RESULTS,
    Checkpointed,
    Event,
    Model,
    MoreauJean,
    SaveAt,
    State,
    simulate,
)
from diffnsd.models import bouncing_ball
from diffnsd.simulation import Solution
from diffnsd.systems import LagrangianSystem

START = State(jnp.array([0.5]), jnp.array([0.2]))
STEPS = 50


class Below(eqx.Module):
    """Height over a level: it changes its sign on the way down."""

    level: jax.Array

    def __call__(self, t, state, args):
        return state.q[0] - self.level


def fall(event, saveat=None, start=START, **options) -> Solution:
    """A fall of a second from half a metre, with two impacts where nothing stops it."""
    return simulate(
        bouncing_ball(0.7),
        MoreauJean(),
        0.0,
        1.0,
        1 / STEPS,
        start,
        saveat=saveat,
        event=event,
        **options,
    )


@pytest.fixture(scope="module")
def full():
    return eqx.filter_jit(fall)(None)


@pytest.fixture(scope="module")
def stopped():
    return eqx.filter_jit(fall)(Event(Below(jnp.asarray(0.2))))


def test_the_run_ends_with_the_step_of_the_event(full, stopped):
    """Up to it the numbers are those without event, afterwards its time and state are repeated."""
    last = int(np.argmax(np.asarray(full.states.q[:, 0]) < 0.2))
    assert 5 < last < STEPS - 5
    assert stopped.stats.event_step == last - 1
    np.testing.assert_allclose(stopped.stats.end_time, last / STEPS, rtol=1e-15)
    for name in ("ts", "states", "gaps", "energy"):
        ended, run = getattr(stopped, name), getattr(full, name)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(
                a, np.concatenate([b[:last], np.repeat(b[last : last + 1], STEPS + 1 - last, 0)])
            ),
            ended,
            run,
        )
    assert np.all(np.asarray(stopped.impulses[0][last + 1 :]) == 0)
    assert np.all(np.asarray(stopped.stats.residual[last:]) == 0)
    assert np.all(np.asarray(stopped.stats.iterations[last:]) == 0)
    # It is grid time: the exact one lies in the step, 0.2 = 0.5 + 0.2 t - g t²/2.
    exact = (0.2 + np.sqrt(0.04 + 2 * 9.81 * 0.3)) / 9.81
    assert exact <= stopped.stats.end_time < exact + 1 / STEPS


def test_an_event_is_a_result_and_not_a_failure(stopped):
    assert stopped.result == RESULTS.event_occurred
    assert stopped.stats.failed_step == -1
    step, time = int(stopped.stats.event_step), float(stopped.stats.end_time)
    assert stopped.message == (
        f"the simulation was stopped by its event, at the end of step {step}, t = {time:.6g} s"
    )


def test_an_event_that_does_not_happen_changes_nothing(full):
    out = eqx.filter_jit(fall)(Event(Below(jnp.asarray(-9.0))))
    assert out.result == RESULTS.successful and "stopped by" not in out.message
    assert out.stats.event_step == -1 and out.stats.end_time == 1.0
    # Two programs, which round differently: measured 3e-13.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13),
        out.states,
        full.states,
    )


@pytest.mark.parametrize("saveat", [SaveAt(10), SaveAt(7, t0=False), SaveAt(None), SaveAt.end()])
def test_whatever_is_saved_ends_with_the_event(saveat, stopped):
    """The event falls between two saved times: the next one holds it."""
    out = eqx.filter_jit(fall)(Event(Below(jnp.asarray(0.2))), saveat)
    assert out.stats.event_step == stopped.stats.event_step
    count = np.size(out.ts)
    np.testing.assert_allclose(np.ravel(out.ts)[-1], stopped.stats.end_time)
    last = jax.tree.map(lambda x: x[-1] if saveat.has_axis else x, out.states)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[-1]), last, stopped.states)
    if saveat.steps is not None:
        grid = np.minimum(np.asarray(out.ts), stopped.stats.end_time)
        np.testing.assert_array_equal(out.ts, grid)
        assert count == (0 if not saveat.t0 else 1) + -(-STEPS // saveat.steps)


def test_conditions_that_are_true_or_false():
    """The first step at whose end it is true; args and the time reach the condition."""

    def late(t, state, args):
        return t >= args["until"]

    def run(until):
        return fall(Event(late), args=dict(until=until), saveat=SaveAt.end())

    times = [float(eqx.filter_jit(run)(jnp.asarray(t)).ts) for t in (0.39, -1.0)]
    np.testing.assert_allclose(times, [0.4, 1 / STEPS], rtol=1e-14)


def test_a_zero_at_the_start_is_no_event():
    """A ball thrown upwards from the level flies; it ends when it is back, after 2 v/g."""
    start = State(jnp.array([0.3]), jnp.array([2.0]))
    out = eqx.filter_jit(lambda: fall(Event(Below(jnp.asarray(0.3))), SaveAt.end(), start))()
    np.testing.assert_allclose(out.stats.end_time, np.ceil(4 / 9.81 * STEPS) / STEPS, rtol=1e-14)


def test_values_are_differentiable_with_the_steps_held_fixed(stopped):
    """In free flight `q = h + v t - g t²/2` at the fixed time, exactly (midpoint rule)."""

    def end(height, speed, adjoint=None):
        start = State(height[None], speed[None])
        return fall(Event(Below(jnp.asarray(0.2))), SaveAt(9), start, adjoint=adjoint).states.q[-1]

    at = jnp.asarray(0.5), jnp.asarray(0.2)
    forward = eqx.filter_jit(jax.jacfwd(end, (0, 1)))(*at)
    reverse = eqx.filter_jit(jax.jacrev(lambda *a: end(*a, Checkpointed(3)), (0, 1)))(*at)
    expected = [1.0, float(stopped.stats.end_time)]
    np.testing.assert_allclose(np.ravel(forward), expected, rtol=1e-12)
    np.testing.assert_allclose(np.ravel(reverse), expected, rtol=1e-12)


def test_every_lane_has_its_own_event():
    levels = jnp.array([0.4, 0.2, -9.0])

    def run(level):
        return fall(Event(Below(level)), SaveAt.end())

    out = eqx.filter_jit(jax.vmap(run))(levels)
    np.testing.assert_array_equal(
        out.result == RESULTS.event_occurred, np.array([True, True, False])
    )
    exact = (0.2 + np.sqrt(0.04 + 2 * 9.81 * (0.5 - np.array([0.4, 0.2])))) / 9.81
    np.testing.assert_allclose(out.stats.end_time[:2], np.ceil(exact * STEPS) / STEPS, rtol=1e-14)
    assert out.stats.end_time[2] == 1.0
    assert "failed" not in out.message


def broken_after(t, q, v):
    return jnp.where(t > 0.45, jnp.nan, 0.0) * v


@pytest.mark.parametrize("ends", ["event", "failure"])
def test_what_would_fail_after_the_event_does_not_count(ends):
    """The force leaves the numbers at 0.45 s; one run has ended by then. NaN is no event."""
    model = Model(LagrangianSystem(np.eye(1), f_int=broken_after))

    event = Event((lambda t, s, a: 0.4 - t) if ends == "event" else (lambda t, s, a: s.v[0]))
    method = MoreauJean(theta=0.0)
    out = simulate(model, method, 0.0, 1.0, 0.1, START, event=event, throw=False)
    if ends == "event":
        assert out.result == RESULTS.event_occurred and out.stats.event_step == 3
        assert np.all(np.isfinite(out.states.v)) and out.stats.failed_step == -1
    else:
        assert out.result == RESULTS.nonfinite and out.stats.event_step == -1


def test_new_levels_do_not_compile_again():
    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def run(level):
        return fall(Event(Below(level)), SaveAt.end()).ts

    for level in (0.1, 0.3):
        run(jnp.asarray(level))


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (lambda t, s, a: s.q, r"one boolean or one real number, got float64 of shape \(1,\)"),
        (lambda t, s, a: jnp.asarray(1j), r"numbers of type complex128"),
    ],
)
def test_conditions_that_are_refused(condition, words):
    with pytest.raises((TypeError, ValueError), match=words):
        fall(Event(condition))
