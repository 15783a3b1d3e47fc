"""Semismooth Newton on the natural map, damped in two ways.

The natural map `F` has the generalised Jacobian `G = 1 − D + N W` (`_natural_map`), singular where
contacts are redundant. Two remedies, each of which solves what the other does not:

* Levenberg and Marquardt: `(G^T G + lambda) dz = −G^T F`;
* the proximal point: the problem with `W + alpha` and `q − alpha z_k` instead, `alpha` smaller
  after every success. It does not square the condition number, and is regular enough for full steps.

References: P. Alart, A. Curnier (1991), doi:10.1016/0045-7825(91)90022-X; F. Facchinei, J.-S. Pang,
Finite-dimensional variational inequalities and complementarity problems (2003), doi:10.1007/b97543.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._dense import DenseProblem, norm, solve_damped, solve_matrix
from ._base import AbstractSolver, Best, along, check_tolerance, start


class SemismoothNewton(AbstractSolver):
    """Newton's method on the natural map with Levenberg-Marquardt and proximal damping.

        G dz = −F(z),   F(z) = z − P_K(z − rho (W z + q + lift e_N)),   G ∈ ∂F

    Fast and accurate from a good start, and for well-conditioned problems from any; alone it fails
    on most redundant contacts. Rounds of the two dampings alternate.

    **Arguments:** `tolerance`: residual to reach (`None`: 1e-9 in float64, 1e-5 in float32);
    `steps`: passes of one round; `rounds`: largest number of rounds.
    """

    tolerance: float | None = eqx.field(default=None, static=True)
    steps: int = eqx.field(default=40, static=True)
    rounds: int = eqx.field(default=4, static=True)

    def __check_init__(self):
        check_tolerance(self.tolerance)

    def dense(self, problem: DenseProblem, z0: Array) -> Best:
        tolerance = self.limit(z0.dtype)

        def proceed(carry):
            best, count = carry
            return jnp.any(best.residual > tolerance) & (count < self.rounds)

        def body(carry):
            best, count = carry
            best = alternate(problem, best.z, best, self.steps, tolerance, count)
            return best, count + 1

        carry = start(problem, z0), jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(proceed, body, carry)[0]


def alternate(problem: DenseProblem, z, best: Best, steps: int, tolerance, count) -> Best:
    """Proximal damping for even `count`, Levenberg-Marquardt for odd."""
    return jax.lax.cond(
        count % 2 == 0,
        lambda z, best: proximal(problem, z, best, steps, tolerance),
        lambda z, best: levenberg_marquardt(problem, z, best, steps, tolerance),
        z,
        best,
    )


POLISH = 3
"""Passes of Newton's method that clean the result of another."""


def levenberg_marquardt(problem: DenseProblem, z, best: Best, steps: int, tolerance) -> Best:
    """Newton steps in the sense of least squares, as long as the residual falls."""
    rho = problem.steps()
    floor = 1e-12 if jnp.finfo(z.dtype).bits >= 64 else 1e-6

    def proceed(carry):
        _, residual, going, _, count = carry
        return jnp.any(going & (residual > tolerance)) & (count < steps)

    def body(carry):
        z, residual, going, best, count = carry
        w = problem.velocity(z)
        _, d, n = problem.linearise(z, w, rho)
        f = problem.natural_map(z, w, rho)
        damping = jnp.maximum(floor, 1e-10 * jnp.minimum(1.0, norm(f)))
        dz = solve_damped(problem.newton_matrix(d, n), -f, damping)
        least, t = along(problem.residual, z, w, dz, problem.apply(dz))
        going = going & (least < residual)
        z = jnp.where(going[None], z + t[None] * dz, z)
        residual = jnp.where(going, least, residual)
        return z, residual, going, best.offer(z, residual, tolerance).count(tolerance), count + 1

    residual = problem.residual(z, problem.velocity(z))
    best = best.offer(z, residual, tolerance)
    going = best.residual > tolerance
    carry = z, residual, going, best, jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(proceed, body, carry)[3]


FULL, INNER = 15, 30
"""Newton steps on one proximal problem: so many of full length, then steps that descend; after so many in
all `alpha` is raised. Full steps find modes that lie behind a rise of the residual, where steps that only
descend creep along redundant impulses.
"""


class _Proximal(eqx.Module):
    """State of the proximal-point method: iterate, centre, strength, steps since the last centre."""

    z: Array
    centre: Array
    alpha: Array
    inner: Array


def proximal(
    problem: DenseProblem, z, best: Best, steps: int | Array, tolerance, first: float | Array = 0.1
) -> Best:
    """The proximal-point method, its problems solved by Newton's method.

    Solved well enough is a problem whose residual is a tenth of the move `alpha |z − z_k|`, which
    is what its solution leaves of the residual without the proximal term.
    """
    rho = problem.steps()
    lowest = 1e-9 if jnp.finfo(z.dtype).bits >= 64 else 1e-6
    noise = 8 * float(jnp.finfo(z.dtype).eps)

    def proceed(carry):
        best, _, count = carry
        return jnp.any(best.residual > tolerance) & (count < steps)

    def body(carry):
        best, state, count = carry
        z, centre, alpha = state.z, state.centre, state.alpha
        weight = alpha[None] / rho
        w = problem.velocity(z) + weight * (z - centre)

        def norms(z, w):
            return norm(problem.natural_map(z, w, rho))

        f = problem.natural_map(z, w, rho)
        _, d, n = problem.linearise(z, w, rho)
        dz = solve_matrix(problem.newton_matrix(d, n, weight), -f)
        dw = problem.apply(dz) + weight * dz
        least, t = along(norms, z, w, dz, dw)
        full = state.inner < FULL
        least, t = jnp.where(full, norms(z + dz, w + dw), least), jnp.where(full, 1, t)
        here = norm(f)
        moved = (least < here) | (full & (norm(dz) > 0))
        z = jnp.where(moved[None], z + t[None] * dz, z)
        here = jnp.where(moved, least, here)
        best = best.offer(z, problem.residual(z, problem.velocity(z)), tolerance)
        solved = here <= jnp.maximum(0.1 * alpha * norm(z - centre), noise * norm(z))
        failed = ~solved & (~moved | (state.inner >= INNER))
        alpha = jnp.where(solved, 0.3 * alpha, jnp.where(failed, 10 * alpha, alpha))
        state = _Proximal(
            jnp.where(failed[None], centre, z),
            jnp.where(solved[None], z, centre),
            jnp.clip(alpha, lowest, 10.0),
            jnp.where(solved | failed, 0, state.inner + 1),
        )
        return best.count(tolerance), state, count + 1

    best = best.offer(z, problem.residual(z, problem.velocity(z)), tolerance)
    zero = jnp.zeros(z.shape[1:], jnp.int32)
    state = _Proximal(z, z, jnp.full(z.shape[1:], first, z.dtype), zero)
    return jax.lax.while_loop(proceed, body, (best, state, jnp.zeros((), jnp.int32)))[0]
