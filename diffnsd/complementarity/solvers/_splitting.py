"""Operator splitting: the alternating direction method of multipliers with the De Saxcé shift.

    (W + sigma) z = sigma (y − d) − q − lift,     y = P_K(z + d),     d ← d + z − y

At the fixed point `z = y` and `w + lift = −sigma d`. The velocity that the lift needs is refreshed in
every iteration, at no cost: `w = sigma (y − d − z) − lift`. One inverse is used until the penalty
changes; W keeps its unsymmetric part.

Reference: J. Carpentier, Q. Le Lidec, L. Montaut (2024), arXiv:2405.17020.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._jax import one_by_one
from ..problem._dense import DenseProblem, norm, ratio
from ._base import AbstractContactSolver, check_tolerance

BLOCK = 25
"""Iterations between two tests of the residual and two changes of the penalty."""


class Splitting(AbstractContactSolver):
    """Operator splitting (ADMM) with an adaptive penalty.

        K* ∋ w + lift(w) e_N ⟂ z ∈ K    as    z = (W + sigma)^-1 (...),    y = P_K(...)

    One product with a matrix and one projection per iteration: reliable on redundant contacts at a loose
    tolerance, slow to reach a tight one. It converges for monotone problems.

    **Arguments:** `tolerance`: residual to reach (`None`: 1e-9 in float64, 1e-5 in float32);
    `steps`: largest number of iterations; `relaxation` in (0, 2); `penalty`: initial penalty, relative
    to the diagonal of W.
    """

    steps: int = eqx.field(default=3000, static=True)
    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)
    relaxation: float = eqx.field(default=1.6, static=True, kw_only=True)
    penalty: float = eqx.field(default=0.3, static=True, kw_only=True)

    explores = True
    block = BLOCK

    def __check_init__(self):
        check_tolerance(self.tolerance)
        if not 0 < self.relaxation < 2:
            raise ValueError(f"relaxation must lie in (0, 2), got {self.relaxation}.")

    def init(self, problem: DenseProblem, z0: Array) -> "SplittingState":
        """Initial state, with the dual variable of the velocity at `z0`."""
        rho = problem.steps()
        level = jnp.full(z0.shape[1:], self.penalty, z0.dtype)
        w = problem.velocity(z0)
        dual = -problem.lift(w) * rho / level[None]
        (m, lanes), stale = z0.shape, jnp.ones(z0.shape[1:], bool)
        return SplittingState(z0, dual, level, jnp.zeros((lanes, m, m), z0.dtype), stale)

    def step(self, problem: DenseProblem, state: "SplittingState") -> "SplittingState":
        rho = problem.steps()
        sigma = state.penalty[None] / rho
        matrix = jax.lax.cond(
            jnp.any(state.stale),
            lambda: inverse(problem, rho, state.penalty),
            lambda: state.inverse,
        )

        def once(_, inner):
            y, dual, w, _, _ = inner
            shift = problem.lift(w) - w
            z = jnp.einsum("lij,jl->il", matrix, sigma * (y - dual) - problem.q - shift)
            w = sigma * (y - dual - z) - shift
            moved = self.relaxation * z + (1 - self.relaxation) * y + dual
            new = problem.project(moved)
            return new, moved - new, w, z, new - y

        zero = jnp.zeros_like(state.z)
        first = state.z, state.dual, problem.velocity(state.z), zero, zero
        y, dual, _, z, change = jax.lax.fori_loop(0, BLOCK, once, first)
        primal = ratio(norm(z - y), jnp.maximum(norm(z), norm(y)))
        slack = ratio(norm(sigma * change), norm(sigma * dual))
        factor = jnp.clip(jnp.sqrt(ratio(primal, jnp.maximum(slack, 1e-30))), 0.2, 5.0)
        stale = (factor > 2) | (factor < 0.5)
        penalty = jnp.clip(jnp.where(stale, factor, 1) * state.penalty, 1e-6, 1e6)
        dual = dual * (state.penalty / penalty)[None]
        return SplittingState(y, dual, penalty, matrix, stale)


class SplittingState(eqx.Module):
    """`z = y`, scaled dual `d`, penalty (relative, per problem), `(W + sigma)^-1`, and whether the
    penalty has changed since that was computed.
    """

    z: Array
    dual: Array
    penalty: Array
    inverse: Array
    stale: Array


def inverse(problem: DenseProblem, rho: Array, penalty: Array) -> Array:
    """`(W + penalty / rho)^-1`."""
    m = problem.q.shape[0]
    added = (penalty[None] / rho).T[:, None, :] * jnp.eye(m, dtype=rho.dtype)[None]
    out = one_by_one(jnp.linalg.inv, problem.W + added)
    return jnp.where(jnp.all(jnp.isfinite(out), axis=(1, 2), keepdims=True), out, 0)
