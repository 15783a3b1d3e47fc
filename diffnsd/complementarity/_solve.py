"""The solution of a step problem as a differentiable function.

With `Phi(v, z; p) = (A v − b − B z, F(v, z; p)) = 0` at the solution, the implicit function theorem
gives `Phi_(v,z) (dv, dz) = −Phi_p dp`. The same linear solve, transposed, serves reverse mode. The
solver's iterations are never differentiated. At a change of mode the derivative is that of one
side (the element of `AbstractSet.jacobian`); for redundant contacts the tangent is that of the
limit in `_step_newton`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from .._block_rows import BlockDiagonal
from .._jax import SAVED_NAME, AbstractKernel, call
from .._numerics import UNROLL_LIMIT, matvec, newton_solve
from ._adjoint import AbstractAdjoint, ImplicitAdjoint, central_path, pair, surface
from ._dense import Statistics
from ._elimination import (
    Linearised,
    blockwise,
    inputs,
    linearised,
    solve_both,
    solve_both_transposed,
)
from ._natural_map import argument, sides, tilt_for
from ._problem import Block, MixedProblem


def solve_mixed(
    problem: MixedProblem,
    z0: tuple[Array, ...],
    solver,
    adjoint: AbstractAdjoint = ImplicitAdjoint(),  # noqa: B008 (an immutable constant)
) -> tuple[Array, tuple[Array, ...], Statistics]:
    """Solves a `MixedProblem` and attaches the implicit derivative, forward and reverse.

    **Arguments:** `problem`; `z0`: warm start of the multipliers; `solver`: for example `Auto()`;
    `adjoint`: at which point the laws are differentiated.

    **Returns:** `v (n,)`, `z` per block `(k, c)`, `Statistics` (without derivative).
    """
    if not problem.blocks:
        return _without_contacts(problem)
    rows = sum(part.size for part in z0)
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
    kernel = Solve(solver, static) if kappa is None else Relaxed(solver, static)
    z0 = jax.lax.stop_gradient(z0)
    return checkpoint_name(call(kernel, floats, others, z0), SAVED_NAME)[:3]


def _shapes(floats):
    """Shapes of `v`, `z` and the statistics."""
    problem, _ = floats
    lane: Any = jax.ShapeDtypeStruct(problem.rhs.shape[1:], problem.rhs.dtype)
    offsets = tuple(block.offset for block in problem.blocks)
    return problem.rhs, offsets, Statistics.like(lane), (problem.rhs, offsets)


class Solve(AbstractKernel):
    """The solver's iterations, and the implicit function theorem as their derivative.

    **Arguments:** `solver`; `static`: the parts of the problem that are not arrays, and of the
    parameter of the central path where the solution on it is wanted.
    """

    solver: Callable
    static: tuple

    def __call__(self, floats, others, z0):
        problem, kappa = eqx.combine(floats, others, self.static)
        if kappa is None:
            return self.solver(problem, z0)
        v, z, stats = self.solver(problem, z0, kappa)
        return v, z, stats, (v, z)

    def shapes(self, floats, others, z0):
        del others, z0
        return _shapes(floats)

    def jvp(self, primals, tangents):
        floats, others, z0 = primals
        # Named here too, so that the derivative uses what is kept and not the solver once more.
        v, z, stats, tilted = checkpoint_name(call(self, floats, others, z0), SAVED_NAME)

        def instance(floats):
            return eqx.combine(floats, others, self.static)

        tilted_tangent, tangent = _tangents(instance, floats, tangents[0], (v, z), tilted)
        return (v, z, stats, tilted), (*tangent, None, tilted_tangent)


class Relaxed(AbstractKernel):
    """The solver's iterations, with the derivative of the solution on the central path."""

    solver: Callable
    static: tuple

    def __call__(self, floats, others, z0):
        problem, _ = eqx.combine(floats, others, self.static)
        return self.solver(problem, z0)

    def shapes(self, floats, others, z0):
        del others, z0
        return _shapes(floats)

    def jvp(self, primals, tangents):
        floats, others, _ = primals
        v, z, stats, tilted = checkpoint_name(call(self, *primals), SAVED_NAME)
        path = Solve(central_path, self.static)

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
    return v, (), Statistics(zero, zero, none, zero + jnp.inf, none, jnp.array(True))


