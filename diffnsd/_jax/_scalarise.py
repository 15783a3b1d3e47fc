"""Evaluates a function on components: every entry of its small arrays becomes a separate scalar.

XLA on a CPU turns arithmetic on arrays of three or four numbers into many kernels, each of which
computes its inputs again; the same arithmetic on scalars becomes one kernel that computes everything
once (measured for a Runge-Kutta-Munthe-Kaas step on rotations: 4 µs and 0.15 µs). Writing the group
theory with scalars would be unreadable. So it is written with arrays, traced, and evaluated again with
arrays of scalars: elementwise operations entry by entry, reshuffles (slices, stacks, transposes) by
NumPy while tracing, so that they cost nothing at all. Values and derivatives are the same.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr

from ._fences import always_staged
from ._scalar_interpreter import NotTakenApartError, operations, run, split, split_lanes, together

OPERATION_LIMIT = 6000
"""Largest number of scalar operations that are unrolled; beyond it arrays stay together."""


def on_components(function: Callable) -> Callable:
    """A step with its small arrays split into scalars where that is faster.

    Without a batch `function` runs on scalars. In a batch every scalar is a row with one entry per
    element, and the larger parts are stages that XLA's fusions do not cross (see `staged`; measured for
    1024 rotating bodies: 0.38 µs per step and body on arrays, 0.054 µs on rows). Derivatives run on
    arrays, which compile fast and transpose well.

    **Arguments:** `function(stage, *args)`: pure function of pytrees of arrays, which evaluates its
    parts as `stage(part, *operands)`.

    **Returns:** a function of `args` with the same values. Programs of more than `OPERATION_LIMIT`
    scalar operations run on arrays.
    """

    def evaluated(*args):
        alone, shapes = jax.make_jaxpr(partial(function, _directly), return_shape=True)(*args)
        batched = jax.make_jaxpr(partial(function, _fenced))(*args)
        structure = jax.tree.structure(shapes)
        leaves = jax.tree.leaves(args)
        count = operations(alone.jaxpr)
        call = _two_ways(alone, batched, apart=count <= OPERATION_LIMIT)
        return jax.tree.unflatten(structure, call((alone.consts, batched.consts), leaves))

    return evaluated


def _directly(part: Callable, *operands):
    """A stage as a separate function, traced once for all stages of a step; XLA inlines it."""
    return jax.jit(part)(*operands)


def _fenced(part: Callable, *operands):
    floats = [x for x in jax.tree.leaves(operands) if jnp.issubdtype(x.dtype, jnp.floating)]
    # A scalar if there is one, because times are not batched.
    return always_staged(min(floats, key=jnp.ndim), part, *operands)


def _packed(results, avals) -> list:
    """The results as arrays; all scalars pass through one vector of one precision.

    The vector is built by selections, not by a stack: XLA compiles the operands of a concatenation to
    separate functions that recompute what they share, at a cost that grows exponentially with the
    number of stages of a method.
    """
    apart = [isinstance(x, np.ndarray) and x.dtype == object for x in results]
    floats = [v.dtype for v in avals if jnp.issubdtype(v.dtype, jnp.floating)]
    if not floats:
        return [together(x, v) for x, v in zip(results, avals, strict=True)]
    dtype = jnp.result_type(*floats)
    entries = [
        jnp.asarray(e).astype(dtype)
        for x, is_apart in zip(results, apart, strict=True)
        if is_apart
        for e in x.reshape(-1)
    ]
    lane = jnp.arange(len(entries))
    vector = jnp.zeros(len(entries), dtype)
    for i, entry in enumerate(entries):
        vector = jnp.where(lane == i, jnp.broadcast_to(entry, lane.shape), vector)
    out, begin = [], 0
    for x, aval, is_apart in zip(results, avals, apart, strict=True):
        if is_apart:
            part = vector[begin : begin + aval.size].reshape(aval.shape)
            begin += aval.size
            out.append(part != 0 if aval.dtype == jnp.bool_ else part.astype(aval.dtype))
        else:
            out.append(x)
    return out


def _in_rows(alone: ClosedJaxpr, lanes: int, in_batched, consts, leaves) -> list:
    """Runs the program in a batch, with a row of all batch elements in place of every scalar."""

    def taken(values, batched):
        pairs = zip(values, batched, strict=True)
        return [split_lanes(x) if is_batched else split(x) for x, is_batched in pairs]

    (consts_batched, _), leaves_batched = in_batched
    consts, leaves = taken(consts[0], consts_batched), taken(leaves, leaves_batched)
    results = run(alone.jaxpr, consts, leaves, lanes)
    out = []
    for x, aval in zip(results, alone.out_avals, strict=True):
        rows = [jnp.broadcast_to(jnp.asarray(e, aval.dtype), (lanes,)) for e in x.reshape(-1)]
        rows = jnp.stack(rows, axis=-1) if rows else jnp.zeros((lanes, 0), aval.dtype)
        out.append(rows.reshape((lanes, *aval.shape)))
    return out


def _as_it_is(closed: ClosedJaxpr) -> Callable:
    return lambda consts, leaves: eval_jaxpr(closed.jaxpr, consts, *leaves)


def _two_ways(alone: ClosedJaxpr, batched: ClosedJaxpr, apart: bool) -> Callable:
    """The program on scalars for a single element, another one in a batch and for derivatives."""

    def arrays(consts, leaves):
        return jax.lax.platform_dependent(
            consts,
            leaves,
            cpu=lambda consts, leaves: _as_it_is(batched)(consts[1], leaves),
            default=lambda consts, leaves: _as_it_is(alone)(consts[0], leaves),
        )

    if not apart:
        return arrays

    @jax.custom_batching.custom_vmap
    def scalars(consts, leaves):
        consts, leaves = [split(x) for x in consts[0]], [split(x) for x in leaves]
        return _packed(run(alone.jaxpr, consts, leaves), alone.out_avals)

    @scalars.def_vmap
    def lanes(axis_size, in_batched, consts, leaves):
        axes = tuple(jax.tree.map(lambda batched: 0 if batched else None, in_batched))

        def rows(consts, leaves):
            try:
                return _in_rows(alone, axis_size, in_batched, consts, leaves)
            except NotTakenApartError:
                return jax.vmap(arrays, in_axes=axes)(consts, leaves)

        whole = jax.vmap(lambda consts, leaves: _as_it_is(alone)(consts[0], leaves), in_axes=axes)
        out = jax.lax.platform_dependent(consts, leaves, cpu=rows, default=whole)
        return out, [True] * len(out)

    @jax.custom_jvp
    def call(consts, leaves):
        return scalars(consts, leaves)

    @call.defjvp
    def tangents(primals, tangents):
        return jax.jvp(arrays, primals, tangents)

    return call
