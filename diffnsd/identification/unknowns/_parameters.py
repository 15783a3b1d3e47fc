"""Selects the leaves of a model to identify, with their names and bounds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from ..._arguments import checked_arguments
from .._base import Parameters, path_name
from ._transforms import AbstractTransform, AtLeast, AtMost, Interval, Unbounded


@dataclasses.dataclass(frozen=True)
class Tied:
    """Several leaves of a model that share one parameter: `leaf_i = scale_i * value`.

    **Arguments:**

    - `leaves`: a leaf, or a tuple of leaves, of the model given to `where`.
    - `scales`: one factor per leaf, 1 by default; a single factor need not be in a tuple. If any
      factor is an array, the value is one number and each leaf has the shape of its factor. Example:
      `Tied(model.corners, scales=signs)` for the corners of a cube, with its half width as the value.
    """

    leaves: Any
    scales: Sequence[ArrayLike] | ArrayLike | None = None


@dataclasses.dataclass(frozen=True)
class Scaled:
    """A common factor on leaves of a model, starting at 1: `leaf_i = value * (leaf_i of that model)`.

    **Arguments:** `leaves`: a leaf, or a tuple of leaves, of the model given to `where`.
    """

    leaves: Any


@dataclasses.dataclass(frozen=True, eq=False)
class _Leaf:
    """Placeholder for a leaf of the model while `where` runs, with its position and path."""

    index: int
    name: str
    value: Any


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One parameter before its bounds are known: its start value, and the leaves it sets."""

    name: str
    value: Array
    targets: tuple[int, ...]
    scales: tuple[Array, ...]


class Rebuild(eqx.Module):
    """`rebuild(params)` returns the model with the physical values of `params` in its leaves.

    **Arguments:**

    - `model`: the model that supplies all other leaves.
    - `targets`: for each parameter, the indices of its leaves among the leaves of the model.
    - `scales`: the factor of each of those leaves.
    - `names`: the names of the parameters.
    """

    model: PyTree
    targets: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    scales: tuple[tuple[Array, ...], ...]
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, params: Parameters) -> PyTree:
        if params.names != self.names:
            raise ValueError(
                f"these parameters ({', '.join(params.names)}) belong to another model; "
                f"this one has {', '.join(self.names)}."
            )
        leaves, structure = jtu.tree_flatten(self.model)
        for name, targets, scales in zip(self.names, self.targets, self.scales, strict=True):
            value = params[name]
            for index, scale in zip(targets, scales, strict=True):
                leaf = scale.astype(value.dtype) * value
                leaves[index] = leaf.astype(jnp.result_type(leaves[index]))
        return jtu.tree_unflatten(structure, leaves)


@checked_arguments
def parameters(
    model: PyTree,
    where: Callable[[PyTree], Any],
    bounds: Any = None,
    units: Mapping[str, str] | None = None,
) -> tuple[Parameters, Rebuild]:
    """Chooses which parameters of a model to identify.

        params, rebuild = parameters(
            model, lambda m: {"mu": m.law.mu, "e": m.law.e}, {"mu": (0, None), "e": (0, 1)}
        )
        model = rebuild(params)

    **Arguments:**

    - `model`: any pytree, usually an `equinox.Module`.
    - `where`: selects from the model one leaf, a tuple of leaves or a dict of leaves; each may also
      be a `Tied` or `Scaled`. The keys of a dict name the parameters; otherwise the name is the path
      of the leaf in the model.
    - `bounds`: in the same structure (a dict may omit keys), a transform, a pair `(lo, hi)` with
      `None` for an open side, or `None` for a parameter without bounds. `lo` and `hi` are numbers or
      arrays of the shape of the parameter. With one side open, the scale of the transform is the
      power of ten nearest to the distance of the start value from the bound. Start values on a bound
      are moved inside by a hundredth of that scale (1 if all are on it), or of the interval.
    - `units`: units by name, for reports.

    **Returns:** `params`, a pytree of unconstrained arrays that represent the physical values, and
    `rebuild`, the function that puts these values into the model.

    **Raises:** `ValueError` if `where` selects a leaf that does not exist (the message lists the
    existing ones) or anything but whole leaves; for a start value that is not finite or outside its
    bounds; for bounds that are NaN, empty, of the wrong shape, or finite for only some components
    of a parameter; for units that do not match. `TypeError` for a leaf that is not a floating point
    number.
    """
    selected = _run_where(model, where)
    if not isinstance(selected, (tuple, list, Mapping)):
        selected = (selected,)
        bounds = bounds if bounds is None or isinstance(bounds, Mapping) else (bounds,)
    items = selected.items() if isinstance(selected, Mapping) else ((None, x) for x in selected)
    entries = [_entry(name, item, model) for name, item in items]
    if not entries:
        raise ValueError("`where` selects nothing; its leaves are:\n" + _available(model))
    names = tuple(entry.name for entry in entries)
    seen: dict[int, str] = {}
    raw, transforms = [], []
    for entry, bound in zip(entries, _match_bounds(bounds, names), strict=True):
        for target in entry.targets:
            if target in seen:
                raise ValueError(f"{entry.name} and {seen[target]} select the same leaf.")
            seen[target] = entry.name
        try:
            transform = _as_transform(bound, entry.value)
            raw.append(transform.inverse(entry.value))
        except ValueError as error:
            raise ValueError(f"Parameter {entry.name}: {error}") from None
        transforms.append(transform)

    units = dict(units or {})
    if unknown := [name for name in units if name not in names]:
        raise ValueError(f"units for {unknown}, but the parameters are {', '.join(names)}.")
    params = Parameters(
        tuple(raw), names, tuple(transforms), tuple(units.get(name) for name in names)
    )
    rebuild = Rebuild(
        model, tuple(e.targets for e in entries), tuple(e.scales for e in entries), names
    )
    return params, rebuild


