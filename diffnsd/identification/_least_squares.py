"""Nonlinear least squares with the descents and searches of Optimistix.

The iteration is run here, one evaluation at a time, and not inside a compiled loop: evaluations are
counted one by one, an interrupt keeps the best iterate, and a simulation is compiled once.
Residuals and Jacobian come together from one evaluation, since for few parameters the columns
travel along with the simulation.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._jax import where
from ._base import check_parameters, named_values, parameter_nodes
from ._linearise import FORWARD, AbstractJacobian, AbstractRobustLoss, linearise
from ._outcome import FIT_RESULTS, Callback, FitResult, Recorder, all_finite, midpoint
from ._programs import Programs

_INITIAL_DAMPING = 1e-2
"""First Levenberg-Marquardt damping, relative to the squared norms of the Jacobian's columns."""

_IDLE = 2
"""Accepted steps in a row without improvement after which the fit has converged."""


def least_squares(
    residual: Callable[[PyTree], PyTree[Array]],
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
    throw: bool = True,
) -> FitResult:
    """Minimises `loss = sum(residual^2) / 2` over the parameters.

    A parameter with bounds is iterated as the value itself, and held while the loss draws it
    against a bound; the others as their raw numbers. All are scaled by the largest column norms of
    the Jacobian so far, as in MINPACK, so that the units of a parameter do not matter. The fit has
    converged when the whole Gauss-Newton step would lower the loss by at most `atol + rtol * loss`,
    or when two accepted steps in a row did not change it by more. A trial that is rejected, or whose
    residuals or Jacobian are not finite, is followed by one at most half way back. Ctrl-C ends the
    fit with the best iterate and `FIT_RESULTS.interrupted`.

    **Arguments:**

    - `residual`: pure function of the parameters to a pytree of floating arrays, best scaled to
      about one standard deviation of the measurement.
    - `params`: pytree of floating arrays, usually from `parameters`; few, since all columns of the
      Jacobian are held.
    - `solver`: a Gauss-Newton type solver of Optimistix whose `descent` and `search` are used;
      `optimistix.LevenbergMarquardt` by default. Its own tolerances are not used.
    - `max_steps`: limit on the evaluations.
    - `rtol`, `atol`: when the fit stops; `atol` has the unit of the loss.
    - `mask`: which residuals count; one boolean array or a pytree, of leading shape (`linearise`).
    - `robust`: for example `Huber(delta)`, instead of the sum of squares.
    - `jacobian`: `ForwardJacobian()`, or `ReverseJacobian()` for fewer residuals than parameters.
    - `max_rejections`: trials in a row that may be rejected.
    - `callback`: `callback(step, FitProgress)`, before compiling and after each evaluation.
    - `programs`: to compile nothing anew in fits that differ in values only; see `Programs`.
    - `throw`: whether a failed fit raises.

    **Returns:** a `FitResult` with `linearisation`, from which `uncertainty` makes standard errors.

    **Raises:** `FitError`, if `throw`, when the residuals are not finite at the start or the fit
    cannot get away from where they are not. `TypeError` or `ValueError` for parameters, masks or a
    solver that do not fit.

    Reference: D. W. Marquardt (1963), doi:10.1137/0111030; J. J. Moré, "The Levenberg-Marquardt
    algorithm" (1978), doi:10.1007/BFb0067700; with bounds: C. Kanzow, N. Yamashita, M. Fukushima
    (2004), doi:10.1016/j.cam.2004.02.013.
    """
    check_parameters(params)
    solver = optx.LevenbergMarquardt(rtol=rtol, atol=atol) if solver is None else solver
    if not isinstance(solver, optx.AbstractGaussNewton):
        raise TypeError(
            "solver must be a Gauss-Newton type solver of Optimistix (LevenbergMarquardt, "
            f"IndirectLevenbergMarquardt, Dogleg, GaussNewton, ...), got {solver!r}."
        )
    chart = _Chart.of(params)
    record = Recorder(params, max_steps, max_rejections, callback, programs)
    try:
        start = jax.jit(lambda p: chart.start(p))(params)
        fixed = residual, chart, robust, jacobian
        run = record.compiled(_evaluate, *fixed, start, mask)
        result = _iterate(lambda x: run(*fixed, x, mask), start, chart, solver, record, rtol, atol)
    except KeyboardInterrupt:
        result = FIT_RESULTS.interrupted
    return record.finish(result, None, record.extra, throw)


