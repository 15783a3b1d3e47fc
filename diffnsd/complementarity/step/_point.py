"""Points of the search for the solution of a step problem: how they are evaluated, and the best so far."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._jax import staged, where
from ..._numerics import matrix_inverse
from ..problem._natural_map import (
    argument,
    projected,
    relative,
    scale,
    shares,
    tilt_for,
    within,
)
from ..problem._problem import MixedProblem, moved


class StepOptions(eqx.Module):
    """The settings of `Auto` for a dtype; `splitting`: `solved_by` where splitting was needed, else 1."""

    tolerance: float
    accept_tolerance: float
    proximal: float
    damping: float = 0.1
    newton_steps: int = 5
    hard_steps: int = 25
    splitting_steps: int = 50
    rounds: int = 20
    relaxation: float = 1.6
    penalty: float = 1.0
    splitting: int = 1


class Task(eqx.Module):
    """A problem with the quantities that are computed from it once.

    **Arguments:** `mobility`: `A^-1`; `size`: `|rho w_free|`, see `scale`; `weights`: of residuals, `shares`.
    """

    problem: MixedProblem
    mobility: Array | None
    rho: tuple[Array, ...]
    size: Array
    weights: tuple[Array, ...] | None


class Iterate(eqx.Module):
    """The current point, the best point evaluated so far, and the tilted solution.

    **Arguments:**

    - `z`: the point evaluated next. `taken`: the step that led to it, `before`: the residual it started
      from, infinite where another problem was solved there. `start_w`: the velocities from which it
      came; `is_cut`: whether it was shortened.
    - `follows`: whether a step that makes the residual larger is cut where the natural map bends, as on the
      path of tilted solutions, where the map has the `stride` of the tilt.
    - `tilt`: tilt of the problem being solved, 0 for none. `tilted_z`: the solution at the last tilt,
      `tilted_at`, valid where `has_tilted`.
    - `done`: whether the best point is the solution sought.
    """

    z: tuple[Array, ...]
    best_v: Array
    best_z: tuple[Array, ...]
    best_residual: Array
    passes: Array
    tries: Array
    before: Array
    taken: tuple[Array, ...]
    start_w: tuple[Array, ...]
    is_cut: Array
    follows: Array
    tilted_z: tuple[Array, ...]
    tilted_at: Array
    tilt: Array
    has_tilted: Array
    done: Array

    @property
    def is_tilted(self) -> Array:
        return self.tilt > 0

    @property
    def stride(self) -> Array:
        """Factor of `rho` in the natural map of the tilted problem.

        `W` is smallest, zero, where impulses are redundant, and there the tilt takes its place: the
        geometric mean of the extremes is the step with which Newton's method finds the modes of both.
        """
        far = self.follows & self.is_tilted
        return jnp.where(far, 1 / jnp.sqrt(jnp.where(far, self.tilt, 1)), 1)


class Point(eqx.Module):
    """The natural map at a point.

    **Arguments:**

    - `inside`: which contacts have their argument `x` in the set. `exact`: whether `f` is below the
      tolerance relative to `z` itself.
    - `tilted_x`, `tilted_f`: `x` and `f` of the tilted problem being solved, with its own `rho` (`stride`).
    - `norm`: relative residual. `residual`: the same for the tilted problem being solved.
    """

    v: Array
    z: tuple[Array, ...]
    w: tuple[Array, ...]
    x: tuple[Array, ...]
    f: tuple[Array, ...]
    inside: tuple[Array, ...]
    tilted_x: tuple[Array, ...]
    tilted_f: tuple[Array, ...]
    exact: Array
    norm: Array
    residual: Array


def least_tilt(dtype) -> float:
    """The smallest tilt tried: below it, rounding decides the part of the impulses that it selects."""
    return 1.1e-10 if jnp.finfo(dtype).bits >= 64 else 1.1e-4


def is_redundant(problem: MixedProblem) -> bool:
    """Whether contacts may be redundant: a single contact counts as regular."""
    return sum(block.offset.shape[1] for block in problem.blocks) > 1


def visit(task: Task, it: Iterate, pending, options) -> tuple[Iterate, Point]:
    """Evaluates the natural map at the iterate, in small stages, and keeps the best point.

    The best point of a batch element is final once the element is done: converged, and not on the way
    to the solution of least norm. Where all impulses are zero there is nothing to choose. The limit of the
    tilted solution is polished once where its error is not small relative to the impulses themselves. It
    then only has to meet the accept tolerance: rounding of gaps may prevent a smaller residual, and a better
    point would be another solution, created by the rounding.
    """
    problem, z = task.problem, it.z
    load = staged(pending, lambda p, z: p.load(z), problem, z)
    v = staged(pending, moved, task.mobility, load)
    w = staged(pending, lambda p, v: p.local(v), problem, v)
    x = staged(
        pending, lambda p, w, z, r: by_block(argument, p.blocks, w, z, r), problem, w, z, task.rho
    )

    def mapped(p, x, z):
        on_sets = by_block(projected, p.blocks, x)
        inside = by_block(lambda a, b: jnp.all(a == b, axis=0), on_sets, x)
        return by_block(jnp.subtract, z, on_sets), inside

    f, inside = staged(pending, mapped, problem, x, z)

    def tilted(p, x, z, tilt, s):
        tilt, s = tilt[None, None], s[None, None]
        x = by_block(lambda x, z: z + s * (x - z - tilt * z), x, z)
        return x, by_block(jnp.subtract, z, by_block(projected, p.blocks, x))

    tilted_x, tilted_f = x, f
    if is_redundant(problem):
        tilted_x, tilted_f = staged(pending, tilted, problem, x, z, it.tilt, it.stride)

    def measured(f, g, z, size, weights, s):
        exact = within(f, options.tolerance, z, size)
        if weights is not None:
            f = by_block(lambda x, w: w[None] * x, f, weights)
        return relative(f, z, size), relative(g, z, size) / s, exact, within(z, 0, z, size)

    norm, tilted_norm, exact, unloaded = staged(
        pending, measured, f, tilted_f, z, task.size, task.weights, it.stride
    )
    settled = ~it.is_tilted | unloaded
    polished = it.has_tilted & (it.before < jnp.inf)
    enough = jnp.where(polished, options.accept_tolerance, options.tolerance)
    reached = settled & (norm <= enough) & (exact | polished | ~it.has_tilted)
    better = ~it.done & (reached | (norm < it.best_residual))
    v_z_norm = where(better, (v, z, norm), (it.best_v, it.best_z, it.best_residual))
    it = eqx.tree_at(
        lambda i: (i.best_v, i.best_z, i.best_residual, i.done), it, (*v_z_norm, it.done | reached)
    )
    return it, Point(v, z, w, x, f, inside, tilted_x, tilted_f, exact, norm, tilted_norm)


def prepare(problem: MixedProblem) -> Task:
    """Computes the quantities needed once per problem."""
    rho, mobility = problem.penalties(), None
    some = jnp.any(jnp.concatenate(rho) > 0)
    if problem.matrix is not None:
        mobility = staged(some, matrix_inverse, problem.matrix)
    free = staged(some, moved, mobility, problem.rhs)
    size, speed = staged(some, scale, problem, free, rho)
    weights = shares(rho, size, speed) if is_redundant(problem) else None
    return Task(problem, mobility, rho, size, weights)


def start(problem: MixedProblem, z0) -> Iterate:
    """Initial iterate: the warm start projected on the sets, its residual not evaluated yet."""
    z = by_block(projected, problem.blocks, z0)
    lanes, v = problem.rhs.shape[1:], problem.rhs
    zero, no = jnp.zeros(lanes, jnp.int32), jnp.zeros(lanes, bool)
    unknown = jnp.full(lanes, jnp.inf, v.dtype)
    tilt = jnp.full(lanes, tilt_for(v.dtype) if is_redundant(problem) else 0.0, v.dtype)
    still = by_block(jnp.zeros_like, z)
    return Iterate(
        z, v, z, unknown, zero, zero, unknown, still, still, no, no, z, tilt, tilt, no, no
    )


def straight_part(task: Task, it: Iterate, point: Point) -> Array:
    """The part of the last step up to just behind the first place where the natural map bends, `(batch,)`.

    A contact that begins to slip, stops, opens or turns round changes the derivative of the map there. The
    next Newton step is computed just behind that place, even if the residual is larger. (J. Katzenelson,
    1965, Bell System Technical Journal 44, 1605.) The map bends where the projection departs from its change
    at the start of the step by `BENT` of the step; the curved part of a friction cone may do so too.
    """
    ends = it.start_w, point.w, by_block(jnp.subtract, point.z, it.taken), point.z
    tilt, stride, small = it.tilt[None, None], it.stride[None, None], 0.5**HALVINGS

    def after(part):
        def each(block, rho, w0, w1, z0, z1):
            z = z0 + part[None, None] * (z1 - z0)
            x = argument(block, w0 + part[None, None] * (w1 - w0), z, rho)
            return projected(block, z + stride * (x - z - tilt * z))

        return by_block(each, task.problem.blocks, task.rho, *ends)

    # One loop for the value, the slope and the halvings, so that `after` is compiled once.
    def look(i, carry):
        low, high, first, slope = carry
        part = jnp.where(i == 0, 0, jnp.where(i == 1, small, (low + high) / 2))
        there = after(part)
        first = where(i == 0, there, first)
        slope = where(i == 1, by_block(lambda p, q: (p - q) / small, there, first), slope)
        bends = by_block(lambda p, q, d: p - q - part[None, None] * d, there, first, slope)
        straight = within(bends, BENT * part, it.taken, task.size)
        low = jnp.where((i > 1) & straight, part, low)
        return low, jnp.where((i > 1) & ~straight, part, high), first, slope

    zero, one = jnp.zeros_like(point.norm), jnp.ones_like(point.norm)
    nothing = by_block(jnp.zeros_like, point.z)
    return jax.lax.fori_loop(0, HALVINGS + 2, look, (zero, one, nothing, nothing))[1]


def by_block(function, *parts):
    """Applies a function block by block."""
    return tuple(function(*part) for part in zip(*parts, strict=True))


BENT, HALVINGS = 0.01, 10
"""Change of the projection along a step that shows that it bends, relative to the step, and the halvings that
find the place."""
