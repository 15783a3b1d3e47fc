"""Intervals, row by row: relays and saturations."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._jax import is_traced
from ._base import AbstractSet, Blocks, Rows, diagonal


class Box(AbstractSet):
    """`{z : lower <= z <= upper}` in every row; the bounds may be infinite.

    **Arguments:** `lower`, `upper`: arrays that broadcast against one row, shape `()` or `(c,)`.

    Reference: N. Parikh, S. Boyd, Proximal algorithms (2014), doi:10.1561/2400000003.
    """

    lower: Array
    upper: Array

    def _bounds(self, z: Rows) -> tuple[Array, Array]:
        lower, upper = (jnp.broadcast_to(x, z[0].shape)[None] for x in (self.lower, self.upper))
        return lower, upper

    def project(self, z: Rows) -> Rows:
        lower, upper = self._bounds(z)
        return jnp.minimum(jnp.maximum(z, lower), upper)

    def jacobian(self, z: Rows) -> Blocks:
        lower, upper = self._bounds(z)
        inside = (z > lower) & (z < upper)
        return diagonal(jnp.where(inside, jnp.ones_like(z), jnp.zeros_like(z)))

    def prox(self, z: Rows, kappa: Array) -> Rows:
        """Root of `p - z = kappa (1/(p - lower) - 1/(upper - p))`, by safeguarded Newton steps.

        Two further steps are differentiated: they give the root the derivatives of the implicit function.
        """
        bounds = self._bounds(z)
        kappa = jnp.broadcast_to(jnp.asarray(kappa, z.dtype), z[0].shape)[None]
        p = _interior_root(*jax.lax.stop_gradient((z, kappa, *bounds)))
        for _ in range(2):
            p = p - _newton_step(p, z, kappa, *bounds)[0]
        return p

    def margin(self, z: Rows) -> Array:
        lower, upper = self._bounds(z)
        return jnp.min(jnp.minimum(jnp.abs(z - lower), jnp.abs(z - upper)), axis=0)

    def check(self) -> str | None:
        if is_traced(self.lower) or is_traced(self.upper):
            return None
        if np.all(np.asarray(self.lower) <= np.asarray(self.upper)):
            return None
        return f"a lower bound of a Box is above its upper bound: {self.lower} and {self.upper}"

    def interval(self) -> tuple[Array, Array]:
        return self.lower, self.upper


def _newton_step(p, z, kappa, lower, upper):
    """Newton step for the root of the barrier equation, and the distances to the two bounds."""
    # A root closer to a bound than rounding resolves counts as on it, so the forces stay finite.
    floor = jnp.finfo(p.dtype).eps / 100
    a, b = jnp.maximum(p - lower, floor), jnp.maximum(upper - p, floor)
    # Reciprocals, whose derivatives stay finite at an infinite bound.
    near, far = 1 / a, 1 / b
    f = p - z - kappa * (near - far)
    return f / (1 + kappa * (near * near + far * far)), a, b


def _interior_root(z, kappa, lower, upper):
    span = jnp.where(upper - lower < jnp.inf, upper - lower, 1.0)
    width = jnp.sqrt(kappa) / (1 + jnp.sqrt(kappa) / span)

    def body(_, p):
        step, a, b = _newton_step(p, z, kappa, lower, upper)
        return p - jnp.clip(step, -0.9 * b, 0.9 * a)

    start = jnp.clip(z, lower + width / 2, upper - width / 2)
    return jax.lax.fori_loop(0, 40, body, start)
