"""Operator splitting: the alternating direction method of multipliers with the De Saxcé shift.

    (W + sigma) z = sigma (y − d) − q − lift,     y = P_K(z + d),     d ← d + z − y

At the fixed point `z = y` and `w + lift = −sigma d`. The velocity that the lift needs is refreshed in
every iteration, at no cost: `w = sigma (y − d − z) − lift`. One inverse serves until the penalty
changes; W keeps its unsymmetric part.

Reference: J. Carpentier, Q. Le Lidec, L. Montaut (2024), arXiv:2405.17020.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._jax import one_by_one
from .._dense import DenseProblem, norm, ratio
from ._base import AbstractSolver, Best, check_tolerance, start

BLOCK = 25
"""Iterations between two tests of the residual and two changes of the penalty."""


class Splitting(AbstractSolver):
    """Operator splitting (ADMM) with an adaptive penalty.

        K* ∋ w + lift(w) e_N ⟂ z ∈ K    as    z = (W + sigma)^-1 (...),    y = P_K(...)

    Two products with a matrix and a projection per iteration: dependable on redundant contacts at a
    loose tolerance, slow to a tight one. It converges for monotone problems.

    **Arguments:** `tolerance`: residual to reach (`None`: 1e-9 in float64, 1e-5 in float32);
    `steps`: largest number of iterations; `relaxation` in (0, 2); `penalty`: the first one, relative
    to the diagonal of W.
    """

    tolerance: float | None = eqx.field(default=None, static=True)
    steps: int = eqx.field(default=3000, static=True)
    relaxation: float = eqx.field(default=1.6, static=True)
    penalty: float = eqx.field(default=0.3, static=True)

    def __check_init__(self):
        check_tolerance(self.tolerance)
        if not 0 < self.relaxation < 2:
            raise ValueError(f"relaxation must lie in (0, 2), got {self.relaxation}.")

    def dense(self, problem: DenseProblem, z0: Array) -> Best:
        best = start(problem, z0)
        state = begin(problem, best.z, self.penalty)
        best, _ = iterate(problem, best, state, self.steps, self.limit(z0.dtype), self.relaxation)
        return best


class SplittingState(eqx.Module):
    """`y`, scaled dual `d`, last `z`, penalty (relative, per lane) and `(W + sigma)^-1`."""

    y: Array
    dual: Array
    penalty: Array
    inverse: Array


def begin(problem: DenseProblem, y: Array, penalty: float) -> SplittingState:
    """The state at a point: the dual variable is that of its velocity."""
    rho = problem.steps()
    level = jnp.full(y.shape[1:], penalty, y.dtype)
    dual = -problem.lift(problem.velocity(y)) * rho / level[None]
    return SplittingState(y, dual, level, inverse(problem, rho, level))


def inverse(problem: DenseProblem, rho: Array, penalty: Array) -> Array:
    """`(W + penalty / rho)^-1`."""
    m = problem.q.shape[0]
    added = (penalty[None] / rho).T[:, None, :] * jnp.eye(m, dtype=rho.dtype)[None]
    out = one_by_one(jnp.linalg.inv, problem.W + added)
    return jnp.where(jnp.all(jnp.isfinite(out), axis=(1, 2), keepdims=True), out, 0)


def iterate(
    problem: DenseProblem, best: Best, state: SplittingState, steps: int, tolerance, relaxation
) -> tuple[Best, SplittingState]:
    """Blocks of iterations until all lanes have converged, `steps` in all at most."""
    rho = problem.steps()

    def step(sigma, inverse, y, dual, w):
        shift = problem.lift(w) - w
        z = jnp.einsum("lij,jl->il", inverse, sigma * (y - dual) - problem.q - shift)
        w = sigma * (y - dual - z) - shift
        moved = relaxation * z + (1 - relaxation) * y + dual
        new = problem.project(moved)
        return z, new, moved - new, w

    def block(carry):
        best, state, count = carry
        sigma = state.penalty[None] / rho

        def body(_, inner):
            y, dual, w, _, _ = inner
            z, new, dual, w = step(sigma, state.inverse, y, dual, w)
            return new, dual, w, z, new - y

        zero = jnp.zeros_like(state.y)
        w = problem.velocity(state.y)
        first = state.y, state.dual, w, zero, zero
        y, dual, _, z, change = jax.lax.fori_loop(0, BLOCK, body, first)
        best = best.offer(y, problem.residual(y, problem.velocity(y)), tolerance)
        best = best.moved(y - state.y)
        primal = ratio(norm(z - y), jnp.maximum(norm(z), norm(y)))
        slack = ratio(norm(sigma * change), norm(sigma * dual))
        factor = jnp.clip(jnp.sqrt(ratio(primal, jnp.maximum(slack, 1e-30))), 0.2, 5.0)
        change_penalty = ((factor > 2) | (factor < 0.5)) & (best.residual > tolerance)
        penalty = jnp.clip(jnp.where(change_penalty, factor, 1) * state.penalty, 1e-6, 1e6)
        dual = dual * (state.penalty / penalty)[None]
        matrix = jax.lax.cond(
            jnp.any(change_penalty),
            lambda p: inverse(problem, rho, p),
            lambda _: state.inverse,
            penalty,
        )
        best = best.count(tolerance, BLOCK)
        return best, SplittingState(y, dual, penalty, matrix), count + BLOCK

    def proceed(carry):
        best, _, count = carry
        return jnp.any(best.residual > tolerance) & (count < steps)

    carry = best, state, jnp.zeros((), jnp.int32)
    best, state, _ = jax.lax.while_loop(proceed, block, carry)
    return best, state
