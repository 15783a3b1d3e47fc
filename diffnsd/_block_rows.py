"""Rows of contacts that involve a few bodies each.

A contact of body i with body j has entries only in the columns of these two. They are stored as blocks:
storage and work grow with the number of contacts, not with contacts times bodies, and nothing is unrolled
over either.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ._jax import entries_at, runs, sums_at
from ._numerics import LOOP_LIMIT, dot, short_product, short_sum, weighted_sum
from ._own_rows import OwnRows
from ._world_rows import WorldRows

Bodies = int | tuple[int | None, ...] | None
"""Indices of bodies: the same one for all contacts, or one for each; `None` is no body (the world)."""


def of_bodies(x: Array, bodies: Bodies) -> Array:
    """Rows of `x (b, ...)`: `(...)` for one index, else `(..., c)`, contacts on the last axis.

    Where there is no body, the entries are those of body 0; the caller must ignore them.
    """
    if isinstance(bodies, int):
        return x[bodies]
    assert bodies is not None
    return jnp.moveaxis(entries_at(x, _numbers(bodies)), 0, -1)


def _numbers(bodies: tuple[int | None, ...]) -> np.ndarray:
    return np.array([0 if i is None else i for i in bodies], np.int32)


def in_lanes(x: Array, bodies: Bodies) -> Array:
    """Rows of `x (b, ...)` as `(..., c)`; a single index gives a last axis of length 1."""
    rows = of_bodies(x, bodies)
    return rows if isinstance(bodies, tuple) else rows[..., None]


def _listed(bodies: Bodies, contacts: int) -> tuple[int | None, ...]:
    """One index for each contact."""
    return bodies if isinstance(bodies, tuple) else (bodies,) * contacts


class AbstractRows(eqx.Module):
    """`H (k, n, c)` of contacts that touch a few bodies each, not stored as one array."""

    @abstractmethod
    def first(self, k: int) -> Any:
        """The first `k` rows of every contact."""

    @abstractmethod
    def dense(self) -> Float[Array, "k n c"]:
        """The matrix itself."""

    @abstractmethod
    def apply(self, v: Float[Array, " n"]) -> Float[Array, "k c"]:
        """`H v`."""

    def gather(self, z: Float[Array, "k c"]) -> Float[Array, " n"]:
        """`H^T z`."""
        return gather(self.dense(), z)

    def entries(self) -> "EntryRows":
        """The same matrix with its entries in listed columns; here in all of them."""
        values = self.dense()
        _, n, c = values.shape
        columns = np.broadcast_to(np.arange(n, dtype=np.int32), (c, n))
        return EntryRows(values, jnp.asarray(columns), n)


class BlockRows(AbstractRows):
    """`H` of `c` contacts with `k` rows each and `s` columns for each of `b` bodies.

    **Arguments:**

    - `values`: for each side of a contact its entries, shape `(k, s, c)`.
    - `bodies`: for each side the indices of its bodies.
    - `count`: number of bodies `b`.
    - `world`: for each side the same rows in world axes, with couples about the positions of the bodies;
      `None` where the relation gives none, as in the plane. They do not follow a change of `values`.
    """

    values: tuple[Float[Array, "k s c"], ...]
    world: tuple[WorldRows, ...] | None
    bodies: tuple[int | tuple[int | None, ...], ...] = eqx.field(static=True)
    count: int = eqx.field(static=True)

    def __init__(self, values, bodies, count: int, world=None):
        def kept(of_sides):
            pairs = [(x, i) for x, i in zip(of_sides, bodies, strict=True) if i is not None]
            return tuple(jax.tree.map(lambda y, i=i: _without_absent(y, i), x) for x, i in pairs)

        self.values = kept(values)
        self.world = None if world is None else kept(world)
        self.bodies = tuple(i for i in bodies if i is not None)
        self.count = count

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(k, n, c)`, the shape of the matrix."""
        k, s, c = self.values[0].shape
        return k, s * self.count, c

    def first(self, k: int) -> "BlockRows":
        world = None if self.world is None else tuple(x.first(k) for x in self.world)
        values = tuple(x[:k] for x in self.values)
        return eqx.tree_at(lambda r: (r.values, r.world), self, (values, world), is_leaf=_is_none)

    def of_sides(self, x: Float[Array, "b ..."]) -> list[Float[Array, "... c"]]:
        """For each side the rows of `x` that belong to its bodies; one lane for a single body."""
        return [in_lanes(x, bodies) for bodies in self.bodies]

    def dense(self) -> Float[Array, "k n c"]:
        return sum(map(self._placed, self.values, self.bodies))  # pyright: ignore[reportReturnType]

    def _placed(self, x: Array, bodies: int | tuple[int | None, ...]) -> Array:
        k, s, c = x.shape
        if isinstance(bodies, int):
            return jnp.pad(x, ((0, 0), (s * bodies, s * (self.count - 1 - bodies)), (0, 0)))
        here = np.arange(self.count, dtype=np.int32)[:, None] == jnp.asarray(_numbers(bodies))[None]
        return jnp.where(here[None, :, None], x[:, None], 0).reshape(k, s * self.count, c)

    def apply(self, v: Float[Array, " n"]) -> Float[Array, "k c"]:
        by_body = v.reshape(self.count, -1)
        total = 0.0
        for x, bodies in zip(self.values, self.bodies, strict=True):
            own = in_lanes(by_body, bodies)
            total = total + dot(jnp.swapaxes(x, 0, 1), own[:, None])
        return total  # pyright: ignore[reportReturnType]

    def gather(self, z: Float[Array, "k c"]) -> Float[Array, " n"]:
        s = self.values[0].shape[1]
        total = jnp.zeros((self.count, s), z.dtype)
        for x, bodies in zip(self.values, self.bodies, strict=True):
            load = dot(x, z[:, None]).T
            if isinstance(bodies, int):
                total = total.at[bodies].add(jnp.sum(load, axis=0))
                continue
            total = total + sums_at(load, _numbers(bodies), self.count)
        return total.reshape(-1)

    def sides(self) -> list[tuple[Float[Array, "k s c"], Int[Array, " c"]]]:
        """For each side of the contacts its entries and the indices of its bodies."""
        pairs = zip(self.values, self.bodies, strict=True)
        return [(x, jnp.asarray(_numbers(_listed(i, x.shape[2])))) for x, i in pairs]

    def entries(self) -> "EntryRows":
        return _of_sides(self.sides(), self.count)

    def times(self, other: "BlockRows") -> Float[Array, "k c l d"]:
        """`H G^T` for the rows `G (l, n, d)` of other contacts of the same bodies."""
        total = 0.0
        for x, mine in zip(self.values, self.bodies, strict=True):
            for y, theirs in zip(other.values, other.bodies, strict=True):
                both = jnp.einsum("ksc,lsd->kcld", x, y)
                if isinstance(mine, int) and isinstance(theirs, int):
                    total = total + (both if mine == theirs else 0)
                    continue
                pairs = (mine, x), (theirs, y)
                a, b = (jnp.asarray(_numbers(_listed(i, z.shape[2]))) for i, z in pairs)
                shared = a[None, :, None, None] == b[None, None, None, :]
                total = total + jnp.where(shared, both, 0)
        return total  # pyright: ignore[reportReturnType]


