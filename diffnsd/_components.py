"""Evaluation of a function on components: every entry of its small arrays a scalar of its own.

XLA on a CPU turns arithmetic on arrays of three or four numbers into many kernels, each of which
computes its inputs again; the same arithmetic on scalars becomes one kernel that computes everything
once (measured for a Runge-Kutta-Munthe-Kaas step on rotations: 4 µs and 0.15 µs). Writing the group
theory with scalars would be unreadable. So it is written with arrays, traced, and evaluated anew with
arrays of scalars: elementwise operations entry by entry, reshuffles (slices, stacks, transposes) by
NumPy while tracing, so that they cost nothing at all. Values and derivatives are the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from ._numerics import staged

SCALAR_LIMIT = 40
"""Largest number of entries of an array that is taken apart; beyond it vector operations win."""

OPERATION_LIMIT = 6000
"""Largest number of scalar operations that are unrolled; beyond it arrays stay together."""

CALL_LIMIT = 30
"""Operations above which a called function is taken apart once for all its calls."""

_ELEMENTWISE = frozenset(
    "abs add add_any and atan2 cbrt ceil clamp convert_element_type copy copy_p cos cosh div eq "
    "erf exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne "
    "neg not or pow rem round rsqrt select_n sign sin sinh sqrt square stop_gradient sub tan tanh "
    "xor".split()
)
_REDUCTIONS = {
    "reduce_sum": jax.lax.add,
    "reduce_prod": jax.lax.mul,
    "reduce_max": jax.lax.max,
    "reduce_min": jax.lax.min,
    "reduce_and": jax.lax.bitwise_and,
    "reduce_or": jax.lax.bitwise_or,
}
_INLINED = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint")


def _aval(variable) -> Any:
    """Shape and dtype of a variable of a jaxpr."""
    return variable.aval


def _inner(eqn) -> ClosedJaxpr:
    """The program that an equation calls."""
    inner: Any = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


def _apart(x) -> np.ndarray:
    """An array of scalars, or the array itself as the one entry of an object array marked whole."""
    shape = np.shape(x)
    out = np.empty(shape, object)
    if not isinstance(x, Tracer):
        x = np.asarray(x)
        flat = [x[i] for i in np.ndindex(shape)]
    else:
        flat = [x[i] for i in np.ndindex(shape)] if shape else [x]
    for i, entry in zip(np.ndindex(shape), flat, strict=True):
        out[i] = entry
    return out


def _together(x, aval):
    """The inverse of `_apart`."""
    if not isinstance(x, np.ndarray) or x.dtype != object:
        return x
    if x.size == 0:
        return jnp.zeros(x.shape, aval.dtype)
    entries = [jnp.asarray(e, aval.dtype) for e in x.reshape(-1)]
    return jnp.stack(entries).reshape(x.shape) if x.ndim else entries[0]


def _each(eqn, operands) -> np.ndarray:
    """An elementwise primitive, entry by entry; scalars among the operands are repeated."""
    aval = _aval(eqn.outvars[0])
    operands = [np.broadcast_to(x, aval.shape) for x in operands]
    out = np.empty(aval.shape, object)
    dtypes = [_aval(v).dtype for v in eqn.invars]
    for i in np.ndindex(aval.shape):
        entries = [jnp.asarray(x[i], d) for x, d in zip(operands, dtypes, strict=True)]
        out[i] = eqn.primitive.bind(*entries, **eqn.params)
    return out


def _broadcast(x, params) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _reduce(function: Callable, x, axes) -> np.ndarray:
    moved = np.moveaxis(x, axes, range(len(axes)))
    moved = moved.reshape((-1, *moved.shape[len(axes) :]))
    out = np.empty(moved.shape[1:], object)
    for i in np.ndindex(out.shape):
        total = moved[(0, *i)]
        for k in range(1, moved.shape[0]):
            total = function(total, moved[(k, *i)])
        out[i] = total
    return out


def _contract(a, b, dimension_numbers) -> np.ndarray | None:
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers
    if batch_a or batch_b or any(a.shape[i] == 0 for i in contract_a):
        return None
    k = len(contract_a)
    a = np.moveaxis(a, contract_a, range(k)).reshape(
        (-1, *[n for i, n in enumerate(a.shape) if i not in contract_a])
    )
    b = np.moveaxis(b, contract_b, range(k)).reshape(
        (-1, *[n for i, n in enumerate(b.shape) if i not in contract_b])
    )
    out = np.empty((*a.shape[1:], *b.shape[1:]), object)
    for i in np.ndindex(a.shape[1:]):
        for j in np.ndindex(b.shape[1:]):
            total = a[(0, *i)] * b[(0, *j)]
            for m in range(1, a.shape[0]):
                total = total + a[(m, *i)] * b[(m, *j)]
            out[i + j] = total
    return out


def _shuffled(eqn, operands) -> np.ndarray | None:
    """A primitive that only moves entries, or a short reduction; `None` if it is neither."""
    name, params = eqn.primitive.name, eqn.params
    x: Any = operands[0] if operands else None
    match name:
        case "broadcast_in_dim" if len(operands) == 1:
            return _broadcast(x, params)
        case "reshape" if params.get("dimensions") is None:
            return x.reshape(params["new_sizes"])
        case "squeeze":
            return np.squeeze(x, tuple(params["dimensions"]))
        case "expand_dims":
            return np.expand_dims(x, tuple(params["dimensions"]))
        case "slice":
            steps = params["strides"] or (1,) * x.ndim
            begins, ends = params["start_indices"], params["limit_indices"]
            return x[tuple(map(slice, begins, ends, steps))]
        case "concatenate":
            return np.concatenate(operands, params["dimension"])
        case "transpose":
            return np.transpose(x, params["permutation"])
        case "rev":
            return np.flip(x, params["dimensions"])
        case "dot_general":
            left, right = operands
            return _contract(left, right, params["dimension_numbers"])
        case (
            "reduce_sum" | "reduce_prod" | "reduce_max" | "reduce_min" | "reduce_and" | "reduce_or"
        ):
            axes = params["axes"]
            if axes and all(x.shape[i] > 0 for i in axes):
                return _reduce(_REDUCTIONS[name], x, axes)
        case "dynamic_slice" if all(_is_known(i) for i in operands[1:]):
            sizes = params["slice_sizes"]
            starts = [int(i.item()) for i in operands[1:]]
            starts = [min(max(s, 0), n - k) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
            return x[tuple(slice(s, s + k) for s, k in zip(starts, sizes, strict=True))]
    return None


def _is_known(x) -> bool:
    return x.ndim == 0 and isinstance(x.item(), np.ndarray | np.generic | float | int)


def _call(closed: ClosedJaxpr, operands, cache: dict) -> list:
    """A called function on scalars. It is taken apart once, however often it is called."""
    forms = [x.shape if x.dtype == object else None for x in operands]
    flat = [list(x.reshape(-1)) if x.dtype == object else [x] for x in operands]
    sizes = [len(part) for part in flat]
    key = id(closed), tuple(forms)
    if key not in cache:
        shapes: list = []

        @jax.jit
        def apart(*entries):
            rest, taken = list(entries), []
            for shape, size in zip(forms, sizes, strict=True):
                part, rest = rest[:size], rest[size:]
                taken.append(part[0] if shape is None else _assembled(part, shape))
            out = _run(closed.jaxpr, [_split(c) for c in closed.consts], taken)
            shapes[:] = [x.shape if x.dtype == object else None for x in out]
            parts = [list(x.reshape(-1)) if x.dtype == object else [x] for x in out]
            avals = [v.aval for v in closed.jaxpr.outvars]
            return [[jnp.asarray(e, a.dtype) for e in p] for p, a in zip(parts, avals, strict=True)]

        cache[key] = closed, apart, shapes  # `closed` is kept, so that its id stays its own
    _, apart, shapes = cache[key]
    dtypes = [_aval(v).dtype for v in closed.jaxpr.invars]
    entries = [jnp.asarray(e, d) for p, d in zip(flat, dtypes, strict=True) for e in p]
    out = apart(*entries)
    return [
        part[0] if shape is None else _assembled(part, shape)
        for part, shape in zip(out, shapes, strict=True)
    ]


def _assembled(entries, shape) -> np.ndarray:
    out = np.empty(shape, object)
    for i, entry in zip(np.ndindex(shape), entries, strict=True):
        out[i] = entry
    return out


def _run(jaxpr: Jaxpr, consts, args) -> list:
    """Evaluates a jaxpr; arrays up to `SCALAR_LIMIT` entries are arrays of scalars."""
    cache: dict = {}
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(v):
        return _apart(np.asarray(v.val)) if isinstance(v, Literal) else values[v]

    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        name = eqn.primitive.name
        out = None
        if name in _INLINED:
            closed = _inner(eqn)
            if _operations(closed.jaxpr) > CALL_LIMIT:
                out = _call(closed, operands, cache)
            else:
                out = _run(closed.jaxpr, [_split(c) for c in closed.consts], operands)
        elif all(x.dtype == object for x in operands) and _small(eqn):
            if name in _ELEMENTWISE:
                out = _each(eqn, operands)
            else:
                out = _shuffled(eqn, operands)
            out = None if out is None else [out]
        if out is None:
            avals = [v.aval for v in eqn.invars]
            whole = [_together(x, a) for x, a in zip(operands, avals, strict=True)]
            params = eqn.primitive.get_bind_params(eqn.params)
            out = eqn.primitive.bind(*whole, **params)
            out = [_split(x) for x in (out if eqn.primitive.multiple_results else [out])]
        values.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _small(eqn) -> bool:
    return all(_aval(v).size <= SCALAR_LIMIT for v in eqn.outvars)


def _split(x):
    """Scalars of an array that is small enough, otherwise the array."""
    if np.size(x) > SCALAR_LIMIT or not jnp.issubdtype(jnp.result_type(x), jnp.number):
        return x if jnp.result_type(x) != jnp.bool_ else _apart(x)
    return _apart(x)


def _operations(jaxpr: Jaxpr) -> int:
    """Number of scalar operations that taking a program apart would make."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _INLINED:
            total += _operations(_inner(eqn).jaxpr)
        elif eqn.primitive.name in _ELEMENTWISE:
            total += _aval(eqn.outvars[0]).size
        elif eqn.primitive.name == "dot_general":
            (axes, _), _ = eqn.params["dimension_numbers"]
            shape = _aval(eqn.invars[0]).shape
            total += _aval(eqn.outvars[0]).size * int(np.prod([shape[i] for i in axes]))
    return total


