"""Points of a body against a plane."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments import checked_kinds
from ..._block_rows import BlockRows, in_lanes, of_bodies
from ..._expects import not_unit
from ..._jax import eval_now
from ..._numerics import as_float, cross, dot, weighted_sum
from ..._types import Config, PerContact, Scalar
from ..._world_rows import WorldRows
from ...groups import AbstractGroup, rotation_matrix
from .._base import (
    AbstractBodyRelation,
    AbstractRelation,
    ContactPlaces,
    Contacts,
    Indices,
    body_indices,
    check_body,
)


@checked_kinds
def tangents(normal: Float[Array, "3 ..."]) -> tuple[Array, Array]:
    """Two unit tangents that make `(n, t1, t2)` right-handed, without branches.

    **Arguments:** `normal`: unit vectors, shape `(3, ...)`. **Returns:** `t1`, `t2`, same shape.

    Reference: T. Duff et al., Building an orthonormal basis, revisited (2017), JCGT 6(1), 1-8,
    jcgt.org/published/0006/01/01 (the journal gives no DOI).
    """
    x, y, z = jnp.unstack(normal)
    sign = jnp.where(z >= 0, 1.0, -1.0)
    a = -1 / (sign + z)
    b = x * y * a
    first = jnp.stack([1 + sign * x * x * a, sign * b, -sign * x])
    second = jnp.stack([b, sign + y * y * a, -y])
    return first, second


class BodyPointsPlane(AbstractBodyRelation):
    """Points fixed to rigid bodies against a fixed plane `{x : n · x = offset}`.

    The gap of a point is `n · x − offset`; the rows of a contact are (normal, tangent 1,
    tangent 2), and the local velocity is that of the material point of the body.

    **Arguments:**

    - `points`: body coordinates [m], shape `(c, 3)`.
    - `normal`: unit normal of the plane, world frame, shape `(3,)`, towards the body.
    - `offset`: distance of the plane from the origin [m], shape `()`.
    - `body`: index of the body, or one for each point, `(c,)`.

    **Raises:** `ValueError` if shapes do not match or the normal is not of unit length; in a
    simulation, before it is compiled, if there is no such body.
    """

    points: Float[Array, "c 3"]
    normal: Float[Array, "3"]
    offset: Float[Array, ""]
    body: int | tuple[int, ...] = eqx.field(default=0, static=True)

    def __init__(self, points, normal=(0.0, 0.0, 1.0), offset=0.0, body: Indices = 0):
        self.points = as_float(points)
        self.normal = eval_now(lambda n: as_float(n, self.points.dtype), normal)
        self.offset = as_float(offset, self.points.dtype)
        self.body = body_indices("BodyPointsPlane.body", body)  # pyright: ignore[reportAttributeAccessIssue]
        if self.points.ndim != 2 or self.points.shape[1] != 3 or self.normal.shape != (3,):
            raise ValueError(
                f"points must have shape (c, 3) and normal (3,), got {self.points.shape} and "
                f"{self.normal.shape}."
            )
        if isinstance(self.body, tuple) and len(self.body) != self.points.shape[0]:
            raise ValueError(
                f"body has {len(self.body)} entries for {self.points.shape[0]} points; give one index "
                "for all points or one for each."
            )
        if problem := not_unit(self.normal):
            raise ValueError(f"{problem}.")

    rows = 3
    is_scleronomic = True

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        return self.points.shape[0]

    def gap(self, t: Scalar, q: Config) -> PerContact:
        return self._gap(q, rotation_matrix(of_bodies(q.orientation, self.body)))

    def _gap(self, q: Config, rotation: Array) -> PerContact:
        centre, p = of_bodies(q.position, self.body), self.points.T
        n = self.normal.reshape((3,) + (1,) * (centre.ndim - 1))
        height = dot(n, centre) - self.offset
        local = weighted_sum(rotation, n)
        return height + weighted_sum(p, local)

    def places(self, t: Scalar, q: Config) -> ContactPlaces:
        turn = rotation_matrix(in_lanes(q.orientation, self.body))
        points = in_lanes(q.position, self.body) + weighted_sum(turn, self.points.T, axis=1)
        normal = jnp.broadcast_to(self.normal, self.points.shape)
        middle = points.T - self.gap(t, q)[:, None] / 2 * normal
        return ContactPlaces(middle, normal, self.body, None)

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        """`H = e^T [1, −r^ R]`: `r × e` in body coordinates is the angular part of a row `e`."""
        rotation = rotation_matrix(of_bodies(q.orientation, self.body))
        p = self.points.T
        arms = weighted_sum(rotation.reshape(3, 3, -1), p, axis=1)
        rows, forces, couples = [], [], []
        for e in (self.normal, *tangents(self.normal)):
            # e · (R ω × R p) = ω · (p × R^T e)
            angular = cross(p, weighted_sum(rotation, e))
            forces.append(jnp.broadcast_to(e[:, None], p.shape))
            couples.append(cross(arms, forces[-1]))
            rows.append(jnp.concatenate([forces[-1], angular]))
        values, world = jnp.stack(rows), WorldRows(tuple(forces), tuple(couples))
        return Contacts(
            self._gap(q, rotation),
            BlockRows((values,), (self.body,), group.dim // 6, (world,)),
            jnp.zeros((3, p.shape[1]), p.dtype),
        )

    def check(self, group: AbstractGroup) -> str | None:
        return check_body("BodyPointsPlane.body", self.body, group) or not_unit(self.normal)

    def take(self, pick: Callable[[Array], Array]) -> AbstractRelation | None:
        if isinstance(self.body, int):
            return eqx.tree_at(lambda r: r.points, self, pick(self.points))
        # Which points are kept, and hence their bodies, is known only while a step runs.
        return super().take(pick)
