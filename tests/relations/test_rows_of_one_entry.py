"""Limits and friction of single coordinates: rows with one entry, against the same rows as arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly, slow

from diffnsd import Interaction, Model, MoreauJean, SaveAt, State, simulate
from diffnsd._block_rows import CoordinateRows
from diffnsd.groups import Euclidean, RotationVectors
from diffnsd.groups._joint_space import JointSpace
from diffnsd.laws import DryFriction, NewtonImpact
from diffnsd.relations import (
    Coordinates,
    GapRelation,
    JointLimits,
    PrescribedVelocity,
    RateRelation,
)
from diffnsd.systems import LagrangianSystem

LIMITS = JointLimits(Coordinates([1, 2]), jnp.array([-0.4, -0.3]), jnp.array([0.5, 0.2]))
MASS = jnp.array([[2.0, 0.3, 0.1], [0.3, 1.5, 0.4], [0.1, 0.4, 1.0]])


def hidden(function):
    """The same function, of which nothing is known."""
    return lambda t, q: function(t, q)


@pytest.mark.parametrize(
    ("group", "index", "columns"),
    [
        (Euclidean(4), [3, 0], (3, 0)),
        # A quaternion before an angle shifts it by one.
        (JointSpace(7, (3,)), [0, 2], (0, 2)),
        (JointSpace(8, (3,)), [8, 1, 7], (7, 1, 6)),
        (JointSpace(8, (0, 4)), [4, 9], (3, 7)),
        (JointSpace(8, (3,), RotationVectors()), [7, 1], (7, 1)),
    ],
)
def test_rows_are_the_jacobian_of_the_gap(group, index, columns):
    q = group.exp(0.3 * jnp.arange(1.0, group.dim + 1))
    limits = JointLimits(Coordinates(index), -1.0, 1.0)
    seen = GapRelation(limits).observe(group, jnp.zeros(()), q)
    dense = GapRelation(hidden(limits)).observe(group, jnp.zeros(()), q)
    assert isinstance(seen.H, CoordinateRows) and not isinstance(dense.H, CoordinateRows)
    assert seen.H.columns == (*columns, *columns)
    np.testing.assert_array_equal(seen.dense(), dense.H)
    v, z = jnp.arange(1.0, group.dim + 1), jnp.arange(1.0, 2 * len(index) + 1)[None]
    np.testing.assert_allclose(seen.velocity(v), dense.velocity(v), rtol=1e-15)
    np.testing.assert_allclose(seen.H.gather(z), jnp.einsum("knc,kc->n", dense.H, z), rtol=1e-15)
    np.testing.assert_array_equal(seen.H.entries().dense(), dense.H)


def test_entries_of_quaternions_have_no_column_of_their_own():
    group = JointSpace(7, (3,))
    assert Coordinates([0, 4]).own_columns(group) is None
    rows = GapRelation(JointLimits(Coordinates(4), -1.0, 1.0)).observe(
        group, jnp.zeros(()), group.identity()
    )
    assert rows.H.shape == (1, 7, 2)


@pytest.mark.parametrize(
    "relation", [RateRelation(Coordinates([2, 0])), PrescribedVelocity([2, 0], 0.3)]
)
def test_rates_of_coordinates(relation):
    group, v = Euclidean(3), jnp.array([1.0, 2.0, 3.0])
    seen = relation.observe(group, jnp.zeros(()), jnp.zeros(3))
    assert seen.H.columns == (2, 0)
    expected = relation.output(group, jnp.zeros(()), State(jnp.zeros(3), v), None).T
    np.testing.assert_array_equal(seen.velocity(v), expected)


def swung(known: bool):
    """Three coupled masses between stops and in friction; the positions at the end by the start."""
    limits = LIMITS if known else hidden(LIMITS)
    rubbing = Coordinates([0, 2]) if known else hidden(Coordinates([0, 2]))
    system = LagrangianSystem(MASS, forcing=lambda t, state, args: -3.0 * state.q)
    model = Model(
        system,
        [
            Interaction(GapRelation(limits), NewtonImpact(0.6)),
            Interaction(RateRelation(rubbing), DryFriction(jnp.array([0.2, 0.1]))),
        ],
    )

    def run(v):
        state = State(jnp.array([0.3, -0.1, 0.1]), v)
        end = SaveAt.end()
        return simulate(model, MoreauJean(), 0.0, 1.0, 0.01, state, saveat=end).states.q

    return run


@pytest.mark.parametrize("batch", [nightly(None), slow(24)])
def test_motion_and_derivatives_are_those_of_arrays(batch):
    """Largest differences measured: 6e-16 in positions, 1.1e-16 in derivatives of up to 0.78."""
    v = jnp.array([1.0, -2.0, 1.5])
    if batch:
        v = v[None] + 0.3 * jax.random.normal(jax.random.key(1), (batch, 3))

    def both(known):
        def evaluate(v):
            q, pull = jax.vjp(swung(known), v)
            return q, pull(jnp.array([1.0, 0.5, -0.7]))[0]

        return eqx.filter_jit(jax.vmap(evaluate) if batch else evaluate)(v)

    (q, dq), (q_dense, dq_dense) = both(True), both(False)
    assert np.max(np.abs(dq)) > 0.1
    np.testing.assert_allclose(q, q_dense, atol=1e-13)
    np.testing.assert_allclose(dq, dq_dense, atol=1e-13)
