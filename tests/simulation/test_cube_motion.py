"""A tossed cube: what mechanics and the laws of contact say about every step of many tosses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import RESULTS, MoreauJean, simulate
from diffnsd.laws import CoulombFriction, GapStabilized
from diffnsd.models import cube_state, tossed_cube

LANES, STEPS, H, G, MASS, INERTIA, HALF = 24, 200, 1 / 592, 9.81, 0.37, 8.1e-4, 0.0524


def tosses():
    random = np.random.default_rng(0)
    q = random.normal(size=(LANES, 4))
    position = np.array([0, 0, 0.1]) + np.zeros((LANES, 3))
    velocity = random.normal(size=(LANES, 3)) + [0, 0, -0.5]
    spin = random.normal(size=(LANES, 3)) * 6
    q, position, velocity, spin = map(
        jnp.asarray, (q / np.linalg.norm(q, axis=1, keepdims=True), position, velocity, spin)
    )
    return jax.vmap(cube_state)(position, q, velocity, spin)


def run(integrator, make_law):
    """Every step of all tosses, and `H v + drift` before and after it at its contacts."""

    @eqx.filter_jit
    @jax.vmap
    def program(state, mu, e):
        model = tossed_cube(law=make_law(mu, e))
        solution = simulate(model, integrator, 0.0, STEPS * H, H, state, throw=False)
        relation = model.interactions[0].relation
        group = model.system.group
        before = jax.tree.map(lambda x: x[:-1], solution.states)
        jacobian, _ = jax.vmap(lambda q: relation.linearised(group, 0.0, q))(before.q)
        return solution, jacobian

    mu = np.linspace(0.0, 0.8, LANES)
    # Newton's restitution with friction may add energy (Kane); without it is dissipative.
    e = np.where(mu == 0, 0.6, 0.0)
    e[1:4] = [0.3, 0.6, 0.9]
    solution, jacobian = program(tosses(), jnp.asarray(mu), jnp.asarray(e))
    assert np.all(solution.result == RESULTS.successful)
    return mu, e, jax.tree.map(np.asarray, solution), np.asarray(jacobian)


@pytest.fixture(scope="module")
def plain():
    return run(MoreauJean(theta=0.5), CoulombFriction)


@pytest.fixture(scope="module")
def stabilised():
    return run(MoreauJean(theta=1.0), lambda mu, e: GapStabilized(CoulombFriction(mu, 0.0 * e)))


@pytest.fixture(params=["plain", "stabilised"])
def motion(request):
    return request.getfixturevalue(request.param)


def test_the_tosses_are_hard(motion):
    """Every toss hits the ground, and several corners carry at a time."""
    _, _, solution, _ = motion
    loaded = solution.impulses[0][:, 1:, :, 0] > 1e-9
    assert np.all(np.any(loaded, axis=(1, 2)))
    assert np.max(np.sum(loaded, axis=2)) == 4


def test_every_step_is_solved(motion):
    _, _, solution, _ = motion
    assert np.max(solution.stats.residual) <= 1e-8  # the solver's own tolerance is 1e-9
    assert np.all(solution.stats.failed_step == -1)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(solution.states))


def test_impulses_explain_the_momentum(motion):
    """`M (v1 - v0) = h f + H^T P`, step by step: nothing else acts on the cube."""
    _, _, solution, jacobian = motion
    mass = np.array([MASS] * 3 + [INERTIA] * 3)
    weight = np.array([0, 0, -MASS * G * H, 0, 0, 0])
    given = np.einsum("lsknc,lsck->lsn", jacobian, solution.impulses[0][:, 1:])
    change = mass * np.diff(solution.states.v, axis=1)
    # Measured 1e-16.
    np.testing.assert_allclose(change, weight + given, rtol=0, atol=1e-14)


def test_attitude_follows_the_spin(motion):
    """Quaternions stay of unit length, and their rate is the body's angular velocity."""
    _, _, solution, _ = motion
    q = solution.states.q.orientation[:, :, 0]
    np.testing.assert_allclose(np.sum(q**2, axis=-1), 1, rtol=0, atol=1e-13)
    step = np.linalg.norm(np.diff(q, axis=1), axis=-1)
    spin = np.linalg.norm(solution.states.v[:, :, 3:], axis=-1)
    fastest = np.maximum(spin[:, 1:], spin[:, :-1])
    assert np.all(step <= fastest * H / 2 + 1e-12)


