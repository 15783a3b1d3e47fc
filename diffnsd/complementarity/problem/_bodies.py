"""`W = H A^-1 H^T` of contacts between free bodies, through products with their blocks."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._block_diagonal import BlockDiagonal
from ._dense import norm
from ._problem import join, split

SIGNS = 8
"""Sign vectors of the estimate of `|W|`."""


class ManyBodies(eqx.Module):
    """`W = scale H A^-1 H^T` of contacts between bodies, for `z (m, 1)` component by component.

    **Arguments:** `rows`: `H` of every law; `mobility`: `A^-1`; `scale`.
    """

    rows: tuple[Any, ...]
    mobility: BlockDiagonal
    scale: Array

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """`(c, k)` of every law."""
        return tuple((r.values[0].shape[2], r.values[0].shape[0]) for r in self.rows)

    def moved(self, z: Array) -> Array:
        """The change of velocity by impulses, `A^-1 H^T z`, `(n,)`."""
        parts = zip(self.rows, split(self.shapes, z), strict=True)
        return self.mobility.mv(functools.reduce(jnp.add, [r.gather(p) for r, p in parts]))

    def seen(self, v: Array) -> Array:
        """`H v`, `(m,)`."""
        return join([r.apply(v) for r in self.rows])

    def __call__(self, z: Array) -> Array:
        return self.scale * self.seen(self.moved(z[:, 0]))[:, None]

    def frobenius(self) -> Array:
        """`|W|`, estimated from products with fixed sign vectors, `(1,)`."""
        m = sum(c * k for c, k in self.shapes)
        signs = jax.random.rademacher(jax.random.key(0), (SIGNS, m), dtype=self.scale.dtype)
        images = jax.lax.map(lambda x: self(x[:, None])[:, 0], signs)
        return norm(images.reshape(-1))[None] / math.sqrt(SIGNS)

    def steps(self, shapes) -> Array:
        """One over the mean diagonal of each contact's block of W, for all of its rows, `(m, 1)`."""
        del shapes
        diagonal = jnp.diagonal(self.mobility.blocks).reshape(-1)
        out = []
        for r in self.rows:
            squares = eqx.tree_at(lambda r: r.values, r, tuple(x * x for x in r.values))
            mean = jnp.mean(self.scale * squares.apply(diagonal), axis=0)
            step = jnp.where(mean > 0, 1 / jnp.where(mean > 0, mean, 1), 1)
            out.append(jnp.broadcast_to(step[None], (r.values[0].shape[0], len(step))))
        return join(out)[:, None]
