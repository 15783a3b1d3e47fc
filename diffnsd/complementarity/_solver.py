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

from .._numerics import matrix_inverse, matvec, staged
from ._closed_form import one_unknown
from ._dense import Statistics
from ._elimination import back_substitute, congruence, eliminate, inputs, linearised
from ._natural_map import (
    argument,
    derivative,
    distances,
    projected,
    relative,
    residual,
    scale,
)
from ._problem import MixedProblem, apply, gather
from .solvers._base import AbstractContactSolver, AbstractSolver, check_tolerance
from .solvers._chain import Chain
from .solvers._first_order import AcceleratedProjectedGradient, ProjectedGaussSeidel
from .solvers._interior_point import InteriorPoint
from .solvers._pivoting import Enumeration, Lemke
from .solvers._semismooth import LevenbergMarquardt, Newton
from .solvers._small import SmallBatches
from .solvers._splitting import Splitting


class Auto(AbstractSolver):
    """The default solver: a chain of methods, from the fastest to the most dependable.

    It prints as the `Chain` that it is. In a step of a small system the links `Newton` and `Splitting`
    go by twins of their own, on components and without forming `W`; see `Auto.__call__`.

    In steps Newton's matrix is regularised by `eps = max(proximal, damping * residual)`: far from the
    solution this is a proximal-point step, near it Newton's method. The few problems of a batch that
    need more than `newton_steps` passes are gathered and finished on their own, so that slow problems
    do not delay the rest.

    **Arguments:**

    - `tolerance`: relative natural-map residual to aim at; `None` is 1e-9 in float64 and 1e-5 in
      float32. Never less than 64 units of rounding.
    - `newton_steps`: Newton passes for all problems. `hard_steps`: passes for the hard ones before
      `splitting_steps` iterations of operator splitting.
    - `rounds`: largest number of such rounds; 0 leaves the first Newton passes alone.
    - `proximal`, `damping`: the regularisation; `None` is 1e-8 (float64) or 1e-5 (float32).
    - `relaxation`, `penalty`: over-relaxation of the splitting, and its penalty relative to the
      local step of the natural map.
    - `accept_tolerance`: residual accepted as success, at least `tolerance`. `None` is `tolerance` where
      that is given, else 1e-8 in float64 and 1e-5 in float32.

    Large systems, and `solve_complementarity`, use the tolerances, `newton_steps`, `hard_steps` and
    `rounds`; the other numbers are for the steps of small systems.
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
    accept_tolerance: float | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        check_tolerance(self.tolerance)
        check_tolerance(self.accept_tolerance)

    @property
    def chain(self) -> Chain:
        """The chain that it is."""
        first = SmallBatches(tolerance=self.tolerance), Newton(self.newton_steps, 1e-6)
        tolerances = {
            "tolerance": self.tolerance,
            "accept_tolerance": self.accept_tolerance_for(jnp.result_type(float)),
        }
        if self.rounds == 0:
            return Chain(first[1:], **tolerances)
        search = (
            Newton(self.hard_steps),
            InteriorPoint(100, cones=False),
            Lemke(most=300),
            *(Splitting(200), Newton(40), Splitting(200), LevenbergMarquardt(40)),
            Enumeration(most=4096),
        )
        hard = (
            *(Splitting(200), Newton(40), ProjectedGaussSeidel(1000), Newton(80)),
            *(Splitting(200), LevenbergMarquardt(40), ProjectedGaussSeidel(1000), Newton(80)),
        )
        repeats = min(max(self.rounds - 1, 0) // 2, 3)
        return Chain((*first, *search), hard if repeats else (), repeats, **tolerances)

    @property
    def links(self) -> tuple[AbstractContactSolver, ...]:
        return self.chain.links

    @property
    def fallback(self) -> tuple[AbstractContactSolver, ...]:
        return self.chain.fallback

    @property
    def repeats(self) -> int:
        return self.chain.repeats

    def __repr__(self) -> str:
        return repr(self.chain)

    def accept_tolerance_for(self, dtype) -> float:
        """Ten times the residual that is aimed at, 1e-8 in float64, unless a tolerance is given."""
        tolerance = self.tolerance_for(dtype)
        if self.accept_tolerance is not None:
            return max(tolerance, self.accept_tolerance)
        by_default = self.tolerance is None and jnp.finfo(dtype).bits >= 64
        return 10 * tolerance if by_default else tolerance

    def limits(self, dtype) -> tuple[float, float]:
        """`tolerance` and least regularisation of Newton's matrix in steps, for a dtype."""
        default = 1e-8 if jnp.finfo(dtype).bits >= 64 else 1e-5
        return self.tolerance_for(dtype), default if self.proximal is None else self.proximal

    def by_products(self) -> AbstractSolver:
        return AcceleratedProjectedGradient(20_000, tolerance=self.tolerance)

    def __call__(self, problem: MixedProblem, z0: tuple[Array, ...]):
        """Solves for all lanes. **Returns:** `v`, `z`, `Statistics`."""
        tolerance, _ = self.limits(problem.rhs.dtype)
        if len(problem.blocks) == 1 and problem.blocks[0].offset.shape[:2] == (1, 1):
            return one_unknown(problem, self.accept_tolerance_for(problem.rhs.dtype))
        task = _prepare(problem)
        iterate = self._newton(task, _start(problem, z0), self.newton_steps)

        def unfinished(carry):
            iterate, count = carry
            return jnp.any(iterate.best_residual > tolerance) & (count < self.rounds)

        def round_(carry):
            iterate, count = carry
            return on_hard_lanes(self._hard, task, iterate, tolerance, count), count + 1

        iterate, _ = jax.lax.while_loop(unfinished, round_, (iterate, jnp.zeros((), jnp.int32)))
        return iterate.best_v, iterate.best_z, _statistics(task, iterate, self)

    def _newton(self, task, iterate, limit, weaken=1.0):
        """Visits the iterate and moves it by Newton's step, `limit` times, then visits it again."""
        tolerance, proximal = self.limits(task.problem.rhs.dtype)
        proximal, damping = proximal * weaken, self.damping * weaken**0.5

        def open_(it):
            return jnp.any(it.best_residual > tolerance)

        def proceed(carry):
            it, since = carry
            return (since <= limit) & ((since == 0) | open_(it))

        def body(carry):
            it, since = carry
            it, point = _visit(task, it, (since == 0) | open_(it), tolerance)
            pending = open_(it) & (since < limit)
            eps = jnp.maximum(proximal, damping * jnp.minimum(point.residual, 1.0))
            z = _map(jnp.add, it.z, _newton_step(task, point, eps, pending))
            passes = it.passes + jnp.where((it.best_residual > tolerance) & (since < limit), 1, 0)
            return eqx.tree_at(lambda i: (i.z, i.passes), it, (z, passes)), since + 1

        return jax.lax.while_loop(proceed, body, (iterate, jnp.zeros((), jnp.int32)))[0]

    def _hard(self, task, iterate, count):
        """One round: splitting first, except in the first round, then Newton.

        Contacts that are redundant up to rounding stall at a residual that the regularisation
        sets, and cycle without it: the rounds go through several strengths.
        """
        tolerance, _ = self.limits(task.problem.rhs.dtype)
        iterate = jax.lax.cond(
            count > 0,
            lambda it: _splitting_phase(task, it, self, tolerance),
            lambda it: it,
            iterate,
        )
        weaken = 0.03 ** (count % 4).astype(task.size.dtype)
        return self._newton(task, iterate, self.hard_steps, weaken)


