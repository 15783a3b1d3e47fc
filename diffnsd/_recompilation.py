"""Detects programs that are compiled again only because a function was defined again.

JAX finds a compiled program by the functions in it, and Python compares functions by identity. A function
that is defined anew in each call is therefore compiled in each call, even if its code is the same. The
results are correct, so nothing shows why it is slow. This is detected, by code and closure, and reported.
"""

import threading
import types
import warnings
from collections.abc import Hashable
from functools import partial

import jax
import numpy as np


class RecompilationWarning(UserWarning):
    """A program was compiled again because a function with the same code was defined again."""


class Compilations(threading.local):
    """The programs that one entry point has compiled, in this thread.

    Its traced function calls `note()`, which runs only during compilation; the entry point calls
    `warn_if_repeated` when that function returns.
    """

    def __init__(self):
        self.count = 0
        self._functions: dict[Hashable, tuple[int, ...]] = {}

    def note(self) -> None:
        """Counts a compilation."""
        self.count += 1

    def warn_if_repeated(self, before: int, name: str, *arguments) -> None:
        """Warns, once for every program, if the last call compiled a program that was compiled before.

        **Arguments:** `before`: the count before the call; `name`: name of the entry point; `arguments`:
        the arguments it was compiled for.
        """
        if self.count == before:
            return
        found: list[types.FunctionType] = []
        try:
            key = _structure(arguments, found)
            hash(key)
        except (TypeError, ValueError, RecursionError):
            return  # no warning about arguments that cannot be compared
        identities = tuple(map(id, found))
        first = self._functions.setdefault(key, identities)
        if not first or first == identities:
            return
        self._functions[key] = ()  # once
        new = [f for f, i in zip(found, first, strict=True) if id(f) != i]
        codes = {f.__code__: f.__qualname__ for f in new}
        places = [f"{name} ({c.co_filename}:{c.co_firstlineno})" for c, name in codes.items()]
        warnings.warn(
            f"{name} compiled the same program a second time, because {', '.join(places)} "
            f"{'was' if len(places) == 1 else 'were'} defined anew "
            "since the first: a new function is a new program, even if its code is the same. Define "
            "it once, outside of what is called repeatedly; or make it an equinox.Module with "
            "__call__, whose fields are the values that change; or put the whole call under one "
            "jax.jit.",
            RecompilationWarning,
            stacklevel=3,
        )


def _structure(tree, found: list[types.FunctionType], closed: bool = False) -> Hashable:
    """The structure of a pytree: functions by their code and what they close over, arrays by shape.

    Functions found in it are appended to `found`. Floating-point numbers count only by type where they
    are closed over, and by value elsewhere, where they are part of the program.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, partial))
    return structure, tuple(_leaf(x, found, closed) for x in leaves)


def _leaf(x, found: list[types.FunctionType], closed: bool) -> Hashable:
    wrapped = getattr(x, "__wrapped__", None)
    if isinstance(x, partial):
        return (
            partial,
            _leaf(x.func, found, closed),
            _structure((x.args, x.keywords), found, closed),
        )
    if isinstance(x, types.FunctionType):
        found.append(x)
        cells = [c.cell_contents for c in x.__closure__ or ()]
        inside = cells, x.__defaults__, x.__kwdefaults__
        return x.__code__, tuple(_structure(part, found, True) for part in inside)
    if isinstance(wrapped, types.FunctionType):
        return type(x), _leaf(wrapped, found, closed)
    if isinstance(x, (jax.Array, np.ndarray, np.generic)):
        return x.shape, x.dtype
    return type(x), None if closed and isinstance(x, (float, complex)) else x
