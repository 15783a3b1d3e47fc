"""Batches of small problems: matrices on components, lanes on the last axis, a chunk at a time.

LAPACK takes a call for every lane and every tiny matrix. Here every operation is elementwise over the
lanes of a chunk, which stays in the cache. A visit of a chunk makes iterations of splitting, which find
the modes of almost every problem, and passes of Newton's method from there, which make it exact.
The lanes that are left are gathered into chunks with others that were visited as often: what a hard
lane costs it costs alone.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._numerics import inverse, staged
from .._dense import DenseProblem, join, norm, ratio, row_steps, split
from .._natural_map import argument, derivative, projected
from ._base import Best

SMALL = 16
"""Most unknowns of a problem that is solved here."""
CHUNK = 64
"""Lanes of a chunk: enough to fill vector registers, few enough for the cache."""
SPLITTING, NEWTON, VISITS = 30, 5, 20
"""Iterations and passes of one visit, and visits of one lane."""
RELAXATION, PENALTY = 1.6, 1.0
PROXIMAL, DAMPING = 1e-8, 0.1
"""Newton's matrix is regularised by `max(PROXIMAL, DAMPING * residual)`."""


class Columns(eqx.Module):
    """A matrix for every lane as an operator, `(m, m, l)`."""

    W: Array

    def __call__(self, z: Array) -> Array:
        return product(self.W, z)

    def frobenius(self) -> Array:
        """`|W|`, shape `(l,)`."""
        return jnp.sqrt(jnp.sum(self.W * self.W, axis=(0, 1)))

    def steps(self, shapes) -> Array:
        """The step of the natural map, see `row_steps`."""
        return row_steps(shapes, self.W)


def product(W: Array, z: Array) -> Array:
    """`W z` as a chain of additions, `(m, m, l)` times `(m, l)`."""
    total = W[:, 0] * z[0][None]
    for j in range(1, W.shape[1]):
        total = total + W[:, j] * z[j][None]
    return total


class _Run(eqx.Module):
    """What a lane is left with between visits: its best point, and the state of the splitting."""

    best: Best
    y: Array
    dual: Array
    penalty: Array
    visits: Array


def visit_small(problem: DenseProblem, best: Best, tolerance) -> Best:
    """Visits until all lanes have converged, or were visited `VISITS` times."""
    W = jnp.moveaxis(problem.W, 0, 2)
    rho = row_steps(problem.shapes, W)
    lanes = problem.q.shape[1]
    chunk = min(CHUNK, lanes)
    level = jnp.full(lanes, PENALTY, rho.dtype)
    dual = -problem.lift(problem.velocity(best.z)) * rho / level[None]
    run = _Run(best, best.z, dual, level, jnp.zeros(lanes, jnp.int32))
    whole = DenseProblem(Columns(W), problem.q, problem.contacts), rho

    def waiting(run):
        return (run.best.residual > tolerance) & (run.visits < VISITS)

    def body(run):
        _, index = jax.lax.top_k(jnp.where(waiting(run), VISITS - run.visits, 0), chunk)
        part, some = jax.tree.map(lambda x: x[..., index], (whole, run))
        some = _visit(*part, some, tolerance)
        return jax.tree.map(lambda x, y: x.at[..., index].set(y), run, some)

    return jax.lax.while_loop(lambda run: jnp.any(waiting(run)), body, run).best


def _visit(problem: DenseProblem, rho: Array, run: _Run, tolerance) -> _Run:
    """Splitting, then Newton's method from what it has found."""
    run = _split(problem, rho, run, tolerance)
    best = _newton(problem, rho, run.y, run.best, tolerance)
    return eqx.tree_at(lambda r: (r.best, r.visits), run, (best, run.visits + 1))


