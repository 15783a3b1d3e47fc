"""The rounds of a fit: weights, robust least squares, new weights; then a refinement, errors and a status.

The loss of simulated impacts is rough: as a parameter changes, impacts move from one time step to the next,
and bodies from one face to another. A descent ends in some tooth of it. The refinement takes the residuals
and their slopes from a plane through points around the estimate, as far away as the data do not distinguish
(`identification.SecantJacobian`), and makes Gauss-Newton steps with them. Standard errors come from the same
plane. On tosses of the model itself this removes a bias of five to ten standard errors.

Where the loss is smooth, a wide look adds a bias instead: it sees a curved motion. Before the first look the
residuals are therefore measured across it (`is_smooth`). If their derivatives explain them, the first look is
narrow, and the later ones as the data ask for; unless its step leads out of it, for then the descent has not
arrived, and the first look is the wide one, as at a rough loss.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from ... import identification
from ._draws import Spread
from ._errors import note_errors
from ._job import Job
from ._motions import LARGE, PROGRAMS, Motions, Residual
from ._steps import (
    across,
    bends_of,
    bias_of,
    edges_of,
    gauss_newton,
    scales_of,
    widths_around,
)
from ._verdict import about_bad_runs, about_priors, status_of

HUBER = 0.5
SETTLED = 2e-3
"""Stop when a round changes every parameter by less than this fraction of its value, or by less than a
tenth of its standard error for independent residuals."""
SHARP = 0.4
"""Uncertainty of the mean of the refinement's steps, in standard errors, that needs no further step."""
POINTS, ALL_POINTS = 8, 80
"""Least number of points around the estimate in a step of the refinement, and about how many in all."""
LEAST = 3
"""Least number of steps of the refinement near the estimate."""
SOME = 8
"""Most runs that are looked at first for jumps of the residuals."""
SPREAD = 0.5
"""How far apart several starts are of numbers without two bounds, in raw numbers; most are of order 1."""
NEAR = 0.1
"""Descents whose raw numbers end within this fraction of each other are in one valley."""


@dataclass
class Identified:
    """The outcome of an identification, ready to be written.

    `loss` is the loss of the estimate `model`, with the weights of its round. `losses` are the losses
    of all evaluations and `rounds` their rounds; losses of different rounds are not comparable.
    Standard errors and 95 % intervals are by number, with names such as `size[2]`. Runs are the independent
    units of `standard_errors`; `independent_errors` would hold if all residuals were independent.
    `failed` lists the runs in which a step failed at the estimate. `status` is one of `running`,
    `converged`, `not determined`, `not converged`, `failed` and `interrupted`; the last of `warnings` says
    why it is not the first. `truth` holds true values where they are known, for the report. `spread` is the
    distribution of the estimate, `None` without standard errors; `valleys` where several starts led.
    `motions` simulates further runs, with the raw numbers `raw (p,)` of the estimate or others. `plane`: the
    last linearisation, and its weights. `is_rough`: whether the residuals are, around the estimate.
    `posterior_page`: the file beside the report that has draws from the posterior, empty if there is none.
    """

    job: Job
    model: Any = None
    standard_errors: dict[str, float] = field(default_factory=dict)
    independent_errors: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
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
    truth: dict[str, float] = field(default_factory=dict)
    spread: Spread | None = None
    valleys: tuple[identification.Valley, ...] = ()
    motions: Any = None
    raw: Any = None
    plane: Any = None
    is_rough: bool = False
    posterior_page: str = ""

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
    rounds: int = 1,
    steps: int = 5,
    starts: int = 1,
    record: Identified | None = None,
    notify: Callable[[Identified, str], None] = lambda *_: None,
) -> Identified:
    """Fits the free quantities of a job; on Ctrl-C returns the best estimate so far.

    **Arguments:** `rounds`: maximum number of rounds, each with new weights; `steps`: evaluations per round;
    `starts`: descents from so many starts, of which the best goes on; `record`: to fill;
    `notify(record, stage)`: called on progress.
    """
    record = Identified(job) if record is None else record
    try:
        fit = _Rounds(record, notify)
        if starts > 1:
            fit.spread_out(starts, steps)
        fit.run(rounds, steps)
    except KeyboardInterrupt:
        record.status = "interrupted"
    except _NoRunLeft as error:
        record.status = "failed"
        record.warnings.append(str(error))
    return record


class _NoRunLeft(Exception):
    """A step fails in every run, so that no residual is left."""


