"""Outcomes, progress and history of a fit, and the recorder of the best iterate."""

import enum
import time
from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ..._expects import refuse_below
from ..._result import RESULTS
from .._base import named_values
from ._programs import Programs
from ._saved import SavedFit


class FIT_RESULTS(RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
    """How a fit ended; extends the outcomes of a simulation."""

    max_steps_reached = (
        "the fit used all its steps before the loss settled; the best iterate is returned; raise "
        "`max_steps`, use a smaller or decaying learning rate, or continue from there"
    )
    interrupted = "the fit was interrupted; the best iterate so far is returned"
    stalled = (
        "no further step lowered the loss, although its gradient is not zero; the loss is probably "
        "rough here: use shorter segments, smaller time steps, or another start or solver"
    )
    nonfinite_start = (
        "the loss or its derivative at the start values is not finite; check the start values, the "
        "data and their masks (a masked entry must be finite too)"
    )
    nonfinite_trial = (
        "several trial steps in a row led to a loss or derivative that is not finite; the best "
        "iterate is kept; use a smaller learning rate or tighter bounds"
    )


class Stage(enum.Enum):
    """Stage of a fit when it calls its callback."""

    COMPILING = "compiling"
    RUNNING = "running"
    FINISHED = "finished"


class Evaluations(eqx.Module):
    """How often a fit has evaluated its loss.

    **Arguments:**

    - `loss`: all evaluations of the loss (or of the residuals), with or without a derivative.
    - `gradient`: evaluations that include a derivative: a gradient or, for least squares, a whole
      Jacobian.
    """

    loss: int
    gradient: int


class FitProgress(eqx.Module):
    """Progress of a fit, passed to its callback.

    **Arguments:**

    - `stage`: compiling, running or finished.
    - `step`, `max_steps`: number of evaluated iterates so far, and its limit.
    - `loss`, `best_loss`: loss of this iterate and of the best one; NaN before the first.
    - `gradient_norm`: Euclidean norm of the gradient with respect to the raw parameters.
    - `values`: physical values of this iterate by name.
    - `evaluations`: evaluations so far.
    - `seconds`: time since the fit began.
    """

    stage: Stage
    step: int
    max_steps: int
    loss: float
    best_loss: float
    gradient_norm: float
    values: dict[str, Any]
    evaluations: Evaluations
    seconds: float


Callback = Annotated[Callable[[int, FitProgress], Any], "(step, progress)"]
"""`callback(step, progress)`; the return value is ignored. Raise `KeyboardInterrupt` to stop a fit."""


class FitHistory(eqx.Module):
    """All `i` evaluated iterates of a fit, as NumPy arrays.

    **Arguments:**

    - `loss`: shape `(i,)`; not finite for an iterate that was rejected for that reason.
    - `gradient_norm`: shape `(i,)`.
    - `accepted`: shape `(i,)`; whether the iteration continued from this iterate.
    - `values`: physical values by name, each of shape `(i, ...)`.
    - `gradient_evaluations`: shape `(i,)`, cumulative count up to this iterate.
    - `seconds`: shape `(i,)`, time since the fit began.
    """

    loss: Float[np.ndarray, " i"]
    gradient_norm: Float[np.ndarray, " i"]
    accepted: Bool[np.ndarray, " i"]
    values: dict[str, np.ndarray]
    gradient_evaluations: np.ndarray
    seconds: Float[np.ndarray, " i"]


class FitResult(eqx.Module):
    """The outcome of `fit` or `least_squares`.

    **Arguments:**

    - `params`: the best iterate, of the same type as the start.
    - `loss`: its loss; NaN if the fit was interrupted before its first evaluation.
    - `aux`: auxiliary output of the loss at the best iterate, or `None`.
    - `linearisation`: from `least_squares`: residuals and Jacobian there, for `uncertainty`.
    - `history`: all evaluated iterates.
    - `evaluations`: how often the loss was evaluated, and how often with a derivative.
    - `steps`, `rejected`: numbers of evaluated and of rejected iterates.
    - `compile_seconds`, `run_seconds`: wall time.
    - `result`: a member of `FIT_RESULTS`.
    """

    params: PyTree[Array]
    loss: float
    aux: Any
    linearisation: Any
    history: FitHistory
    evaluations: Evaluations
    steps: int
    rejected: int
    compile_seconds: float
    run_seconds: float
    result: Any  # members of this enumeration are not instances of it

    def values(self) -> dict[str, Array]:
        """Physical values of the best iterate by name."""
        return named_values(self.params)

    @property
    def message(self) -> str:
        """Cause and remedy of the outcome in words; empty if the fit converged."""
        return FIT_RESULTS[self.result]


class FitError(RuntimeError):
    """Raised with `throw=True` if a fit failed; `error.result` is the `FitResult`."""

    def __init__(self, result: FitResult):
        super().__init__(result.message)
        self.result = result


class Recorder:
    """Keeps the best iterate, the history and the counts while a fit runs."""

    def __init__(
        self,
        params: PyTree,
        max_steps: int,
        max_rejections: int,
        callback: Callback | None,
        programs: Programs | None,
        files: SavedFit | None = None,
    ):
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}.")
        if max_rejections < 0:
            raise ValueError(f"max_rejections must be at least 0, got {max_rejections}.")
        self.start = time.perf_counter()
        self.max_steps, self.max_rejections, self.callback = max_steps, max_rejections, callback
        self.programs, self.files = Programs() if programs is None else programs, files
        self.params, self.loss, self.extra = params, float("nan"), None
        self.loss_evaluations = self.gradient_evaluations = self.rejected = self.in_a_row = 0
        self.compile_seconds = 0.0
        self.rows: list[tuple] = []
        self.last = (float("nan"), float("nan"), {})

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    @property
    def steps(self) -> int:
        return len(self.rows)

    def report(self, stage: Stage) -> None:
        if self.callback is None:
            return
        loss, norm, values = self.last
        counts = Evaluations(self.loss_evaluations, self.gradient_evaluations)
        progress = FitProgress(
            stage, self.steps, self.max_steps, loss, self.loss, norm, values, counts, self.seconds
        )
        self.callback(self.steps, progress)

    def compiled(self, function: Callable, *args) -> Callable:
        """`function` compiled for these arguments; counts the time as compile time."""
        self.report(Stage.COMPILING)
        start = time.perf_counter()
        try:
            return self.programs.compiled(function, *args)
        finally:
            self.compile_seconds += time.perf_counter() - start

    def spent(self, losses: int, gradients: int) -> None:
        """Adds to the counts of loss evaluations and of those with a derivative."""
        self.loss_evaluations += losses
        self.gradient_evaluations += gradients

    def note(self, params, loss, norm, values, extra, accepted: bool) -> None:
        """Records one evaluated iterate and calls the callback."""
        loss, norm = float(loss), float(norm)
        values = {name: np.asarray(value) for name, value in values.items()}
        self.rows.append((loss, norm, accepted, values, self.gradient_evaluations, self.seconds))
        self.rejected += not accepted
        self.in_a_row = 0 if accepted else self.in_a_row + 1
        best = self.loss if self.loss == self.loss else float("inf")
        if accepted and loss < best:
            self.params, self.loss, self.extra = params, loss, extra
        self.last = (loss, norm, values)
        self.report(Stage.RUNNING)

    def kept(self, carry: PyTree, known: PyTree | None = None) -> tuple[PyTree, PyTree | None]:
        """What the iteration carries, to be called before every iterate; see `SavedFit.kept`."""
        return (carry, known) if self.files is None else self.files.kept(self, carry, known)

    @property
    def rejects_too_many(self) -> bool:
        return self.in_a_row > self.max_rejections

    def nonfinite_end(self) -> Any:
        """The outcome after an iterate that is not finite; `None` if the fit may continue."""
        if self.steps == self.rejected:
            return FIT_RESULTS.nonfinite_start
        return FIT_RESULTS.nonfinite_trial if self.rejects_too_many else None

    def finish(self, result, aux, linearisation, throw: bool) -> FitResult:
        """Returns the result of the fit so far; raises `FitError` if it failed and `throw`."""
        try:
            self.report(Stage.FINISHED)
        except KeyboardInterrupt:
            result = FIT_RESULTS.interrupted
        empty: Any = np.zeros(0), np.zeros(0), np.zeros(0, bool), {}, np.zeros(0, int), np.zeros(0)
        rows = jax.tree.map(lambda *x: np.stack(x), *self.rows) if self.rows else empty
        fitted = FitResult(
            params=self.params,
            loss=self.loss,
            aux=aux,
            linearisation=linearisation,
            history=FitHistory(*rows),
            evaluations=Evaluations(self.loss_evaluations, self.gradient_evaluations),
            steps=self.steps,
            rejected=self.rejected,
            compile_seconds=self.compile_seconds,
            run_seconds=self.seconds - self.compile_seconds,
            result=result,
        )
        if throw and any(result is x for x in _FAILURES):
            raise FitError(fitted)
        return fitted


_FAILURES = (FIT_RESULTS.nonfinite_start, FIT_RESULTS.nonfinite_trial)


def check_tolerances(rtol: float, atol: float) -> None:
    """Refuses stopping criteria that are negative or not finite."""
    refuse_below("rtol", rtol, 0)
    refuse_below("atol", atol, 0)


def all_finite(tree: PyTree[Array]) -> Bool[Array, ""]:
    """Whether every entry of every leaf is finite."""
    return jnp.all(jnp.isfinite(ravel_pytree(tree)[0]))


def midpoint(a: PyTree[Array], b: PyTree[Array]) -> PyTree[Array]:
    """The tree half way between two trees of arrays."""
    return jax.tree.map(lambda x, y: (x + y) / 2, a, b)
