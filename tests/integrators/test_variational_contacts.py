"""Variational integrators with constraints, contact and impact."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import RESULTS, Interaction, Model, State, simulate
from diffnsd.groups import SO3, rotation_matrix
from diffnsd.integrators import ElasticImpact, Galerkin, LieVariational, TripleJump
from diffnsd.laws import Equality, GapStabilized, NewtonImpact
from diffnsd.models import (
    ball_state,
    block_state,
    block_stop_distance,
    bouncing_ball,
    sliding_block,
    spherical_pendulum,
    tippe_top,
    tippe_top_axis,
    tippe_top_jellett,
    tippe_top_state,
)
from diffnsd.relations import GapRelation
from diffnsd.simulation import SaveAt
from diffnsd.systems import LagrangianSystem

run = eqx.filter_jit(simulate)


def pendulum_start():
    return State(jnp.array([np.sin(1.0), 0.0, -np.cos(1.0)]), jnp.array([0.0, 0.75, 0.0]))


@pytest.mark.parametrize(
    "integrator", [LieVariational(), TripleJump(LieVariational())], ids=["RATTLE", "triple jump"]
)
def test_a_constraint_is_held_and_orders(integrator):
    """Position and velocity on the sphere to rounding, the angular momentum about the vertical."""
    model, start = spherical_pendulum(g=1.0), pendulum_start()
    finest = run(model, TripleJump(LieVariational()), 0.0, 2.0, 2 / 400, start).states
    ends = []
    for steps in (50, 100):
        states = run(model, integrator, 0.0, 2.0, 2 / steps, start).states
        ends.append(np.max(np.abs(states.q[-1] - finest.q[-1])))
        q, v = np.asarray(states.q), np.asarray(states.v)
        # Measured 2e-16, 9e-17, 2e-15.
        assert np.max(np.abs(np.sum(q * q, axis=1) - 1)) < 2e-15
        assert np.max(np.abs(np.sum(q * v, axis=1))) < 1e-15
        spin = q[:, 0] * v[:, 1] - q[:, 1] * v[:, 0]
        np.testing.assert_allclose(spin, spin[0], rtol=0, atol=2e-14)
    # Measured 2.00 and 4.02.
    np.testing.assert_allclose(np.log2(ends[0] / ends[1]), integrator.order, atol=0.1)


def tip(t, q):
    """Height of a point of a body that is turned about a fixed point."""
    del t
    return (rotation_matrix(q)[2, 0])[None]


def test_a_joint_on_a_group():
    """A body whose first axis stays horizontal: a bilateral constraint on rotations."""
    joint = Interaction(GapRelation(tip), Equality())
    model = Model(LagrangianSystem(np.diag([1.0, 2.0, 3.0]), space=SO3()), joint)
    start = State(SO3().identity(), jnp.array([0.5, 0.0, 1.0]))
    solution = run(model, LieVariational(), 0.0, 5.0, 0.05, start)
    assert np.max(np.abs(solution.gaps[0])) < 1e-13  # measured 6e-17
    total = np.asarray(solution.energy.total)
    assert np.max(np.abs(total / total[0] - 1)) < 5e-4


def test_an_elastic_ball_keeps_its_energy():
    solution = run(bouncing_ball(e=1.0), LieVariational(), 0.0, 10.0, 0.01, ball_state(0.0))
    total = np.asarray(solution.energy.total)
    np.testing.assert_allclose(total, total[0], rtol=1e-13)  # measured 2e-15 over 22 impacts


@pytest.mark.parametrize("e", [0.0, 0.5])
@pytest.mark.parametrize("stabilized", [False, True])
def test_a_ball_comes_to_rest(e, stabilized):
    law = GapStabilized(NewtonImpact(e)) if stabilized else NewtonImpact(e)
    model, h = bouncing_ball(law=law), 2e-3
    solution = run(model, LieVariational(), 0.0, 3.0, h, ball_state(0.0))
    np.testing.assert_array_equal(solution.states.v[-1], 0.0)
    np.testing.assert_allclose(solution.impulses[0][-1, 0, 0], 9.81 * h, rtol=1e-12)
    penetration = -float(np.min(solution.gaps[0]))
    assert penetration < (1e-14 if stabilized else 4.5 * h)
    exact = ball_state(1.0, e=e)
    # First order through impacts; measured 9e-3 at most.
    np.testing.assert_allclose(solution.states.q[500], exact.q, rtol=0, atol=2e-2)


def test_values_converge_through_impacts():
    exact, errors = ball_state(1.0, e=0.5), []
    for h in (1e-2, 1e-3):
        states = run(bouncing_ball(e=0.5), LieVariational(), 0.0, 1.0, h, ball_state(0.0)).states
        errors.append(float(jnp.abs(states.q[-1] - exact.q)[0]))
    assert errors[1] < errors[0] / 5  # measured 2.0e-2, 2.2e-3


@pytest.mark.parametrize("integrator", [LieVariational(), Galerkin(2)], ids=["lie", "galerkin"])
def test_a_sliding_block_stops_and_sticks(integrator):
    solution = run(sliding_block(0.3), integrator, 0.0, 1.0, 5e-3, block_state(0.0, 2.0))
    # Measured 7e-6 beside a distance of 0.68.
    np.testing.assert_allclose(
        solution.states.q[-1, 0], block_stop_distance(2.0, 0.3), rtol=0, atol=1e-4
    )
    assert np.max(np.abs(solution.states.v[-1])) < 1e-8
    impulse = np.asarray(solution.impulses[0])[:, 0]
    assert np.all(np.hypot(impulse[:, 1], impulse[:, 2]) <= 0.3 * impulse[:, 0] + 1e-9)


@pytest.mark.slow
def test_a_tippe_top_turns_over_and_keeps_its_jellett_constant():
    model, start = tippe_top(), tippe_top_state()
    solution = run(model, LieVariational(), 0.0, 1.2, 2e-3, start, saveat=SaveAt(20))
    constant = jax.vmap(lambda s: tippe_top_jellett(model, s))(solution.states)
    np.testing.assert_allclose(constant, tippe_top_jellett(model, start), rtol=1e-9)
    axis = np.asarray(jax.vmap(tippe_top_axis)(solution.states))
    assert axis[0] > 0.99 and axis[-1] < -0.5  # on its head
    assert np.all(np.diff(solution.energy.total) < 1e-9)
    assert np.max(np.abs(solution.gaps[0])) < 1e-4


def test_elastic_impacts_of_the_discrete_action():
    """Errors depend on where the impacts fall in their steps: a mean order over a wide range."""
    model, start, exact, errors = bouncing_ball(e=1.0), ball_state(0.0), ball_state(3.0, e=1.0), []
    for h in (0.05, 0.003125):
        solution = run(model, ElasticImpact(), 0.0, 3.0, h, start)
        errors.append(float(jnp.abs(solution.states.q[-1] - exact.q)[0]))
        assert np.min(solution.gaps[0]) > 0
    assert np.log(errors[0] / errors[1]) / np.log(16) > 2  # measured 3.0
    total = np.asarray(solution.energy.total)
    assert np.max(np.abs(total / total[0] - 1)) < 1e-5  # measured 3e-6


def test_elastic_impacts_do_not_drift():
    solution = run(
        bouncing_ball(e=1.0), ElasticImpact(), 0.0, 1000.0, 0.1, ball_state(0.0), saveat=SaveAt(10)
    )
    error = np.abs(np.asarray(solution.energy.total) / 9.81 - 1)
    first, last = np.max(error[:500]), np.max(error[500:])
    assert last < 1.5 * first < 0.1


def test_elastic_impacts_have_true_derivatives():
    """The derivative of the impact time is in them, which plain time stepping loses."""

    def height(h):
        start = ball_state(0.0, height=h)
        return simulate(
            bouncing_ball(e=1.0), ElasticImpact(), 0.0, 1.0, 2e-3, start, saveat=SaveAt.end()
        ).states.q[0]

    slope = eqx.filter_jit(jax.grad(height))(1.0)
    exact = jax.grad(lambda h: ball_state(1.0, height=h, e=1.0).q[0])(1.0)
    np.testing.assert_allclose(slope, exact, rtol=2e-3)


@pytest.mark.parametrize(
    ("integrator", "law", "words"),
    [
        (ElasticImpact(), NewtonImpact(0.9), "NewtonImpact"),
        (ElasticImpact(), Equality(), "NewtonImpact"),
        (TripleJump(LieVariational()), NewtonImpact(0.9), "backwards"),
        (TripleJump(ElasticImpact()), Equality(), "forwards"),
    ],
)
def test_combinations_that_are_refused(integrator, law, words):
    with pytest.raises(ValueError, match=words):
        simulate(bouncing_ball(law=law), integrator, 0.0, 1.0, 0.1, ball_state(0.0))


def test_a_step_of_traced_length():
    """What a method that cuts steps needs: any length, zero included, and its derivative."""
    model, integrator, start = bouncing_ball(e=0.5), LieVariational(), ball_state(0.0)

    def after(h):
        carry = integrator.init(model, 0.0, start, None)
        state, _, _, result = integrator.step(model, jnp.zeros(()), h, start, carry, None)
        return state.q[0], result

    (height, result), slope = eqx.filter_jit(jax.value_and_grad(after, has_aux=True))(
        jnp.asarray(0.1)
    )
    assert result == RESULTS.successful
    np.testing.assert_allclose([height, slope], [1 - 9.81 * 0.005, -0.981], rtol=1e-14)
    (height, _), slope = eqx.filter_jit(jax.value_and_grad(after, has_aux=True))(jnp.zeros(()))
    np.testing.assert_allclose([height, slope], [1.0, 0.0], atol=1e-15)
