"""Batches of small problems: matrices on components, problems on the last axis, a chunk at a time.

LAPACK takes a call for every problem and every tiny matrix. Here every operation is elementwise over the
problems of a chunk, which stays in the cache. A visit to a chunk makes iterations of splitting, which
find the modes of almost every problem, and then passes of Newton's method, which make it exact.
Problems that are left are gathered into chunks with others that had as many visits, so that slow
problems do not delay the rest of the batch.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._jax import staged
from ..._numerics import entries, inverse, stacked, weighted_sum
from .._dense import DenseProblem, norm, ratio, row_steps
from ._base import AbstractContactSolver
from ._drive import FEW, Best

SMALL = 64
"""Most unknowns of a problem that is solved here."""
CHUNK = 64
"""Problems of a chunk: enough to fill vector registers, few enough for the cache."""
LAST = 8
"""Problems of a chunk once no more are left."""
VISITS = 20
"""Most visits to one problem."""
SPLITTING, NEWTON, LATER = 20, 5, (20, 2)
"""Iterations and passes of the first visit, and how many more are made in each of the next three."""
RELAXATION = 1.6
PENALTIES = 1.0, 0.1, 0.03, 0.1
"""Penalties of consecutive visits, relative to the diagonal. Where impulses are redundant, splitting may
drift along them for many iterations before the mode changes; it drifts faster with a weaker penalty.
"""
DAMPING = 0.1
"""Newton's matrix is regularised by this fraction of the residual, but a little more than rounding."""


class Columns(eqx.Module):
    """A matrix for every problem as an operator: `W (m, m, l)` and its size `|W| (l,)`."""

    W: Array
    size: Array

    def __call__(self, z: Array) -> Array:
        return product(self.W, z)

    def frobenius(self) -> Array:
        """`|W|`, shape `(l,)`."""
        return self.size

    def steps(self, shapes) -> Array:
        """The step of the natural map, see `row_steps`."""
        return row_steps(shapes, self.W)


def product(W: Array, z: Array) -> Array:
    """`W z` as a chain of additions, `(m, m, l)` times `(m, l)`."""
    return weighted_sum(W, z, axis=1)


class _Run(eqx.Module):
    """State of the problems between visits: best point, `y` and scaled dual variable of the splitting."""

    best: Best
    y: Array
    dual: Array
    visits: Array


class SmallBatches(AbstractContactSolver):
    """Splitting and Newton on components, for batches of small problems.

    Chunks of problems are visited in turns until all have converged or were visited 20 times. Only for
    batches of more than 16 problems of at most 64 unknowns.
    """

    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)

    explores = True
    leaves_few = True

    def suits(self, problem: DenseProblem) -> bool:
        m, lanes = problem.q.shape
        return lanes > FEW and m <= SMALL

    def init(self, problem: DenseProblem, z0: Array) -> "_Visits":
        zero = jnp.zeros(z0.shape[1:], jnp.int32)
        w = problem.velocity(z0)
        best = Best(z0, problem.residual(z0, w), zero, jnp.zeros_like(z0), zero)
        return _Visits(z0, _Run(best, z0, -problem.lift(w) * problem.steps(), zero))

    def step(self, problem: DenseProblem, state: "_Visits") -> "_Visits":
        run = visit_small(problem, state.run, self.tolerance_for(state.z.dtype))
        return _Visits(run.best.z, run)

    def iterations(self, state: "_Visits") -> Array:
        return state.run.best.passes

    def direction(self, before: "_Visits", after: "_Visits") -> Array:
        del before
        return after.run.best.ray


class _Visits(eqx.Module):
    z: Array
    run: _Run


def visit_small(problem: DenseProblem, run: _Run, tolerance) -> _Run:
    """Visits until all problems have converged, or were visited `VISITS` times."""
    W = jnp.moveaxis(problem.W, 0, 2)
    small = DenseProblem(Columns(W, problem.frobenius()), problem.q, problem.contacts)
    rho = problem.steps()
    lanes = rho.shape[1]

    def waiting(run):
        return (run.best.residual > tolerance) & (run.visits < VISITS)

    def visit(chunk, run):
        # The least visited problems first, so that a chunk holds problems at the same stage.
        _, index = jax.lax.top_k(jnp.where(waiting(run), VISITS - run.visits, 0), chunk)
        (chunk_problem, steps), some = jax.tree.map(lambda x: x[..., index], ((small, rho), run))
        some = _visit(chunk_problem, steps, some, tolerance)
        return jax.tree.map(lambda x, y: x.at[..., index].set(y), run, some)

    # The last few problems, which may need many visits, get a smaller chunk.
    for chunk, enough in ((min(CHUNK, lanes), LAST), (LAST, 0)):
        run = jax.lax.while_loop(
            lambda run, enough=enough: jnp.sum(waiting(run)) > enough,
            lambda run, chunk=chunk: visit(chunk, run),
            run,
        )
    return run


def _visit(problem: DenseProblem, rho: Array, run: _Run, tolerance) -> _Run:
    """Splitting, then Newton's method from what it has found.

    Intervals have few modes, and Newton's method alone finds them for most problems.
    """
    # Problems that have converged only pad the chunk and are ignored here.
    later = jnp.min(jnp.where(run.best.residual > tolerance, jnp.minimum(run.visits, 3), 3))
    if all(part.law.set().interval() is not None for part in problem.contacts):
        run = jax.lax.cond(
            later > 0, lambda r: _split(problem, rho, r, later, tolerance), lambda r: r, run
        )
    else:
        run = _split(problem, rho, run, later, tolerance)
    best = _newton(problem, rho, run.y, run.best, NEWTON + LATER[1] * later, tolerance)
    return eqx.tree_at(lambda r: (r.best, r.visits), run, (best, run.visits + 1))


