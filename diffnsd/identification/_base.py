"""What identification shares: trees of named parameters."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from ._transforms import AbstractTransform, Unbounded


class Parameters(eqx.Module):
    """Named parameters: a pytree whose only leaves are the unconstrained arrays `raw`.

    It can be given to `jax.grad`, to any Optax transformation, to `fit` and to `least_squares`.
    `params["mu"]` is a physical value, `params.values()` all of them by name.

    **Arguments:**

    - `raw`: tuple of unconstrained arrays, one for each parameter.
    - `names`: their names.
    - `transforms`: the map from raw numbers to the physical value, for each parameter.
    - `units`: unit of each physical value, or `None`.
    """

    raw: tuple[Array, ...]
    names: tuple[str, ...] = eqx.field(static=True)
    transforms: tuple[AbstractTransform, ...] = eqx.field(static=True)
    units: tuple[str | None, ...] = eqx.field(static=True)

    def index(self, name: str) -> int:
        """Position of a parameter. **Raises:** `KeyError` that lists the names there are."""
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
        """These parameters with some physical values replaced.

        **Arguments:** `values`: new physical values by name; the others stay.

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
    """`(name, raw, transform, unit)` of every parameter in any pytree, in the order of its leaves.

    Leaves outside of a `Parameters` node are named by their path and are their own values.
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
    """Physical values by name, of any pytree of parameters."""
    return {name: transform.forward(raw) for name, raw, transform, _ in parameter_nodes(params)}


def with_axes(x, ndim: int):
    """`x` with axes of length 1 at the end, `ndim` in all: to spread it over what it begins."""
    return x.reshape(x.shape + (1,) * (ndim - x.ndim))


def path_name(path) -> str:
    """A path inside a pytree, as one would write it in Python: `interactions[0].law.mu`."""
    return jtu.keystr(path).lstrip(".")


def check_parameters(params: PyTree) -> None:
    """Checks that every leaf can be optimised.

    **Raises:** `TypeError` for a leaf that is not a floating array; `ValueError` for no leaf at all
    or for one that is not finite.
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
        if not np.all(np.isfinite(np.asarray(leaf))):
            raise ValueError(f"The leaf {name} of `params` is not finite: {leaf}.")
