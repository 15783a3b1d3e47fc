"""Contacts between shapes that are placed on bodies."""

from collections.abc import Sequence
from numbers import Integral

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._arguments import AbstractChecked, Numbers, checked_arguments
from ..._block_rows import Bodies
from ..._jax import concrete, entries_at, eval_now, is_traced
from ..._numerics import as_float, safe_norm, smallest_entries
from ..._types import Config, Scalar
from ...groups import SO3, rotation_matrix
from ...shapes import AbstractShape, Closest, Frame, Implicit, closest
from .._base import body_indices
from .._joint import world_frame
from ._contact_frame import ContactFrame


class Geom(AbstractChecked):
    """A shape placed on a body.

    **Arguments:** `shape`; `body`: index of the body, `None` for the world; `position` [m], `(3,)`, and
    `orientation`, unit quaternion, scalar first, `(4,)`: the frame of the shape in that of the body;
    `name`: used in messages, by default the kind of shape and the body.

    **Raises:** `ValueError` if shapes of arrays do not match, `body` is no integer, or a known `orientation`
    is not of unit length.
    """

    shape: AbstractShape
    body: int | None = eqx.field(static=True)
    position: Float[Array, "3"]
    orientation: Float[Array, "4"]
    name: str = eqx.field(static=True)

    def __init__(
        self,
        shape: AbstractShape,
        body: int | None = None,
        position=(0.0, 0.0, 0.0),
        orientation=(1.0, 0.0, 0.0, 0.0),
        name: str | None = None,
    ):
        if not isinstance(shape, AbstractShape):
            raise ValueError(
                f"shape must be one of diffnsd.shapes, such as Sphere(0.1), got {shape!r}."
            )
        if problem := shape.check():
            raise ValueError(f"{problem}.")
        index = body_indices("Geom.body", body)
        if isinstance(index, tuple):
            raise ValueError(f"body must be one index, or None for the world, got {body}.")
        self.shape, self.body = shape, index
        where = "the world" if index is None else f"body {index}"
        self.name = f"{type(shape).__name__} of {where}" if name is None else name
        self.position, self.orientation = (
            eval_now(as_float, position),
            eval_now(as_float, orientation),
        )
        if self.position.shape != (3,) or self.orientation.shape != (4,):
            raise ValueError(
                f"position must have shape (3,) and orientation (4,), got {self.position.shape} and "
                f"{self.orientation.shape}."
            )
        known = concrete(self.orientation)
        if not is_traced(known) and (problem := SO3().check(np.asarray(known))):
            raise ValueError(f"orientation: {problem}.")


class _Alike(eqx.Module):
    """Geoms of one kind of shape, their arrays stacked along a first axis."""

    shapes: AbstractShape
    positions: Float[Array, "g 3"]
    axes: Float[Array, "g 3 3"]
    bodies: Bodies = eqx.field(static=True)

    def __init__(self, geoms: Sequence[Geom]):
        arrays, functions = zip(*(eqx.partition(g.shape, eqx.is_array) for g in geoms), strict=True)
        stacked = eval_now(lambda *x: jax.tree.map(lambda *y: jnp.stack(y), *x), *arrays)
        self.shapes = eqx.combine(stacked, functions[0])
        self.positions = eval_now(lambda *x: jnp.stack(x), *[g.position for g in geoms])
        turns = eval_now(lambda *x: jnp.stack(x), *[g.orientation for g in geoms])
        self.axes = eval_now(lambda x: jnp.moveaxis(rotation_matrix(x.T), -1, 0), turns)
        bodies = tuple(g.body for g in geoms)
        self.bodies = None if set(bodies) == {None} else bodies

    def frames(self, q: Config) -> Frame:
        return Frame(*world_frame(q, self.bodies, self.positions, self.axes))