def _solves(matrix: Array) -> Callable[[Array], Array]:
    """`b -> A^-1 b`, `b (n,)` or `(n, m)`, by products with the inverse and one refinement.

    Products and not triangular factors: LAPACK's threads for many right-hand sides compete with those
    that step the chunks of a batch, which costs a hundred times the work.
    """
    fixed = jax.lax.stop_gradient(matrix)
    # The unit matrix as a constant: XLA then takes a constant inverse out of a loop over steps.
    inverse = jnp.linalg.solve(fixed, np.eye(len(fixed), dtype=fixed.dtype))

    def refined(a, inverse):
        def solve(_, b):
            x = inverse @ b
            return x + inverse @ (b - a @ x)

        return solve

    both = refined(fixed, inverse), refined(fixed.T, inverse.T)
    return lambda b: jax.lax.custom_linear_solve(lambda x: matrix @ x, b, *both)


def _few_contacts(problem: MixedProblem, z0, solver, adjoint):
    """A large system with few contacts, `v = A^-1 b + (A^-1 B) z`: solved for `z` alone.

    Outside of the kernel `A` is inverted once for all problems of a batch that share it.
    """
    solve = _solves(problem.matrix)
    parts = [jnp.swapaxes(b, 0, 1).reshape(b.shape[1], -1) for b in inputs(problem)]
    columns = jnp.concatenate(parts, axis=1)
    outputs = [jnp.swapaxes(b.output, 1, 2).reshape(-1, b.output.shape[1]) for b in problem.blocks]
    outputs = jnp.concatenate(outputs)
    free, moved = solve(problem.rhs), solve(columns)
    delassus, start = outputs @ moved, outputs @ free
    z, stats = _condensed(problem.blocks, delassus, start, z0, solver, adjoint)
    return free + moved @ jnp.concatenate([part.reshape(-1) for part in z]), z, stats


