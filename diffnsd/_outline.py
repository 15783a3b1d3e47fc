"""Functions as data: the part that determines a compilation, and the arrays that are only its arguments.

`jax.jit` compares functions by identity, and compiles the values that they close over into the program.
A function that is defined anew in every call, like the lambda in `rollout(lambda x: f(x, theta), batch)`,
therefore compiles in every call. Here functions are compared by their code and by the values that the
code can reach, and JAX arrays in a closure become arguments.
"""

import dis
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

LIBRARIES = sys.stdlib_module_names | {
    "diffnsd",
    "diffrax",
    "equinox",
    "jax",
    "jaxlib",
    "jaxtyping",
    "lineax",
    "numpy",
    "optax",
    "optimistix",
    "scipy",
}
"""Packages whose own global variables do not change between two calls."""

_PLAIN = int, bool, str, bytes, type(None), type(...), np.dtype, range
_WRITES = "STORE_DEREF", "STORE_GLOBAL", "DELETE_DEREF", "DELETE_GLOBAL"


class Outline(NamedTuple):
    """A pytree without its arrays, hashable: two trees with equal outlines share their programs.

    **Arguments:** `tree`: the description; `is_complete`: whether it holds everything that the functions
    in the tree depend on. If so, it hides no traced value and may be reused under another
    transformation.
    """

    tree: "_Tree"
    is_complete: bool

    def fill(self, arrays) -> PyTree:
        """The tree with these arrays; its functions are new ones with the same code."""
        return self.tree.build(iter(arrays))


def outline(tree: PyTree) -> tuple[Outline, list]:
    """The outline of a pytree, and its arrays.

    Leaves may be functions. Their code and what it reaches belong to the outline: numbers, NumPy
    arrays and other values in their closures and defaults, and global names of the modules that are
    not in `LIBRARIES`, also through the functions that they call. JAX arrays in closures belong to
    the arrays. A function that reaches anything else, or that writes to its closure, is compared by
    identity, as in `jax.jit`.
    """
    reader = _Reader()
    found = reader.tree(tree, reader.leaf)
    return Outline(found, reader.is_complete), reader.arrays


def by_identity(x) -> Outline:
    """The outline of an object that is only equal to itself, with nothing to fill in."""
    return Outline(_Tree(jax.tree.structure(0), (_Same(x),)), False)


class _Reader:
    """Takes a pytree apart, and collects its arrays."""

    def __init__(self):
        self.arrays: list = []
        self.is_complete = True
        self.seen: dict[int, int] = {}

    def tree(self, x, read) -> "_Tree":
        leaves, structure = jax.tree.flatten(x)
        return _Tree(structure, tuple([read(leaf) for leaf in leaves]))

    def leaf(self, x):
        """A leaf of the tree itself: arrays of every kind are arguments."""
        if eqx.is_array(x):
            self.arrays.append(x)
            return _ARRAY
        return self.closed_over(x)

    def closed_over(self, x):
        """A leaf of what a function closes over: a copy of the function can have another value."""
        if isinstance(x, jax.Array):
            self.arrays.append(x)
            return _ARRAY
        if isinstance(x, types.FunctionType):
            return self.function(x)
        if type(x) is functools.partial:
            parts = x.func, x.args, x.keywords
            return _Call(_partial, tuple([self.content(p, self.closed_over) for p in parts]))
        if type(x) is types.MethodType:
            self.is_complete = False
            return _Call(types.MethodType, (_Same(x.__func__), _Same(x.__self__)))
        return self.looked_up(x)

    def looked_up(self, x):
        """A leaf of what a function finds by a global name: part of the outline, but not replaceable."""
        kind = type(x)
        if kind in _PLAIN:
            return _Value((kind, x), x)
        if kind in (float, complex):
            return _Value((kind, repr(x)), x)  # distinguishes 0.0 from -0.0, and nan equals nan
        if isinstance(x, np.ndarray | np.generic) and not x.dtype.hasobject:
            key = kind, x.shape, x.dtype.str, x.tobytes()
            return _Value(key, x.copy())
        if isinstance(x, types.FunctionType) and not in_library(module_of(x)):
            return self.function_by_name(x)
        self.is_complete &= _is_constant(x)
        return _Same(x)

    def content(self, x, read):
        """A whole object. Containers without arrays are compared by identity: code may write to them."""
        if isinstance(x, list | dict | set):
            if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
                self.is_complete = False
                return _Same(x)
        return self.tree(x, read)

    def function(self, f: types.FunctionType):
        if id(f) in self.seen:  # it closes over itself
            self.is_complete = False
            return _Same(f)
        self.seen[id(f)] = len(self.seen)
        names, written = global_names(f.__code__)
        before = self.is_complete
        self.is_complete = not written
        cells = []
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            try:
                cells.append(
                    None if name in written else self.content(cell.cell_contents, self.closed_over)
                )
            except ValueError:  # the cell is still empty
                cells.append(None)
                self.is_complete = False
        defaults = self.tree((f.__defaults__, f.__kwdefaults__), self.closed_over)
        reached = self.reached(f, names, written)
        known = None if self.is_complete else _Same(f)
        self.is_complete &= before
        del self.seen[id(f)]
        return _Function(f.__code__, _Same(f.__globals__), tuple(cells), defaults, reached, known)

    def function_by_name(self, f: types.FunctionType):
        if id(f) in self.seen:
            return self.seen[id(f)]
        self.seen[id(f)] = len(self.seen)
        names, written = global_names(f.__code__)
        self.is_complete &= not written and not f.__closure__
        defaults = self.tree((f.__defaults__, f.__kwdefaults__), self.looked_up)
        return _Same(f), defaults, self.reached(f, names, written)

    def reached(self, f: types.FunctionType, names, written):
        """The values of the global names that a function reads."""
        if in_library(module_of(f)):
            return ()
        found = [(n, f.__globals__[n]) for n in names if n in f.__globals__ and n not in written]
        return tuple([(name, self.content(x, self.named)) for name, x in found])

    def named(self, x):
        if isinstance(x, jax.Array):
            self.is_complete &= not isinstance(x, Tracer)
            return _Same(x)
        return self.looked_up(x)


