"""Pytrees of named parameters, shared by all of identification."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._expects import shown
from .._jax import is_traced
from .unknowns._transforms import AbstractTransform, Unbounded


class Parameters(eqx.Module):
    """Named parameters: a pytree whose only leaves are the unconstrained arrays `raw`.

    It works with `jax.grad`, any Optax transformation, `fit` and `least_squares`.
    `params["mu"]` is one physical value, `params.values()` a dictionary of all of them.

    **Arguments:**

    - `raw`: tuple of unconstrained arrays, one per parameter.
    - `names`: their names.
    - `transforms`: for each parameter, the map from raw numbers to the physical value.
    - `units`: unit of each physical value, or `None`.
    """

    raw: tuple[Array, ...]
    names: tuple[str, ...] = eqx.field(static=True)
    transforms: tuple[AbstractTransform, ...] = eqx.field(static=True)
    units: tuple[str | None, ...] = eqx.field(static=True)

    def index(self, name: str) -> int:
        """Index of a parameter. **Raises:** `KeyError` listing the existing names."""
        if name not in self.names:
            raise KeyError(f"no parameter {name!r}; there are: {', '.join(self.names)}.")
        return self.names.index(name)

    def __getitem__(self, name: str) -> Array:
        i = self.index(name)
        return self.transforms[i].forward(self.raw[i])

    def values(self) -> dict[str, Array]:
        """Physical values by name."""
        return {name: self[name] for name in self.names}

    def with_values(self, values: Mapping[str, Array | float]) -> "Parameters":
        """Returns a copy with some physical values replaced.

        **Arguments:** `values`: new physical values by name; the others are kept.

        **Raises:** `KeyError` for an unknown name; `ValueError` for a wrong shape or a value
        outside the bounds.
        """
        raw = list(self.raw)
        for name, value in values.items():
            i = self.index(name)
            old = self[name]
            value = jnp.asarray(value, dtype=old.dtype)
            if value.shape != old.shape:
                raise ValueError(f"{name} has shape {old.shape}, not {value.shape}.")
            try:
                raw[i] = self.transforms[i].inverse(value)
            except ValueError as error:
                raise ValueError(f"Parameter {name}: {error}") from None
        return eqx.tree_at(lambda p: p.raw, self, tuple(raw))


def parameter_nodes(
    params: PyTree,
) -> list[tuple[str, Array, AbstractTransform, str | None]]:
    """`(name, raw, transform, unit)` of every parameter in a pytree, in the order of its leaves.

    Leaves outside a `Parameters` node are named by their path and are not transformed.
    """
    nodes = []
    paths = jtu.tree_leaves_with_path(params, is_leaf=lambda x: isinstance(x, Parameters))
    for path, node in paths:
        if isinstance(node, Parameters):
            nodes.extend(zip(node.names, node.raw, node.transforms, node.units, strict=True))
        else:
            nodes.append((path_name(path) or "params", node, Unbounded(), None))
    return nodes


def named_values(params: PyTree) -> dict[str, Array]:
    """Physical values by name, for any pytree of parameters."""
    return {name: transform.forward(raw) for name, raw, transform, _ in parameter_nodes(params)}


def with_axes(x, ndim: int):
    """`x` with trailing axes of length 1 up to `ndim` axes, to broadcast from the leading axes."""
    return x.reshape(x.shape + (1,) * (ndim - x.ndim))


def path_name(path) -> str:
    """A path inside a pytree, in Python notation: `interactions[0].law.mu`."""
    return jtu.keystr(path).lstrip(".")


def check_parameters(params: PyTree) -> None:
    """Checks that every leaf can be optimised.

    **Raises:** `TypeError` for a leaf that is not a floating array; `ValueError` if there are no
    leaves or one is not finite.
    """
    leaves = jtu.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("`params` has no leaves: there is nothing to identify.")
    for path, leaf in leaves:
        name = path_name(path) or "params"
        if not eqx.is_inexact_array(leaf):
            raise TypeError(
                f"The leaf {name} of `params` is {leaf!r}, not an array of floating point numbers; "
                "make `params` with `parameters(model, where, bounds)` or convert the leaf with "
                "`jnp.asarray(..., dtype=float)`."
            )
        if not is_traced(leaf) and not np.all(np.isfinite(np.asarray(leaf))):
            raise ValueError(f"The leaf {name} of `params` is not finite: {leaf}.")


def check_of_runs(**given: PyTree) -> None:
    """Checks that pytrees are of arrays with one leading axis, the runs.

    **Raises:** `TypeError` for a leaf that is no array; `ValueError` for different lengths, or none.
    """
    lengths = set()
    for name, tree in given.items():
        for leaf in jtu.tree_leaves(tree):
            words = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSU"
            kind = None if eqx.is_array(leaf) and not words else TypeError
            if kind or not leaf.ndim:
                raise (kind or ValueError)(
                    f"{name} must be arrays that share one leading axis, one entry for each; got "
                    f"{shown(leaf)}."
                )
            if name == "unknowns" and not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise TypeError(f"unknowns must be real numbers, got an array of {leaf.dtype}.")
            if not leaf.size:
                raise ValueError(f"{name} must not be empty, got an array of shape {leaf.shape}.")
            lengths.add(leaf.shape[0])
    if not lengths:
        raise ValueError(f"{' and '.join(given)} must have arrays, and have none.")
    if len(lengths) > 1:
        raise ValueError(
            f"{' and '.join(given)} must be arrays that share one leading axis, of the same length; these "
            f"lengths differ: {sorted(lengths)}."
        )