def _bodies(problem: MixedProblem, z0, solver, adjoint):
    """Bodies that only contacts join: solved for the multipliers alone, body by body and pair by pair.

    The work outside of the solver grows with the contacts, and the program with neither.
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
    """Multipliers and statistics of `w = W z + q`, `W (m, m)` and `q (m,)` row by row."""
    m = len(start)
    unit = np.eye(m, dtype=start.dtype) if m <= UNROLL_LIMIT else jnp.eye(m, dtype=start.dtype)

    def taken(matrix, at, shape):
        """The columns of a block, `(k, m, c)`."""
        mine = matrix[:, at : at + shape[0] * shape[1]]
        return mine.reshape(-1, *shape).swapaxes(0, 1)

    at, blocks = 0, []
    for block in given:
        shape = block.offset.shape
        size = shape[0] * shape[1]
        offset = block.offset + start[at : at + size].reshape(shape)
        own = jnp.asarray(taken(unit, at, shape)), taken(delassus, at, shape)
        blocks.append(Block(*own, offset, block.law, block.active))
        at += size
    small = MixedProblem(jnp.asarray(unit), jnp.zeros_like(start), tuple(blocks))
    _, z, stats = solve_mixed(small, z0, solver, adjoint)
    return z, stats


def _tangents(instance, floats, tangent, point, tilted):
    """Tangents of the solution of the tilted problem, `F + tilt z = 0`, and of its limit.

    Where contacts are redundant the equations of the limit leave a part of the multipliers
    undetermined, whose tangent is that of the tilted solution. It is exact up to the tilt, since the
    solution is a smooth function of it; the rest comes from the equations of the limit alone.
    """
    problem, kappa = instance(floats)
    shared = jax.lax.stop_gradient(problem.penalties())
    if kappa is not None:  # on the central path nothing is redundant
        tilted = point
    rest, edge = sides(problem, point, tilted, shared, kappa)
    # The solution of the tilted problem depends on `rho`, its limit does not.
    limit = _Equations(instance, lambda _: shared, point, rest, edge)
    around = _Equations(
        instance, lambda p: p.penalties(), tilted, *_same_side(limit, tilted, floats)
    )
    systems = around.linearised(floats), limit.linearised(floats)
    right = around.parameter_tangent(floats, tangent), limit.parameter_tangent(floats, tangent)
    return _linear_solve(*systems, *right)


def _same_side(limit: "_Equations", tilted, floats) -> tuple[list, list]:
    """`rest` and `edge` at the tilted solution: modes are those that are differentiated at the limit.

    Between two modes the equations of the limit would be no small change of those at the tilted solution.
    """
    problem, _ = limit.instance(floats)
    moved, x = limit.arguments(floats)
    known = jnp.any(tilted[0] != limit.point[0])
    free = [jnp.zeros_like(part) for part in limit.rest]
    here = _Equations(limit.instance, limit.penalties, tilted, free, free)
    rest, edge = [], []
    velocities, _ = here.arguments(floats)
    pairs = zip(here.linearised(floats).d, limit.linearised(floats).d, strict=True)
    for i, (a, b) in enumerate(pairs):
        # Between modes a projection's derivative jumps by a matrix of norm one. Where the tilted problem
        # was not solved, its solution is the limit, and velocities at rest are rounding.
        other = (jnp.max(jnp.abs(a - b), axis=(0, 1)) > 0.1) | ~known
        still = jnp.where(other[None], velocities[i] - moved[i], 0)
        rest.append(jax.lax.stop_gradient(still))
        shift = x[i] - argument(
            problem.blocks[i], moved[i], tilted[1][i], limit.penalties(problem)[i]
        )
        edge.append(jax.lax.stop_gradient(jnp.where(other[None], shift, 0)))
    return rest, edge


class _Equations(NamedTuple):
    """The equations at a point `(v, z)`, and which side of their kinks is differentiated.

    **Arguments:** `instance`: from the floating arrays to the problem and `kappa`; `penalties`: from the
    problem to `rho`; `rest`, `edge`: of `sides`.
    """

    instance: Callable
    penalties: Callable
    point: tuple[Array, tuple[Array, ...]]
    rest: list[Array]
    edge: list[Array]

    def arguments(self, floats):
        """Local velocities and arguments of the projections."""
        problem, _ = self.instance(floats)
        moved = [
            u - still for u, still in zip(problem.local(self.point[0]), self.rest, strict=True)
        ]
        x = map(argument, problem.blocks, moved, self.point[1], self.penalties(problem))
        return moved, [a + shift for a, shift in zip(x, self.edge, strict=True)]

    def linearised(self, floats) -> Linearised:
        """The derivative of the equations by `v` and `z`."""
        problem, kappa = self.instance(floats)
        moved, x = self.arguments(floats)
        rho = self.penalties(problem)
        pairs = [
            pair(b, u, a, r, kappa)
            for b, u, a, r in zip(problem.blocks, moved, x, rho, strict=True)
        ]
        return linearised(problem, [d for d, _ in pairs], [n for _, n in pairs])

    def parameter_tangent(self, floats, tangent):
        """`−Phi_p dp` at fixed `(v, z)`: the right-hand sides `(r_v, r_z)` of the linear solve.

        The derivative of the projection with respect to its argument is the set's own `jacobian`,
        so that the right-hand side and the matrix take the same side of a kink.
        """

        def dynamics(p):
            q, _ = self.instance(p)
            total = q.rhs - matvec(q.matrix, self.point[0])
            for block, part in zip(q.blocks, self.point[1], strict=True):
                total = total + block.generalised(part)
            return total

        _, r_v = jax.jvp(dynamics, (floats,), (tangent,))
        (_, xs), (_, dxs) = jax.jvp(self.arguments, (floats,), (tangent,))

        def projections(p):
            q, kappa = self.instance(p)
            rho = self.penalties(q)
            return tuple(surface(b, x, r, kappa) for b, x, r in zip(q.blocks, xs, rho, strict=True))

        _, from_sets = jax.jvp(projections, (floats,), (tangent,))
        d = self.linearised(floats).d
        return r_v, tuple(blockwise(d, dx) + p for d, dx, p in zip(d, dxs, from_sets, strict=True))


def _linear_solve(around: Linearised, limit: Linearised, *right):
    """The tangents of both, from the right-hand sides of both."""
    eps = tilt_for(right[0][0].dtype)

    # One flat vector: the transposition rule of the linear solve requires every part of the right-hand
    # side to be linear in the tangents, and parts of it may be constant.
    flat, unravel = ravel_pytree(right)

    def product(x):
        (dv, dz), second = unravel(x)
        top, low = around.product(dv, dz)
        low = tuple(a + eps * b for a, b in zip(low, dz, strict=True))
        return ravel_pytree(((top, low), limit.product(*second)))[0]

    def solver(transpose):
        def run(_, right):
            return ravel_pytree(call(SolveBoth(eps, transpose), around, limit, *unravel(right)))[0]

        return run

    return unravel(jax.lax.custom_linear_solve(product, flat, solver(False), solver(True)))


class SolveBoth(AbstractKernel):
    """The linear solve of the derivative, or its transpose; see `solve_both`."""

    eps: float
    transpose: bool

    def __call__(self, around, limit, first, second):
        solve = solve_both_transposed if self.transpose else solve_both
        return solve(around, limit, first, second, self.eps)

    def shapes(self, around, limit, first, second):
        del around, limit
        return first, second