def _split(problem: DenseProblem, rho: Array, run: _Run, later, tolerance) -> _Run:
    """Iterations of operator splitting, see `_splitting`."""
    pending = jnp.any(run.best.residual > tolerance)
    level = jnp.asarray(PENALTIES, rho.dtype)[run.visits % len(PENALTIES)]
    sigma = level[None] / rho
    identity = jnp.eye(len(rho), dtype=rho.dtype)[:, :, None]
    matrix = staged(pending, block_inverse, problem.W.W + identity * sigma[None])

    def aim(sigma, y, dual, shift):
        return sigma * (y - dual) - problem.q - shift

    def body(_, carry):
        y, dual, w = carry
        shift = problem.lift(w) - w
        z = staged(pending, product, matrix, staged(pending, aim, sigma, y, dual, shift))
        w = sigma * (y - dual - z) - shift
        moved = RELAXATION * z + (1 - RELAXATION) * y + dual
        y = problem.project(moved)
        return y, moved - y, w

    count = SPLITTING + LATER[0] * later
    # Between visits the dual variable is kept for a penalty of one.
    first = run.y, run.dual / level[None], problem.velocity(run.y)
    y, dual, _ = jax.lax.fori_loop(0, count, body, first)
    best = run.best.record_direction(y - run.y).count(tolerance, count)
    return _Run(best, y, dual * level[None], run.visits)


def _newton(problem: DenseProblem, rho: Array, z: Array, best: Best, steps, tolerance) -> Best:
    """Full steps of Newton's method; the best point is kept."""
    least = 1e-8 if jnp.finfo(z.dtype).bits >= 64 else 1e-5

    def visit(z, best, pending):
        w = problem.velocity(z)
        residual = staged(pending, lambda z, w: problem.residual(z, w), z, w)
        return w, best.keep_if_better(z, residual, tolerance)

    def newton(W, d, n, eps):
        return newton_matrix(W, d, n, eps, problem.shapes)

    def proceed(carry):
        *_, best, count = carry
        return jnp.any(best.residual > tolerance) & (count < steps)

    def body(carry):
        z, w, best, count = carry
        pending = jnp.any(best.residual > tolerance)
        best = best.count(tolerance)
        f, d, n = staged(pending, lambda z, w: problem.natural_slopes(z, w, rho), z, w)
        size = ratio(norm(f), jnp.maximum(norm(z), norm(rho * problem.q)))
        eps = jnp.maximum(least, DAMPING * jnp.minimum(size, 1.0))
        matrix = staged(pending, newton, problem.W.W, d, n, eps)
        z = z - block_solve(matrix, f, pending)
        return z, *visit(z, best, pending), count + 1

    w, best = visit(z, best, jnp.any(best.residual > tolerance))
    return jax.lax.while_loop(proceed, body, (z, w, best, jnp.zeros((), jnp.int32)))[2]


def newton_matrix(W: Array, d, n, eps: Array, shapes) -> Array:
    """`1 − D + eps + N W`, shape `(m, m, l)`, from `W (m, m, l)` and `D`, `N (k, k, c, l)` per law."""
    m = len(W)
    out, at = [], 0
    for (c, k), di, ni in zip(shapes, d, n, strict=True):
        rows = W[at : at + c * k].reshape((c, k, m, -1))
        placed = jnp.eye(m, dtype=W.dtype)[at : at + c * k].reshape((c, k, m, 1))
        block = [
            sum(ni[i, j][:, None] * rows[:, j] - di[i, j][:, None] * placed[:, j] for j in range(k))
            + (1 + eps)[None, None] * placed[:, i]
            for i in range(k)
        ]
        out.append(jnp.stack(block, axis=1).reshape((c * k, m, -1)))
        at += c * k
    return jnp.concatenate(out)


BLOCK = 3
"""Rows that are eliminated at once."""


def block_solve(matrix: Array, right: Array, pending: Array) -> Array:
    """`matrix^-1 right` on components, `(m, m, l)` and `(m, l)`; zero where that is not finite.

    Gaussian elimination by blocks, without an exchange of rows.
    """
    rest = jnp.concatenate([matrix, right[:, None]], axis=1)
    heads = []
    while len(rest):
        k = min(BLOCK, len(rest))

        def first(rest, k=k):
            return _times(_block_inverse(rest[:k, :k]), rest[:k, k:])

        def others(rest, head, k=k):
            return rest[k:, k:] - _times(rest[k:, :k], head)

        heads.append(staged(pending, first, rest))
        rest = staged(pending, others, rest, heads[-1])
    x = jnp.zeros((0, *right.shape[1:]), right.dtype)
    for head in reversed(heads):
        new = head[:, -1] - product(head[:, :-1], x) if len(x) else head[:, -1]
        x = jnp.concatenate([new, x])
    return jnp.where(jnp.all(jnp.isfinite(x), axis=0)[None], x, 0)


def block_inverse(matrix: Array) -> Array:
    """`matrix^-1` on components by Gauss-Jordan elimination in place, one pivot per pass."""
    m = len(matrix)
    index = jnp.arange(m)[:, None]

    def pivot(k, a):
        here = index == k
        row, column = a[k], a[:, k]
        row = jnp.where(here, 1, row) * (1 / row[k])[None]
        column = jnp.where(here, 0, column)
        rest = jnp.where(here[None], 0, a) - column[:, None] * row[None]
        return jnp.where(here[:, None], row[None], rest)

    return jax.lax.fori_loop(0, m, pivot, matrix)


def _times(a: Array, b: Array) -> Array:
    """`(i, k, l)` times `(k, j, l)`."""
    return weighted_sum(a[:, :, None], b, axis=1)


def _block_inverse(a: Array) -> Array:
    return stacked(inverse(entries(a)))
