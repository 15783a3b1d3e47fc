"""Identifying the tossed cube: weighted nonlinear least squares on whole tosses.

A toss amplifies its initial error at every impact, so late frames of a tumbling cube carry little
information about the parameters, and their derivatives are large and erratic. Each frame is therefore
weighted by the error that the measured start state alone would cause there:

    variance = sigma^2 + sum_j (d pose / d start_j)^2 sigma_j^2,    non-decreasing along the toss,

the linearised marginalisation over the start velocity. The weights are updated a few times as the
parameters change. Residuals of a toss are strongly correlated. Relative to the priors on the nominal
quantities, a toss therefore counts as `EFFECTIVE` observations, whatever its number of frames.

If a simulation step of a toss fails at the start of a round, the toss is left out of that round. If
a step fails only in a trial, `UNSOLVED` is added to the residuals, which makes the trial worse than
any that can be simulated. The record lists the tosses that failed at the estimate.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ... import identification
from ._cube import BOUNDS, UNITS, CubeParameters, Lane, pose_error, toss

SIGMA = (0.03, 0.03)
"""Model error of a pose: position in units of the cube's width, rotation in [rad]."""
SIGMA_VELOCITY, SIGMA_SPIN = 0.010, 0.08
"""Standard deviation of the measured start velocity [m/s] and spin [rad/s]."""
EFFECTIVE = 10.0
PRIOR = {"e": (None, 0.1), "half_width": (0.02, None), "gravity": (0.02, None)}
PRIOR["inertia_over_mass"] = (0.3, None)
"""Prior standard deviations about the start values, relative or absolute; `mu` has no prior. Lengths in
the tracked tosses, and hence gravity, are known to about 2 %."""
HUBER = 0.5
UNSOLVED = 100.0
SETTLED = 2e-3
"""Stop when a round changes every parameter by less than this fraction of its value, or by less than a
tenth of its standard error for independent residuals."""
CONVERGED = 0.5
"""Largest accepted change of a parameter in the last round, as a fraction of its (cluster-robust)
standard error."""
RESOLVED = 0.1
"""If the last step of a fit, accepted or rejected, is smaller than this fraction of the standard error,
it is attributed to roughness of the loss, not to distance from the optimum: tosses jump from one resting
face to another as the parameters change."""


def weights(
    cube: CubeParameters, lane: Lane, dt: float, substeps: int, width: float
) -> tuple[Array, Array]:
    """The weights described above, `(f, 2)`, and whether the toss failed; if so, all weights are 0."""

    def error(start):
        moved = eqx.tree_at(lambda x: (x.velocity, x.spin), lane, (start[:3], start[3:]))
        position, quaternion, _, failed, _ = toss(cube, moved, dt, substeps)
        return pose_error(lane, position, quaternion, width), failed > 0

    sigma = jnp.array([SIGMA_VELOCITY] * 3 + [SIGMA_SPIN] * 3)
    start = jnp.concatenate([lane.velocity, lane.spin])
    tangent, failed = jax.jacfwd(error, has_aux=True)(start)
    variance = jnp.sum((tangent * sigma[None, None, None]) ** 2, axis=(2, 3))
    variance = jax.lax.cummax(variance, axis=0) + jnp.array([SIGMA]) ** 2
    frames = jnp.sum(lane.mask)
    scale = jnp.sqrt(EFFECTIVE / frames) * lane.mask
    value = jnp.where(failed, 0.0, scale[:, None] / jnp.sqrt(variance))
    return jax.lax.stop_gradient(value), failed


class Residual(eqx.Module):
    """Weighted pose errors of all tosses, `(n, f, 2, 3)`, and `UNSOLVED` for failed ones, `(n,)`."""

    rebuild: Callable
    lanes: Lane
    weights: Array
    dt: float = eqx.field(static=True)
    substeps: int = eqx.field(static=True)
    width: float = eqx.field(static=True)

    def __call__(self, params):
        cube = self.rebuild(params)

        def one(lane, weight):
            position, quaternion, _, failed, _ = toss(cube, lane, self.dt, self.substeps)
            error = pose_error(lane, position, quaternion, self.width) * weight[:, :, None]
            return error, UNSOLVED * failed.astype(error.dtype)

        return jax.vmap(one)(self.lanes, self.weights)


