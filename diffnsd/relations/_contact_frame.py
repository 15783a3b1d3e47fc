"""Contacts between two bodies, or a body and the world, from contact points and normals."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._numerics import cross
from .._types import Local, Scalar, State
from ..groups import AbstractGroup, rotate
from ._base import check_body
from ._body_points import tangents
from ._contact_points import AbstractContactPoints


class ContactFrame(AbstractContactPoints):
    """Contacts from a function that finds closest points and normals.

    `g = n · (p1 − p2)`, and with `R_C = [n t1 t2]` the local velocity is that of the material
    points, `u = R_C^T [v1 + ω1 × (p1 − x1) − v2 − ω2 × (p2 − x2)]`. The normal points from body 2
    to body 1; its own variation is ignored in `H`.

    **Arguments:**

    - `function`: `(t, pose) -> (p1, p2, n)`, world frame, each of shape `(c, 3)`.
    - `body1`: index of body 1. `body2`: index of body 2, `None` for the world.
    - `rolling`: add two rolling rows, `ω_R = (t1, t2) · (ω1 − ω2)` [rad/s], whose multipliers are
      couples.

    Gaps [m] have shape `(c,)`; local velocities [m/s] have shape `(c, 3)`, rows (normal, tangent 1,
    tangent 2), or `(c, 5)`.

    **Raises:** `ValueError` in a simulation, before it is compiled, if there is no such body or the
    function returns other shapes.
    """

    function: Callable
    body1: int = eqx.field(default=0, static=True)
    body2: int | None = eqx.field(default=None, static=True)
    rolling: bool = eqx.field(default=False, static=True)

    @property
    def rows(self) -> int:
        return 5 if self.rolling else 3

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        del group, lam
        p1, p2, n = (x.T for x in self._points(t, state.q))
        u = _point_velocity(state, self.body1, p1)
        if self.body2 is not None:
            u = u - _point_velocity(state, self.body2, p2)
        frame = (n, *tangents(n))
        local = [jnp.sum(e * u, axis=0) for e in frame]
        if self.rolling:
            turn = _spin(state, self.body1)
            turn = turn if self.body2 is None else turn - _spin(state, self.body2)
            local += [jnp.sum(e * turn[:, None], axis=0) for e in frame[1:]]
        return jnp.stack(local, axis=-1)

    def check(self, group: AbstractGroup) -> str | None:
        problem = check_body("ContactFrame.body1", self.body1, group)
        if problem or self.body2 is None:
            return problem
        return check_body("ContactFrame.body2", self.body2, group)


def _point_velocity(state: State, body: int, points):
    """Velocity of the material points of a body at world points `(3, c)`."""
    arms = points - state.q.position[body][:, None]
    spin = jnp.broadcast_to(_spin(state, body)[:, None], arms.shape)
    return state.v.reshape(-1, 6)[body, :3, None] + cross(spin, arms)


def _spin(state: State, body: int) -> Array:
    """Angular velocity of a body in the world frame, `(3,)`."""
    return rotate(state.q.orientation[body], state.v.reshape(-1, 6)[body, 3:])
