"""Products of two sets in one contact."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractSet, Blocks, Rows


class Product(AbstractSet):
    """`K1 x K2`: the first `split` rows lie in `K1`, the others in `K2`.

    For more factors, nest products.

    **Arguments:** `first`, `second`: the sets; `split`: rows of the first.
    """

    first: AbstractSet
    second: AbstractSet
    split: int = eqx.field(static=True)

    def refuses(self, rows: int) -> str | None:
        if not 0 <= self.split <= rows:
            return f"Product has {self.split} rows of its first factor, got {rows} rows in all"
        parts = ((self.first, self.split), (self.second, rows - self.split))
        return next((why for part, k in parts if k and (why := part.refuses(k))), None)

    def _parts(self, z: Rows) -> list[tuple[AbstractSet, Rows]]:
        """The factors that have rows, with their rows."""
        both = ((self.first, z[: self.split]), (self.second, z[self.split :]))
        return [(factor, rows) for factor, rows in both if rows.shape[0]]

    def project(self, z: Rows) -> Rows:
        return jnp.concatenate([factor.project(rows) for factor, rows in self._parts(z)])

    def jacobian(self, z: Rows) -> Blocks:
        k, zero, at = z.shape[0], jnp.zeros_like(z[0]), 0
        blocks = [[zero] * k for _ in range(k)]
        for factor, rows in self._parts(z):
            for i, row in enumerate(factor.jacobian(rows)):
                for j, entry in enumerate(row):
                    blocks[at + i][at + j] = entry
            at += rows.shape[0]
        return blocks

    def prox(self, z: Rows, kappa: Array) -> Rows:
        return jnp.concatenate([factor.prox(rows, kappa) for factor, rows in self._parts(z)])

    def margin(self, z: Rows) -> Array:
        margins = jnp.stack([factor.margin(rows) for factor, rows in self._parts(z)])
        return jnp.min(margins, axis=0)
