"""Contacts between bodies that move in a plane."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from ..._block_rows import in_lanes
from ...groups import AbstractGroup, Euclidean
from .._base import out_of_range
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
    - `body1`: index of body 1, or one for each contact, `(c,)`. `body2`: that of body 2, likewise;
      `None`, also as an entry, for the world.
    - `rolling`: whether there is a third row, for `RollingFriction`.

    **Raises:** `ValueError` in a simulation, before it is compiled, if there is no such body or the
    function returns other shapes.
    """

    dimension = 2
    is_of_bodies = False

    def on(self, system: Any) -> "PlanarContact":
        if system.has_joints:
            raise ValueError(
                "PlanarContact needs planar bodies, q = (x, y, angle) each; for a Multibody use "
                "sphere_on_plane, BodyPointsPlane or ContactFrame."
            )
        return self

    @property
    def rows(self) -> int:
        return 3 if self.rolling else 2

    def frame(self, normal: Array) -> tuple[Array, ...]:
        return normal, jnp.stack([-normal[1], normal[0]])

    def rows_of(self, q, bodies, points: Array, frame: tuple[Array, ...]) -> tuple[Array, None]:
        """`[e, r × e]` of every axis `e`, and `[0, 1]` of the rolling row."""
        centre = in_lanes(q.reshape(-1, 3), bodies)[:2]
        arms = points - centre
        rows = [jnp.concatenate([e, (arms[0] * e[1] - arms[1] * e[0])[None]]) for e in frame]
        if self.rolling:
            rows.append(jnp.zeros_like(rows[0]).at[2].set(1))
        return jnp.stack(rows), None

    def check(self, group: AbstractGroup) -> str | None:
        if not isinstance(group, Euclidean) or group.dim % 3:
            return (
                "PlanarContact needs planar bodies, q = (x, y, angle) each, in a LagrangianSystem"
            )
        bodies = group.dim // 3
        return out_of_range("PlanarContact.body1", self.body1, bodies) or (
            out_of_range("PlanarContact.body2", self.body2, bodies)
        )
