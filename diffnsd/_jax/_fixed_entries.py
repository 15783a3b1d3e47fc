"""Entries of an array at places that are known when compiling, and sums into such places.

The transpose of JAX's own indexing adds entry by entry, on a CPU in a loop: in the gradient of a step of a
tree of joints these loops were a fifth of the time. Where the places are known, it is indexing too: every
entry of the result reads those that belong to it.
"""

from functools import reduce
from operator import add

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

RUNS = 4
"""Most runs of consecutive places that are copied as slices, which fuse with their surroundings."""

CHAIN = 8
"""Most entries of one place that are added one by one, which fuses where a reduction does not."""

UNEVEN = 8
"""How many times more entries than there are a sum may read, before it is a loop after all."""


def entries_at(x: Array, places, axis: int = 0) -> Array:
    """The entries of an array at fixed places along an axis, `x[places]` for `axis = 0`.

    **Arguments:** `places`: integers of any shape, at least 0; their axes take the place of `axis`.

    **Raises:** `IndexError` if there is no such axis or place; `TypeError` if places are no integers.
    """
    x, places = jnp.asarray(x), np.asarray(places)
    axis = range(x.ndim)[axis]
    if not places.size:
        places = places.astype(int)
    if places.dtype.kind not in "iu":
        raise TypeError(f"places must be integers, got an array of {places.dtype}.")
    if places.size and not 0 <= places.min() <= places.max() < x.shape[axis]:
        raise IndexError(f"places {places.tolist()} of an axis of length {x.shape[axis]}.")
    flat = tuple(places.reshape(-1).tolist())
    out = entries_p.bind(x, places=flat, size=x.shape[axis], axis=axis, adds=False)
    return out.reshape((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))


def runs(places) -> list[tuple[int, int, int]]:
    """Begin, end and first place of each run of consecutive places: slices fuse, index tables do not."""
    breaks = [int(i) + 1 for i in np.flatnonzero(np.diff(places) != 1)]
    ends = [0, *breaks, len(places)]
    return [(a, b, int(places[a])) for a, b in zip(ends[:-1], ends[1:], strict=True) if a < b]


def sums_at(y: Array, places: np.ndarray, size: int) -> Array:
    """The sums of rows `y (c, ...)` that belong to the same fixed place `(c,)`, `(size, ...)`."""
    return entries_p.bind(y, places=tuple(places.tolist()), size=size, axis=0, adds=True)


entries_p = Primitive("diffnsd_entries_at")


def _evaluate(x, *, places, size, axis, adds):
    places = np.array(places, np.int32)
    return _added(x, places, size, axis) if adds else _read(x, places, axis)


def _read(x: Array, places: np.ndarray, axis: int) -> Array:
    """The entries at `places`."""
    found = runs(places)
    if not len(places) or len(found) > RUNS:
        return jnp.take(x, places, axis=axis, mode="clip")
    before = (slice(None),) * axis
    parts = [x[(*before, slice(first, first + end - begin))] for begin, end, first in found]
    return jnp.concatenate(parts, axis=axis) if len(parts) > 1 else parts[0]


def _added(y: Array, places: np.ndarray, size: int, axis: int) -> Array:
    """The sums of entries that belong to the same place, the transpose of `_read`."""
    zeros = jnp.zeros((*y.shape[:axis], size, *y.shape[axis + 1 :]), y.dtype)
    if not len(places):
        return zeros
    most = int(np.bincount(places).max())
    if most * size > UNEVEN * max(len(places), size):
        return zeros.at[(*(slice(None),) * axis, places)].add(y)
    table, there = _sources(places, size, most)

    def read(sources, there):
        part = _read(y, sources, axis)
        mask = there.reshape((-1,) + (1,) * (y.ndim - axis - 1))
        return part if there.all() else jnp.where(mask, part, 0)

    if most <= CHAIN:
        return reduce(add, map(read, table, there))
    whole = read(table.reshape(-1), there.reshape(-1))
    shape = *y.shape[:axis], *table.shape, *y.shape[axis + 1 :]
    return jnp.sum(whole.reshape(shape), axis=axis, dtype=y.dtype)


def _sources(places: np.ndarray, size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """For every place the entries that belong to it, `(most, size)`, and where there is one.

    Elsewhere the sources run on from those before, so that there are fewer runs.
    """
    order, counts = np.argsort(places, kind="stable"), np.bincount(places, minlength=size)
    begins, rank, column = np.cumsum(counts) - counts, np.arange(most)[:, None], np.arange(size)
    there = rank < counts
    table = order[np.minimum(begins + rank, len(order) - 1)]
    known = np.maximum.accumulate(np.where(there, column, -1), axis=1)
    last = np.where(known < 0, 0, np.take_along_axis(table, np.maximum(known, 0), axis=1))
    return np.minimum(last + column - np.maximum(known, 0), len(places) - 1), there


@entries_p.def_abstract_eval
def _abstract(x, *, places, size, axis, adds):
    length = size if adds else len(places)
    return ShapedArray((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)


def _batch(arguments, axes, *, axis, **params):
    (x,), (at,) = arguments, axes
    return entries_p.bind(x, axis=axis + (at <= axis), **params), at


def _transpose(cotangent, x, *, adds, **params):
    del x
    return (entries_p.bind(cotangent, adds=not adds, **params),)


entries_p.def_impl(_evaluate)
ad.deflinear2(entries_p, _transpose)
batching.primitive_batchers[entries_p] = _batch
mlir.register_lowering(entries_p, mlir.lower_fun(_evaluate, multiple_results=False))
