"""The interface of the solvers, and what they share: the best point so far, and its direction."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._dense import DenseProblem, norm


class Best(eqx.Module):
    """The best point that was visited, for every lane.

    **Arguments:** `z`: shape `(m, l)`; `residual`: its `DenseProblem.residual`; `passes`:
    iterations; `ray`: the direction in which iterates last moved, `(m, l)`: where they run away it
    is the candidate of a certificate.
    """

    z: Array
    residual: Array
    passes: Array
    ray: Array

    def offer(self, z: Array, residual: Array, tolerance) -> "Best":
        """Keeps `z` where it is better; a point that has converged is final."""
        take = (residual < self.residual) & (self.residual > tolerance)
        return eqx.tree_at(
            lambda b: (b.z, b.residual),
            self,
            (jnp.where(take[None], z, self.z), jnp.where(take, residual, self.residual)),
        )

    def count(self, tolerance, more: Any = 1) -> "Best":
        """So many more passes for the lanes that have not converged."""
        passes = self.passes + jnp.where(self.residual > tolerance, more, 0)
        return eqx.tree_at(lambda b: b.passes, self, passes)

    def moved(self, step: Array) -> "Best":
        """Notes the direction of a move, normalised."""
        size = norm(step)
        ray = jnp.where(size[None] > 0, step / jnp.where(size > 0, size, 1)[None], 0)
        return eqx.tree_at(lambda b: b.ray, self, ray)


def start(problem: DenseProblem, z0: Array) -> Best:
    """The warm start projected on the sets."""
    z = problem.project(z0)
    zero = jnp.zeros(z.shape[1:], jnp.int32)
    return Best(z, problem.residual(z, problem.velocity(z)), zero, jnp.zeros_like(z))


class AbstractSolver(eqx.Module):
    """A method for complementarity problems. Success is decided by the residual alone."""

    @abstractmethod
    def dense(self, problem: DenseProblem, z0: Array) -> Best:
        """Solves for all lanes at once, from `z0` of shape `(m, l)`."""

    def limit(self, dtype) -> float:
        """The residual to aim at: `tolerance`, or 1e-9 in float64 and 1e-5 in float32."""
        tolerance = getattr(self, "tolerance", None)
        if tolerance is not None:
            return tolerance
        return 1e-9 if jnp.finfo(dtype).bits >= 64 else 1e-5

    def promise(self, dtype) -> float:
        """The residual that counts as solved; a method may be content with more than it aims at."""
        return self.limit(dtype)

    def by_products(self) -> "AbstractSolver | None":
        """The method in its place where W can only be multiplied, or `None`."""
        return None

    def refuses(self, problem) -> str | None:
        """Why this method cannot solve a problem of this kind, or `None`."""
        del problem
        return None


def check_tolerance(tolerance) -> None:
    """Raises if a tolerance is not positive."""
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}.")


LADDER = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
"""Step lengths that are tried at once."""


def along(function, z: Array, w: Array, dz: Array, dw: Array):
    """`function(z + t dz, w + t dw)` for all step lengths of the ladder, and the best of each lane.

    **Returns:** the least value and its step length, both of shape `(l,)`.
    """
    steps = jnp.asarray(LADDER, z.dtype)
    values = jax.vmap(lambda t: function(z + t * dz, w + t * dw))(steps)
    values = jnp.where(jnp.isfinite(values), values, jnp.inf)
    index = jnp.argmin(values, axis=0)
    return jnp.min(values, axis=0), steps[index]