def test_coulombs_law(motion):
    """Cone, no pull, and sliding contacts on the cone with friction against the slip."""
    mu, _, solution, jacobian = motion
    impulse = solution.impulses[0][:, 1:]
    normal, friction = impulse[..., 0], impulse[..., 1:]
    size = np.linalg.norm(friction, axis=-1)
    bound = mu[:, None, None] * normal
    # Measured 2e-9 and 3e-9 N s, of 0.5 N s: the solver's tolerance.
    assert np.all(normal >= -1e-8)
    assert np.all(size <= bound + 1e-8)
    slip = np.einsum("lsknc,lsn->lsck", jacobian, solution.states.v[:, 1:])[..., 1:]
    speed = np.linalg.norm(slip, axis=-1, keepdims=True)
    # Measured 1e-8 N s m/s, of 0.1.
    np.testing.assert_allclose(friction * speed, -bound[..., None] * slip, rtol=0, atol=1e-7)
    assert np.any((normal > 1e-6) & (speed[..., 0] > 1e-3) & (mu[:, None, None] > 0))
    assert np.any((normal > 1e-6) & (speed[..., 0] < 1e-7) & (mu[:, None, None] > 0))


def test_restitution_is_exact(plain):
    """Loaded contacts leave with `u+ = -e u-`, others at least as fast."""
    _, e, solution, jacobian = plain
    v = solution.states.v
    before, after = (
        np.einsum("lsnc,lsn->lsc", jacobian[:, :, 0], part) for part in (v[:, :-1], v[:, 1:])
    )
    rest = after + e[:, None, None] * before
    loaded = solution.impulses[0][:, 1:, :, 0] > 1e-8
    # Measured 3e-9.
    assert np.max(np.abs(rest[loaded])) < 1e-7
    hard = loaded & (before < -0.3)
    assert all(np.any(hard[i]) for i in range(4))  # the lanes that rebound


def test_contacts_take_energy_in_every_step(stabilised):
    """Implicit positions lose `m g^2 h^2 / 2` per step in flight, and contacts never give any."""
    _, _, solution, _ = stabilised
    steps = np.diff(solution.energy.total, axis=1)
    # Measured 1e-10 J, of 0.5 J.
    assert np.max(steps) < 1e-9
    free = np.all(solution.impulses[0][:, 1:] == 0, axis=(2, 3))
    np.testing.assert_allclose(steps[free], -MASS * (G * H) ** 2 / 2, rtol=0, atol=1e-13)


def test_the_midpoint_rule_keeps_energy_in_flight_and_loses_it_in_contact(plain):
    """A lifting contact that gravity closes again may give `m (g h)^2 / 2`: of second order."""
    mu, e, solution, _ = plain
    dissipative = (e == 0) | (mu == 0)
    total = solution.energy.total[dissipative]
    free = np.all(solution.impulses[0][dissipative, 1:] == 0, axis=(2, 3))
    assert np.sum(free) > 100
    steps = np.diff(total, axis=1)
    np.testing.assert_allclose(steps[free], 0, rtol=0, atol=1e-14)
    # Measured 9.8e-6 J, of 0.5 J.
    assert np.max(steps) < MASS * (G * H) ** 2 / 2
    assert np.all(total[:, -1] < 0.9 * total[:, 0])


def test_penetration_of_the_plain_law_is_of_first_order(plain):
    """A corner sinks in by the way it makes in a step, and stays there."""
    _, _, solution, _ = plain
    fastest = np.max(np.linalg.norm(solution.states.v[:, :, :3], axis=-1), axis=1)
    spin = np.max(np.linalg.norm(solution.states.v[:, :, 3:], axis=-1), axis=1)
    deepest = -np.min(solution.gaps[0], axis=(1, 2))
    assert np.all(deepest <= H * (fastest + np.sqrt(3) * HALF * spin))
    assert np.max(deepest) > 5e-4  # measured 3 mm


def test_the_gap_stabilised_law_does_not_penetrate(stabilised):
    """At four steps per frame of 1/148 s; what is left is the curvature of a corner's path."""
    _, _, solution, _ = stabilised
    spin = np.max(np.linalg.norm(solution.states.v[:, :, 3:], axis=-1))
    deepest = -np.min(solution.gaps[0])
    # Measured 0.03 mm; the bound allows for a few steps on one edge.
    assert deepest <= 3 * np.sqrt(3) * HALF * (spin * H) ** 2
    assert deepest < 5e-4


def test_the_cube_comes_to_rest(stabilised):
    """The ones that had time lie on a face, with the weight as the sum of their impulses."""
    _, _, solution, _ = stabilised
    speed = np.linalg.norm(solution.states.v[:, -1], axis=1)
    rests = speed < 1e-6
    assert np.sum(rests) >= 3
    np.testing.assert_allclose(solution.states.q.position[rests, -1, 0, 2], HALF, rtol=0, atol=2e-4)
    carried = np.sum(solution.impulses[0][rests, -1, :, 0], axis=1)
    np.testing.assert_allclose(carried, MASS * G * H, rtol=1e-6)
