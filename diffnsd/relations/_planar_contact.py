"""Contacts between bodies that move in a plane."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Local, Scalar, State
from ..groups import AbstractGroup, Euclidean
from ._contact_points import AbstractContactPoints


class PlanarContact(AbstractContactPoints):
    """Contacts of bodies in the plane, from a function that finds closest points and normals.

    The coordinates of body `i` are the entries `3 i .. 3 i + 2` of `q`: centre `(x, y)` [m] and
    angle [rad]. `g = n · (p1 − p2)`; with the tangent `t = (−n_y, n_x)` the local velocity is that
    of the material points, `(n, t) · (v1 − v2)`, then the rolling rate `ω1 − ω2`. The variation of
    the normal is ignored in `H`.

    **Arguments:**

    - `function`: `(t, q) -> (p1, p2, n)`, world frame, each of shape `(c, 2)`; the unit normal
      points from body 2 to body 1.
    - `body1`: index of body 1. `body2`: index of body 2, `None` for the world.
    - `rolling`: whether there is a third row, for `RollingFriction`.

    **Raises:** `ValueError` in a simulation, before it is compiled, if there is no such body or the
    function returns other shapes.
    """

    function: Callable
    body1: int = eqx.field(default=0, static=True)
    body2: int | None = eqx.field(default=None, static=True)
    rolling: bool = eqx.field(default=False, static=True)

    @property
    def rows(self) -> int:
        return 3 if self.rolling else 2

    @property
    def dimension(self) -> int:
        return 2

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        del group, lam
        p1, p2, n = (x.T for x in self._points(t, state.q))
        u, turn = _point_velocity(state, self.body1, p1)
        if self.body2 is not None:
            u2, turn2 = _point_velocity(state, self.body2, p2)
            u, turn = u - u2, turn - turn2
        local = [n[0] * u[0] + n[1] * u[1], n[0] * u[1] - n[1] * u[0]]
        if self.rolling:
            local.append(jnp.broadcast_to(turn, local[0].shape))
        return jnp.stack(local, axis=-1)

    def check(self, group: AbstractGroup) -> str | None:
        bodies = group.dim // 3
        if not isinstance(group, Euclidean) or group.dim % 3:
            return (
                "PlanarContact needs planar bodies, q = (x, y, angle) each, in a LagrangianSystem"
            )
        for name, body in (("body1", self.body1), ("body2", self.body2)):
            if body is not None and not 0 <= body < bodies:
                return f"PlanarContact.{name} is {body}, but the system has {bodies} planar bodies"
        return None


def _point_velocity(state: State, body: int, points: Array):
    """Velocity `(2, c)` of the material points of a body at world points, and its spin."""
    q, v = state.q[3 * body : 3 * body + 3], state.v[3 * body : 3 * body + 3]
    arms = points - q[:2, None]
    return jnp.stack([v[0] - v[2] * arms[1], v[1] + v[2] * arms[0]]), v[2]
