"""Schemes, constraints and laws of mechanics against closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly

from diffnsd import (
    Interaction,
    Model,
    MoreauJean,
    Newton,
    Pose,
    SaveAt,
    State,
    simulate,
)
from diffnsd.integrators import (
    RKMK,
    AtIterate,
    AtPrediction,
    AtStart,
    CombinedProjection,
    D1MinusLinear,
    Projected,
    SchatzmanPaoli,
)
from diffnsd.laws import (
    Cohesive,
    CoulombFriction,
    DryFriction,
    Equality,
    GapStabilized,
    NewtonImpact,
    RollingFriction,
)
from diffnsd.relations import (
    ContactFrame,
    GapRelation,
    Harmonic,
    PrescribedVelocity,
    RateRelation,
    hinge,
)
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem

G = 9.81
STILL = Pose(jnp.zeros((1, 3)), jnp.array([[1.0, 0.0, 0.0, 0.0]]))
IMPLICIT = dict(newton=Newton(20, 1e-12), contacts_at=AtIterate(), joints_at=AtIterate())


def circle(t, q):
    del t
    return (jnp.sqrt(jnp.sum(q * q)) - 1.0)[None]


def pendulum(method, dt, t1=1.0):
    """A mass on a rod, in Cartesian coordinates, released horizontally."""
    system = LagrangianSystem(0.7 * np.eye(2), f_ext=[0.0, -0.7 * G])
    model = Model(system, Interaction(GapRelation(circle), Equality()))
    return simulate(model, method, 0.0, t1, dt, State(jnp.array([1.0, 0.0]), jnp.zeros(2)))


def in_its_angle(t1=1.0):
    """The same pendulum without constraint, to high order: position and velocity at the end."""
    system = LagrangianSystem(np.eye(1), potential_energy=lambda q: G * jnp.sin(q[0]))
    end = simulate(Model(system), RKMK(), 0.0, t1, 1e-3, State(jnp.zeros(1), jnp.zeros(1)))
    a, w = float(end.states.q[-1, 0]), float(end.states.v[-1, 0])
    return np.array([np.cos(a), np.sin(a), -w * np.sin(a), w * np.cos(a)])


METHODS = {
    "H at the start": (MoreauJean(joints_at=AtStart()), 1),
    "H predicted": (MoreauJean(joints_at=AtPrediction(0.5)), 1),
    "half explicit": (MoreauJean(), 2),
    "half explicit, iterated": (MoreauJean(contacts_at=AtIterate(), newton=Newton(20)), 2),
    "H implicit": (MoreauJean(**IMPLICIT), 1),
    "projected": (Projected(MoreauJean(), 1e-12), 2),
    "SchatzmanPaoli": (SchatzmanPaoli(), 1),
    "D1MinusLinear": (D1MinusLinear(), 2),
}


# Each repeats in kind what a shorter row proves: a method of first order, a corrected one.
LONG = "H at the start", "H predicted", "half explicit, iterated", "SchatzmanPaoli"


@pytest.mark.slow
@pytest.mark.parametrize("name", [nightly(n) if n in LONG else n for n in METHODS])
def test_order_on_a_constraint(name):
    """Against the pendulum in its angle; the drift of positions belongs to the error."""
    method, order = METHODS[name]
    exact, errors = in_its_angle(), []
    for dt in (4e-3, 2e-3, 1e-3):
        s = pendulum(method, dt)
        errors.append(np.max(np.abs(np.r_[s.states.q[-1], s.states.v[-1]] - exact)))
    rates = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(rates > order - 0.15), (errors, rates)


def test_drift_is_projected_away():
    scheme = MoreauJean(joints_at=AtStart())
    free = np.abs(pendulum(scheme, 2e-3).gaps[0])
    held = pendulum(Projected(scheme, 1e-10), 2e-3)
    assert np.max(free) > 1e-3 and np.max(np.abs(held.gaps[0])) < 1e-10
    moved = np.asarray(held.details[0][1:, 0])
    assert np.count_nonzero(moved) > 400  # the corrections are reported, [kg m]
    assert np.max(np.abs(pendulum(SchatzmanPaoli(), 2e-3).gaps[0])) < 1e-12


def test_forces_of_d1_are_forces():
    """The tension of the rod, `m (v² + ...)`: three times the weight's part along it."""
    s = pendulum(D1MinusLinear(), 1e-3, 0.6)
    q = np.asarray(s.states.q)
    tension = 3 * 0.7 * G * q[1:, 1]  # from energy: released at y = 0
    told = np.asarray(s.details.end[0])[1:, 0, 0]
    np.testing.assert_allclose(told, tension, rtol=0, atol=2e-4 * 0.7 * G * 3)  # measured 2e-5 N
    total = np.asarray(s.impulses[0])[1:, 0, 0]
    parts = s.details
    sums = 1e-3 / 2 * (parts.start[0] + parts.end[0]) + parts.impact[0]
    np.testing.assert_allclose(sums[1:, 0, 0], total, rtol=1e-12)


