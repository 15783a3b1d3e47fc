"""Compliant relations: closed forms of contacts that give way, and the rigid contact as their limit."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from diffnsd import (
    BackwardEuler,
    Interaction,
    Located,
    Model,
    MoreauJean,
    Newton,
    SaveAt,
    State,
    simulate,
)
from diffnsd.integrators import D1MinusLinear, EventDriven, SchatzmanPaoli
from diffnsd.laws import (
    Complementarity,
    CoulombFriction,
    Equality,
    GapStabilized,
    NewtonImpact,
)
from diffnsd.relations import CompliantRelation, GapRelation
from diffnsd.systems import LagrangianSystem

MASS, SPEED, COMPLIANCE = 2.0, 0.7, 0.03
FREQUENCY = np.sqrt(1 / (MASS * COMPLIANCE))
ITERATED = Newton(20, 1e-12)


def mass_on_a_stop(compliance, method=None, dt=1e-3, t1=1.0, saveat=None):
    """A mass that meets a stop of stiffness `1/compliance` at `t = 0`."""
    relation = CompliantRelation.linear([[1.0]], jnp.reshape(compliance, (1, 1)))
    model = Model(LagrangianSystem([[MASS]]), Interaction(relation, Complementarity()))
    start = State(jnp.zeros(1), jnp.array([-SPEED]))
    method = MoreauJean() if method is None else method
    return simulate(model, method, 0.0, t1, dt, start, saveat=saveat)


def test_half_a_period_on_a_stop():
    """`q = −v0/ω sin ωt` while it touches, then free with the speed it came with: second order."""
    errors = []
    for dt in (4e-3, 2e-3, 1e-3):
        s = mass_on_a_stop(COMPLIANCE, dt=dt)
        t, phase = np.asarray(s.ts), FREQUENCY * np.asarray(s.ts)
        inside = -SPEED / FREQUENCY * np.sin(phase)
        exact = np.where(phase < np.pi, inside, SPEED * (t - np.pi / FREQUENCY))
        errors.append(np.max(np.abs(np.asarray(s.states.q)[:, 0] - exact)))
    # Measured 1.9; the step in which it parts scatters.
    assert np.log2(errors[0] / errors[2]) / 2 > 1.8, errors
    assert errors[-1] < 2e-6
    # The mean force of a step is that of its middle.
    middle = FREQUENCY * (t[1:] - 5e-4)
    force = MASS * SPEED * FREQUENCY * np.maximum(np.sin(middle), 0) * (middle < np.pi)
    np.testing.assert_allclose(np.asarray(s.impulses[0])[1:, 0, 0] / 1e-3, force, atol=2e-3)
    np.testing.assert_allclose(s.states.v[-1], SPEED, rtol=1e-5)


def test_the_midpoint_rule_keeps_the_energy_of_the_stop():
    """Kinetic energy and `C lam²/2` at the end of a step, `lam = −q/C`, as long as it touches."""
    s = mass_on_a_stop(COMPLIANCE, dt=1e-2, t1=0.7)
    q, v = np.asarray(s.states.q)[:, 0], np.asarray(s.states.v)[:, 0]
    assert np.all(q[1:] < 0)
    np.testing.assert_allclose(MASS * v**2 / 2 + q**2 / (2 * COMPLIANCE), MASS * SPEED**2 / 2)


def test_the_derivative_by_the_compliance_is_true():
    """`q(T) = v0 (T − π sqrt(m C))`: no impact time is lost, with plain steps.

    First order, by the distance of the end of contact from the end of its step: measured 5.9e-3 at
    4 ms, 1.8e-3 at 1 ms and 1.1e-4 at 0.5 ms.
    """

    def end(compliance):
        return mass_on_a_stop(compliance, dt=5e-4, saveat=SaveAt.end()).states.q[0]

    at = jnp.array(COMPLIANCE)
    forward, reverse = eqx.filter_jit(lambda c: (jax.jacfwd(end)(c), jax.grad(end)(c)))(at)
    exact = -SPEED * np.pi * np.sqrt(MASS / COMPLIANCE) / 2
    np.testing.assert_allclose(forward, reverse, rtol=1e-10)
    np.testing.assert_allclose(forward, exact, rtol=2e-4)


def test_a_compliance_from_a_recorded_motion():
    def motion(c):
        return mass_on_a_stop(c, dt=1e-2).states.q[:, 0]

    data, found = motion(jnp.array(COMPLIANCE)), jnp.array(0.05)
    step = eqx.filter_jit(lambda c: (motion(c) - data, jax.jacfwd(motion)(c)))
    for _ in range(8):
        residual, slope = step(found)
        found = found - jnp.dot(slope, residual) / jnp.dot(slope, slope)
    np.testing.assert_allclose(found, COMPLIANCE, rtol=1e-9)


def test_without_compliance_it_is_the_rigid_contact_on_positions():
    """`0 <= q1 ⟂ lam >= 0` is the law `u + g/h >= 0` of a contact without restitution."""
    ball = LagrangianSystem([[MASS]], f_ext=[-9.81 * MASS])
    start = State(jnp.array([0.1]), jnp.array([-0.3]))
    ends = []
    for interaction in (
        Interaction(CompliantRelation.linear([[1.0]], [[0.0]]), Complementarity()),
        Interaction(GapRelation(lambda t, q: q), GapStabilized(NewtonImpact(0.0))),
    ):
        s = simulate(Model(ball, interaction), BackwardEuler(), 0.0, 0.3, 1e-2, start)
        ends.append(np.concatenate([s.states.q, s.states.v, s.impulses[0][:, 0]], axis=1))
    np.testing.assert_allclose(*ends, rtol=0, atol=1e-12)
    assert np.max(ends[0][:, 2]) > 1


def test_coupled_springs():
    """`M q'' = lam`, `0 = q + D lam + e`: linear, with a full compliance, by the exponential."""
    mass, d, e = np.diag([1.0, 2.0]), np.array([[0.3, 0.1], [0.1, 0.2]]), np.array([0.2, -0.1])
    model = Model(
        LagrangianSystem(mass), Interaction(CompliantRelation.linear(np.eye(2), d, e), Equality())
    )
    start = State(jnp.array([0.5, 0.0]), jnp.array([0.0, 1.0]))
    s = simulate(model, MoreauJean(), 0.0, 1.0, 1e-3, start, saveat=SaveAt.end())
    a = np.zeros((4, 4))
    a[:2, 2:], a[2:, :2] = np.eye(2), -np.linalg.inv(mass) @ np.linalg.inv(d)
    exact = expm(a) @ np.concatenate([start.q + e, start.v]) - np.concatenate([e, np.zeros(2)])
    np.testing.assert_allclose(np.r_[s.states.q, s.states.v], exact, atol=2e-6)


def hardening(t, q, lam):
    """A pendulum's tip over a table that shakes; the pad hardens: `h` is nonlinear in everything."""
    return jnp.sin(q) + 0.6 - 0.02 * jnp.sin(9 * t) + 0.01 * (jnp.sqrt(1 + 2 * lam) - 1)


