"""Anderson's acceleration of sweeps over one problem, its rows written in place."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

RELATIVE = 1e-5, 1e-10
"""Regularisation of the least-squares problem, relative to its matrix: float32, float64. Above rounding."""


class History(NamedTuple):
    """What the last sweeps did to a vector, of all impulses in the order of the colours and velocities.

    `y`: where the next one starts; `image`, `move`: where the last one led, and its weighted move; `images`,
    `moves`: `memory` rows of the changes of both; `products` of the latter; `count`: sweeps since the
    history was dropped; `size`: of the last move.
    """

    y: Float[Array, " m"]
    image: Float[Array, " m"]
    move: Float[Array, " m"]
    images: Float[Array, "memory m"]
    moves: Float[Array, "memory m"]
    products: Float[Array, "memory memory"]
    count: Int[Array, ""]
    size: Float[Array, ""]

    @staticmethod
    def empty(y: Array, memory: int) -> "History":
        rows = jnp.zeros((memory, len(y)), y.dtype)
        none, far = jnp.zeros((memory, memory), y.dtype), jnp.full((), jnp.inf, y.dtype)
        return History(y, y, y, rows, rows, none, jnp.zeros((), jnp.int32), far)

    def extrapolated(self, image: Array, weight: Array) -> "History":
        """The history with one more sweep, from `y` to `image`."""
        memory = len(self.products)
        move = weight * (image - self.y)
        size = jnp.sqrt(jnp.sum(move * move))
        fits = (self.count > 0) & (size <= self.size)
        count = jnp.where(fits, self.count, 0)
        place = jnp.maximum(count - 1, 0) % memory
        images = self.images.at[place].set(image - self.image)
        moves = self.moves.at[place].set(move - self.move)
        row = jnp.sum(moves * moves[place][None], axis=1)
        products = self.products.at[place].set(row).at[:, place].set(row)
        known = jnp.arange(memory, dtype=jnp.int32) < count
        matrix = jnp.where(known[:, None] & known[None], products, 0)
        level = RELATIVE[jnp.finfo(move.dtype).bits >= 64] * jnp.trace(matrix)
        matrix = matrix + jnp.diag(jnp.where(known & (level > 0), level, 1))
        weights = jnp.linalg.solve(matrix, jnp.where(known, jnp.sum(moves * move[None], axis=1), 0))
        weights = jnp.where(jnp.all(jnp.isfinite(weights)), weights, 0)
        y = image
        for i in range(memory):
            y = y - weights[i] * images[i]
        return History(y, image, move, images, moves, products, count + 1, size)
