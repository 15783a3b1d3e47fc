"""Compiled programs that live as long as their owner keeps them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from ..._jax import quickly_compiled


class Programs:
    """Compiled programs that several fits share.

    `fit` and `least_squares` compile in every call, so that the current values of closed-over data
    are used. Fits that differ only in values can share their programs:

        programs = Programs()
        for batch in batches:
            result = least_squares(Residual(batch), params, programs=programs)

    A program is identified by its functions and by the structure and shapes of all arguments.
    If the loss is an `equinox.Module` or `equinox.Partial`, its arrays are arguments. Anything else
    that a function closes over, or reads from its module, is compiled in and must not change while
    the programs are shared.
    """

    def __init__(self):
        self._known: list[tuple[Callable, Any, Callable]] = []

    def compiled(self, function: Callable, *args: Any) -> Callable:
        """Compiles `function` for arguments like these, or returns the program of an earlier such call.

        **Arguments:** `function`: a pure function; `args`: pytrees. Their arrays are arguments of
        the program, their other leaves are constants in it.

        **Returns:** the program, to be called with arguments of the same structure and shapes.
        """
        arrays, static = eqx.partition(args, eqx.is_array)
        shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), arrays)
        key = jax.tree.leaves(shapes), jax.tree.structure(arrays), jax.tree.leaves(static)
        for known, signature, program in self._known:
            if known is function and signature == key:
                return program
        # A new lambda: for `function` itself JAX would reuse a trace with old closed-over values.
        traced: Any = eqx.filter_jit(lambda *args: function(*args), **quickly_compiled())
        program = traced.lower(*args).compile()
        self._known.append((function, key, program))
        return program
