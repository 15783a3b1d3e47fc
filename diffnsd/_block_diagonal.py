"""Matrices of one block per body, such as the mass matrix of free bodies; storage grows with the bodies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._block_rows import BlockRows, in_lanes
from ._numerics import lu_solve, weighted_sum


class BlockDiagonal(eqx.Module):
    """A matrix with `b` blocks of `s` rows and columns on its diagonal.

    **Arguments:** `blocks`: shape `(s, s, b)`.
    """

    blocks: Float[Array, "s s b"]

    @property
    def shape(self) -> tuple[int, int]:
        """`(n, n)`."""
        n = self.blocks.shape[0] * self.blocks.shape[2]
        return n, n

    def dense(self) -> Float[Array, "n n"]:
        """The matrix itself."""
        s, _, b = self.blocks.shape
        own = np.eye(b, dtype=bool)[:, None, :, None]
        rows = jnp.moveaxis(self.blocks, 2, 0)[:, :, None]
        return jnp.where(own, rows, 0).reshape(b * s, b * s)

    def inverse(self) -> "BlockDiagonal":
        """`A^-1`."""
        s, _, b = self.blocks.shape
        unit = jnp.broadcast_to(np.eye(s, dtype=self.blocks.dtype)[:, :, None], (s, s, b))
        return BlockDiagonal(lu_solve(self.blocks[:, :, None], unit))

    def mv(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """`A x`."""
        s, _, b = self.blocks.shape
        return weighted_sum(self.blocks, x.reshape(b, s).T, axis=1).T.reshape(-1)

    def solve(self, right: Float[Array, " n"]) -> Float[Array, " n"]:
        """`A^-1 r`."""
        s, _, b = self.blocks.shape
        return lu_solve(self.blocks, right.reshape(b, s).T).T.reshape(-1)

    def solve_rows(self, rows: BlockRows) -> BlockRows:
        """The rows `G` with `G^T = A^-1 H^T`."""

        def one(x, bodies):
            own = in_lanes(jnp.moveaxis(self.blocks, 2, 0), bodies)
            return jnp.swapaxes(lu_solve(own[:, :, None], jnp.swapaxes(x, 0, 1)), 0, 1)

        moved = tuple(map(one, rows.values, rows.bodies))
        return eqx.tree_at(lambda r: r.values, rows, moved)


def block_jacobian(function, v: Float[Array, " n"], size: int) -> BlockDiagonal:
    """The derivative of a function whose output block i depends only on block i of `v`.

    It takes one direction per column of a block, whatever the number of blocks.
    """
    b = v.shape[0] // size

    def slope(direction):
        return jax.jvp(function, (v,), (jnp.tile(direction, b),))[1]

    columns = jax.vmap(slope)(jnp.eye(size, dtype=v.dtype))
    return BlockDiagonal(jnp.transpose(columns.reshape(size, b, size), (2, 0, 1)))
