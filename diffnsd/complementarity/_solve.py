"""The solution of a step problem as a differentiable function; its derivative is in `_tangents`.

The solver's iterations are never differentiated.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from .._block_diagonal import BlockDiagonal
from .._block_rows import dense
from .._jax import SAVED_NAME, AbstractKernel, call
from .._numerics import UNROLL_LIMIT, newton_solve
from .derivatives._adjoint import AbstractAdjoint, ImplicitAdjoint, central_path
from .derivatives._tangents import solution_tangents
from .problem._dense import Contacts, Statistics
from .problem._problem import Block, MixedProblem
from .step._many_bodies import is_of_many, solve_many


def solve_mixed(
    problem: MixedProblem,
    z0: tuple[Array, ...],
    solver,
    adjoint: AbstractAdjoint = ImplicitAdjoint(),  # noqa: B008 (an immutable constant)
    report: Any = Statistics,
    tangents: Callable = solution_tangents,
) -> tuple[Array, tuple[Array, ...], Any]:
    """Solves a `MixedProblem` and attaches the implicit derivative, forward and reverse.

    **Arguments:** `problem`; `z0`: warm start of the multipliers; `solver`: for example `Auto()`;
    `adjoint`: at which point the laws are differentiated; `report`: class of the solver's report;
    `tangents`: the linear solve of the derivative.

    **Returns:** `v (n,)`, `z` per block `(k, c)`, `Statistics` or another `report` (without derivative).
    """
    if not problem.blocks:
        return _without_contacts(problem)
    rows = sum(part.size for part in z0)
    if report is Statistics and is_of_many(problem, solver):
        return checkpoint_name(solve_many(problem, z0, solver), SAVED_NAME)
    if problem.is_blockwise and rows < problem.rhs.shape[0]:
        return _bodies(problem, z0, solver, adjoint)
    problem = problem.dense()
    if rows <= UNROLL_LIMIT < problem.rhs.shape[0]:
        return _few_contacts(problem, z0, solver, adjoint)
    kappa = adjoint.kappa
    if kappa is not None:
        kappa = jax.lax.stop_gradient(jnp.asarray(kappa, problem.rhs.dtype))
    dynamic, static = eqx.partition((problem, kappa), eqx.is_array)
    floats, others = eqx.partition(dynamic, eqx.is_inexact_array)
    exact, z0 = Solve(solver, static, report, tangents), jax.lax.stop_gradient(z0)
    kernel = exact if kappa is None else Relaxed(exact)
    return checkpoint_name(call(kernel, floats, others, z0), SAVED_NAME)[:3]


class Solve(AbstractKernel):
    """The solver's iterations, and the implicit function theorem as their derivative.

    **Arguments:** `solver`; `static`: the non-array parts of the problem and, if used, of the parameter
    of the central path; `report`: class of the solver's report; `tangents`: see `solution_tangents`.
    """

    solver: Callable
    static: tuple
    report: Any
    tangents: Callable

    def __call__(self, floats, others, z0):
        problem, kappa = eqx.combine(floats, others, self.static)
        if kappa is None:
            return self.solver(problem, z0)
        v, z, stats = self.solver(problem, z0, kappa)
        return v, z, stats, (v, z)

    def shapes(self, floats, others, z0):
        del others, z0
        problem, _ = floats
        offsets = tuple(block.offset for block in problem.blocks)
        return problem.rhs, offsets, self.report.like(problem.rhs), (problem.rhs, offsets)

    def jvp(self, primals, tangents):
        floats, others, z0 = primals
        # Named here too, so that the derivative uses the saved values and does not run the solver again.
        v, z, stats, tilted = checkpoint_name(call(self, floats, others, z0), SAVED_NAME)

        def instance(floats):
            return eqx.combine(floats, others, self.static)

        tilted_tangent, tangent = self.tangents(instance, floats, tangents[0], (v, z), tilted)
        return (v, z, stats, tilted), (*tangent, None, tilted_tangent)


class Relaxed(AbstractKernel):
    """The solver's iterations, with the derivative of the solution on the central path.

    **Arguments:** `exact`: the kernel with the derivative of the solution itself.
    """

    exact: Solve

    def __call__(self, floats, others, z0):
        problem, _ = eqx.combine(floats, others, self.exact.static)
        return self.exact.solver(problem, z0)

    def shapes(self, floats, others, z0):
        return self.exact.shapes(floats, others, z0)

    def jvp(self, primals, tangents):
        floats, others, _ = primals
        v, z, stats, tilted = checkpoint_name(call(self, *primals), SAVED_NAME)
        path = Solve(central_path, self.exact.static, Statistics, self.exact.tangents)

        def relaxed(floats):
            point = call(path, floats, others, jax.lax.stop_gradient(z))
            return checkpoint_name(point, SAVED_NAME)[:2]

        _, (dv, dz) = jax.jvp(relaxed, (floats,), (tangents[0],))
        return (v, z, stats, tilted), (dv, dz, None, None)


def _without_contacts(problem: MixedProblem):
    """A linear system: nothing to iterate on."""
    if isinstance(problem.matrix, BlockDiagonal):
        v = problem.matrix.solve(problem.rhs)
    else:
        v = newton_solve(problem.matrix, problem.rhs)
    v = checkpoint_name(v, SAVED_NAME)
    zero, none = jnp.zeros_like(v[0]), jnp.zeros((), jnp.int32)
    return v, (), Statistics(zero, zero, none, zero + jnp.inf, none, jnp.array(True), none)


def _solves(matrix: Array) -> Callable[[Array], Array]:
    """`b -> A^-1 b`, `b (n,)` or `(n, m)`, by products with the inverse and one refinement.

    Products rather than triangular factors: for many right-hand sides LAPACK's threads compete with those
    that step the chunks of a batch, which costs a hundred times the work.
    """
    fixed = jax.lax.stop_gradient(matrix)
    # With a constant unit matrix XLA moves a constant inverse out of a loop over steps.
    inverse = jnp.linalg.solve(fixed, np.eye(len(fixed), dtype=fixed.dtype))

    def refined(a, inverse):
        def solve(_, b):
            x = inverse @ b
            return x + inverse @ (b - a @ x)

        return solve

    both = refined(fixed, inverse), refined(fixed.T, inverse.T)
    return lambda b: jax.lax.custom_linear_solve(lambda x: matrix @ x, b, *both)


def _few_contacts(problem: MixedProblem, z0, solver, adjoint):
    """Solves a large system with few contacts, `v = A^-1 b + (A^-1 B) z`, for `z` alone.

    `A` is inverted outside the kernel, once for all problems of a batch that share it.
    """
    solve = _solves(problem.matrix)
    columns = problem.loads()
    rows = [dense(block.output) for block in problem.blocks]
    outputs = jnp.concatenate([jnp.swapaxes(h, 1, 2).reshape(-1, h.shape[1]) for h in rows])
    free, moved = solve(problem.rhs), solve(columns)
    delassus, start = outputs @ moved, outputs @ free
    z, stats = _condensed(problem.blocks, delassus, start, z0, solver, adjoint)
    return free + moved @ jnp.concatenate([part.reshape(-1) for part in z]), z, stats


def _bodies(problem: MixedProblem, z0, solver, adjoint):
    """Solves for the multipliers of bodies coupled only by contacts, body by body and pair by pair.

    The work outside the solver grows with the number of contacts; the program grows neither with
    contacts nor with bodies.
    """
    matrix: Any = problem.matrix
    rows: Any = [block.output for block in problem.blocks]
    free, moved = matrix.solve(problem.rhs), tuple(map(matrix.solve_rows, rows))

    def between(a, b):
        return a.times(b).reshape(math.prod(a.shape[::2]), math.prod(b.shape[::2]))

    delassus = jnp.concatenate(
        [jnp.concatenate([between(a, b) for b in moved], axis=1) for a in rows]
    )
    start = jnp.concatenate([a.apply(free).reshape(-1) for a in rows])
    z, stats = _condensed(problem.blocks, delassus, start, z0, solver, adjoint)
    return free + sum(b.gather(part) for b, part in zip(moved, z, strict=True)), z, stats


def _condensed(given: tuple[Block, ...], delassus, start, z0, solver, adjoint):
    """Multipliers and statistics of `w = W z + q`, `W (m, m)` and `q (m,)` component by component."""
    offsets = jnp.concatenate([block.offset.reshape(-1) for block in given])
    contacts = [Contacts(b.law, b.active, (b.offset.shape[1], len(b.offset))) for b in given]
    small = MixedProblem.of_matrix(delassus, start + offsets, contacts)
    _, z, stats = solve_mixed(small, z0, solver, adjoint)
    return z, stats