def _split(problem: DenseProblem, rho: Array, run: _Run, tolerance) -> _Run:
    """Iterations of `_splitting`, and a better penalty for the next visit."""
    pending = jnp.any(run.best.residual > tolerance)
    sigma = run.penalty[None] / rho
    m = len(rho)
    identity = jnp.eye(m, dtype=rho.dtype)[:, :, None]
    matrix = staged(pending, block_inverse, problem.W.W + identity * sigma[None])

    def body(_, carry):
        y, dual, w, _, _ = carry
        shift = problem.lift(w) - w
        target = staged(pending, lambda *x: x[0] * (x[1] - x[2]) - problem.q - x[3], sigma, y, dual, shift)
        z = staged(pending, product, matrix, target)
        w = sigma * (y - dual - z) - shift
        moved = RELAXATION * z + (1 - RELAXATION) * y + dual
        new = problem.project(moved)
        return new, moved - new, w, z, new - y

    zero = jnp.zeros_like(run.y)
    first = run.y, run.dual, problem.velocity(run.y), zero, zero
    y, dual, _, z, change = jax.lax.fori_loop(0, SPLITTING, body, first)
    primal = ratio(norm(z - y), jnp.maximum(norm(z), norm(y)))
    slack = ratio(norm(sigma * change), norm(sigma * dual))
    factor = jnp.clip(jnp.sqrt(ratio(primal, jnp.maximum(slack, 1e-30))), 0.2, 5.0)
    penalty = jnp.clip(run.penalty * factor, 1e-6, 1e6)
    return _Run(
        run.best.count(tolerance, SPLITTING),
        y,
        dual * (run.penalty / penalty)[None],
        penalty,
        run.visits,
    )


def _newton(problem: DenseProblem, rho: Array, z: Array, best: Best, tolerance) -> Best:
    """Full steps of Newton's method; the best point is kept."""

    def proceed(carry):
        *_, best, count = carry
        return jnp.any(best.residual > tolerance) & (count < NEWTON)

    def body(carry):
        z, w, best, count = carry
        pending = jnp.any(best.residual > tolerance)
        f, d, n = staged(pending, lambda z, w: _linearise(problem, rho, z, w), z, w)
        size = ratio(norm(f), jnp.maximum(norm(z), norm(rho * problem.q)))
        eps = jnp.maximum(PROXIMAL, DAMPING * jnp.minimum(size, 1.0))
        matrix = staged(
            pending, lambda *x: newton_matrix(*x, problem.shapes), problem.W.W, d, n, eps
        )
        z = z - block_solve(matrix, f, pending)
        w, residual, better = evaluated(problem, z, best, pending, tolerance)
        return z, w, better.count(tolerance), count + 1

    def evaluated(problem, z, best, pending, tolerance):
        w = staged(pending, lambda z: problem.velocity(z), z)
        residual = staged(pending, lambda z, w: problem.residual(z, w), z, w)
        return w, residual, best.offer(z, residual, tolerance)

    pending = jnp.any(best.residual > tolerance)
    w, _, best = evaluated(problem, z, best, pending, tolerance)
    return jax.lax.while_loop(proceed, body, (z, w, best, jnp.zeros((), jnp.int32)))[2]


def _linearise(problem: DenseProblem, rho: Array, z: Array, w: Array):
    """The natural map and its derivatives."""
    f, d, n = [], [], []
    for part in zip(problem.contacts, *map(problem.split, (w, z, rho)), strict=True):
        contacts, u, p, r = part
        x = argument(contacts, u, p, r[0])
        f.append(p - projected(contacts, x))
        pair = derivative(contacts, u, x, r[0])
        d.append(pair[0])
        n.append(pair[1])
    return join(f), tuple(d), tuple(n)


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
        head = staged(pending, lambda rest, k=k: _times(_block_inverse(rest[:k, :k]), rest[:k, k:]), rest)
        heads.append(head)
        rest = staged(
            pending, lambda rest, head, k=k: rest[k:, k:] - _times(rest[k:, :k], head), rest, head
        )
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
    total = a[:, 0][:, None] * b[0][None]
    for i in range(1, a.shape[1]):
        total = total + a[:, i][:, None] * b[i][None]
    return total


def _block_inverse(a: Array) -> Array:
    k = len(a)
    rows = inverse([[a[i, j] for j in range(k)] for i in range(k)])
    return jnp.stack([jnp.stack(row) for row in rows])
