"""Contacts that last on a curved surface until they let go, and an impact afterwards.

The answer is the equation of the angle, integrated by scipy until the normal force vanishes; the flight
and the impact are closed forms.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from diffnsd import (
    DryFriction,
    GapRelation,
    Interaction,
    LagrangianSystem,
    Located,
    Model,
    MoreauJean,
    NewtonImpact,
    RateRelation,
    State,
    simulate,
)
from diffnsd.integrators import HalfExplicit

G, END, E = 9.81, 0.85, 0.6
START = np.array([0.3, 1.2])  # angle from the top, angular velocity


def exact(p):
    """A point that slides off a disc of radius 1 and strikes the floor: position and velocity."""

    def force(t, y):
        return y[1] ** 2 - G * np.cos(y[0])

    force.terminal, force.direction = True, 1
    out = solve_ivp(
        lambda t, y: [y[1], G * np.sin(y[0])], (0, END), p, "DOP853", events=force,
        rtol=1e-13, atol=1e-13,
    )  # fmt: skip
    angle, rate = out.y[:, -1]
    q = np.array([np.sin(angle), np.cos(angle)])
    v = rate * np.array([np.cos(angle), -np.sin(angle)])
    falls = (v[1] + np.sqrt(v[1] ** 2 + 2 * G * q[1])) / G
    rest = END - out.t[-1] - falls
    assert out.status == 1 and rest > 0
    up = -E * (v[1] - G * falls)
    return np.array(
        [q[0] + v[0] * (END - out.t[-1]), up * rest - G * rest**2 / 2, v[0], up - G * rest]
    )


def above_disc(t, q):
    del t
    return jnp.sqrt(jnp.sum(q * q))[None] - 1.0


@pytest.mark.slow
def test_a_point_that_slides_off_a_disc():
    """Values and derivatives of second order: where it lets go has its share in that step's derivative."""
    point = LagrangianSystem(jnp.eye(2), f_ext=jnp.array([0.0, -G]))
    disc = Interaction(GapRelation(above_disc), NewtonImpact(0.0))
    floor = Interaction(GapRelation(lambda t, q: q[1:]), NewtonImpact(E))
    model, scheme = Model(point, (disc, floor)), Located(MoreauJean(contacts_at=HalfExplicit()))

    def run(p, steps):
        angle, rate = p
        state = point.state(
            jnp.stack([jnp.sin(angle), jnp.cos(angle)]),
            rate * jnp.stack([jnp.cos(angle), -jnp.sin(angle)]),
        )
        h, memory = END / steps, scheme.init(model, jnp.zeros(()), state, None)

        def body(i, run):
            state, memory = run
            state, _, memory, _ = scheme.step(model, i * h, h, state, memory, None)
            return state, memory

        state, _ = jax.lax.fori_loop(0, steps, body, (state, memory))
        end = jnp.concatenate([state.q, state.v])
        return end, end

    found = eqx.filter_jit(lambda p, steps: jax.jacfwd(run, has_aux=True)(p, steps))
    value = exact(START)
    slope = np.stack(
        [(exact(START + d) - exact(START - d)) / 2e-5 for d in 1e-5 * np.eye(2)], axis=1
    )
    errors = []
    for steps in (85, 850, 8500):
        slopes, values = found(jnp.asarray(START), jnp.asarray(steps))
        errors.append(
            (np.max(np.abs(values - value)), np.max(np.abs(slopes - slope)) / np.max(np.abs(slope)))
        )
    coarse, fine, finest = np.array(errors)
    # Measured over nine lengths near each, medians: values 9.7e-4, 1.0e-5, 9.6e-8; derivatives 3.1e-4,
    # 3.0e-6, 3.9e-8 (5.2e-3, 4.5e-4, 3.9e-5 if the step in which it lets go counts as free all along).
    # With thresholds that vanish where the contact lets go the derivative was 1, 9, 1e24.
    assert coarse[0] < 5e-3 and fine[0] < 5e-5
    assert coarse[1] < 3e-3 and fine[1] < 3e-5
    # Measured here: values 1.1e-3, 1.2e-5, 1.1e-7, derivatives 1.0e-3, 5.9e-6, 3.6e-8.
    assert finest[0] < 5e-7 and finest[1] < 5e-7


@pytest.mark.slow
def test_a_method_of_first_order_on_a_curved_surface_says_so():
    point = LagrangianSystem(jnp.eye(2), f_ext=jnp.array([0.0, -G]))
    disc = Interaction(GapRelation(above_disc), NewtonImpact(0.0))
    state = point.state(jnp.array([0.0, 1.0]), jnp.array([1.2, 0.0]))

    def run(**options):
        scheme = Located(MoreauJean(**options))
        return simulate(Model(point, disc), scheme, 0.0, 0.2, 0.02, state)

    plain, better = run(), run(contacts_at=HalfExplicit())
    assert plain.stats.curved.sum() > 5 and better.stats.kinks.sum() > 5
    assert "curved surfaces" in plain.message and "HalfExplicit" in plain.message
    assert better.message == "" and better.stats.curved.sum() == 0


FLOOR = Interaction(GapRelation(lambda t, q: q), NewtonImpact(0.5))
BRAKE = Interaction(RateRelation(lambda t, q: q), DryFriction(2.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contact", "force", "v", "step"),
    [
        (FLOOR, (-3.0, 10.0), 0.0, 30),
        (FLOOR, (-3.0, 0.0), 0.0, None),
        (BRAKE, (0.0, 10.0), 0.0, 20),
        (BRAKE, (0.0, 0.0), 0.6, None),
    ],
    ids=["lets go", "rests", "begins to slip", "stops"],
)
def test_modes_that_end_unlocated_are_counted(contact, force, v, step):
    """The force `a + b t` on one mass of 1 kg exceeds what holds it at t = 0.3 s, and at 0.2 s."""
    a, b = force
    system = LagrangianSystem(jnp.eye(1), f_ext=lambda t: jnp.stack([a + b * t]))
    start = State(jnp.zeros(1), jnp.array([v]))
    stats = simulate(Model(system, contact), Located(MoreauJean()), 0.0, 0.5, 1e-2, start).stats
    assert np.flatnonzero(stats.kinks).tolist() == ([] if step is None else [step])
    assert np.sum(stats.kinks) <= 1


@pytest.mark.nightly
def test_second_derivatives_after_lift_off_overflow():
    """`f = b t − 3` lets go at `3/b`: the velocity at the end is `b (1 − 3/b)²/2`."""

    def end(b):
        system = LagrangianSystem(jnp.eye(1), f_ext=lambda t: jnp.stack([b * t - 3.0]))
        start = State(jnp.zeros(1), jnp.zeros(1))
        out = simulate(Model(system, FLOOR), Located(MoreauJean()), 0.0, 1.0, 1e-2, start)
        return out.states.v[-1, 0]

    def twice(b):
        slope, bend = jax.jvp(jax.grad(end), (b,), (jnp.ones_like(b),))
        return slope, bend

    slope, bend = eqx.filter_jit(twice)(jnp.array(10.0))
    np.testing.assert_allclose(slope, 0.5 - 4.5 / 100, rtol=1e-3)
    assert not np.abs(bend) < 1e300  # the scheme without the time of lift-off has 0 for 9e-3
