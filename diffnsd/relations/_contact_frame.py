"""Contacts between two bodies, or a body and the world, from contact points and normals."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._block_rows import PickedRows, in_lanes
from .._numerics import cross, dot
from .._types import Config, Local, PerContact, Scalar, State
from ..groups import AbstractGroup, Pose, rotation_matrix
from ._base import AbstractWrappedRelation, ContactPlaces, Contacts, check_body
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

    def places(self, t: Scalar, q: Config) -> ContactPlaces:
        p1, p2, n = self._points(t, q)
        return ContactPlaces((p1 + p2) / 2, n, self.body1, self.body2)

    def check(self, group: AbstractGroup) -> str | None:
        return check_body("ContactFrame.body1", self.body1, group) or (
            check_body("ContactFrame.body2", self.body2, group)
        )

    def take(self, pick: Callable[[Array], Array]) -> "ChosenContacts":
        return ChosenContacts(self, pick)


class ChosenContacts(AbstractWrappedRelation):
    """Some contacts of a `ContactFrame`; which ones, and hence which bodies, is known while a step runs.

    **Arguments:** `relation`; `pick`: as in `AbstractRelation.take`.
    """

    relation: ContactFrame
    pick: Callable[[Array], Array]

    is_of_bodies = True  # pyright: ignore[reportAssignmentType]

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        return len(self.gap(t, q))

    def gap(self, t: Scalar, q: Config) -> PerContact:
        return self.pick(self.relation.gap(t, q))

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        relation = self.relation
        points = self.pick(jnp.concatenate(relation._points(t, q), axis=-1)).T
        p1, p2, n = jnp.split(points, 3)
        gap = dot(n, p1 - p2)
        frame = relation.frame(n)
        sides = [(relation.body1, p1, 1), (relation.body2, p2, -1)]
        values, whose = [], []
        for bodies, p, sign in sides:
            if bodies is None:
                continue
            which = self._whose(bodies, len(q.position), gap)
            at = Pose(which @ q.position, which @ q.orientation)
            values.append(sign * relation.rows_of(at, tuple(range(len(gap))), p, frame))
            whose.append(which)
        rows = PickedRows(tuple(values), tuple(whose))
        return Contacts(gap, rows, jnp.zeros((relation.rows, len(gap)), gap.dtype))

    def _whose(
        self, bodies: int | tuple[int | None, ...], count: int, gap: PerContact
    ) -> Float[Array, "a b"]:
        """Which body the first or second one of every contact is, 1 or 0; all 0 for the world."""
        if isinstance(bodies, int):
            return jnp.asarray(np.eye(1, count, bodies).repeat(len(gap), axis=0), gap.dtype)
        table = np.array([[i == body for i in range(count)] for body in bodies], bool)
        return self.pick(jnp.asarray(table, gap.dtype))

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        return self.observe(group, t, state.q).velocity(state.v).T
