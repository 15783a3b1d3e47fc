"""Contacts between those of many shapes that are near each other, from a list that every step makes."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._arguments import Number, checked_arguments
from ..._block_rows import ListedRows
from ..._expects import expects
from ..._numerics import as_float, safe_norm
from ..._types import Config, PerContact, Scalar
from ...groups import AbstractGroup, Pose
from ...shapes import Frame, closest
from .._base import AbstractBodyRelation, AbstractWrappedRelation, Contacts, check_body
from ._contact_frame import ContactFrame
from ._shape_contacts import Geom, _Alike, _bounding, _kind, _places, _rows

CELLS = np.array(np.meshgrid([-1, 0, 1], [-1, 0, 1], [-1, 0, 1])).reshape(3, -1).T
"""A cell and its neighbours."""


class Pairs(eqx.Module):
    """A list of pairs of geoms.

    **Arguments:** `one`, `two`: which geoms; `listed`: which places of the list are in use, the others
    hold any pair; `complete`: whether all pairs within reach are listed.
    """

    one: Int[Array, " p"]
    two: Int[Array, " p"]
    listed: Bool[Array, " p"]
    complete: Bool[Array, ""]


class NeighbourContacts(AbstractBodyRelation):
    """Contacts between those of many shapes that are near each other; see `neighbour_contacts`.

    A step lists the pairs whose bounding spheres are nearer than `reach`; a contact has another place in the
    list from step to step, and warm starts are matched by pairs.

    **Arguments:** `geoms`, `others`: the shapes; `capacity`, `contacts`, `reach`, `per_cell`: as in
    `neighbour_contacts`; `places`: of a pair; `points`: the rows of a contact, whose own points are not used.
    """

    geoms: _Alike
    others: _Alike | None
    reach: Float[Array, ""]
    capacity: int = eqx.field(static=True)
    per_cell: int = eqx.field(static=True)
    contacts: int | None = eqx.field(static=True)
    places: int = eqx.field(static=True)
    points: ContactFrame

    lists_contacts = True
    is_scleronomic = True

    @property
    def rows(self) -> int:
        return self.points.rows

    @property
    def most_known(self) -> int:
        return self.capacity * self.places if self.contacts is None else self.contacts

    @property
    def contact_names(self) -> tuple[str, ...]:
        # A step knows that its list is too short, not for which pair.
        return ("a pair or a place that may be missing in the list of neighbour_contacts",)

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        return self.most_known

    def gap(self, t: Scalar, q: Config) -> PerContact:
        return self.listed(q).gap(t, q)

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        return self.listed(q).observe(group, t, q)

    def listed(self, q: Config) -> "ListedContacts":
        """The contacts of the pairs that are near each other at a configuration."""
        pairs = self.pairs(q)
        every = jnp.arange(self.capacity * self.places, dtype=jnp.int32)
        listed = jnp.repeat(pairs.listed, self.places)
        everything = ListedContacts(self, pairs, every, listed, pairs.complete)
        if self.contacts is None:
            return everything
        near = listed & (everything.gap(jnp.zeros(()), jax.lax.stop_gradient(q)) < self.reach)
        at = jnp.nonzero(near, size=self.contacts, fill_value=0)[0].astype(jnp.int32)
        count = jnp.sum(near, dtype=jnp.int32)
        used = jnp.arange(self.contacts, dtype=jnp.int32) < count
        return ListedContacts(self, pairs, at, used, pairs.complete & (count <= self.contacts))

    @property
    def arm(self) -> Float[Array, ""]:
        """How far what is compared with `reach` is from the centre of its body at most [m]."""
        arms = []
        for table in (self.geoms, self.second):
            if table.bodies is None:
                continue
            arm = jnp.max(safe_norm(table.positions.T))
            # Without `contacts` the centres of bounding spheres are compared, with it all places.
            size = (
                0.0 if self.contacts is None else eqx.filter_vmap(lambda s: s.bound())(table.shapes)
            )
            arms.append(arm + jnp.max(jnp.asarray(size)))
        return jnp.max(jnp.stack(arms))

    @property
    def second(self) -> _Alike:
        """What the geoms touch: `others`, or each other."""
        return self.geoms if self.others is None else self.others

    def pairs(self, q: Config) -> Pairs:
        """The pairs that are near each other."""
        q = jax.lax.stop_gradient(q)
        candidates = self._within if self.others is None else self._between
        one, two, gap, crowded = candidates(q, self.geoms.frames(q))
        near = gap < self.reach
        at = jnp.nonzero(near, size=self.capacity, fill_value=0)[0]
        count = jnp.sum(near, dtype=jnp.int32)
        listed = jnp.arange(self.capacity, dtype=jnp.int32) < count
        full = crowded | (count > self.capacity)
        return Pairs(one[at], two[at], listed, ~full)

    def _between(self, q: Config, frames: Frame):
        """All pairs of a geom with one of `others`, and the gaps of their bounding spheres."""
        table = self.second
        others = table.frames(q)
        b, o = len(frames.centre), len(others.centre)
        one, two = (x.astype(np.int32) for x in np.divmod(np.arange(b * o), o))
        placed = (
            *_rows((self.geoms.shapes, frames), one),
            *_rows((table.shapes, others), two),
        )
        gap = eqx.filter_vmap(_bounding)(*placed).gap
        return jnp.asarray(one), jnp.asarray(two), gap, jnp.array(False)

    def _within(self, q: Config, frames: Frame):
        """Pairs of geoms in the same or neighbouring cells of a grid, found by sorting hashed cells.

        A cell is as wide as the largest distance of the centres of two geoms within reach.
        """
        del q
        centre = frames.centre
        radius = eqx.filter_vmap(lambda s: s.bound())(self.geoms.shapes)
        b = len(centre)
        width = 2 * jnp.max(radius) + self.reach
        cell = jnp.floor(centre / width).astype(jnp.int32)
        buckets = 2 ** math.ceil(math.log2(4 * b))

        def bucket(cell):
            x, y, z = cell[..., 0], cell[..., 1], cell[..., 2]
            mixed = (x * 73856093) ^ (y * 19349663) ^ (z * 83492791)
            return mixed & (buckets - 1)

        keys = bucket(cell)
        order = jnp.argsort(keys)
        ordered = keys[order]
        sought = cell[:, None] + CELLS[None].astype(np.int32)
        wanted = bucket(sought)
        first = jnp.searchsorted(ordered, jnp.arange(buckets + 1, dtype=ordered.dtype))
        first = first.astype(jnp.int32)
        slots = np.arange(self.per_cell, dtype=np.int32)
        place = first[wanted][..., None] + slots[None, None]
        inside = place < first[wanted + 1][..., None]
        other = order.astype(jnp.int32)[jnp.minimum(place, b - 1)]
        one = jnp.broadcast_to(jnp.arange(b, dtype=jnp.int32)[:, None, None], other.shape)
        same = jnp.all(cell[other] == sought[:, :, None], axis=-1)
        apart = safe_norm((centre[one] - centre[other]).reshape(-1, 3).T).reshape(other.shape)
        gap = apart - radius[one] - radius[other]
        gap = jnp.where(inside & same & (one < other), gap, jnp.inf)
        crowded = jnp.max(first[1:] - first[:-1]) > self.per_cell
        return one.reshape(-1), other.reshape(-1), gap.reshape(-1), crowded

    def check(self, group: AbstractGroup) -> str | None:
        name = "neighbour_contacts: body"
        problem = check_body(name, self.geoms.bodies, group)
        return problem or check_body(name, self.second.bodies, group)


class ListedContacts(AbstractWrappedRelation):
    """The contacts of listed pairs; entries of the list that are not in use have the gap `reach`.

    **Arguments:** `relation`; `list`: its pairs; `at`: which place of which pair a contact is; `used`:
    whether it is one; `complete`: whether all contacts within reach are listed.
    """

    relation: NeighbourContacts
    list: Pairs
    at: Int[Array, " c"]
    used: Bool[Array, " c"]
    complete: Bool[Array, ""]

    is_of_bodies = True  # pyright: ignore[reportAssignmentType]

    @property
    def keys(self) -> Int[Array, " c"]:
        """A number for each contact that is the same in every list, −1 where an entry is not in use."""
        relation, pairs = self.relation, self.list
        width = len(relation.second.positions)
        pair, place = self.at // relation.places, self.at % relation.places
        key = (pairs.one * width + pairs.two)[pair] * relation.places + place
        return jnp.where(self.used, key, -1)

    def may_miss(self, v: Array, h: Scalar) -> Bool[Array, ""]:
        """Whether a contact that is not listed may close within a step."""
        # Two bodies approach each other with at most twice the largest speed.
        speeds = v.reshape(-1, 6)
        speed = jnp.sqrt(jnp.max(jnp.sum(speeds[:, :3] ** 2, axis=1)))
        spin = jnp.sqrt(jnp.max(jnp.sum(speeds[:, 3:] ** 2, axis=1)))
        relation = self.relation
        return ~self.complete | (relation.reach < 2 * h * (speed + relation.arm * spin))

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        return self.relation.most_known

    def gap(self, t: Scalar, q: Config) -> PerContact:
        return self._places(q)[0]

    def _places(self, q: Config):
        """Gaps `(c,)`, points and normals `(3, c)`."""
        relation, pairs = self.relation, self.list
        two = relation.second
        placed = (
            *_rows((relation.geoms.shapes, relation.geoms.frames(q)), pairs.one),
            *_rows((two.shapes, two.frames(q)), pairs.two),
        )
        found = eqx.filter_vmap(closest)(*placed)
        gap = jnp.where(self.used, found.gap.reshape(-1)[self.at], relation.reach)
        points = (x.reshape(-1, 3)[self.at].T for x in (found.point1, found.point2, found.normal))
        return gap, *points

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        relation, pairs = self.relation, self.list
        gap, p1, p2, n = self._places(q)
        points = relation.points
        frame = points.frame(n)
        sides = [(relation.geoms.bodies, pairs.one, p1, 1.0)]
        if relation.second.bodies is not None:
            sides.append((relation.second.bodies, pairs.two, p2, -1.0))
        values, bodies = [], []
        for table, which, p, sign in sides:
            own = jnp.asarray(np.asarray(table, np.int32))[which[self.at // relation.places]]
            at = Pose(q.position[own], q.orientation[own])
            rows, _ = points.rows_of(at, tuple(range(len(own))), p, frame)
            values.append(jnp.where(self.used, sign * rows, 0))
            bodies.append(own)
        rows = ListedRows(tuple(values), tuple(bodies), len(q.position))
        drift = jnp.zeros((relation.rows, len(gap)), gap.dtype)
        return Contacts(gap, rows, drift, self.used)

    def output(self, group: AbstractGroup, t: Scalar, state: Any, lam: Any):
        return self.observe(group, t, state.q).velocity(state.v).T


def _nowhere(t: Scalar, q: Config):
    raise NotImplementedError


@checked_arguments
def neighbour_contacts(
    geoms: Sequence[Geom],
    others: Sequence[Geom] | None = None,
    *,
    reach: Number,
    capacity: int,
    contacts: int | None = None,
    per_cell: int = 8,
    spin: Number | None = None,
    roll: Number | None = None,
) -> NeighbourContacts:
    """Contacts between those of many shapes that are near each other: piles, grains, bricks.

        balls = [Geom(Sphere(0.05), body=i) for i in range(1000)]
        among = neighbour_contacts(balls, reach=0.01, capacity=5000)
        walls = neighbour_contacts(balls, [Geom(HalfSpace())], reach=0.01, capacity=1000)

    A step lists the pairs whose bounding spheres are nearer than `reach`, found in a grid of cells, so that
    its work grows with the number of bodies, not of pairs. The list has `capacity` places, and the contacts
    of the pairs come in the order of the list, which differs from step to step: impulses are those of the
    list, and warm starts are matched by pairs. Shapes that touch in several places, as boxes, have most of
    them far apart: with `contacts` a step keeps only so many, those nearer than `reach`. With more pairs or
    contacts, more than `per_cell` bodies in a cell, or where bodies move so fast that one might cross the
    reach within the step, the result is `contact_overflow`. Places are those of the start of a step: where a
    box turns so fast that another corner touches first, it penetrates until the next step finds that. For
    `MoreauJean` and `BackwardEuler`. Their steps are solved without a matrix between contacts, and not
    differentiated, if the lists of a model have more than 2000 rows or the solver is one for such steps, as
    `complementarity.Auto().by_bodies()`; otherwise with the dense matrix between all places of the lists,
    which takes tens of times as long for a list of 500 places.

    **Arguments:** `geoms`: of one kind of shape, each on a body of its own; `others`: of one kind, of the
    world or each on a body of its own, whose contacts with `geoms` these are, all pairs tested; `None`:
    contacts among `geoms`. Piles of two kinds have a list for each kind and one for both;
    `reach` [m], positive: more than a pair approaches in a step; `capacity`, `contacts`, `per_cell`: see
    above, `contacts=None`: all places of all pairs;
    `spin`, `roll` [m]: as in `ContactFrame`, one length for all contacts, for grains that resist rolling.

    **Raises:** `ValueError` if the geoms are of several kinds, not on bodies of their own, or too many, or a
    number is out of range.
    """
    geoms = list(geoms)
    fixed = None if others is None else list(others)
    for geom in (*geoms, *(fixed or ())):
        expects("a geom", geom, Geom, "such as Geom(Sphere(0.05), body=0)")
    if not geoms or fixed == [] or (fixed is None and len(geoms) < 2):
        raise ValueError(
            "neighbour_contacts needs at least two geoms, and one of `others` if given."
        )
    for name, listed in (("geoms", geoms), ("others", fixed or [])):
        if len({str(_kind(g.shape)) for g in listed}) > 1:
            raise ValueError(
                f"{name} must be of one kind of shape; give each two kinds a relation of their own."
            )
    bodies = [g.body for g in geoms]
    if None in bodies or len(set(bodies)) < len(bodies):
        raise ValueError("every one of geoms must be on a body of its own, Geom(shape, body=i).")
    carried = [g.body for g in fixed or () if g.body is not None]
    alone = len({*carried, *bodies}) == len(carried) + len(bodies)
    if carried and not (alone and len(carried) == len(fixed or ())):
        raise ValueError(
            "others must all be of the world, Geom(shape), or each on a body of its own, with none of geoms."
        )
    most = () if contacts is None else (("contacts", contacts),)
    for name, value in (("capacity", capacity), ("per_cell", per_cell), *most):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be an integer, 1 or more, got {value}.")
    if not 0 < float(reach) < math.inf:
        raise ValueError(f"reach must be positive and finite, got {reach}.")
    if (fixed is None or most) and not np.isfinite(float(geoms[0].shape.bound())):
        raise ValueError("geoms must have bounds; a half space belongs to `others`.")
    places = _places((geoms[0], (fixed or geoms)[0 if fixed else 1]))
    if len(geoms) * len(fixed or geoms) * places >= 2**31:
        raise ValueError(f"{len(geoms)} geoms are too many: pairs are numbered by 31 bits.")
    table = None if fixed is None else _Alike(fixed)
    points = ContactFrame(_nowhere, spin=spin, roll=roll)
    every = int(capacity) * places
    most_kept = None if contacts is None else min(int(contacts), every)
    limits = as_float(reach), int(capacity), int(per_cell), most_kept
    return NeighbourContacts(_Alike(geoms), table, *limits, places, points)
