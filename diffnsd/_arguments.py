"""Arguments of constructors and functions, checked against their annotations where they come in."""

import functools
import inspect
import types
from collections.abc import Callable
from numbers import Real
from typing import NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._argument_rules import (
    FINITE,
    AnyShape as AnyShape,
    Four as Four,
    Number as Number,
    Numbers as Numbers,
    Rule,
    Three as Three,
    Two as Two,
    is_itself,
    is_plain,
    is_unlike_reals,
    of_numbers,
    rule_of,
    shape_of,
    shaped,
)
from ._expects import shown, takes
from ._jax import eval_now, is_traced
from ._types import State

P = ParamSpec("P")
R = TypeVar("R")


class AbstractChecked(eqx.Module):
    """A module whose constructor refuses arguments that are not what their annotations say.

    Checked are kinds (numbers, whole numbers, functions and the arguments they take, modules and not
    their classes), and that known numbers are not NaN. Arguments without an annotation have that of
    the field of the same name. Whatever JAX and Equinox rebuild from leaves is not checked.

    **Raises:** `TypeError`, or `ValueError` for NaN, naming the argument and what belongs there.
    """

    def __new__(cls, *args, **kwargs):
        _check(_rules(cls.__init__, cls), args, kwargs, cls.__name__)
        return super().__new__(cls)

    def __check_init__(self):
        # After the checks of a class itself, whose messages say more.
        for name, value in vars(self).items():
            _refuse_nan(name, value, type(self).__name__)


def checked_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """A function that refuses arguments in the same way, and those of another shape than their annotation's.

    Where an array of real numbers is annotated, lists and whole numbers become one.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return _checked(function, args, kwargs, refuses_nan=True)

    return call


def checked_kinds(function: Callable[P, R]) -> Callable[P, R]:
    """The same for operations on arrays inside of others, where NaN has a meaning.

    NaN passes, and nothing is checked if an argument is traced.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if any(map(is_traced, args)):
            return function(*args, **kwargs)
        return _checked(function, args, kwargs, refuses_nan=False)

    return call


def _checked(function: Callable, args: tuple, kwargs: dict, refuses_nan: bool):
    rules = _rules(function, None)
    bound = _check(rules, args, kwargs, function.__name__)
    given, unlike = bound.arguments, {}
    for name, value in given.items():
        rule = rules.rules.get(name)
        if refuses_nan and (rule is None or not rule.is_table):
            _refuse_nan(name, value, function.__name__)
        if rule is not None and rule.axes is not None and not rule.is_whole:
            if is_unlike_reals(value):
                unlike[name] = _as_array(value, rule)
    if not unlike:
        return function(*args, **kwargs)
    given.update(unlike)
    return function(*bound.args, **bound.kwargs)


def _as_array(value, rule: Rule):
    if rule.of_numpy:
        return np.asarray(value, float)
    return eval_now(functools.partial(jnp.asarray, dtype=float), value)


class _Rules(NamedTuple):
    signature: inspect.Signature
    rules: dict[str, Rule]
    skip: int


@functools.lru_cache(maxsize=1024)
def _rules(function: Callable, owner: type | None) -> _Rules:
    fields = {}
    for base in reversed(owner.__mro__ if owner else ()):
        fields |= vars(base).get("__annotations__", {})
    converters = {
        name: field.metadata.get("converter")
        for name, field in getattr(owner, "__dataclass_fields__", {}).items()
    }
    converted = {n for n, by in converters.items() if by not in (None, tuple)}
    listed = {n for n, by in converters.items() if by is tuple}  # any sequence of such entries
    compiled_in = {
        name
        for name, field in getattr(owner, "__dataclass_fields__", {}).items()
        if field.metadata.get("static") and name not in converted
    }
    signature = inspect.signature(function)
    rules = {}
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        if name in fields and (kind is inspect.Parameter.empty or name in converted | listed):
            kind = fields[name]
        default = parameter.default
        if kind is inspect.Parameter.empty and of_numbers(default):
            kind = jax.Array
        rule = rule_of(kind)
        if owner is None and rule is not None:
            rule = shaped(rule, kind)
        unsaid = parameter.annotation is inspect.Parameter.empty and name not in listed
        if unsaid and not is_itself(kind):
            rule = None  # the constructor makes the field out of something else
        if rule is not None and name in converted:  # the field has what the converter returns
            nothing = rule.accepts(None)
            rule = rule_of(jax.Array | None if nothing else jax.Array) if rule.is_number else None
        if kind in (float, float | None) and name in compiled_in:
            rule = Rule("a plain number, since it is compiled in", is_plain, True)
        if rule is not None and isinstance(default, type) and default is not parameter.empty:
            rule = Rule(f"a function or a class, such as {default.__name__}", callable)
        if rule is not None and default is None:
            rule = rule._replace(accepts=lambda x, r=rule: x is None or r.accepts(x))
        if rule is not None and parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            rules[name] = rule
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            options = {name: rule_of(kind) for name, kind in fields.items()}
            rules |= {n: r for n, r in options.items() if r is not None and n not in rules}
    return _Rules(signature, rules, int(owner is not None))