def on_hard_lanes(function, task, iterate, tolerance, count):
    """Applies `function(task, iterate, count)` to the lanes with the largest residuals only.

    An eighth of a batch is gathered (at least 8 lanes); rounds repeat until none is left. Lanes
    that have been tried and failed go to the end of the queue.
    """
    lanes = iterate.best_residual.shape
    if len(lanes) != 1 or lanes[0] <= 16:
        new = function(task, iterate, count)
        waiting = iterate.best_residual > tolerance
        return eqx.tree_at(lambda i: i.tries, new, jnp.where(waiting, count + 1, iterate.tries))
    capacity = max(8, lanes[0] // 8)
    waiting = iterate.best_residual > tolerance
    tried = jnp.where(waiting, iterate.passes, 0)
    _, index = jax.lax.top_k(jnp.where(waiting, -tried, jnp.iinfo(tried.dtype).min), capacity)
    hard_task, hard = on_last_axis(lambda x: x[:, index], (task, iterate))
    hard = function(
        hard_task, hard, jnp.max(jnp.where(hard.best_residual > tolerance, hard.tries, 0))
    )
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
    """The current point, and the best point that was visited so far."""

    z: tuple[Array, ...]
    best_v: Array
    best_z: tuple[Array, ...]
    best_residual: Array
    passes: Array
    tries: Array


class _Point(eqx.Module):
    """The natural map at a point."""

    w: tuple[Array, ...]
    x: tuple[Array, ...]
    f: tuple[Array, ...]
    residual: Array


def _map(function, *parts):
    """Applies a function block by block."""
    return tuple(function(*part) for part in zip(*parts, strict=True))


def _visit(task: _Task, it: _Iterate, pending, tolerance) -> tuple[_Iterate, _Point]:
    """Evaluates the natural map at the iterate, in small stages, and keeps the best point.

    The best point of a lane is final once it has converged.
    """
    problem, z = task.problem, it.z
    load = staged(pending, lambda p, z: p.load(z), problem, z)
    v = staged(pending, matvec, task.mobility, load)
    w = staged(pending, lambda p, v: p.local(v), problem, v)
    x = staged(
        pending, lambda p, w, z, r: _map(argument, p.blocks, w, z, r), problem, w, z, task.rho
    )
    f = staged(pending, lambda p, x, z: _map(residual, p.blocks, x, z), problem, x, z)
    norm = staged(pending, relative, f, z, task.size)
    better = ~(it.best_residual <= tolerance) & (norm < it.best_residual)

    def pick(new, old):
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), new, old)

    v, best_z, best = pick((v, z, norm), (it.best_v, it.best_z, it.best_residual))
    return _Iterate(z, v, best_z, best, it.passes, it.tries), _Point(w, x, f, norm)


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
    zero = jnp.zeros(problem.rhs.shape[1:], jnp.int32)
    unknown = jnp.full(problem.rhs.shape[1:], jnp.inf, problem.rhs.dtype)
    return _Iterate(z, problem.rhs, z, unknown, zero, zero)


