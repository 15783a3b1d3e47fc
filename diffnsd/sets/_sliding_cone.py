"""The edge of the friction cone on which a contact slides in a given direction."""

from functools import reduce
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractSet, Blocks, Rows, positive_root
from ._second_order_cone import SecondOrderCone


def is_free(side: tuple[Array, ...]) -> Array:
    """Whether no direction is given."""
    return reduce(jnp.logical_and, [s == 0 for s in side])


class SlidingCone(AbstractSet):
    """`K = {z_N (1, −mu s) : z_N >= 0}` where the slip has the direction `s`, the whole cone where `s = 0`.

    **Arguments:** `mu`: friction coefficient; `side`: the components of `s`, a sign in the plane and a
    unit vector in space; each of shape `()` or `(c,)`. Components beyond the rows of a contact are
    ignored.
    """

    mu: Array
    side: tuple[Array, ...]

    def __check_init__(self):
        if any(isinstance(s, list | tuple) for s in self.side):
            raise TypeError(
                "side must have an array of one number, or of one for each contact, per component."
            )

    def _ray(self, z: Rows) -> tuple[Any, list[Array], Any]:
        """Coordinate of `z` along the ray `r`, its rows, and `1 / |r|^2`."""
        slopes = [-self.mu * s for s in self.side[: z.shape[0] - 1]]
        ray = [jnp.ones_like(slopes[0]), *slopes]
        along = sum(r * x for r, x in zip(ray, z, strict=True))
        return along, ray, 1 / sum(r * r for r in ray)

    def _along(self, coordinate: Array, ray: list[Array], free: Rows) -> Rows:
        held = jnp.stack([r * coordinate for r in ray])
        return jnp.where(is_free(self.side)[None], free, held)

    def unilateral(self) -> bool:
        return True

    def refuses(self, rows: int) -> str | None:
        return None if rows in (2, 3) else f"SlidingCone needs 2 or 3 rows, got {rows}"

    def project(self, z: Rows) -> Rows:
        along, ray, scale = self._ray(z)
        free = SecondOrderCone(self.mu).project(z)
        return self._along(scale * jnp.maximum(along, 0), ray, free)

    def jacobian(self, z: Rows) -> Blocks:
        along, ray, scale = self._ray(z)
        one, free = jnp.where(along > 0, scale, 0), SecondOrderCone(self.mu).jacobian(z)
        return [
            [jnp.where(is_free(self.side), f, one * a * b) for f, b in zip(row, ray, strict=True)]
            for row, a in zip(free, ray, strict=True)
        ]

    def prox(self, z: Rows, kappa: Array) -> Rows:
        """On the ray, the minimiser of `|x r − z|^2 / 2 − kappa log x`."""
        along, ray, scale = self._ray(z)
        x = positive_root(1 / scale, along, kappa)
        return self._along(x, ray, SecondOrderCone(self.mu).prox(z, kappa))

    def margin(self, z: Rows) -> Array:
        along, _, scale = self._ray(z)
        on_ray = jnp.abs(along) * jnp.sqrt(scale)
        return jnp.where(is_free(self.side), SecondOrderCone(self.mu).margin(z), on_ray)
