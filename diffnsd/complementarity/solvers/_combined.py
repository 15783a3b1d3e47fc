"""The default method: every method where it is good, one after the other until the residual is small.

Newton's method goes first, for the problems that it solves in a few passes. Then, for intervals (LCP,
MLCP, relays): the central path, and Lemke's pivots. Then, for all sets, rounds of splitting, which
gets near the solution of almost every monotone problem, and of Newton's method from there, which gets
close; Gauss-Seidel sweeps go between them in later rounds. What is small is enumerated in the end.

Batches of small problems begin with `_small` instead, which leaves next to none.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._dense import DenseProblem
from ._base import Best, start
from ._first_order import sweeps
from ._interior_point import follow
from ._pivoting import enumerate_modes, free_rows, intervals, modes, pivot
from ._semismooth import alternate, proximal
from ._small import FEW, SMALL, visit_small
from ._splitting import begin, iterate

SPLITTING, NEWTON, SWEEPS = 200, 40, 300
"""Iterations of one round; a later round makes more sweeps."""
PATH = 100
"""Passes along the central path."""
PIVOT_LIMIT = 300
"""Most unknowns for pivoting."""
MODES_LIMIT = 4096
"""Most combinations of modes that are tried."""


class Effort(NamedTuple):
    """How much is tried: `tolerance` to aim at, `promise` to be content with on hard problems, Newton
    passes for all lanes and for the hard ones, and rounds of splitting and Newton.
    """

    tolerance: float
    promise: float
    newton_steps: int
    hard_steps: int
    rounds: int


def combined(problem: DenseProblem, z0: Array, effort: Effort) -> Best:
    """Solves for all lanes.

    The lanes that the first Newton passes leave are gathered, an eighth of the batch at a time, so
    that the batch does not pay for them.
    """
    tolerance = effort.tolerance
    best = start(problem, z0)
    # Where W is diagonal this is the solution.
    z = problem.project(-problem.steps() * problem.q)
    best = best.offer(z, problem.residual(z, problem.velocity(z)), tolerance)
    m, lanes = problem.q.shape
    if m <= SMALL and lanes > FEW and effort.rounds > 0:
        best = visit_small(problem, best, tolerance)
    else:
        best = proximal(problem, best.z, best, effort.newton_steps, tolerance, 1e-6)
    if effort.rounds == 0:
        return best
    if lanes <= FEW:
        open_ = jnp.any(best.residual > tolerance)
        return jax.lax.cond(open_, lambda b: _hard(problem, b, effort), lambda b: b, best)

    capacity = max(8, lanes // 8)
    groups = -(-lanes // capacity)

    def proceed(carry):
        _, waiting, count = carry
        return jnp.any(waiting) & (count < groups)

    def body(carry):
        best, waiting, count = carry
        _, index = jax.lax.top_k(waiting.astype(jnp.int32), capacity)
        some = jax.tree.map(lambda x: x[..., index], best)
        some = _hard(problem.take(index), some, effort)
        best = jax.tree.map(lambda x, y: x.at[..., index].set(y), best, some)
        return best, waiting.at[index].set(False), count + 1

    carry = best, best.residual > tolerance, jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(proceed, body, carry)[0]


def _hard(problem: DenseProblem, best: Best, effort: Effort) -> Best:
    """Everything that there is, in the order of its cost."""
    tolerance = effort.tolerance
    best = proximal(problem, best.z, best, effort.hard_steps, tolerance)

    def where_open(method, best):
        return jax.lax.cond(jnp.any(best.residual > tolerance), method, lambda best: best, best)

    m = problem.q.shape[0]
    if intervals(problem) is not None:
        best = where_open(
            lambda b: follow(problem, problem.project(0 * b.z), b, PATH, tolerance, 0.2), best
        )
        if free_rows(problem) is not None and m <= PIVOT_LIMIT:
            best = where_open(lambda b: pivot(problem, b, tolerance), best)
    best = where_open(lambda b: _rounds(problem, b, effort), best)
    count = modes(problem)
    if count is not None and count <= MODES_LIMIT and m <= PIVOT_LIMIT:
        best = where_open(lambda b: enumerate_modes(problem, b, tolerance), best)
    return best


def _rounds(problem: DenseProblem, best: Best, effort: Effort) -> Best:
    """Splitting, sweeps and Newton in turns. Later rounds are content with `promise`."""
    tolerance, promise = effort.tolerance, effort.promise
    state = begin(problem, best.z, 0.3)

    def proceed(carry):
        best, _, _, count = carry
        goal = jnp.where(count < 2, tolerance, promise)
        return jnp.any(best.residual > goal) & (count < effort.rounds)

    def body(carry):
        best, state, swept, count = carry
        best, state = iterate(problem, best, state, SPLITTING, tolerance, 1.6)
        best = alternate(problem, state.y, best, NEWTON, tolerance, count)

        def more(best):
            start = jnp.where(count == 2, state.y, swept)
            best, z = sweeps(problem, start, best, SWEEPS * count, tolerance, 8)
            return proximal(problem, z, best, NEWTON, tolerance, 1e-3), z

        late = (count >= 2) & jnp.any(best.residual > promise)
        best, swept = jax.lax.cond(late, more, lambda best: (best, swept), best)
        return best, state, swept, count + 1

    carry = best, state, best.z, jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(proceed, body, carry)[0]
