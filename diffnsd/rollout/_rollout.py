"""Mapping a function over the elements of a batch."""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from contextlib import suppress
from functools import lru_cache, partial
from numbers import Integral
from typing import Annotated, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state
from jaxtyping import PyTree

from .._arguments import checked_arguments
from ._programs import find_program, on_devices, padded, with_automatic_axis

Out = TypeVar("Out")

CHUNK, CHUNK_ON_CPU = 256, 64
"""Number of batch elements stepped together; on a CPU so that the arrays of a step fit a core's cache.

Measured there on two cores, µs a step of one of 256 in chunks of 128, 64 and 32: half cheetah 13.3, 10.1 and
10.1; humanoid 116, 98 and 94; hopper 11.6, 10.6 and 11.4; ant 27, 27 and 25.
"""


@checked_arguments
def rollout(
    simulate_fn: Annotated[Callable[[PyTree], Out], "(element)"],
    batch: PyTree,
    *,
    chunk: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
) -> Out:
    """Maps `simulate_fn` over the leading axis of `batch`, in chunks, on all cores or devices.

    The elements of a chunk are stepped together by `vmap`, and the loops of a chunk end when its own
    elements are done. For plain arrays, the chunks run on all cores of the host (or one after the
    other on an accelerator). Inside `jit`, `vmap` or a derivative, they run one after the other, and
    `simulate_fn` may close over values that are being differentiated. The result is the same.

    Ctrl-C ends a rollout within a second, and the process after the chunks that are running; inside `jit`
    all chunks are one program, which the process still runs to its end. A progress meter of `simulate`
    shows every chunk by itself, on every device.

    For a gradient on all cores, map the gradient: `rollout(jax.value_and_grad(loss_of_one), batch)`,
    and sum.

    A function is traced and compiled once, even if every call redefines it, like a lambda or
    `jax.grad(loss)`: it is identified by its code and by the values its code uses. JAX arrays that it
    closes over are arguments of the program, as are the arrays in an `equinox.Module`; new values need
    no recompilation. Numbers and NumPy arrays that it closes over are compiled in; new values cause a
    recompilation. Other objects (lists, random number generators, your own modules) are not
    inspected. The function is then identified by object identity, as in `jax.jit`, and a warning is
    given when it is compiled again. A function without loops runs as one program. The programs of the
    last 64 functions are kept.

    **Arguments:**

    - `simulate_fn`: pure function of one batch element, for example a call to `simulate`.
    - `batch`: pytree of arrays with one common leading axis, the batch.
    - `chunk`: batch elements per chunk, at least 1; default 64 on a CPU and 256 elsewhere, and at most an
      equal share for each core.
    - `mesh`: a one-dimensional mesh of devices to distribute the batch over. If its size does not divide
      the batch, the last element is computed more than once and the copies are cut off.

    **Returns:** the outputs, stacked along a leading axis; arrays of length 0 for an empty batch.

    **Warns:** if a function that is identified only by object identity was redefined.

    **Raises:** `ValueError` if the leaves of `batch` do not share a leading axis, `chunk` is not a
    positive whole number, or `mesh` has more than one axis.
    """
    lanes = _lanes(batch)
    if chunk is not None and not (isinstance(chunk, Integral) and chunk >= 1):
        raise ValueError(
            f"chunk must be a whole number of batch elements, at least 1, got {chunk!r}."
        )
    on_cpu = jax.default_backend() == "cpu"
    limit = int(chunk) if chunk is not None else CHUNK_ON_CPU if on_cpu else CHUNK
    mesh = None if mesh is None else with_automatic_axis(mesh)
    share = lanes if mesh is None else -(-lanes // mesh.size)  # for each device
    if lanes == 0:
        # Only traced, to get the shapes of the outputs.
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
        shapes = eqx.filter_eval_shape(simulate_fn, one)
        return jax.tree.map(lambda x: jnp.zeros((0, *x.shape), x.dtype), shapes)
    transformed = _transformed()
    program = find_program(simulate_fn, batch, transformed)
    if mesh is not None:
        whole = padded(batch, -lanes % mesh.size)
        if transformed or share <= limit or not program.has_loops:
            found = program(whole, min(limit, share), mesh)
        else:
            found = _in_rounds(program, whole, share, limit, mesh)
        return jax.tree.map(lambda x: x[:lanes], found) if whole is not batch else found
    if transformed or not program.has_loops:
        return program(batch, min(limit, lanes), None)
    workers = max(1, os.cpu_count() or 1) if on_cpu else 1
    size = min(limit, -(-lanes // workers))
    if size == lanes:
        return program(batch, size, None)
    return _on_threads(program, jax.tree.map(jnp.asarray, batch), lanes, size, workers)


def _in_rounds(program, batch, share, size, mesh):
    """Runs a chunk on every device, then the next: Ctrl-C ends it with the chunks that run."""
    outs = []
    batch = _cut(batch, 0, share, mesh)  # to its devices, once
    for start in _starts(share, size):
        outs.append(program(_cut(batch, start, size, mesh), size, mesh))
        # The next chunks wait in line, so that no device waits for the slowest.
        jax.block_until_ready(outs[-2:-1])
    return _joined(outs, share, mesh)


def _starts(lanes: int, size: int) -> list[int]:
    """Where chunks begin; the last one begins earlier, so that all have the same shape."""
    return [min(i, lanes - size) for i in range(0, lanes, size)]


def _on_threads(program, batch, lanes, size, workers):
    """Runs the chunks of a batch, each on the next free core.

    The main thread only waits: Ctrl-C interrupts it, and a chunk of its own would go on in XLA with nobody
    to wait for it, which crashes the process if that ends at once. Chunks of worker threads are waited for
    at exit. Any other thread, which Ctrl-C does not reach, takes chunks itself: a chunk may have called it
    back, while all workers are busy with chunks.
    """
    starts = _starts(lanes, size)
    # Compile once here; otherwise several threads would compile at the same time.
    program.prepare(_cut(batch, 0, size), size)
    waiting, outs = deque(starts), {}
    wide = jax.config.read("jax_enable_x64")  # in a `with` statement it is of this thread alone

    def work():
        with jax.enable_x64(wide):
            while waiting:
                try:
                    start = waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    out = program(_cut(batch, start, size), size, None)
                    outs[start] = jax.block_until_ready(out)
                except BaseException:
                    waiting.clear()  # the caller gets it, after the chunks that run
                    raise

    helps = threading.current_thread() is not threading.main_thread()
    others = []
    try:
        for _ in range(min(workers, len(starts)) - helps):
            others.append(_threads(workers).submit(work))
        if helps:
            work()
        for i, other in enumerate(others):
            # What has not begun is not waited for, where another has found no more chunks.
            if not ((helps or i) and other.cancel()):
                _result(other)
    finally:
        waiting.clear()
        for other in others:
            other.cancel()
    return _joined([outs[start] for start in starts], lanes)


def _result(future: Future) -> None:
    """Waits for a thread, and raises what it raised."""
    while not future.done():
        with suppress(TimeoutError):
            # With a limit: on Windows, Ctrl-C does not end a wait without one.
            future.result(timeout=0.5)
    future.result()


@lru_cache(maxsize=1)
def _threads(workers: int) -> ThreadPoolExecutor:
    """Worker threads; kept, because starting one takes longer than a call."""
    return ThreadPoolExecutor(workers, "rollout")


@partial(jax.jit, static_argnums=(2, 3))
def _cut(batch, start, size, mesh=None):
    """A chunk, from the share of each device if there is a mesh."""

    def of_share(batch):
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), batch)

    return on_devices(of_share, mesh)(batch)


@partial(jax.jit, static_argnums=(1, 2))
def _joined(chunks, lanes, mesh=None):
    """Joins the outputs of consecutive chunks; the last one overlaps the one before."""

    def of_share(chunks):
        *full, last = chunks
        rest = lanes - sum(len(jax.tree.leaves(x)[0]) for x in full)

        def join(x, *others):
            return jnp.concatenate([*others, x[len(x) - rest :]])

        return jax.tree.map(join, last, *full)

    return on_devices(of_share, mesh)(chunks)


def _transformed() -> bool:
    """Whether this is called inside `jit`, `vmap` or a derivative.

    Values that `simulate_fn` closes over may be traced even if no leaf of the batch is, and a traced
    value must not be passed to another thread.
    """
    here = get_opaque_trace_state()
    with jax.core.eval_context():
        return here != get_opaque_trace_state()


def _lanes(batch) -> int:
    leaves = jax.tree.leaves(batch)
    words = [x for x in leaves if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "OSU"]
    if words or not all(map(eqx.is_array_like, leaves)):
        raise TypeError(
            "the leaves of the batch must be arrays that share one leading axis; partition what is "
            "not an array from them, or close over it."
        )
    counts = {np.shape(x)[0] if np.ndim(x) else None for x in leaves}
    if len(counts) != 1 or None in counts:
        raise ValueError(
            "the leaves of the batch must be arrays that share one leading axis, such as "
            f"jnp.array([0.1, 0.2]), got lengths {sorted(map(str, counts))} (None: no axis)."
        )
    return len(leaves[0])
