"""The sliding block against its closed form: values, the stop, and the gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from diffnsd._types import State
from diffnsd.integrators import MoreauJean
from diffnsd.laws import CoulombFriction, GapStabilized
from diffnsd.models import block_state, block_stop_distance, block_stop_time, sliding_block
from diffnsd.simulation import SaveAt, simulate

DT = 1e-3


def run(start, mu, saveat=None):
    return simulate(sliding_block(mu), MoreauJean(), 0.0, 0.9, DT, start, saveat=saveat)


def test_the_closed_form():
    stop = float(block_stop_time(2.0, 0.3))
    before, after = block_state(stop - 1e-9, 2.0), block_state(stop + 0.1, 2.0)
    distance = block_stop_distance(2.0, 0.3)
    np.testing.assert_allclose([before.q[0], after.q[0]], [distance, distance], atol=1e-8)
    np.testing.assert_allclose([before.v[0], after.v[0]], [0.0, 0.0], atol=1e-8)
    rate = jax.jvp(lambda t: block_state(t, 2.0).q, (0.2,), (1.0,))[1]
    np.testing.assert_allclose(rate, block_state(0.2, 2.0).v, atol=1e-12)


def test_motion_and_stop():
    solution = run(block_state(0.0, 2.0), 0.3)
    exact = jax.vmap(lambda t: block_state(t, 2.0))(solution.ts)
    g_step = 9.81 * DT
    # The scheme is exact until the step of the stop: there at most mu g dt²/8.
    assert np.max(np.abs(solution.states.q[:, 0] - exact.q[:, 0])) < 0.3 * g_step * DT / 8 + 1e-12
    assert np.max(np.abs(solution.states.v[:, 0] - exact.v[:, 0])) < 1e-8
    stopped = np.asarray(solution.ts) > block_stop_time(2.0, 0.3) + DT
    assert np.max(np.abs(solution.states.v[stopped])) < 1e-9
    # While it slides, friction is on the cone and against the motion.
    normal, along, _ = np.asarray(solution.impulses[0][1:, 0]).T
    sliding = ~stopped[1:] & (np.asarray(solution.ts[1:]) < block_stop_time(2.0, 0.3))
    np.testing.assert_allclose(along[sliding], -0.3 * normal[sliding], rtol=1e-8)
    assert np.all(np.hypot(along, 0) <= 0.3 * normal * (1 + 1e-8))


def test_gradient_and_direction():
    """The distance and its derivatives, along x and along an oblique direction."""

    @jax.jit
    def distance(speed, mu, angle):
        zero = jnp.zeros_like(speed)
        v = speed * jnp.stack([jnp.cos(angle), jnp.sin(angle), zero])
        end = run(State(jnp.zeros(3), v), mu, SaveAt.end()).states.q
        return jnp.sqrt(end[0] ** 2 + end[1] ** 2)

    derivative = jax.jit(jax.value_and_grad(distance, argnums=(0, 1)))
    exact = jax.grad(block_stop_distance, argnums=(0, 1))(2.0, 0.3)
    for angle in (0.0, 0.7):
        value, gradient = derivative(jnp.asarray(2.0), jnp.asarray(0.3), jnp.asarray(angle))
        np.testing.assert_allclose(value, block_stop_distance(2.0, 0.3), rtol=1e-5)
        np.testing.assert_allclose(gradient, exact, rtol=2e-3)  # 1.2e-4 and 2.3e-4 measured


def test_landing_without_rebound_under_the_gap_stabilised_law():
    """Dropped from a height with speed along x: the derivative passes through the landing.

    It lands at t = sqrt(2 h/g) and loses mu g t of its speed there, so that at T it is at
    `v t + (v − mu g t)(T − t) − mu g (T − t)²/2`, with the derivative mu with respect to h.
    """
    mu, end = 0.1, 0.6

    def final(height):
        law = GapStabilized(CoulombFriction(jnp.asarray(mu)))
        start = State(
            height * jnp.array([0.0, 0.0, 1.0]), jnp.array([3.0, 0.0, 0.0], dtype=height.dtype)
        )
        model, method = sliding_block(law=law), MoreauJean(theta=1.0)
        state = simulate(model, method, 0.0, end, 1e-3, start, saveat=SaveAt.end()).states
        return jnp.stack([state.q[0], state.v[0]])

    def exact(height):
        t = jnp.sqrt(2 * height / 9.81)
        v, rest = 3.0 - mu * 9.81 * t, end - t
        return jnp.stack([3.0 * t + v * rest - mu * 9.81 * rest**2 / 2, v - mu * 9.81 * rest])

    one = jnp.ones(())
    value, slope = jax.jvp(final, (one,), (one,))
    known, known_slope = jax.jvp(exact, (one,), (one,))
    np.testing.assert_allclose(value, known, atol=1e-3)
    np.testing.assert_allclose(slope, known_slope, atol=1e-8)
    np.testing.assert_allclose(known_slope, [mu, 0.0], atol=1e-12)
