"""An interpreter that runs programs on scalars: every entry of a small array is a separate value.

A jaxpr written with arrays is evaluated again with NumPy arrays of scalars: elementwise operations
entry by entry, reshuffles (slices, stacks, transposes) by NumPy while tracing, so that they cost
nothing at all. An entry is a scalar, or in a batch the row of all its elements, shape `(batch,)`.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from ._fences import always_staged

SCALAR_LIMIT = 40
"""Largest number of entries of an array that is split into scalars; beyond it arrays are faster."""

CALL_LIMIT = 30
"""Operations above which a called function is evaluated once for all its calls."""

_ELEMENTWISE = frozenset(
    "abs add add_any and atan2 cbrt ceil clamp convert_element_type copy copy_p cos cosh div eq "
    "erf exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne "
    "neg not or pow rem round rsqrt select_n sign sin sinh sqrt square stop_gradient sub tan tanh "
    "with_value xor".split()
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
    """An array as an object array of its scalars."""
    shape = np.shape(x)
    if isinstance(x, Tracer):
        return _assembled(_components(x.reshape(-1)) if shape else [x], shape)
    x = np.asarray(x)
    return _assembled([x[i] for i in np.ndindex(shape)], shape)


def _components(x, axis: int = 0) -> list:
    return list(jnp.unstack(x, axis=axis)) if x.size else []


def together(x, aval):
    """The inverse of `_apart`."""
    if not isinstance(x, np.ndarray) or x.dtype != object:
        return x
    if x.size == 0:
        return jnp.zeros(x.shape, aval.dtype)
    entries = [jnp.asarray(e, aval.dtype) for e in x.reshape(-1)]
    return jnp.stack(entries).reshape(x.shape) if x.ndim else entries[0]


def _alike(entries) -> list:
    """Entries as arrays of one shape: a number that all batch elements share becomes a row."""
    shape = np.broadcast_shapes(*map(np.shape, entries))
    return [e if np.shape(e) == shape else jnp.broadcast_to(e, shape) for e in entries]


def _each(eqn, operands) -> np.ndarray:
    """An elementwise primitive, entry by entry; scalars among the operands are repeated."""
    aval = _aval(eqn.outvars[0])
    operands = [np.broadcast_to(x, aval.shape) for x in operands]
    out = np.empty(aval.shape, object)
    dtypes = [_aval(v).dtype for v in eqn.invars]
    for i in np.ndindex(aval.shape):
        entries = [jnp.asarray(x[i], d) for x, d in zip(operands, dtypes, strict=True)]
        out[i] = eqn.primitive.bind(*_alike(entries), **eqn.params)
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
        out[i] = reduce(lambda a, b: function(*_alike([a, b])), moved[(slice(None), *i)])
    return out


def _contract(a, b, dimension_numbers) -> np.ndarray | None:
    contracted, batched = dimension_numbers
    if any(batched) or any(a.shape[i] == 0 for i in contracted[0]):
        return None
    return np.tensordot(a, b, contracted)


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
        case "stack":
            return np.stack(operands, params["axis"])
        case "transpose":
            return np.transpose(x, params["permutation"])
        case "rev":
            return np.flip(x, params["dimensions"])
        case "dot_general":
            left, right = operands
            return _contract(left, right, params["dimension_numbers"])
        case _ if name in _REDUCTIONS and all(x.shape[i] > 0 for i in params["axes"]):
            return _reduce(_REDUCTIONS[name], x, params["axes"])
        case "dynamic_slice" if all(_is_known(i) for i in operands[1:]):
            sizes = params["slice_sizes"]
            starts = [int(i.item()) for i in operands[1:]]
            starts = [min(max(s, 0), n - k) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
            return x[tuple(slice(s, s + k) for s, k in zip(starts, sizes, strict=True))]
    return None


def _is_known(x) -> bool:
    return x.ndim == 0 and isinstance(x.item(), np.ndarray | np.generic | float | int)


def _call(closed: ClosedJaxpr, operands, lanes: int | None, cache: dict) -> list:
    """Runs a called function on scalars. It is interpreted once, however often it is called."""
    parts, forms = _flat(operands, closed.jaxpr.invars)
    key = id(closed), forms
    if key not in cache:
        shapes: list = []

        @jax.jit
        def apart(parts):
            consts = [split(c) for c in closed.consts]
            out = run(closed.jaxpr, consts, _restored(parts, forms), lanes)
            parts, shapes[:] = _flat(out, closed.jaxpr.outvars)
            return parts

        cache[key] = closed, apart, shapes  # keeps `closed` alive, so that its id is not reused
    _, apart, shapes = cache[key]
    floats = [x for x in jax.tree.leaves(parts) if jnp.issubdtype(x.dtype, jnp.floating)]
    rows = [x for x in floats if x.ndim]
    alone = lanes is None or not rows
    return _restored(apart(parts) if alone else always_staged(rows[0], apart, parts), shapes)


def _flat(values, variables) -> tuple[list, tuple]:
    """The entries of values of these variables, and their shapes; `None` for an array left whole."""
    entries = [x.reshape(-1) if x.dtype == object else [x] for x in values]
    dtypes = [_aval(v).dtype for v in variables]
    parts = [[jnp.asarray(e, d) for e in part] for part, d in zip(entries, dtypes, strict=True)]
    return parts, tuple(x.shape if x.dtype == object else None for x in values)


def _restored(parts, forms) -> list:
    """The inverse of `_flat`."""
    pairs = zip(parts, forms, strict=True)
    return [part[0] if shape is None else _assembled(part, shape) for part, shape in pairs]


def _assembled(entries, shape) -> np.ndarray:
    out = np.empty(shape, object)
    for i, entry in zip(np.ndindex(shape), entries, strict=True):
        out[i] = entry
    return out


class NotTakenApartError(Exception):
    """Raised if a program in a batch contains an operation that cannot be done entry by entry."""


def run(jaxpr: Jaxpr, consts, args, lanes: int | None = None) -> list:
    """Evaluates a jaxpr; arrays up to `SCALAR_LIMIT` entries are arrays of scalars.

    **Arguments:** `lanes`: length of the batch if entries may be rows, `None` without a batch.

    **Raises:** `NotTakenApartError` in a batch, if an operation cannot be done entry by entry.
    """
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
            if operations(closed.jaxpr) > CALL_LIMIT:
                out = _call(closed, operands, lanes, cache)
            else:
                out = run(closed.jaxpr, [split(c) for c in closed.consts], operands, lanes)
        elif all(x.dtype == object for x in operands) and all(
            _aval(v).size <= SCALAR_LIMIT for v in eqn.outvars
        ):
            if name == "unstack":
                rows = np.moveaxis(operands[0], eqn.params["axis"], 0)
                out = [rows[i, ...] for i in range(len(rows))]
            elif name in _ELEMENTWISE:
                out = [_each(eqn, operands)]
            elif (moved := _shuffled(eqn, operands)) is not None:
                out = [moved]
        if out is None and lanes is not None:
            raise NotTakenApartError(name)
        if out is None:
            avals = [v.aval for v in eqn.invars]
            whole = [together(x, a) for x, a in zip(operands, avals, strict=True)]
            params = eqn.primitive.get_bind_params(eqn.params)
            out = eqn.primitive.bind(*whole, **params)
            out = [split(x) for x in (out if eqn.primitive.multiple_results else [out])]
        values.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def split(x):
    """The scalars of an array if it is small enough, otherwise the array."""
    dtype = jnp.result_type(x)
    is_whole = np.size(x) > SCALAR_LIMIT or not jnp.issubdtype(dtype, jnp.number)
    return x if is_whole and dtype != jnp.bool_ else _apart(x)


def operations(jaxpr: Jaxpr) -> int:
    """Number of scalar operations of a program that runs on scalars."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _INLINED:
            total += operations(_inner(eqn).jaxpr)
        elif eqn.primitive.name in _ELEMENTWISE:
            total += _aval(eqn.outvars[0]).size
        elif eqn.primitive.name == "dot_general":
            (axes, _), _ = eqn.params["dimension_numbers"]
            shape = _aval(eqn.invars[0]).shape
            total += _aval(eqn.outvars[0]).size * int(np.prod([shape[i] for i in axes]))
    return total


def split_lanes(x) -> np.ndarray:
    """Rows of an array with a batch on its first axis."""
    shape = x.shape[1:]
    if np.prod(shape, dtype=int) > SCALAR_LIMIT:
        raise NotTakenApartError(f"an array of shape {shape}")
    return _assembled(_components(x.reshape((len(x), -1)), axis=1), shape)
