"""The contract between a method and the wrappers around it: members, memory, masks, reports."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly, slow

from diffnsd import (
    ContactMask,
    Corrected,
    D1MinusLinear,
    EulerMoreau,
    EventDriven,
    Interaction,
    LieVariational,
    Located,
    Model,
    MoreauJean,
    Newton,
    Projected,
    SaveAt,
    SchatzmanPaoli,
    SmoothedAdjoint,
    State,
    simulate,
)
from diffnsd.complementarity.solvers import Lemke
from diffnsd.control import PID, Sampled
from diffnsd.integrators import AbstractIntegrator, AbstractWrappedIntegrator, StepInfo
from diffnsd.laws import (
    AbstractLaw,
    CoulombFriction,
    DryFriction,
    Equality,
    GapStabilized,
    NewtonImpact,
    RollingFriction,
)
from diffnsd.models import bouncing_ball, diode_bridge
from diffnsd.relations import GapRelation, RateRelation
from diffnsd.sets import HalfLine
from diffnsd.systems import LagrangianSystem

G = 9.81


def falling(interactions, n=1, force=None):
    """Unit masses in R^n, the first of which falls."""
    force = jnp.zeros(n).at[0].set(-G) if force is None else jnp.asarray(force)
    return Model(LagrangianSystem(jnp.eye(n), f_ext=force), interactions)


def floor(i=0, law=None):
    return Interaction(
        GapRelation(lambda t, q: q[i : i + 1]), NewtonImpact(0.5) if law is None else law
    )


def state(q, v=None):
    q = jnp.asarray(q, dtype=float)
    return State(q, jnp.zeros_like(q) if v is None else jnp.asarray(v, dtype=float))


# ---------------------------------------------------------------- members


def test_a_wrapper_forwards_every_member():
    """A member that is added to the interface and forgotten in the wrapper fails here."""
    public = [name for name in vars(AbstractIntegrator) if not name.startswith("_")]
    members = [
        name
        for name in public
        if isinstance(vars(AbstractIntegrator)[name], property)
        or inspect.isfunction(vars(AbstractIntegrator)[name])
    ]
    assert {"order", "memory", "check", "keeps_impact_times", "adjoint", "prediction"} <= set(
        members
    )
    own = {"step", "estimated", "estimates_errors"}  # what a wrapper makes of a step is its own
    assert not set(members) - own - set(vars(AbstractWrappedIntegrator))


class Through(AbstractWrappedIntegrator):
    """A wrapper that changes nothing."""

    inner: AbstractIntegrator

    def step(self, model, t0, h, state, carry, args):
        return self.inner.step(model, t0, h, state, carry, args)


@pytest.mark.parametrize(
    "inner",
    [
        MoreauJean(theta=1.0, gamma=0.25, adjoint=SmoothedAdjoint(0.1)),
        SchatzmanPaoli(),
        Located(MoreauJean()),
        EulerMoreau(),
        LieVariational(),
    ],
)
def test_what_is_forwarded_is_that_of_the_inner_method(inner):
    outer = Through(inner)
    for name, member in vars(AbstractIntegrator).items():
        if isinstance(member, property):
            assert eqx.tree_equal(getattr(outer, name), getattr(inner, name)), name


def test_wrappers_keep_what_they_do_not_change():
    loop = Sampled(Located(MoreauJean(adjoint=SmoothedAdjoint(0.1))), PID(1.0))
    assert loop.keeps_impact_times and loop.adjoint.kappa == 0.1
    assert Projected(MoreauJean(gamma=0.25)).prediction == 0.25
    bridge = diode_bridge()
    inside = EulerMoreau(theta=0.0, gamma=0.0)
    given = bridge, 0.0, 1e-3, State(None, jnp.zeros(bridge.system.velocities)), None
    assert Located(inside).check(*given) == inside.check(*given)


@pytest.mark.parametrize("wrapper", [Located, Corrected, Projected])
def test_the_inner_method_is_a_method(wrapper):
    with pytest.raises(
        TypeError, match=r"inner is the class MoreauJean; pass an instance: MoreauJean\("
    ):
        wrapper(MoreauJean)
    with pytest.raises(
        TypeError, match=r"inner must be an integrator, such as MoreauJean\(\), in .*; got"
    ):
        wrapper(Lemke())


@pytest.mark.parametrize(
    "method", [MoreauJean, EulerMoreau, LieVariational, SchatzmanPaoli, EventDriven]
)
def test_the_solver_of_contacts_is_one(method):
    place = "laws" if method is EventDriven else "solver"
    with pytest.raises(TypeError, match=f"{place} is the class Lemke; pass an instance"):
        method(**{place: Lemke})
    with pytest.raises(
        TypeError, match=r"solvers.Newton\(10\), in .*; got .* diffnsd.integrators.Newton"
    ):
        method(**{place: Newton(10)})


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        (Located(SchatzmanPaoli()), "continues from the steps before.* use a one-step method"),
        (Corrected(SchatzmanPaoli()), "continues from the steps before.* use a one-step method"),
        (Located(Sampled(MoreauJean(), PID(1.0))), r"counts its steps.* Sampled\(Located"),
        (Corrected(Sampled(MoreauJean(), PID(1.0))), r"counts its steps.* Sampled\(Located"),
        (Located(Located(MoreauJean())), "by itself; use it without Located"),
        (Located(EventDriven()), "by itself; use it without Located"),
        (Projected(SchatzmanPaoli()), "predicts closing.* use MoreauJean"),
        (Projected(Corrected(MoreauJean())), "continues from the steps before"),
    ],
)
def test_steps_that_cannot_be_split_are_refused(method, remedy):
    with pytest.raises(ValueError, match=f"cannot simulate: .*{remedy}"):
        simulate(bouncing_ball(), method, 0.0, 0.1, 0.1, state([1.0]))


def test_projections_refuse_circuits():
    bridge = diode_bridge()
    start = State(None, jnp.zeros(bridge.system.velocities))
    with pytest.raises(ValueError, match=r"predicts closing.* use MoreauJean"):
        simulate(bridge, Projected(EulerMoreau()), 0.0, 0.1, 0.1, start)


# ---------------------------------------------------------------- reports


def test_reports_of_two_parts():
    one = StepInfo((jnp.array([[1.0]]),), *map(jnp.asarray, (0.1, 3, 0.5)), jnp.array(7.0))
    two = StepInfo((jnp.array([[2.0]]),), *map(jnp.asarray, (0.2, 4, 0.25)))
    both = one.then(two)
    assert float(both.impulses[0][0, 0]) == 3 and int(both.iterations) == 7
    assert float(both.residual) == 0.2 and float(both.margin) == 0.25 and float(both.details) == 7
    assert eqx.tree_equal(one.nothing().then(one), one)
    assert float(one.shortened(jnp.array(0.25)).impulses[0][0, 0]) == 0.25


def test_details_survive_a_located_impact():
    out = simulate(falling([floor()]), Located(D1MinusLinear()), 0.0, 0.5, 0.05, state([1.0]))
    assert out.details.impact[0].shape == (11, 1, 1)
    # The momentum of the whole motion: that of the impact is in the impulses.
    np.testing.assert_allclose(
        jnp.sum(out.impulses[0]), 1.5 * np.sqrt(2 * G), rtol=1e-9
    )  # closed form; measured 1e-15


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize(
    "method",
    [
        slow(MoreauJean()),
        slow(Located(MoreauJean())),
        nightly(EventDriven()),
        nightly(SchatzmanPaoli()),
        nightly(D1MinusLinear()),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_contact_that_is_off_is_passed_through(method):
    """Of two balls the second falls through the floor, in every method alike: closed forms."""
    relation = GapRelation(lambda t, q: q)
    model = falling([Interaction(relation, NewtonImpact(0.5), mask=[True, False])], 2, [-G, -G])
    t = np.sqrt(2 / G)
    rest = 0.6 - t
    known = [0.5 * G * t * rest - G * rest**2 / 2, 1 - G * 0.6**2 / 2]

    @eqx.filter_jit
    def run(start):
        return simulate(model, method, 0.0, 0.6, 2e-3, start, saveat=SaveAt.end())

    out = run(state([1.0, 1.0]))
    # Measured 1e-2 for the event-capturing schemes, which are of first order.
    np.testing.assert_allclose(out.states.q, known, atol=2e-2)


def test_masks_compile_once_and_need_not_be_known():
    relation = GapRelation(lambda t, q: q)
    traces = []

    @eqx.filter_jit
    def run(on):
        traces.append(1)
        model = falling([Interaction(relation, NewtonImpact(0.5), mask=on)], 2, [-G, -G])
        out = simulate(model, MoreauJean(), 0.0, 0.6, 1e-2, state([1.0, 1.0]), saveat=SaveAt.end())
        return out.states.q

    first, second = run(jnp.array([True, False])), run(jnp.array([False, True]))
    np.testing.assert_allclose(first, second[::-1], atol=1e-12)
    assert len(traces) == 1


@pytest.mark.parametrize("mask", [[True], [True, False, True], True])
def test_masks_of_the_wrong_length_are_refused(mask):
    relation = GapRelation(lambda t, q: q)
    model = falling([Interaction(relation, NewtonImpact(0.5), mask=mask)], 2, [-G, -G])
    with pytest.raises(ValueError, match=r"the relation has 2 contacts: give one value for each"):
        simulate(model, MoreauJean(), 0.0, 0.1, 0.1, state([1.0, 1.0]))


def test_masks_combine():
    one, two = ContactMask([True, False], [False, True]), ContactMask([True, True], [True, False])
    both = one & two & None
    assert both.on.tolist() == [True, False] and both.closed.tolist() == [True, True]
    assert both.restitution is None
    assert (one & ContactMask([True, True], None, jnp.zeros(2))).restitution.tolist() == [0, 0]


@pytest.mark.parametrize("factor", [-2.0, 2.0])
def test_factors_of_restitution_outside_of_their_range_are_refused(factor):
    with pytest.raises(ValueError, match=r"restitution, a factor .* must lie in \[0, 1\]"):
        ContactMask([True], restitution=[factor])


@pytest.mark.parametrize("side", ["left", jnp.ones(2)])
def test_sides_that_are_no_numbers_of_the_contacts_are_refused(side):
    with pytest.raises(
        ValueError, match=r"side must be numbers with the shape of the mask, \(1,\)"
    ):
        ContactMask([True], side=side)


class Weak(AbstractLaw):
    """A stop whose own `active` and `in_step` count: it acts on gaps below `reach` only."""

    reach: float

    @property
    def rows(self):
        return 1

    @property
    def is_unilateral(self):
        return True

    def set(self):
        return HalfLine()

    def active(self, context):
        return context.gap <= self.reach


class MayPull(AbstractLaw):
    rows = 1

    def set(self):
        return HalfLine()


def test_event_driven_says_that_a_law_is_not_called_unilateral():
    with pytest.raises(ValueError, match="and MayPull does not set `is_unilateral = True`"):
        simulate(falling([floor(0, MayPull())]), EventDriven(), 0.0, 0.6, 0.6, state([1.0]))
    with pytest.raises(ValueError, match="own that does not sets `is_unilateral = True`"):
        GapStabilized(MayPull())


@pytest.mark.slow
def test_event_driven_asks_the_law_itself():
    """The impact is that of the law, with its own `active`, softened or not."""
    out = simulate(falling([floor(0, Weak(1e-9))]), EventDriven(), 0.0, 0.6, 0.6, state([1.0]))
    np.testing.assert_allclose([*out.states.q[-1], *out.states.v[-1]], 0, atol=1e-9)


# ---------------------------------------------------------------- impacts


@pytest.mark.slow
def test_limited_forces_do_not_act_in_an_impact():
    """A block with dry friction against a wall, closed form; with the limit h L it was 5e-3 off."""
    model = Model(
        LagrangianSystem(jnp.eye(1)),
        (
            Interaction(RateRelation(lambda t, q: q), DryFriction(1.0)),
            Interaction(GapRelation(lambda t, q: 0.5 - q), NewtonImpact(0.5)),
        ),
    )
    v = np.sqrt(3.0)
    t = 0.6 - (2 - v)
    for h in (0.1, 0.01):
        start, ends = state([0.0], [2.0]), SaveAt.end()
        out = simulate(model, Located(MoreauJean()), 0.0, 0.6, h, start, saveat=ends, max_steps=60)
        found = float(out.states.q[0]), float(out.states.v[0])
        # Measured 1e-15: the force is constant on both sides of the impact.
        np.testing.assert_allclose(found, [0.5 - v / 2 * t + t**2 / 2, t - v / 2], atol=1e-12)


def test_dry_friction_acts_once_in_a_variational_step():
    """A block that slides: the law acts at both ends of a step, its force over the step once."""
    model = Model(
        LagrangianSystem(jnp.eye(1)),
        Interaction(RateRelation(lambda t, q: q), DryFriction(1.0)),
    )
    out = simulate(model, LieVariational(), 0.0, 0.5, 0.01, state([0.0], [2.0]))
    # Closed form; of first order, measured 3e-3 (it was 1.1 off in q with the force acting twice).
    np.testing.assert_allclose(out.states.v[-1], [1.5], atol=1e-12)
    np.testing.assert_allclose(out.states.q[-1], [2 * 0.5 - 0.125], atol=5e-3)


@pytest.mark.slow
def test_what_is_prescribed_holds_in_an_impact():
    """A ball that strikes a floor beside a joint that has drifted by 1 cm: its rate stays zero.

    The joint ties the ball to a second one of the same mass: the impact is that of both together.
    """
    tie = Interaction(GapRelation(lambda t, q: q[:1] - q[1:] + 0.01), Equality())
    model = falling([tie, floor()], 2, [-G, -G])
    start = state([1.0, 1.0])
    t = np.sqrt(2 / G)
    rest = 0.6 - t
    known = 0.5 * G * t * rest - G * rest**2 / 2
    out = simulate(model, Located(MoreauJean()), 0.0, 0.6, 0.01, start, start_tolerance=0.02)
    # Closed form, measured 1e-15; the second ball was left behind: it fell through, by 1.2 m.
    np.testing.assert_allclose(out.states.q[-1], [known, known], atol=1e-9)


def relaxed(v, e, drop, kappa, dv, de):
    """Derivative of `v⁺` on the central path `(v⁺ + e v) (v⁺ − v + drop) = kappa`, by hand."""
    known = (1 + e) * v - drop
    w = (known + np.sqrt(known**2 + 4 * kappa)) / 2
    dw = w / (2 * w - known) * ((1 + e) * dv + v * de)
    return dw - e * dv - v * de


@pytest.mark.nightly
def test_the_impact_is_differentiated_as_the_inner_method_says():
    """By the restitution: the impact, then the rest of its step, in which the contact takes part too."""
    kappa, e, fall = 0.3, 0.5, np.sqrt(2 * G)

    def after(e):
        model, method = (
            falling([floor(0, NewtonImpact(e))]),
            MoreauJean(adjoint=SmoothedAdjoint(kappa)),
        )
        out = simulate(model, Located(method), 0.0, 0.6, 0.03, state([1.0]), saveat=SaveAt.end())
        return out.states.v[0]

    slope = eqx.filter_jit(jax.grad(after))(jnp.asarray(e))
    struck = relaxed(-fall, e, 0.0, kappa, 0.0, 1.0)
    known = relaxed(e * fall, e, G * 0.48 - fall, kappa, struck, 1.0)
    np.testing.assert_allclose(slope, known, rtol=1e-6)
    # The impact without the smoothing of the inner method.
    assert abs(known - relaxed(e * fall, e, G * 0.48 - fall, kappa, fall, 1.0)) > 1e-2


# ---------------------------------------------------------------- laws that see the gap


def test_stabilised_laws_are_unilateral_and_refuse_what_their_law_refuses():
    assert GapStabilized(NewtonImpact(0.5)).is_unilateral
    relation = GapRelation(lambda t, q: jnp.zeros((1, 4)), 4)
    with pytest.raises(ValueError, match="RollingFriction needs contacts with 5 rows"):
        Interaction(relation, GapStabilized(RollingFriction(0.5, 0.1)))
    with pytest.raises(ValueError, match="needs a unilateral law"):
        GapStabilized(GapStabilized(NewtonImpact(0.5)))


def test_starts_that_penetrate_are_seen_under_a_stabilised_law():
    model = bouncing_ball(law=GapStabilized(NewtonImpact(0.5)))
    with pytest.raises(ValueError, match="penetrates in the initial state"):
        simulate(model, MoreauJean(theta=1.0), 0.0, 0.1, 0.1, state([-0.02]))
    out = simulate(
        model, MoreauJean(theta=1.0), 0.0, 0.1, 0.01, state([-0.02]), start_tolerance=0.03
    )
    # It is pushed out at `rest_speed`, 1e-3 m/s by default; at zero the law lets no energy in.
    np.testing.assert_allclose(out.states.q[-1], [-0.0199], atol=1e-12)
    still = bouncing_ball(law=GapStabilized(NewtonImpact(0.5), rest_speed=0.0))
    out = simulate(
        still, MoreauJean(theta=1.0), 0.0, 0.1, 0.01, state([-0.02]), start_tolerance=0.03
    )
    np.testing.assert_allclose(out.states.q[-1], [-0.02], atol=1e-12)


def test_dry_friction_on_a_gap_function_is_not_projected():
    """The coordinate of a law without a gap may be negative: there is nothing to correct."""
    relation = GapRelation(lambda t, q: q)
    model = Model(LagrangianSystem(jnp.eye(1)), Interaction(relation, DryFriction(0.1)))
    out = simulate(model, Projected(MoreauJean()), 0.0, 0.5, 0.01, state([0.1], [-1.0]))
    np.testing.assert_allclose(out.states.q[-1], [0.1 - 0.5 + 0.1 * 0.125], atol=1e-12)


@pytest.mark.nightly
def test_sliding_under_a_mask_is_sliding():
    """A mask that leaves all contacts on changes nothing, bit by bit."""
    relation = GapRelation(lambda t, q: q[None, ::-1], 2)
    law = CoulombFriction(0.2)
    start = state([0.0, 0.0], [1.0, 0.0])
    runs = [
        simulate(
            falling([Interaction(relation, law, mask=m)], 2, [0.0, -G]),
            MoreauJean(),
            0.0,
            0.2,
            0.01,
            start,
        )
        for m in (None, [True])
    ]
    assert np.array_equal(runs[0].states.q, runs[1].states.q)
