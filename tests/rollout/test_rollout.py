"""Rollouts equal a loop over lanes, whatever the chunks and wherever they run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import models
from diffnsd.integrators import MoreauJean
from diffnsd.rollout import rollout
from diffnsd.simulation import SaveAt, simulate


def stop(lane):
    mu, speed = lane
    run = simulate(
        models.sliding_block(mu=mu),
        MoreauJean(),
        0.0,
        0.2,
        1e-2,
        models.block_state(0.0, speed=speed),
        saveat=SaveAt.end(),
        throw=False,
    )
    return run.states.q[0]


@pytest.fixture(scope="module")
def batch():
    return jnp.linspace(0.1, 0.5, 7), jnp.linspace(1.0, 2.0, 7)


@pytest.fixture(scope="module")
def one_by_one(batch):
    single = jax.jit(stop)
    return np.array([single((m, s)) for m, s in zip(*batch, strict=True)])


@pytest.mark.parametrize("chunk", [None, 3])
def test_equals_a_loop(batch, one_by_one, chunk):
    np.testing.assert_allclose(rollout(stop, batch, chunk=chunk), one_by_one, atol=1e-12)


def test_inside_jit_and_grad(batch, one_by_one):
    inside = jax.jit(lambda b: rollout(stop, b, chunk=3))(batch)
    np.testing.assert_allclose(inside, one_by_one, atol=1e-12)
    total = jax.jit(jax.grad(lambda b: jnp.sum(rollout(stop, b))))(batch)
    mapped = rollout(jax.grad(stop), batch)
    for a, b in zip(total, mapped, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


def test_on_a_mesh(batch, one_by_one):
    mesh = jax.make_mesh((1,), ("lane",), axis_types=(jax.sharding.AxisType.Auto,))
    np.testing.assert_allclose(rollout(stop, batch, mesh=mesh), one_by_one, atol=1e-12)


def test_leaves_of_different_length_are_refused():
    with pytest.raises(ValueError, match="leading axis"):
        rollout(stop, (jnp.ones(3), jnp.ones(4)))
