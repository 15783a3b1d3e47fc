"""What is looked at before compiling, how a failure is told, and what is a value and not a program."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import (
    EulerMoreau,
    Interaction,
    Located,
    Model,
    MoreauJean,
    Pose,
    PrescribedVelocity,
    SaveAt,
    State,
    simulate,
)
from diffnsd.laws import (
    AbstractLaw,
    Complementarity,
    CoulombFriction,
    Equality,
    NewtonImpact,
    Relay,
)
from diffnsd.models import block_state, bouncing_ball, sliding_block
from diffnsd.relations import BodyPointsPlane, ContactFrame, FirstOrderLinear, GapRelation
from diffnsd.sets import SecondOrderCone
from diffnsd.simulation import _checks
from diffnsd.systems import FirstOrderSystem, LagrangianSystem, NewtonEulerSystem

BALL = State(jnp.array([0.5]), jnp.array([0.2]))
BODY = NewtonEulerSystem(1.0, 1.0)
AT_REST = State(BODY.group.identity(), jnp.zeros(6))
TWICE = State(Pose(AT_REST.q.position, 2 * AT_REST.q.orientation), AT_REST.v)
NOT_FINITE = State(AT_REST.q, jnp.full(6, jnp.nan))
POINTS = BodyPointsPlane(np.eye(3))


def reached(model, start, t1=0.1):
    end = simulate(model, MoreauJean(), 0.0, t1, 0.1, start, saveat=SaveAt.end())
    return jnp.sum(end.states.v)


TRANSFORMATIONS = {
    "grad": lambda f: jax.grad(f)(0.3),
    "jvp": lambda f: jax.jvp(f, (0.3,), (1.0,)),
    "jit": lambda f: jax.eval_shape(f, 0.3),
    "vmap": lambda f: jax.vmap(f)(jnp.array([0.3, 0.4])),
    "jit of grad": lambda f: jax.eval_shape(jax.grad(f), 0.3),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_is_known_is_checked_beside_what_is_traced(name):
    """One traced parameter does not let the others through."""
    transform = TRANSFORMATIONS[name]
    with pytest.raises(ValueError, match="norm 2; divide it by its norm"):
        transform(lambda mu: reached(Model(BODY, Interaction(POINTS, CoulombFriction(mu))), TWICE))
    with pytest.raises(ValueError, match=r"restitution e must lie in \[0, 1\], got 2"):
        transform(
            lambda mu: reached(Model(BODY, Interaction(POINTS, CoulombFriction(mu, 2.0))), AT_REST)
        )
    with pytest.raises(ValueError, match="triangle inequality"):
        transform(lambda m: reached(Model(NewtonEulerSystem(m, (1.0, 1.0, 3.0))), AT_REST))
    with pytest.raises(ValueError, match="not finite"):
        transform(lambda m: reached(Model(NewtonEulerSystem(m, 1.0)), NOT_FINITE))


@pytest.mark.parametrize("name", ["grad", "jvp"])
def test_a_derivative_hides_no_value(name):
    """Outside of `jit` even the differentiated parameter is known."""
    with pytest.raises(ValueError, match="mu must lie in"):
        TRANSFORMATIONS[name](
            lambda x: reached(Model(BODY, Interaction(POINTS, CoulombFriction(-x))), AT_REST)
        )


def falling_mass(q):
    return -jnp.eye(1)


BAD = {
    "a body that does not exist": (
        lambda: (Model(BODY, Interaction(BodyPointsPlane(np.eye(3), body=3), NewtonImpact())), 0),
        "body is 3, but the system has the bodies 0 to 0",
    ),
    "points of no body": (
        lambda: (
            Model(LagrangianSystem(np.eye(6)), Interaction(POINTS, NewtonImpact())),
            State(jnp.zeros(6), jnp.zeros(6)),
        ),
        "needs rigid bodies",
    ),
    "a second body that does not exist": (
        lambda: (Model(BODY, Interaction(ContactFrame(lambda t, q: q, 0, 1), NewtonImpact())), 0),
        "body2 is 1",
    ),
    "no contact at a time": (
        lambda: (Model(BODY, Interaction(POINTS, NewtonImpact(), max_active=0)), 0),
        "max_active must be at least 1, or None for all contacts, got 0",
    ),
    "friction without a tangent": (
        lambda: (Interaction(GapRelation(lambda t, q: q), CoulombFriction(0.3)), 0),
        "GapRelation: CoulombFriction needs at least 2 rows per contact .* got 1",
    ),
    "friction without end": (
        lambda: (Model(BODY, Interaction(POINTS, CoulombFriction(np.inf))), 0),
        r"mu must lie in \[0, inf\), got inf",
    ),
    "a mass function that is negative": (
        lambda: (Model(LagrangianSystem(falling_mass, n=1)), BALL),
        "the mass matrix at the initial configuration is not positive definite",
    ),
    "positions and velocities of two precisions": (
        lambda: (Model(LagrangianSystem(np.eye(1))), State(BALL.q.astype(np.float32), BALL.v)),
        "q has the dtype float32 and its v float64",
    ),
    "a state less precise than the model": (
        lambda: (
            Model(LagrangianSystem(np.eye(1))),
            jax.tree.map(lambda x: x.astype(np.float32), BALL),
        ),
        "state has the dtype float32, but the model has parameters of float64; convert one",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_the_remedy(name):
    make, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        model, start = make()
        reached(model, start or AT_REST)


def run_with(model=None, method=None, start=BALL, **options):
    model = bouncing_ball() if model is None else model
    method = MoreauJean() if method is None else method
    return simulate(model, method, 0.0, 0.1, 0.1, start, **options)


GAP = GapRelation(lambda t, q: q)
KINDS = {
    "a system for a model": (
        lambda: run_with(LagrangianSystem(np.eye(1))),
        r"model must be a Model; wrap a system as Model\(.* got .* diffnsd.systems.LagrangianSystem",
    ),
    "a class for a method": (
        lambda: run_with(method=MoreauJean),
        r"integrator is the class MoreauJean; pass an instance: MoreauJean\(",
    ),
    "an array for a state": (
        lambda: run_with(start=jnp.ones(1)),
        r"state0 must be a State; make one with system.state.* got an array of shape \(1,\)",
    ),
    "a number for what to save": (
        lambda: run_with(saveat=10),
        r"saveat must be SaveAt\(steps=10\)",
    ),
    "a function for an event": (
        lambda: run_with(event=abs),
        r"event must be an Event\(condition\)",
    ),
    "a law for interactions": (
        lambda: Model(BODY, NewtonImpact()),
        r"interactions must be Interaction\(relation, law\).* got .* diffnsd.laws.NewtonImpact",
    ),
    "a law among interactions": (
        lambda: Model(BODY, [Interaction(POINTS, NewtonImpact()), NewtonImpact()]),
        r"interactions must be Interaction\(relation, law\)",
    ),
    "an interaction for what is prescribed": (
        lambda: Model(BODY, (), Interaction(PrescribedVelocity(0), Equality())),
        r"prescribed must be PrescribedVelocity\(",
    ),
    "a class for a system": (lambda: Model(LagrangianSystem), "system is the class Lagrangian"),
    "a law before its relation": (
        lambda: Interaction(NewtonImpact(), GAP),
        r"relation must be a relation, .* in Interaction\(...\); got .* diffnsd.laws.Newton",
    ),
    "a function for a relation": (
        lambda: Interaction(lambda t, q: q, NewtonImpact()),
        r"relation must be a relation, such as GapRelation\(function\).* a function that takes 2",
    ),
    "a class for a law": (
        lambda: Interaction(GAP, NewtonImpact),
        r"law is the class NewtonImpact; pass an instance",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_arguments_of_another_kind_are_refused_with_the_remedy(name):
    make, words = KINDS[name]
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize("mask", [[0.5], [1.0], [2], [-1]])
def test_masks_are_booleans(mask):
    with pytest.raises(ValueError, match=r"the mask must be booleans.* write a comparison"):
        Interaction(GAP, NewtonImpact(), mask=mask)
    known = Interaction(GAP, NewtonImpact(), mask=[0, 1]).mask
    assert known is not None and known.on.dtype == bool and known.on.tolist() == [False, True]


@pytest.mark.parametrize("mu", [jnp.array([0.1, 0.2]), jnp.ones((1, 1))])
def test_parameters_that_fit_no_number_of_contacts(mu):
    with pytest.raises(
        ValueError, match=r"the parameter mu of a law has shape .* contacts is 1: .*vmap"
    ):
        run_with(sliding_block(mu=mu), start=block_state(0.0))


def away(t, q):
    del t
    return q - 0.2


HELD = Interaction(GapRelation(away), Equality())
STARTS = {
    "penetration": (bouncing_ball(), -0.02, "gap is -0.02, and an open gap is expected; move"),
    "the remedy of penetration": (bouncing_ball(), -0.02, "accept it by start_tolerance=0.0202"),
    "an open joint": (
        Model(LagrangianSystem(np.eye(1)), HELD),
        0.25,
        "GapRelation. is a joint that is open by 0.05 in the initial state; start in a configur",
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_start_that_contradicts_the_contacts(name):
    model, q, words = STARTS[name]
    start = State(jnp.array([q]), jnp.zeros(1))
    with pytest.raises(ValueError, match=words):
        reached(model, start)
    with pytest.raises(ValueError, match=words):
        jax.grad(lambda v: reached(model, State(start.q, v)))(start.v)
    accepted = simulate(model, MoreauJean(), 0.0, 0.1, 0.1, start, start_tolerance=0.06)
    assert np.all(np.isfinite(accepted.states.q))
    # What a transformation hides is not looked at.
    jax.eval_shape(lambda q: reached(model, State(q, start.v)), start.q)


@pytest.mark.parametrize("q", [-5e-4, 0.0])
def test_a_small_penetration_is_no_contradiction(q):
    reached(bouncing_ball(), State(jnp.array([q]), jnp.zeros(1)))


class Misshapen(AbstractLaw):
    """A law of two rows whose shift is given for one row only."""

    lifts: bool = eqx.field(static=True)

    @property
    def rows(self):
        return None

    def set(self):
        return SecondOrderCone(jnp.array(0.5))

    def shift(self, context):
        return 0 * context.u_minus if self.lifts else 0.5 * context.u_minus[0]

    def lift(self, w):
        return w if self.lifts else 0 * w[0]


@pytest.mark.parametrize(
    ("lifts", "words"),
    [
        (False, r"Misshapen.shift must have shape \(3, 3\), one entry for every row .* got \(3,\)"),
        (True, r"Misshapen.lift must have shape \(3,\), one entry per contact, got \(3, 3\)"),
    ],
)
def test_a_law_of_a_user_that_returns_another_shape(lifts, words):
    with pytest.raises(ValueError, match=words):
        reached(Model(BODY, Interaction(POINTS, Misshapen(lifts))), AT_REST)


def test_lists_and_integers_are_numbers_too():
    expected = reached(bouncing_ball(), State(jnp.array([1.0]), jnp.array([0.0])))
    for start in (
        State([1.0], [0.0]),
        State(np.array([1]), np.array([0])),
        State((1,), jnp.array([0])),
    ):
        assert reached(bouncing_ball(), start) == expected


def test_new_numbers_and_times_compile_nothing():
    """A parameter given as a number, the start and the step are values of one program."""
    traces = []

    def height(t, q):
        traces.append(1)
        return q

    relation = GapRelation(height)

    def run(e, t0, dt):
        model = Model(LagrangianSystem(np.eye(1)), Interaction(relation, NewtonImpact(e)))
        return simulate(model, MoreauJean(), t0, t0 + 3 * dt, dt, BALL, saveat=SaveAt.end())

    run(0.5, 0.0, 0.1)
    count = len(traces)
    assert count
    for e, t0, dt in [(0.6, 0.0, 0.1), (0.7, 5.0, 0.1), (0.7, 5.0, 0.25)]:
        run(e, t0, dt)
    assert len(traces) == count
    assert run(0.7, 5.0, 0.25).ts == 5.75


def test_the_step_is_exact_in_single_precision():
    """At 1e5 s single precision has no milliseconds; the motion is the one from 0, to all bits."""

    def single(tree):
        return jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_array(x) else x, tree)

    model, start = single(bouncing_ball(0.8)), single(BALL)

    def run(t0):
        return simulate(model, MoreauJean(), t0, t0 + 0.8, 1e-3, start)

    here, late = run(0.0), run(1e5)
    assert here.states.q.dtype == jnp.float32 and len(np.unique(here.ts)) == 801
    np.testing.assert_array_equal(here.states.q, late.states.q)
    assert np.ptp(np.diff(late.ts)) > 1e-3  # the times themselves are rounded
    # Against double precision; measured 9e-7, and 0.026 where a step is a difference of times.
    exact = simulate(bouncing_ball(0.8), MoreauJean(), 0.0, 0.8, 1e-3, BALL)
    np.testing.assert_allclose(late.states.q, exact.states.q, rtol=0, atol=1e-5)


def test_forces_and_gaps_see_the_time_of_the_run():
    """Steps have a clock of their own, functions of the time do not: a ramp, and a lift."""
    pushed = Model(LagrangianSystem(np.eye(1), f_ext=lambda t: t * jnp.ones(1)))
    out = simulate(pushed, MoreauJean(), 2.0, 4.0, 0.1, BALL, saveat=SaveAt.end())
    # The trapezoidal rule of the step is exact for a ramp: v = v0 + (t1² − t0²)/2.
    np.testing.assert_allclose(out.states.v, [0.2 + 6.0], rtol=1e-13)

    def over_lift(t, q):
        return q - 3.0 * (t - 2.0)

    lift = Interaction(GapRelation(over_lift), Complementarity())
    carried = Model(LagrangianSystem(np.eye(1), f_ext=[-9.81]), lift)
    start = State(jnp.zeros(1), jnp.array([3.0]))
    out = simulate(carried, MoreauJean(theta=1.0), 2.0, 3.0, 0.1, start)
    np.testing.assert_allclose(out.states.v[:, 0], 3.0, rtol=1e-8)
    np.testing.assert_allclose(out.gaps[0], 0.0, atol=1e-8)
    np.testing.assert_allclose(out.states.q[:, 0], 3.0 * (np.asarray(out.ts) - 2), atol=1e-8)


def test_an_elastic_ball_keeps_its_energy():
    """e = 1: in flight the midpoint rule is exact, and an impact reverses the velocity.

    A step that ends with the reversed velocity has fallen `h (v1 + v0)/2 = 0`, so the potential
    energy is kept too.
    """

    def lost(dt):
        out = simulate(bouncing_ball(1.0), MoreauJean(), 0.0, 2.0, dt, BALL)
        assert np.sum(np.asarray(out.impulses[0]) > 1e-6) >= 3
        total = np.asarray(out.energy.total)
        assert np.max(np.diff(total)) < 1e-12 * total[0]  # none is gained
        return (total[0] - total[-1]) / total[0]

    assert abs(lost(1e-2)) < 1e-11


def closing_walls(t, q):
    """A mass between two walls that meet after one second: then there is no solution."""
    return jnp.stack([q[0] - (t - 1), (1 - t) - q[0]])


def squeezed(v, shift=0.0, **options):
    walls = Interaction(GapRelation(lambda t, q: closing_walls(t - shift, q)), Complementarity())
    model = Model(LagrangianSystem(np.eye(1)), walls)
    return simulate(model, MoreauJean(), 0.0, 1.5, 0.05, State(jnp.zeros(1), v), **options)


def test_the_message_names_the_step_and_its_residual():
    out = squeezed(jnp.zeros(1), throw=False)
    step, residual = int(out.stats.failed_step), float(out.stats.failed_residual)
    assert residual == out.stats.residual[step] > 1e-6
    words = f"step {step} failed with the relative residual {residual:.1e}: "
    assert out.message.startswith(words + "the complementarity problem did not reach")
    with pytest.raises(RuntimeError, match=f"step {step} failed with the relative residual"):
        squeezed(jnp.zeros(1))


def test_the_message_of_a_run_that_went_well_is_empty():
    out = simulate(bouncing_ball(), MoreauJean(), 0.0, 0.3, 0.1, BALL)
    assert repr(out.result).endswith("RESULTS<succeeded>")
    assert out.message == "" and out.stats.failed_residual == 0 and out.stats.end_time == 0.3


def test_the_message_of_a_batch_counts_failures():
    run = jax.vmap(lambda v, s: squeezed(v, s, throw=False))
    out = eqx.filter_jit(run)(jnp.zeros((3, 1)), jnp.array([5.0, 0.0, 0.1]))
    assert out.message.startswith("2 of 3 simulations failed, first the one at index 1: step ")


def test_there_is_no_message_under_a_derivative():
    def end(height):
        run = simulate(bouncing_ball(), MoreauJean(), 0.0, 0.3, 0.1, State(height[None], BALL.v))
        return run.states.q[-1, 0] + len(run.message)

    with pytest.raises(ValueError, match="read from a finished run"):
        eqx.filter_jit(end)(jnp.ones(()))


def test_a_failure_inside_jit_raises_too():
    with pytest.raises(RuntimeError, match="did not reach its tolerance; use a smaller step"):
        eqx.filter_jit(squeezed)(jnp.zeros(1))


def test_checks_leave_nothing_in_a_program():
    """They look at what is known, and add no operation to what is compiled."""
    start, model = block_state(0.0), sliding_block()
    assert model.check(start) is None
    setting = 0.0, 0.1
    jaxpr = jax.make_jaxpr(lambda s: _checks.checked(model, MoreauJean(), *setting, s, None).v)(
        start
    )
    assert all(str(e.primitive) in ("stop_gradient", "copy") for e in jaxpr.eqns)


def test_checks_of_a_first_order_system_leave_nothing_in_a_program():
    """Its one-step matrix is computed at once, where everything is known, and not at all elsewhere."""
    unreached = FirstOrderLinear([[1.0, 0.0]], [[0.0], [1.0]])
    system = FirstOrderSystem.linear(np.eye(2))
    model = Model(system, Interaction(unreached, Relay()))
    known = system.state([1.0, 0.0])

    def hidden(s):
        return _checks.checked(model, EulerMoreau(), 0.0, 0.1, s, None).v

    jaxpr = jax.make_jaxpr(hidden)(known)
    assert all(str(e.primitive) in ("stop_gradient", "copy") for e in jaxpr.eqns)
    with pytest.raises(ValueError, match="reached by no multiplier"):
        jax.make_jaxpr(lambda x: x + hidden(known)[0])(jnp.zeros(()))


@pytest.mark.slow
def test_a_failure_under_a_derivative_says_the_result():
    """The result of this method is known there, unlike its statistics."""

    def end(d):
        relation = FirstOrderLinear(C=[[1.0]], B=[[1.25]], D=(-d)[None, None], e=[-1.0])
        system = FirstOrderSystem.linear([[-1.0]], b=[1.25])
        model, start = Model(system, Interaction(relation, Relay())), system.state([0.2])
        return simulate(model, Located(EulerMoreau()), 0.0, 3.0, 0.01, start).states.v[-1, 0]

    for derivative in (jax.grad, jax.jacfwd):
        with pytest.raises(RuntimeError, match="did not reach its tolerance"):
            derivative(end)(jnp.asarray(0.2))
