"""Terrain: heights on a grid."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._jax import eval_now
from ..._numerics import as_float
from .._base import positive, sized
from ._implicit import AbstractSurface

_CUBIC = 0.5 * np.array([[0, -1, 2, -1], [2, 0, -5, 3], [0, 1, 4, -3], [0, 0, -1, 1]])
"""Weights of four heights in a row by powers of the place between the middle ones (Catmull and Rom 1974)."""


class HeightField(AbstractSurface):
    """Solid ground below heights on a regular grid: `z <= size_z · h(x, y)` in its frame.

    Rows of `heights` lie along y, columns along x, from minus to plus the half size, as in MuJoCo. Between
    them `h` is the piecewise cubic through the heights with continuous slopes (Catmull and Rom 1974,
    doi:10.1016/B978-0-12-079050-0.50020-5): normals turn without jumps and there are no internal edges
    on which a contact could catch. MuJoCo joins the heights by triangles; the difference is of second order
    in the width of a cell. At its edge the surface becomes level, and beyond it the heights of the edge go
    on, where MuJoCo has none; below the surface everything is solid, so that there is no base.

    **Arguments:** `heights`: without unit, between 0 and 1 in MuJoCo, `(rows, columns)`; `size`: half
    length along x, half length along y, and the height that 1 stands for [m], `(3,)`.

    **Raises:** `ValueError` if there are not three sizes, or less than two rows or columns.
    """

    heights: Float[Array, "r c"]
    size: Float[Array, "3"]

    def __init__(self, heights, size):
        self.heights = eval_now(as_float, heights)
        self.size = sized("size", size, (3,))
        if self.heights.ndim != 2 or min(self.heights.shape) < 2:
            raise ValueError(
                "heights must have shape (rows, columns), two or more of each, got "
                f"{self.heights.shape}."
            )

    def value(self, x: Float[Array, "3"]) -> Float[Array, ""]:
        (first_row, rows), (first_column, columns) = (
            _weights(x[axis] / self.size[axis], self.heights.shape[1 - axis]) for axis in (1, 0)
        )
        # Mirrored: the surface arrives level at its edge, and goes on from there without a kink.
        padded = jnp.pad(self.heights, 1, mode="reflect")
        around = jax.lax.dynamic_slice(padded, (first_row, first_column), (4, 4))
        return x[2] - self.size[2] * jnp.dot(rows, around @ columns)

    def clearance(self, x: Float[Array, "3"]) -> Float[Array, ""]:
        # The weights of a cubic add up to 1 and their magnitudes to at most 1.25, in two directions.
        low, high = jnp.min(self.heights), jnp.max(self.heights)
        return x[2] - self.size[2] * (high + 0.3 * (high - low))

    def check(self) -> str | None:
        return super().check() or positive(self, "size")


def _weights(place: Float[Array, ""], count: int) -> tuple[Array, Float[Array, "4"]]:
    """The first of four neighbours of a place between −1 and 1 on a padded grid line, and their weights."""
    along = (jnp.clip(place, -1, 1) + 1) * ((count - 1) / 2)
    cell = jax.lax.stop_gradient(jnp.clip(jnp.floor(along), 0, count - 2)).astype(jnp.int32)
    t = along - cell.astype(along.dtype)
    powers = jnp.stack([jnp.ones_like(t), t, t * t, t * t * t])
    return cell, jnp.asarray(_CUBIC, t.dtype) @ powers
