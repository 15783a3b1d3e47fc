"""One program for every number of steps: the same numbers, and nothing traced again."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optimised import OPTIMISED

from diffnsd import RESULTS, Event, Interaction, Model, MoreauJean, SaveAt, State, simulate
from diffnsd.laws import NewtonImpact
from diffnsd.relations import GapRelation
from diffnsd.systems import LagrangianSystem

START = State(jnp.array([0.5]), jnp.array([0.2]))
TRACES = []
CAPACITY = 60


def gap(t, q):
    TRACES.append(0)
    return q


BALL = Model(
    LagrangianSystem(np.eye(1), f_ext=np.array([-9.81])),
    Interaction(GapRelation(gap), NewtonImpact(0.7)),
)


def fall(steps, max_steps=None, saveat=None, height=START.q, dt=0.02, **options):
    """A fall from half a metre; the impact is in step 17 of 0.02 s."""
    start = State(height, START.v)
    return simulate(
        BALL,
        MoreauJean(),
        0.0,
        steps * dt,
        dt,
        start,
        saveat=saveat,
        max_steps=max_steps,
        **options,
    )


@pytest.mark.parametrize("saveat", [SaveAt(), SaveAt(7), SaveAt.end()], ids=["all", "some", "end"])
def test_a_sweep_traces_once_and_gives_the_plain_run(saveat):
    fall(CAPACITY, CAPACITY, saveat)
    TRACES.clear()
    runs = {steps: fall(steps, CAPACITY, saveat) for steps in (45, 20, 1, 0)}
    fall(45, CAPACITY, saveat, dt=0.01)
    assert not TRACES
    steps = 45
    run, plain = runs[steps], fall(steps, saveat=saveat)
    rows = len(np.atleast_1d(plain.ts))

    def same(found, expected):
        if not saveat.has_axis:
            found, expected = found[None], expected[None]
        # Measured: equal bit by bit, or 1 in the last place.
        np.testing.assert_allclose(found[:rows], expected, rtol=1e-14, atol=1e-14)
        rest = np.broadcast_to(expected[-1], found[rows:].shape)
        np.testing.assert_allclose(found[rows:], rest, rtol=1e-14, atol=1e-14)

    for name in ("ts", "states", "gaps", "energy"):
        jax.tree.map(same, getattr(run, name), getattr(plain, name))
    impulse = np.asarray(run.impulses[0]).reshape(-1, 1, 1)
    expected = np.asarray(plain.impulses[0]).reshape(-1, 1, 1)
    np.testing.assert_allclose(impulse[: len(expected)], expected, rtol=1e-14, atol=1e-14)
    assert np.all(impulse[len(expected) :] == 0)
    assert run.result == RESULTS.successful and run.stats.end_time == plain.stats.end_time
    # All residuals are rounding, and so is which step has the largest.
    worst = (
        jax.jit(
            lambda rows=rows: fall(steps, rows, saveat).stats.worst_step, compiler_options=OPTIMISED
        )()
        for rows in (CAPACITY, None)
    )
    np.testing.assert_array_equal(*worst)
    assert runs[0].stats.end_time == 0
    np.testing.assert_array_equal(np.ravel(runs[0].states.q)[-1:], START.q)


def end(height, steps, max_steps):
    out = fall(steps, max_steps, SaveAt.end(), height)
    return out.states.q[0] * out.states.v[0]


def test_derivatives_in_both_modes():
    """Before the impact `q v` with `q = q0 + ...` has the derivative `v`, after it that of the plain run."""
    jax.grad(end)(START.q, CAPACITY, CAPACITY)
    TRACES.clear()
    for steps in (10, 40):
        reverse = jax.grad(end)(START.q, steps, CAPACITY)
        assert not TRACES
        plain = jax.grad(end)(START.q, steps, None)
        np.testing.assert_allclose(reverse, plain, rtol=1e-13)
        _, forward = jax.jvp(lambda q, n=steps: end(q, n, CAPACITY), (START.q,), (jnp.ones(1),))
        np.testing.assert_allclose(forward, plain[0], rtol=1e-13)
        TRACES.clear()
    free = 0.2 - 9.81 * 10 * 0.02
    np.testing.assert_allclose(jax.grad(end)(START.q, 10, CAPACITY), [free], rtol=1e-13)


def test_batches():
    heights = jnp.array([[0.4], [0.5], [0.6]])
    run = lambda bound: eqx.filter_jit(jax.vmap(lambda q: fall(40, bound, height=q)))(heights)  # noqa: E731
    found, plain = run(CAPACITY), run(None)
    np.testing.assert_allclose(found.states.q[:, :41], plain.states.q, rtol=1e-13)
    np.testing.assert_array_equal(found.states.q[:, 41:], found.states.q[:, 40:41].repeat(20, 1))


class Low(eqx.Module):
    def __call__(self, t, state, args):
        return state.q[0] - 0.2


def test_an_event_before_the_end_and_one_after_it():
    plain = fall(CAPACITY, event=Event(Low()))
    last = int(plain.stats.event_step)
    assert 5 < last < 40
    run = fall(40, CAPACITY, event=Event(Low()))
    assert run.stats.event_step == last and run.result == RESULTS.event_occurred
    np.testing.assert_allclose(run.states.q, plain.states.q, rtol=1e-13)
    np.testing.assert_allclose(run.stats.end_time, (last + 1) * 0.02, rtol=1e-14)
    short = fall(5, CAPACITY, event=Event(Low()))
    assert short.stats.event_step == -1 and short.result == RESULTS.successful


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (39, "40 steps, and max_steps=.* raise max_steps"),
        (40.5, "max_steps must be a whole number"),
        ("many", "max_steps must be a whole number"),
    ],
)
def test_bounds_that_are_refused(bound, words):
    with pytest.raises((TypeError, ValueError), match=words):
        fall(40, bound)