class ShapePairs(eqx.Module):
    """The closest points of pairs of geoms, `(t, pose) -> (p1, p2, n)`, group by group.

    With `near` only so many pairs of each group have them, those whose bounding spheres are nearest to each
    other. The places of the others are points of these spheres: their gap is a lower bound.

    **Arguments:** `tables`: geoms of equal kinds; `groups`: pairs of equal kinds: the two tables and, for
    each pair, a row of each; `pair`: which pair each contact belongs to; `places`: of a pair of each group;
    `names`: of the pairs; `near`: see above, `None` for all pairs.
    """

    tables: tuple[_Alike, ...]
    groups: tuple[tuple[int, int, tuple[int, ...], tuple[int, ...]], ...] = eqx.field(static=True)
    pair: tuple[int, ...] = eqx.field(static=True)
    places: tuple[int, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    near: int | None = eqx.field(default=None, static=True)

    is_scleronomic = True

    @property
    def most_known(self) -> int | None:
        """How many contacts have a known gap; `None`: all."""
        if self.near is None or all(self.near >= len(rows) for *_, rows in self.groups):
            return None
        counts = (min(self.near, len(rows)) for *_, rows in self.groups)
        return sum(n * s for n, s in zip(counts, self.places, strict=True))

    @property
    def contact_names(self) -> tuple[str, ...]:
        return tuple(self.names[i] for i in self.pair)

    def known(self, q: Config) -> Bool[Array, " c"]:
        """Which contacts have a known gap."""
        placed, found = self._placed(q), []
        for pair, places in zip(placed, self.places, strict=True):
            chosen, _ = self._nearest(pair)
            count = len(pair[1].centre)
            known = jnp.zeros(count, bool).at[chosen].set(True)
            found.append(jnp.repeat(known, places))
        return jnp.concatenate(found)

    def _placed(self, q: Config) -> list[tuple]:
        """The shapes and frames of the pairs of every group, `(shape1, frame1, shape2, frame2)`."""
        frames = [table.frames(q) for table in self.tables]

        def picked(table, rows):
            given = self.tables[table].shapes, frames[table]
            return jax.tree.map(lambda x: entries_at(x, rows) if eqx.is_array(x) else x, given)

        return [(*picked(one, of1), *picked(two, of2)) for one, two, of1, of2 in self.groups]

    def _nearest(self, placed: tuple) -> tuple[Int[Array, " k"], Closest]:
        """Which pairs of a group are nearest to each other, and the places on all bounding spheres."""
        spheres = eqx.filter_vmap(_bounding)(*placed)
        count = min(self.near or 0, len(placed[1].centre))
        return smallest_entries(jax.lax.stop_gradient(spheres.gap), count), spheres

    def closest(self, q: Config) -> list[Closest]:
        """Those of every group, each with the shapes `(pairs, places, 3)`."""
        found = []
        for placed, places in zip(self._placed(q), self.places, strict=True):
            if self.near is None or self.near >= len(placed[1].centre):
                found.append(eqx.filter_vmap(closest)(*placed))
                continue
            chosen, spheres = self._nearest(placed)
            exact = eqx.filter_vmap(closest)(*_rows(placed, chosen))
            apart = jax.tree.map(lambda x, n=places: jnp.repeat(x[:, None], n, axis=1), spheres)
            found.append(jax.tree.map(lambda x, y, at=chosen: x.at[at].set(y), apart, exact))
        return found

    def crowded(self, q: Config) -> list[tuple[int, float]]:
        """The pairs whose bounding spheres overlap and that did not fit, with the gaps of these [m].

        Not under `jit`.
        """
        gaps = jnp.concatenate([c.gap.reshape(-1) for c in self.closest(q)])
        left = ~np.asarray(self.known(q)) & (np.asarray(gaps) < 0)
        return sorted({(self.pair[i], float(gaps[i])) for i in np.flatnonzero(left)})

    def __call__(self, t: Scalar, q: Config) -> tuple[Array, Array, Array]:
        return _closest_points(self, q)


@eqx.filter_jit
def _closest_points(pairs: ShapePairs, q: Config) -> tuple[Array, Array, Array]:
    """Closest points and normals, traced once for all contacts of a step and for those that are solved."""
    points = [(c.point1, c.point2, c.normal) for c in pairs.closest(q)]
    p1, p2, n = (
        jnp.concatenate([x.reshape(-1, 3) for x in part]) for part in zip(*points, strict=True)
    )
    return p1, p2, n


def _rows(tree, rows):
    return jax.tree.map(lambda x: x[rows] if eqx.is_array(x) else x, tree)


def _bounding(
    shape1: AbstractShape, frame1: Frame, shape2: AbstractShape, frame2: Frame
) -> Closest:
    """The points of two bounding spheres that are nearest to each other, `(3,)` each.

    Of a shape without bounds the point below the other one; the gap is never longer than that of the shapes.
    """

    def below(x1):
        return shape2.clearance(frame2.to_shape(x1))

    def above(x2):
        return shape1.clearance(frame1.to_shape(x2))

    radius1, radius2 = shape1.bound(), shape2.bound()
    bounded = jnp.isfinite(radius1)
    down, slope1 = jax.value_and_grad(below)(frame1.centre)
    up, slope2 = jax.value_and_grad(above)(frame2.centre)
    gap = jnp.where(bounded, down - jnp.where(bounded, radius1, 0), up - radius2)
    slope = jnp.where(bounded, slope1, -slope2)
    length = safe_norm(slope)
    z = jnp.zeros_like(slope).at[2].set(1)
    n = jnp.where(length > 0, slope / jnp.where(length > 0, length, 1), z)
    point1 = jnp.where(
        bounded,
        frame1.centre - jnp.where(bounded, radius1, 0) * n,
        frame2.centre + (gap + radius2) * n,
    )
    return Closest(point1, point1 - gap * n, n)


@checked_arguments
def shape_contacts(
    pairs: Sequence[tuple[Geom, Geom]],
    rolling: bool = False,
    near: int | None = None,
    spin: Numbers | None = None,
    roll: Numbers | None = None,
) -> ContactFrame:
    """Contacts between shapes on bodies, see `diffnsd.shapes`.

        floor, box = Geom(HalfSpace()), Geom(Box((0.1, 0.1, 0.1)), body=0)
        Interaction(shape_contacts([(box, floor)]), CoulombFriction(0.4))

    A pair has as many contacts as its shapes have places to touch: 1 for spheres, 8 for a box on a half
    space, 4 for two boxes. Pairs of equal kinds are computed together: the program does not grow with
    their number. Contacts are ordered by these kinds, in the order in which they first appear, then by
    pair, then by place. `contacts.function.pair` says for every contact which pair it belongs to, so that
    friction that differs is `CoulombFriction(mu_of_pairs[np.array(contacts.function.pair)])`.

    **Arguments:** `pairs`: of `Geom`, `(geom1, geom2)`; the normal points from the second to the first. A
    geom in several pairs is stored once. `rolling`: as in `ContactFrame`. `near`: find the places only of so
    many pairs of each two kinds of shapes, those whose bounding spheres are nearest to each other. The gap
    of the others is that of these spheres, and they are not solved: if one closes in a step, the result is
    `contact_overflow` and names the pair; `contacts.function.crowded(q)` lists all that did not fit.
    `None`: all. `spin`, `roll`: as in `ContactFrame`, but one length for each pair, `(pairs,)`, or one for
    all.

    **Raises:** `ValueError` if there is no pair, `near` is not at least 1, both geoms of one belong to the
    same body or to the world, or their shapes are not supported together.
    """
    pairs = tuple(pairs)
    if not pairs:
        raise ValueError("pairs must be at least one pair of geoms, such as [(box, floor)].")
    if near is not None and (not isinstance(near, Integral) or near < 1):
        raise ValueError(f"near must be an integer, 1 or more, or None for all pairs, got {near}.")
    for number, (one, two) in enumerate(pairs):
        if one.body == two.body:
            where = "the world" if one.body is None else f"body {one.body}"
            raise ValueError(f"both geoms of pair {number} belong to {where}: they cannot touch.")
    kinds: dict = {}
    place: dict[int, tuple[int, int]] = {}  # of a geom: its table, and its row there
    for geom in (g for pair in pairs for g in pair):
        if id(geom) not in place:
            table, members = kinds.setdefault(_kind(geom.shape), (len(kinds), []))
            place[id(geom)] = table, len(members)
            members.append(geom)
    grouped: dict[tuple[int, int], list[int]] = {}
    for number, (one, two) in enumerate(pairs):
        grouped.setdefault((place[id(one)][0], place[id(two)][0]), []).append(number)

    for numbers in grouped.values():
        shapes = [geom.shape for geom in pairs[numbers[0]]]
        if (
            near is not None
            and len(numbers) > near
            and any(isinstance(s, Implicit) for s in shapes)
        ):
            raise ValueError(
                f"near={near} leaves out pairs that are far apart, and how far from an Implicit surface a "
                f"shape is at least is not known: give near={len(numbers)} or more, or a HeightField."
            )

    def rows(side: int, numbers: list[int]) -> tuple[int, ...]:
        return tuple(place[id(pairs[i][side])][1] for i in numbers)

    groups = tuple((*key, rows(0, numbers), rows(1, numbers)) for key, numbers in grouped.items())
    places = tuple(_places(pairs[numbers[0]]) for numbers in grouped.values())
    contacts = [
        i
        for numbers, count in zip(grouped.values(), places, strict=True)
        for i in numbers
        for _ in range(count)
    ]
    tables = tuple(_Alike(members) for _, members in kinds.values())
    one, two = (_of_contacts([pairs[i][side].body for i in contacts]) for side in (0, 1))
    names = tuple(f"{one.name} with {two.name}" for one, two in pairs)
    function = ShapePairs(tables, groups, tuple(contacts), places, names, near)
    for name, x in (("spin", spin), ("roll", roll)):
        if x is not None and np.shape(x) not in ((), (len(pairs),)):
            raise ValueError(
                f"{name} must be one length or one for each of {len(pairs)} pairs, got shape {np.shape(x)}."
            )
    ones = np.ones(len(pairs))
    lengths = (None if x is None else (x * ones)[np.array(contacts)] for x in (spin, roll))
    return ContactFrame(function, one, two, rolling, *lengths)


def _kind(shape: AbstractShape):
    """What shapes must have in common to be stacked: type, what is not an array, and sizes of arrays."""
    leaves = tuple(x.shape if eqx.is_array(x) else x for x in jax.tree.leaves(shape))
    return jax.tree.structure(shape), leaves


def _places(pair: tuple[Geom, Geom]) -> int:
    frame = Frame(jnp.zeros(3), jnp.eye(3))
    found = eqx.filter_eval_shape(closest, pair[0].shape, frame, pair[1].shape, frame)
    return found.point1.shape[0]


def _of_contacts(bodies: list[int | None]) -> Bodies:
    """One index if all are equal: contacts of one body need no table."""
    return bodies[0] if len(set(bodies)) == 1 else tuple(bodies)
