"""Nonnegative multipliers, row by row."""

import math

import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractSet, Blocks, Rows


class HalfLine(AbstractSet):
    """`{z : z >= 0}` in every row: unilateral contacts, diodes, complementarity.

    The barrier proximal map is `p = (z + sqrt(z^2 + 4 kappa)) / 2`, so that `p (p - z) = kappa`.
    At `z = 0` the derivative of the projection is taken to be 0 (an open contact).

    Reference: N. Parikh, S. Boyd, Proximal algorithms (2014), doi:10.1561/2400000003.
    """

    def project(self, z: Rows) -> Rows:
        return jnp.maximum(z, 0)

    def jacobian(self, z: Rows) -> Blocks:
        zero = jnp.zeros_like(z[0])
        k = z.shape[0]
        on = jnp.where(z > 0, jnp.ones_like(z), jnp.zeros_like(z))
        return [[on[i] if i == j else zero for j in range(k)] for i in range(k)]

    def prox(self, z: Rows, kappa: Array) -> Rows:
        kappa = jnp.broadcast_to(jnp.asarray(kappa, z.dtype), z[0].shape)[None]
        root = jnp.sqrt(z * z + 4 * kappa)
        # The conjugate form keeps its digits for large negative z.
        positive = z > 0
        other = 2 * kappa / jnp.where(positive, 1.0, root - jnp.where(positive, 0.0, z))
        return jnp.where(positive, (z + root) / 2, other)

    def margin(self, z: Rows) -> Array:
        return jnp.min(jnp.abs(z), axis=0)

    def interval(self) -> tuple[float, float]:
        return 0.0, math.inf
