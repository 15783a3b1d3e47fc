"""A block that slides on a plane until dry friction stops it, with its motion in closed form.

    m x'' = −mu m g x'/|x'|   while it slides,   x'' = 0 once it sticks

It stops after the time `|v0|/(mu g)` at the distance `|v0|²/(2 mu g)`, whatever its mass.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AnyShape, Number, checked_arguments
from .._types import State
from ..laws import AbstractLaw, CoulombFriction
from ..model import Interaction, Model
from ..relations import GapRelation
from ..systems import LagrangianSystem


@checked_arguments
def sliding_block(
    mu=0.3, g: Number = 9.81, mass: Number = 1.0, *, law: AbstractLaw | None = None
) -> Model:
    """A block on the plane `z = 0` that does not tip: `q (3,)` is its position `(x, y, z)` [m].

    **Arguments:** `mu`: friction, nonnegative; `g` [m/s²], along −z; `mass` [kg]; `law`: in place
    of `CoulombFriction(mu)`.
    """
    mass, g, mu = (jnp.asarray(x, dtype=float) for x in (mass, g, mu))
    system = LagrangianSystem(mass * jnp.eye(3), f_ext=-mass * g * jnp.array([0.0, 0.0, 1.0]))
    contact = GapRelation(_height_and_slip, rows_per_contact=3)
    return Model(system, Interaction(contact, CoulombFriction(mu) if law is None else law))


def _height_and_slip(t, q):
    del t
    x, y, z = q
    return jnp.stack([z, x, y])[None]


@checked_arguments
def block_state(
    t: AnyShape,
    speed: AnyShape = 1.0,
    mu: AnyShape = 0.3,
    g: AnyShape = 9.81,
) -> State:
    """Closed form: the state at a time `t >= 0` of a block that starts at the origin along x.

    Differentiable in all arguments; `t = 0` is the initial state.

    **Arguments:** `t` [s], shape `()`; `speed` [m/s] at `t = 0`, nonnegative; `mu`, positive; `g`
    [m/s²].

    **Returns:** `State` with `q (3,)` [m] and `v (3,)` [m/s].
    """
    t, speed, mu, g = (jnp.asarray(x, dtype=float) for x in (t, speed, mu, g))
    sliding = t * mu * g < speed
    x = jnp.where(sliding, speed * t - mu * g * t**2 / 2, block_stop_distance(speed, mu, g))
    v = jnp.where(sliding, speed - mu * g * t, 0.0)
    zero = jnp.zeros_like(x)
    return State(jnp.stack([x, zero, zero]), jnp.stack([v, zero, zero]))


@checked_arguments
def block_stop_time(speed: AnyShape, mu: AnyShape, g: AnyShape = 9.81) -> Float[Array, ""]:
    """Closed form: the time [s] after which the block has stopped, `speed/(mu g)`."""
    return jnp.asarray(speed) / (mu * g)


@checked_arguments
def block_stop_distance(speed: AnyShape, mu: AnyShape, g: AnyShape = 9.81) -> Float[Array, ""]:
    """Closed form: the distance [m] at which the block stops, `speed²/(2 mu g)`."""
    return jnp.asarray(speed) ** 2 / (2 * mu * g)
