"""Minimising any differentiable loss with any Optax transformation."""

from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from ..._arguments import checked_arguments
from ..._checkpointing import Checkpointing
from ..._expects import returned
from .._base import check_parameters, named_values
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
from ._saved import MISSING, SavedFit


@checked_arguments
def fit(
    loss: Annotated[Callable[[PyTree], Any], "(params)"],
    params: PyTree[Array],
    optimizer: optax.GradientTransformation | optax.GradientTransformationExtraArgs,
    *,
    max_steps: int = 200,
    rtol: float = 1e-6,
    atol: float = 0.0,
    patience: int = 20,
    max_rejections: int = 8,
    callback: Callback | None = None,
    programs: Programs | None = None,
    save: Checkpointing | None = None,
    throw: bool = True,
) -> FitResult:
    """Minimises `loss(params)` with a gradient-based optimizer and keeps the best iterate.

    The fit has converged when a step changes the loss by at most `atol + rtol |loss|` and every raw
    parameter by at most `rtol (1 + |raw|)`, or when over `patience` evaluations the loss has not
    improved by that much and has stayed within `atol + sqrt(rtol) |loss|` of the best. An iterate
    whose loss or gradient is not finite is rejected: the next one lies half way back to the last
    good one, and the optimizer state is not updated. Ctrl-C ends the fit with the best iterate so
    far and `result` `FIT_RESULTS.interrupted`.

    Every call compiles the loss again, so it may close over data. It is compiled once, before the
    first step (and once more for an optimizer with a line search). If `loss` is an
    `equinox.Partial` or `equinox.Module`, its arrays are passed as arguments, not compiled in as
    constants.

    **Arguments:**

    - `loss`: pure function of the parameters that returns a scalar or `(scalar, aux)`.
    - `params`: pytree of floating arrays, usually from `parameters`.
    - `optimizer`: any Optax transformation; `optax.adam(0.05)` and `optax.lbfgs()` are good starts.
    - `max_steps`: maximum number of evaluated iterates.
    - `rtol`, `atol`, `patience`: stopping criteria, not negative, `patience` at least 1; `atol` has the unit
      of the loss.
    - `max_rejections`: how many iterates in a row may be rejected.
    - `callback`: `callback(step, FitProgress)`, called before compiling and after each evaluated
      iterate.
    - `programs`: avoids recompilation across fits that differ only in values; see `Programs`.
    - `save`: a `Checkpointing`, which writes the fit to files and goes on from them, also with a larger
      `max_steps`; all but the `seconds` is as without an interruption.
    - `throw`: whether a failed fit raises.

    **Returns:** a `FitResult`. Its counts include evaluations inside a line search.

    **Raises:** `FitError`, if `throw`, when the loss is not finite at the start or the fit cannot
    leave a region where it is not finite; the error carries the result. `TypeError` or `ValueError`
    for parameters that cannot be optimised and for a loss that is not a scalar.
    """
    check_parameters(params)
    check_tolerances(rtol, atol)
    if patience < 1:
        raise ValueError(f"patience must be at least 1, got {patience}.")
    optimizer = optax.with_extra_args_support(optimizer)
    files = None
    if save is not None:
        given = loss, optimizer, rtol, atol, patience, max_rejections

        def like():
            return _at_start(params, optimizer), *eqx.filter_eval_shape(_evaluate, loss, params)

        files = SavedFit(save, given, params, like)
    record = Recorder(params, max_steps, max_rejections, callback, programs, files)
    try:
        evaluate = record.compiled(_evaluate, loss, params)
        result = _descend(loss, evaluate, params, optimizer, record, rtol, atol, patience)
        if record.extra is MISSING:
            record.spent(1, 1)
            record.extra = evaluate(loss, record.params)[1]
    except KeyboardInterrupt:
        result = FIT_RESULTS.interrupted
    aux = None if record.extra is MISSING else record.extra
    return record.finish(result, aux, None, throw)


def _at_start(params, optimizer) -> tuple:
    """Iterate, last good one, optimizer state; steps without gain; previous loss, change, loss to improve."""
    return params, params, optimizer.init(params), 0, float("nan"), float("inf"), float("inf")


