"""A direct solver for sparse matrices, on the host."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, Int

from .._optional import require
from ._base import AbstractSolver, square
from ._operators import AbstractSparse


class Entries(eqx.Module):
    """Rows, columns and values of a matrix, those of equal place added; `turned`: of its transpose."""

    rows: Int[Array, " z"]
    columns: Int[Array, " z"]
    values: Float[Array, " z"]
    turned: bool = eqx.field(static=True)


class SparseLU(AbstractSolver):
    """SuperLU on the host, by SciPy: for any regular sparse matrix, symmetric or not, definite or not.

    The compiled program calls Python for every solve, with the matrix; equal matrices are factorised
    once. A device other than the CPU waits for the transfer both ways, which is slow.

    **Raises:** `ImportError` if SciPy is not installed, with the command that installs it.

    Reference: X. Li, An overview of SuperLU (2005), doi:10.1145/1089014.1089017.
    """

    def init(self, operator: lx.AbstractLinearOperator, options: dict[str, Any]) -> Entries:
        square("SparseLU", operator)
        require("scipy.sparse.linalg", "SparseLU", "sparse")
        if isinstance(operator, AbstractSparse):
            return Entries(*operator.coordinates(), turned=False)
        matrix = operator.as_matrix()
        rows, columns = (jnp.asarray(x.reshape(-1)) for x in np.indices(matrix.shape))
        return Entries(rows, columns, matrix.reshape(-1), turned=False)

    def compute(self, state: Entries, vector: Array, options: dict[str, Any]):
        x = jax.pure_callback(
            _Solve(state.turned),
            jax.ShapeDtypeStruct(vector.shape, vector.dtype),
            state.rows,
            state.columns,
            state.values,
            vector,
            vmap_method="expand_dims",
        )
        regular = jnp.all(jnp.isfinite(x))
        result = lx.RESULTS.where(regular, lx.RESULTS.successful, lx.RESULTS.singular)
        return jnp.where(regular, x, 0), result, {}

    def transpose(self, state: Entries, options: dict[str, Any]):
        turned = Entries(state.rows, state.columns, state.values, not state.turned)
        return turned, options


class _Solve:
    """The function on the host; it remembers the last factorisations, which does not change its values."""

    kept: list[tuple[tuple[np.ndarray, ...], Any]] = []

    def __init__(self, turned: bool):
        self.turned = turned

    def __call__(self, rows, columns, values, right) -> np.ndarray:
        rows, columns, values, right = map(np.asarray, (rows, columns, values, right))
        every = rows, columns, values, right
        # Where the matrix is not in a batch, all right-hand sides are solved at once.
        if all(x.size == x.shape[-1] for x in every[:3]):
            one = tuple(x.reshape(-1) for x in every[:3])
            return self._columns(one, right.reshape(-1, right.shape[-1])).reshape(right.shape)
        lead = np.broadcast_shapes(*(x.shape[:-1] for x in every))
        full = [np.broadcast_to(x, (*lead, x.shape[-1])) for x in every]
        *matrix, flat = (x.reshape(-1, x.shape[-1]) for x in full)
        each = [self._columns((r, c, v), b[None]) for r, c, v, b in zip(*matrix, flat, strict=True)]
        return np.concatenate(each).reshape(*lead, right.shape[-1])

    def _columns(self, matrix: tuple[np.ndarray, ...], right: np.ndarray) -> np.ndarray:
        """The solutions for the rows of `right`; not finite where the matrix is singular."""
        factor = self._factor(matrix, right.shape[1])
        if factor is None:
            return np.full_like(right, np.nan)
        found = factor.solve(np.ascontiguousarray(right.T, float), "T" if self.turned else "N")
        return np.ascontiguousarray(found.T, right.dtype)

    def _factor(self, matrix: tuple[np.ndarray, ...], n: int) -> Any:
        for known, factor in _Solve.kept:
            if all(np.array_equal(a, b) for a, b in zip(known[::-1], matrix[::-1], strict=True)):
                return factor
        sparse = require("scipy.sparse", "SparseLU", "sparse")
        linear = require("scipy.sparse.linalg", "SparseLU", "sparse")
        rows, columns, values = matrix
        try:
            entries = sparse.csc_matrix((values.astype(float), (rows, columns)), shape=(n, n))
            factor = linear.splu(entries)
        except RuntimeError:  # exactly singular
            factor = None
        copies = tuple(np.array(x) for x in matrix)
        _Solve.kept[:] = [(copies, factor), *_Solve.kept[:1]]
        return factor
