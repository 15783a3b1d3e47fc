"""The solver starts from the impulses of the steps before, and follows their trend."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import MoreauJean
from diffnsd.integrators._selection import Selection
from diffnsd.integrators._warm_start import Recent
from diffnsd.models import cube_state, tossed_cube


def test_only_smooth_changes_are_continued():
    before = jnp.array([[1.0, 0.1], [1.0, 0.1], [1.0, 0.1], [0.0, 0.0], [1.0, 0.2]])
    last = jnp.array([[1.02, 0.11], [1.0 + 1e-9, 0.1], [2.0, 0.1], [1.0, 0.1], [0.0, 0.0]])
    guess = Recent(last, before).guess(Selection(None))
    np.testing.assert_allclose(guess[0], [1.04, 0.12], rtol=1e-14)
    np.testing.assert_array_equal(
        guess[1:], last[1:]
    )  # rounding, a jump, a contact that closed, one that opened


@eqx.filter_jit
def slide(state, trend):
    """80 steps of a cube that slides and spins on its face; iterations in each."""
    model, method, h = tossed_cube(mu=0.18), MoreauJean(theta=1.0), 1 / 148
    memory = method.init(model, jnp.zeros(()), state, None)

    def step(run, i):
        state, memory = run
        memory = tuple(Recent(m.last, jnp.where(trend, m.before, m.last)) for m in memory)
        state, info, memory, _ = method.step(model, i * h, jnp.asarray(h), state, memory, None)
        return (state, memory), info.iterations

    return jax.lax.scan(step, (state, memory), jnp.arange(80.0))


def test_following_the_trend_saves_iterations_and_moves_nothing():
    start = cube_state(
        jnp.array([0.0, 0.0, 0.0524]),
        jnp.array([1.0, 0.0, 0.0, 0.0]),
        jnp.array([0.7, -0.4, 0.0]),
        jnp.array([0.0, 0.0, 6.0]),
    )
    (plain, _), without = slide(start, False)
    (state, _), with_trend = slide(start, True)
    # Measured 305 and 354 iterations; motions that differ by 2e-13.
    assert int(jnp.sum(with_trend)) < 0.9 * int(jnp.sum(without))
    np.testing.assert_allclose(state.v, plain.v, rtol=0, atol=1e-11)
    np.testing.assert_allclose(state.q.position, plain.q.position, rtol=0, atol=1e-11)
