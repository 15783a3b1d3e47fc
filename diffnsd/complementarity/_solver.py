"""The solver of a step: warm-started semismooth Newton, and splitting for the lanes it leaves.

Newton's method on the natural map with the proximal term of `_elimination` needs a few passes from
a warm start and fails on some redundant or badly started problems; operator splitting (ADMM with
the De Saxcé shift refreshed in every iteration) converges slowly and almost always. The residual of
the natural map decides, never a solver's own word.

References: P. Alart, A. Curnier (1991), doi:10.1016/0045-7825(91)90022-X; J. Carpentier,
Q. Le Lidec, L. Montaut (2024), arXiv:2405.17020.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._jax import staged
from .._numerics import matrix_inverse, matvec
from ._dense import DenseProblem, Statistics
from ._elimination import back_substitute, congruence, eliminate, inputs, linearised
from ._natural_map import argument, derivative, projected, relative, residual, scale, squared
from ._problem import MixedProblem, apply, gather
from .solvers._base import AbstractSolver, Best, check_tolerance
from .solvers._combined import Effort, combined
from .solvers._first_order import AcceleratedProjectedGradient


class Auto(AbstractSolver):
    """The default solver: Newton for all lanes, then Newton and splitting for the hard ones.

    Newton's matrix is regularised by `eps = max(proximal, damping * residual)`: far from the
    solution this is a proximal-point step, near it Newton's method. The few lanes of a batch that
    need more than `newton_steps` passes are gathered and finished on their own, so that the batch
    does not pay for them.

    **Arguments:**

    - `tolerance`: relative natural-map residual to reach; `None` is 1e-9 in float64 and 1e-5 in
      float32. Never less than 64 units of rounding.
    - `newton_steps`: Newton passes for all lanes. `hard_steps`: passes for the hard lanes before
      `splitting_steps` iterations of operator splitting.
    - `rounds`: largest number of such rounds.
    - `proximal`, `damping`: the regularisation; `None` is 1e-8 (float64) or 1e-5 (float32).
    - `relaxation`, `penalty`: over-relaxation of the splitting, and its penalty relative to the
      local step of the natural map.

    Large systems, and `solve_complementarity`, use `tolerance`, `newton_steps` (but for batches of small
    problems), `hard_steps` and up to 8 `rounds`; the other numbers are for the steps of small systems.
    """

    tolerance: float | None = eqx.field(default=None, static=True)
    newton_steps: int = eqx.field(default=5, static=True)
    hard_steps: int = eqx.field(default=25, static=True)
    splitting_steps: int = eqx.field(default=50, static=True)
    rounds: int = eqx.field(default=20, static=True)
    proximal: float | None = eqx.field(default=None, static=True)
    damping: float = eqx.field(default=0.1, static=True)
    relaxation: float = eqx.field(default=1.6, static=True)
    penalty: float = eqx.field(default=1.0, static=True)

    def __check_init__(self):
        check_tolerance(self.tolerance)

    def limits(self, dtype) -> tuple[float, float]:
        """`tolerance` and `proximal` for a dtype."""
        double = jnp.finfo(dtype).bits >= 64
        tolerance = self.tolerance if self.tolerance is not None else (1e-9 if double else 1e-5)
        tolerance = max(tolerance, 64 * float(jnp.finfo(dtype).eps))
        proximal = self.proximal if self.proximal is not None else (1e-8 if double else 1e-5)
        return tolerance, proximal

    def limit(self, dtype) -> float:
        return self.limits(dtype)[0]

    def promise(self, dtype) -> float:
        """With the default tolerance ten times the residual that is aimed at, 1e-8 in float64."""
        double = jnp.finfo(dtype).bits >= 64
        return 10 * self.limit(dtype) if self.tolerance is None and double else self.limit(dtype)

    def dense(self, problem: DenseProblem, z0: Array) -> Best:
        limits = self.limit(z0.dtype), self.promise(z0.dtype)
        effort = Effort(*limits, self.newton_steps, self.hard_steps, min(self.rounds, 8))
        return combined(problem, z0, effort)

    def by_products(self) -> AbstractSolver:
        return AcceleratedProjectedGradient(self.tolerance, steps=20_000)

    def __call__(self, problem: MixedProblem, z0: tuple[Array, ...]):
        """Solves for all lanes. **Returns:** `v`, `z`, `Statistics`."""
        tolerance, _ = self.limits(problem.rhs.dtype)
        if len(problem.blocks) == 1 and problem.blocks[0].offset.shape[:2] == (1, 1):
            v, z, stats = _one_unknown(problem, tolerance)
            return v, z, stats, (v, z)
        task = _prepare(problem)
        iterate = self._newton(task, _start(problem, z0), self.newton_steps)

        def unfinished(carry):
            iterate, count = carry
            return jnp.any(~iterate.done) & (count < self.rounds)

        def round_(carry):
            iterate, count = carry
            return on_hard_lanes(self._hard, task, iterate, count), count + 1

        iterate, _ = jax.lax.while_loop(unfinished, round_, (iterate, jnp.zeros((), jnp.int32)))
        best = iterate.best_v, iterate.best_z
        tilted = _where(iterate.has_tilted, (iterate.tilted_v, iterate.tilted_z), best)
        return *best, _statistics(task, iterate, tolerance), tilted

    def _newton(self, task, iterate, limit, weaken=1.0):
        """Visits the iterate and moves it by Newton's step, `limit` times, then visits it again."""
        tolerance, proximal = self.limits(task.problem.rhs.dtype)
        proximal, damping = proximal * weaken, self.damping * weaken**0.5
        tilt = _tilt(task.size.dtype)

        def proceed(carry):
            it, since = carry
            return (since <= limit) & ((since == 0) | jnp.any(~it.done))

        def body(carry):
            it, since = carry
            it, point = _visit(task, it, (since == 0) | jnp.any(~it.done), tolerance)
            pending = jnp.any(~it.done) & (since < limit)
            far = damping * jnp.minimum(point.residual, 1.0)
            eps = jnp.where(
                it.is_tilted,
                jnp.where(point.residual < NEAR, tilt, jnp.maximum(tilt, far)),
                jnp.maximum(proximal, far),
            )
            near = it.is_tilted & (point.residual < NEAR)
            small = jnp.maximum(point.residual, it.before) <= tolerance
            landing = (
                it.is_tilted & (it.before < NEAR) & (small | (point.residual <= LANDED * tilt))
            )
            dz, correction = _newton_step(task, point, eps, near & ~it.done, pending)
            z = _map(jnp.add, it.z, _where(landing, it.correction, dz))
            passes = it.passes + jnp.where(~it.done & (since < limit), 1, 0)
            it = eqx.tree_at(
                lambda i: (
                    i.z,
                    i.passes,
                    i.correction,
                    i.before,
                    i.is_tilted,
                    i.has_tilted,
                ),
                it,
                (
                    z,
                    passes,
                    correction,
                    point.residual,
                    it.is_tilted & ~landing,
                    it.has_tilted | landing,
                ),
            )
            tilted = _where(landing, (point.v, point.z), (it.tilted_v, it.tilted_z))
            return eqx.tree_at(lambda i: (i.tilted_v, i.tilted_z), it, tilted), since + 1

        return jax.lax.while_loop(proceed, body, (iterate, jnp.zeros((), jnp.int32)))[0]

    def _hard(self, task, iterate, count):
        """One round: splitting first, except in the first round, then Newton.

        Contacts that are redundant up to rounding stall at a residual that the regularisation
        sets, and cycle without it: the rounds go through several strengths. The first rounds look for
        the solution of least norm, later ones are content with any.
        """
        iterate = jax.lax.cond(
            count > 0, lambda it: _splitting_phase(task, it, self), lambda it: it, iterate
        )
        tilted = iterate.is_tilted & (count < 1) | _is_redundant(task.problem) & (
            (count == 1) | (count == 2)
        )
        iterate = eqx.tree_at(lambda i: i.is_tilted, iterate, tilted)
        weaken = 0.03 ** (count % 4).astype(task.size.dtype)
        return self._newton(task, iterate, self.hard_steps, weaken)