@pytest.mark.parametrize(("method", "tolerance"), [(MoreauJean(newton=ITERATED), 2e-5)])
def test_a_nonlinear_contact_against_a_smooth_solver(method, tolerance):
    """With `lam` eliminated by hand the motion has no contact in it."""
    g = 9.81
    system = LagrangianSystem([[1.0]], f_int=lambda t, q, v: g * jnp.cos(q))
    model = Model(system, Interaction(CompliantRelation(hardening, 1), Complementarity()))
    start = State(jnp.array([-0.3]), jnp.zeros(1))
    s = simulate(model, method, 0.0, 1.2, 5e-4, start, saveat=SaveAt(40))

    def rate(t, x):
        depth = max(0.0, -(np.sin(x[0]) + 0.6 - 0.02 * np.sin(9 * t)))
        force = ((1 + depth / 0.01) ** 2 - 1) / 2
        return [x[1], -g * np.cos(x[0]) + np.cos(x[0]) * force]

    times = np.asarray(s.ts)
    exact = solve_ivp(
        rate, (0, 1.2), [-0.3, 0.0], t_eval=times, rtol=1e-10, atol=1e-12, max_step=1e-2
    )
    assert np.max(s.impulses[0]) > 0.01 and np.min(exact.y[0]) < -0.64
    np.testing.assert_allclose(s.states.q[:, 0], exact.y[0], atol=tolerance)


def wrong(t, q, lam):
    return jnp.concatenate([q, q])


def stop(law, relation=None):
    relation = CompliantRelation.linear([[1.0]], [[0.1]]) if relation is None else relation
    return Model(LagrangianSystem([[1.0]]), Interaction(relation, law))


def pair(t, q, lam):
    return jnp.stack([q[:1], q[:1]], axis=1) + lam


REFUSED = {
    "restitution": (stop(NewtonImpact(0.5)), MoreauJean(), "NewtonImpact asks for velocities"),
    "friction": (
        stop(CoulombFriction(0.5), CompliantRelation(pair, 1, 2)),
        MoreauJean(),
        "CoulombFriction asks for velocities",
    ),
    "another shape": (
        stop(Complementarity(), CompliantRelation(wrong, 1)),
        MoreauJean(),
        r"h\(t, q, lam\) must return real numbers of shape \(1,\), one output for every force; it ",
    ),
    "another system": (
        stop(Complementarity(), CompliantRelation.linear([[1.0, 0.0]], [[0.1]])),
        MoreauJean(),
        r"C has shape \(1, 2\), but q has shape \(1,\)",
    ),
    **{
        type(method).__name__: (stop(Complementarity()), method, "use MoreauJean.. or Backward")
        for method in (Located(MoreauJean()), D1MinusLinear(), SchatzmanPaoli(), EventDriven())
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    model, method, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        simulate(model, method, 0.0, 0.1, 0.1, State(jnp.zeros(1), jnp.zeros(1)))


def test_shapes_of_linear_ones():
    with pytest.raises(ValueError, match=r"must have shapes \(m, n\), \(m, m\) and \(m,\)"):
        CompliantRelation.linear([[1.0]], [[0.1, 0.0]])
