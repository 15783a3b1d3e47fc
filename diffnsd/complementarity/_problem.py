"""The one problem that every step reduces to.

    A v = b + sum_i B_i z_i,    w_i = H_i v + offset_i,    K_i* ∋ w_i + lift_i(w_i) e_N ⟂ z_i ∈ K_i

Mechanical contact has `B_i = H_i^T` and never forms the Delassus operator `W = H A^-1 H^T`; a dense
problem `w = W z + q` is the instance `A = 1`, `B = W`, `H = 1`.

Axes come matrix first, then contacts, then anything: the functions of this folder are elementwise
in all trailing axes, which is how a batch is solved (`_kernel`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._numerics import short_sum
from ..laws._base import AbstractLaw


class Block(eqx.Module):
    """All contacts that share one law.

    **Arguments:**

    - `output`: `H`, shape `(k, n, c, ...)`. `input`: `B` in the same shape, `None` for `H`.
    - `offset`: shape `(k, c, ...)`, the law's shift included.
    - `law`: with leaves of shape `(c, ...)`.
    - `active`: shape `(c, ...)`; contacts that are not active have `z = 0`.
    """

    output: Float[Array, "k n c ..."]
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
        scaled = sum(
            self.output[:, j] * b[:, j] / diagonal[j][None, None] for j in range(len(diagonal))
        )
        mean = jnp.mean(jnp.abs(scaled), axis=0)
        return jnp.where(mean > 0, 1 / jnp.where(mean > 0, mean, 1), 1)


def apply(matrix: Array, v: Array) -> Array:
    """`H v` for `H (k, n, c, ...)` and `v (n, ...)`."""
    total = matrix[:, 0] * v[0][None, None]
    for j in range(1, v.shape[0]):
        total = total + matrix[:, j] * v[j][None, None]
    return total


def gather(matrix: Array, z: Array) -> Array:
    """`H^T z` for `H (k, n, c, ...)` and `z (k, c, ...)`: unrolled over rows, summed over contacts."""
    total = matrix[0] * z[0][None]
    for i in range(1, z.shape[0]):
        total = total + matrix[i] * z[i][None]
    return short_sum(total, 1)


class MixedProblem(eqx.Module):
    """The step problem in mixed form; see the module's docstring.

    **Arguments:** `matrix`: `A`, shape `(n, n, ...)`; `rhs`: `b`, shape `(n, ...)`; `blocks`.
    """

    matrix: Float[Array, "n n ..."]
    rhs: Float[Array, "n ..."]
    blocks: tuple[Block, ...]

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
        diagonal = jnp.stack([jnp.abs(self.matrix[i, i]) for i in range(n)])
        return tuple(block.penalty(jnp.where(diagonal > 0, diagonal, 1)) for block in self.blocks)


def broadcast_law(law: AbstractLaw, contacts: int, dtype) -> AbstractLaw:
    """A law whose parameters are arrays with one entry per contact."""
    numeric = (float, int, np.ndarray, jax.Array)
    arrays, static = eqx.partition(law, lambda x: isinstance(x, numeric))
    arrays = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, dtype), (contacts,)), arrays)
    return eqx.combine(arrays, static)
