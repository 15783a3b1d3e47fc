"""Nonlinear least squares with the descents and searches of Optimistix.

The iteration runs here, one evaluation at a time, not inside a compiled loop. So evaluations can be
counted, an interrupt keeps the best iterate, and a simulation is compiled once. One evaluation gives
both residuals and Jacobian: for few parameters, the Jacobian's columns are propagated along with the
simulation.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
from jaxtyping import Array, PyTree

from ..._arguments import checked_arguments
from ..._checkpointing import Checkpointing
from ..._jax import where
from .._base import check_parameters, named_values
from ..residuals._linearise import (
    FORWARD,
    AbstractJacobian,
    AbstractLinearised,
    AbstractRobustLoss,
    Linearisation,
    linearise,
)
from ..residuals._over_runs import ResidualOverRuns, Shares
from ..unknowns._chart import Chart
from ._outcome import (
    FIT_RESULTS,
    Callback,
    FitResult,
    Recorder,
    all_finite,
    check_tolerances,
    midpoint,
)
from ._programs import Programs
from ._saved import SavedFit

_INITIAL_DAMPING = 1e-2
"""First Levenberg-Marquardt damping, relative to the squared norms of the Jacobian's columns."""

_IDLE = 2
"""Number of accepted steps in a row without improvement after which the fit has converged."""


@checked_arguments
def least_squares(
    residual: Annotated[Callable[[PyTree], PyTree[Array]], "(params)"],
    params: PyTree[Array],
    *,
    solver: optx.AbstractLeastSquaresSolver | None = None,
    max_steps: int = 50,
    rtol: float = 1e-6,
    atol: float = 0.0,
    mask: PyTree | None = None,
    robust: AbstractRobustLoss | None = None,
    jacobian: AbstractJacobian = FORWARD,
    max_rejections: int = 8,
    callback: Callback | None = None,
    programs: Programs | None = None,
    save: Checkpointing | None = None,
    throw: bool = True,
) -> FitResult:
    """Minimises `loss = sum(residual^2) / 2` over the parameters.

    The iteration works on the value itself for a parameter with bounds, and on the raw numbers for
    all others. A bounded parameter is held fixed while the loss pushes it against its bound. All are
    scaled by the largest column norms of the Jacobian so far, as in MINPACK, so units do not matter.
    The fit has converged when a full Gauss-Newton step would lower the loss by at most
    `atol + rtol * loss`, or when two accepted steps in a row did not change it by more. If a trial is
    rejected, or its residuals or Jacobian are not finite, the next trial is at most half as far from
    the last accepted point. Ctrl-C ends the fit with the best iterate and `FIT_RESULTS.interrupted`.

    **Arguments:**

    - `residual`: pure function of the parameters that returns a pytree of floating arrays, best
      scaled to about one standard deviation of the measurement.
    - `params`: pytree of floating arrays, usually from `parameters`; few of them, since the whole
      Jacobian is stored.
    - `solver`: a Gauss-Newton type solver of Optimistix whose `descent` and `search` are used;
      `optimistix.LevenbergMarquardt` by default. Its own tolerances are not used.
    - `max_steps`: maximum number of evaluations.
    - `rtol`, `atol`: stopping criteria; `atol` has the unit of the loss.
    - `mask`: which residuals count; a boolean array or a pytree of them, as in `linearise`.
    - `robust`: for example `Huber(delta)`, instead of the sum of squares.
    - `jacobian`: `ForwardJacobian()`, or `ReverseJacobian()` for fewer residuals than parameters.
    - `max_rejections`: how many trials in a row may be rejected.
    - `callback`: `callback(step, FitProgress)`, called before compiling and after each evaluation.
    - `programs`: avoids recompilation across fits that differ only in values; see `Programs`.
    - `save`: a `Checkpointing`, which writes the fit to files and goes on from them, as in `fit`.
    - `throw`: whether a failed fit raises.

    **Returns:** a `FitResult` with `linearisation`, from which `uncertainty` computes standard errors.

    **Raises:** `FitError`, if `throw`, when the residuals are not finite at the start or the fit
    cannot leave a region where they are not finite. `TypeError` or `ValueError` for unsuitable
    parameters, masks or solvers.

    Reference: D. W. Marquardt (1963), doi:10.1137/0111030; J. J. Moré, "The Levenberg-Marquardt
    algorithm" (1978), doi:10.1007/BFb0067700; with bounds: C. Kanzow, N. Yamashita, M. Fukushima
    (2004), doi:10.1016/j.cam.2004.02.013.
    """
    check_parameters(params)
    check_tolerances(rtol, atol)
    solver = optx.LevenbergMarquardt(rtol=rtol, atol=atol) if solver is None else solver
    if not isinstance(solver, optx.AbstractGaussNewton):
        raise TypeError(
            "solver must be a Gauss-Newton type solver of Optimistix (LevenbergMarquardt, "
            f"IndirectLevenbergMarquardt, Dogleg, GaussNewton, ...), got {solver!r}."
        )
    if mask is not None and not any(np.any(np.asarray(m)) for m in jax.tree.leaves(mask)):
        raise ValueError("the mask leaves no residual to fit.")
    chart = Chart.of(params)
    start = jax.jit(lambda p: chart.start(p))(params)
    fixed = residual, chart, robust, jacobian
    files = None
    if save is not None:

        def like():
            point, (_, here), *_ = eqx.filter_eval_shape(_evaluate, *fixed, start, mask)
            return (start, eqx.filter_eval_shape(_start, solver, point), 0, 0.0), None, here

        given = residual, solver, mask, robust, jacobian, rtol, atol, max_rejections
        files = SavedFit(save, given, params, like)
    record = Recorder(params, max_steps, max_rejections, callback, programs, files)
    try:
        own = isinstance(residual, AbstractLinearised)
        run = _judged if own else record.compiled(_evaluate, *fixed, start, mask)
        result = _iterate(lambda x: run(*fixed, x, mask), start, chart, solver, record, rtol, atol)
    except KeyboardInterrupt:
        result = FIT_RESULTS.interrupted
    found = record.extra
    found = found.gathered() if isinstance(found, Shares) else found
    return record.finish(result, None, found, throw)