class PickedRows(AbstractRows):
    """`H` of contacts whose bodies are known only while a step runs.

    **Arguments:** `values`: for each side of a contact its entries, `(k, s, c)`; `whose`: for each side which
    body it is, 1 or 0, `(c, b)`; `world`: as of `BlockRows`.
    """

    values: tuple[Float[Array, "k s c"], ...]
    whose: tuple[Float[Array, "c b"], ...]
    world: tuple[WorldRows, ...]

    def first(self, k: int) -> "PickedRows":
        values, world = tuple(x[:k] for x in self.values), tuple(x.first(k) for x in self.world)
        return PickedRows(values, self.whose, world)

    def of_sides(self, x: Float[Array, "b ..."]) -> list[Float[Array, "... c"]]:
        """As of `BlockRows`."""
        flat = x.reshape(len(x), -1)
        return [short_product(w, flat).T.reshape((*x.shape[1:], -1)) for w in self.whose]

    def dense(self) -> Float[Array, "k n c"]:
        k, _, c = self.values[0].shape
        pairs = zip(self.values, self.whose, strict=True)
        return sum((x[:, None] * w.T[None, :, None]).reshape(k, -1, c) for x, w in pairs)  # pyright: ignore[reportReturnType]

    def apply(self, v: Float[Array, " n"]) -> Float[Array, "k c"]:
        own = self.of_sides(v.reshape(self.whose[0].shape[1], -1))
        pairs = zip(self.values, own, strict=True)
        return sum(dot(jnp.swapaxes(x, 0, 1), y[:, None]) for x, y in pairs)  # pyright: ignore[reportReturnType]


