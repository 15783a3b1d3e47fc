"""Semismooth Newton on the natural map, damped in two ways.

The natural map `F` has the generalised Jacobian `G = 1 − D + N W` (`_natural_map`), singular where
contacts are redundant. There are two remedies, and each solves problems that the other does not:

* Levenberg and Marquardt: `(G^T G + lambda) dz = −G^T F`;
* the proximal point: the problem with `W + alpha` and `q − alpha z_k` instead, `alpha` smaller
  after every success. It does not square the condition number, and is regular enough for full steps.

References: P. Alart, A. Curnier (1991), doi:10.1016/0045-7825(91)90022-X; F. Facchinei, J.-S. Pang,
Finite-dimensional variational inequalities and complementarity problems (2003), doi:10.1007/b97543.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from ..problem._dense import DenseProblem, norm, solve_damped, solve_matrix
from ._base import AbstractContactSolver, AbstractSolver, check_tolerance, ladder, shortest


class SemismoothNewton(AbstractSolver):
    """Newton's method on the natural map with proximal and Levenberg-Marquardt damping in turns.

        G dz = −F(z),   F(z) = z − P_K(z − rho (W z + q + lift e_N)),   G ∈ ∂F

    Fast and accurate from a good start, and for well-conditioned problems from any start. On its own it
    fails on most redundant contacts.

    **Arguments:** `tolerance`: residual to reach (`None`: 1e-9 in float64, 1e-5 in float32);
    `steps`: iterations of one round; `rounds`: largest number of rounds.
    """

    tolerance: float | None = eqx.field(default=None, static=True)
    steps: int = eqx.field(default=40, static=True)
    rounds: int = eqx.field(default=4, static=True)

    def __check_init__(self):
        check_tolerance(self.tolerance)

    @property
    def links(self) -> tuple[AbstractContactSolver, ...]:
        return Newton(self.steps), LevenbergMarquardt(self.steps)

    @property
    def fallback(self) -> tuple[AbstractContactSolver, ...]:
        return self.links if self.rounds > 2 else ()

    @property
    def repeats(self) -> int:
        return max(self.rounds - 1, 1) // 2


POLISH = 3
"""Newton iterations that refine the result of another method."""


class _Descent(eqx.Module):
    z: Array
    residual: Array
    going: Array


class LevenbergMarquardt(AbstractContactSolver):
    """Newton steps in the least-squares sense, as long as the residual falls.

        (G^T G + lambda) dz = −G^T F(z),   G ∈ ∂F

    **Arguments:** `steps`: largest number of iterations; `tolerance`: residual to reach.
    """

    steps: int = eqx.field(default=40, static=True)
    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)

    def __check_init__(self):
        check_tolerance(self.tolerance)

    def init(self, problem: DenseProblem, z0: Array) -> _Descent:
        residual = problem.residual(z0, problem.velocity(z0))
        return _Descent(z0, residual, jnp.ones(z0.shape[1:], bool))

    def step(self, problem: DenseProblem, state: _Descent) -> _Descent:
        z, rho = state.z, problem.steps()
        floor = 1e-12 if jnp.finfo(z.dtype).bits >= 64 else 1e-6
        w = problem.velocity(z)
        f, d, n = problem.natural_slopes(z, w, rho)
        damping = jnp.maximum(floor, 1e-10 * jnp.minimum(1.0, norm(f)))
        dz = solve_damped(problem.newton_matrix(d, n), -f, damping)
        least, t = shortest(ladder(problem.residual, z, w, dz, problem.apply(dz)))
        going = state.going & (least < state.residual)
        z = jnp.where(going[None], z + t[None] * dz, z)
        return _Descent(z, jnp.where(going, least, state.residual), going)

    def terminate(self, problem: DenseProblem, state: _Descent) -> Array:
        del problem
        return ~state.going


FULL, INNER = 15, 30
"""Newton steps on one proximal problem: the first `FULL` are undamped, then a line search; after `INNER`
in all `alpha` is raised. Undamped steps find modes that lie behind a rise of the residual; steps that only
descend creep along redundant impulses there.
"""


class _Proximal(eqx.Module):
    """State of the proximal-point method: iterate, centre, strength, steps since the last centre."""

    z: Array
    centre: Array
    alpha: Array
    inner: Array


class Newton(AbstractContactSolver):
    """The proximal-point method, with Newton's method for its subproblems.

        G dz = −F(z)   for   W + alpha / rho,   q − alpha z_k / rho,   alpha → 0

    A subproblem counts as solved when its residual is a tenth of the move `alpha |z − z_k|`. Its exact
    solution leaves a residual of that size in the problem without the proximal term.

    **Arguments:** `steps`: largest number of iterations; `damping`: the first `alpha`; `tolerance`:
    residual to reach.
    """

    steps: int = eqx.field(default=40, static=True)
    damping: float = eqx.field(default=0.1, static=True)
    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)

    settings = ("damping",)

    def __check_init__(self):
        check_tolerance(self.tolerance)

    def init(self, problem: DenseProblem, z0: Array) -> _Proximal:
        del problem
        alpha = jnp.broadcast_to(jnp.asarray(self.damping, z0.dtype), z0.shape[1:])
        return _Proximal(z0, z0, alpha, jnp.zeros(z0.shape[1:], jnp.int32))

    def step(self, problem: DenseProblem, state: _Proximal) -> _Proximal:
        z, centre, alpha, rho = state.z, state.centre, state.alpha, problem.steps()
        lowest = 1e-9 if jnp.finfo(z.dtype).bits >= 64 else 1e-6
        noise = 8 * float(jnp.finfo(z.dtype).eps)
        weight = alpha[None] / rho
        w = problem.velocity(z) + weight * (z - centre)

        def norms(z, w):
            return norm(problem.natural_map(z, w, rho))

        f, d, n = problem.natural_slopes(z, w, rho)
        dz = solve_matrix(problem.newton_matrix(d, n, weight), -f)
        dw = problem.apply(dz) + weight * dz
        full = state.inner < FULL
        values = ladder(norms, z, w, dz, dw)
        least, t = shortest(values)
        least, t = jnp.where(full, values[0], least), jnp.where(full, 1, t)
        here = norm(f)
        moved = (least < here) | (full & (norm(dz) > 0))
        z = jnp.where(moved[None], z + t[None] * dz, z)
        here = jnp.where(moved, least, here)
        solved = here <= jnp.maximum(0.1 * alpha * norm(z - centre), noise * norm(z))
        failed = ~solved & (~moved | (state.inner >= INNER))
        alpha = jnp.where(solved, 0.3 * alpha, jnp.where(failed, 10 * alpha, alpha))
        return _Proximal(
            jnp.where(failed[None], centre, z),
            jnp.where(solved[None], z, centre),
            jnp.clip(alpha, lowest, 10.0),
            jnp.where(solved | failed, 0, state.inner + 1),
        )
