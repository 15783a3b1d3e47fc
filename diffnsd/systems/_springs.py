"""Forces between rigid bodies, as wrenches for `NewtonEulerSystem`."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AbstractChecked, checked_arguments
from .._expects import of_shape
from .._numerics import as_float, cross, safe_norm
from .._types import Args, Scalar, State
from ..groups import Pose, rotation_matrix


class SpringDamper(AbstractChecked):
    """A spring and a damper in parallel between two points, `wrench(t, state, args) -> (b, 6)`.

        f = −(k (l − l0) + c dl/dt) e    on body 1,      l = |p1 − p2|,  e = (p1 − p2)/l

    **Arguments:** `point1`, `point2`: where the spring is attached, body coordinates [m], `(3,)`;
    `stiffness` k [N/m], `damping` c [N s/m], `length` l0 [m], each `()`; `body1`; `body2`: `None`
    for the world; `point2` is then in world coordinates. Where `l = 0` there is no force.
    """

    point1: Float[Array, "3"] = eqx.field(converter=as_float)
    point2: Float[Array, "3"] = eqx.field(converter=as_float)
    stiffness: Float[Array, ""] = eqx.field(converter=as_float)
    damping: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    length: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    body1: int = eqx.field(default=0, static=True)
    body2: int | None = eqx.field(default=None, static=True)

    def __call__(self, t: Scalar, state: State, args: Args) -> Float[Array, "b 6"]:
        del t, args
        p1, v1 = _point(state, self.body1, self.point1)
        p2, v2 = _point(state, self.body2, self.point2)
        d = p1 - p2
        length = safe_norm(d)
        e = d / jnp.where(length > 0, length, 1)
        size = self.stiffness * (length - self.length) + self.damping * jnp.sum(e * (v1 - v2))
        wrench = wrench_at(state, self.body1, p1, -size * e)
        return wrench if self.body2 is None else wrench + wrench_at(state, self.body2, p2, size * e)


class Wrenches(AbstractChecked):
    """The sum of several wrenches.

    **Arguments:** `parts`: functions `(t, state, args) -> (b, 6)`.
    """

    parts: tuple[Callable, ...]

    def __call__(self, t: Scalar, state: State, args: Args) -> Float[Array, "b 6"]:
        return sum(part(t, state, args) for part in self.parts)  # pyright: ignore[reportReturnType]


@checked_arguments
def wrench_at(
    state: State,
    body: int,
    point: Float[Array, "3"],
    force: Float[Array, "3"],
    couple: Float[Array, "3"] | None = None,
) -> Float[Array, "b 6"]:
    """A force at a point and a couple, all in the world frame, as the wrench on one of the bodies.

    **Arguments:** `state`; `body`: index; `point` [m]; `force` [N]; `couple` [N m]. **Returns:**
    forces in the world frame and torques about the origin of the frame of the body (of free bodies the
    centre of mass) in that frame.
    """
    if not isinstance(state.q, Pose):
        raise TypeError(
            "state must have a Pose of its bodies, such as that of a NewtonEulerSystem."
        )
    bodies = state.q.position.shape[0]
    if not -bodies <= body < bodies:
        raise ValueError(f"body must be below {bodies}, the number of bodies, got {body}.")
    force = of_shape("force", force, 3)
    torque = cross(of_shape("point", point, 3) - state.q.position[body], force)
    torque = torque if couple is None else torque + of_shape("couple", couple, 3)
    own = jnp.concatenate([force, rotation_matrix(state.q.orientation[body]).T @ torque])
    return jnp.stack([own if i == body else jnp.zeros_like(own) for i in range(bodies)])


def _point(state: State, body: int | None, point: Array) -> tuple[Array, Array]:
    """World position and velocity of a point of a body."""
    if body is None:
        return point, jnp.zeros_like(point)
    rotation = rotation_matrix(state.q.orientation[body])
    arm, v = rotation @ point, state.v.reshape(-1, 6)[body]
    return state.q.position[body] + arm, v[:3] + cross(rotation @ v[3:], arm)
