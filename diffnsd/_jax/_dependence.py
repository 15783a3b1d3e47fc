"""Tests whether a function's outputs depend on its inputs, and holds values constant in derivatives."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def depends(function: Callable, *arguments) -> bool:
    """Whether the output of a function may depend on its arguments, judged by its jaxpr."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    return any(_reached(program, [True] * len(program.invars)))


def _reached(program, marks) -> list[bool]:
    """Which outputs of a program depend on the marked inputs."""
    reached = {id(v) for v, marked in zip(program.invars, marks, strict=True) if marked}
    for equation in program.eqns:
        marked = [id(v) in reached for v in equation.invars]
        if not any(marked):
            continue
        hit = [True] * len(equation.outvars)
        if equation.primitive.name in ("jit", "pjit"):
            hit = _reached(equation.params["jaxpr"].jaxpr, marked)
        reached.update(id(v) for v, is_hit in zip(equation.outvars, hit, strict=True) if is_hit)
    return [id(v) in reached for v in program.outvars]


def with_value(x, value):
    """Returns exactly `value`, with the derivative of `x`; both have the same shape.

    Not `x + stop_gradient(value − x)`: compiled code rounds two evaluations of one formula differently,
    and next to a kink the last digit decides the derivative. Not `jax.custom_jvp` either: in reverse mode
    the body of a loop is evaluated in parts, and JAX drops such a rule there, so that forward over
    reverse mode would see only `value`. A primitive keeps its rule.
    """
    x, value = jnp.asarray(x), jnp.asarray(value)
    if x.shape != value.shape:
        raise ValueError(f"x has shape {x.shape} and value has shape {value.shape}.")
    return with_value_p.bind(jnp.asarray(x, value.dtype), value)


with_value_p = Primitive("with_value")
with_value_p.def_impl(lambda x, value: value)
with_value_p.def_abstract_eval(lambda x, value: ShapedArray(value.shape, value.dtype))


def _batch(arguments, axes):
    size = next(x.shape[a] for x, a in zip(arguments, axes, strict=True) if a is not None)
    pair = map(batching.bdim_at_front, arguments, axes, (size, size))
    return with_value_p.bind(*pair), 0


ad.primitive_jvps[with_value_p] = lambda primals, tangents: (
    with_value_p.bind(*primals),
    tangents[0],
)
batching.primitive_batchers[with_value_p] = _batch
mlir.register_lowering(with_value_p, lambda context, x, value: [value])


class SecondDerivativeError(ValueError):
    """A second derivative was asked for where only the first one is true."""


def differentiable_once(tree, reason: str) -> Any:
    """The same pytree, which raises `SecondDerivativeError(reason)` if it is differentiated twice.

    It raises while a second derivative is traced, in any composition of the two modes, and costs nothing
    at run time. A tangent that is differentiated by itself, at a fixed point, is allowed: `J d` by `d`.
    """

    def mark(x):
        return once_p.bind(x, reason=reason) if eqx.is_inexact_array(x) else x

    return jax.tree.map(mark, tree)


def differentiable_once_where(tree, flag) -> Any:
    """The same pytree, whose second derivatives overflow where a flag holds, instead of being wrong.

    Whether they are true is known only while the program runs, so that nothing can be raised. Value and
    first derivative are those of `x`, and the second one is that of `x + s (x − x_held)²/2` with the
    largest number `s`.
    """

    def mark(x):
        if not eqx.is_inexact_array(x):
            return x
        # A root in each factor: a tangent times the largest number would be infinite, and 0 times that NaN.
        root = jnp.where(flag, np.sqrt(jnp.finfo(x.dtype).max), 0).astype(x.dtype)
        finite = jnp.where(jnp.isfinite(x), x, 0)  # gaps may be infinite
        moved = root * (finite - jax.lax.stop_gradient(finite))
        return with_value(x + moved * (moved / 2), x)

    return jax.tree.map(mark, tree)


once_p = Primitive("differentiable_once")
once_p.def_impl(lambda x, *, reason: x)
once_p.def_abstract_eval(lambda x, *, reason: x)
batching.defvectorized(once_p)
mlir.register_lowering(once_p, lambda context, x, *, reason: [x])

# The tangent `slope`, at `x`: linear in the first, and not to be differentiated by the second.
slope_p = Primitive("slope_of_differentiable_once")
slope_p.def_impl(lambda slope, x, *, reason: slope)
slope_p.def_abstract_eval(lambda slope, x, *, reason: slope)
mlir.register_lowering(slope_p, lambda context, slope, x, *, reason: [slope])


def _once_jvp(primals, tangents, *, reason):
    (x,), (slope,) = primals, tangents
    out = once_p.bind(x, reason=reason)
    if type(slope) is ad.Zero:
        return out, slope
    return out, slope_p.bind(slope, x, reason=reason)


def _slope_jvp(primals, tangents, *, reason):
    (slope, x), (change, moved) = primals, tangents
    if type(moved) is not ad.Zero:
        raise SecondDerivativeError(reason)
    out = slope_p.bind(slope, x, reason=reason)
    return out, change if type(change) is ad.Zero else slope_p.bind(change, x, reason=reason)


def _slope_transpose(cotangent, slope, x, *, reason):
    if type(cotangent) is ad.Zero:
        return cotangent, None
    return slope_p.bind(cotangent, x, reason=reason), None


def _slope_batch(arguments, axes, *, reason):
    size = next(x.shape[a] for x, a in zip(arguments, axes, strict=True) if a is not None)
    pair = map(batching.bdim_at_front, arguments, axes, (size, size))
    return slope_p.bind(*pair, reason=reason), 0


ad.primitive_jvps[once_p] = _once_jvp
ad.primitive_jvps[slope_p] = _slope_jvp
ad.primitive_transposes[slope_p] = _slope_transpose
batching.primitive_batchers[slope_p] = _slope_batch


def without_derivative(tree) -> Any:
    """The same pytree with its arrays held constant in derivatives; leaves may be functions."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)