def _newton_step(task: _Task, point: _Point, eps, pending):
    """Newton's step of the multipliers.

    The velocity is recomputed from them: dv carries the rounding error of the proximal term.
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
    minus = tuple(-f for f in point.f)
    return back_substitute(factors, system, None, minus, pending)[1]


def _splitting_phase(task, it, options, tolerance):
    """ADMM from the best iterate: `(W + sigma) z = −q − lift + sigma (y − dual)`, `y ∈ K`.

    `sigma = penalty / rho` per contact. The linear solve is the elimination with diagonal blocks,
    `A + H^T B / sigma`, so W is not formed here either and its unsymmetric part is kept. The lift
    is refreshed in every iteration.
    """
    problem, pending = task.problem, jnp.any(it.best_residual > tolerance)
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
    passes = it.passes + jnp.where(it.best_residual > tolerance, options.splitting_steps, 0)
    return eqx.tree_at(lambda i: (i.z, i.passes), it, (y, passes))


def _statistics(task, it, solver: Auto):
    w = task.problem.local(it.best_v)
    x = _map(argument, task.problem.blocks, w, it.best_z, task.rho)
    margin, violation = distances(task.problem, w, it.best_z, x, task.rho, task.size)
    # The first passes are those of the first `Newton`, the first round the second one's, then splitting.
    names = solver.names
    first = names.index("Newton")
    later = [i for i in range(first + 1, len(names)) if names[i] in ("Newton", "Splitting")]
    second, third = later[0] if later else first, names.index("Splitting") if later else first
    link = jnp.where(it.tries == 0, first, jnp.where(it.tries == 1, second, third))
    solved_by = jnp.where(it.passes == 0, 0, link).astype(jnp.int32)
    done = it.best_residual <= solver.accept_tolerance_for(margin.dtype)
    return Statistics(it.best_residual, violation, it.passes, margin, solved_by, done)
