"""Compiled programs, for as long as their owner keeps them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


class Programs:
    """Compiled programs that several fits share.

    `fit` and `least_squares` compile in every call, so that data which a function closes over are
    those of the moment. Fits that differ only in values can share their programs:

        programs = Programs()
        for batch in batches:
            result = least_squares(Residual(batch), params, programs=programs)

    A program is found again by the functions and by the structure and shapes of all arguments.
    Arrays in an `equinox.Module` or `equinox.Partial` that serves as loss are arguments; whatever
    else a function closes over, or reads from its module, is compiled in and must stay the same for
    as long as the programs are shared.
    """

    def __init__(self):
        self._known: list[tuple[Callable, Any, Callable]] = []

    def compiled(self, function: Callable, *args: Any) -> Callable:
        """`function` compiled for arguments like these, or the program of an earlier such call.

        **Arguments:** `function`: a pure function; `args`: pytrees, whose arrays are arguments of
        the program and whose other leaves are constants of it.

        **Returns:** the program, to be called with arguments of the same structure and shapes.
        """
        arrays, static = eqx.partition(args, eqx.is_array)
        shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), arrays)
        key = jax.tree.leaves(shapes), jax.tree.structure(arrays), jax.tree.leaves(static)
        for known, signature, program in self._known:
            if known is function and signature == key:
                return program
        # A function of its own: JAX would find the trace of `function` with what it closed over then.
        program = eqx.filter_jit(lambda *args: function(*args)).lower(*args).compile()
        self._known.append((function, key, program))
        return program
