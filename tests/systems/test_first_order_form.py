"""Rates of the state and their derivative, impulses, and forces between bodies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import Pose, State
from diffnsd.systems import (
    LagrangianSystem,
    NewtonEulerSystem,
    SpringDamper,
    Wrenches,
    state_rate,
    state_rate_jacobian,
    velocity_after,
    wrench_at,
)

T0 = jnp.zeros(())


def test_the_jacobian_knows_the_mass_matrix():
    """`M = 1 + q²`, `F = −k q − c v`: all entries in closed form, that of M⁻¹ included."""
    system = LagrangianSystem(
        lambda q: (1 + q**2)[None], f_int=lambda t, q, v: 3.0 * q + 0.2 * v, n=1
    )
    q, v, p = 0.7, -0.4, 1.1
    state, push = State(jnp.array([q]), jnp.array([v])), jnp.array([p])
    rate = state_rate(system, T0, state, None, push)
    force, mass = -3.0 * q - 0.2 * v + p, 1 + q**2
    np.testing.assert_allclose(rate, [v, force / mass], rtol=1e-15)
    jacobian = eqx.filter_jit(lambda s: state_rate_jacobian(system, T0, s, None, push))(state)
    slope = -3.0 / mass - 2 * q * force / mass**2
    np.testing.assert_allclose(jacobian, [[0, 1], [slope, -0.2 / mass]], rtol=1e-14)
    np.testing.assert_allclose(velocity_after(system, T0, state, push), [v + p / mass], rtol=1e-15)


def test_linear_systems():
    random = np.random.default_rng(2)
    k, c = random.normal(size=(2, 3, 3))
    k = k + k.T
    mass = np.diag([1.0, 2.0, 0.5])
    full = LagrangianSystem.linear(mass, c, k, f_ext=[1.0, 0.0, 0.0])
    state = State(jnp.asarray(random.normal(size=3)), jnp.asarray(random.normal(size=3)))
    wanted = np.array([1.0, 0, 0]) - c @ state.v - k @ state.q
    np.testing.assert_allclose(full.force(T0, state, None), wanted, rtol=0, atol=1e-14)
    energy = state.q @ k @ state.q / 2 - state.q[0]
    np.testing.assert_allclose(full.potential(T0, state.q), energy, rtol=1e-13)
    modal = LagrangianSystem.linear([1.0, 2.0, 0.5], [0.1, 0.2, 0.3], [3.0, 4.0, 5.0])
    np.testing.assert_array_equal(modal.mass(T0, state.q), mass)
    wanted = -np.array([0.1, 0.2, 0.3]) * state.v - np.array([3.0, 4.0, 5.0]) * state.q
    np.testing.assert_allclose(modal.force(T0, state, None), wanted, rtol=1e-14)


def test_springs_between_bodies():
    """Their power is the loss of elastic energy and the heat of the damper; forces are opposite."""
    random = np.random.default_rng(5)
    turn = random.normal(size=(2, 4))
    turn /= np.linalg.norm(turn, axis=1, keepdims=True)
    state = State(
        Pose(jnp.asarray(random.normal(size=(2, 3))), jnp.asarray(turn)),
        jnp.asarray(random.normal(size=12)),
    )
    spring = SpringDamper([0.1, 0.2, 0.0], [0.0, -0.3, 0.4], 30.0, 0.7, 0.5, body1=0, body2=1)
    group = NewtonEulerSystem([1.0, 2.0], np.ones((2, 3))).group
    undamped = SpringDamper([0.1, 0.2, 0.0], [0.0, -0.3, 0.4], 30.0, 0.0, 0.5, body1=0, body2=1)
    wrench = np.asarray(spring(T0, state, None))
    np.testing.assert_allclose(wrench[0, :3], -wrench[1, :3], rtol=1e-14)

    def stretch(s):
        q = group.compose(state.q, group.exp(s * state.v))
        ends = [
            q.position[i] + _rotation(q.orientation[i]) @ jnp.asarray(point)
            for i, point in enumerate(([0.1, 0.2, 0.0], [0.0, -0.3, 0.4]))
        ]
        return jnp.sqrt(jnp.sum((ends[0] - ends[1]) ** 2))

    length, rate = eqx.filter_jit(lambda: jax.jvp(stretch, (0.0,), (1.0,)))()
    power = np.sum(wrench.reshape(-1) * state.v)
    np.testing.assert_allclose(power, -30.0 * (length - 0.5) * rate - 0.7 * rate**2, rtol=1e-12)
    both = Wrenches((undamped, spring))(T0, state, None)
    np.testing.assert_allclose(both, wrench + undamped(T0, state, None), rtol=1e-14)
    # A couple in the world frame does the work that it should.
    couple, centre = jnp.array([0.3, -0.1, 0.5]), state.q.position[1]
    alone = wrench_at(state, 1, centre, jnp.zeros(3), couple).reshape(-1)
    spin = _rotation(state.q.orientation[1]) @ state.v[9:]
    np.testing.assert_allclose(alone @ state.v, couple @ spin, rtol=1e-13)


def _rotation(p):
    w, (x, y, z) = p[0], p[1:]
    return jnp.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