def _evaluate(residual, chart: "Chart", robust, jacobian, x, mask):
    """Residuals and Jacobian at `x`, with the quantities the iteration and the record need."""
    params = chart.params(x)
    spread = isinstance(residual, ResidualOverRuns)
    rows = residual.rows if spread else partial(_rows, residual)
    return _evaluated(chart, x, params, *rows(params, mask, robust, jacobian))


def _judged(residual: Any, chart: Chart, robust, jacobian, x, mask):
    """The same for residuals that linearise themselves."""
    params = _params(chart, x)
    here = residual.linearised(params, mask, robust, jacobian)
    return _evaluated_here(chart, x, params, here, robust)


@eqx.filter_jit
def _params(chart: Chart, x):
    return chart.params(x)


@eqx.filter_jit
def _evaluated_here(chart: Chart, x, params, here: Linearisation, robust):
    return _evaluated(chart, x, params, here, _reduced(here, robust))


def _evaluated(chart: Chart, x, params, here, rows):
    """What the iteration and the record need of an evaluation."""
    reduced, slope, bent = rows
    scale = chart.slopes(params)[None, :]
    point = _Point(x, reduced, slope / scale, None if bent is None else bent / scale)
    loss, gradient = jnp.sum(point.residual**2) / 2, point.jacobian.T @ point.residual
    norm, finite = jnp.sqrt(gradient @ gradient), all_finite((loss, point.jacobian))
    return point, (params, here), loss, norm, finite, named_values(params)


def _rows(residual, params, mask, robust, jacobian):
    """The linearisation of residuals, and what a step needs of it."""
    here = linearise(residual, params, mask=mask, robust=robust, jacobian=jacobian)
    return here, _reduced(here, robust)


def _reduced(here: Linearisation, robust):
    """What a step needs of a linearisation: residuals, Jacobian and `_Point.bent`."""
    bent = None
    if robust is not None:
        bent = jnp.sqrt(robust.missing_curvature(here.residual))[:, None] * here.jacobian
    return here.residual, here.jacobian, bent


class _Point(eqx.Module):
    """An evaluated iterate: coordinates `(p,)`, residuals `(r,)`, Jacobian with respect to `x` `(r, p)`.

    `bent` `(r, p)`: rows with the curvature that is missing from a robust loss; `None` without one.
    """

    x: Array
    residual: Array
    jacobian: Array
    bent: Array | None


class _Carry(eqx.Module):
    """State of the iteration between evaluations."""

    point: _Point
    scale: Array
    descent: PyTree
    search: PyTree


def _iterate(evaluate, start, chart: Chart, solver, record: Recorder, rtol, atol):
    """Runs the iteration, writes its iterates to `record` and returns the outcome."""
    going, propose = (start, None, 0, float("inf")), None
    while record.steps < record.max_steps:
        (trial, carry, idle, previous), _ = record.kept(going)
        point, (params, here), loss, norm, finite, values = evaluate(trial)
        record.spent(1, 1)
        if not bool(finite):
            record.note(params, loss, norm, values, None, accepted=False)
            end = record.nonfinite_end()
            if carry is None or end is not None:
                return end
            going = midpoint(carry.point.x, trial), carry, idle, previous
            continue

        first = jnp.asarray(carry is None)
        if carry is None:
            carry = record.compiled(_start, solver, point)(solver, point)
        if propose is None:
            propose = record.compiled(_propose, solver, chart, first, carry, point)
        carry, following, accept, gain = propose(solver, chart, first, carry, point)
        accepted, loss = bool(accept), float(loss)
        record.note(params, loss, norm, values, here, accepted)
        # Without noise the loss goes to zero: stop at the rounding error of the first loss.
        rounding = jnp.finfo(trial.dtype).eps * record.rows[0][0]
        tolerance = atol + rtol * record.loss + float(rounding)
        if accepted:
            idle = idle + 1 if abs(previous - loss) <= tolerance else 0
            previous = loss
            if float(gain) <= tolerance or idle >= _IDLE:
                return FIT_RESULTS.successful
        if record.rejects_too_many or not np.all(np.isfinite(np.asarray(following))):
            return FIT_RESULTS.stalled
        going = following, carry, idle, previous
    return FIT_RESULTS.max_steps_reached


