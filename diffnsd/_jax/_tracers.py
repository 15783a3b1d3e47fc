"""Which values are known while a program is traced."""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer
from jaxtyping import PyTree


def is_traced(x) -> bool:
    """Whether a transformation hides the value of `x`: then only its shape can be checked."""
    return isinstance(x, Tracer)


def eval_now(function: Callable, *args) -> Any:
    """`function(*args)`, evaluated at once where all of `args` are known.

    Inside `jit` an operation on plain numbers is traced like any other, and its result is hidden.
    """
    if any(map(is_traced, jax.tree.leaves(args))):
        return function(*args)
    with jax.ensure_compile_time_eval():
        return function(*args)


def concrete(tree: PyTree) -> Any:
    """The same pytree, with the values that a derivative outside `jit` has wrapped.

    Values traced by `jit` or `vmap` stay hidden.
    """
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if is_traced(x) else x, tree)
