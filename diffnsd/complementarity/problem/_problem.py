"""The one problem that every step reduces to.

    A v = b + sum_i B_i z_i,    w_i = H_i v + offset_i,    K_i* ∋ w_i + lift_i(w_i) e_N ⟂ z_i ∈ K_i

Mechanical contact has `B_i = H_i^T`, and the solver of small systems never forms the Delassus operator
`W = H A^-1 H^T`. A problem that is given by its matrix, `w = W z + q`, is the instance `A = 1`, `b = 0`,
`B = W`, `H = 1` (`of_matrix`), whose unit matrices are never formed.

Matrix axes come first, then contacts, then any others. The functions of this folder are elementwise in
all trailing axes; this is how a batch is solved (`_jax.call`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._block_diagonal import BlockDiagonal
from ..._block_rows import BlockRows, CoordinateRows, apply, dense, gather
from ..._numerics import UNROLL_LIMIT, matvec
from ..._own_rows import OwnRows
from ...laws._base import AbstractLaw


class Block(eqx.Module):
    """All contacts that share one law.

    **Arguments:**

    - `output`: `H`, shape `(k, n, c, ...)`, or `OwnRows` or `CoordinateRows`. `input`: `B` in the same form,
      `None` for `H`.
      Before the problem is passed to a solver, `H` may be `BlockRows`.
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
        scaled = apply(jax.tree.map(jnp.multiply, self.output, b), 1 / diagonal)
        mean = jnp.mean(jnp.abs(scaled), axis=0)
        return jnp.where(mean > 0, 1 / jnp.where(mean > 0, mean, 1), 1)


class MixedProblem(eqx.Module):
    """The step problem in mixed form; see the module's docstring.

    **Arguments:** `matrix`: `A`, shape `(n, n, ...)`, or `None` for the unit matrix; before the problem is
    passed to a solver, it may be `BlockDiagonal`; `rhs`: `b`, shape `(n, ...)`; `blocks`.
    """

    matrix: Any
    rhs: Float[Array, "n ..."]
    blocks: tuple[Block, ...]

    @staticmethod
    def of_matrix(W: Array, q: Array, contacts) -> "MixedProblem":
        """`w = W z + q`, rows of a law component by component: row `j` of contact `i` is `j c + i`.

        **Arguments:** `W`: shape `(m, m, ...)`; `q`: shape `(m, ...)`; `contacts`: `law`, `active` and
        `shape = (c, k)` for every law.
        """
        at, blocks = 0, []
        for part in contacts:
            c, k = part.shape
            here = slice(at, at + c * k)
            columns = jnp.swapaxes(W[:, here].reshape((len(W), k, c, *W.shape[2:])), 0, 1)
            offset = q[here].reshape((k, c, *q.shape[1:]))
            rows = OwnRows(None, (k, c), at, len(W))
            blocks.append(Block(rows, columns, offset, part.law, part.active))
            at += c * k
        return MixedProblem(None, jnp.zeros_like(q), tuple(blocks))

    @property
    def is_blockwise(self) -> bool:
        """Whether all its matrices are stored as blocks."""
        return isinstance(self.matrix, BlockDiagonal) and all(
            isinstance(b.output, BlockRows) and b.input is None for b in self.blocks
        )

    def dense(self) -> "MixedProblem":
        """The same problem with arrays for matrices, but for rows of one entry."""
        blocks = (
            eqx.tree_at(lambda b: b.output, block, compact(block.output)) for block in self.blocks
        )
        matrix = self.matrix.dense() if isinstance(self.matrix, BlockDiagonal) else self.matrix
        return MixedProblem(matrix, self.rhs, tuple(blocks))

    def load(self, z: tuple[Array, ...]) -> Array:
        """`b + B z`, shape `(n, ...)`."""
        total = self.rhs
        for block, part in zip(self.blocks, z, strict=True):
            total = total + block.generalised(part)
        return total

    def loads(self) -> Array:
        """`B` of all contacts side by side, shape `(n, m, ...)`."""
        every = [dense(b.output if b.input is None else b.input) for b in self.blocks]
        return jnp.concatenate(
            [jnp.swapaxes(b, 0, 1).reshape((b.shape[1], -1, *b.shape[3:])) for b in every], axis=1
        )

    def defect(self, v: Array, z: tuple[Array, ...]) -> Array:
        """`b + B z − A v`, shape `(n, ...)`."""
        return self.load(z) - (v if self.matrix is None else matvec(self.matrix, v))

    def local(self, v: Array) -> tuple[Array, ...]:
        """`w_i = H_i v + offset_i` for every block."""
        return tuple(block.local(v) + block.offset for block in self.blocks)

    def penalties(self) -> tuple[Array, ...]:
        """`rho` of every block, shape `(c, ...)`."""
        n = self.rhs.shape[0]
        if self.matrix is None:
            shapes = [block.output.rows[::-1] for block in self.blocks]
            steps = row_steps(shapes, self.loads())
            return tuple(part[0] for part in split(shapes, steps))
        if n > UNROLL_LIMIT:
            diagonal = jnp.moveaxis(jnp.diagonal(self.matrix), -1, 0)
        else:
            diagonal = jnp.stack([self.matrix[i, i] for i in range(n)])
        diagonal = jnp.abs(diagonal)
        return tuple(block.penalty(jnp.where(diagonal > 0, diagonal, 1)) for block in self.blocks)


