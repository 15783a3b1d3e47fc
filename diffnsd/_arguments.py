"""Arguments of constructors and functions, checked against their annotations where they come in."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from numbers import Integral, Real
from pathlib import PurePath
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, AbstractDtype, Key, UInt32

from ._expects import shown
from ._jax import is_traced

P = ParamSpec("P")
R = TypeVar("R")

Numbers = Annotated[Any, "numbers"]
"""What becomes an array: numbers, lists of them, arrays."""

FINITE = "one finite number"
Number = Annotated[Any, FINITE]
"""A single number, known or traced; if it is known it is finite."""

EXAMPLES = {
    "AbstractAction": "an action of a group, such as RotationAction()",
    "AbstractContactSolver": "a solver of contacts, such as Newton(10)",
    "AbstractController": "a controller, such as PID(kp)",
    "AbstractGroup": "a group, such as Euclidean(3)",
    "AbstractIntegrator": "an integrator, such as MoreauJean()",
    "AbstractLaw": "a law, such as NewtonImpact(0.5)",
    "AbstractPoint": "a point of the step, such as AtPrediction()",
    "AbstractRelation": "a relation, such as GapRelation(function)",
    "AbstractRetraction": "a retraction, such as Cayley()",
    "AbstractSensor": "a sensor, such as Gyro(site)",
    "AbstractSet": "a set, such as HalfLine()",
    "AbstractShape": "a shape, such as Sphere(0.1)",
    "AbstractSolver": "a solver of contacts, such as Auto() or complementarity.solvers.Newton(10)",
    "AbstractSystem": "a system, such as LagrangianSystem(mass)",
    "AbstractTreeJoint": "a joint of a tree, such as systems.Hinge(axis)",
    "ButcherTableau": "a ButcherTableau, such as ButcherTableau.rk4(); RKMK takes solvers of diffrax too",
    "Interaction": "Interaction(relation, law)",
    "PrescribedVelocity": "PrescribedVelocity(index, rate)",
    "Event": "an Event(condition)",
    "RKMK": "RKMK with an explicit tableau and an embedded method, such as RKMK(diffrax.Tsit5())",
    "SaveAt": "SaveAt(steps=10), which saves every tenth step",
    "Geom": "a Geom, such as Geom(Box(...), body=0)",
    "Model": "a Model; wrap a system as Model(system, interactions)",
    "Newton": "Newton(max_iterations), of the integrators",
    "Pose": "the Pose of the bodies: state.q of free bodies, system.frames(q) of a Multibody",
    "Site": "a Site, such as Site(body, position)",
    "State": "a State; make one with system.state(q, v)",
}
"""What to pass where a class of this name is expected, in words."""


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
    """A function that refuses arguments in the same way."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = _check(_rules(function, None), args, kwargs, function.__name__)
        for name, value in given.items():
            _refuse_nan(name, value, function.__name__)
        return function(*args, **kwargs)

    return call


class _Rule(NamedTuple):
    what: str
    accepts: Callable[[Any], bool]
    is_number: bool = False


class _Rules(NamedTuple):
    signature: inspect.Signature
    rules: dict[str, _Rule]
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
        if kind is inspect.Parameter.empty and _of_numbers(default):
            kind = jax.Array
        rule = _rule(kind)
        unsaid = parameter.annotation is inspect.Parameter.empty and name not in listed
        if unsaid and not _is_itself(kind):
            rule = None  # the constructor makes the field out of something else
        if rule is not None and name in converted:  # the field has what the converter returns
            nothing = rule.accepts(None)
            rule = _rule(jax.Array | None if nothing else jax.Array) if rule.is_number else None
        if kind in (float, float | None) and name in compiled_in:
            rule = _Rule("a plain number, since it is compiled in", _is_plain, True)
        if rule is not None and default is None:
            rule = rule._replace(accepts=lambda x, r=rule: x is None or r.accepts(x))
        if rule is not None and parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            rules[name] = rule
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            options = {name: _rule(kind) for name, kind in fields.items()}
            rules |= {n: r for n, r in options.items() if r is not None and n not in rules}
    return _Rules(signature, rules, int(owner is not None))