def on_hard_lanes(function, task, iterate, count):
    """Applies `function(task, iterate, count)` to the lanes with the largest residuals only.

    An eighth of a batch is gathered (at least 8 lanes); rounds repeat until none is left. Lanes
    that have been tried and failed go to the end of the queue.
    """
    lanes = iterate.best_residual.shape
    if len(lanes) != 1 or lanes[0] <= 16:
        return function(task, iterate, count)
    capacity = max(8, lanes[0] // 8)
    waiting = ~iterate.done
    tried = jnp.where(waiting, iterate.passes, 0)
    _, index = jax.lax.top_k(jnp.where(waiting, -tried, jnp.iinfo(tried.dtype).min), capacity)
    hard_task, hard = on_last_axis(lambda x: x[:, index], (task, iterate))
    hard = function(hard_task, hard, jnp.max(jnp.where(hard.done, 0, hard.tries)))
    hard = eqx.tree_at(lambda i: i.tries, hard, hard.tries + 1)
    return on_last_axis(lambda x, y: x.at[:, index].set(y), iterate, hard)


def on_last_axis(function, *trees):
    """Applies `function` to the leaves of pytrees, packed by dtype into arrays `(rows, lanes)`.

    One gather or scatter of a packed array instead of one for every leaf: dozens fewer to compile.
    """
    leaves, structures = zip(*map(jax.tree.flatten, trees), strict=True)
    out = [None] * len(leaves[0])
    for dtype in dict.fromkeys(x.dtype for x in leaves[0]):
        places = [i for i, x in enumerate(leaves[0]) if x.dtype == dtype]
        packed = [
            jnp.concatenate([part[i].reshape((-1, part[i].shape[-1])) for i in places])
            for part in leaves
        ]
        new, at = function(*packed), 0
        for i in places:
            shape = leaves[0][i].shape[:-1]
            rows = math.prod(shape)
            out[i] = new[at : at + rows].reshape((*shape, new.shape[-1]))
            at += rows
    return jax.tree.unflatten(structures[0], out)


class _Task(eqx.Module):
    """A problem with what is computed from it once."""

    problem: MixedProblem
    mobility: Array
    rho: tuple[Array, ...]
    size: Array


class _Iterate(eqx.Module):
    """The current point, the best point that was visited so far, and the tilted solution.

    **Arguments:** `z`: where the next visit goes; `correction`: from the tilted solution to the
    solution of least norm; `before`: residual at the last visit; `is_tilted`: whether the tilted problem is being solved;
    `tilted_v`, `tilted_z`: its solution, where `has_tilted`; `done`: whether the best point is the
    solution that is looked for.
    """

    z: tuple[Array, ...]
    best_v: Array
    best_z: tuple[Array, ...]
    best_residual: Array
    passes: Array
    tries: Array
    correction: tuple[Array, ...]
    before: Array
    tilted_v: Array
    tilted_z: tuple[Array, ...]
    is_tilted: Array
    has_tilted: Array
    done: Array


class _Point(eqx.Module):
    """The natural map at a point, tilted where the tilted problem is being solved."""

    v: Array
    z: tuple[Array, ...]
    w: tuple[Array, ...]
    x: tuple[Array, ...]
    f: tuple[Array, ...]
    residual: Array


def _map(function, *parts):
    """Applies a function block by block."""
    return tuple(function(*part) for part in zip(*parts, strict=True))


LANDED = 1e-7
"""Residual of the tilted problem, relative to the tilt, at which its part in null spaces is known."""

NEAR = 1e-3
"""Residual below which Newton's method on the tilted problem is not damped."""


def _where(condition, new, old):
    """Picks batch elements of pytrees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _tilt(dtype) -> float:
    """The compliance of the tilted problem, relative to that of the contact itself."""
    return 1e-6 if jnp.finfo(dtype).bits >= 64 else 1e-3


def _is_redundant(problem: MixedProblem) -> bool:
    """Whether contacts may be redundant: one contact alone is taken as regular."""
    return sum(block.offset.shape[1] for block in problem.blocks) > 1


def _visit(task: _Task, it: _Iterate, pending, tolerance) -> tuple[_Iterate, _Point]:
    """Evaluates the natural map at the iterate, in small stages, and keeps the best point.

    The best point of a batch element is final once it is done: converged, and not on the way to
    the solution of least norm. Where nothing is loaded there is nothing to choose.
    """
    problem, z = task.problem, it.z
    load = staged(pending, lambda p, z: p.load(z), problem, z)
    v = staged(pending, matvec, task.mobility, load)
    w = staged(pending, lambda p, v: p.local(v), problem, v)
    x = staged(
        pending, lambda p, w, z, r: _map(argument, p.blocks, w, z, r), problem, w, z, task.rho
    )
    f = staged(pending, lambda p, x, z: _map(residual, p.blocks, x, z), problem, x, z)
    tilt = jnp.where(it.is_tilted, _tilt(task.size.dtype), 0)

    def measured(f, z, size, tilt):
        g = _map(lambda f, z: f + tilt * z, f, z)
        return g, relative(f, z, size), relative(g, z, size), squared(z) == 0

    g, norm, tilted_norm, unloaded = staged(pending, measured, f, z, task.size, tilt)
    settled = ~it.is_tilted | unloaded
    reached = settled & (norm <= tolerance)
    better = ~it.done & (reached | (norm < it.best_residual))
    v_z_norm = _where(better, (v, z, norm), (it.best_v, it.best_z, it.best_residual))
    it = eqx.tree_at(
        lambda i: (i.best_v, i.best_z, i.best_residual, i.done), it, (*v_z_norm, it.done | reached)
    )
    return it, _Point(v, z, w, x, g, tilted_norm)


def _prepare(problem: MixedProblem) -> _Task:
    """What is computed once per problem."""
    some = jnp.any(problem.matrix != 0)
    rho = problem.penalties()
    mobility = staged(some, matrix_inverse, problem.matrix)
    free = staged(some, matvec, mobility, problem.rhs)
    size = staged(some, scale, problem, free, rho)
    return _Task(problem, mobility, rho, size)


def _start(problem: MixedProblem, z0) -> _Iterate:
    """The warm start projected on the sets; nothing is known of it yet."""
    z = _map(projected, problem.blocks, z0)
    lanes, v = problem.rhs.shape[1:], problem.rhs
    zero, no = jnp.zeros(lanes, jnp.int32), jnp.zeros(lanes, bool)
    unknown = jnp.full(lanes, jnp.inf, v.dtype)
    correction = _map(jnp.zeros_like, z)
    tilted = no | _is_redundant(problem)
    return _Iterate(z, v, z, unknown, zero, zero, correction, unknown, v, z, tilted, no, no)


def _newton_step(task: _Task, point: _Point, eps, near, pending):
    """Newton's step of the multipliers, and the correction of a tilted solution that it leads to.

    The velocity is recomputed from them: dv carries the rounding error of the proximal term.

    The solution `y` of `F + eps z = 0` has no part in the null space of `J`, by which contacts are
    redundant. From there `J c = eps y` leads to the solution of least norm of `F = 0`, by two
    proximal steps that add no such part: `c = U y + U² y` with `U = eps (J + eps)^-1`. Only where
    `near` says so.
    """
    problem = task.problem
    pairs = staged(
        pending,
        lambda p, w, x, r: _map(derivative, p.blocks, w, x, r),
        problem,
        point.w,
        point.x,
        task.rho,
    )
    system = linearised(problem, [d for d, _ in pairs], [n for _, n in pairs])
    factors = eliminate(system, eps, pending)

    def body(k, carry):
        dz, correction, right = carry
        step = back_substitute(factors, system, None, right, pending)[1]
        dz = _where(k == 0, step, dz)
        correction = _map(lambda c, s: jnp.where(k == 0, c, c + s), correction, step)
        right = _map(lambda z, s: eps * jnp.where(k == 0, z + s, s), point.z, step)
        return dz, correction, right

    zero = _map(jnp.zeros_like, point.f)
    count = jnp.where(jnp.any(near), 3, 1)
    start = zero, zero, tuple(-f for f in point.f)
    return jax.lax.fori_loop(0, count, body, start)[:2]


def _splitting_phase(task, it, options):
    """ADMM from the best iterate: `(W + sigma) z = −q − lift + sigma (y − dual)`, `y ∈ K`.

    `sigma = penalty / rho` per contact. The linear solve is the elimination with diagonal blocks,
    `A + H^T B / sigma`, so W is not formed here either and its unsymmetric part is kept. The lift
    is refreshed in every iteration.
    """
    problem, pending = task.problem, jnp.any(~it.done)
    sigma = tuple(options.penalty / r for r in task.rho)
    outputs = tuple(b.output for b in problem.blocks)
    weighted = _map(lambda h, s: h / s[None, None], outputs, sigma)
    matrix = staged(pending, congruence, problem.matrix, inputs(problem), weighted)
    mobility = staged(pending, matrix_inverse, matrix)

    def lifted(v):
        def one(block):
            w = block.local(v) + block.offset
            return block.offset.at[0].add(block.law.lift(w)), w

        return _map(one, problem.blocks)

    def solve(v, y, dual, mobility):
        target = _map(lambda y, d, q, s: y - d - q[0] / s[None], y, dual, lifted(v), sigma)
        v = matvec(mobility, problem.rhs + sum(_map(gather, inputs(problem), target)))
        z = _map(lambda t, h, s: t - apply(h, v) / s[None], target, outputs, sigma)
        return v, z

    def body(_, carry):
        v, y, dual = carry
        v, z = staged(pending, solve, v, y, dual, mobility)
        mix = options.relaxation
        moved = _map(lambda a, b, d: mix * a + (1 - mix) * b + d, z, y, dual)
        y = _map(projected, problem.blocks, moved)
        return v, y, _map(jnp.subtract, moved, y)

    dual = _map(
        lambda b, q, s: -q[1].at[0].add(b.law.lift(q[1])) / s[None],
        problem.blocks,
        lifted(it.best_v),
        sigma,
    )
    start = it.best_v, it.best_z, dual
    _, y, _ = jax.lax.fori_loop(0, options.splitting_steps, body, start)
    passes = it.passes + jnp.where(it.done, 0, options.splitting_steps)
    return eqx.tree_at(lambda i: (i.z, i.passes), it, (y, passes))


def _one_unknown(problem: MixedProblem, tolerance):
    """One row of one contact: `w = a z + q` with `a > 0` is solved by `z = P_K(−q / a)`.

    A scalar variational inequality with a positive slope: exact for every interval `K`.
    """
    (block,), (rho,) = problem.blocks, problem.penalties()
    (b,) = inputs(problem)
    mobility = matrix_inverse(problem.matrix)
    free, column = matvec(mobility, problem.rhs), matvec(mobility, b[0, :, 0])
    q = block.local(free) + block.offset
    a = jnp.sum(block.output[0, :, 0] * column, axis=0)
    z = projected(block, -q / jnp.where(a > 0, a, 1)[None, None])
    w = a[None, None] * z + q
    x = argument(block, w, z, rho)
    size = jnp.where(block.active, jnp.abs(rho * q[0]), 0)[0]
    norm = relative((residual(block, x, z),), (z,), size)
    margin = jnp.where(block.active, block.law.set().margin(x), jnp.inf)[0]
    stats = Statistics(
        norm,
        jnp.zeros(norm.shape, jnp.int32),
        margin / jnp.where(size > 0, size, 1),
        norm <= tolerance,
    )
    return free + column * z[0], (z,), stats


def _statistics(task, it, tolerance):
    margin = jnp.full_like(it.best_residual, jnp.inf)
    w = task.problem.local(it.best_v)
    x = _map(argument, task.problem.blocks, w, it.best_z, task.rho)
    for block, part in zip(task.problem.blocks, x, strict=True):
        distance = jnp.where(block.active, block.law.set().margin(part), jnp.inf)
        margin = jnp.minimum(margin, jnp.min(distance, axis=0, initial=jnp.inf))
    return Statistics(
        it.best_residual,
        it.passes,
        margin / jnp.where(task.size > 0, task.size, 1),
        it.best_residual <= tolerance,
    )
