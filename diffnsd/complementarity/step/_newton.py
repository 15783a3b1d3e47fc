"""The step solver, also the first one for given matrices: Newton's method, and splitting where it fails.

Newton's method on the natural map, with the proximal term of `_elimination`, needs a few iterations
from a warm start and fails on some redundant or badly started problems. Operator splitting (ADMM with
the De Saxcé shift refreshed in every iteration) is slow but nearly always converges; where it does not,
impulses are changed at random. Only the residual of the natural map decides whether a problem is solved.

Redundant contacts. Where impulses are not unique (a face on its four corners), the motion is not
unique either under sliding friction. The solver looks for the limit, as `tilt -> 0`, of the solution
of the tilted problem `F(v, z) + tilt z = 0`, in which every contact has a small compliance relative
to its own. Without friction the limit has the least norm of all impulses that produce the same motion.
It depends only on the problem, not on the start or the method. Newton's method solves the tilted
problem to rounding accuracy and steps from there to the limit, along the derivative by the tilt. Where
velocities are as small as those that the compliance allows (a corner that slips by 1e-7 m/s while the
face settles) one step does not reach the limit, and a smaller tilt is taken. A start that already is the
limit is recognised.

Newton's method on the natural map of the tilted problem loses its way between modes: the map is steep
across `W` and flat along redundant impulses, by 1/tilt. With `rho` larger by 1/sqrt(tilt) both are equally
far from one, and the path from a large tilt to a small one is followed in about 15 iterations. A step that
makes the residual larger is cut just behind the place where the map bends, and the next one taken from there.

References: P. Alart, A. Curnier (1991), doi:10.1016/0045-7825(91)90022-X; J. Carpentier,
Q. Le Lidec, L. Montaut (2024), arXiv:2405.17020.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._jax import staged, where
from ..problem._dense import Statistics
from ..problem._elimination import back_substitute, blockwise, eliminate, linearised
from ..problem._natural_map import (
    argument,
    derivative,
    distance_of_choice,
    distances,
    projected,
    tilt_for,
    wedged,
    within,
)
from ..problem._problem import MixedProblem, moved
from ._hard_problems import capacity, is_gathered, on_hard_problems
from ._point import (
    Iterate,
    Point,
    StepOptions,
    Task,
    by_block,
    is_redundant,
    least_tilt,
    prepare,
    start,
    straight_part,
    visit,
)
from ._restarts import after_splitting, scattered, softest


def solve_step_problem(problem: MixedProblem, z0, options: StepOptions):
    """Solves the step problems of a batch.

    **Returns:** `v`, `z`, `Statistics`, and `(v, z)` of the tilted problem.
    """
    task, iterate, more = prepare(problem), start(problem, z0), options.newton_steps
    if is_gathered(problem.rhs.shape[1:]) or options.rounds == 0:
        # The last few of a batch cost less in a small group than iterations of all.
        left = capacity(problem.rhs.shape[-1]) if options.rounds else 0
        iterate, more = _newton(task, iterate, options, more, left=left, cuts=False), 0

    def unfinished(iterate):
        return jnp.any(~iterate.done & (iterate.tries < options.rounds))

    def hard(task, iterate, count):
        return _hard(task, iterate, count, options, more)

    def round_(iterate):
        return on_hard_problems(hard, task, iterate, options.rounds)

    if options.rounds:
        # What is not a number has no solution.
        tries = jnp.where(jnp.isfinite(task.size), iterate.tries, options.rounds)
        iterate = dataclasses.replace(iterate, tries=tries)
        iterate = jax.lax.while_loop(unfinished, round_, iterate)
    return _outcome(task, iterate, options)


def least_norm(problem: MixedProblem, v, z, stats: Statistics, options: StepOptions):
    """Moves from any solution to that of least norm; keeps the given one where that fails.

    **Returns:** as `solve_step_problem`.
    """
    task = prepare(problem)
    iterate = _newton(task, softest(task, start(problem, z)), options, PATH)
    new_v, new_z, new, tilted = _outcome(task, iterate, options)
    # This only moves solutions: a problem that the solver has not solved stays unsolved.
    found = stats.converged & new.converged & iterate.done & iterate.has_tilted
    new = eqx.tree_at(
        lambda s: (s.iterations, s.solved_by),
        new,
        (stats.iterations + new.iterations, stats.solved_by),
    )
    v, z, stats = where(found, (new_v, new_z, new), (v, z, stats))
    return v, z, stats, where(found, tilted, (v, z))


def _outcome(task: Task, iterate: Iterate, options: StepOptions):
    v, z = best = iterate.best_v, iterate.best_z
    tilted_z = where(iterate.has_tilted, iterate.tilted_z, z)
    tilted_v = where(iterate.has_tilted, moved(task.mobility, task.problem.load(tilted_z)), v)
    return *best, _statistics(task, iterate, options, tilted_v), (tilted_v, tilted_z)


def _newton(
    task: Task,
    iterate: Iterate,
    options: StepOptions,
    limit: Array | int,
    weaken: Array | float = 1.0,
    left: int = 0,
    cuts: bool = True,
):
    """Evaluates the iterate and takes a Newton step, `limit` times, then evaluates it again.

    Ends where at most `left` problems are not done. `cuts`: whether some `follow`, so that steps may be cut.
    """

    def some(it):
        return jnp.sum(~it.done, dtype=jnp.int32) > left if left else jnp.any(~it.done)

    def proceed(carry):
        it, since = carry
        return (since <= limit) & ((since == 0) | some(it))

    def body(carry):
        it, since = carry
        it, point = visit(task, it, (since == 0) | some(it), options)
        pending = some(it) & (since < limit)
        it = jax.lax.cond(
            pending,
            lambda it, point: _advance(task, it, point, options, weaken, pending, cuts),
            lambda it, _: it,
            it,
            point,
        )
        return it, since + 1

    return jax.lax.while_loop(proceed, body, (iterate, jnp.zeros((), jnp.int32)))[0]


class _Stage(eqx.Module):
    """What the next Newton step of each problem is for; arrays of booleans, and its regularisation `eps`.

    - `solved`: the start already solves `F = 0`, and is looked at for a null-space part.
    - `on_path`: near enough to a tilted solution to follow it to a smaller tilt. `landing`: at the last one.
    - `short`: the limit is not reached in the step from it. `more`: and a smaller tilt can be tried.
    - `longer`: the last step made the residual larger and is cut where the map bends.
    """

    solved: Array
    on_path: Array
    landing: Array
    short: Array
    more: Array
    longer: Array
    eps: Array


def _stage(task: Task, it: Iterate, point: Point, options: StepOptions, weaken) -> _Stage:
    tilt = tilt_for(task.size.dtype)
    norm, residual = point.norm, point.residual
    far = options.damping * weaken**0.5 * jnp.minimum(residual, 1.0)
    # The tilt regularises too: the first steps from a warm start, mostly all, are Newton's own.
    far = jnp.where(it.is_tilted & (it.passes < 2), 0, far)
    least = jnp.where(it.is_tilted, 0, options.proximal * weaken)
    on_path = (it.tilt > tilt) & (residual < NEAR)
    solved = ~it.done & it.is_tilted & (it.passes == 0) & (norm <= options.tolerance) & point.exact
    eps = jnp.where(solved, SLIGHT * tilt, jnp.maximum(least, jnp.where(on_path, 0, far)))

    # Where rounding keeps the residual from falling further, it counts as small enough.
    rounding = max(0.01 * options.tolerance, 16 * float(jnp.finfo(task.size.dtype).eps))
    stalls = (residual <= rounding) & (residual >= 0.25 * it.before)
    ended = stalls | (residual <= LANDED * it.tilt)
    landing = ~it.done & it.is_tilted & (it.tilt <= tilt) & ended & ~solved
    # The limit is too far from the tilted solution, even polished: a smaller tilt.
    landed = ~it.done & it.has_tilted & ~it.is_tilted
    short = landed & (it.before < jnp.inf)
    eps = jnp.where(landed, RESTRAINED * it.tilted_at, eps)
    more = short & (it.tilted_at > least_tilt(task.size.dtype))
    longer = it.follows & (it.is_tilted | ~it.has_tilted) & ~landing & ~solved & ~on_path
    longer &= (residual > it.before) & ~it.is_cut
    # Rounding bends steps that are shorter.
    least = 1e5 * float(jnp.finfo(task.size.dtype).eps)
    longer &= ~within(it.taken, least, point.z, task.size)
    return _Stage(solved, on_path, landing, short, more, longer, eps)


def _advance(
    task: Task, it: Iterate, point: Point, options: StepOptions, weaken, pending: Array, cuts: bool
) -> Iterate:
    """Takes a Newton step with one of four right-hand sides.

    - `−F` of the tilted problem, towards its solution. A step that makes it larger is cut at a bend.
    - At that solution (`landing`), in addition the derivative by the tilt, times the tilt: towards the limit.
    - `−F`, towards a solution where no tilt is left, and to polish a limit.
    - `−eps z` at a start that already solves `F = 0`: the step `−U z`, `U = eps (J + eps)^-1`, is minus the
      null-space part of `z`. Where that is zero, the start is the limit and `stays`.
    """
    tilt, stage = tilt_for(task.size.dtype), _stage(task, it, point, options, weaken)
    solved, landing, longer, eps = stage.solved, stage.landing, stage.longer, stage.eps

    # Towards the tilted solution, and from there to the limit, with the natural map of the tilted problem.
    towards = it.is_tilted & ~solved
    right = by_block(
        lambda f, g, z: -jnp.where(solved, eps[None, None] * z, jnp.where(towards, g, f)),
        point.f,
        point.tilted_f,
        point.z,
    )
    w = where(solved, _creep(task, point, tilt), point.w)
    x = where(towards, point.tilted_x, point.x)
    s = jnp.where(towards, it.stride, 1)
    keeps = jnp.where(towards, 1 - s * it.tilt, 1)
    drift = jnp.where(landing, s * it.tilt, 0)
    dz = _newton_step(task, point.z, w, x, s, keeps, drift, right, eps, pending)
    z = by_block(jnp.add, point.z, dz)
    slight = 10 * max(options.tolerance, SLIGHT * tilt)
    stays = solved & within(dz, slight, point.z, task.size)
    # To first order, the tilted solution of a limit `z` is `z − (tilt / eps) U z`.
    tilted_z = where(landing, point.z, by_block(lambda z, d: z + d / SLIGHT, point.z, dz))
    # Rounding must not move `z` out of the sets.
    z = where(landing, by_block(projected, task.problem.blocks, z), z)
    softer = jnp.where(stage.on_path, jnp.maximum(tilt, it.tilt / SOFTER), it.tilt)

    z = where(stage.more, it.tilted_z, z)
    if cuts:
        part = staged(jnp.any(longer), straight_part, task, it, point)
        back = by_block(lambda z, d: z - (1 - part)[None, None] * d, point.z, it.taken)
        z = where(longer, back, z)
    taken = by_block(jnp.subtract, z, point.z)
    fresh = landing | stage.short | stage.on_path
    return dataclasses.replace(
        it,
        z=where(it.done | solved, it.z, z),
        before=jnp.where(fresh, jnp.inf, point.residual),
        taken=taken,
        start_w=point.w,
        follows=it.follows | stage.more,
        is_cut=longer,
        passes=it.passes + jnp.where(it.done, 0, 1),
        tilt=jnp.where(landing, 0, jnp.where(stage.more, it.tilted_at / FINER, softer)),
        tilted_z=where(landing | stays, tilted_z, it.tilted_z),
        tilted_at=jnp.where(landing, it.tilt, jnp.where(stays, tilt, it.tilted_at)),
        has_tilted=(it.has_tilted & (it.done | ~stage.short)) | landing | stays,
        done=it.done | stays,
    )


def _hard(task: Task, iterate: Iterate, count: Array, options: StepOptions, more: int):
    """One round of Newton's method. The first continues from the current point, with `more` further steps.

    Where contacts may be redundant, the second round follows the solution of the tilted problem from a
    large tilt, at which it is unique. Later rounds start from splitting and, in turn, from the best impulses
    changed at random. With contacts that are redundant up to rounding, the iteration stalls at a residual set
    by the regularisation, and cycles without it; so the rounds try several strengths. The first rounds look
    for the solution of least norm, later ones accept any solution. One of the splittings is that of the
    convex problem without lift; of redundant contacts a late one, so that fewer solutions come from there.
    """
    redundant = is_redundant(task.problem)
    last = 1 + redundant
    turn = jnp.where(count > last, last + (count - last) // 2, count)
    convex = turn == last + 1 + 2 * redundant
    starts = [
        lambda it: it,
        lambda it: softest(task, it),
        lambda it: after_splitting(task, it, options, ~convex),
    ]
    starts = starts if redundant else starts[::2]
    starts = [*starts, lambda it: scattered(task, it, turn)][: options.rounds]
    which = jnp.where(count > last, last + (count - last) % 2, count)
    iterate = jax.lax.switch(which, starts, iterate)
    tilt = jnp.where((count == 2) & redundant, tilt_for(task.size.dtype), 0)
    # After splitting, the tilted solution of the last search no longer belongs to the point.
    known = iterate.has_tilted & (iterate.done | (count == 0))
    iterate = dataclasses.replace(
        iterate,
        tilt=jnp.where(count > 1, tilt, iterate.tilt),
        has_tilted=known,
        follows=(iterate.follows & (count == 1)) | (count > last),
        before=jnp.where(count == 0, iterate.before, jnp.inf),
        is_cut=iterate.is_cut & (count == 0),
    )
    weaken = 0.03 ** (turn % 4).astype(task.size.dtype)
    weaken = jnp.where(which > last, 1, weaken)
    first = min(GIVE_UP, options.hard_steps) if redundant else options.hard_steps
    limit = jnp.where(count == 0, first + more, options.hard_steps)
    limit = jnp.where((count == 1) & redundant, PATH, limit)
    return _newton(task, iterate, options, limit, weaken)


GIVE_UP = 12
"""Iterations of the first round, where contacts may be redundant: what takes longer, the path does sooner."""

LANDED = 1e-9
"""Residual of the tilted problem, relative to the tilt, at which its null-space part is accurate."""

SLIGHT = 1e-4
"""`eps`, relative to the tilt, with which a start is tested for a null-space part."""

RESTRAINED = 100.0
"""`eps` of the step that polishes a limit, relative to the tilt it comes from."""

NEAR = 0.1
"""Residual below which the path of tilted solutions is followed to a smaller tilt."""

CONTRADICTION = 1e-5
"""Residual of a limit, relative to its tilt, that shows that contacts ask for velocities which no motion has:
an edge that strikes and sticks while not quite level. A change of slip is then as near as the residual."""

PATH = 40
"""The most iterations along a path of tilted solutions."""

SOFTER, FINER = 6.0, 10.0
"""Factors by which the tilt falls: per iteration on the path of tilted solutions, and where a limit is not
reached from the last one."""


def _creep(task: Task, point: Point, tilt: float):
    """Velocities, with those of the tilted solution in place of rounding errors where a contact sticks."""
    return by_block(
        lambda inside, z, rho, w: jnp.where(inside[None], -tilt * z / rho[None], w),
        point.inside,
        point.z,
        task.rho,
        point.w,
    )


def _newton_step(task: Task, z, w, x, s, keeps, drift, right, eps, pending):
    """Solves `(J + eps) dz = right`.

    The velocity is recomputed from the multipliers: dv carries the rounding error of the proximal term.
    """
    problem = task.problem
    pairs = staged(
        pending,
        lambda p, w, x, r, s: by_block(derivative, p.blocks, w, x, tuple(s[None] * a for a in r)),
        problem,
        w,
        x,
        task.rho,
        s,
    )
    system = linearised(
        problem, [keeps[None, None, None] * d for d, _ in pairs], [n for _, n in pairs]
    )
    right = by_block(
        lambda r, d, z: r + drift[None, None] * blockwise(d, z), right, [d for d, _ in pairs], z
    )
    factors = eliminate(system, eps, pending)
    return back_substitute(factors, system, None, right, pending)[1]


def _statistics(task: Task, it: Iterate, options: StepOptions, tilted_v: Array) -> Statistics:
    w = task.problem.local(it.best_v)
    x = by_block(argument, task.problem.blocks, w, it.best_z, task.rho)
    margin, violation = distances(task.problem, w, it.best_z, x, task.rho, task.size)
    if is_redundant(task.problem):
        # The last rounds accept any solution, and its derivative is then one of several.
        tilted_w = task.problem.local(tilted_v)
        tilted_x = by_block(argument, task.problem.blocks, tilted_w, it.tilted_z, task.rho)
        choice = distance_of_choice(task.problem, x, tilted_x, task.size, it.tilted_at)
        unloaded = within(it.best_z, 0, it.best_z, task.size)
        rounding = 64 * float(jnp.finfo(choice.dtype).eps)
        # A start that is the limit, recognised in one pass, has the residual with which it was accepted.
        agrees = it.best_residual <= jnp.maximum(CONTRADICTION * it.tilted_at, rounding)
        agrees |= it.passes <= 1
        margin = jnp.where(unloaded, margin, jnp.where(it.has_tilted & agrees, choice, 0))
    link = jnp.where(it.tries <= 1 + is_redundant(task.problem), 1, options.splitting)
    solved_by = jnp.where(it.passes == 0, 0, link).astype(jnp.int32)
    done = it.best_residual <= options.accept_tolerance
    jams = wedged(task.problem, task.mobility, it.best_z)
    return Statistics(it.best_residual, violation, it.passes, margin, solved_by, done, jams)
