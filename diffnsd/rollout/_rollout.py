"""Mapping a function of one lane over a batch."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

Out = TypeVar("Out")

CHUNK = 256
"""Lanes that are stepped together: the working set of a step then fits the cache of a core."""


def rollout(
    simulate_fn: Callable[[PyTree], Out],
    batch: PyTree,
    *,
    chunk: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> Out:
    """Maps `simulate_fn` over the leading axis of `batch`, in chunks, on everything there is.

    The lanes of a chunk are stepped together by `vmap` and a chunk's loops end when its own lanes
    are done. Called on plain arrays, the chunks run on all cores of the host (or one after the
    other on an accelerator); called inside `jit` or a derivative, they are mapped one after the
    other in the compiled program. The result does not depend on it.

    For a gradient on all cores map the gradient: `rollout(jax.value_and_grad(loss_of_a_lane),
    batch)`, and sum. Pass the same function object again to reuse its compilation; values that
    change belong in `batch`.

    **Arguments:**

    - `simulate_fn`: pure function of one lane, for example a call of `simulate`.
    - `batch`: pytree of arrays with one leading axis of lanes.
    - `chunk`: lanes per chunk, default 256, and at most an equal share for every core.
    - `mesh`: a one-dimensional mesh of devices to spread the lanes over; the number of lanes must
      be a multiple of its size.

    **Returns:** the outputs, stacked along a leading axis of lanes.

    **Raises:** `ValueError` if the leaves of `batch` do not share a leading axis.
    """
    lanes = _lanes(batch)
    if mesh is not None:
        return _sharded(simulate_fn, batch, lanes, mesh, chunk)
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(batch)):
        size = min(chunk or CHUNK, lanes)
        return (
            jax.lax.map(simulate_fn, batch, batch_size=size) if lanes else _all(simulate_fn, batch)
        )
    workers = max(1, os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
    size = min(chunk or CHUNK, max(1, -(-lanes // workers)))
    starts = list(range(0, lanes, size))
    if len(starts) <= 1:
        return _compiled(simulate_fn, batch)
    # The last chunk is filled up with its first lanes, so that every chunk has one shape.
    pieces = [jax.tree.map(lambda x, i=i: x[np.arange(i, i + size) % lanes], batch) for i in starts]
    first = _warm(simulate_fn, pieces[0])
    with ThreadPoolExecutor(workers) as pool:
        outs = list(pool.map(lambda p: jax.block_until_ready(_compiled(simulate_fn, p)), pieces))
    del first
    joined = jax.tree.map(lambda *x: jnp.concatenate(x)[:lanes], *outs)
    return joined


def _warm(simulate_fn, piece):
    """Compiles once, before several threads would do so at the same time."""
    return _compiled.lower(simulate_fn, piece).compile()


def _all(simulate_fn, batch):
    return jax.vmap(simulate_fn)(batch)


_compiled = eqx.filter_jit(_all)


def _sharded(simulate_fn, batch, lanes, mesh, chunk):
    (axis,) = mesh.axis_names
    if lanes % mesh.size:
        raise ValueError(f"{lanes} lanes do not divide over {mesh.size} devices; pad the batch.")
    spec = jax.sharding.PartitionSpec(axis)

    def local(part):
        size = min(chunk or CHUNK, _lanes(part))
        return jax.lax.map(simulate_fn, part, batch_size=size)

    spread = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(spread)(batch)


def _lanes(batch) -> int:
    leaves = jax.tree.leaves(batch)
    counts = {np.shape(x)[0] if np.ndim(x) else None for x in leaves}
    if len(counts) != 1 or None in counts:
        raise ValueError(
            f"the leaves of the batch must share one leading axis, got lengths {sorted(map(str, counts))}."
        )
    return len(leaves[0])
