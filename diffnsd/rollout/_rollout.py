"""Mapping a function of one lane over a batch."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from typing import TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state
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
    other on an accelerator); called inside `jit`, `vmap` or a derivative, they are mapped one after
    the other, and `simulate_fn` may close over what is being differentiated. The result does not
    depend on it.

    For a gradient on all cores map the gradient: `rollout(jax.value_and_grad(loss_of_a_lane),
    batch)`, and sum. Pass the same function object again to reuse its compilation; values that
    change belong in `batch`, since what a function closes over is compiled in, as by `jax.jit`.

    **Arguments:**

    - `simulate_fn`: pure function of one lane, for example a call of `simulate`.
    - `batch`: pytree of arrays with one leading axis of lanes.
    - `chunk`: lanes per chunk, at least 1; default 256, and at most an equal share for every core.
    - `mesh`: a one-dimensional mesh of devices to spread the lanes over; the number of lanes must
      be a multiple of its size.

    **Returns:** the outputs, stacked along a leading axis of lanes; arrays of length 0 for none.

    **Raises:** `ValueError` if the leaves of `batch` do not share a leading axis, `chunk` is not a
    positive whole number, `mesh` has more than one axis, or the lanes do not divide over it.
    """
    lanes = _lanes(batch)
    if chunk is not None and not (isinstance(chunk, Integral) and chunk >= 1):
        raise ValueError(f"chunk must be a whole number of lanes, at least 1, got {chunk!r}.")
    limit = CHUNK if chunk is None else int(chunk)
    share = lanes if mesh is None else _share(lanes, mesh)
    if lanes == 0:
        return _no_lane(simulate_fn, batch)
    if mesh is not None:
        return _spread(simulate_fn, batch, mesh, min(limit, share))
    if _transformed():
        return jax.lax.map(simulate_fn, batch, batch_size=min(limit, lanes))
    workers = max(1, os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
    size = min(limit, max(1, -(-lanes // workers)))
    if size >= lanes:
        return _all(simulate_fn, batch)
    # The last chunk is filled up with its first lanes, so that every chunk has one shape.
    starts = range(0, lanes, size)
    pieces = [jax.tree.map(lambda x, i=i: x[np.arange(i, i + size) % lanes], batch) for i in starts]
    # Compiled before several threads would do so at the same time.
    compiled = _all.lower(simulate_fn, pieces[0]).compile()
    with ThreadPoolExecutor(workers) as pool:
        outs = list(pool.map(lambda p: jax.block_until_ready(compiled(simulate_fn, p)), pieces))
    return jax.tree.map(lambda *x: jnp.concatenate(x)[:lanes], *outs)


def _transformed() -> bool:
    """Whether this is called inside `jit`, `vmap` or a derivative.

    What `simulate_fn` closes over may be traced even if no leaf of the batch is, and a traced value
    must not reach another thread.
    """
    here = get_opaque_trace_state()
    with jax.core.eval_context():
        return here != get_opaque_trace_state()


@eqx.filter_jit
def _all(simulate_fn, batch):
    return jax.vmap(simulate_fn)(batch)


@eqx.filter_jit
def _spread(simulate_fn, batch, mesh, size):
    spec = jax.sharding.PartitionSpec(*mesh.axis_names)

    def local(part):
        return jax.lax.map(simulate_fn, part, batch_size=size)

    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(batch)


def _no_lane(simulate_fn, batch):
    """Outputs of length 0: the function is looked at, not run."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
    shapes = eqx.filter_eval_shape(simulate_fn, one)
    return jax.tree.map(lambda x: jnp.zeros((0, *x.shape), x.dtype), shapes)


def _share(lanes: int, mesh: jax.sharding.Mesh) -> int:
    """Lanes of each device."""
    if len(mesh.axis_names) != 1:
        raise ValueError(f"the mesh must have one axis of devices, got {mesh.axis_names}.")
    if lanes % mesh.size:
        raise ValueError(f"{lanes} lanes do not divide over {mesh.size} devices; pad the batch.")
    return lanes // mesh.size


def _lanes(batch) -> int:
    leaves = jax.tree.leaves(batch)
    counts = {np.shape(x)[0] if np.ndim(x) else None for x in leaves}
    if len(counts) != 1 or None in counts:
        raise ValueError(
            f"the leaves of the batch must share one leading axis, got lengths {sorted(map(str, counts))}."
        )
    return len(leaves[0])