class ListedRows(AbstractRows):
    """`H` of many contacts from a list that is made while a step runs.

    Unlike `PickedRows`, storage and work do not grow with contacts times bodies.

    **Arguments:** `values`: for each side of a contact its entries, `(k, s, c)`; `bodies`: for each side the
    indices of its bodies, `(c,)`; `count`: number of bodies.
    """

    values: tuple[Float[Array, "k s c"], ...]
    bodies: tuple[Int[Array, " c"], ...]
    count: int = eqx.field(static=True)

    def first(self, k: int) -> "ListedRows":
        return ListedRows(tuple(x[:k] for x in self.values), self.bodies, self.count)

    def dense(self) -> Float[Array, "k n c"]:
        def placed(x, bodies):
            here = jnp.arange(self.count, dtype=bodies.dtype)[:, None] == bodies[None]
            full = jnp.where(here[None, :, None], x[:, None], 0)
            return full.reshape(len(x), -1, x.shape[2])

        return sum(map(placed, self.values, self.bodies))  # pyright: ignore[reportReturnType]

    def sides(self) -> list[tuple[Float[Array, "k s c"], Int[Array, " c"]]]:
        """For each side of the contacts its entries and the indices of its bodies."""
        return list(zip(self.values, self.bodies, strict=True))

    def apply(self, v: Float[Array, " n"]) -> Float[Array, "k c"]:
        by_body = v.reshape(self.count, -1)
        pairs = zip(self.values, self.bodies, strict=True)
        return sum(dot(jnp.swapaxes(x, 0, 1), by_body[i].T[:, None]) for x, i in pairs)  # pyright: ignore[reportReturnType]

    def entries(self) -> "EntryRows":
        return _of_sides(self.sides(), self.count)

    def gather(self, z: Float[Array, "k c"]) -> Float[Array, " n"]:
        total = jnp.zeros((self.count, self.values[0].shape[1]), z.dtype)
        for x, bodies in zip(self.values, self.bodies, strict=True):
            total = total.at[bodies].add(dot(x, z[:, None]).T)
        return total.reshape(-1)


class EntryRows(AbstractRows):
    """`H` of contacts with entries in a few columns each, in any places.

    **Arguments:** `values`: the entries, `(k, d, c)`; `columns`: where they are, `(c, d)`, left out where it
    is not below `n`, the number of columns.
    """

    values: Float[Array, "k d c"]
    columns: Int[Array, "c d"]
    n: int = eqx.field(static=True)

    def first(self, k: int) -> "EntryRows":
        return EntryRows(self.values[:k], self.columns, self.n)

    def entries(self) -> "EntryRows":
        return self

    def placed(self, first: int, total: int) -> "EntryRows":
        """The same rows for unknowns that come `first` among the `total` ones of a larger system."""
        known = self.columns < self.n
        return EntryRows(self.values, jnp.where(known, self.columns + first, total), total)

    def dense(self) -> Float[Array, "k n c"]:
        k, _, c = self.values.shape
        zeros, each = jnp.zeros((k, self.n, c), self.values.dtype), np.arange(c)[:, None]
        return zeros.at[:, self.columns, each].add(jnp.swapaxes(self.values, 1, 2), mode="drop")

    def apply(self, v: Float[Array, " n"]) -> Float[Array, "k c"]:
        own = v.at[self.columns].get(mode="fill", fill_value=0).T
        return dot(jnp.swapaxes(self.values, 0, 1), own[:, None])

    def gather(self, z: Float[Array, "k c"]) -> Float[Array, " n"]:
        load = dot(self.values, z[:, None]).T
        return jnp.zeros(self.n, z.dtype).at[self.columns].add(load, mode="drop")


