"""The rounds of a fit: weights, robust least squares, new weights; then errors and an honest status."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import identification
from ._job import Job, Residual, lanes, weights

HUBER = 0.5
SETTLED = 2e-3
"""Stop when a round changes every parameter by less than this fraction of its value, or by less than a
tenth of its standard error for independent residuals."""
CONVERGED = 0.5
"""Largest accepted change of a parameter in the last round, as a fraction of its (cluster-robust)
standard error."""
RESOLVED = 0.1
"""If the last step of a fit, accepted or rejected, is smaller than this fraction of the standard error,
it is attributed to roughness of the loss, not to distance from the optimum: bodies jump from one resting
face to another as the parameters change."""


@dataclass
class Identified:
    """The outcome of an identification, ready to be written.

    `loss` is the loss of the estimate `model`, with the weights of its round. `losses` are the losses
    of all evaluations and `rounds` their rounds; losses of different rounds are not comparable.
    Standard errors have a number for each number of a parameter, with names such as `size[2]`.
    `failed` lists the runs in which a step failed at the estimate. `status` is one of `running`,
    `converged`, `not converged`, `failed` and `interrupted`; the last of `warnings` says why the fit
    did not converge.
    """

    job: Job
    model: Any = None
    standard_errors: dict[str, float] = field(default_factory=dict)
    correlations: np.ndarray | None = None
    determined: dict[str, bool] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    loss: float = float("nan")
    losses: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    failed: tuple[int, ...] = ()
    rollouts: int = 0
    gradients: int = 0
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    status: str = "running"

    def __post_init__(self):
        self.model = self.job.model if self.model is None else self.model

    def numbers(self, name: str) -> dict[str, float]:
        """The estimate of a quantity, number by number."""
        return by_label(name, self.job.value(self.model, name))

    def value(self, name: str) -> float:
        """The estimate of a quantity that is one number."""
        return float(self.job.value(self.model, name))


def by_label(name: str, value: np.ndarray) -> dict[str, float]:
    """The numbers of a quantity by the names that uncertainty gives them: `mu`, `inertia[0]`."""
    return {
        name + (f"[{','.join(map(str, i))}]" if i else ""): float(value[i])
        for i in np.ndindex(*value.shape)
    }


def identify(
    job: Job,
    *,
    rounds: int = 6,
    steps: int = 7,
    record: Identified | None = None,
    notify: Callable[[Identified, str], None] = lambda *_: None,
) -> Identified:
    """Fits the free quantities of a job; on Ctrl-C returns the best estimate so far.

    **Arguments:** `rounds`: maximum number of rounds, each with new weights; `steps`: evaluations per round;
    `record`: to fill; `notify(record, stage)`: called on progress.
    """
    record = Identified(job) if record is None else record
    try:
        _Rounds(record, notify).run(rounds, steps)
    except KeyboardInterrupt:
        record.status = "interrupted"
    return record


PROGRAMS = identification.Programs()
"""Compiled programs of this process; everything that varies is an argument of them."""


class _Rounds:
    """What the rounds of one identification share."""

    def __init__(self, record: Identified, notify: Callable):
        self.record, self.notify, self.job = record, notify, record.job
        job = self.job
        self.lanes, self.runs = lanes(job), len(job)
        self.params, self.rebuild = identification.parameters(
            job.model,
            lambda m: {name: job.select(m, name) for name in job.free},
            {name: job.quantities[name].bounds for name in job.free},
            units={name: job.quantities[name].unit for name in job.free},
        )
        self.priors = tuple(name for name, q in job.quantities.items() if q.deviation is not None)

    def run(self, rounds: int, steps: int) -> None:
        """Fits with new weights in every round, then computes standard errors and the final status."""
        record, settled, moved = self.record, False, {}
        for index in range(rounds):
            label = f"round {index + 1} of {rounds}"
            before = self.numbers()
            fit = self.fit(label, steps, prior=True)
            record.losses += [float(x) for x in fit.history.loss]
            record.rounds += [index + 1] * fit.steps
            if fit.linearisation is not None:
                record.loss = fit.loss
                self.params, record.model = fit.params, self.rebuild(fit.params)
            if fit.result == identification.FIT_RESULTS.interrupted:
                raise KeyboardInterrupt
            self.notify(record, "saved")
            if fit.linearisation is None:
                record.status = "failed"
                record.warnings.append(fit.message)
                return
            moved = {label: abs(x - before[label]) for label, x in self.numbers().items()}
            settled = _settled(moved, self.params, fit.linearisation)
            if settled:
                break
        self.uncertainty()
        record.status = self.verdict(fit, {} if settled else moved)

    def numbers(self) -> dict[str, float]:
        """The free numbers at the present estimate."""
        return {k: x for name in self.job.free for k, x in self.record.numbers(name).items()}

    def residual(self, value: Any) -> Residual:
        """The residuals with the priors about the start values."""
        job = self.job
        centres = tuple(jnp.asarray(job.select(job.model, name)) for name in self.priors)
        spread = tuple(
            jnp.asarray(job.quantities[n].deviation, c.dtype)
            for n, c in zip(self.priors, centres, strict=True)
        )
        return Residual(
            self.rebuild, job.motion, self.lanes, value, centres, spread, job.select, self.priors
        )

    def fit(self, label: str, steps: int, prior: bool) -> identification.FitResult:
        """Computes the weights at the current estimate, and a least-squares fit with them."""
        record, job = self.record, self.job
        self.notify(record, f"weights, {label}")
        value, left_out = _timed(
            record, _weights, job.motion, record.model, self.lanes, job.deviations, job.tolerances
        )
        record.rollouts += self.runs
        residual = self.residual(value)
        count = sum(c.size for c in residual.centres)
        fit = identification.least_squares(
            residual,
            self.params,
            mask=((value > 0, ~left_out & prior), jnp.full(count, prior)),
            robust=identification.Huber(HUBER),
            max_steps=steps,
            rtol=1e-3,
            callback=lambda step, _: self.notify(record, f"{label}, evaluation {step}"),
            programs=PROGRAMS,
            throw=False,
        )
        record.failed = tuple(int(i) for i in np.flatnonzero(left_out))
        record.rollouts += self.runs * fit.evaluations.gradient
        record.gradients += self.runs * fit.evaluations.gradient
        record.compile_seconds += fit.compile_seconds
        record.run_seconds += fit.run_seconds
        return fit

    def uncertainty(self) -> None:
        """Computes cluster-robust standard errors (runs are the clusters) from the data alone."""
        record = self.record
        if self.runs < 2:
            record.warnings.append(
                "no standard errors: one run says nothing about how runs differ; give two or more."
            )
            return
        fit = self.fit("standard errors", 1, prior=False)
        if fit.result == identification.FIT_RESULTS.interrupted:
            raise KeyboardInterrupt
        if fit.linearisation is None:
            record.warnings.append(f"no standard errors: {fit.message}")
            return
        (errors, _, priors), each = fit.linearisation.shapes, np.arange(self.runs)
        groups = np.repeat(each, np.prod(errors[1:])), each, np.zeros(priors, int)
        found = identification.uncertainty(
            self.params, fit.linearisation, groups=np.concatenate(groups)
        )
        errors = zip(found.labels, found.standard_errors, strict=True)
        record.standard_errors = {name: float(error) for name, error in errors}
        known = zip(found.labels, found.determined, strict=True)
        record.determined = {name: bool(is_known) for name, is_known in known}
        record.correlations = np.asarray(found.correlations)
        record.warnings += [str(warning) for warning in found.warnings]

    def verdict(self, fit: identification.FitResult, moved: dict[str, float]) -> str:
        """The status of a finished fit; adds a warning with the reason if it has not converged."""
        record = self.record
        if record.failed:
            record.warnings.append(
                f"in the simulation of {len(record.failed)} of {self.runs} runs a step did not "
                "reach its tolerance at the estimate: look at these runs, and leave them out if "
                "their data are wrong."
            )
        limits = {name: CONVERGED * record.standard_errors.get(name, 0.0) for name in moved}
        still = [f"{name} by {moved[name]:.2g}" for name in moved if moved[name] > limits[name]]
        if not self.resolved(fit):
            reason = fit.message
        elif still:
            reason = (
                f"the last round still moved {', '.join(still)}, which is more than half a standard "
                "error; free fewer parameters or take more runs"
            )
        else:
            return "converged"
        record.warnings.append(f"the fit has not converged: {reason}.")
        return "not converged"

    def resolved(self, fit: identification.FitResult) -> bool:
        """Whether the fit has found its optimum, or its steps are small relative to the errors."""
        if fit.result == identification.FIT_RESULTS.successful:
            return True
        errors, history = self.record.standard_errors, fit.history
        earlier = np.flatnonzero(history.accepted[:-1])
        if not errors or not earlier.size:
            return False
        return all(
            abs(b - last[label]) <= RESOLVED * errors[label]
            for name, values in history.values.items()
            for last in [by_label(name, np.asarray(values[earlier[-1]]))]
            for label, b in by_label(name, np.asarray(values[-1])).items()
        )


def _settled(moved: dict[str, float], params, linearisation) -> bool:
    """Whether a round changed the parameters only insignificantly."""
    found = identification.uncertainty(params, linearisation)
    limits = {name: max(SETTLED * abs(found[name][0]), 0.1 * found[name][1]) for name in moved}
    return all(moved[name] <= limits[name] for name in moved)


def _weights(motion, model, lanes, deviations, tolerances):
    return jax.vmap(lambda lane: weights(motion, model, lane, deviations, tolerances))(lanes)


def _timed(record, function, *args):
    """Compiles a function, then calls it, to report compile time and run time separately."""
    started = time.perf_counter()
    program = PROGRAMS.compiled(function, *args)
    compiled = time.perf_counter()
    out = jax.block_until_ready(program(*args))
    record.compile_seconds += compiled - started
    record.run_seconds += time.perf_counter() - compiled
    return out
