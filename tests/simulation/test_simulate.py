"""The loop over steps: what is saved, how failures are told, and what must not change results."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import (
    RESULTS,
    BackwardEuler,
    Checkpointed,
    Direct,
    Interaction,
    Model,
    MoreauJean,
    Pose,
    SaveAt,
    State,
    simulate,
)
from diffnsd.laws import Complementarity, CoulombFriction, GapStabilized, NewtonImpact
from diffnsd.models import bouncing_ball
from diffnsd.relations import BodyPointsPlane, GapRelation
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem

START = State(jnp.array([0.5]), jnp.array([0.2]))


def ball(saveat=None, steps=100, e=0.7, **options):
    """A second of a bouncing ball, two impacts."""
    return simulate(
        bouncing_ball(e), MoreauJean(), 0.0, 1.0, 1 / steps, START, saveat=saveat, **options
    )


@pytest.fixture(scope="module")
def full():
    return eqx.filter_jit(ball)(SaveAt())


def test_the_full_run(full):
    np.testing.assert_allclose(full.ts, np.linspace(0, 1, 101), rtol=0, atol=1e-15)
    assert full.states.q.shape == full.states.v.shape == (101, 1)
    assert full.impulses[0].shape == (101, 1, 1) and full.gaps[0].shape == (101, 1)
    assert full.stats.residual.shape == (100,)
    assert full.result == RESULTS.successful and full.stats.failed_step == -1
    np.testing.assert_array_equal(full.states.q[0], START.q)
    assert np.all(np.asarray(full.impulses[0][0]) == 0)
    np.testing.assert_array_equal(full.gaps[0], full.states.q)
    assert np.sum(np.asarray(full.impulses[0]) > 1e-6) == 2
    energy = full.energy
    np.testing.assert_allclose(energy.kinetic, np.asarray(full.states.v[:, 0]) ** 2 / 2)
    np.testing.assert_allclose(energy.potential, 9.81 * np.asarray(full.states.q[:, 0]))
    np.testing.assert_allclose(energy.total, energy.kinetic + energy.potential)


@pytest.mark.parametrize(
    ("saveat", "kept"),
    [
        (SaveAt(t0=False), list(range(1, 101))),
        (SaveAt(steps=10), list(range(0, 101, 10))),
        (SaveAt(steps=7, t0=False), [*range(7, 101, 7), 100]),
        (SaveAt(steps=70), [0, 70, 100]),
        (SaveAt(steps=100), [0, 100]),
        (SaveAt(steps=300), [0, 100]),
        (SaveAt(steps=None), [0, 100]),
        (SaveAt.end(), 100),
    ],
)
def test_what_is_saved_are_slices_of_the_full_run(saveat, kept, full):
    out = eqx.filter_jit(ball)(saveat)
    kept = np.array(kept)
    for name in ("ts", "states", "gaps", "energy"):
        part, whole = getattr(out, name), getattr(full, name)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b[kept], rtol=0, atol=1e-14), part, whole
        )
    assert out.result == RESULTS.successful
    # Impulses are those since the saved time before, and the statistics are the worst of these
    # steps: whatever is saved, they add up.
    bounds = [0, *np.atleast_1d(kept)[1 if saveat.t0 else 0 :]]
    groups = [slice(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    impulses = np.asarray(full.impulses[0])[1:]
    expected = np.array([np.sum(impulses[g], axis=0) for g in groups])
    worst = np.array([np.min(np.asarray(full.stats.margin)[g]) for g in groups])
    assert np.any(np.isfinite(worst))
    found = np.asarray(out.impulses[0]).reshape(-1, 1, 1)[-len(groups) :]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(np.ravel(out.stats.margin), worst, rtol=1e-14)


@pytest.mark.parametrize("saveat", [SaveAt.end(), SaveAt(steps=4)])
@pytest.mark.parametrize("max_steps", [None, 12])
def test_single_precision_stays_single_beside_double(saveat, max_steps):
    def single(tree):
        return jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, tree)

    model, start = single((bouncing_ball(), START))
    run = simulate(model, MoreauJean(), 0.0, 0.1, 0.01, start, saveat=saveat, max_steps=max_steps)
    floats = [x for x in jax.tree.leaves(run) if eqx.is_inexact_array(x)]
    assert {x.dtype for x in floats} == {jnp.dtype("float32")}
    np.testing.assert_allclose(np.ravel(run.states.v)[-1], 0.2 - 0.981, rtol=1e-5)


def test_memory_does_not_grow_with_steps_that_are_not_saved():
    """Reports of steps, the impulses of all contacts among them, are added up on the way."""

    def memory(steps):
        compiled = jax.jit(lambda: ball(SaveAt.end(), steps)).lower().compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # 1,796 and 8,964 bytes: the number of each step. With reports of all steps 10,352 and 89,200.
    assert memory(1000) <= memory(100) + 900 * 8


def test_no_time_at_all():
    """t1 = t0: the initial state, in every way to save."""
    for saveat in (SaveAt(), SaveAt(steps=3)):
        out = simulate(bouncing_ball(), MoreauJean(), 2.0, 2.0, 0.1, START, saveat=saveat)
        np.testing.assert_array_equal(out.ts, [2.0])
        np.testing.assert_array_equal(out.states.q, START.q[None])
    end = simulate(bouncing_ball(), MoreauJean(), 2.0, 2.0, 0.1, START, saveat=SaveAt.end())
    np.testing.assert_array_equal(end.states.v, START.v)
    assert end.result == RESULTS.successful
    both = simulate(bouncing_ball(), MoreauJean(), 2.0, 2.0, 0.1, START, saveat=SaveAt(None))
    np.testing.assert_array_equal(both.ts, [2.0, 2.0])


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_ways_to_save_that_are_refused(steps):
    with pytest.raises(ValueError, match=f"whole number of at least 1, got {steps}"):
        SaveAt(steps=steps)


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_times_to_save_at_are_those_of_steps():
    with pytest.raises(
        ValueError, match=r"is a number, not an array of times.* SaveAt\(steps=10\)"
    ):
        SaveAt(jnp.linspace(0, 1, 11))


def drop(parameters, adjoint):
    """A number that depends on every saved time, in steps that do not fill the segments."""
    e, height, speed = parameters
    out = simulate(
        bouncing_ball(e),
        MoreauJean(),
        0.0,
        1.0,
        1e-2,
        State(height[None], speed[None]),
        adjoint=adjoint,
        saveat=SaveAt(7),
    )
    return jnp.sum(out.states.q * out.states.v) + jnp.sum(out.energy.total)


def test_checkpoints_change_neither_values_nor_gradients():
    given = jnp.array(0.7), jnp.array(0.5), jnp.array(0.2)
    (value, gradient), (same, parts) = (
        eqx.filter_jit(lambda p, a=adjoint: jax.value_and_grad(drop)(p, a))(given)
        for adjoint in (Direct(), Checkpointed(segment_steps=3))
    )
    assert all(abs(g) > 1e-3 for g in gradient)
    np.testing.assert_allclose(same, value, rtol=1e-14)
    np.testing.assert_allclose(parts, gradient, rtol=0, atol=1e-12)

    # Forward mode works under checkpoints, and is the same derivative.
    forward = eqx.filter_jit(lambda p: jax.jacfwd(lambda x: drop(x, Checkpointed(3)))(p))(given)
    np.testing.assert_allclose(forward, gradient, rtol=0, atol=1e-11)


@pytest.mark.parametrize("steps", [1, 5, 16, 17, 99])
def test_segments_cover_the_steps(steps):
    """Square-root segments, and never more than there are steps."""
    automatic = Checkpointed(threshold=4).segment(steps)
    assert automatic == (steps if steps <= 4 else int(np.ceil(np.sqrt(steps))))
    assert Checkpointed(segment_steps=8).segment(steps) == min(8, steps)
    assert Direct().segment(steps) == steps


def test_segments_that_are_refused():
    with pytest.raises(ValueError, match="segment_steps must be at least 1, got 0"):
        Checkpointed(segment_steps=0)


def closing_walls(t, q):
    """A mass between two walls that meet after one second: then there is no solution."""
    return jnp.stack([q[0] - (t - 1), (1 - t) - q[0]])


CLOSING = Model(
    LagrangianSystem(np.eye(1)), Interaction(GapRelation(closing_walls), Complementarity())
)


def test_a_failed_step_raises_with_the_remedy():
    with pytest.raises(RuntimeError, match="did not reach its tolerance; use a smaller step"):
        simulate(CLOSING, MoreauJean(), 0.0, 1.5, 0.05, State(jnp.zeros(1), jnp.zeros(1)))


def test_a_failed_step_is_named_in_the_result():
    """With `throw=False` the run goes on, and says where it failed first and where worst."""
    run = eqx.filter_jit(
        lambda v: simulate(
            CLOSING, MoreauJean(), 0.0, 1.5, 0.05, State(jnp.zeros(1), v), throw=False
        )
    )
    out = run(jnp.zeros(1))
    assert out.result == RESULTS.not_converged
    residual = np.asarray(out.stats.residual)
    # Both gaps are 0 at t = 1, before the step with the index 20.
    assert out.stats.failed_step == np.flatnonzero(residual > 1e-9)[0]
    assert out.stats.failed_step in (19, 20)
    assert out.stats.worst_step == np.argmax(residual)
    assert np.all(residual[:19] <= 1e-9)


def test_what_is_not_finite_is_named():
    """A force that leaves the numbers; the message tells it from a contact problem."""

    def singular(t, q, v):
        return jnp.where(t > 0.45, jnp.nan, 0.0) * v

    model = Model(LagrangianSystem(np.eye(1), f_int=singular))
    run = lambda throw: simulate(model, MoreauJean(theta=0.0), 0.0, 1.0, 0.1, START, throw=throw)  # noqa: E731
    out = run(False)
    # An explicit step takes the force at its start: the first one that starts after 0.45 s.
    assert out.result == RESULTS.nonfinite and out.stats.failed_step == 5
    assert np.all(np.isfinite(out.states.v[:6])) and not np.isfinite(out.states.v[-1])
    with pytest.raises(RuntimeError, match="not finite; check the parameters"):
        run(True)


def test_one_failing_lane_does_not_spoil_the_rest():
    def lane(v, gap):
        walls = Interaction(GapRelation(lambda t, q: closing_walls(t - gap, q)), Complementarity())
        model = Model(LagrangianSystem(np.eye(1)), walls)
        start = State(jnp.zeros(1), v)
        return simulate(model, MoreauJean(), 0.0, 1.5, 0.05, start, throw=False)

    out = eqx.filter_jit(jax.vmap(lane))(jnp.zeros((3, 1)), jnp.array([5.0, 0.0, 5.0]))
    np.testing.assert_array_equal(out.result == RESULTS.successful, [True, False, True])
    np.testing.assert_array_equal(np.asarray(out.stats.failed_step)[[0, 2]], -1)
    assert np.all(np.asarray(out.states.q)[[0, 2]] == 0)


def test_progress_changes_no_number(full, capsys):
    told = ball(SaveAt(), progress=diffrax.TextProgressMeter(minimum_increase=0.2))
    jax.effects_barrier()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-13), told.states, full.states
    )
    assert "100.00%" in capsys.readouterr().out


def test_a_model_without_interactions():
    """Nothing but flight: exact for the midpoint rule."""
    model = Model(LagrangianSystem(np.eye(1), f_ext=np.array([-9.81])))
    for integrator, tolerance in ((MoreauJean(), 1e-13), (BackwardEuler(), 0.06)):
        out = simulate(model, integrator, 0.0, 1.0, 1e-2, START)
        assert out.impulses == () and out.gaps == ()
        exact = 0.5 + 0.2 * np.asarray(out.ts) - 9.81 * np.asarray(out.ts) ** 2 / 2
        np.testing.assert_allclose(out.states.q[:, 0], exact, rtol=0, atol=tolerance)


def test_exogenous_inputs_reach_the_force_and_are_differentiable():
    def wrench(t, state, args):
        return args["force"] * jnp.array([[1.0, 0, 0, 0, 0, 0]])

    system = NewtonEulerSystem(2.0, 1.0, wrench)
    start = State(system.group.identity(), jnp.zeros(6))

    def reached(force):
        out = simulate(Model(system), MoreauJean(), 0.0, 1.0, 0.1, start, dict(force=force))
        return out.states.q.position[-1, 0, 0]

    value, slope = eqx.filter_jit(jax.value_and_grad(reached))(jnp.asarray(3.0))
    np.testing.assert_allclose([value, slope], [0.75, 0.25], rtol=1e-13)


def test_new_values_do_not_compile_again():
    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def run(e, start):
        return simulate(bouncing_ball(e), MoreauJean(), 0.0, 0.1, 1e-2, start).states

    for value in (0.1, 0.5, 0.9):
        run(jnp.asarray(value), State(START.q * value, START.v))


SPHERE = NewtonEulerSystem(1.0, 1.0)
AT_REST = State(SPHERE.group.identity(), jnp.zeros(6))
POINTS = BodyPointsPlane(np.eye(3))


def body(law=None, system=SPHERE):
    return Model(system, () if law is None else Interaction(POINTS, law))


BAD = {
    "a step that does not divide": (dict(dt=0.03), "whole number; use dt=0.0303"),
    "a negative step": (dict(dt=-0.1), "dt > 0, got"),
    "time that runs backwards": (dict(t1=-1.0), "t0 <= t1"),
    "a time that is not finite": (dict(t1=np.inf), "finite"),
    "a time with an axis": (dict(dt=np.ones(2)), "dt must be a real number"),
    "a short velocity": (dict(state0=State(AT_REST.q, jnp.zeros(3))), r"\(3,\), expected \(6,\)"),
    "positions without attitude": (
        dict(state0=State(jnp.zeros(3), jnp.zeros(6))),
        "must be a Pose",
    ),
    "a quaternion of length 2": (
        dict(state0=State(Pose(jnp.zeros((1, 3)), 2 * AT_REST.q.orientation), jnp.zeros(6))),
        "norm 2; divide it by its norm",
    ),
    "two poses for one body": (
        dict(state0=State(Pose(jnp.zeros((2, 3)), jnp.ones((2, 4)) / 2), jnp.zeros(6))),
        r"\(2, 3\).*expected \(\(1, 3\), \(1, 4\)\)",
    ),
    "a velocity that is not finite": (
        dict(state0=State(AT_REST.q, jnp.full(6, jnp.nan))),
        "not finite",
    ),
    "a mass of zero": (dict(model=body(system=NewtonEulerSystem(0.0, 1.0))), "positive, got"),
    "a mass matrix that is not positive": (
        dict(
            model=Model(LagrangianSystem(lambda q: -jnp.eye(1), n=1)),
            state0=State(jnp.zeros(1), jnp.zeros(1)),
        ),
        "the mass matrix at the initial configuration is not positive definite",
    ),
    "an impossible body": (
        dict(model=body(system=NewtonEulerSystem(1.0, np.array([1.0, 1.0, 3.0])))),
        "triangle inequality",
    ),
    "restitution beyond 1": (dict(model=body(NewtonImpact(1.5))), r"e must lie in \[0, 1\]"),
    "negative friction": (dict(model=body(CoulombFriction(-0.5))), "mu must lie in"),
    "a gap-stabilised law with explicit positions": (
        dict(model=body(GapStabilized(CoulombFriction(0.5)))),
        r"cannot simulate: a gap-stabilised law .* use MoreauJean\(theta=1.0\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_explained_before_anything_is_compiled(name):
    change, words = BAD[name]
    good = dict(
        model=body(CoulombFriction(0.5)),
        integrator=MoreauJean(),
        t0=0.0,
        t1=1.0,
        dt=0.1,
        state0=AT_REST,
    )
    with pytest.raises((TypeError, ValueError), match=words):
        simulate(**(good | change))


def test_times_must_not_be_traced():
    with pytest.raises(ValueError, match="dt must be a plain number"):
        jax.jit(lambda dt: simulate(body(), MoreauJean(), 0.0, 1.0, dt, AT_REST))(0.1)


def test_shapes_are_checked_under_transformations_too():
    """Values are not known then; the shapes are."""
    with pytest.raises(ValueError, match=r"\(5,\), expected \(6,\)"):
        jax.jit(lambda v: simulate(body(), MoreauJean(), 0.0, 1.0, 0.1, State(AT_REST.q, v)).ts)(
            jnp.zeros(5)
        )