def compact(rows: Any) -> Any:
    """Rows of contacts as a dense problem has them: an array, `OwnRows` or `CoordinateRows`."""
    return rows if isinstance(rows, CoordinateRows) else dense(rows)


def split(shapes, x: Array) -> tuple[Array, ...]:
    """Splits a vector `(m, ...)` into `(k, c, ...)` for every law."""
    parts, at = [], 0
    for c, k in shapes:
        parts.append(x[at : at + c * k].reshape((k, c, *x.shape[1:])))
        at += c * k
    return tuple(parts)


def join(parts) -> Array:
    """The inverse of `split`."""
    return jnp.concatenate([x.reshape((-1, *x.shape[2:])) for x in parts])


def row_steps(shapes, W: Array) -> Array:
    """The step of the natural map, one for each row and equal within a contact, `(m, ...)`.

    It is one over the mean diagonal of the contact's block of `W (m, m, ...)`. Where that is negligible
    compared with its rows, as in circuits, it is one over their size.
    """
    out, m = [], W.shape[0]
    diagonal = jnp.abs(jnp.moveaxis(jnp.diagonal(W), -1, 0))
    rows = jnp.sum(jnp.abs(W), axis=1) / max(m, 1)
    for a, b, (_, k) in zip(split(shapes, diagonal), split(shapes, rows), shapes, strict=True):
        a, b = jnp.mean(a, axis=0), jnp.mean(b, axis=0)
        size = jnp.where(a > 1e-3 * b, a, b)
        step = 1 / jnp.where(size > 0, size, 1)
        out.append(jnp.broadcast_to(step[None], (k, *step.shape)))
    return join(out)


def moved(mobility: Array | None, load: Array) -> Array:
    """`A^-1 load`, shape `(n, ...)`, from `A^-1`; `None` is the unit matrix."""
    return load if mobility is None else matvec(mobility, load)


def broadcast_law(law: AbstractLaw, contacts: int, dtype) -> AbstractLaw:
    """A law whose parameters are arrays with one entry per contact.

    **Raises:** `ValueError` if a parameter has another number of entries.
    """
    numeric = (float, int, np.ndarray, jax.Array)
    arrays, static = eqx.partition(law, lambda x: isinstance(x, numeric))
    for path, x in jax.tree_util.tree_leaves_with_path(arrays):
        if np.shape(x) not in ((), (1,), (contacts,)):
            name = jax.tree_util.keystr(path).rpartition(".")[2]
            raise ValueError(
                f"the parameter {name} of a law has shape {np.shape(x)}, but the number of its contacts "
                f"is {contacts}: give one number, or one for each contact, shape ({contacts},); for a "
                "batch of values use rollout or jax.vmap."
            )
    arrays = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, dtype), (contacts,)), arrays)
    return eqx.combine(arrays, static)
