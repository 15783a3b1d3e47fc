"""Following the central path: Newton's method on the relaxed laws, relaxed less and less.

With the proximal map of `kappa` times the barrier in place of the projection,

    F_kappa(z) = z − prox_(rho kappa)(z − rho (w + lift e_N)) = 0

is smooth, on a half line `w z = kappa`. Iterates need not be inside: that is found by the map.

Reference: B. Chen, P. Harker, A non-interior-point continuation method for linear complementarity
problems (1993), doi:10.1137/0614081.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._adjoint import pair, surface
from .._dense import DenseProblem, join, norm, solve_damped, solve_matrix
from .._natural_map import argument
from ._base import AbstractSolver, Best, along, check_tolerance, start
from ._semismooth import POLISH, levenberg_marquardt


class InteriorPoint(AbstractSolver):
    """The central path to the solution, `kappa` from the size of the problem to nothing.

        K* ∋ w + lift(w) e_N,   z ∈ K,   w z = kappa → 0   (and its like for every set)

    A regular system in every pass, few passes, no active set: for problems whose modes are hard to
    find, circuits among them. The passes cost more than Newton's, for cones in particular.

    **Arguments:** `tolerance`: residual to reach (`None`: 1e-9 in float64, 1e-5 in float32);
    `steps`: largest number of passes; `shrink`: factor of `kappa` after every success.
    """

    tolerance: float | None = eqx.field(default=None, static=True)
    steps: int = eqx.field(default=150, static=True)
    shrink: float = eqx.field(default=0.2, static=True)

    def __check_init__(self):
        check_tolerance(self.tolerance)

    def dense(self, problem: DenseProblem, z0: Array) -> Best:
        best = start(problem, z0)
        tolerance = self.limit(z0.dtype)
        best, z = follow(problem, best.z, best, self.steps, tolerance, self.shrink)
        return levenberg_marquardt(problem, z, best, POLISH, tolerance)


def relaxed(problem: DenseProblem, z: Array, w: Array, rho: Array, kappa: Array) -> Array:
    """`F_kappa`, shape `(m, l)`."""
    parts = []
    for part in zip(problem.contacts, *map(problem.split, (w, z, rho)), strict=True):
        contacts, u, p, r = part
        parts.append(p - surface(contacts, argument(contacts, u, p, r[0]), r[0], kappa))
    return join(parts)


def relaxed_matrix(problem: DenseProblem, z: Array, w: Array, rho: Array, kappa: Array) -> Array:
    """The Jacobian of `F_kappa`, shape `(l, m, m)`."""
    d, n = [], []
    for part in zip(problem.contacts, *map(problem.split, (w, z, rho)), strict=True):
        contacts, u, p, r = part
        di, ni = pair(contacts, u, argument(contacts, u, p, r[0]), r[0], kappa)
        d.append(di)
        n.append(ni)
    return problem.newton_matrix(d, n)


def first_level(problem: DenseProblem, rho: Array) -> Array:
    """`kappa` at the start: the mean of `q² rho`, velocity times impulse, per lane."""
    level = jnp.mean(problem.q * problem.q * rho, axis=0)
    return jnp.where(level > 0, level, 1)


def follow(
    problem: DenseProblem, z, best: Best, steps: int, tolerance, shrink: float
) -> tuple[Best, Array]:
    """Newton passes along the path, `kappa` smaller whenever a pass went well.

    **Returns:** the best point, and the end of the path.
    """
    rho = problem.steps()
    kappa = first_level(problem, rho)
    last = 1e-26 * kappa

    def proceed(carry):
        best, _, kappa, count = carry
        return jnp.any((best.residual > tolerance) & (kappa > last)) & (count < steps)

    def body(carry):
        best, z, kappa, count = carry
        w = problem.velocity(z)
        f = relaxed(problem, z, w, rho, kappa)
        matrix = relaxed_matrix(problem, z, w, rho, kappa)
        dz = solve_matrix(matrix, -f)
        singular = norm(dz) == 0
        dz = jnp.where(singular[None], solve_damped(matrix, -f, jnp.full_like(kappa, 1e-10)), dz)

        def size(z, w):
            return norm(relaxed(problem, z, w, rho, kappa))

        least, t = along(size, z, w, dz, problem.apply(dz))
        here = norm(f)
        moved = least < here
        z = jnp.where(moved[None], z + t[None] * dz, z)
        near = problem.project(z)
        best = best.offer(near, problem.residual(near, problem.velocity(near)), tolerance)
        enough = jnp.maximum(0.3 * jnp.sqrt(kappa * jnp.mean(rho, axis=0)), 1e-13 * norm(z))
        close = jnp.minimum(least, here) <= enough
        kappa = jnp.where(close | ~moved, shrink * kappa, kappa)
        return best.count(tolerance), z, kappa, count + 1

    carry = best, z, kappa, jnp.zeros((), jnp.int32)
    best, z, *_ = jax.lax.while_loop(proceed, body, carry)
    return best, problem.project(z)


def on_path(problem: DenseProblem, z: Array, kappa: Array, steps: int = 60) -> Array:
    """The point of the central path at `kappa`, from the exact solution: Newton's method."""
    rho = problem.steps()
    tolerance = 1e-12 if jnp.finfo(z.dtype).bits >= 64 else 1e-6

    def size(z, w):
        return norm(relaxed(problem, z, w, rho, kappa))

    def proceed(carry):
        z, going, count = carry
        return jnp.any(going) & (count < steps)

    def body(carry):
        z, going, count = carry
        w = problem.velocity(z)
        f = relaxed(problem, z, w, rho, kappa)
        dz = solve_matrix(relaxed_matrix(problem, z, w, rho, kappa), -f)
        least, t = along(size, z, w, dz, problem.apply(dz))
        moved = going & (least < norm(f))
        z = jnp.where(moved[None], z + t[None] * dz, z)
        return z, moved & (least > tolerance * norm(z)), count + 1

    # The prox of the natural map's argument is inside, and near.
    w = problem.velocity(z)
    z = z - relaxed(problem, z, w, rho, kappa)
    carry = z, jnp.ones(z.shape[1:], bool), jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(proceed, body, carry)[0]
