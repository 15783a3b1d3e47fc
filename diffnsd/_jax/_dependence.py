"""Whether the outputs of a function depend on its inputs; and holding them constant in derivatives."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from ._batched_call import AbstractKernel, call


def depends(function: Callable, *arguments) -> bool:
    """Whether the output of a function may depend on its arguments, judged by its jaxpr."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    return any(_reached(program, [True] * len(program.invars)))


def _reached(program, marks) -> list[bool]:
    """Which outputs of a program depend on the inputs that are marked."""
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


@jax.custom_jvp
def with_value(x, value):
    """`x` in derivatives, and exactly `value` where it is evaluated.

    Not `x + stop_gradient(value − x)`: compiled code rounds two evaluations of one formula differently,
    and next to a kink the last digit decides the derivative.
    """
    del x
    return value


@with_value.defjvp
def _(primals, tangents):
    return with_value(*primals), tangents[0]


def with_value_in_loop(x, value):
    """As `with_value`, for what a loop carries from pass to pass.

    In reverse mode the body of a loop is evaluated in parts, and there JAX drops the rule of a
    `custom_jvp`: forward over reverse mode would see `value` alone. A primitive keeps its rule.
    """
    return call(_Value(), x, value)[0]


class _Value(AbstractKernel):
    def __call__(self, x, value):
        del x
        return (value,)

    def shapes(self, x, value):
        del x
        return (value,)

    def jvp(self, primals, tangents):
        return call(self, *primals), (tangents[0],)


def without_derivative(tree) -> Any:
    """The same pytree with its arrays held constant; functions may be among its leaves."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)
