"""Calls a function only where it is needed: for a few elements of a batch, or not at all.

Under `vmap` a conditional computes both branches for every batch element. Here the elements that need
the function are gathered, a sixteenth of the batch at a time. This holds for values, for the derivative
and for its transpose, because each of them is again such a call.

In forward mode values and tangents are one call. Where some operands are not known yet (the tangents, in
reverse mode), not all have a batch, or not all outputs are used, it is cut by what each output depends on.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import compress
from operator import not_
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Primitive, Var, jaxpr_as_fun
from jax.extend.linear_util import wrap_init
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.interpreters.partial_eval import PartialVal
from jaxtyping import Array, Bool, PyTree

from ._loops import evaluated_again

WHOLE = 16
"""Batches up to this size are not gathered."""


def repeat_where_pending(body: Callable, run, rounds: int):
    """`run = body(run)` while `run.pending`, at most `rounds` times.

    **Arguments:** `body`: pure function from a pytree of arrays with a boolean leaf `pending`, shape
    `()`, to the same; it may close over arrays, and is differentiated in them too. It must clear
    `pending` within `rounds` iterations.

    **Returns:** the last `run`, differentiable in forward and reverse mode.
    """

    return _repeated(lambda run: call_where(run.pending, body, run), _strong(run), rounds)


def settle_where_pending(body: Callable, run, rounds: int, read: Callable) -> Any:
    """`read(run)` after `rounds` iterations of `run = body(run)` where `run.pending`.

    Like `repeat_where_pending`, for few rounds: a batch element that needs one round computes all of
    them, and values that `read` does not use cost nothing.
    """

    run = _strong(run)
    settled = call_where(run.pending, lambda run: read(_repeated(body, run, rounds)), run)
    return where(run.pending, settled, read(run))


def _repeated(body: Callable, run, rounds: int) -> Any:
    def once(run, _):
        return where(run.pending, body(run), run), None

    return jax.lax.scan(evaluated_again(once), run, length=rounds)[0]


def where(condition, new: PyTree, old: PyTree) -> Any:
    """`jnp.where` on all leaves of two pytrees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _strong(run):
    """The same arrays without weak types: carries of loops must keep their types."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), run)


def call_where(condition: Bool[Array, ""], function: Callable, *operands: PyTree) -> Any:
    """`function(*operands)` where the condition holds, zeros of the same shapes elsewhere.

    **Arguments:** `condition`: of one batch element; `function`: pure, from pytrees of arrays to a pytree of
    arrays; it may close over arrays, and is differentiated in them too.
    """
    arrays, static = eqx.partition(operands, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    leaves = [jnp.asarray(x) for x in leaves]

    def flat(*leaves):
        return function(*eqx.combine(jax.tree.unflatten(tree, leaves), static))

    closed, shape = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    count = len(closed.consts)

    def open_(*given):
        return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, given[:count]))(*given[count:])

    given = [*map(jnp.asarray, closed.consts), *leaves]
    program = _trace(open_, map(jax.typeof, given))
    out = call_where_p.bind(condition, *given, program=program, shared=(False,) * len(given))
    return jax.tree.unflatten(jax.tree.structure(shape), out)


# Operands are the condition, `()` or `(batch,)`, and those of the program of one batch element. In a
# batch all operands except the `shared` ones have the batch on the first axis.
call_where_p = Primitive("diffnsd_call_where")
call_where_p.multiple_results = True


def _trace(function: Callable, avals) -> ClosedJaxpr:
    """The program of a function, without what its outputs do not need.

    A derivative evaluates the whole function beside it, and programs are traced again for every further
    derivative and transpose (measured for a corrected cube step: 16,200 operations, 9,800 of them needed).
    """
    closed = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    return _reduced(closed, (True,) * len(closed.out_avals), every_operand=True)[0]


def _reduced(
    program: ClosedJaxpr, wanted: tuple[bool, ...], every_operand: bool
) -> tuple[ClosedJaxpr, list[bool]]:
    """The program of some outputs, and the operands that it has."""
    jaxpr, used = partial_eval.dce_jaxpr(program.jaxpr, wanted, instantiate=every_operand)
    return ClosedJaxpr(jaxpr, program.consts), used


# Further derivatives find their programs by identity.
_for_outputs = lru_cache(maxsize=256)(_reduced)


def _evaluate(condition, *operands, program, shared):
    function = jaxpr_as_fun(program)
    zeros = [jnp.zeros(a.shape, a.dtype) for a in program.out_avals]
    if condition.ndim == 0:
        return jax.lax.cond(condition, lambda *x: function(*x), lambda *_: zeros, *operands)
    lanes = condition.shape[0]
    capacity = lanes if lanes <= WHOLE else max(8, lanes // 16)
    axes = [None if s else 0 for s in shared]
    zeros = [jnp.zeros((lanes, *x.shape), x.dtype) for x in zeros]
    every = jax.vmap(lambda _, *x: function(*x), in_axes=(0, *axes))

    def visit(state):
        pending, out = state
        _, index = jax.lax.top_k(pending.astype(jnp.int32), capacity)
        chosen = pending[index]
        new = every(index, *(x if s else x[index] for x, s in zip(operands, shared, strict=True)))

        def put(old, new):
            mask = chosen.reshape(chosen.shape + (1,) * (new.ndim - 1))
            return old.at[index].set(jnp.where(mask, new, old[index]), unique_indices=True)

        return pending.at[index].set(False), list(map(put, out, new))

    return jax.lax.while_loop(lambda s: jnp.any(s[0]), visit, (condition, zeros))[1]


call_where_p.def_impl(jax.jit(_evaluate, static_argnames=("program", "shared")))


@call_where_p.def_abstract_eval
def _abstract(condition, *operands, program, shared):
    del operands, shared
    return [ShapedArray((*condition.shape, *a.shape), a.dtype) for a in program.out_avals]


@lru_cache(maxsize=256)
def _pushed(program: ClosedJaxpr, moving: tuple[bool, ...]) -> ClosedJaxpr:
    """From the operands, and tangents of the `moving` ones, to the outputs, and tangents of inexact ones."""
    function, avals = jaxpr_as_fun(program), program.in_avals
    smooth = [jnp.issubdtype(a.dtype, jnp.inexact) for a in program.out_avals]

    def push(*given):
        operands, tangents = list(given[: len(avals)]), given[len(avals) :]
        places = list(compress(range(len(avals)), moving))

        def of_moving(*moved):
            for i, x in zip(places, moved, strict=True):
                operands[i] = x
            out = function(*operands)
            return list(compress(out, smooth)), out

        _, changes, out = jax.jvp(
            of_moving, tuple(compress(operands, moving)), tangents, has_aux=True
        )
        return [*out, *changes]

    return _trace(push, [*avals, *compress(avals, moving)])


@lru_cache(maxsize=256)
def _known_part(
    program: ClosedJaxpr, unknown: tuple[bool, ...]
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """What does not depend on the `unknown` operands: its program, of the others, and which outputs do."""
    late = []

    def evaluate(*given):
        values = iter(given)
        operands = [
            PartialVal.unknown(a) if u else PartialVal.known(next(values))
            for a, u in zip(program.in_avals, unknown, strict=True)
        ]
        function = wrap_init(jaxpr_as_fun(program), debug_info=program.jaxpr.debug_info)
        out = partial_eval.trace_to_jaxpr_nounits(function, operands, instantiate=False)[1]
        late[:] = [not x.is_known() for x in out]
        # What the rest would need is computed there again.
        return [x.get_known() for x in out if x.is_known()]

    known = _trace(evaluate, list(compress(program.in_avals, map(not_, unknown))))
    return known, tuple(late)


@lru_cache(maxsize=256)
def _pulled(
    program: ClosedJaxpr, linear: tuple[bool, ...], wanted: tuple[bool, ...]
) -> ClosedJaxpr:
    """The program from the other operands, and cotangents, to the cotangents of the `linear` operands."""
    function, avals = jaxpr_as_fun(program), program.in_avals
    given = list(compress(avals, map(not_, linear)))

    def pull(*values):
        known, cotangents = values[: len(given)], values[len(given) :]

        def of_linear(*moved):
            rest, moved = iter(known), iter(moved)
            found = function(*(next(moved if x else rest) for x in linear))
            return list(compress(found, wanted))

        shapes = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in compress(avals, linear))
        return jax.linear_transpose(of_linear, *shapes)(list(cotangents))

    return _trace(pull, [*given, *compress(program.out_avals, wanted)])


@lru_cache(maxsize=256)
def _batched(program: ClosedJaxpr, axes: tuple[int | None, ...], size: int) -> ClosedJaxpr:
    """The program of one batch element, vectorised over the first axis of some operands."""
    avals = [
        a if axis is None else ShapedArray((size, *a.shape), a.dtype)
        for a, axis in zip(program.in_avals, axes, strict=True)
    ]
    return _trace(jax.vmap(jaxpr_as_fun(program), in_axes=axes, axis_size=size), avals)


def _jvp(primals, tangents, *, program, shared):
    moving = tuple(not isinstance(t, ad.Zero) for t in tangents[1:])
    both = call_where_p.bind(
        *primals,
        *compress(tangents[1:], moving),
        program=_pushed(program, moving),
        shared=(*shared, *compress(shared, moving)),
    )
    out, changes = both[: len(program.out_avals)], iter(both[len(program.out_avals) :])
    return out, [
        next(changes)
        if jnp.issubdtype(x.dtype, jnp.inexact)
        else ad.Zero(jax.typeof(x).to_tangent_aval())
        for x in out
    ]


def _early(unknown, program, shared):
    """Parameters of the call of what does not depend on `unknown` operands, and which outputs do."""
    if unknown[0]:
        return None, (True,) * len(program.out_avals)
    known, late = _known_part(program, tuple(unknown[1:]))
    return {"program": known, "shared": tuple(compress(shared, map(not_, unknown[1:])))}, late


def _partially(trace, *tracers, program, shared):
    """The outputs that depend on what is known at once, the others when the rest is known."""
    unknown = [not t.is_known() for t in tracers]
    given = {"program": program, "shared": shared}
    call, late = _early(unknown, program, shared) if any(unknown) else (None, ())
    if call is None or all(late):
        return trace.default_process_primitive(call_where_p, tracers, given)
    early = iter(call_where_p.bind(*(t.pval.get_known() for t in tracers if t.is_known()), **call))
    if not any(late):
        return list(early)
    given["program"] = _for_outputs(program, late, every_operand=True)[0]
    rest = iter(trace.default_process_primitive(call_where_p, tracers, given))
    return [next(rest if is_late else early) for is_late in late]


def _partially_staged(saveable, unknown, available, eqn):
    """The same for a program that `jax.checkpoint` evaluates again."""
    avals, outputs = [x.aval for x in eqn.invars], len(eqn.outvars)
    if not any(unknown) and saveable(eqn.primitive, *avals, **eqn.params) is True:
        return eqn, None, [False] * outputs, [False] * outputs, []
    needed = [x for x, a in zip(eqn.invars, available, strict=True) if isinstance(x, Var) and not a]
    first, late = eqn, (False,) * outputs
    if any(unknown):
        call, late = _early(unknown, **eqn.params)
        first = None
        if not all(late):
            first = eqn.replace(
                invars=list(compress(eqn.invars, map(not_, unknown))),
                outvars=list(compress(eqn.outvars, map(not_, late))),
                params=call,
            )
    return first, eqn, list(late), [True] * outputs, needed


def _without_unused(used, eqn):
    """Only the outputs that something uses, from the operands that they need."""
    if not any(used):
        return [False] * len(eqn.invars), None
    program, needed = _for_outputs(eqn.params["program"], tuple(used), every_operand=False)
    needed = [True, *needed]
    shared = tuple(compress(eqn.params["shared"], needed[1:]))
    return needed, eqn.replace(
        invars=list(compress(eqn.invars, needed)),
        outvars=list(compress(eqn.outvars, used)),
        params={"program": program, "shared": shared},
    )


def _transpose(cotangents, condition, *operands, program, shared):
    linear = tuple(ad.is_undefined_primal(x) for x in operands)
    wanted = tuple(not isinstance(c, ad.Zero) for c in cotangents)
    known = tuple(map(not_, linear))
    given = list(compress(cotangents, wanted))
    found = iter(
        call_where_p.bind(
            condition,
            *compress(operands, known),
            *given,
            program=_pulled(program, linear, wanted),
            shared=(*compress(shared, known), *(False for _ in given)),
        )
    )
    lanes = condition.ndim > 0

    def one(is_linear, is_shared):
        if not is_linear:
            return None
        x = next(found)
        return jnp.sum(x, axis=0) if lanes and is_shared else x

    return [None, *map(one, linear, shared)]


def _batch(args, dims, *, program, shared):
    (condition, *operands), (where, *axes) = args, dims
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    if where is None:
        # Either all elements need the function or none does: the function itself gets the batch.
        front = [int(condition.ndim > 0 and not s) for s in shared]
        moved = [
            x if d is None else jnp.moveaxis(x, d, f)
            for x, d, f in zip(operands, axes, front, strict=True)
        ]
        inner = tuple(None if d is None else 0 for d in axes)
        batched = tuple(d is not None for d in axes)
        out = call_where_p.bind(
            condition, *moved, program=_batched(program, inner, size), shared=shared
        )
        # What does not depend on the batch has none, as `jax.jacfwd` expects of values.
        depends, axis = _known_part(program, batched)[1], int(condition.ndim > 0)
        return [
            x if d else jax.lax.index_in_dim(x, 0, axis, keepdims=False)
            for x, d in zip(out, depends, strict=True)
        ], [axis if d else None for d in depends]
    condition = jnp.moveaxis(condition, where, 0)
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, axes, strict=True)]
    if condition.ndim == 1:
        alike = tuple(d is None for d in axes)
        out = call_where_p.bind(condition, *moved, program=program, shared=alike)
        return out, [0] * len(out)
    outer, lanes = condition.shape

    def spread(x, d, s):
        if s and d is None:
            return x
        x = x if d is not None else jnp.broadcast_to(x[None], (outer, *x.shape))
        if s:
            x = jnp.broadcast_to(x[:, None], (outer, lanes, *x.shape[1:]))
        return x.reshape(outer * lanes, *x.shape[2:])

    alike = tuple(s and d is None for s, d in zip(shared, axes, strict=True))
    spreads = map(spread, moved, axes, shared)
    out = call_where_p.bind(condition.reshape(-1), *spreads, program=program, shared=alike)
    return [x.reshape(outer, lanes, *x.shape[1:]) for x in out], [0] * len(out)


ad.primitive_jvps[call_where_p] = _jvp
ad.primitive_transposes[call_where_p] = _transpose
batching.primitive_batchers[call_where_p] = _batch
partial_eval.custom_partial_eval_rules[call_where_p] = _partially
partial_eval.partial_eval_jaxpr_custom_rules[call_where_p] = _partially_staged
partial_eval.dce_rules[call_where_p] = _without_unused
mlir.register_lowering(call_where_p, mlir.lower_fun(_evaluate, multiple_results=True))
