"""The one problem that every step reduces to.

    A v = b + sum_i B_i z_i,    w_i = H_i v + offset_i,    K_i* ∋ w_i + lift_i(w_i) e_N ⟂ z_i ∈ K_i

Mechanical contact has `B_i = H_i^T`, and the solver of small systems never forms the Delassus operator
`W = H A^-1 H^T`; a dense problem `w = W z + q` is the instance `A = 1`, `B = W`, `H = 1`.

Axes come matrix first, then contacts, then anything: the functions of this folder are elementwise
in all trailing axes, which is how a batch is solved (`_jax.call`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._block_rows import BlockDiagonal, BlockRows, apply, dense, gather
from .._numerics import UNROLL_LIMIT
from ..laws._base import AbstractLaw


class Block(eqx.Module):
    """All contacts that share one law.

    **Arguments:**

    - `output`: `H`, shape `(k, n, c, ...)`. `input`: `B` in the same shape, `None` for `H`. Until a
      problem is handed to a solver `H` may be `BlockRows`.
    - `offset`: shape `(k, c, ...)`, the law's shift included.
    - `law`: with leaves of shape `(c, ...)`.
    - `active`: shape `(c, ...)`; contacts that are not active have `z = 0`.
    """

    output: Any
    input: Float[Array, "k n c ..."] | None
    offset: Float[Array, "k c ..."]
    law: AbstractLaw
    active: Bool[Array, "c ..."]

    def local(self, v: Array) -> Array:
        """`H v`, shape `(k, c, ...)`, for `v` of shape `(n, ...)`."""
        return apply(self.output, v)

    def generalised(self, z: Array) -> Array:
        """`B z`, shape `(n, ...)`, for `z` of shape `(k, c, ...)`."""
        return gather(self.output if self.input is None else self.input, z)

    def penalty(self, diagonal: Array) -> Array:
        """Step `rho` of the natural map per contact: one over the mean diagonal of its block of W.

        The mass matrix is replaced by its diagonal: any positive value gives the same solution.
        """
        b = self.output if self.input is None else self.input
        scaled = apply(self.output * b, 1 / diagonal)
        mean = jnp.mean(jnp.abs(scaled), axis=0)
        return jnp.where(mean > 0, 1 / jnp.where(mean > 0, mean, 1), 1)


class MixedProblem(eqx.Module):
    """The step problem in mixed form; see the module's docstring.

    **Arguments:** `matrix`: `A`, shape `(n, n, ...)`, or until it is handed to a solver its blocks;
    `rhs`: `b`, shape `(n, ...)`; `blocks`.
    """

    matrix: Any
    rhs: Float[Array, "n ..."]
    blocks: tuple[Block, ...]

    @property
    def is_blockwise(self) -> bool:
        """Whether all of its matrices are stored as blocks."""
        return isinstance(self.matrix, BlockDiagonal) and all(
            isinstance(b.output, BlockRows) and b.input is None for b in self.blocks
        )

    def dense(self) -> "MixedProblem":
        """The same problem with arrays for matrices."""
        blocks = (
            eqx.tree_at(lambda b: b.output, block, dense(block.output)) for block in self.blocks
        )
        matrix = self.matrix.dense() if isinstance(self.matrix, BlockDiagonal) else self.matrix
        return MixedProblem(matrix, self.rhs, tuple(blocks))

    def load(self, z: tuple[Array, ...]) -> Array:
        """`b + B z`, shape `(n, ...)`."""
        total = self.rhs
        for block, part in zip(self.blocks, z, strict=True):
            total = total + block.generalised(part)
        return total

    def local(self, v: Array) -> tuple[Array, ...]:
        """`w_i = H_i v + offset_i` for every block."""
        return tuple(block.local(v) + block.offset for block in self.blocks)

    def penalties(self) -> tuple[Array, ...]:
        """`rho` of every block, shape `(c, ...)`."""
        n = self.rhs.shape[0]
        if n > UNROLL_LIMIT:
            diagonal = jnp.moveaxis(jnp.diagonal(self.matrix), -1, 0)
        else:
            diagonal = jnp.stack([self.matrix[i, i] for i in range(n)])
        diagonal = jnp.abs(diagonal)
        return tuple(block.penalty(jnp.where(diagonal > 0, diagonal, 1)) for block in self.blocks)


def broadcast_law(law: AbstractLaw, contacts: int, dtype) -> AbstractLaw:
    """A law whose parameters are arrays with one entry per contact."""
    numeric = (float, int, np.ndarray, jax.Array)
    arrays, static = eqx.partition(law, lambda x: isinstance(x, numeric))
    arrays = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, dtype), (contacts,)), arrays)
    return eqx.combine(arrays, static)
