"""The edge of the planar friction cone on which a contact slides in a given direction."""

import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractSet, Blocks, Rows
from ._second_order_cone import SecondOrderCone


class SlidingCone(AbstractSet):
    """`K = {z_N (1, −mu s) : z_N >= 0}` where the slip has the sign `s`, the whole cone where `s = 0`.

    **Arguments:** `mu`: friction coefficient; `side`: `s`, −1, 0 or 1; each of shape `()` or `(c,)`.
    """

    mu: Array
    side: Array

    def _ray(self, z: Rows):
        """Coordinate of `z` along the ray `r`, its direction, and `1 / |r|^2`."""
        slope = -self.mu * self.side
        return z[0] + slope * z[1], slope, 1 / (1 + slope * slope)

    def _along(self, coordinate: Array, slope: Array, z: Rows, free: Rows) -> Rows:
        ray = jnp.stack([coordinate, slope * coordinate])
        return jnp.where((self.side == 0)[None], free, ray)

    def unilateral(self) -> bool:
        return True

    def refuses(self, rows: int) -> str | None:
        return None if rows == 2 else f"SlidingCone needs 2 rows, got {rows}"

    def project(self, z: Rows) -> Rows:
        along, slope, scale = self._ray(z)
        free = SecondOrderCone(self.mu).project(z)
        return self._along(scale * jnp.maximum(along, 0), slope, z, free)

    def jacobian(self, z: Rows) -> Blocks:
        along, slope, scale = self._ray(z)
        one = jnp.where(along > 0, scale, 0)
        ray = [[one, one * slope], [one * slope, one * slope * slope]]
        free = SecondOrderCone(self.mu).jacobian(z)
        return [
            [jnp.where(self.side == 0, a, b) for a, b in zip(*rows, strict=True)]
            for rows in zip(free, ray, strict=True)
        ]

    def prox(self, z: Rows, kappa: Array) -> Rows:
        """On the ray the minimum of `|x r − z|^2 / 2 − kappa log x`."""
        along, slope, scale = self._ray(z)
        x = scale * (along + jnp.sqrt(along * along + 4 * kappa / scale)) / 2
        return self._along(x, slope, z, SecondOrderCone(self.mu).prox(z, kappa))

    def margin(self, z: Rows) -> Array:
        along, _, scale = self._ray(z)
        on_ray = jnp.abs(along) * jnp.sqrt(scale)
        return jnp.where(self.side == 0, SecondOrderCone(self.mu).margin(z), on_ray)
