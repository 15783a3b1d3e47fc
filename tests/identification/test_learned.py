"""Learned parts of a model, trained with Optax through contact: a residual force, and a surface."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import diffnsd as nsd
from diffnsd import identification, models, shapes
from diffnsd.relations import Geom, shape_contacts

MU, G, DT, FRAMES, SUBSTEPS = 0.2, 9.81, 0.02, 25, 2


def trained(module, loss, steps, rate):
    """The module after some steps of Adam, and its first and last loss."""
    arrays, rest = eqx.partition(module, eqx.is_array)
    fit = identification.fit(
        lambda arrays: loss(eqx.combine(arrays, rest)),
        arrays,
        optax.adam(rate),
        max_steps=steps,
        throw=False,
    )
    return eqx.combine(fit.params, rest), float(fit.history.loss[0]), fit.loss


class Drag(eqx.Module):
    """A force along the path of a block as a function of its speed, zero at the start of the training."""

    network: eqx.nn.MLP

    def __call__(self, t, state, args):
        size = 0.1 * self.network(state.v[0])
        return jnp.stack([size, 0.0, 0.0])


def drag(v):
    """The force that the physics lacks [N], of a block of 1 kg."""
    return -0.4 * v**2


def slides(force, speed):
    system = nsd.LagrangianSystem(jnp.eye(3), f_ext=-G * jnp.array([0.0, 0.0, 1.0]), forcing=force)
    model = nsd.Model(system, models.sliding_block(MU).interactions)
    start = models.block_state(0.0, speed)
    saved = nsd.SaveAt(steps=SUBSTEPS)
    run = nsd.simulate(
        model, nsd.MoreauJean(), 0.0, FRAMES * DT, DT / SUBSTEPS, start, saveat=saved, throw=False
    )
    return run.states.q[1:, 0]


def true_places(v, parts=100):
    """The block with drag: Newton's equation in steps of 0.2 ms, second order."""
    x, track, h = 0.0, [], DT / parts

    def slower(v):
        return max(v + h * (drag(v + h / 2 * (drag(v) - MU * G)) - MU * G), 0.0)

    for _ in range(FRAMES):
        for _ in range(parts):
            after = slower(v)
            x, v = x + h * (v + after) / 2, after
        track.append(x)
    return track


@pytest.mark.slow
def test_a_residual_force_is_learned_from_blocks_that_slide_to_rest():
    speeds = np.array([0.6, 1.2, 1.8, 2.4])
    measured = np.array([true_places(v) for v in speeds])

    def loss(force):
        found = jax.vmap(lambda v: slides(force, v))(jnp.asarray(speeds))
        return jnp.mean(((found - measured) / 0.01) ** 2)

    start = Drag(eqx.nn.MLP("scalar", "scalar", 8, 1, jnp.tanh, key=jax.random.key(0)))
    force, before, after = trained(start, loss, 300, 0.05)
    seen = np.linspace(0.4, 2.2, 10)
    learned = 0.1 * np.array([force.network(jnp.asarray(v)) for v in seen])
    # Measured: the loss falls to 2e-4 of the first, the force is 0.10 N off, of 1.94 N.
    assert after < 1e-2 * before
    assert np.abs(learned - drag(seen)).max() < 0.15


class Terrain(eqx.Module):
    """The solid below a height [m] over `x` that is a sum of bumps, flat at the start of the training."""

    heights: jax.Array

    def __call__(self, x):
        places = np.linspace(-0.8, 0.8, 9)
        return x[2] - jnp.sum(self.heights * jnp.exp(-(((x[0] - places) / 0.2) ** 2)))


def rolls(terrain, start):
    """Places of the centre of a ball of 5 cm without friction on the terrain, from a place and a velocity."""
    geoms = Geom(shapes.Sphere(0.05), body=0), Geom(shapes.Implicit(terrain))
    ball = nsd.NewtonEulerSystem(1.0, 1e-3)
    model = nsd.Model(ball, nsd.Interaction(shape_contacts([geoms]), nsd.NewtonImpact(0.0)))
    x, v = start
    state = ball.state(
        jnp.stack([x, jnp.zeros(()), 0.06 - terrain(jnp.stack([x, x, 0 * x]))]),
        velocity=jnp.stack([v, 0 * v, 0 * v]),
    )
    saved = nsd.SaveAt(steps=SUBSTEPS)
    run = nsd.simulate(
        model, nsd.MoreauJean(), 0.0, FRAMES * DT, DT / SUBSTEPS, state, saveat=saved, throw=False
    )
    return run.states.q.position[1:, 0, :]


@pytest.mark.slow
def test_a_surface_is_learned_from_balls_that_roll_on_it():
    true = Terrain(0.05 * jnp.asarray(np.random.default_rng(0).normal(size=9)))
    starts = jnp.array([[-0.6, 1.0], [0.6, -1.0], [0.0, 0.8], [0.0, -0.8]])
    follow = eqx.filter_jit(jax.vmap(rolls, (None, 0)))
    measured = follow(true, starts)

    def loss(terrain):
        return jnp.mean(((jax.vmap(rolls, (None, 0))(terrain, starts) - measured) / 0.01) ** 2)

    terrain, before, after = trained(Terrain(jnp.zeros(9)), loss, 100, 0.01)
    # Measured: the loss falls from 37 to 0.013; heights of 7 cm are 8 mm off where balls pass, 38 outside.
    assert after < 1e-2 * before
    assert jnp.abs(terrain.heights - true.heights)[1:7].max() < 0.01
