"""Nonnegative multipliers, row by row."""

import math

import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractSet, Blocks, Rows, diagonal, positive_root


class HalfLine(AbstractSet):
    """`{z : z >= 0}` in every row: unilateral contacts, diodes, complementarity.

    The barrier proximal map is `p = (z + sqrt(z^2 + 4 kappa)) / 2`, so that `p (p - z) = kappa`.
    At `z = 0` the derivative of the projection is taken to be 0 (an open contact).

    Reference: N. Parikh, S. Boyd, Proximal algorithms (2014), doi:10.1561/2400000003.
    """

    def project(self, z: Rows) -> Rows:
        return jnp.maximum(z, 0)

    def jacobian(self, z: Rows) -> Blocks:
        return diagonal(jnp.where(z > 0, jnp.ones_like(z), jnp.zeros_like(z)))

    def prox(self, z: Rows, kappa: Array) -> Rows:
        kappa = jnp.broadcast_to(jnp.asarray(kappa, z.dtype), z[0].shape)[None]
        return positive_root(1, z, kappa)

    def margin(self, z: Rows) -> Array:
        return jnp.min(jnp.abs(z), axis=0)

    def interval(self) -> tuple[float, float]:
        return 0.0, math.inf
