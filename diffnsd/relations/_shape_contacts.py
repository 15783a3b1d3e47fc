"""Contacts between shapes that are placed on bodies."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._block_rows import Bodies
from .._jax import eval_now
from .._numerics import as_float
from .._types import Config, Scalar
from ..groups import rotation_matrix
from ..shapes import AbstractShape, Closest, Frame, closest
from ._base import body_indices
from ._contact_frame import ContactFrame
from ._joint import world_frame


class Geom(eqx.Module):
    """A shape placed on a body.

    **Arguments:** `shape`; `body`: index of the body, `None` for the world; `position` [m], `(3,)`, and
    `orientation`, unit quaternion, scalar first, `(4,)`: the frame of the shape in that of the body.

    **Raises:** `ValueError` if shapes of arrays do not match, or `body` is no integer.
    """

    shape: AbstractShape
    body: int | None = eqx.field(static=True)
    position: Float[Array, "3"]
    orientation: Float[Array, "4"]

    def __init__(
        self,
        shape: AbstractShape,
        body: int | None = None,
        position=(0.0, 0.0, 0.0),
        orientation=(1.0, 0.0, 0.0, 0.0),
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
        self.position, self.orientation = (
            eval_now(as_float, position),
            eval_now(as_float, orientation),
        )
        if self.position.shape != (3,) or self.orientation.shape != (4,):
            raise ValueError(
                f"position must have shape (3,) and orientation (4,), got {self.position.shape} and "
                f"{self.orientation.shape}."
            )


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

    **Arguments:** `tables`: geoms of equal kinds; `groups`: pairs of equal kinds: the two tables and, for
    each pair, a row of each; `pair`: which pair each contact belongs to.
    """

    tables: tuple[_Alike, ...]
    groups: tuple[tuple[int, int, tuple[int, ...], tuple[int, ...]], ...] = eqx.field(static=True)
    pair: tuple[int, ...] = eqx.field(static=True)

    is_scleronomic = True

    def closest(self, q: Config) -> list[Closest]:
        """Those of every group, each with the shapes `(pairs, places, 3)`."""
        frames = [table.frames(q) for table in self.tables]

        def picked(table, rows):
            rows = np.array(rows, np.int32)
            both = self.tables[table].shapes, frames[table]
            return jax.tree.map(lambda x: x[rows] if eqx.is_array(x) else x, both)

        return [
            eqx.filter_vmap(closest)(*picked(first, rows1), *picked(second, rows2))
            for first, second, rows1, rows2 in self.groups
        ]

    def __call__(self, t: Scalar, q: Config) -> tuple[Array, Array, Array]:
        found = self.closest(q)
        points = [(c.point1, c.point2, c.normal) for c in found]
        p1, p2, n = (
            jnp.concatenate([x.reshape(-1, 3) for x in part]) for part in zip(*points, strict=True)
        )
        return p1, p2, n


def shape_contacts(pairs: Sequence[tuple[Geom, Geom]], rolling: bool = False) -> ContactFrame:
    """Contacts between shapes on bodies, see `diffnsd.shapes`.

        floor, box = Geom(HalfSpace()), Geom(Box((0.1, 0.1, 0.1)), body=0)
        Interaction(shape_contacts([(box, floor)]), CoulombFriction(0.4))

    A pair has as many contacts as its shapes have places to touch: 1 for spheres, 8 for a box on a half
    space, 4 for two boxes. Pairs of equal kinds are computed together: the program does not grow with
    their number. Contacts are ordered by these kinds, in the order in which they first appear, then by
    pair, then by place. `contacts.function.pair` says for every contact which pair it belongs to, so that
    friction that differs is `CoulombFriction(mu_of_pairs[np.array(contacts.function.pair)])`.

    **Arguments:** `pairs`: of `Geom`, `(geom1, geom2)`; the normal points from the second to the first. A
    geom in several pairs is stored once. `rolling`: as in `ContactFrame`.

    **Raises:** `ValueError` if there is no pair, both geoms of one belong to the same body or to the world,
    or their shapes are not supported together.
    """
    if not pairs:
        raise ValueError("shape_contacts needs at least one pair of geoms.")
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

    def rows(side: int, numbers: list[int]) -> tuple[int, ...]:
        return tuple(place[id(pairs[i][side])][1] for i in numbers)

    groups = tuple((*key, rows(0, numbers), rows(1, numbers)) for key, numbers in grouped.items())
    contacts = [
        i for numbers in grouped.values() for i in numbers for _ in range(_places(pairs[i]))
    ]
    tables = tuple(_Alike(members) for _, members in kinds.values())
    one, two = (_of_contacts([pairs[i][side].body for i in contacts]) for side in (0, 1))
    return ContactFrame(ShapePairs(tables, groups, tuple(contacts)), one, two, rolling)


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