def _check(rules: _Rules, args: tuple, kwargs: dict, owner: str) -> inspect.BoundArguments:
    try:
        bound = rules.signature.bind_partial(*(None,) * rules.skip, *args, **kwargs)
    except TypeError as error:
        names = ", ".join(list(rules.signature.parameters)[rules.skip :])
        raise TypeError(f"{owner}: {error}; its arguments are {names}.") from None
    given = bound.arguments
    for name, value in (given | given.get("options", {})).items():
        rule = rules.rules.get(name)
        if rule is None:
            continue
        if not rule.accepts(value):
            if isinstance(value, type) and not rule.accepts(types.FunctionType):
                raise TypeError(
                    f"{name} is the class {value.__name__}; pass an instance: {value.__name__}(...), "
                    f"in {owner}(...)."
                )
            for entry in value if isinstance(value, list | tuple) else ():
                if isinstance(entry, type):
                    raise TypeError(
                        f"an entry of {name} is the class {entry.__name__}; pass an instance: "
                        f"{entry.__name__}(...), in {owner}(...)."
                    )
            if FINITE in rule.what and is_plain(value):
                raise ValueError(f"{name} must be {rule.what}, in {owner}(...); got {value:.6g}.")
            got = shown(value)
            if callable(value) and got.startswith("an object") and "a function of" in rule.what:
                got += takes(value)
            if isinstance(value, list | tuple) and 0 < len(value) < 10:
                got += " with " + ", ".join(dict.fromkeys(map(shown, value)))
            raise TypeError(f"{name} must be {rule.what}, in {owner}(...); got {got}.")
    _check_axes(rules, given, owner)
    return bound


def _check_axes(rules: _Rules, given: dict, owner: str) -> None:
    sizes: dict[str, tuple[int, str]] = {}
    for name, value in given.items():
        rule = rules.rules.get(name)
        if rule is None or rule.axes is None or value is None:
            continue
        shape = shape_of(value)
        if _fits(rule.axes.split(), shape, sizes, name):
            continue
        known = {axis: sizes[axis] for axis in rule.axes.split() if axis in sizes}
        comma = "," if len(rule.axes.split()) == 1 else ""
        expected = f"({', '.join(rule.axes.split())}{comma})"
        given_by = "".join(f", {axis} = {n} as of {first}" for axis, (n, first) in known.items())
        raise ValueError(
            f"{name} must have shape {expected}{given_by}, in {owner}(...); got shape {shape}."
        )


def _fits(
    axes: list[str], shape: tuple[int, ...], sizes: dict[str, tuple[int, str]], name: str
) -> bool:
    """Whether a shape has these axes; those with a name have one length in all arguments.

    `sizes`: the length of each, and the argument that it was first seen in.
    """
    several = [i for i, axis in enumerate(axes) if axis == "..." or axis.startswith("*")]
    if len(shape) < len(axes) - len(several) or (not several and len(shape) != len(axes)):
        return False
    first = several[0] if several else len(axes)
    last = len(axes) - first - 1
    pairs = list(zip(axes[:first], shape, strict=False))
    if last > 0:
        pairs += zip(axes[-last:], shape[-last:], strict=True)
    new = dict(sizes)
    for axis, size in pairs:
        if axis.isdigit() and size != int(axis):
            return False
        if axis.isidentifier() and size != new.setdefault(axis, (size, name))[0]:
            return False
    sizes.update(new)
    return True


def _refuse_nan(name: str, value, owner: str) -> None:
    if _has_nan(value):
        raise ValueError(f"{name} is not finite, in {owner}(...): it must be numbers, got NaN.")


def _has_nan(x) -> bool:
    """Whether known numbers contain NaN."""
    if isinstance(x, list | tuple):
        return any(map(_has_nan, x))
    if isinstance(x, State):
        return any(map(_has_nan, jax.tree.leaves(x)))
    if is_traced(x) or not isinstance(x, jax.Array | np.ndarray | Real):
        return False
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return False
    if isinstance(x, jax.Array | np.ndarray) and not jnp.issubdtype(x.dtype, jnp.floating):
        return False
    return bool(np.isnan(np.asarray(x, float)).any())
