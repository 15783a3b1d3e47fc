"""The whole space: multipliers of equality constraints."""

import math

import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractSet, Blocks, Rows, diagonal


class Free(AbstractSet):
    """All of `R^k`: the multiplier of an equality. Its dual is `{0}`, so `w = 0`."""

    def project(self, z: Rows) -> Rows:
        return z

    def jacobian(self, z: Rows) -> Blocks:
        return diagonal(jnp.ones_like(z))

    def prox(self, z: Rows, kappa: Array) -> Rows:
        return z

    def margin(self, z: Rows) -> Array:
        return jnp.full_like(z[0], jnp.inf)

    def interval(self) -> tuple[float, float]:
        return -math.inf, math.inf
