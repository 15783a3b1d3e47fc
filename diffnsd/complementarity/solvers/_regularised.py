"""The step solver as a link of a chain, see `step`."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from ..problem._dense import DenseProblem
from ..problem._problem import join
from ..step._newton import solve_step_problem
from ..step._point import StepOptions
from ._base import AbstractContactSolver, check_tolerance
from ._drive import FEW

SMALL = 24
"""Largest number of unknowns of a given matrix for which a chain tries it; above it LAPACK is used.

It is tried only on batches: the other links solve one problem as fast and compile in half the time."""


class RegularisedNewton(AbstractContactSolver):
    """Newton's method on the natural map, its matrix regularised in proportion to the residual.

        (G + eps) dz = −F(z),   G ∈ ∂F,   eps = max(least, |F| / 10)

    Where contacts are redundant, it goes to the limit of the solutions with a small compliance in every
    contact. Integrators use this method in their steps. In a batch, the problems that the first iterations
    leave unsolved are gathered, an eighth of the batch at a time, so that the others do not wait.

    **Arguments:** `steps`: iterations on all problems; `more`: further iterations on the unsolved problems;
    `rounds`: how often these start again, from zero impulses, from splitting, and from impulses changed at
    random; `tolerance`: residual to reach.
    """

    steps: int = eqx.field(default=10, static=True)
    more: int = eqx.field(default=25, static=True)
    rounds: int = eqx.field(default=8, static=True)
    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)

    explores = True
    leaves_few = True
    counted = ()

    def __check_init__(self):
        check_tolerance(self.tolerance)

    @property
    def max_iterations(self) -> int:
        """All iterations are one step of the driver."""
        return min(self.steps, 1)

    def suits(self, problem: DenseProblem) -> bool:
        m, lanes = problem.q.shape
        return lanes > FEW and m <= SMALL

    def init(self, problem: DenseProblem, z0: Array) -> "_Passes":
        return _Passes(z0, jnp.zeros(z0.shape[1:], jnp.int32))

    def step(self, problem: DenseProblem, state: "_Passes") -> "_Passes":
        tolerance, double = self.tolerance_for(state.z.dtype), jnp.finfo(state.z.dtype).bits >= 64
        options = StepOptions(
            tolerance=tolerance,
            accept_tolerance=tolerance,
            proximal=1e-8 if double else 1e-5,
            newton_steps=self.steps,
            hard_steps=self.more,
            rounds=self.rounds,
        )
        _, z, stats, _ = solve_step_problem(problem.mixed(), problem.split(state.z), options)
        return _Passes(join(z), stats.iterations)

    def iterations(self, state: "_Passes") -> Array:
        return state.passes


class _Passes(eqx.Module):
    z: Array
    passes: Array
