"""Nonlinear complementarity problems, as a sequence of linear ones."""

from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AbstractChecked, checked_arguments
from .._numerics import as_float
from ._condensed import Condensed, Outcome, solve_condensed
from ._public import (
    ComplementaritySolution,
    Laws,
    check_kinds,
    check_laws,
    check_layout,
    contacts_of,
    empty,
    report,
)
from ._solver import Auto
from .derivatives._adjoint import AbstractAdjoint, ImplicitAdjoint
from .problem._dense import Statistics
from .solvers._base import AbstractSolver


class NonlinearComplementarityProblem(AbstractChecked):
    """`w = F(z)`,  `K* ∋ w + lift(w) e_N ⟂ z ∈ K`, `K` a product over contacts.

    **Arguments:** `function(z, args)`: `F`, from shape `(m,)` to shape `(m,)`; `laws`: as in
    `ComplementarityProblem`, `((HalfLine(), (m, 1)),)` is the NCP; `args`: parameters of `F`, any
    pytree; the solution is differentiated in them.
    """

    function: Annotated[Callable[[Array, Any], Array], "(z, args)"]
    laws: Laws
    args: Any = None

    def linearised(self, z: Array, added=0.0) -> Condensed:
        """The linear problem at `z`, with `added` on the diagonal: `w = F(z) + (F' + added)(· − z)`."""
        slope = jax.jacfwd(self.function)(z, self.args)
        W = slope + added * jnp.eye(len(z), dtype=z.dtype)
        contacts = contacts_of(self.laws, None, z.dtype)
        return Condensed(W, self.function(z, self.args) - W @ z, contacts)


class _Run(eqx.Module):
    """State of the iteration: the point, its residual, the damping, and the number of iterations."""

    z: Array
    residual: Array
    damping: Array
    passes: Array


@checked_arguments
def solve_nonlinear_complementarity(
    problem: NonlinearComplementarityProblem,
    z0: Float[Array, " m"],
    solver: AbstractSolver | None = None,
    *,
    max_steps: int = 300,
    adjoint: AbstractAdjoint = ImplicitAdjoint(),  # noqa: B008 (an immutable constant)
    throw: bool = True,
) -> ComplementaritySolution:
    """Solves a nonlinear complementarity problem, differentiably.

        K* ∋ F(z_k) + (F'(z_k) + alpha) (z − z_k) ⟂ z ∈ K

    This is the Josephy-Newton method, with `alpha = 0` while it works. Where the linear problem has no
    solution, or its solution is worse, `alpha > 0` makes the iteration an implicit Euler step of
    `z' = −F(z)` in K, which escapes local minima of a merit function.

    **Arguments:** `problem`; `z0`: initial guess, shape `(m,)`; `solver` of the linear problems
    (default `Auto()`); `max_steps`: largest number of linear problems; `adjoint`, `throw`: as in
    `solve_complementarity`.

    **Returns:** a `ComplementaritySolution`; its `iterations` counts linear problems.

    **Raises:** `ValueError` if the laws do not fit, or `function` returns another shape; a runtime error
    if the residual of `F` stays above the tolerance. Another `z0` may help: there is no proof that a
    nonlinear problem has no solution, and `certificate` is zero.

    Reference: F. Facchinei, J.-S. Pang, Finite-dimensional variational inequalities and
    complementarity problems (2003), doi:10.1007/b97543.
    """
    check_kinds(
        problem, NonlinearComplementarityProblem, "(function, laws=((law, (c, k)),))", solver
    )
    z0 = as_float(z0)
    check_layout(problem.laws, z0.shape[0], None, "z0")
    check_laws(problem.laws)
    found = jax.eval_shape(problem.function, z0, problem.args)
    if getattr(found, "shape", None) != z0.shape:
        raise ValueError(
            f"function must return shape {z0.shape}, that of z0, got {getattr(found, 'shape', found)}."
        )
    if not len(z0):
        return empty(z0)
    solver = Auto() if solver is None else solver
    dynamic, static = eqx.partition(problem, eqx.is_array)
    frozen = eqx.combine(jax.lax.stop_gradient(dynamic), static)
    run = jax.lax.stop_gradient(_iterate(frozen, jax.lax.stop_gradient(z0), solver, max_steps))
    # Two differentiated iterations make derivatives right to second order.
    z, outcome = run.z, None
    for _ in range(2):
        linear = problem.linearised(z)
        z, outcome = solve_condensed(linear, z, solver, adjoint)
    assert outcome is not None
    return _judged(problem, z, outcome, solver, run.passes, throw)


def _judged(problem, z: Array, outcome: Outcome, solver, passes: Array, throw: bool):
    """The solution with the residuals of `F` itself, not of its last linear problem.

    A linear problem without a solution proves nothing about `F`.
    """
    linear = problem.linearised(z)
    residual = _residual(jax.lax.stop_gradient(linear), jax.lax.stop_gradient(z))
    converged = residual <= solver.accept_tolerance_for(z.dtype)
    statistics = outcome.statistics
    velocity, violation = _measures(jax.lax.stop_gradient((linear, z)))
    own = statistics.margin, statistics.solved_by
    statistics = Statistics(residual, violation, passes, *own, converged, outcome.statistics.wedged)
    honest = Outcome(statistics, velocity, jnp.zeros_like(outcome.certificate))
    return report(linear, z, honest, solver, throw)


def _measures(pair: tuple[Condensed, Array]) -> tuple[Array, Array]:
    """The residual of the velocity and the violation of the laws."""
    linear, z = pair
    dense, z = linear.dense(), z[linear.order, None]
    w = dense.velocity(z)
    return dense.residuals(z, w)[1][0], dense.violation(z, w)[0]


def _residual(linear: Condensed, z: Array) -> Array:
    dense, z = linear.dense(), z[linear.order, None]
    return dense.residual(z, dense.velocity(z))[0]


def _iterate(problem, z0: Array, solver, max_steps: int) -> _Run:
    tolerance = solver.tolerance_for(z0.dtype)

    def proceed(run):
        return (run.residual > tolerance) & (run.passes < max_steps)

    def body(run):
        here = problem.linearised(run.z, run.damping)
        new, outcome = solve_condensed(here, run.z, solver, ImplicitAdjoint())
        there = problem.linearised(new)
        residual = _residual(there, new)
        move = new - run.z
        bend = problem.function(new, problem.args) - (here.apply(new) + here.q - run.damping * move)
        size = jnp.sqrt(jnp.sum(move * move))
        faithful = jnp.sqrt(jnp.sum(bend * bend)) <= 0.5 * run.damping * size
        solved = outcome.statistics.converged & jnp.isfinite(residual)
        taken = solved & ((residual < run.residual) | (faithful & (size > 0)))
        least = 1e-3 * jnp.sqrt(jnp.mean(here.W * here.W))
        stronger = jnp.maximum(2 * run.damping, least)
        weaker = jnp.where(residual < 0.5 * run.residual, 0.1, 0.7) * run.damping
        weaker = jnp.where(weaker < least, 0, weaker)
        return _Run(
            jnp.where(taken, new, run.z),
            jnp.where(taken, residual, run.residual),
            jnp.where(taken, weaker, stronger),
            run.passes + 1,
        )

    first = _residual(problem.linearised(z0), z0)
    start = _Run(z0, first, jnp.zeros_like(first), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(proceed, body, start)
