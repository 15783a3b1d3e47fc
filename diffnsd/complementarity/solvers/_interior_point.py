"""Following the central path: Newton's method on the relaxed laws, with less and less relaxation.

With the proximal map of `kappa` times the barrier in place of the projection,

    F_kappa(z) = z − prox_(rho kappa)(z − rho (w + lift e_N)) = 0

is smooth; on a half line it means `w z = kappa`. Iterates may lie outside the sets: the map leads inside.

Reference: B. Chen, P. Harker, A non-interior-point continuation method for linear complementarity
problems (1993), doi:10.1137/0614081.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..derivatives._adjoint import pair, surface
from ..problem._dense import DenseProblem, norm, solve_damped, solve_matrix
from ..problem._natural_map import argument
from ..problem._problem import join
from ._base import AbstractContactSolver, check_tolerance, ladder, shortest
from ._pivoting import intervals
from ._semismooth import POLISH, LevenbergMarquardt


class InteriorPoint(AbstractContactSolver):
    """Follows the central path to the solution, with `kappa` from the size of the problem down to zero.

        K* ∋ w + lift(w) e_N,   z ∈ K,   w z = kappa → 0   (and the analogue for every set)

    A regular system in every iteration, few iterations, no active set: for problems whose modes are hard
    to find, such as circuits. An iteration costs more than one of Newton's method, in particular for cones.

    **Arguments:** `tolerance`: residual to reach (`None`: 1e-9 in float64, 1e-5 in float32);
    `steps`: largest number of iterations; `shrink`: factor of `kappa` after a success, or
    where no step length helps;
    `cones`: whether a chain tries it also on cones, or only on intervals.
    """

    steps: int = eqx.field(default=150, static=True)
    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)
    shrink: float = eqx.field(default=0.2, static=True, kw_only=True)
    cones: bool = eqx.field(default=True, static=True, kw_only=True)

    explores = True

    def __check_init__(self):
        check_tolerance(self.tolerance)

    def refuses(self, contacts) -> str | None:
        if self.cones or intervals(contacts) is not None:
            return None
        return "InteriorPoint(cones=False) is for intervals; use InteriorPoint() for cones"

    @property
    def links(self) -> tuple[AbstractContactSolver, ...]:
        return self, LevenbergMarquardt(POLISH)

    def init(self, problem: DenseProblem, z0: Array) -> "_Path":
        """The path begins far from the edges of the sets, whatever the guess."""
        kappa = first_level(problem, problem.steps())
        z = problem.project(jnp.zeros_like(z0))
        return _Path(z, z, kappa, 1e-26 * kappa)

    def step(self, problem: DenseProblem, state: "_Path") -> "_Path":
        """One Newton iteration; `kappa` shrinks where it succeeds, or where no step length helps."""
        z, kappa, rho = state.inside, state.kappa, problem.steps()
        w = problem.velocity(z)
        f = relaxed(problem, z, w, rho, kappa)
        matrix = relaxed_matrix(problem, z, w, rho, kappa)
        dz = solve_matrix(matrix, -f)
        singular = norm(dz) == 0
        dz = jax.lax.cond(
            jnp.any(singular),
            lambda: jnp.where(
                singular[None], solve_damped(matrix, -f, jnp.full_like(kappa, 1e-10)), dz
            ),
            lambda: dz,
        )

        def size(z, w):
            return norm(relaxed(problem, z, w, rho, kappa))

        least, t = shortest(ladder(size, z, w, dz, problem.apply(dz)))
        here = norm(f)
        moved = least < here
        z = jnp.where(moved[None], z + t[None] * dz, z)
        enough = jnp.maximum(0.3 * jnp.sqrt(kappa * jnp.mean(rho, axis=0)), 1e-13 * norm(z))
        close = jnp.minimum(least, here) <= enough
        kappa = jnp.where(close | ~moved, self.shrink * kappa, kappa)
        return _Path(problem.project(z), z, kappa, state.last)

    def terminate(self, problem: DenseProblem, state: "_Path") -> Array:
        del problem
        return state.kappa <= state.last


class _Path(eqx.Module):
    """A point of the path, projected (`z`) and as it is (`inside`), `kappa` and its last value."""

    z: Array
    inside: Array
    kappa: Array
    last: Array


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
    """`kappa` at the start: the mean of `q² rho`, velocity times impulse, per problem."""
    level = jnp.mean(problem.q * problem.q * rho, axis=0)
    return jnp.where(level > 0, level, 1)