def on_components(function: Callable) -> Callable:
    """A step with its small arrays taken apart into scalars where that is faster.

    Alone, `function` runs on scalars. In a batch the arrays are long over the lanes, and differentiated
    it should compile fast and transpose well: there it runs on arrays, but in stages that XLA's
    fusions do not cross (see `_numerics.staged`; measured 2.4 µs and 0.16 µs a step and lane).

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
        count = _operations(alone.jaxpr)
        call = _two_ways(alone, batched, apart=count <= OPERATION_LIMIT)
        return jax.tree.unflatten(structure, call((alone.consts, batched.consts), leaves))

    return evaluated


def _directly(part: Callable, *operands):
    """A stage as a function of its own, traced once for all stages of a step; XLA inlines it."""
    return jax.jit(part)(*operands)


def _fenced(part: Callable, *operands):
    """A stage of its own: its predicate is true, which the compiler cannot know."""
    floats = [x for x in jax.tree.leaves(operands) if jnp.issubdtype(x.dtype, jnp.floating)]
    some = min(floats, key=jnp.ndim)  # a scalar if there is one: times are not batched
    return staged(~jnp.any(some < jnp.finfo(some.dtype).min), part, *operands)


def _packed(results, avals) -> list:
    """The results as arrays, all scalars of one precision through one vector.

    The vector is made of selections, not as a stack: XLA compiles the operands of a concatenation
    to functions of their own that compute what they share again, at a cost that grows
    exponentially with the stages of a method.
    """
    apart = [isinstance(x, np.ndarray) and x.dtype == object for x in results]
    floats = [v.dtype for v in avals if jnp.issubdtype(v.dtype, jnp.floating)]
    if not floats:
        return [_together(x, v) for x, v in zip(results, avals, strict=True)]
    dtype = jnp.result_type(*floats)
    entries = [
        jnp.asarray(e).astype(dtype)
        for x, split in zip(results, apart, strict=True)
        if split
        for e in x.reshape(-1)
    ]
    lane = jnp.arange(len(entries))
    vector = jnp.zeros(len(entries), dtype)
    for i, entry in enumerate(entries):
        vector = jnp.where(lane == i, jnp.broadcast_to(entry, lane.shape), vector)
    out, begin = [], 0
    for x, aval, split in zip(results, avals, apart, strict=True):
        if split:
            part = vector[begin : begin + aval.size].reshape(aval.shape)
            begin += aval.size
            out.append(part != 0 if aval.dtype == jnp.bool_ else part.astype(aval.dtype))
        else:
            out.append(x)
    return out


def _as_it_is(closed: ClosedJaxpr) -> Callable:
    return lambda consts, leaves: eval_jaxpr(closed.jaxpr, consts, *leaves)


def _two_ways(alone: ClosedJaxpr, batched: ClosedJaxpr, apart: bool) -> Callable:
    """The program on scalars alone; with arrays in a batch, and where it is differentiated."""

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
        consts, leaves = [_split(x) for x in consts[0]], [_split(x) for x in leaves]
        return _packed(_run(alone.jaxpr, consts, leaves), alone.out_avals)

    @scalars.def_vmap
    def lanes(axis_size, in_batched, consts, leaves):
        del axis_size
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
        out = jax.vmap(arrays, in_axes=tuple(axes))(consts, leaves)
        return out, [True] * len(out)

    @jax.custom_jvp
    def call(consts, leaves):
        return scalars(consts, leaves)

    @call.defjvp
    def tangents(primals, tangents):
        return jax.jvp(arrays, primals, tangents)

    return call
