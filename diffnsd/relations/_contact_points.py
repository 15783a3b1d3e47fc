"""What contacts between closest points share, in space and in the plane."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Config, PerContact, Scalar
from ._base import AbstractRelation


class AbstractContactPoints(AbstractRelation):
    """Contacts from a function that finds closest points and normals, `g = n · (p1 − p2)`."""

    function: eqx.AbstractVar[Callable]

    @property
    def dimension(self) -> int:
        """Number of coordinates of a point."""
        return 3

    def _points(self, t: Scalar, q: Config) -> tuple[Array, Array, Array]:
        points = tuple(map(jnp.asarray, self.function(t, q)))
        shapes, d = [x.shape for x in points], self.dimension
        if len(points) != 3 or len(set(shapes)) > 1 or shapes[0][1:] != (d,):
            raise ValueError(
                f"the contact function returned shapes {shapes}; expected (p1, p2, n), each "
                f"(c, {d})."
            )
        return points

    def gap(self, t: Scalar, q: Config) -> PerContact:
        p1, p2, n = self._points(t, q)
        return jnp.sum(n * (p1 - p2), axis=-1)
