"""Compiled programs for functions of one batch element, traced and compiled once per shape."""

import types
import warnings
import weakref
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, subjaxprs
from jax.sharding import Mesh
from jaxtyping import PyTree

from .._jax import quickly_compiled
from .._outline import Outline, by_identity, outline
from .._recompilation import RecompilationWarning


class Program(NamedTuple):
    """Maps a function over a batch.

    **Arguments:** `kept`: compiled programs of the function; `arrays`: the arrays it closes over;
    `has_loops`: whether it contains loops; `transformed`: whether it is part of another program.
    """

    kept: Any
    arrays: list
    has_loops: bool | None
    transformed: bool

    def __call__(self, batch: PyTree, size: int, mesh: Mesh | None) -> PyTree:
        run = self.kept.part if self.transformed else self.kept.run
        return run(self.arrays, batch, size, mesh)

    def prepare(self, chunk: PyTree, size: int) -> None:
        """Compiles for a chunk of this shape, without running it."""
        kind = _kind((self.arrays, chunk))
        if kind not in self.kept.prepared:
            self.kept.run.lower(self.arrays, chunk, size, None).compile()
            self.kept.prepared.add(kind)


def on_devices(function: Callable, mesh: Mesh | None) -> Callable:
    """`function` on every device of the mesh, with its share of the leading axis; alone without a mesh."""
    if mesh is None:
        return function
    share = jax.sharding.PartitionSpec(*mesh.axis_names)
    return jax.shard_map(function, mesh=mesh, in_specs=share, out_specs=share, check_vma=False)


def with_automatic_axis(mesh: Mesh) -> Mesh:
    """The devices of a mesh of one axis, whatever its type.

    An explicit one, the default of `jax.make_mesh`, would want every array to be put on the devices before.

    **Raises:** `ValueError` if the mesh has more than one axis.
    """
    if not isinstance(mesh, Mesh) or len(mesh.axis_names) != 1:
        raise ValueError(
            "mesh must have one axis of devices, jax.make_mesh((len(jax.devices()),), ('run',)), "
            f"got {getattr(mesh, 'axis_names', mesh)!r}."
        )
    return Mesh(mesh.devices, mesh.axis_names)


def find_program(function: Callable, batch: PyTree, transformed: bool) -> Program:
    """The program that maps a function of one batch element over a batch, not yet compiled.

    **Arguments:** `function`; `batch`: pytree of arrays; `transformed`: whether this is inside
    `jit`, `vmap` or a derivative. If so, functions that may hold a traced value are not cached.
    """
    known, arrays = outline(function)
    if not known.is_complete and not transformed:
        _warn_if_defined_anew(function)
    if known.is_complete or not transformed:
        kept = _kept(known)
        has_loops = kept.look(arrays, batch)
        if has_loops is not None:
            return Program(kept, arrays, has_loops, transformed)
    # Either its control flow depends on values of closed-over arrays, or it cannot be traced at all and
    # the caller gets that error.
    known = by_identity(function)
    kept = _Kept(known) if transformed else _kept(known)
    return Program(kept, [], kept.look([], batch), transformed)


_defined: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _warn_if_defined_anew(function: Callable) -> None:
    """Warns if a function that is identified only as an object was defined again."""
    if not isinstance(function, types.FunctionType):
        return
    code, own = function.__code__, weakref.ref(function)
    first = _defined.setdefault(code, own)
    if first is not own and first() is not function:
        _defined[code] = own
        warnings.warn(
            f"{function.__qualname__} was defined anew and compiles again: it reaches objects whose "
            "values may have changed. Define it once, outside of what calls `rollout`; or write it "
            "as an equinox.Module with what changes as fields; or put the call into an outer `jit`.",
            RecompilationWarning,
            stacklevel=4,
        )


class _Kept:
    """A function of one batch element, with its arrays as arguments, and its compiled programs.

    The function is traced once for all elements of the same shapes and dtypes, independent of batch,
    chunk and mesh.
    """

    def __init__(self, known: Outline):
        def one_lane(arrays, lane):
            return known.fill(arrays)(lane)

        self.lane = jax.jit(one_lane)
        # JAX takes options of the compiler only for a program of its own.
        self.part = jax.jit(self._run, static_argnums=(2, 3))
        self.run = jax.jit(self._run, static_argnums=(2, 3), **quickly_compiled())
        self.prepared: set = set()
        self._seen: dict = {}

    def _run(self, arrays, batch, size, mesh):
        return on_devices(partial(_mapped, partial(self.lane, arrays), size), mesh)(batch)

    def look(self, arrays: list, batch: PyTree) -> bool | None:
        """Whether the function contains loops; `None` if it cannot be traced."""
        kind = _kind((arrays, batch))
        if kind not in self._seen:
            lane = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
            try:
                self._seen[kind] = _has_loops(self.lane.trace(arrays, lane).jaxpr.jaxpr)
            except Exception:
                self._seen[kind] = None
        return self._seen[kind]


_kept = lru_cache(maxsize=64)(_Kept)
"""Programs of the most recently used functions."""


def _mapped(function: Callable, size: int, batch: PyTree) -> PyTree:
    """`function` of all elements, in chunks of at most `size`."""
    lanes = len(jax.tree.leaves(batch)[0])
    if lanes == 1:
        # Without an axis for the batch: steps of one motion are compiled for one.
        one = function(jax.tree.map(lambda x: x[0], batch))
        return jax.tree.map(lambda x: x[None], one)
    if size == 1:
        return jax.lax.map(function, batch)
    if size >= lanes:
        return jax.vmap(function)(batch)
    # Chunks of one size: of a shorter last one XLA would compile the function once more.
    chunks = -(-lanes // size)
    size = -(-lanes // chunks)
    out = jax.lax.map(function, padded(batch, chunks * size - lanes), batch_size=size)
    return jax.tree.map(lambda x: x[:lanes], out)


def padded(batch: PyTree, extra: int) -> PyTree:
    """The batch with its last element repeated."""

    def longer(x):
        return jnp.concatenate([x, jnp.broadcast_to(x[-1:], (extra, *x.shape[1:]))])

    return jax.tree.map(longer, jax.tree.map(jnp.asarray, batch)) if extra else batch


def _kind(tree: PyTree) -> tuple:
    """Structure, shapes and dtypes of a pytree of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple([(x.shape, x.dtype) for x in leaves])


def _has_loops(jaxpr: Jaxpr) -> bool:
    names = [equation.primitive.name for equation in jaxpr.eqns]
    return "while" in names or "scan" in names or any(map(_has_loops, subjaxprs(jaxpr)))