def _check(rules: _Rules, args: tuple, kwargs: dict, owner: str) -> dict:
    try:
        given = rules.signature.bind_partial(*(None,) * rules.skip, *args, **kwargs).arguments
    except TypeError as error:
        names = ", ".join(list(rules.signature.parameters)[rules.skip :])
        raise TypeError(f"{owner}: {error}; its arguments are {names}.") from None
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
            if rule.what == FINITE and _is_plain(value):
                raise ValueError(f"{name} must be {FINITE}, in {owner}(...); got {value:.6g}.")
            got = shown(value)
            if isinstance(value, list | tuple) and 0 < len(value) < 10:
                got += " with " + ", ".join(dict.fromkeys(map(shown, value)))
            raise TypeError(f"{name} must be {rule.what}, in {owner}(...); got {got}.")
    return given


def _refuse_nan(name: str, value, owner: str) -> None:
    if _has_nan(value):
        raise ValueError(f"{name} is not finite, in {owner}(...): it must be numbers, got NaN.")


def _rule(kind: Any) -> _Rule | None:
    """What an annotation accepts; `None` for those that say nothing."""
    if kind in (Any, inspect.Parameter.empty) or isinstance(kind, str | TypeVar):
        return None
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind == Numbers:
        return _Rule("numbers", _of_numbers, True)
    if kind == Number:
        return _Rule(FINITE, _is_number, True)
    if origin is Annotated:
        return _callable_rule(inner[1])
    if origin in (typing.Union, types.UnionType):
        rules = [_rule(part) for part in inner]
        if None in rules:
            return None
        known = [rule for rule in rules if rule is not None]
        what = " or ".join(dict.fromkeys(rule.what for rule in known))
        number = any(rule.is_number for rule in known)
        return _Rule(what, lambda x: any(rule.accepts(x) for rule in known), number)
    if kind is Callable or origin is Callable:
        return _callable_rule(None)
    if kind in (None, type(None)):
        return _Rule("None", lambda x: x is None)
    if kind is bool:
        return _Rule("True or False", lambda x: isinstance(x, bool | np.bool_))
    if kind is int:
        return _Rule("a whole number", _is_whole)
    if kind is float:
        return _Rule("a real number", lambda x: _of_numbers(x) and np.ndim(x) == 0, True)
    if origin in (tuple, list, Sequence, Iterable):
        return _sequence_rule(origin, inner)
    if origin in (dict, Mapping) or kind in (dict, Mapping):
        return _Rule("a dictionary", lambda x: isinstance(x, Mapping))
    if not isinstance(kind, type) or getattr(kind, "__module__", "") == "typing":
        return None
    if issubclass(kind, AbstractArray) or kind in (jax.Array, np.ndarray):
        dtype = getattr(kind, "dtype", None)
        if dtype is not None and getattr(dtype, "__name__", "") == "Bool":
            return None  # `booleans` checks them
        if dtype in (Key, UInt32):
            return _Rule("a key of jax.random, such as jax.random.key(0)", _is_key)
        return _Rule("numbers", _of_numbers, True)
    if issubclass(kind, AbstractDtype) or kind.__module__.startswith("jaxtyping"):
        return None
    if kind is str:
        return _Rule("a string", lambda x: isinstance(x, str))
    if issubclass(kind, PurePath):
        return _Rule("a path", lambda x: isinstance(x, PurePath))
    name = kind.__name__
    what = EXAMPLES.get(name, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
    return _Rule(what, lambda x: isinstance(x, kind))


def _is_itself(kind: Any) -> bool:
    """Whether an argument that becomes a field of this kind is of this kind too: numbers and functions."""
    parts = (
        typing.get_args(kind)
        if typing.get_origin(kind) in (typing.Union, types.UnionType)
        else (kind,)
    )
    return all(
        part in (float, type(None), Callable, jax.Array)
        or part == Numbers
        or typing.get_origin(part) in (Annotated, Callable)
        or isinstance(part, type)
        and issubclass(part, AbstractArray)
        for part in parts
    )


def _sequence_rule(origin: Any, inner: tuple) -> _Rule | None:
    if origin is tuple and inner and Ellipsis not in inner:
        each = [_rule(part) for part in inner]
        what = ", ".join("anything" if rule is None else rule.what for rule in each)

        def fits(x) -> bool:
            if not isinstance(x, list | tuple) or len(x) != len(each):
                return False
            pairs = zip(each, x, strict=True)
            return all(rule is None or rule.accepts(part) for rule, part in pairs)

        return _Rule(f"a tuple of {len(each)}: {what}", fits)
    of = inner[0] if inner and (len(inner) == 1 or inner[-1] is Ellipsis) else None
    item = None if of is None else _rule(of)

    def accepts(x) -> bool:
        if isinstance(x, str | bytes | type | Mapping | AbstractSet) or not hasattr(x, "__iter__"):
            return False
        if is_traced(x):
            return True
        if isinstance(x, jax.Array | np.ndarray):
            entries = np.asarray(x).tolist() if x.ndim and _of_numbers(x) else [None]
            return item is None or all(map(item.accepts, entries))
        return item is None or not isinstance(x, Sequence) or all(map(item.accepts, x))

    what = "a sequence" + ("" if item is None else f", each entry {item.what}")
    return _Rule(what, accepts)


def _callable_rule(takes: str | None) -> _Rule:
    """**Arguments:** `takes`: the arguments with which it is called, such as `(t, q)`."""
    if takes is None:
        return _Rule("a function", lambda x: callable(x) and not isinstance(x, type))
    count = len([name for name in takes.strip("()").split(",") if name.strip()])

    def accepts(x) -> bool:
        if not callable(x) or isinstance(x, type):
            return False
        try:
            inspect.signature(x).bind(*(None,) * count)
        except TypeError:
            return False
        except ValueError:  # it has no signature to look at, as some built-in functions
            return True
        return True

    return _Rule(f"a function of {takes}", accepts)


def _is_whole(x) -> bool:
    """A whole number that is known: an `int`, or an integer array of no axes."""
    if isinstance(x, bool | np.bool_) or is_traced(x):
        return False
    if isinstance(x, jax.Array | np.ndarray):
        return x.ndim == 0 and jnp.issubdtype(x.dtype, np.integer)
    return isinstance(x, Integral)


def _is_number(x) -> bool:
    if not _of_numbers(x) or np.ndim(x):
        return False
    if is_traced(x) or isinstance(x, jax.ShapeDtypeStruct):
        return True
    return abs(float(x)) < 1e150  # its square is finite too; not NaN


def _is_plain(x) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _is_key(x) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _of_numbers(x) -> bool:
    """Whether `x` can be made an array of real numbers."""
    if isinstance(x, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        dtype = x.dtype
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return False
        return not jnp.issubdtype(dtype, jnp.complexfloating) and (
            jnp.issubdtype(dtype, jnp.number) or dtype in (bool, jax.dtypes.float0)
        )
    if isinstance(x, list | tuple):
        return all(map(_of_numbers, x)) and len({np.shape(part) for part in x}) <= 1
    return isinstance(x, Real) or (hasattr(x, "__jax_array__") and not isinstance(x, type))


def _has_nan(x) -> bool:
    """Whether known numbers contain NaN."""
    if isinstance(x, list | tuple):
        return any(map(_has_nan, x))
    if is_traced(x) or not isinstance(x, jax.Array | np.ndarray | Real):
        return False
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return False
    if isinstance(x, jax.Array | np.ndarray) and not jnp.issubdtype(x.dtype, jnp.floating):
        return False
    return bool(np.isnan(np.asarray(x, float)).any())
