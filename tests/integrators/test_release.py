"""Contacts that let go and contacts that begin to slip: nothing jumps, and derivatives have second order."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly

from diffnsd import (
    CoulombFriction,
    DryFriction,
    GapRelation,
    Interaction,
    LagrangianSystem,
    Located,
    Model,
    MoreauJean,
    NewtonImpact,
    SaveAt,
    State,
    simulate,
)
from diffnsd.relations import NodesHalfSpace

END = 1.0
X = np.array([3.0, 1.1, 0.7])
"""The rate `k` at which the drive grows, the force `L` that holds, the mass `m`."""


def moved(x):
    """Place and speed at the end: `m v' = k t − L` from `t = L/k` on."""
    k, limit, m = x
    t = END - limit / k
    return np.array([k * t**3 / (6 * m), k * t**2 / (2 * m)])


def brake(x):
    """A mass on dry friction."""
    k, limit, m = x
    system = LagrangianSystem(m[None, None], f_ext=lambda t: (k * t)[None])
    return Model(system, Interaction(GapRelation(lambda t, q: q), DryFriction(limit))), np.ones(1)


def floor(x):
    """A mass that is pressed onto the floor, ever less."""
    k, limit, m = x
    system = LagrangianSystem(m[None, None], f_ext=lambda t: (k * t - limit)[None])
    return Model(system, Interaction(GapRelation(lambda t, q: q), NewtonImpact(0.0))), np.ones(1)


def plane(x):
    """A point on a plane with friction of coefficient 0.4, pulled aside."""
    k, limit, m = x
    aside = np.array([0.6, 0.8, 0.0])

    def force(t):
        return jnp.concatenate([k * t * aside[:2], -limit[None] / 0.4])

    system = LagrangianSystem(m * jnp.eye(3), f_ext=force)
    contact = NodesHalfSpace([[0, 1, 2]], [0.0, 0.0, 1.0])
    return Model(system, Interaction(contact, CoulombFriction(0.4))), aside


def simulated(build, steps):
    def run(x):
        model, way = build(x)
        rest = State(jnp.zeros(way.size), jnp.zeros(way.size))
        end = simulate(
            model, Located(MoreauJean()), 0.0, END, END / steps, rest, saveat=SaveAt.end()
        ).states
        return jnp.stack([way @ end.q, way @ end.v])

    return run


@pytest.mark.slow
@pytest.mark.parametrize("build", [nightly(brake), floor, nightly(plane)])
def test_second_order(build):
    """The event falls at 0.57, 0.37 and 0.77 of a step: before and after the half, where it is seen late."""
    width = 1e-30
    columns = [moved(X + 1j * width * d).imag / width for d in np.eye(3)]
    exact = np.stack(columns, axis=1)
    bars = {97: 3e-4, 331: 1.5e-5, 1003: 2e-6}
    # Measured 1.6e-4, 5.3e-6 and 7.1e-7; 5e-3, 1.3e-3 and 2.7e-4 with the derivative of a whole free step.
    for steps, bar in bars.items():
        slopes = eqx.filter_jit(jax.jacfwd(simulated(build, steps)))(jnp.asarray(X))
        assert np.max(np.abs(slopes - exact)) < bar * np.max(np.abs(exact)), steps


@pytest.mark.nightly
def test_reverse_mode_and_batches():
    run, x = simulated(plane, 97), jnp.asarray(X)
    forward = eqx.filter_jit(jax.jacfwd(run))(x)
    np.testing.assert_allclose(eqx.filter_jit(jax.jacrev(run))(x), forward, rtol=1e-12)
    batch = jnp.stack([x, x * jnp.array([1.0, 1.2, 0.9]), x * jnp.array([0.3, 1.0, 1.0])])
    slopes = eqx.filter_jit(jax.vmap(jax.jacrev(run)))(batch)
    np.testing.assert_allclose(slopes[0], forward, rtol=1e-12)
    np.testing.assert_allclose(slopes[2], 0, atol=1e-20)  # held until the end


@pytest.mark.slow
@pytest.mark.parametrize("since", [0, nightly(40)], ids=["from the start", "from a grid point on"])
def test_a_force_that_jumps_has_no_share(since):
    """A constant force of 3 N against a friction of 1.1 N: exact, as a step is free in all of its length."""
    steps = 97

    def run(x):
        force, limit, m = x
        begins = since * (END / steps) - 1e-9
        system = LagrangianSystem(
            m[None, None], forcing=lambda t, state, args: jnp.where(t >= begins, force, 0.0)[None]
        )
        model = Model(system, Interaction(GapRelation(lambda t, q: q), DryFriction(limit)))
        rest = State(jnp.zeros(1), jnp.zeros(1))
        scheme = Located(MoreauJean())
        dt = END / steps
        return simulate(model, scheme, 0.0, END, dt, rest, saveat=SaveAt.end()).states.v

    # The trapezoidal rule sees half of the force in the step before it begins, too little to slip.
    force, limit, m = X
    t = END * (1 - since / steps)
    known = np.array([t / m, -t / m, -(force - limit) * t / m**2])
    slopes = eqx.filter_jit(jax.jacfwd(run))(jnp.asarray(X))
    tolerance = 1e-12 if since == 0 else 2e-2
    np.testing.assert_allclose(slopes[0], known, rtol=tolerance)
