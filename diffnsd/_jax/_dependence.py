"""Tests whether a function's outputs depend on its inputs, and holds values constant in derivatives."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
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


def without_derivative(tree) -> Any:
    """The same pytree with its arrays held constant in derivatives; leaves may be functions."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)