def height(t, q):
    del t
    return q


def dropped(method, e=0.6, t1=1.2, dt=1e-3):
    system = LagrangianSystem(2.0 * np.eye(1), f_ext=[-2.0 * G])
    model = Model(system, Interaction(GapRelation(height), NewtonImpact(e)))
    return simulate(model, method, 0.0, t1, dt, State(jnp.array([0.5]), jnp.zeros(1)))


@pytest.mark.parametrize(
    ("method", "e"), [(SchatzmanPaoli(), 0.0), (CombinedProjection(MoreauJean()), 0.6)]
)
def test_nothing_penetrates(method, e):
    s = dropped(method, e)
    assert np.min(s.gaps[0]) > -1e-9 and np.max(s.impulses[0]) > 1


def test_restitution_on_positions():
    """A gap two steps later is `−e` times the one before: one step of penetration, then rebound."""
    s = dropped(SchatzmanPaoli(), 0.6)
    gap, hit = np.asarray(s.gaps[0])[:, 0], np.asarray(s.impulses[0])[:, 0, 0] > 1e-9
    after = np.flatnonzero(hit)[0]
    np.testing.assert_allclose(gap[after], -0.6 * gap[after - 2], rtol=1e-9)
    speed = np.sqrt(2 * G * 0.5)
    np.testing.assert_allclose(np.max(s.states.v[after:]), 0.6 * speed, rtol=2e-2)


def test_a_resting_body_weighs():
    """With `e = 0` the force on the ground is the weight, from the second step of contact on."""
    s = dropped(D1MinusLinear(), e=0.0)
    force = np.asarray(s.details.end[0])[:, 0, 0]
    np.testing.assert_allclose(force[-100:], 2.0 * G, rtol=1e-12)


def test_reaction_of_a_drive():
    """The impulses of a prescribed velocity are what moves the mass and stretches the spring."""
    k = jnp.asarray([[30.0, -30.0], [-30.0, 30.0]])
    drive = PrescribedVelocity(0, Harmonic(0.0, 0.5, 9.0, -np.pi / 2))
    model = Model(LagrangianSystem.linear([1.5, 0.5], None, k), prescribed=drive)
    s = simulate(model, MoreauJean(), 0.0, 2.0, 1e-3, State(jnp.zeros(2), jnp.zeros(2)))
    t, q, v = np.asarray(s.ts), np.asarray(s.states.q), np.asarray(s.states.v)
    np.testing.assert_allclose(v[1:, 0], 0.5 * np.sin(9 * t[1:]), rtol=0, atol=1e-12)
    stretch = q[:, 0] - q[:, 1]
    wanted = 1.5 * np.diff(v[:, 0]) + 1e-3 * 30 * (stretch[1:] + stretch[:-1]) / 2
    np.testing.assert_allclose(s.impulses[0][1:, 0, 0], wanted, rtol=0, atol=1e-12)
    # The free mass is a driven oscillator, w² = 60: its closed form from rest.
    w, b = np.sqrt(60.0), 0.5 / 9
    # x0 = b (1 − cos 9 t),  x'' + w² x = w² x0
    c = w**2 * b / (w**2 - 81)
    exact = b - c * np.cos(9 * t) + (c - b) * np.cos(w * t)
    np.testing.assert_allclose(q[:, 1], exact, rtol=0, atol=1e-4)  # measured 2e-5


