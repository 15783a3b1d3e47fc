"""A ball that is dropped or thrown onto the ground, seen by a noisy camera: what two benchmarks fit.

The measurements come from the closed form of the motion, the fits simulate it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import diffnsd as nsd
from diffnsd import identification, models

NOISE = 2e-3
"""Standard deviation of a measured height [m]."""
DT, FRAMES = 0.03, 40
METHOD = nsd.Located(nsd.MoreauJean())
BOUNDS = {"e": (0.5, 0.95), "g": (9.0, 10.5), "height": (0.05, 2.0), "speed": (-4.0, 4.0)}
"""Restitution, gravity [m/s²], and the start: height [m] and upward speed [m/s]."""


class Bounce(eqx.Module):
    """What is to be identified: restitution, gravity [m/s²], start height [m], start speed [m/s]."""

    e: Array
    g: Array
    height: Array
    speed: Array


def simulated(ball: Bounce) -> Float[Array, " f"]:
    """Heights at the frames [m], by time stepping with located impacts."""
    start = nsd.State(ball.height[None], ball.speed[None])
    run = nsd.simulate(
        models.bouncing_ball(ball.e, ball.g), METHOD, 0.0, FRAMES * DT, DT, start, throw=False
    )
    return run.states.q[1:, 0]


def exact(ball: Bounce) -> Float[Array, " f"]:
    """The same by the closed form."""
    times = DT * jnp.arange(1, FRAMES + 1)
    q = jax.vmap(lambda t: models.ball_state(t, ball.height, ball.speed, ball.e, ball.g).q)(times)
    return q[:, 0]


class Seen(eqx.Module):
    """Residuals of a measured ball in standard deviations of the noise, for parameters and data."""

    rebuild: identification.Rebuild
    data: Float[Array, " f"]

    def __call__(self, params):
        return (simulated(self.rebuild(params)) - self.data) / NOISE


def parameters(ball: Bounce):
    """The four numbers as parameters within `BOUNDS`."""
    names = {name: (lambda b, name=name: getattr(b, name)) for name in BOUNDS}
    return identification.parameters(
        ball, lambda b: {name: pick(b) for name, pick in names.items()}, BOUNDS
    )
