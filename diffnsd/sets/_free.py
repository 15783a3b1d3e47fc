"""The whole space: multipliers of equality constraints."""

import math

import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractSet, Blocks, Rows


class Free(AbstractSet):
    """All of `R^k`: the multiplier of an equality. Its dual is `{0}`, so `w = 0`."""

    def project(self, z: Rows) -> Rows:
        return z

    def jacobian(self, z: Rows) -> Blocks:
        one, zero = jnp.ones_like(z[0]), jnp.zeros_like(z[0])
        k = z.shape[0]
        return [[one if i == j else zero for j in range(k)] for i in range(k)]

    def prox(self, z: Rows, kappa: Array) -> Rows:
        del kappa
        return z

    def margin(self, z: Rows) -> Array:
        return jnp.full_like(z[0], jnp.inf)

    def interval(self) -> tuple[float, float]:
        return -math.inf, math.inf
