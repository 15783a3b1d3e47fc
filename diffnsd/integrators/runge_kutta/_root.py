"""Newton's method on the smooth equations of an implicit step."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from ..._numerics import implicit_root, lu_solve, max_abs
from ..._types import Vector
from .._step import Newton


def frozen(tree):
    """The same pytree with its arrays held constant; functions may be among its leaves."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


def find_root(residual: Callable, parameters, guess: Vector, newton: Newton):
    """`x` with `residual(parameters, x) = 0`, differentiable in the parameters.

    The iteration is not differentiated, its end is (`implicit_root`), to second order.

    **Arguments:** `residual`: pure function; `guess`: shape `(m,)`; `newton`: iterations, tolerance.

    **Returns:** the root, whether the iteration converged, and the number of iterations.
    """
    held = frozen(parameters)

    def body(carry):
        x, _, count = carry
        new = x - lu_solve(jax.jacfwd(lambda z: residual(held, z))(x), residual(held, x))
        return new, max_abs(new - x) / jnp.maximum(1.0, max_abs(new)), count + 1

    def proceed(carry):
        _, change, count = carry
        return ~(change <= newton.tolerance) & (count < newton.max_iterations)

    start = frozen(guess), jnp.full((), jnp.inf, guess.dtype), jnp.zeros((), jnp.int32)
    x, change, count = jax.lax.stop_gradient(jax.lax.while_loop(proceed, body, start))
    root = implicit_root(lambda z: residual(parameters, z), x)
    return root, change <= newton.tolerance, count