class WithPrior(eqx.Module):
    """Residuals of the data, and those of the priors."""

    data: Residual
    start: CubeParameters

    def __call__(self, params):
        cube, rows = self.data.rebuild(params), []
        for name, (relative, absolute) in PRIOR.items():
            centre = getattr(self.start, name)
            sigma = absolute if relative is None else relative * centre
            rows.append((getattr(cube, name) - centre) / sigma)
        return self.data(params), jnp.stack(rows)


@dataclass
class Identified:
    """The outcome of an identification, ready to be written.

    `loss` is the loss of the estimate `cube`, with the weights of its round. `losses` are the losses
    of all evaluations and `rounds` their rounds; losses of different rounds are not comparable.
    `failed` lists the tosses in which a step failed at the estimate. `status` is one of `running`,
    `converged`, `not converged`, `failed` and `interrupted`; the last of `warnings` says why the fit
    did not converge.
    """

    free: tuple[str, ...]
    start: CubeParameters
    cube: CubeParameters
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

    def value(self, name: str) -> float:
        """The estimate of a parameter."""
        return float(getattr(self.cube, name))


def check_free(names: list[str]) -> tuple[str, ...]:
    """Validates the names of free parameters.

    **Raises:** `ValueError` listing the existing names.
    """
    unknown = [n for n in names if n not in UNITS]
    if unknown or not names:
        raise ValueError(
            f"unknown parameter {', '.join(map(repr, unknown)) or '(none given)'}; "
            f"there are: {', '.join(UNITS)}."
        )
    return tuple(name for name in UNITS if name in names)


def identify(
    lanes: Lane,
    start: CubeParameters,
    free: tuple[str, ...],
    dt: float,
    *,
    substeps: int = 4,
    rounds: int = 6,
    steps: int = 7,
    state: Identified | None = None,
    notify: Callable[[Identified, str], None] = lambda *_: None,
) -> Identified:
    """Fits the free parameters to tosses; on Ctrl-C returns the best estimate so far.

    **Arguments:** `lanes`: the measured tosses; `start`: initial parameters; `free`: names; `dt` [s];
    `substeps`: steps per frame; `rounds`: maximum number of rounds, each with new weights; `steps`:
    evaluations per round; `state`: record to fill; `notify(record, stage)`: called on progress.
    """
    record = Identified(free, start, start) if state is None else state
    setting = _Setting(lanes, start, dt, substeps, record, notify)
    try:
        setting.rounds(rounds, steps)
    except KeyboardInterrupt:
        record.status = "interrupted"
    return record


_PROGRAMS = identification.Programs()
"""Compiled programs of this process; everything that varies is an argument of them."""


