"""Contacts between two bodies, or a body and the world, from contact points and normals."""

import jax.numpy as jnp
from jaxtyping import Array

from .._block_rows import in_lanes
from .._numerics import cross
from ..groups import AbstractGroup, rotation_matrix
from ._base import check_body
from ._body_points import tangents
from ._contact_points import AbstractContactPoints


class ContactFrame(AbstractContactPoints):
    """Contacts from a function that finds closest points and normals.

    `g = n · (p1 − p2)`, and with `R_C = [n t1 t2]` the local velocity is that of the material
    points, `u = R_C^T [v1 + ω1 × (p1 − x1) − v2 − ω2 × (p2 − x2)]`. The normal points from body 2
    to body 1; its variation is ignored in `H`.

    **Arguments:**

    - `function`: `(t, pose) -> (p1, p2, n)`, world frame, each of shape `(c, 3)`.
    - `body1`: index of body 1, or one for each contact, `(c,)`. `body2`: that of body 2, likewise;
      `None`, also as an entry, for the world.
    - `rolling`: add two rolling rows, `ω_R = (t1, t2) · (ω1 − ω2)` [rad/s], whose multipliers are
      couples.

    Gaps [m] have shape `(c,)`; local velocities [m/s] have shape `(c, 3)`, rows (normal, tangent 1,
    tangent 2), or `(c, 5)`.

    **Raises:** `ValueError` in a simulation, before it is compiled, if there is no such body or the
    function returns other shapes.
    """

    dimension = 3

    @property
    def rows(self) -> int:
        return 5 if self.rolling else 3

    def frame(self, normal: Array) -> tuple[Array, ...]:
        return (normal, *tangents(normal))

    def rows_of(self, q, bodies, points: Array, frame: tuple[Array, ...]) -> Array:
        """`[e, R^T (r × e)]` of every axis `e`, and `[0, R^T e]` of the rolling rows."""
        centre = in_lanes(q.position, bodies)
        rotation = rotation_matrix(in_lanes(q.orientation, bodies))
        arms, axes = points - centre, jnp.unstack(rotation)

        def row(linear, turn):
            own = sum(axis * x[None] for axis, x in zip(axes, jnp.unstack(turn), strict=True))
            return jnp.concatenate([linear, own])

        rows = [row(e, cross(arms, e)) for e in frame]
        if self.rolling:
            rows += [row(jnp.zeros_like(e), e) for e in frame[1:]]
        return jnp.stack(rows)

    def check(self, group: AbstractGroup) -> str | None:
        return check_body("ContactFrame.body1", self.body1, group) or (
            check_body("ContactFrame.body2", self.body2, group)
        )
