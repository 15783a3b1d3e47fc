"""Rows of contacts that have unknowns of their own, as in a problem that is given by its matrix."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from ._numerics import weighted_sum


class OwnRows(eqx.Module):
    """`H` of a problem `w = v + offset`, or `G H`: a contact has entries only in its own columns.

    Column `at + j c + i` is that of row `j` of contact `i`.

    **Arguments:** `values`: `G`, shape `(k, k, c, ...)`, `None` for the unit matrix; `rows`: `(k, c)`;
    `at`: the first column; `n`: number of columns.
    """

    values: Array | None
    rows: tuple[int, int] = eqx.field(static=True)
    at: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(k, n, c)`, the shape of the matrix."""
        k, c = self.rows
        return k, self.n, c

    def apply(self, v: Array) -> Array:
        """`H v`, shape `(k, c, ...)`."""
        k, c = self.rows
        own = v[self.at : self.at + k * c].reshape((k, c, *v.shape[1:]))
        return own if self.values is None else weighted_sum(self.values, own, axis=1)

    def gather(self, z: Array) -> Array:
        """`H^T z`, shape `(n, ...)`."""
        own = z if self.values is None else weighted_sum(self.values, z)
        own = own.reshape((-1, *z.shape[2:]))
        pad = (self.at, self.n - self.at - len(own))
        return jnp.pad(own, (pad, *((0, 0),) * (own.ndim - 1)))

    def times(self, left: Any) -> "OwnRows":
        """`G H` for `G (k, k, c, ...)`."""
        values = (
            left if self.values is None else weighted_sum(left[:, :, None], self.values, axis=1)
        )
        return eqx.tree_at(lambda r: r.values, self, values, is_leaf=lambda x: x is None)

    def after(self, columns: Array) -> Array:
        """`B H` for `B (k, n, c, ...)`: the columns of the contacts, shape `(n, k c, ...)`."""
        moved = columns
        if self.values is not None:
            moved = weighted_sum(columns[:, None], self.values[:, :, None])
        return jnp.swapaxes(moved, 0, 1).reshape((self.n, -1, *columns.shape[3:]))