def _available(model: PyTree, limit: int = 40) -> str:
    """Lists the leaves of a model that could be parameters, for messages."""
    lines = []
    for path, leaf in jtu.tree_flatten_with_path(model)[0]:
        if _is_float(leaf):
            lines.append(f"  {path_name(path) or '(the model itself)'}  shape {np.shape(leaf)}")
    more = [f"  ... and {len(lines) - limit} more"] if len(lines) > limit else []
    return "\n".join(lines[:limit] + more) or "  (none)"


def _is_float(leaf) -> bool:
    if isinstance(leaf, float):
        return True
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSU":
        return False
    return eqx.is_array_like(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _run_where(model: PyTree, where: Callable) -> Any:
    """The selection of `where`, as placeholders; errors refer to the model."""
    paths, structure = jtu.tree_flatten_with_path(model)
    stand_ins = [_Leaf(i, path_name(path) or "value", x) for i, (path, x) in enumerate(paths)]
    try:
        return where(jtu.tree_unflatten(structure, stand_ins))
    except (AttributeError, KeyError, IndexError) as error:
        raise ValueError(
            f"`where` asks for something that the model does not have ({error}). "
            f"Its leaves are:\n{_available(model)}"
        ) from None
    except TypeError as error:
        raise ValueError(
            f"`where` must only select whole leaves, without computing or indexing ({error}); for "
            "factors and shared values use `Tied` or `Scaled`."
        ) from None


def _entry(name: Any, item: Any, model: PyTree) -> _Entry:
    """One parameter selected by `where`, with its start value."""
    leaves = item.leaves if isinstance(item, (Tied, Scaled)) else item
    leaves = tuple(leaves) if isinstance(leaves, (tuple, list)) else (leaves,)
    for leaf in leaves:
        if not isinstance(leaf, _Leaf):
            kind = "nothing (None)" if leaf is None else f"a {type(leaf).__name__}"
            raise ValueError(
                f"`where` selects {kind} for {'a parameter' if name is None else name}, not a leaf. "
                f"The model's leaves are:\n{_available(model)}"
            )
        if not _is_float(leaf.value):
            raise TypeError(
                f"{leaf.name} is {leaf.value!r}, not an array of floating point numbers, and "
                "cannot be identified; convert it to a float in the model."
            )
        if not np.all(np.isfinite(np.asarray(leaf.value))):
            raise ValueError(
                f"{leaf.name} is {leaf.value}, which is not finite; give the model a finite start "
                "value."
            )
    label = leaves[0].name if name is None else str(name)
    values = [jnp.asarray(leaf.value) for leaf in leaves]
    targets = tuple(leaf.index for leaf in leaves)
    if isinstance(item, Scaled):
        return _Entry(label, jnp.ones((), values[0].dtype), targets, tuple(values))
    scales = item.scales if isinstance(item, Tied) else None
    scales = (1.0,) * len(leaves) if scales is None else scales
    scales = scales if isinstance(scales, (tuple, list)) else (scales,)
    if len(scales) != len(leaves):
        raise ValueError(f"Parameter {label}: {len(leaves)} leaves, {len(scales)} scales.")
    factors = tuple(jnp.asarray(scale, values[0].dtype) for scale in scales)
    return _Entry(label, _common_value(label, values, factors), targets, factors)


def _common_value(name: str, values: list[Array], factors: tuple[Array, ...]) -> Array:
    """The `value` with `values[i] = factors[i] * value`. **Raises:** `ValueError` if none exists."""
    first, scale = np.asarray(values[0]), np.asarray(factors[0])
    if any(factor.ndim > 0 for factor in factors):
        if first.shape != scale.shape:
            raise ValueError(f"Parameter {name}: leaf {first.shape}, its scale {scale.shape}.")
        value = np.sum(first * scale) / np.sum(scale * scale)
    else:
        value = first / scale
    for other, factor in zip(values, factors, strict=True):
        expected = np.asarray(factor) * value
        if np.shape(expected) != other.shape or not np.allclose(
            expected, np.asarray(other), rtol=1e-5, atol=1e-7 * np.max(np.abs(value), initial=0.0)
        ):
            raise ValueError(
                f"Parameter {name}: the tied leaves do not start from one value (expected "
                f"{expected}, the model has {other}); set them equal, up to their scales, first."
            )
    return jnp.asarray(value, values[0].dtype)


def _match_bounds(bounds: Any, names: tuple[str, ...]) -> list:
    """One bound for each parameter."""
    if bounds is None:
        return [None] * len(names)
    if isinstance(bounds, Mapping):
        if unknown := [str(name) for name in bounds if name not in names]:
            raise ValueError(
                f"bounds for {', '.join(unknown)}, but the parameters are {', '.join(names)}."
            )
        return [bounds.get(name) for name in names]
    if not isinstance(bounds, (tuple, list)) or len(bounds) != len(names):
        raise ValueError(
            f"`bounds` must have one entry for each of the {len(names)} parameters "
            f"({', '.join(names)}), got {bounds!r}."
        )
    return list(bounds)


def _as_transform(bound: Any, value: Array) -> AbstractTransform:
    """Converts a bound as given by the user to a transform; the parameter starts at `value`."""
    if bound is None:
        return Unbounded()
    if isinstance(bound, AbstractTransform):
        for side in bound.limits():
            _check_shape(side, value)
        return bound
    if not isinstance(bound, (tuple, list)) or len(bound) != 2:
        raise ValueError(f"a bound is a pair (lo, hi), a transform or None, got {bound!r}.")
    lo, hi = (_side(bound, i, value) for i in (0, 1))
    if not np.all((lo < hi) & (lo < np.inf) & (hi > -np.inf)):
        raise ValueError(f"the bounds must be numbers with lo < hi (None: open side), got {bound}.")
    finite = np.isfinite(lo), np.isfinite(hi)
    has_lo, has_hi = map(np.all, finite)
    if np.any(finite[0]) != has_lo or np.any(finite[1]) != has_hi:
        raise ValueError(
            f"some components have a bound and others have none on the same side: {bound}; make "
            "them leaves of their own in the model, or give all components finite bounds."
        )
    if has_lo and has_hi:
        return Interval(lo, hi)
    if has_lo:
        return AtLeast(lo, scale=_scale(np.asarray(value) - lo))
    return AtMost(hi, scale=_scale(hi - np.asarray(value))) if has_hi else Unbounded()


def _side(bound, i: int, value: Array) -> np.ndarray:
    """The lower (0) or upper (1) side of a pair, infinite where it is open."""
    if bound[i] is None:
        return np.asarray((-np.inf, np.inf)[i])
    try:
        side = np.asarray(bound[i], float)
    except (TypeError, ValueError):
        raise ValueError(
            f"a bound must be a number, an array of numbers or None (open), got {bound[i]!r}."
        ) from None
    _check_shape(side, value)
    return side


def _check_shape(side: np.ndarray, value: Array) -> None:
    if side.shape not in ((), value.shape):
        raise ValueError(
            f"the bound has shape {side.shape}, but the parameter {value.shape}; give one number "
            "or an array of the shape of the parameter."
        )


def _scale(distance: np.ndarray) -> np.ndarray:
    """The power of ten nearest to each distance from a bound.

    It is a power of ten, not the distance itself, so that fits from nearby start values share one
    program. Components on the bound take the scale of the furthest component, or 1 if all are on it.
    """
    furthest = np.max(distance, initial=0.0)
    safe = np.where(distance > 0, distance, furthest if furthest > 0 else 1.0)
    return 10.0 ** np.round(np.log10(safe))