def _evaluate(residual, chart: "_Chart", robust, jacobian, x, mask):
    """Residuals and Jacobian at `x`, with what the iteration and the record want to know."""
    params = chart.params(x)
    here = linearise(residual, params, mask=mask, robust=robust, jacobian=jacobian)
    slope = here.jacobian / chart.slopes(params)[None, :]
    missing = None if robust is None else robust.missing_curvature(here.residual)
    point = _Point(x, here.residual, slope, missing)
    loss, gradient = jnp.sum(point.residual**2) / 2, point.jacobian.T @ point.residual
    norm, finite = jnp.sqrt(gradient @ gradient), all_finite((loss, point.jacobian))
    return point, (params, here), loss, norm, finite, named_values(params)


class _Chart(eqx.Module):
    """The coordinates `x` of the iteration: the value itself within its bounds, or else `raw`.

    An optimum on a bound is far away in `raw`, and a step across the bend of a bounded map lands
    where its slope is nearly zero. In the value both are harmless: steps are cut off at the bounds
    `lo`, `hi` (which keep the distance from the true ones at which `raw` is still finite).
    """

    lo: Array
    hi: Array
    unravel: Callable = eqx.field(static=True)

    @classmethod
    def of(cls, params: PyTree) -> "_Chart":
        flat, unravel = ravel_pytree(params)
        edge = float(jnp.finfo(flat.dtype).eps) ** 0.6
        bounds = []
        for _, raw, transform, _ in parameter_nodes(params):
            sides = transform.limits() if transform.is_box else (-np.inf, np.inf)
            lo, hi = (np.broadcast_to(side, raw.shape) for side in sides)
            width = np.where(np.isfinite(hi - lo), hi - lo, 1.0)
            bounds.append(np.stack([lo + edge * width, hi - edge * width]).reshape(2, -1))
        lo, hi = (jnp.asarray(row, flat.dtype) for row in np.concatenate(bounds, axis=1))
        return cls(lo, hi, unravel)

    def start(self, params: PyTree) -> Array:
        """The coordinates of given parameters."""
        return self.clip(_coordinates(params))

    def slopes(self, params: PyTree) -> Array:
        """`dx / draw` of every coordinate."""
        return jax.jvp(_coordinates, (params,), (jax.tree.map(jnp.ones_like, params),))[1]

    def clip(self, x: Array) -> Array:
        """The nearest coordinates within the bounds."""
        return jnp.clip(x, self.lo, self.hi)

    def params(self, x: Array) -> PyTree:
        """The parameters with coordinates `x`."""
        return self.unravel(_in_boxes(lambda transform, x: transform.to_raw(x), self.unravel(x)))


def _coordinates(params: PyTree) -> Array:
    return _in_boxes(lambda transform, raw: transform.forward(raw), params)


def _in_boxes(function: Callable, params: PyTree) -> Array:
    """The numbers of `params`, flattened, with `function(transform, x)` of those within bounds."""
    parts = [
        (function(transform, x) if transform.is_box else x).ravel()
        for _, x, transform, _ in parameter_nodes(params)
    ]
    return jnp.concatenate(parts)


class _Point(eqx.Module):
    """An evaluated iterate: coordinates `(p,)`, residuals `(r,)` and Jacobian by `x` `(r, p)`.

    `missing` `(r,)` is the curvature that a robust loss lacks, as a share; `None` without one.
    """

    x: Array
    residual: Array
    jacobian: Array
    missing: Array | None


class _Carry(eqx.Module):
    """What the iteration carries between evaluations."""

    point: _Point
    scale: Array
    descent: PyTree
    search: PyTree


def _iterate(evaluate, start, chart: _Chart, solver, record: Recorder, rtol, atol):
    """Runs the iteration; what it finds goes into `record`. Returns the outcome."""
    trial, carry, propose = start, None, _propose
    idle, previous = 0, float("inf")
    while record.steps < record.max_steps:
        point, (params, here), loss, norm, finite, values = evaluate(trial)
        record.spent(1, 1)
        if not bool(finite):
            record.note(params, loss, norm, values, None, accepted=False)
            end = record.nonfinite_end()
            if carry is None or end is not None:
                return end
            trial = midpoint(carry.point.x, trial)
            continue

        first = jnp.asarray(carry is None)
        if carry is None:
            if not np.any(np.asarray(here.mask)):
                raise ValueError("the mask leaves no residual to fit.")
            carry = record.compiled(_start, solver, point)(solver, point)
            propose = record.compiled(_propose, solver, chart, first, carry, point)
        carry, following, accept, gain = propose(solver, chart, first, carry, point)
        accepted, loss = bool(accept), float(loss)
        record.note(params, loss, norm, values, here, accepted)
        # Without noise the loss goes to zero: what rounding leaves of the first one is enough.
        rounding = jnp.finfo(trial.dtype).eps * record.rows[0][0]
        tolerance = atol + rtol * record.loss + float(rounding)
        if accepted:
            idle = idle + 1 if abs(previous - loss) <= tolerance else 0
            previous = loss
            if float(gain) <= tolerance or idle >= _IDLE:
                return FIT_RESULTS.successful
        if record.rejects_too_many or not np.all(np.isfinite(np.asarray(following))):
            return FIT_RESULTS.stalled
        trial = following
    return FIT_RESULTS.max_steps_reached