class _Array(NamedTuple):
    def build(self, arrays: Iterator) -> Any:
        return next(arrays)


_ARRAY = _Array()


class _Value(NamedTuple):
    """A constant, compared by its key."""

    key: Any
    value: Any

    def __eq__(self, other):
        return type(other) is _Value and self.key == other.key

    def __hash__(self):
        return hash(self.key)

    def build(self, arrays: Iterator) -> Any:
        del arrays
        return self.value


class _Same:
    """An object, compared by identity, and referenced weakly if possible."""

    __slots__ = "number", "get"

    def __init__(self, x):
        self.number = id(x)
        try:
            self.get: Callable[[], Any] = weakref.ref(x)
        except TypeError:
            self.get = lambda: x

    def __eq__(self, other):
        return type(other) is _Same and self.get() is other.get() is not None

    def __hash__(self):
        return self.number

    def build(self, arrays: Iterator) -> Any:
        del arrays
        return self.get()


class _Tree(NamedTuple):
    structure: Any
    leaves: tuple

    def build(self, arrays: Iterator) -> Any:
        return jax.tree.unflatten(self.structure, [x.build(arrays) for x in self.leaves])


class _Call(NamedTuple):
    """The result of a function of several parts."""

    make: Callable
    parts: tuple

    def build(self, arrays: Iterator) -> Any:
        return self.make(*[x.build(arrays) for x in self.parts])


def _partial(function, args, keywords):
    return functools.partial(function, *args, **keywords)


class _Function(NamedTuple):
    code: types.CodeType
    names: _Same
    cells: tuple
    defaults: _Tree
    reached: tuple
    known: _Same | None
    """The function itself where the rest does not describe it."""

    def build(self, arrays: Iterator) -> Any:
        # A cell that the function writes to is shared with the original function.
        own: Any = None if self.known is None else self.known.get()
        cells = tuple(
            [
                own.__closure__[i] if x is None else types.CellType(x.build(arrays))
                for i, x in enumerate(self.cells)
            ]
        )
        defaults, keywords = self.defaults.build(arrays)
        out = types.FunctionType(self.code, self.names.get(), self.code.co_name, defaults, cells)
        out.__kwdefaults__, out.__qualname__ = keywords, self.code.co_qualname
        return out


@functools.lru_cache(maxsize=1024)
def global_names(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """Global names that code may read, and the names outside of it that it writes."""
    reads, writes = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            reads.add(step.argval)
        elif step.opname in _WRITES and step.argval not in code.co_cellvars:
            writes.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more, written = global_names(inner)
            reads.update(more)
            writes.update(written - set(code.co_cellvars))
    return tuple(sorted(reads)), frozenset(writes)


def module_of(f: types.FunctionType) -> str:
    """The module where a function looks up global names; under decorators `__module__` differs."""
    return f.__globals__.get("__name__", "")


def in_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def _is_constant(x) -> bool:
    """Whether the behaviour of an object cannot change and involves no traced value."""
    if isinstance(x, Enum):
        return True
    if isinstance(x, type):
        # The attributes of a user's class may change.
        return in_library(x.__module__)
    if isinstance(x, types.BuiltinFunctionType):
        return isinstance(x.__self__, types.ModuleType | type | None)
    if isinstance(x, types.ModuleType):
        return in_library(x.__name__)
    # Functions of libraries: Python functions, ufuncs, compiled functions and custom rules.
    module = getattr(x, "__module__", None) if hasattr(x, "__name__") else None
    return callable(x) and isinstance(module, str) and in_library(module)
