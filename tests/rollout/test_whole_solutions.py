"""Rollouts of whole solutions: results, statistics and missing gaps pass through, lane by lane."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import RESULTS, Interaction, Model, MoreauJean, State, simulate
from diffnsd.laws import Complementarity, Equality
from diffnsd.relations import AbstractRelation, GapRelation
from diffnsd.rollout import rollout
from diffnsd.systems import LagrangianSystem


class Held(AbstractRelation):
    """The second coordinate does not move: an equality without a gap."""

    @property
    def rows(self):
        return 1

    def gap(self, t, q):
        return None

    def output(self, group, t, state, lam):
        return state.v[1:][:, None]


def closing_walls(t, q):
    """Two walls at the distance `1 - t` from the middle: beyond t = 1 there is no solution."""
    return jnp.stack([q[0] - (t - 1), (1 - t) - q[0]])


def lane(given):
    end, speed = given
    walls = Interaction(GapRelation(lambda t, q: closing_walls(t / end, q)), Complementarity())
    model = Model(LagrangianSystem(np.eye(2)), (Interaction(Held(), Equality()), walls))
    start = State(jnp.zeros(2), speed * jnp.array([1.0, 1.0]))
    return simulate(model, MoreauJean(), 0.0, 1.0, 0.1, start, throw=False)


BATCH = jnp.array([5.0, 0.5, 4.0, 3.0, 0.7]), jnp.linspace(0.0, 0.2, 5)


@pytest.fixture(scope="module")
def alone():
    single = jax.jit(lane)
    return [single(jax.tree.map(lambda x, i=i: x[i], BATCH)) for i in range(5)]


@pytest.mark.parametrize("chunk", [None, 2, 100])
def test_every_lane_is_as_alone(chunk, alone):
    """Lanes that have no solution say so, and the others are as if these were not there."""
    out = rollout(lane, BATCH, chunk=chunk)
    fine = [True, False, True, True, False]
    np.testing.assert_array_equal(out.result == RESULTS.successful, fine)
    np.testing.assert_array_equal(np.asarray(out.stats.failed_step) >= 0, np.logical_not(fine))
    assert out.gaps[0] is None and out.gaps[1].shape == (5, 11, 2)
    for i in np.flatnonzero(fine):
        for name in ("states", "impulses", "gaps", "energy"):
            jax.tree.map(
                lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=0, atol=1e-13),
                getattr(out, name),
                getattr(alone[i], name),
            )
    # The held coordinate never moves after the first step, in any lane that is solved.
    held = np.asarray(out.states.v)[fine, 1:, 1]
    np.testing.assert_allclose(held, 0, rtol=0, atol=1e-12)


def test_a_batch_without_lanes():
    """An empty batch gives empty outputs of the right shapes."""
    out = rollout(lambda x: 2 * x[0], (jnp.zeros((0, 3)),))
    assert out.shape == (0, 3)


@pytest.mark.parametrize("batch", [jnp.asarray(1.0), (jnp.ones(3), 2.0), ()])
def test_what_is_not_a_batch_is_refused(batch):
    with pytest.raises(ValueError, match="share one leading axis"):
        rollout(lambda x: x, batch)
