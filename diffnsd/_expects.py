"""What users pass, checked where it comes in."""

import functools
import inspect
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ._argument_rules import of_numbers
from ._jax import concrete, is_traced
from ._types import State


def expects(name: str, value, kind, what: str) -> None:
    """Raises `TypeError` unless `value` is an instance of `kind`.

    **Arguments:** `kind`: as in `isinstance`; `what`: what is expected, in words, with an example.
    """
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(
            f"{name} is the class {value.__name__}; pass an instance: {value.__name__}(...)."
        )
    raise TypeError(f"{name} must be {what}; got {shown(value)}.")


def shown(value) -> str:
    """What an object is, in a few words."""
    if value is None:
        return "None"
    if isinstance(value, _FUNCTIONS):
        return f"a function{takes(value)}"
    if isinstance(value, State):
        for name, part in (("q", value.q), ("v", value.v)):
            strange = [x for x in jax.tree.leaves(part) if not of_numbers(x)]
            if strange or (name == "v" and part is None):
                x = strange[0] if strange else None
                return f"a State whose {name} is {no_reals(x)}"
    of = value if isinstance(value, type) else type(value)
    package, *folders = of.__module__.split(".")
    own = [package, *folders[: 1 - folders[0].startswith("_")]] if package == "diffnsd" else []
    name = ".".join([*own, of.__name__])
    if isinstance(value, type):
        return f"the class {name}"
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of shape {value.shape}"
    return f"an object of type {name}"


_FUNCTIONS = types.FunctionType | types.MethodType | types.BuiltinFunctionType | functools.partial


def takes(function: Callable) -> str:
    """How many arguments a function takes, as the end of a sentence; empty if that is not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    count = f"{len(names)} argument{'s' * (len(names) != 1)}, ({', '.join(names)})"
    return f" that takes {count if names else 'no argument'}"


def listed(numbers) -> str:
    """Numbers in a sentence: the first few of them."""
    values = [str(int(i)) for i in numbers[:8]]
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return ", ".join(values) + more


def no_reals(value) -> str:
    """What is no array of real numbers, in a few words."""
    numbers = isinstance(value, jax.Array | np.ndarray | np.generic)
    return f"numbers of type {value.dtype}" if numbers else shown(value)


def returned(
    name: str, value, what: str, *, shape: tuple[int, ...] | None = None, smooth: bool = False
) -> Array:
    """What a function of the user returned, as an array.

    **Arguments:** `name`: of the function, with its arguments; `what`: what it must return, in words;
    `shape`: of that; `smooth`: whether it is differentiated, so that it must return floating-point numbers.

    **Raises:** `TypeError` for what is no array of real numbers, `ValueError` for another shape.
    """
    if not of_numbers(value):
        raise TypeError(f"{name} must return {what}; it returned {no_reals(value)}.")
    array = jnp.asarray(value)
    if smooth and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"{name} must return {what}; it returned numbers of type {array.dtype}, which have no "
            "derivative: write 1.0 for 1."
        )
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} must return {what}; it returned shape {array.shape}.")
    return array


def of_shape(name: str, value, *shape: int) -> Array:
    """Numbers as an array. **Raises:** `ValueError` if it has another shape."""
    array = jnp.asarray(value)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
    return array


def booleans(name: str, value) -> Bool[Array, "..."]:
    """Booleans as an array; known integers 0 and 1 are booleans too.

    **Raises:** `ValueError` for other numbers.
    """
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be booleans, such as [True, False], got {shown(value)}."
        ) from None
    if array.dtype == bool or array.size == 0:
        return array.astype(bool)
    known = not is_traced(array)
    if jnp.issubdtype(array.dtype, jnp.integer) and not (known and np.any(np.asarray(array) // 2)):
        return array.astype(bool)
    raise ValueError(
        f"{name} must be booleans, or integers 0 and 1, got numbers of type {array.dtype}; write a "
        "comparison, such as x > 0.5."
    )


def not_unit(normal) -> str | None:
    """An error message if a known normal is not of unit length, else `None`.

    It is not normalised, because the meaning of an offset along it would then be ambiguous.
    """
    normal = concrete(normal)
    if is_traced(normal):
        return None
    length = float(np.sqrt(np.sum(np.square(np.asarray(normal, float)))))
    if abs(length - 1) <= 1e-5:
        return None
    return f"the normal {np.asarray(normal)} has length {length:g}; divide it by its length"


def refuse_below(name: str, value, least: float, *, strictly: bool = False) -> None:
    """Raises `ValueError` if known numbers are not finite or lie below `least`, or at it if `strictly`."""
    known = concrete(value)
    if is_traced(known):
        return
    array = np.asarray(known)
    if np.all(np.isfinite(array) & ((array > least) | ((array == least) & (not strictly)))):
        return
    words = "more than" if strictly else "at least"
    raise ValueError(f"{name} must be finite and {words} {least:g}, got {array}.")
