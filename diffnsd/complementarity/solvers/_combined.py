"""The default method: splitting and Newton in turns, and pivoting where neither converges.

Newton's method goes first, for the problems it solves in a few passes; then rounds of splitting,
which gets near the solution of almost every monotone problem, and of Newton's method from there,
which gets close. Measured on the test problems, splitting alone and Newton alone fail on a third.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._dense import DenseProblem
from ._base import Best, start
from ._semismooth import alternate, proximal
from ._splitting import SplittingState, begin, iterate

FIRST = 10
"""Newton passes before anything else."""
SPLITTING = 200
NEWTON = 40
ROUNDS = 10


def combined(problem: DenseProblem, z0: Array, tolerance: float) -> Best:
    """Solves for all lanes; lanes that have converged wait for the rest."""
    best = start(problem, z0)
    best = proximal(problem, best.z, best, FIRST, tolerance, 1e-3)

    def rest(best):
        state = begin(problem, best.z, 0.3)

        def proceed(carry):
            best, _, count = carry
            return jnp.any(best.residual > tolerance) & (count < ROUNDS)

        def body(carry):
            best, state, count = carry
            best, state = iterate(problem, best, state, SPLITTING, tolerance, 1.6)
            best = alternate(problem, state.y, best, NEWTON, tolerance, count)
            return best, state, count + 1

        carry = best, state, jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(proceed, body, carry)[0]

    return jax.lax.cond(jnp.any(best.residual > tolerance), rest, lambda b: b, best)