class _Rounds:
    """What the rounds of one identification share."""

    def __init__(self, record: Identified, notify: Callable):
        self.record, self.notify, self.job = record, notify, record.job
        job = self.job
        self.runs = len(job)
        self.params, self.rebuild = identification.parameters(
            job.model,
            lambda m: {name: job.select(m, name) for name in job.free},
            {name: job.quantities[name].bounds for name in job.free},
            units={name: job.quantities[name].unit for name in job.free},
        )
        raw, unravel = ravel_pytree(self.params)
        large = job.mask.shape[0] * job.mask.shape[1] > LARGE
        record.motions, record.raw = Motions(self.rebuild, job.motion, unravel, large), raw
        self.scales = scales_of(
            self.params, [job.quantities[name].deviation or 0.0 for name in job.free]
        )
        self.priors = tuple(name for name, q in job.quantities.items() if q.deviation is not None)

    def run(self, rounds: int, steps: int) -> None:
        """Descends with new weights in every round, then refines; sets errors and the final status."""
        record = self.record
        for index in range(rounds):
            before = self.numbers()
            label = f"round {index + 1} of {rounds}"
            fit = self.descend(label, steps, self.weights(label), identification.ForwardJacobian())
            self.add_losses(fit, index + 1)
            if fit.linearisation is not None:
                record.loss = fit.loss
                self.found(fit.params)
            if fit.result == identification.FIT_RESULTS.interrupted:
                raise KeyboardInterrupt
            self.notify(record, "saved")
            if fit.linearisation is None:
                record.status = "failed"
                record.warnings.append(fit.message)
                return
            moved = {label: abs(x - before[label]) for label, x in self.numbers().items()}
            if _settled(moved, self.params, fit.linearisation):
                break
        self.refine(index + 2)

    def spread_out(self, count: int, steps: int) -> None:
        """Descends from several starts with the weights of the first, and goes on from the best."""
        record, label = self.record, f"{count} starts"
        weights = self.weights(label)

        def minimise(params):
            self.params = params
            fit = self.descend(label, steps, weights, identification.ForwardJacobian())
            if fit.result == identification.FIT_RESULTS.interrupted:
                raise KeyboardInterrupt
            return fit

        found = identification.several_starts(
            minimise, self.params, count=count, spread=SPREAD, near=NEAR
        )
        record.valleys = found.valleys
        record.warnings += found.warnings
        self.found(found.best.params)
        record.loss = found.best.loss

    def found(self, params: identification.Parameters) -> None:
        """Notes an estimate."""
        self.params, self.record.model = params, self.rebuild(params)
        self.record.raw = ravel_pytree(params)[0]

    def add_losses(self, fit: identification.FitResult, index: int) -> None:
        """Notes the losses of a round."""
        self.record.losses += np.asarray(fit.history.loss, float).tolist()
        self.record.rounds += [index] * fit.steps

    def refine(self, index: int) -> None:
        """Gauss-Newton steps on a plane through the residuals around the estimate, then the verdict."""
        record, (raw, unravel) = self.record, ravel_pytree(self.params)
        edges, scales = edges_of(self.params), self.scales
        centre = jnp.clip(raw, *(jnp.asarray(side, raw.dtype) for side in edges))
        self.params = unravel(centre)
        widths = widest = widths_around(np.full(raw.size, np.inf), centre, scales)
        bends = None
        jacobian = identification.SecantJacobian(widths, frames=-(-POINTS // (2 * raw.size)))
        aims, spread = [], np.full(raw.size, np.inf)
        here, groups, errors = None, None, np.full(raw.size, np.inf)
        for index_of_step in range(max(LEAST, ALL_POINTS // jacobian.evaluations(raw.size))):
            label = f"refinement {index_of_step + 1}"
            value = self.weights(label)
            if index_of_step == 0 and (bends := self.bends(value[0], centre, widest)) is not None:
                widths = widths_around(np.zeros(raw.size), centre, scales, True)
            jacobian = dataclasses.replace(jacobian, widths=widths)
            fit = self.descend(label, 1, value, jacobian)
            self.add_losses(fit, index)
            if fit.result == identification.FIT_RESULTS.interrupted:
                raise KeyboardInterrupt
            if fit.linearisation is None:
                record.warnings.append(f"the refinement around the estimate ended: {fit.message}.")
                break
            here, groups = self.of_data(fit.linearisation)
            record.plane = here, value[0]
            found = identification.raw_covariance(here, groups, [""] * raw.size)
            errors = np.where(found.lost, np.inf, np.sqrt(np.diag(found.matrix)))
            move = gauss_newton(fit.linearisation, np.asarray(centre), *edges)
            far = np.max(np.abs(move) / (3 * np.asarray(widths)))
            if index_of_step == 0 and bends is not None and far >= 1 / 3:
                bends, widths = None, widest  # the descent has not arrived
                continue
            aim = np.asarray(centre) + move / max(1.0, far)
            # Far from the optimum the steps count alone, near it their mean does.
            aims = [*aims, aim] if far < 1 / 3 else [aim]
            centre = jnp.asarray(np.mean(aims, axis=0), raw.dtype)
            self.found(unravel(centre))
            record.loss, widths = fit.loss, widths_around(errors, centre, scales, bends is not None)
            self.notify(record, "saved")
            if len(aims) >= LEAST:
                spread = np.std(aims, axis=0, ddof=1) / len(aims) ** 0.5
                if np.max(spread / errors) < SHARP:
                    break
        record.is_rough = bends is None
        if here is None:
            record.status = "not converged"
            return
        if bends is not None:
            spread = np.hypot(spread, bias_of(here, bends, np.asarray(jacobian.widths / widest)))
        if groups is not None:
            note_errors(record, self.params, self.rebuild, here, groups, spread / errors)
            record.warnings += about_priors(record, here, self.params)
        else:
            record.warnings.append(
                "no standard errors: one run says nothing about how runs differ; give two or more."
            )
        record.warnings += about_bad_runs(record, here, HUBER)
        # Errors can be far smaller than anybody needs: what a round may leave open, this may too.
        known = np.maximum(errors, SETTLED * np.abs(np.asarray(centre)))
        record.status = status_of(record, self.params, spread, spread / known)

    def bends(self, weights: Array, centre: Array, widths: Array) -> np.ndarray | None:
        """How far the residuals bend over these widths around `centre`, `None` if they are rough."""
        record, job, started = self.record, self.job, time.perf_counter()
        points, along = across(centre, widths)
        # Some of the runs show whether there are jumps; without any, all of them are looked at.
        some, every = np.arange(0, self.runs, -(-self.runs // SOME)), np.arange(self.runs)
        for which in (some, every) if len(some) < self.runs else (every,):
            given = jax.tree.map(
                lambda x, which=which: x[which], (job.runs, job.velocities, weights)
            )
            found, tangents = record.motions.sampled(*given[:2], points, along)
            # All derivatives at a point count as one.
            count = len(which) * (2 * centre.size + 1)
            record.rollouts, record.gradients = record.rollouts + count, record.gradients + count
            bends = bends_of(found, tangents, given[2])
            if bends is None:
                break
        record.run_seconds += time.perf_counter() - started
        return bends

    def of_data(self, linearisation: identification.Linearisation):
        """The linearisation without the priors, and the run of each residual; `None` for one run."""
        (errors, _, priors), each = linearisation.shapes, np.arange(self.runs)
        data = jnp.arange(linearisation.mask.size) < linearisation.mask.size - priors[0]
        labels = np.repeat(each, np.prod(errors[1:])), each, np.zeros(priors, int)
        keep = dataclasses.replace(linearisation, mask=linearisation.mask & data)
        return keep, np.concatenate(labels) if self.runs > 1 else None

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
        simulated = self.record.motions, job.runs, job.velocities
        return Residual(*simulated, value, centres, spread, job.select, self.priors)

    def weights(self, label: str) -> tuple[Array, Array]:
        """The weights at the current estimate, and which runs failed there."""
        record, job, raw = self.record, self.job, ravel_pytree(self.params)[0]
        self.notify(record, f"weights, {label}")
        started = time.perf_counter()
        record.motions.prepare(job.runs, raw, job.velocities)
        compiled = time.perf_counter()
        value, left_out = record.motions.weights(job, raw)
        record.compile_seconds += compiled - started
        record.run_seconds += time.perf_counter() - compiled
        record.rollouts += self.runs
        record.failed = tuple(int(i) for i in np.flatnonzero(left_out))
        if len(record.failed) == self.runs:
            raise _NoRunLeft(
                f"in all {self.runs} runs a step does not reach its tolerance: look at the runs, their units "
                "and their start values."
            )
        return value, left_out

    def descend(
        self,
        label: str,
        steps: int,
        weights: tuple[Array, Array],
        jacobian: identification.AbstractJacobian,
    ) -> identification.FitResult:
        """A least-squares fit with these weights."""
        record, (value, left_out) = self.record, weights
        residual = self.residual(value)
        priors = jnp.ones(sum(c.size for c in residual.centres), bool)
        fit = identification.least_squares(
            residual,
            self.params,
            mask=((value > 0, ~left_out), priors),
            robust=identification.Huber(HUBER),
            jacobian=jacobian,
            max_steps=steps,
            rtol=1e-3,
            callback=lambda step, _: self.notify(record, f"{label}, evaluation {step}"),
            programs=PROGRAMS,
            throw=False,
        )
        points = jacobian.evaluations(sum(raw.size for raw in self.params.raw))
        record.rollouts += self.runs * points * fit.evaluations.gradient
        record.gradients += self.runs * (fit.evaluations.gradient if points == 1 else 0)
        record.compile_seconds += fit.compile_seconds
        record.run_seconds += fit.run_seconds
        return fit


def _settled(moved: dict[str, float], params, linearisation) -> bool:
    """Whether a round changed the parameters only insignificantly."""
    found = identification.uncertainty(params, linearisation)
    limits = {name: max(SETTLED * abs(found[name][0]), 0.1 * found[name][1]) for name in moved}
    return all(moved[name] <= limits[name] for name in moved)
