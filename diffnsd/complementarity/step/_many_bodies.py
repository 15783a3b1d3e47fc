"""Steps of many free bodies: `W = H A^-1 H^T` through the blocks of bodies and contacts.

    W z = H (A^-1 (H^T z)),    A one block for each body,    H two blocks for each contact

Neither W nor any other matrix between contacts is formed: storage and work grow with the number of contacts.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._block_diagonal import BlockDiagonal
from ..._block_rows import BlockRows, ListedRows
from ..._jax import AbstractKernel, call
from ..problem._bodies import ManyBodies
from ..problem._dense import Contacts, DenseProblem, Statistics
from ..problem._problem import MixedProblem, join, split
from ..solvers._drive import judge, solve_batch

MANY = 2000
"""Number of unknowns above which a solver that can do without W does."""


def is_of_many(problem: MixedProblem, solver) -> bool:
    """Whether a step is solved without W: of a list of contacts, or of many of fixed bodies."""
    kinds = BlockRows | ListedRows
    of_bodies = all(isinstance(b.output, kinds) and b.input is None for b in problem.blocks)
    if not of_bodies or not isinstance(problem.matrix, BlockDiagonal):
        return False
    own = solver.by_bodies()
    if own is None:
        return False
    return own is solver or sum(b.offset.size for b in problem.blocks) > MANY


def solve_many(problem: MixedProblem, z0: tuple[Array, ...], solver) -> tuple:
    """`v`, `z` and `Statistics` of a step of many bodies.

    **Raises:** `ValueError` if it is differentiated.
    """
    dynamic, static = eqx.partition(problem, eqx.is_array)
    floats, others = eqx.partition(dynamic, eqx.is_inexact_array)
    return call(
        WithoutMatrix(solver.by_bodies(), static), floats, others, jax.lax.stop_gradient(z0)
    )


class WithoutMatrix(AbstractKernel):
    """The iterations without W, one problem of a batch after the other."""

    solver: Any
    static: Any

    def __call__(self, floats, others, z0):
        def alone(arrays):
            floats, others, z0 = arrays
            return self._one(eqx.combine(floats, others, self.static), z0)

        rank = floats.rhs.ndim - 1
        if rank == 0:
            return alone((floats, others, z0))
        lanes = floats.rhs.shape[1:]

        def first(x):
            return jnp.moveaxis(x.reshape((*x.shape[: x.ndim - rank], -1)), -1, 0)

        out = jax.lax.map(alone, jax.tree.map(first, (floats, others, z0)))
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1).reshape((*x.shape[1:], *lanes)), out)

    def _one(self, problem: MixedProblem, z0):
        mobility = problem.matrix.inverse()
        free = mobility.mv(problem.rhs)
        active = [b.active[None] for b in problem.blocks]
        rows = tuple(
            eqx.tree_at(
                lambda r: r.values,
                b.output,
                tuple(jnp.where(on[None], x, 0) for x in b.output.values),
            )
            for b, on in zip(problem.blocks, active, strict=True)
        )
        offsets = [jnp.where(on, b.offset, 0) for b, on in zip(problem.blocks, active, strict=True)]
        operator = ManyBodies(rows, mobility, jnp.ones((), free.dtype))
        q = operator.seen(free) + join(offsets)
        size = operator.frobenius()[0] / jnp.sqrt(float(len(q)))
        scale = 1 / jnp.where(size > 0, size, 1)
        laws = tuple(
            jax.tree.map(
                lambda x: x[..., None],
                Contacts(b.law, b.active, (b.offset.shape[1], len(b.offset))),
            )
            for b in problem.blocks
        )
        operator = ManyBodies(rows, mobility, scale)
        dense = DenseProblem(operator, (scale * q)[:, None], laws).prepared()
        best = solve_batch(self.solver, dense, join(z0)[:, None])
        stats = jax.tree.map(lambda x: x[0], judge(self.solver, dense, best))
        z = best.z[:, 0]
        return free + operator.moved(z), split(dense.shapes, z), stats

    def shapes(self, floats, others, z0):
        del others, z0
        offsets = tuple(block.offset for block in floats.blocks)
        return floats.rhs, offsets, Statistics.like(floats.rhs)

    def jvp(self, primals, tangents):
        raise ValueError(
            "a step of many bodies is solved without the matrix between its contacts and is not "
            "differentiated; take it out of the derivative with jax.lax.stop_gradient, or use fewer contacts."
        )