def _information(point: _Point, scale: Array, free: Array):
    """The data of an iterate for Optimistix, in scaled coordinates `x * scale`.

    Its Levenberg-Marquardt starts with damping 1. Multiplying the residuals by a constant turns that
    into `_INITIAL_DAMPING` relative to the columns and changes nothing else. Columns of fixed
    coordinates are zero; an appended tiny multiple of the unit matrix keeps undamped steps finite.
    Rows with zero residual add the missing curvature without changing loss or gradient.
    """
    factor = _INITIAL_DAMPING**-0.5
    columns = jnp.where(free, 1 / scale, 0.0)[None, :]
    tiny = jnp.finfo(scale.dtype).eps ** 0.5 * jnp.eye(scale.size, dtype=scale.dtype)
    rows, residuals = [point.jacobian * columns, tiny], [point.residual, jnp.zeros_like(scale)]
    if point.bent is not None:
        rows.append(point.bent * columns)
        residuals.append(jnp.zeros_like(point.residual))
    jacobian, residual = factor * jnp.concatenate(rows), factor * jnp.concatenate(residuals)
    return optx.FunctionInfo.ResidualJac(residual, lx.MatrixLinearOperator(jacobian))


def _columns(point: _Point) -> Array:
    """Column norms of the Jacobian, 1 for a zero column."""
    norms = jnp.sqrt(jnp.sum(point.jacobian**2, axis=0))
    return jnp.where(norms > 0, norms, 1.0)


def _start(solver: optx.AbstractGaussNewton, point: _Point) -> _Carry:
    scale = _columns(point)
    info = _information(point, scale, jnp.ones_like(scale, bool))
    y = point.x * scale
    return _Carry(point, scale, solver.descent.init(y, info), solver.search.init(y, info))


def _propose(
    solver: optx.AbstractGaussNewton, chart: Chart, first: Array, carry: _Carry, trial: _Point
):
    """Accepts or rejects an evaluated trial and proposes the next.

    Also returns the predicted gain of a full Gauss-Newton step.
    """
    old, scale, everything = carry.point, carry.scale, jnp.ones_like(first, shape=trial.x.shape)
    info, info_trial = (_information(p, scale, everything) for p in (old, trial))
    # Optimistix starts in the default precision, whatever the precision of the parameters.
    with jax.numpy_dtype_promotion("standard"):
        step_size, accept, _, search = solver.search.step(
            first, old.x * scale, trial.x * scale, info, info_trial, carry.search
        )
    step_size = step_size.astype(trial.x.dtype)
    # A step clipped at a bound may predict no decrease: never accept an increase.
    accept = first | (accept & (jnp.sum(trial.residual**2) <= jnp.sum(old.residual**2)))
    point = where(accept, trial, old)
    scale = jnp.where(accept & ~first, jnp.maximum(scale, _columns(trial)), scale)

    # Held: on a bound, with the loss pushing against it.
    gradient = point.jacobian.T @ point.residual
    held = ((point.x <= chart.lo) & (gradient > 0)) | ((point.x >= chart.hi) & (gradient < 0))
    free = ~held
    info = _information(point, scale, free)
    descent = solver.descent.query(point.x * scale, info, carry.descent)
    step, _ = solver.descent.step(step_size, descent)
    following = chart.clip(point.x + jnp.where(free, step / scale, 0.0))
    # If the damping starts small, it takes several rejections to shorten the step; a solver without
    # a trust region never shortens it.
    long = jnp.sum(((following - point.x) * scale) ** 2)
    long = long > jnp.sum(((trial.x - point.x) * scale) ** 2) / 4
    following = jnp.where(~accept & long, midpoint(point.x, trial.x), following)
    following_carry = _Carry(point, scale, descent, search)
    carry = jax.tree.map(
        lambda new, old: new.astype(old.dtype) if eqx.is_array(new) else new, following_carry, carry
    )
    return carry, following, accept, _newton_gain(info)


def _newton_gain(info: Any) -> Array:
    """Predicted decrease of the loss for a full Gauss-Newton step, `g^T (J^T J)^-1 g / 2`."""
    jacobian = info.jac.as_matrix()
    gradient = jacobian.T @ info.residual
    newton = jnp.linalg.solve(jacobian.T @ jacobian, gradient)
    return _INITIAL_DAMPING * gradient @ newton / 2
