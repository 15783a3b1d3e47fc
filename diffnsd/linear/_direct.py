"""Direct solvers for matrices with a narrow band."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from .._numerics import matvec
from ._base import AbstractSolver, positive, square
from ._operators import Banded, BlockTridiagonal

Options = dict[str, Any]


class Tridiagonal(AbstractSolver):
    """Gaussian elimination with pivots for tridiagonal matrices: LAPACK, or cuSPARSE on a GPU.

    As `lx.Tridiagonal`, in any floating type.
    """

    def init(self, operator: lx.AbstractLinearOperator, options: Options):
        square("Tridiagonal", operator)
        if not lx.is_tridiagonal(operator):
            raise ValueError(
                f"Tridiagonal needs a tridiagonal matrix, such as lineax.TridiagonalLinearOperator, got "
                f"{type(operator).__name__}."
            )
        middle, lower, upper = lx.tridiagonal(operator)
        return jnp.pad(lower, (1, 0)), middle, jnp.pad(upper, (0, 1))

    def compute(self, state, vector: Array, options: Options):
        lower, middle, upper = state
        x = jax.lax.linalg.tridiagonal_solve(lower, middle, upper, vector[:, None])[:, 0]
        return x, lx.RESULTS.successful, {}

    def transpose(self, state, options: Options):
        lower, middle, upper = state
        return (jnp.roll(upper, 1), middle, jnp.roll(lower, -1)), options


class BlockFactors(eqx.Module):
    """`A = L U` of a block tridiagonal matrix.

    **Arguments:** `inverse`: of the pivot blocks `U_i`, `(m, s, s)`; `lower`: `L_i = A_(i,i−1) U_(i−1)^-1`,
    zero in the first place, `(m, s, s)`; `upper`: `A_(i,i+1)`, zero in the last place; `size`: number of
    unknowns without those that fill up the last block; `turned`: solve with the transpose.
    """

    inverse: Float[Array, "m s s"]
    lower: Float[Array, "m s s"]
    upper: Float[Array, "m s s"]
    size: int = eqx.field(static=True)
    turned: bool = eqx.field(static=True)


class BlockTridiagonalLU(AbstractSolver):
    """Elimination for block tridiagonal and banded matrices, one block after the other by a scan.

    Work and memory grow linearly with the number of blocks. Pivots are sought within a block only: for
    positive definite matrices, and others whose leading blocks are regular.
    """

    def init(self, operator: lx.AbstractLinearOperator, options: Options):
        square("BlockTridiagonalLU", operator)
        if not isinstance(operator, Banded | BlockTridiagonal):
            raise ValueError(
                "BlockTridiagonalLU needs a BlockTridiagonal or Banded operator, got "
                f"{type(operator).__name__}."
            )
        blocks = operator.blocks()
        first = jnp.zeros_like(blocks.middle[:1])
        lower = jnp.concatenate([first, blocks.lower])
        above = jnp.concatenate([first, blocks.upper])

        def eliminate(before, row):
            middle, low, high = row
            factor = low @ before
            inverse = jnp.linalg.inv(middle - factor @ high)
            return inverse, (inverse, factor)

        start = jnp.eye(blocks.middle.shape[1], dtype=blocks.dtype)
        _, (inverse, factor) = jax.lax.scan(eliminate, start, (blocks.middle, lower, above))
        return BlockFactors(inverse, factor, jnp.roll(above, -1, 0), operator.size, False)

    def compute(self, state: BlockFactors, vector: Array, options: Options):
        s = state.inverse.shape[1]
        right = jnp.pad(vector, (0, state.inverse.shape[0] * s - state.size)).reshape(-1, s)
        run = _solve_transposed if state.turned else _solve
        x = run(state, right).reshape(-1)[: state.size]
        regular = jnp.all(jnp.isfinite(x)) | ~jnp.all(jnp.isfinite(vector))
        return x, lx.RESULTS.where(regular, lx.RESULTS.successful, lx.RESULTS.singular), {}

    def transpose(self, state: BlockFactors, options: Options):
        turned = BlockFactors(state.inverse, state.lower, state.upper, state.size, not state.turned)
        return turned, options


def _solve(factors: BlockFactors, right: Array) -> Array:
    """`U^-1 L^-1 r`, blocks `(m, s)`."""
    zero = jnp.zeros_like(right[0])

    def down(before, row):
        low, r = row
        y = r - matvec(low, before)
        return y, y

    def up(after, row):
        inverse, high, y = row
        x = matvec(inverse, y - matvec(high, after))
        return x, x

    _, y = jax.lax.scan(down, zero, (factors.lower, right))
    return jax.lax.scan(up, zero, (factors.inverse, factors.upper, y), reverse=True)[1]


def _solve_transposed(factors: BlockFactors, right: Array) -> Array:
    """`L^-T U^-T r`, blocks `(m, s)`."""
    zero = jnp.zeros_like(right[0])

    def down(before, row):  # `before`: A_(i−1,i)^T y_(i−1)
        inverse, high, r = row
        y = matvec(inverse.T, r - before)
        return matvec(high.T, y), y

    def up(after, row):  # `after`: L_(i+1)^T x_(i+1)
        low, y = row
        x = y - after
        return matvec(low.T, x), x

    _, y = jax.lax.scan(down, zero, (factors.inverse, factors.upper, right))
    return jax.lax.scan(up, zero, (factors.lower, y), reverse=True)[1]


class Cholesky(AbstractSolver):
    """Cholesky's factorisation of a positive definite matrix, formed as one array.

    As `lx.Cholesky`, but an indefinite matrix ends in a result.
    """

    def init(self, operator: lx.AbstractLinearOperator, options: Options):
        positive("Cholesky", operator)
        return jnp.linalg.cholesky(operator.as_matrix())

    def compute(self, state: Array, vector: Array, options: Options):
        x = jax.scipy.linalg.cho_solve((state, True), vector)
        definite = jnp.all(jnp.isfinite(jnp.diagonal(state)))
        result = lx.RESULTS.where(definite, lx.RESULTS.successful, lx.RESULTS.breakdown)
        return jnp.where(definite, x, 0), result, {}