@pytest.mark.nightly
def test_friction_stops_a_door():
    """`θ = I ω²/(2 L)` at rest, and its derivative by the limit L: no impact, so it is exact."""
    joint = hinge(STILL, [0.3, 0.0, 0.0], [0.0, 0.0, 1.0])
    inertia, omega = 0.15 + 1.0 * 0.09, 2.0

    def angle(limit):
        parts = (
            Interaction(GapRelation(joint), Equality()),
            Interaction(RateRelation(joint.angle), DryFriction(limit)),
        )
        body = NewtonEulerSystem(1.0, [0.1, 0.2, 0.15], gravity=(0.0, 0.0, 0.0))
        start = State(STILL, jnp.array([0.0, -0.3 * omega, 0.0, 0.0, 0.0, omega]))
        method = MoreauJean(theta=1.0, **IMPLICIT)
        end = simulate(Model(body, parts), method, 0.0, 1.5, 1e-3, start, saveat=SaveAt.end())
        return joint.angle(0.0, end.states.q)

    value, slope = eqx.filter_jit(lambda x: jax.jvp(angle, (x,), (1.0,)))(jnp.asarray(0.4))
    exact = inertia * omega**2 / 0.8
    np.testing.assert_allclose(value, exact, rtol=2e-3)
    np.testing.assert_allclose(slope, -exact / 0.4, rtol=4e-3)


def on_ground(t, q):
    del t
    up = jnp.array([[0.0, 0.0, 1.0]])
    return q.position - 0.1 * up, q.position * (1 - up), up


@pytest.mark.nightly
def test_rolling_friction_stops_a_sphere():
    """`v² = 2 a x` with `a = 5/7 mu_r g/R`, and the derivative by the coefficient."""

    def way(mu_r):
        law = RollingFriction(0.5, mu_r)
        system = NewtonEulerSystem(0.8, 0.4 * 0.8 * 0.01)
        model = Model(system, Interaction(ContactFrame(on_ground, rolling=True), law))
        pose = Pose(jnp.array([[0.0, 0.0, 0.1 - 1e-9]]), STILL.orientation)
        start = State(pose, jnp.array([0.4, 0.0, 0.0, 0.0, 4.0, 0.0]))
        method = MoreauJean(contacts_at=AtPrediction())
        end = simulate(model, method, 0.0, 0.8, 2e-3, start, saveat=SaveAt.end())
        return end.states.q.position[0, 0]

    value, slope = eqx.filter_jit(jax.value_and_grad(way))(jnp.asarray(0.01))
    exact = 0.4**2 / (2 * 5 / 7 * 0.01 * G / 0.1)
    np.testing.assert_allclose(value, exact, rtol=1e-4)
    np.testing.assert_allclose(slope, -exact / 0.01, rtol=1e-3)


@pytest.mark.parametrize(("speed", "leaves"), [(0.6, False), (0.66, True), (1.5, True)])
def test_work_of_cohesion(speed, leaves):
    """A body leaves the zone if `m v²/2 > σ δ/2`, and keeps the rest of its energy."""
    system = LagrangianSystem(np.eye(1))
    model = Model(system, Interaction(GapRelation(height), Cohesive(4.0, 0.1)))
    start = State(jnp.zeros(1), jnp.array([speed]))
    s = simulate(model, MoreauJean(theta=1.0), 0.0, 2.0, 1e-4, start, saveat=SaveAt(100))
    # σ δ = 0.4: the least speed is 0.632.
    assert (float(s.states.q[-1, 0]) > 0.1) == leaves
    if leaves:
        np.testing.assert_allclose(s.states.v[-1, 0] ** 2, speed**2 - 0.4, rtol=0, atol=2e-3)


def test_what_schemes_refuse():
    model = Model(
        LagrangianSystem(np.eye(2)),
        Interaction(GapRelation(lambda t, q: q[None], 2), CoulombFriction(0.3)),
    )
    stabilised = Model(
        LagrangianSystem(np.eye(1)), Interaction(GapRelation(height), GapStabilized(NewtonImpact()))
    )
    start = State(jnp.ones(2), jnp.zeros(2))
    with pytest.raises(ValueError, match="no forces for CoulombFriction"):
        simulate(model, D1MinusLinear(), 0.0, 1.0, 0.1, start)
    with pytest.raises(ValueError, match="has no use for a law that sees them"):
        simulate(stabilised, SchatzmanPaoli(), 0.0, 1.0, 0.1, State(jnp.ones(1), jnp.zeros(1)))
    with pytest.raises(ValueError, match="predicts closing"):
        simulate(model, Projected(D1MinusLinear()), 0.0, 1.0, 0.1, start)
    with pytest.raises(ValueError, match="theta must lie"):
        SchatzmanPaoli(theta=1.5)
    with pytest.raises(ValueError, match="not symmetric"):
        LagrangianSystem.linear(np.eye(2), stiffness=[[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(ValueError, match="damping must have shape"):
        LagrangianSystem.linear(np.eye(2), [1.0, 2.0, 3.0])
