"""A pendulum that strikes a vertical wall, derived from its Lagrangian.

    L = m l² θ'²/2 + m g l cos θ,   gap = distance + l sin θ >= 0

The wall stands at `x = −distance`, the pivot at the origin, and the bob at `(l sin θ, −l cos θ)`.
Energy gives the speed at the wall and the angle of the rebound in closed form; released at rest at
a small angle `a`, the bob moves like `θ = a cos(sqrt(g/l) t)` until it strikes.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AnyShape, Number, checked_arguments
from .._numerics import as_float
from .._types import State
from ..laws import AbstractLaw, NewtonImpact
from ..model import Interaction, Model
from ..relations import GapRelation
from ..systems import LagrangianSystem


@checked_arguments
def pendulum_wall(
    e=0.8,
    length: Number = 1.0,
    distance: Number = 0.0,
    g: Number = 9.81,
    mass: Number = 1.0,
    *,
    law: AbstractLaw | None = None,
) -> Model:
    """A pendulum against a wall: `q (1,)` is the angle `θ` [rad] from hanging, `v (1,)` its rate.

    **Arguments:** `e`: restitution in [0, 1]; `length` [m]; `distance` of the wall from the
    vertical through the pivot [m], less than `length`; `g` [m/s²]; `mass` [kg]; `law`: in place
    of `NewtonImpact(e)`.
    """
    e, length, distance, g, mass = (
        jnp.asarray(x, dtype=float) for x in (e, length, distance, g, mass)
    )
    system = LagrangianSystem.from_lagrangian(_Lagrangian(mass, length, g), n=1)
    contact = GapRelation(_DistanceToWall(length, distance))
    return Model(system, Interaction(contact, NewtonImpact(e) if law is None else law))


class _Lagrangian(eqx.Module):
    mass: Float[Array, ""]
    length: Float[Array, ""]
    g: Float[Array, ""]

    def __call__(self, q, v):
        kinetic = self.mass * (self.length * v[0]) ** 2 / 2
        return kinetic + self.mass * self.g * self.length * jnp.cos(q[0])


class _DistanceToWall(eqx.Module):
    length: Float[Array, ""]
    distance: Float[Array, ""]

    def __call__(self, t, q):
        del t
        return self.distance + self.length * jnp.sin(q)


@checked_arguments
def pendulum_state(angle: AnyShape, rate: AnyShape = 0.0) -> State:
    """The state with an angle [rad] and its rate [rad/s], numbers, as `q (1,)` and `v (1,)`."""
    return State(jnp.asarray(angle, dtype=float)[None], jnp.asarray(rate, dtype=float)[None])


@checked_arguments
def pendulum_wall_angle(length: AnyShape = 1.0, distance: AnyShape = 0.0) -> Float[Array, ""]:
    """Closed form: the angle [rad] at which the bob touches the wall, `−asin(distance/length)`."""
    return -jnp.arcsin(jnp.asarray(distance, dtype=float) / length)


@checked_arguments
def pendulum_impact_rate(
    angle: AnyShape,
    length: AnyShape = 1.0,
    distance: AnyShape = 0.0,
    g: AnyShape = 9.81,
) -> Float[Array, ""]:
    """Closed form: `θ'` [rad/s] just before the wall, released at rest at `angle` [rad].

    `θ' = −sqrt(2 g/l (cos θ_w − cos angle))`; the bob's speed is `l |θ'|`.
    """
    wall, length = pendulum_wall_angle(length, distance), as_float(length)
    return -jnp.sqrt(2 * g / length * (jnp.cos(wall) - jnp.cos(angle)))


@checked_arguments
def pendulum_rebound_angle(
    angle: AnyShape,
    e: AnyShape = 0.8,
    length: AnyShape = 1.0,
    distance: AnyShape = 0.0,
) -> Float[Array, ""]:
    """Closed form: the largest angle [rad] after the first impact, released at rest at `angle`.

    The kinetic energy at the wall is multiplied by `e²`. The rebound reaches the angle where it is
    spent, `cos θ = cos θ_w − e² (cos θ_w − cos angle)`.
    """
    wall, e = jnp.cos(pendulum_wall_angle(length, distance)), as_float(e)
    return jnp.arccos(wall - e**2 * (wall - jnp.cos(angle)))


@checked_arguments
def pendulum_small_impact_time(
    angle: AnyShape,
    length: AnyShape = 1.0,
    distance: AnyShape = 0.0,
    g: AnyShape = 9.81,
) -> Float[Array, ""]:
    """Closed form for small angles: the time [s] of the first impact, released at rest at `angle`.

    `t = sqrt(l/g) acos(θ_w/angle)`, correct to second order in the angles.
    """
    wall = pendulum_wall_angle(length, distance)
    return jnp.sqrt(length / as_float(g)) * jnp.arccos(wall / angle)