def _information(point: _Point, scale: Array, free: Array):
    """What Optimistix needs to know of an iterate, in scaled coordinates `x * scale`.

    Its Levenberg-Marquardt starts with damping 1; multiplying the residuals makes that
    `_INITIAL_DAMPING` relative to the columns and changes nothing else. Coordinates that are not
    free have no column; a tiny multiple of the unit matrix below keeps undamped steps finite. Rows
    whose residual is zero add the missing curvature: neither loss nor gradient know of them.
    """
    factor = _INITIAL_DAMPING**-0.5
    columns = jnp.where(free, 1 / scale, 0.0)[None, :]
    tiny = jnp.finfo(scale.dtype).eps ** 0.5 * jnp.eye(scale.size, dtype=scale.dtype)
    rows, residuals = [point.jacobian * columns, tiny], [point.residual, jnp.zeros_like(scale)]
    if point.missing is not None:
        rows.append(jnp.sqrt(point.missing)[:, None] * rows[0])
        residuals.append(jnp.zeros_like(point.residual))
    jacobian, residual = factor * jnp.concatenate(rows), factor * jnp.concatenate(residuals)
    return optx.FunctionInfo.ResidualJac(residual, lx.MatrixLinearOperator(jacobian))


def _columns(point: _Point) -> Array:
    """Norms of the columns of the Jacobian, 1 for a column of zeros."""
    norms = jnp.sqrt(jnp.sum(point.jacobian**2, axis=0))
    return jnp.where(norms > 0, norms, 1.0)


def _start(solver: optx.AbstractGaussNewton, point: _Point) -> _Carry:
    scale = _columns(point)
    info = _information(point, scale, jnp.ones_like(scale, bool))
    y = point.x * scale
    return _Carry(point, scale, solver.descent.init(y, info), solver.search.init(y, info))


def _propose(
    solver: optx.AbstractGaussNewton, chart: _Chart, first: Array, carry: _Carry, trial: _Point
):
    """Judges an evaluated trial and proposes the next; also the gain of a whole Newton step."""
    old, scale, everything = carry.point, carry.scale, jnp.ones_like(first, shape=trial.x.shape)
    info, info_trial = (_information(p, scale, everything) for p in (old, trial))
    # Optimistix starts in the default precision, whatever that of the parameters.
    with jax.numpy_dtype_promotion("standard"):
        step_size, accept, _, search = solver.search.step(
            first, old.x * scale, trial.x * scale, info, info_trial, carry.search
        )
    step_size = step_size.astype(trial.x.dtype)
    # A step that was cut off at a bound may have predicted no decrease: never accept an increase.
    accept = first | (accept & (jnp.sum(trial.residual**2) <= jnp.sum(old.residual**2)))
    point = where(accept, trial, old)
    scale = jnp.where(accept & ~first, jnp.maximum(scale, _columns(trial)), scale)

    # Held: on a bound, and drawn against it by the loss.
    gradient = point.jacobian.T @ point.residual
    held = ((point.x <= chart.lo) & (gradient > 0)) | ((point.x >= chart.hi) & (gradient < 0))
    free = ~held
    info = _information(point, scale, free)
    descent = solver.descent.query(point.x * scale, info, carry.descent)
    step, _ = solver.descent.step(step_size, descent)
    following = chart.clip(point.x + jnp.where(free, step / scale, 0.0))
    # Damping that starts small takes several rejections to shorten the step, and a solver without a
    # trust region never does.
    long = jnp.sum(((following - point.x) * scale) ** 2)
    long = long > jnp.sum(((trial.x - point.x) * scale) ** 2) / 4
    following = jnp.where(~accept & long, midpoint(point.x, trial.x), following)
    following_carry = _Carry(point, scale, descent, search)
    carry = jax.tree.map(
        lambda new, old: new.astype(old.dtype) if eqx.is_array(new) else new, following_carry, carry
    )
    return carry, following, accept, _newton_gain(info)


def _newton_gain(info: Any) -> Array:
    """Decrease of the loss that a whole Gauss-Newton step promises, `g^T (J^T J)^-1 g / 2`."""
    jacobian = info.jac.as_matrix()
    gradient = jacobian.T @ info.residual
    newton = jnp.linalg.solve(jacobian.T @ jacobian, gradient)
    return _INITIAL_DAMPING * gradient @ newton / 2