def _of_sides(sides, count: int) -> EntryRows:
    """Rows with entries in the columns of some of `count` bodies."""
    values, bodies = zip(*sides, strict=True)
    s = values[0].shape[1]
    columns = [s * i[:, None] + np.arange(s, dtype=np.int32) for i in bodies]
    return EntryRows(jnp.concatenate(values, axis=1), jnp.concatenate(columns, axis=1), s * count)


class CoordinateRows(AbstractRows):
    """`H` of contacts with one row, of one entry each: limits of joints, friction in them.

    **Arguments:** `values`: the entries, `(1, c, ...)`; `columns`: where they are, one for each contact;
    `n`: number of columns.
    """

    values: Float[Array, "1 c ..."]
    columns: tuple[int, ...] = eqx.field(static=True)
    n: int = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(k, n, c)`, the shape of the matrix."""
        return 1, self.n, len(self.columns)

    def first(self, k: int) -> "CoordinateRows":
        return CoordinateRows(self.values[:k], self.columns, self.n)

    def entries(self) -> "EntryRows":
        columns = jnp.asarray(np.array(self.columns, np.int32)[:, None])
        return EntryRows(self.values[:, None], columns, self.n)

    def dense(self) -> Float[Array, "1 n c ..."]:
        here = np.arange(self.n)[:, None] == np.array(self.columns)
        here = here.reshape((1, *here.shape) + (1,) * (self.values.ndim - 2))
        return jnp.where(here, self.values[:, None], 0)

    def apply(self, v: Float[Array, "n ..."]) -> Float[Array, "1 c ..."]:
        own = [v[first : first + stop - start] for start, stop, first in runs(self.columns)]
        return self.values * jnp.concatenate(own)[None]

    def gather(self, z: Float[Array, "1 c ..."]) -> Float[Array, "n ..."]:
        return self._added(self.values * z)

    def times(self, left: Array) -> "CoordinateRows":
        """`G H` for `G (1, 1, c, ...)`."""
        return CoordinateRows(left[0] * self.values, self.columns, self.n)

    def square(self, right: "CoordinateRows") -> Float[Array, "n ..."]:
        """The diagonal of `H^T G`, which has no other entries, for `G` with entries in the same places."""
        return self._added(self.values * right.values)

    def _added(self, x: Array) -> Array:
        """What each column gets of `x (1, c, ...)`, contact by contact."""
        rest = ((0, 0),) * (x.ndim - 2)
        return sum(
            jnp.pad(x[0, start:stop], ((first, self.n - first - stop + start), *rest))
            for start, stop, first in runs(self.columns)
        )  # pyright: ignore[reportReturnType]


def without_world(rows: Any) -> Any:
    """Rows as a problem keeps them: its solver reads none in world axes."""
    if not isinstance(rows, BlockRows):
        return rows
    return eqx.tree_at(lambda r: r.world, rows, None, is_leaf=_is_none)


def _is_none(x: Any) -> bool:
    return x is None


def _without_absent(x: Array, bodies: Bodies) -> Array:
    """Sets the entries of contacts that have no body on this side to zero."""
    present = np.array([i is not None for i in _listed(bodies, x.shape[-1])], bool)
    return x if present.all() else jnp.where(present, x, 0)


def dense(matrix: "Array | AbstractRows | OwnRows") -> Any:
    """Rows of contacts as an array; `OwnRows` are returned unchanged."""
    return matrix.dense() if isinstance(matrix, AbstractRows) else matrix


def apply(matrix: "Array | AbstractRows | OwnRows", v: Array) -> Array:
    """`H v` for `H (k, n, c, ...)` and `v (n, ...)`."""
    if isinstance(matrix, AbstractRows | OwnRows):
        return matrix.apply(v)
    if v.shape[0] > LOOP_LIMIT:
        return jnp.einsum("knc...,n...->kc...", matrix, v)
    return weighted_sum(matrix, v, axis=1)


def gather(matrix: "Array | AbstractRows | OwnRows", z: Array) -> Array:
    """`H^T z` for `H (k, n, c, ...)` and `z (k, c, ...)`: unrolled over rows, summed over contacts."""
    if isinstance(matrix, AbstractRows | OwnRows):
        return matrix.gather(z)
    return short_sum(weighted_sum(matrix, z), 1, LOOP_LIMIT)
