"""The one function that solves the equations of a step together with the laws.

An integrator writes `residual(v) = generalised impulse of the contacts` and the blocks of its
contacts. The equations are linearised, `A (v − v*) + r(v*) = B z`, and the mixed complementarity
problem is solved for `(v, z)`; this is Newton's method on the smooth part with the laws kept exact.

Derivative. The iterations are not differentiated. Where `v*` solves the equations, a differentiated
Newton pass from it has the value `v*` and, because the residual vanishes there, the derivative of
the implicit function theorem; every further pass doubles the number of orders that are exact. Two
passes are made, so that second derivatives are right too. With `max_iterations = 1` the linearised
scheme is the method, and it is differentiated as it stands.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._numerics import matvec, max_abs
from .._types import Vector
from ..complementarity import ImplicitAdjoint, MixedProblem, solve_mixed


class Newton(eqx.Module):
    """Newton's method on the smooth equations of a step.

    **Arguments:** `max_iterations`: linearisations per step, 1 is the linearised scheme;
    `tolerance`: largest change of `v`, relative to `max(1, |v|)`, at which it stops.
    """

    max_iterations: int = eqx.field(default=1, static=True)
    tolerance: float = eqx.field(default=1e-10, static=True)

    def __check_init__(self):
        if self.max_iterations < 1:
            raise ValueError(f"max_iterations must be at least 1, got {self.max_iterations}.")


def linear_problem(residual: Callable, v: Vector, blocks: Callable) -> MixedProblem:
    """The step problem linearised at `v`: `A w = A v − r(v) + B z`."""
    matrix = jax.jacfwd(residual)(v)
    return MixedProblem(matrix, matvec(matrix, v) - residual(v), blocks(v))


def solve_step(
    equations: Callable, parameters, v_guess: Vector, z0, solver, newton: Newton, adjoint=None
):
    """Solves the equations of one step.

    **Arguments:** `equations(parameters) -> (residual, blocks)`, a pure function, where
    `residual(v)` is the generalised impulse and `blocks(v)` the contacts linearised at `v`;
    `parameters`: everything it depends on; `v_guess`: first linearisation point, shape `(n,)`;
    `z0`: warm start per block; `solver`; `newton`; `adjoint`: how the laws are
    differentiated, default `ImplicitAdjoint()`.

    **Returns:** `v`, `z`, `Statistics`, and whether Newton's iteration converged.
    """
    adjoint = ImplicitAdjoint() if adjoint is None else adjoint
    converged = jnp.array(True)
    if newton.max_iterations > 1:
        tolerance = max(newton.tolerance, 64 * float(jnp.finfo(v_guess.dtype).eps))
        frozen, v_start, z_start = without_derivative((parameters, v_guess, z0))
        residual, blocks = equations(frozen)

        def body(carry):
            v, z, _, count = carry
            new, z, _ = solve_mixed(linear_problem(residual, v, blocks), z, solver)
            change = max_abs(new - v) / jnp.maximum(1.0, max_abs(new))
            return new, z, change, count + 1

        def proceed(carry):
            _, _, change, count = carry
            return (change > tolerance) & (count < newton.max_iterations)

        start = v_start, z_start, jnp.full_like(v_start[0], jnp.inf), 0
        v_guess, z0, change, _ = jax.lax.stop_gradient(jax.lax.while_loop(proceed, body, start))
        converged = change <= tolerance
    residual, blocks = equations(parameters)

    def differentiated(carry, _):
        v, z = carry
        v, z, stats = solve_mixed(linear_problem(residual, v, blocks), z, solver, adjoint)
        return (v, z), stats

    if newton.max_iterations == 1:
        (v, z), stats = differentiated((v_guess, z0), None)
        return v, z, stats, converged
    (v, z), stats = jax.lax.scan(differentiated, (v_guess, z0), length=2)
    return v, z, jax.tree.map(lambda x: x[-1], stats), converged


def without_derivative(tree) -> Any:
    """The same pytree with its arrays held constant; functions may be among its leaves."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)