class _Setting:
    """Data shared by all rounds of one identification."""

    def __init__(self, lanes, start, dt, substeps, record: Identified, notify):
        self.lanes, self.start, self.dt, self.substeps = lanes, start, dt, substeps
        self.record, self.notify = record, notify
        self.width = 2 * float(start.half_width)
        self.tosses = lanes.position.shape[0]
        self.params, self.rebuild = identification.parameters(
            record.cube,
            lambda m: {name: getattr(m, name) for name in record.free},
            {name: BOUNDS[name] for name in record.free},
            units={name: UNITS[name] for name in record.free},
        )

    def rounds(self, rounds: int, steps: int) -> None:
        """Fits with new weights in every round, then computes standard errors and the final status."""
        record, settled, moved = self.record, False, {}
        for index in range(rounds):
            label = f"round {index + 1} of {rounds}"
            before = record.cube
            fit = self.fit(label, steps, prior=True)
            record.losses += [float(x) for x in fit.history.loss]
            record.rounds += [index + 1] * fit.steps
            if fit.linearisation is not None:
                record.loss = fit.loss
                self.params, record.cube = fit.params, self.rebuild(fit.params)
            if fit.result == identification.FIT_RESULTS.interrupted:
                raise KeyboardInterrupt
            self.notify(record, "saved")
            if fit.linearisation is None:
                record.status = "failed"
                record.warnings.append(fit.message)
                return
            moved = {
                name: abs(record.value(name) - float(getattr(before, name))) for name in record.free
            }
            settled = _settled(moved, self.params, fit.linearisation)
            if settled:
                break
        self.uncertainty()
        record.status = self.verdict(fit, {} if settled else moved)

    def fit(self, label: str, steps: int, prior: bool) -> identification.FitResult:
        """Computes the weights at the current estimate, and a least-squares fit with them."""
        record = self.record
        self.notify(record, f"weights, {label}")
        value, left_out = _timed(
            record, _weights, record.cube, self.lanes, self.dt, self.substeps, self.width
        )
        record.rollouts += self.tosses
        residual = Residual(self.rebuild, self.lanes, value, self.dt, self.substeps, self.width)
        poses = jnp.broadcast_to(value[..., None] > 0, (*value.shape, 3))
        masks = (poses, ~left_out & prior), jnp.full(len(PRIOR), prior)
        fit = identification.least_squares(
            WithPrior(residual, self.start),
            self.params,
            mask=masks,
            robust=identification.Huber(HUBER),
            max_steps=steps,
            rtol=1e-3,
            callback=lambda step, _: self.notify(record, f"{label}, evaluation {step}"),
            programs=_PROGRAMS,
            throw=False,
        )
        record.failed = tuple(int(i) for i in np.flatnonzero(left_out))
        record.rollouts += self.tosses * fit.evaluations.gradient
        record.gradients += self.tosses * fit.evaluations.gradient
        record.compile_seconds += fit.compile_seconds
        record.run_seconds += fit.run_seconds
        return fit

    def uncertainty(self) -> None:
        """Computes cluster-robust standard errors (tosses are the clusters) from the data alone."""
        record = self.record
        fit = self.fit("standard errors", 1, prior=False)
        if fit.result == identification.FIT_RESULTS.interrupted:
            raise KeyboardInterrupt
        if fit.linearisation is None:
            record.warnings.append(f"no standard errors: {fit.message}")
            return
        (poses, *_), each = fit.linearisation.shapes, np.arange(self.tosses)
        groups = np.repeat(each, np.prod(poses[1:])), each, np.zeros(len(PRIOR), int)
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
                f"in the simulation of {len(record.failed)} of {self.tosses} tosses a step did not "
                "reach its tolerance at the estimate: look at these tosses, and leave them out if "
                "their data are wrong."
            )
        limits = {name: CONVERGED * record.standard_errors.get(name, 0.0) for name in moved}
        still = [f"{name} by {moved[name]:.2g}" for name in moved if moved[name] > limits[name]]
        if not self.resolved(fit):
            reason = fit.message
        elif still:
            reason = (
                f"the last round still moved {', '.join(still)}, which is more than half a standard "
                "error; free fewer parameters or take more tosses"
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
        ends = {
            name: (history.values[name][earlier[-1]], history.values[name][-1]) for name in errors
        }
        return all(abs(float(b - a)) <= RESOLVED * errors[name] for name, (a, b) in ends.items())


def _settled(moved: dict[str, float], params, linearisation) -> bool:
    """Whether a round changed the parameters only insignificantly."""
    found = identification.uncertainty(params, linearisation)
    limits = {name: max(SETTLED * abs(found[name][0]), 0.1 * found[name][1]) for name in moved}
    return all(moved[name] <= limits[name] for name in moved)


def _weights(cube, lanes, dt, substeps, width):
    return jax.vmap(lambda lane: weights(cube, lane, dt, substeps, width))(lanes)


def _timed(record, function, *args):
    """Compiles a function, then calls it, to report compile time and run time separately."""
    started = time.perf_counter()
    program = _PROGRAMS.compiled(function, *args)
    compiled = time.perf_counter()
    out = jax.block_until_ready(program(*args))
    record.compile_seconds += compiled - started
    record.run_seconds += time.perf_counter() - compiled
    return out
