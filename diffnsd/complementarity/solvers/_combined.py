"""The default method: every method where it is good, one after the other until the residual is small.

Newton's method goes first, for the problems that it solves in a few passes. Then, for intervals (LCP,
MLCP, relays): the central path, and Lemke's pivots. Then, for all sets, rounds of splitting, which
gets near the solution of almost every monotone problem, and of Newton's method from there, which gets
close; Gauss-Seidel sweeps go between them in later rounds. What is small is enumerated in the end.

The order is a table of stages; a loop goes over it, so that every method is compiled once however often
it is tried. Batches of small problems begin with `_small` instead, which leaves next to none.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._dense import DenseProblem
from ._base import Best, start
from ._first_order import sweeps
from ._interior_point import follow
from ._pivoting import enumerate_modes, free_rows, intervals, modes, pivot
from ._semismooth import POLISH, levenberg_marquardt, proximal
from ._small import FEW, SMALL, visit_small
from ._splitting import SplittingState, begin, iterate

SPLITTING, NEWTON, SWEEPS = 200, 40, 300
"""Iterations of one round; a later round makes more sweeps."""
PATH = 100
"""Passes along the central path."""
PIVOT_LIMIT = 300
"""Most unknowns for pivoting."""
MODES_LIMIT = 4096
"""Most combinations of modes that are tried."""
PATIENT = 2
"""Rounds that aim at the tolerance; later ones are content with what is promised, and make sweeps."""


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

    The lanes that the first passes leave are gathered, a few at a time, so that the batch does not pay
    for them.
    """
    tolerance = effort.tolerance
    best = start(problem, z0)
    # Where W is diagonal this is the solution.
    z = problem.project(-problem.steps() * problem.q)
    best = best.offer(z, problem.residual(z, problem.velocity(z)), tolerance)
    m, lanes = problem.q.shape
    stages = _stages(problem, effort)
    first = effort.newton_steps, 1e-6
    if lanes <= FEW:
        return _go_through(problem, best, [(_newton, _Settings(*first)), *stages], effort)
    small = m <= SMALL and effort.rounds > 0
    if small:
        best = visit_small(problem, best, tolerance)
    else:
        best = proximal(problem, best.z, best, first[0], tolerance, first[1])
    if not stages:
        return best
    # What is left of small problems are single lanes.
    capacity = 8 if small else max(8, lanes // 8)

    def proceed(carry):
        return jnp.any(carry[1])

    def body(carry):
        best, waiting = carry
        _, index = jax.lax.top_k(waiting.astype(jnp.int32), capacity)
        some = jax.tree.map(lambda x: x[..., index], best)
        some = _go_through(problem.take(index), some, stages, effort)
        best = jax.tree.map(lambda x, y: x.at[..., index].set(y), best, some)
        return best, waiting.at[index].set(False)

    return jax.lax.while_loop(proceed, body, (best, best.residual > tolerance))[0]


class _State(eqx.Module):
    """What one stage leaves to the next: the best point, a point to start from, the last point of the
    sweeps, and the splitting.
    """

    best: Best
    guess: Array
    swept: Array
    splitting: SplittingState


class _Settings(NamedTuple):
    """How a stage goes: how many iterations it may make, the first damping of the proximal point,
    whether it starts anew and not where it stopped, and whether it is for residuals above the promise.
    """

    steps: int | Array = 0
    damping: float | Array = 0.1
    anew: bool | Array = False
    late: bool | Array = False


Stage = tuple[Callable, _Settings]
"""A method `(problem, state, settings, tolerance) -> state`, and its settings."""


def _stages(problem: DenseProblem, effort: Effort) -> list[Stage]:
    """Everything that there is, in the order of its cost."""
    if effort.rounds == 0:
        return []
    m = problem.q.shape[0]
    stages = [(_newton, _Settings(effort.hard_steps))]
    polish = _least_squares, _Settings(POLISH)
    if intervals(problem) is not None:
        stages += [(_path, _Settings(PATH)), polish]
        if free_rows(problem) is not None and m <= PIVOT_LIMIT:
            stages += [(_pivot, _Settings()), polish]
    for count in range(effort.rounds):
        late, newton = count >= PATIENT, (_newton, _least_squares)[count % 2]
        stages.append((_split, _Settings(SPLITTING, anew=count == 0, late=late)))
        stages.append((newton, _Settings(NEWTON, late=late)))
        if late:
            again = _Settings(SWEEPS * count, anew=count == PATIENT, late=True)
            stages += [(_sweep, again), (_newton, _Settings(2 * NEWTON, late=True))]
    count = modes(problem)
    if count is not None and count <= MODES_LIMIT and m <= PIVOT_LIMIT:
        stages.append((_enumerate, _Settings()))
    return stages


def _go_through(problem: DenseProblem, best: Best, stages: list[Stage], effort: Effort) -> Best:
    """The stages one after the other, each where a lane is still open."""
    tolerance = effort.tolerance
    (m, lanes), dtype = best.z.shape, best.z.dtype
    methods = list(dict.fromkeys(method for method, _ in stages))
    kinds = jnp.asarray([methods.index(method) for method, _ in stages], jnp.int32)
    types = jnp.int32, dtype, bool, bool
    columns = zip(*(settings for _, settings in stages), strict=True)
    table = _Settings(*(jnp.asarray(x, t) for x, t in zip(columns, types, strict=True)))
    branches = [
        lambda state, settings, method=method: method(problem, state, settings, tolerance)
        for method in methods
    ]

    def proceed(carry):
        state, at = carry
        return jnp.any(state.best.residual > tolerance) & (at < len(stages))

    def body(carry):
        state, at = carry
        settings = jax.tree.map(lambda x: x[at], table)
        goal = jnp.where(settings.late, effort.promise, tolerance)
        state = jax.lax.cond(
            jnp.any(state.best.residual > goal),
            lambda state: jax.lax.switch(kinds[at], branches, state, settings),
            lambda state: state,
            state,
        )
        return state, at + 1

    unused = SplittingState(best.z, best.z, jnp.ones(lanes, dtype), jnp.zeros((lanes, m, m), dtype))
    state = _State(best, best.z, best.z, unused)
    return jax.lax.while_loop(proceed, body, (state, jnp.zeros((), jnp.int32)))[0].best


def _replace(state: _State, **fields) -> _State:
    names = tuple(fields)
    return eqx.tree_at(lambda s: [getattr(s, name) for name in names], state, list(fields.values()))


def _newton(problem, state, settings, tolerance):
    best = proximal(problem, state.guess, state.best, settings.steps, tolerance, settings.damping)
    return _replace(state, best=best)


def _least_squares(problem, state, settings, tolerance):
    best = levenberg_marquardt(problem, state.guess, state.best, settings.steps, tolerance)
    return _replace(state, best=best)


def _path(problem, state, settings, tolerance):
    zero = problem.project(jnp.zeros_like(state.guess))
    best, z = follow(problem, zero, state.best, settings.steps, tolerance, 0.2)
    return _replace(state, best=best, guess=z)


def _pivot(problem, state, settings, tolerance):
    del settings
    best, z = pivot(problem, state.best, tolerance)
    return _replace(state, best=best, guess=z)


def _split(problem, state, settings, tolerance):
    splitting = jax.lax.cond(
        settings.anew,
        lambda state: begin(problem, state.best.z, 0.3),
        lambda state: state.splitting,
        state,
    )
    best, splitting = iterate(problem, state.best, splitting, settings.steps, tolerance, 1.6)
    return _replace(state, best=best, guess=splitting.y, splitting=splitting)


def _sweep(problem, state, settings, tolerance):
    z = jnp.where(settings.anew, state.guess, state.swept)
    best, z = sweeps(problem, z, state.best, settings.steps, tolerance, 8)
    return _replace(state, best=best, guess=z, swept=z)


def _enumerate(problem, state, settings, tolerance):
    del settings
    return _replace(state, best=enumerate_modes(problem, state.best, tolerance))
