"""What annotations of arguments accept, and how a message says it."""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from numbers import Integral, Real
from pathlib import PurePath
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, AbstractDtype, ArrayLike, Key, UInt32

from ._jax import is_traced
from ._types import State

Numbers = Annotated[Any, "numbers"]
"""What becomes an array: numbers, lists of them, arrays."""


class Axes(NamedTuple):
    """Marks an argument that becomes an array of these axes."""

    names: str


Two = Annotated[Any, Axes("2")]
Three = Annotated[Any, Axes("3")]
Four = Annotated[Any, Axes("4")]
"""So many numbers."""
AnyShape = Annotated[Any, Axes("...")]
"""Numbers that become an array, of any shape."""

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
    "NonlinearComplementarityProblem": (
        "a NonlinearComplementarityProblem(function, laws=((law, (c, k)),))"
    ),
    "PathLike": "a path",
    "Pose": "the Pose of the bodies: state.q of free bodies, system.frames(q) of a Multibody",
    "Site": "a Site, such as Site(body, position)",
    "State": "a State; make one with system.state(q, v)",
}
"""What to pass where a class of this name is expected, in words."""


class Rule(NamedTuple):
    """What an argument must be.

    **Arguments:** `what`: in words; `accepts(value)`: whether it is; `is_number`: whether numbers are meant.
    Of an array: `axes`, in the words of jaxtyping; `is_whole`: of whole numbers; `of_numpy`: not of JAX.
    `is_table`: a sequence of tuples, whose numbers the function looks at itself.
    """

    what: str
    accepts: Callable[[Any], bool]
    is_number: bool = False
    axes: str | None = None
    is_whole: bool = False
    is_table: bool = False
    of_numpy: bool = False


