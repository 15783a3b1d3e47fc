"""Least squares over shared parameters and the unknowns of every run, by the Schur complement."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..._arguments import checked_arguments
from ..._checkpointing import Checkpointing
from .._base import check_of_runs, check_parameters, named_values
from ..residuals._by_run import ByRun, linearise_by_run
from ..residuals._linearise import AbstractRobustLoss, Linearisation
from ..unknowns._chart import Chart
from ._outcome import FIT_RESULTS, Callback, FitResult, Recorder, all_finite, check_tolerances
from ._programs import Programs
from ._saved import SavedFit

_DAMPING = 1e-2
"""First Levenberg-Marquardt damping, relative to the squared norms of the columns."""

_IDLE = 2
"""Number of accepted steps in a row without improvement after which the fit has converged."""


@checked_arguments
def joint_least_squares(
    residual: Annotated[
        Callable[[PyTree, PyTree, PyTree], PyTree[Array]], "(params, unknowns, run)"
    ],
    params: PyTree[Array],
    unknowns: PyTree[Array],
    runs: PyTree,
    *,
    shared: Callable[[PyTree], PyTree[Array]] | None = None,
    max_steps: int = 50,
    rtol: float = 1e-6,
    atol: float = 0.0,
    robust: AbstractRobustLoss | None = None,
    max_rejections: int = 8,
    callback: Callback | None = None,
    programs: Programs | None = None,
    throw: bool = True,
    rows: ByRun | None = None,
    save: Checkpointing | None = None,
) -> FitResult:
    """Minimises `loss = (sum_i |r(p, x_i, run_i)|^2 + |s(p)|^2) / 2` over the parameters `p` and all `x_i`.

    The unknowns `x_i` of a run, such as its start state, are measured with errors like everything else: taken
    as exact, their errors bias the parameters (errors in variables). Let their measured values be residuals
    too, divided by their standard deviations. Each step eliminates the `x_i` (Schur complement), so that it
    costs as much per run for hundreds of runs as for one. Steps, bounds and the end are those of
    `least_squares` with `LevenbergMarquardt`.

    **Arguments:**

    - `residual`: pure function `residual(params, x, run)` of one run that returns a pytree of floating
      arrays, best scaled to about one standard deviation. What does not count is 0: a run of fewer frames,
      a frame that was not measured.
    - `params`: pytree of floating arrays, usually from `parameters`.
    - `unknowns`: pytree of floating arrays with a leading axis of `n` runs: where the `x_i` start.
    - `runs`: pytree of arrays with a leading axis of `n` runs: the data of each.
    - `shared`: residuals `s(p)` of the parameters alone, for example priors; never made robust.
    - `robust`: for example `Huber(delta)`, for the residuals of the runs.
    - `rows`: of `linearise_by_run` at the start, if they are known already, for example from the fit before.
    - all others as in `least_squares`, `save` too: the estimates of the `x_i` are in its files.

    **Returns:** a `FitResult`. `aux` is a `RunEstimates`, with the estimated `x_i`; `linearisation` is that
    of the parameters after
    elimination, `(n, r)` rows of the runs, then those of `shared`; `uncertainty` gives the standard errors of
    the joint estimate from it.

    **Raises:** `FitError`, if `throw`, when the residuals are not finite at the start or the fit cannot leave
    a region where they are not finite. `TypeError` or `ValueError` for unsuitable parameters or unknowns.

    Reference: B. Triggs, P. McLauchlan, R. Hartley, A. Fitzgibbon (2000), doi:10.1007/3-540-44480-7_21;
    H. B. Nielsen, "Damping parameter in Marquardt's method" (1999), IMM-REP-1999-05.
    """
    check_parameters(params)
    check_tolerances(rtol, atol)
    check_of_runs(unknowns=unknowns, runs=runs)
    chart, files = Chart.of(params), None
    start = jax.jit(lambda p: chart.start(p))(params), unknowns
    if save is not None:

        def like():
            each = eqx.filter_eval_shape(linearise_by_run, residual, params, unknowns, runs)
            given = shared, robust, chart, *start, params, each
            point = eqx.filter_eval_shape(_evaluate, *given)[0]
            return _Going(start), point, (point, each)

        given = residual, unknowns, runs, shared, robust, rtol, atol, max_rejections
        files = SavedFit(save, given, params, like)
    record = Recorder(params, max_steps, max_rejections, callback, programs, files)
    try:
        given = residual, shared, robust, chart, record
        result = _iterate(*given, start, rows, runs, rtol, atol)
    except KeyboardInterrupt:
        result = FIT_RESULTS.interrupted
    if record.extra is None:
        return record.finish(result, RunEstimates(unknowns, rows), None, throw)
    here, raw = record.extra
    # Not reported: after an interrupt the callback may raise again.
    linear = record.programs.compiled(_reduced, here)(here)
    return record.finish(result, RunEstimates(here.unknowns, raw), linear, throw)


class RunEstimates(eqx.Module):
    """What a joint fit finds of each run.

    **Arguments:** `unknowns`: with a leading axis of `n` runs; `rows`: residuals and Jacobians there, before
    any robust loss, or `None` if the fit was interrupted before.
    """

    unknowns: PyTree[Array]
    rows: ByRun | None


class _Point(eqx.Module):
    """An evaluated iterate: `x (p,)` in coordinates of the chart, unknowns, rows of the runs and shared rows.

    `missing (n, r)` is the curvature missing from a robust loss, relative, `slopes (p,)` is `dx / draw`.
    """

    x: Float[Array, " p"]
    unknowns: PyTree[Array]
    rows: ByRun
    missing: Float[Array, "n r"]
    shared: Float[Array, " s"]
    shared_jacobian: Float[Array, "s p"]
    slopes: Float[Array, " p"]


class _Going(eqx.Module):
    """What the iteration carries beside the best point.

    `trial`: `x` and unknowns to evaluate next; `predicted`: by how much they lower the loss; `best`: loss
    of the best point; `idle`: accepted steps in a row without improvement; `damping`, which `growth`
    multiplies.
    """

    trial: tuple[Array, PyTree]
    predicted: float = 0.0
    best: float = float("inf")
    idle: int = 0
    damping: float = _DAMPING
    growth: float = 4.0


def _evaluate(shared, robust, chart: Chart, x, unknowns, params, rows: ByRun):
    """A `_Point` from raw rows, and what the record needs."""
    flat, unravel = ravel_pytree(params)
    missing = jnp.zeros_like(rows.residual)
    if robust is not None:
        rows = rows.weighed(robust)
        missing = robust.missing_curvature(rows.residual)
    slopes = chart.slopes(params)

    def function(flat):
        return (
            jnp.zeros(0, flat.dtype) if shared is None else ravel_pytree(shared(unravel(flat)))[0]
        )

    own, jacobian = function(flat), jax.jacfwd(function)(flat)
    point = _Point(x, unknowns, rows, missing, own, jacobian, slopes)
    loss = (jnp.sum(rows.residual**2) + jnp.sum(own**2)) / 2
    gradient = jnp.einsum("nrp,nr->p", rows.parameters, rows.residual) + jacobian.T @ own
    return point, loss, jnp.sqrt(gradient @ gradient), all_finite(rows), named_values(params)


def _reduced(point: _Point) -> Linearisation:
    """The linearisation in the raw parameters after elimination, with the shared rows."""
    runs = point.rows.eliminated()
    if not point.shared.size:
        return runs
    return Linearisation(
        jnp.concatenate([runs.residual, point.shared]),
        jnp.concatenate([runs.jacobian, point.shared_jacobian]),
        jnp.concatenate([runs.curvature, jnp.ones_like(point.shared)]),
        jnp.ones(runs.residual.size + point.shared.size, bool),
        (*runs.shapes, point.shared.shape),
        runs.eliminated,
    )


def _propose(chart: Chart, point: _Point, damping: Array):
    """The damped step from a point: next `x` and unknowns, and the gain of an undamped step."""
    rows, curvature = point.rows, 1 + point.missing
    P, X, r = rows.parameters / point.slopes[None, None], rows.own, rows.residual
    J = point.shared_jacobian / point.slopes[None]
    weighed = curvature[:, :, None] * P
    C = jnp.einsum("nrp,nrq->pq", weighed, P) + J.T @ J
    B = jnp.einsum("nrm,nrp->nmp", X, weighed)
    A = jnp.einsum("nrm,nrk->nmk", curvature[:, :, None] * X, X)
    gradient = jnp.einsum("nrp,nr->p", P, r) + J.T @ point.shared
    own = jnp.einsum("nrm,nr->nm", X, r)

    def solve(damping):
        damped = 1 + damping + jnp.finfo(r.dtype).eps ** 0.75
        inner = jax.vmap(_with_diagonal, in_axes=(0, None))(A, damped)
        solved = jnp.linalg.solve(inner, jnp.concatenate([B, own[:, :, None]], axis=2))
        explained = jnp.einsum("nmp,nmq->pq", B, solved)
        schur = _with_diagonal(C, damped) - explained[:, :-1]
        return schur, gradient - explained[:, -1], solved

    # Held: on a bound, with the loss pushing against it.
    schur, reduced, solved = solve(jnp.zeros_like(damping))
    held = (point.x <= chart.lo) & (reduced > 0) | (point.x >= chart.hi) & (reduced < 0)
    gain = (_free_solve(schur, reduced, held) @ reduced + jnp.sum(own * solved[:, :, -1])) / 2
    schur, reduced, solved = solve(damping)
    x = chart.clip(point.x - _free_solve(schur, reduced, held))
    step = -solved[:, :, -1] - jnp.einsum("nmp,p->nm", solved[:, :, :-1], x - point.x)
    quadratic = jnp.einsum("nmk,nm,nk->", A, step, step)
    dx = x - point.x
    quadratic += dx @ C @ dx + 2 * jnp.einsum("nmp,nm,p->", B, step, dx)
    predicted = -(gradient @ dx + jnp.sum(own * step) + quadratic / 2)
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], point.unknowns))
    flat = jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(point.unknowns)
    return x, jax.vmap(unravel)(flat + step), gain, predicted


def _with_diagonal(matrix: Array, factor: Array) -> Array:
    """A matrix with its diagonal times `factor`, and 1 where it is 0."""
    diagonal = jnp.diagonal(matrix)
    return matrix + jnp.diag(jnp.where(diagonal > 0, (factor - 1) * diagonal, 1.0))


def _free_solve(matrix: Array, vector: Array, held: Array) -> Array:
    """The solution in the coordinates that are not held, 0 in the others."""
    free = ~held
    inside = free[:, None] & free[None, :]
    matrix = jnp.where(inside, matrix, jnp.eye(vector.size, dtype=vector.dtype))
    return jnp.linalg.solve(matrix, jnp.where(free, vector, 0.0))


def _iterate(residual, shared, robust, chart, record: Recorder, start, rows, runs, rtol, atol):
    """Runs the iteration, writes its iterates to `record` and returns the outcome."""
    going, point = _Going(start), None
    while record.steps < record.max_steps:
        going, point = record.kept(going, point)
        # The given rows are those of the start.
        rows = None if record.steps else rows
        best, idle, damping, growth = going.best, going.idle, going.damping, going.growth
        params = record.compiled(_params, chart, going.trial[0])(chart, going.trial[0])
        if rows is None:
            given = residual, params, going.trial[1], runs
            rows = record.compiled(linearise_by_run, *given)(*given)
            record.spent(1, 1)
        given = shared, robust, chart, *going.trial, params, rows
        new, loss, norm, finite, values = record.compiled(_evaluate, *given)(*given)
        fine = bool(finite)
        # The first point is accepted as it is; a later one must lower the loss.
        accepted = fine and (point is None or float(loss) < best)
        record.note(params, loss, norm, values, (new, rows), accepted)
        if not fine and record.nonfinite_end() is not None:
            return record.nonfinite_end()
        idled = False
        # Without noise the loss goes to zero: stop at the rounding error of the first loss.
        rounding = jnp.finfo(new.x.dtype).eps * record.rows[0][0]
        tolerance = atol + rtol * record.loss + float(rounding)
        if accepted:
            idled = point is not None and best - float(loss) <= tolerance
            quality = (best - float(loss)) / going.predicted if going.predicted > 0 else 1.0
            if point is not None:
                damping *= max(1 / 3, 1 - (2 * min(quality, 1.0) - 1) ** 3)
            point, best, growth = new, float(loss), 4.0
        else:
            damping, growth = max(damping, 1e-4) * growth, 2 * growth
        idle = idle + 1 if idled else 0 if accepted else idle
        size = jnp.asarray(damping, new.x.dtype)
        assert point is not None  # without a finite start the fit has ended
        given = chart, point, size
        x, unknowns, gain, predicted = record.compiled(_propose, *given)(*given)
        going = _Going((x, unknowns), float(predicted), best, idle, damping, growth)
        if accepted and (float(gain) <= tolerance or idle >= _IDLE):
            return FIT_RESULTS.successful
        if record.rejects_too_many or not bool(all_finite(going.trial)):
            return FIT_RESULTS.stalled
    return FIT_RESULTS.max_steps_reached


def _params(chart: Chart, x: Array) -> PyTree:
    return chart.params(x)
