"""The coordinates in which least-squares fits take their steps."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._base import parameter_nodes


class Chart(eqx.Module):
    """The coordinates `x` of the iteration: the value itself for a bounded parameter, else `raw`.

    In `raw`, an optimum on a bound is far away, and a step across the bend of a bounded map lands
    where its slope is nearly zero. Iterating on the value avoids both: steps are clipped to `lo`,
    `hi`, which lie far enough inside the true bounds for `raw` to be finite.
    """

    lo: Array
    hi: Array
    unravel: Callable = eqx.field(static=True)

    @classmethod
    def of(cls, params: PyTree) -> "Chart":
        flat, unravel = ravel_pytree(params)
        edge = float(jnp.finfo(flat.dtype).eps) ** 0.6
        bounds = []
        for _, raw, transform, _ in parameter_nodes(params):
            sides = transform.limits() if transform.is_box else (-np.inf, np.inf)
            lo, hi = (np.broadcast_to(side, raw.shape) for side in sides)
            width = np.where(np.isfinite(hi - lo), hi - lo, 1.0)
            bounds.append(np.stack([lo + edge * width, hi - edge * width]).reshape(2, -1))
        lo, hi = (jnp.asarray(row, flat.dtype) for row in np.concatenate(bounds, axis=1))
        return cls(lo, hi, unravel)

    def start(self, params: PyTree) -> Array:
        """The coordinates of `params`."""
        return self.clip(_coordinates(params))

    def slopes(self, params: PyTree) -> Array:
        """`dx / draw` of every coordinate."""
        return jax.jvp(_coordinates, (params,), (jax.tree.map(jnp.ones_like, params),))[1]

    def clip(self, x: Array) -> Array:
        """The nearest coordinates within the bounds."""
        return jnp.clip(x, self.lo, self.hi)

    def params(self, x: Array) -> PyTree:
        """The parameters with coordinates `x`."""
        return self.unravel(_in_boxes(lambda transform, x: transform.to_raw(x), self.unravel(x)))


def _coordinates(params: PyTree) -> Array:
    return _in_boxes(lambda transform, raw: transform.forward(raw), params)


def _in_boxes(function: Callable, params: PyTree) -> Array:
    """The flattened entries of `params`, with `function(transform, x)` applied to the bounded ones."""
    parts = [
        (function(transform, x) if transform.is_box else x).ravel()
        for _, x, transform, _ in parameter_nodes(params)
    ]
    return jnp.concatenate(parts)