def rule_of(kind: Any) -> Rule | None:
    """What an annotation accepts; `None` for those that say nothing."""
    if kind in (Any, inspect.Parameter.empty) or isinstance(kind, str | TypeVar):
        return None
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Numbers, ArrayLike):
        return Rule("numbers", of_numbers, True)
    if kind == Number:
        return Rule(FINITE, _is_number, True)
    if origin is Annotated and isinstance(inner[1], Axes):
        return Rule("numbers", of_numbers, True, inner[1].names)
    if origin is Annotated:
        return _callable_rule(inner[1])
    if origin in (typing.Union, types.UnionType):
        rules = [rule_of(part) for part in inner]
        if None in rules:
            return None
        known = [rule for rule in rules if rule is not None]
        what = " or ".join(dict.fromkeys(rule.what for rule in known))
        number = any(rule.is_number for rule in known)
        table = any(rule.is_table for rule in known)
        return Rule(what, lambda x: any(rule.accepts(x) for rule in known), number, is_table=table)
    if origin is type:
        base = inner[0]
        return Rule(
            f"a class derived from {base.__name__}",
            lambda x: isinstance(x, type) and issubclass(x, base),
        )
    if kind is Callable or origin is Callable:
        return _callable_rule(None)
    if kind in (None, type(None)):
        return Rule("None", lambda x: x is None)
    if kind is bool:
        return Rule("True or False", lambda x: isinstance(x, bool | np.bool_))
    if kind is int:
        return Rule("a whole number", _is_whole)
    if kind is float:
        return Rule("a real number", lambda x: of_numbers(x) and shape_of(x) == (), True)
    if origin in (tuple, list, Sequence, Iterable):
        return _sequence_rule(origin, inner)
    if origin in (dict, Mapping) or kind in (dict, Mapping):
        return Rule("a dictionary", lambda x: isinstance(x, Mapping))
    if not isinstance(kind, type) or getattr(kind, "__module__", "") == "typing":
        return None
    if issubclass(kind, AbstractArray) or kind in (jax.Array, np.ndarray):
        dtype = getattr(kind, "dtype", None)
        if dtype is not None and getattr(dtype, "__name__", "") == "Bool":
            return None  # `booleans` checks them
        if dtype in (Key, UInt32):
            return Rule("a key of jax.random, such as jax.random.key(0)", _is_key)
        return Rule("numbers", of_numbers, True)
    if issubclass(kind, AbstractDtype) or kind.__module__.startswith("jaxtyping"):
        return None
    if kind is str:
        return Rule("a string", lambda x: isinstance(x, str))
    if issubclass(kind, PurePath):
        return Rule("a path", lambda x: isinstance(x, PurePath))
    name = kind.__name__
    what = EXAMPLES.get(name, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
    if kind is State:
        return Rule(what, lambda x: isinstance(x, kind) and _holds_numbers(x))
    return Rule(what, lambda x: isinstance(x, kind))


def shaped(rule: Rule, kind: Any) -> Rule:
    """The rule of an array with its shape; an array of no axes is one finite number."""
    parts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    arrays = [p for p in parts if isinstance(p, type) and issubclass(p, AbstractArray)]
    if len(arrays) != 1 or any(p not in (type(None), *arrays) for p in parts):
        return rule
    axes = getattr(arrays[0], "dim_str", "").strip()
    if not rule.is_number or axes == "...":
        return rule
    if axes:
        whole = getattr(getattr(arrays[0], "dtype", None), "__name__", "") != "Float"
        numpy = getattr(arrays[0], "array_type", None) is np.ndarray
        return rule._replace(axes=axes, is_whole=whole, of_numpy=numpy)
    optional = len(parts) > 1
    what = f"{FINITE} or None" if optional else FINITE
    return Rule(what, lambda x: (optional and x is None) or _is_number(x), True)


def _holds_numbers(state: Any) -> bool:
    return state.v is not None and all(map(of_numbers, jax.tree.leaves((state.q, state.v))))


def is_unlike_reals(x) -> bool:
    """Whether these numbers are no array of real ones yet: a list, or whole numbers."""
    if isinstance(x, list | tuple):
        return True
    known = isinstance(x, jax.Array | np.ndarray)
    return known and not jnp.issubdtype(x.dtype, jnp.inexact) and x.dtype != jax.dtypes.float0


def is_itself(kind: Any) -> bool:
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


def _sequence_rule(origin: Any, inner: tuple) -> Rule | None:
    if origin is tuple and inner and Ellipsis not in inner:
        each = [rule_of(part) for part in inner]
        what = ", ".join("anything" if rule is None else rule.what for rule in each)

        def fits(x) -> bool:
            if not isinstance(x, list | tuple) or len(x) != len(each):
                return False
            pairs = zip(each, x, strict=True)
            return all(rule is None or rule.accepts(part) for rule, part in pairs)

        return Rule(f"a tuple of {len(each)}: {what}", fits)
    of = inner[0] if inner and (len(inner) == 1 or inner[-1] is Ellipsis) else None
    item = None if of is None else rule_of(of)

    def accepts(x) -> bool:
        if isinstance(x, str | bytes | type | Mapping | AbstractSet) or not hasattr(x, "__iter__"):
            return False
        if getattr(x, "shape", None) == ():
            return False  # an array of a single number has `__iter__` too
        if is_traced(x):
            return True
        if isinstance(x, jax.Array | np.ndarray):
            entries = np.asarray(x).tolist() if of_numbers(x) else [None]
            return item is None or all(map(item.accepts, entries))
        return item is None or not isinstance(x, Sequence) or all(map(item.accepts, x))

    what = "a sequence" + ("" if item is None else f", each entry {item.what}")
    return Rule(what, accepts, is_table=typing.get_origin(of) is tuple)


def _callable_rule(takes: str | None) -> Rule:
    """**Arguments:** `takes`: the arguments with which it is called, such as `(t, q)`."""
    if takes is None:
        return Rule("a function", lambda x: callable(x) and not isinstance(x, type))
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

    return Rule(f"a function of {takes}", accepts)


def _is_whole(x) -> bool:
    """A whole number that is known: an `int`, or an integer array of no axes."""
    if isinstance(x, bool | np.bool_) or is_traced(x):
        return False
    if isinstance(x, jax.Array | np.ndarray):
        return x.ndim == 0 and jnp.issubdtype(x.dtype, np.integer)
    return isinstance(x, Integral)


def _is_number(x) -> bool:
    if not of_numbers(x) or shape_of(x):
        return False
    x = _made_array(x)
    if is_traced(x) or isinstance(x, jax.ShapeDtypeStruct):
        return True
    return abs(float(x)) < 1e150  # its square is finite too; not NaN


def is_plain(x) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _is_key(x) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def shape_of(x) -> tuple[int, ...]:
    """The shape of the array that numbers become, of which some may be traced."""
    if isinstance(x, list | tuple):
        return (len(x), *(shape_of(x[0]) if x else ()))
    return np.shape(_made_array(x))


def _made_array(x: Any) -> Any:
    """The array of an object that says how it becomes one."""
    make = None if isinstance(x, type) else getattr(x, "__jax_array__", None)
    return x if make is None else make()


def of_numbers(x) -> bool:
    """Whether `x` can be made an array of real numbers."""
    if isinstance(x, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        dtype = x.dtype
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return False
        return not jnp.issubdtype(dtype, jnp.complexfloating) and (
            jnp.issubdtype(dtype, jnp.number) or dtype in (bool, jax.dtypes.float0)
        )
    if isinstance(x, list | tuple):
        return all(map(of_numbers, x)) and len(set(map(shape_of, x))) <= 1
    return isinstance(x, Real) or _made_array(x) is not x