def _descend(loss, evaluate, params, optimizer, record: Recorder, rtol, atol, patience):
    """Runs the iteration, writes its iterates to `record` and returns the outcome."""
    carry, update, known = _at_start(params, optimizer), None, None
    while record.steps < record.max_steps:
        carry, known = record.kept(carry, known)
        params, good, opt_state, idle, previous, change, reference = carry
        # A line search has no `aux`.
        aux = None if record.extra is None else MISSING
        if known is None:
            known, aux = evaluate(loss, params)
            record.spent(1, 1)
        value, grad, values, norm, finite = known
        record.note(params, value, norm, values, aux, accepted=bool(finite))
        if not bool(finite):
            end = record.nonfinite_end()
            if end is not None:
                return end
            params, known = midpoint(good, params), None
            carry = params, good, opt_state, idle, previous, change, reference
            continue

        good, current = params, float(value)
        tolerance = atol + rtol * abs(current)
        idle = 0 if reference - current > tolerance else idle + 1
        reference = current if idle == 0 else reference
        if abs(previous - current) <= tolerance and change <= rtol:
            return FIT_RESULTS.successful
        if idle >= patience:
            # Converged only if the loss does not oscillate.
            recent = [row[0] for row in record.rows[-patience:]]
            if max(recent) - record.loss <= atol + rtol**0.5 * abs(record.loss):
                return FIT_RESULTS.successful
        if record.steps == record.max_steps:
            break
        if update is None:
            update = record.compiled(_update, optimizer, loss, value, grad, opt_state, params)
        params, opt_state, change, known = update(optimizer, loss, value, grad, opt_state, params)
        change, previous = float(change), current
        record.spent(*_spent_in_line_search(opt_state))
        # A failed line search leaves no usable value: evaluate again.
        known = known if known is not None and bool(known[-1]) else None
        carry = params, good, opt_state, idle, previous, change, reference
    return FIT_RESULTS.max_steps_reached


def _with_aux(loss: Callable, params: PyTree) -> tuple[Array, Any]:
    """`loss(params)` as `(scalar, aux)`, checked."""
    out = loss(params)
    value, aux = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
    what = "one floating-point number, or (number, aux)"
    value = returned("loss(params)", value, what)
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            "the loss must return a floating point scalar, or (scalar, aux); it returned shape "
            f"{value.shape}, dtype {value.dtype}: take a mean or a sum."
        )
    return value, aux


def _evaluate(loss: Callable, params: PyTree):
    (value, aux), grad = jax.value_and_grad(lambda p: _with_aux(loss, p), has_aux=True)(params)
    return _described(value, grad, params), aux


def _described(value: Array, grad: PyTree, params: PyTree):
    """An evaluation with the quantities that are reported for it."""
    return value, grad, named_values(params), optax.tree.norm(grad), all_finite((value, grad))


def _update(optimizer, loss, value, grad, opt_state, params):
    """One optimizer step, and the evaluation of the new iterate if a line search provides it."""
    # Optax mixes dtypes (a count and a rate), which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(
            grad,
            opt_state,
            params,
            value=value,
            grad=grad,
            value_fn=lambda p: _with_aux(loss, p)[0],
        )
    new = optax.apply_updates(params, updates)
    changes = jax.tree.map(lambda a, b: jnp.max(jnp.abs(b - a) / (1 + jnp.abs(a))), params, new)
    change = jnp.max(jnp.stack(jax.tree.leaves(changes)))
    known = None
    for state in _line_searches(opt_state):
        if state.grad is not None:
            known = _described(state.value, state.grad, new)
    return new, opt_state, change, known


def _line_searches(opt_state) -> list:
    """States of Optax line searches inside the state of an optimizer."""
    kinds = (optax.ScaleByZoomLinesearchState, optax.ScaleByBacktrackingLinesearchState)
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, kinds))
    return [node for node in nodes if isinstance(node, kinds)]


def _spent_in_line_search(opt_state) -> tuple[int, int]:
    """Evaluations of the loss, and of its gradient, during the last update.

    Each step of Optax's zoom search evaluates the value and the gradient. Each step of its
    backtracking search evaluates the value; one gradient follows at the end if it is stored.
    """
    losses = gradients = 0
    for state in _line_searches(opt_state):
        steps = int(state.info.num_linesearch_steps)
        is_zoom = isinstance(state, optax.ScaleByZoomLinesearchState)
        losses += steps
        gradients += steps if is_zoom else int(state.grad is not None and steps > 0)
    return losses, gradients
