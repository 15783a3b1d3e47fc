"""Contacts between two bodies, or a body and the world, from contact points and normals."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._block_rows import PickedRows, in_lanes
from ..._jax import eval_now, is_traced
from ..._numerics import as_float, cross, dot, short_product
from ..._types import Config, Local, PerContact, Scalar, State
from ..._world_rows import WorldRows
from ...groups import AbstractGroup, Pose, rotation_matrix
from .._base import AbstractWrappedRelation, ContactPlaces, Contacts, check_body
from ._body_points import tangents
from ._contact_points import AbstractContactPoints


def _length(value) -> Array | None:
    return None if value is None else eval_now(as_float, value)


def _lengths(contacts: "ContactFrame") -> list[Array | None]:
    return [contacts.spin, contacts.roll]


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
      couples, for `RollingFriction`.
    - `spin`, `roll`: lengths [m], `()` or `(c,)`, nonnegative; `None`, the default, is without. They add
      a row `spin n · (ω1 − ω2)` [m/s], and two rows `roll (t1, t2) · (ω1 − ω2)`, which belong to the
      friction of a law such as `CoulombFriction(mu)`. Its cone is then an ellipsoid in force and couple,

          (|P_T| / mu)² + (C_n / (mu spin))² + (|C_T| / (mu roll))² <= P_N²

      so a ball that only spins is slowed by the couple `mu spin P_N`, one that only rolls by
      `mu roll P_N`; sliding and spinning share what friction there is.

    Gaps [m] have shape `(c,)`; local velocities [m/s] have shape `(c, k)`, rows (normal, tangent 1,
    tangent 2), then those of rotation.

    **Raises:** `ValueError` if `spin` or `roll` is negative or given beside `rolling`; in a simulation,
    before it is compiled, if there is no such body or the function returns other shapes.

    Reference of the ellipsoid: R. D. Howe, M. R. Cutkosky, Practical force-motion models for sliding
    manipulation (1996), doi:10.1177/027836499601500603.
    """

    spin: Array | None = eqx.field(default=None, converter=_length)
    roll: Array | None = eqx.field(default=None, converter=_length)

    dimension = 3

    def __post_init__(self):
        super().__post_init__()
        if self.rolling and (self.spin is not None or self.roll is not None):
            raise ValueError("give rolling=True for RollingFriction, or spin and roll, not both.")
        for name, length in (("spin", self.spin), ("roll", self.roll)):
            if length is None or is_traced(length):
                continue
            if not np.all((np.asarray(length) >= 0) & np.isfinite(length)):
                raise ValueError(f"{name} is a length [m], at least 0 and finite, got {length}.")

    @property
    def rows(self) -> int:
        return 3 + 2 * self.rolling + (self.spin is not None) + 2 * (self.roll is not None)

    def frame(self, normal: Array) -> tuple[Array, ...]:
        return (normal, *tangents(normal))

    def rows_of(
        self, q, bodies, points: Array, frame: tuple[Array, ...]
    ) -> tuple[Array, WorldRows]:
        """`[e, R^T (r × e)]` of every axis `e`, and `[0, length R^T e]` of the rows of rotation."""
        arms = points - in_lanes(q.position, bodies)
        forces, couples = list(frame), [cross(arms, e) for e in frame]
        turns = [(e, 1.0) for e in frame[1:]] if self.rolling else []
        turns += [] if self.spin is None else [(frame[0], self.spin)]
        turns += [] if self.roll is None else [(e, self.roll) for e in frame[1:]]
        for e, length in turns:
            forces.append(jnp.zeros_like(e))
            couples.append(jnp.broadcast_to(length, e.shape[1:])[None] * e)
        axes = jnp.unstack(rotation_matrix(in_lanes(q.orientation, bodies)))
        rows = []
        for force, couple in zip(forces, couples, strict=True):
            own = sum(axis * x[None] for axis, x in zip(axes, jnp.unstack(couple), strict=True))
            rows.append(jnp.concatenate([force, own]))
        return jnp.stack(rows), WorldRows(tuple(forces), tuple(couples))

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
        lengths = [x if x is None or x.ndim == 0 else self.pick(x) for x in _lengths(relation)]
        relation = eqx.tree_at(_lengths, relation, lengths, is_leaf=lambda x: x is None)
        points = self.pick(jnp.concatenate(relation._points(t, q), axis=-1)).T
        p1, p2, n = jnp.split(points, 3)
        gap = dot(n, p1 - p2)
        frame = relation.frame(n)
        sides = [(relation.body1, p1, 1), (relation.body2, p2, -1)]
        values, world, whose = [], [], []
        for bodies, p, sign in sides:
            if bodies is None:
                continue
            which = self._whose(bodies, len(q.position), gap)
            at = Pose(short_product(which, q.position), short_product(which, q.orientation))
            own = relation.rows_of(at, tuple(range(len(gap))), p, frame)
            blocks, in_world = jax.tree.map(lambda x, sign=sign: sign * x, own)
            values.append(blocks)
            world.append(in_world)
            whose.append(which)
        rows = PickedRows(tuple(values), tuple(whose), tuple(world))
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
