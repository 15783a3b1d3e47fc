"""Identifying the tossed cube: weighted nonlinear least squares on whole tosses.

A toss amplifies its initial error at every impact, so that late frames of a tumbling cube say
little about the parameters, and their derivatives are large and wild. Each frame is therefore
weighted by the error that the measured start state alone would cause there:

    variance = sigma^2 + sum_j (d pose / d start_j)^2 sigma_j^2,    non-decreasing along the toss,

the linearised marginalisation over the start velocity. The weights are refreshed a few times as
the parameters move. Residuals of a toss are strongly correlated: a toss counts as `EFFECTIVE`
observations, whatever its number of frames, against the priors on the nominal quantities.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import identification
from ._cube import BOUNDS, UNITS, CubeParameters, Lane, pose_error, toss

SIGMA = (0.03, 0.03)
"""Model error of a pose: in widths of the cube, and [rad]."""
SIGMA_VELOCITY, SIGMA_SPIN = 0.010, 0.08
"""Standard deviation of the measured start velocity [m/s] and spin [rad/s]."""
EFFECTIVE = 10.0
PRIOR = {"e": (None, 0.1), "half_width": (0.03, None), "gravity": (0.03, None)}
PRIOR["inertia_over_mass"] = (0.3, None)
"""Prior standard deviations about the start values: relative or absolute; none on `mu`."""
HUBER = 0.5


def weights(cube: CubeParameters, lane: Lane, dt: float, substeps: int, width: float) -> Array:
    """The weights described above, `(f, 2)`."""

    def error(start):
        moved = eqx.tree_at(lambda x: (x.velocity, x.spin), lane, (start[:3], start[3:]))
        position, quaternion, *_ = toss(cube, moved, dt, substeps)
        return pose_error(lane, position, quaternion, width)

    sigma = jnp.array([SIGMA_VELOCITY] * 3 + [SIGMA_SPIN] * 3)
    tangent = jax.jacfwd(error)(jnp.concatenate([lane.velocity, lane.spin]))
    variance = jnp.sum((tangent * sigma[None, None, None]) ** 2, axis=(2, 3))
    variance = jax.lax.cummax(variance, axis=0) + jnp.array([SIGMA]) ** 2
    frames = jnp.sum(lane.mask)
    scale = jnp.sqrt(EFFECTIVE / frames) * lane.mask
    return jax.lax.stop_gradient(scale[:, None] / jnp.sqrt(variance))


class Residual(eqx.Module):
    """Weighted pose errors of all lanes, `(n, f, 2, 3)`, as a function of the parameters."""

    rebuild: Callable
    lanes: Lane
    weights: Array
    dt: float = eqx.field(static=True)
    substeps: int = eqx.field(static=True)
    width: float = eqx.field(static=True)

    def __call__(self, params):
        cube = self.rebuild(params)

        def one(lane, weight):
            position, quaternion, *_ = toss(cube, lane, self.dt, self.substeps)
            return pose_error(lane, position, quaternion, self.width) * weight[:, :, None]

        return jax.vmap(one)(self.lanes, self.weights)


class WithPrior(eqx.Module):
    """Residuals with the rows of the priors."""

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
    """The outcome of an identification, ready to be written."""

    free: tuple[str, ...]
    start: CubeParameters
    cube: CubeParameters
    standard_errors: dict[str, float] = field(default_factory=dict)
    correlations: np.ndarray | None = None
    determined: dict[str, bool] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
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

    **Raises:** `ValueError` naming those that exist.
    """
    unknown = [n for n in names if n not in UNITS]
    if unknown or not names:
        raise ValueError(
            f"unknown parameter {', '.join(map(repr, unknown)) or '(none given)'}; "
            f"there are: {', '.join(UNITS)}."
        )
    return tuple(dict.fromkeys(names))


def identify(
    lanes: Lane,
    start: CubeParameters,
    free: tuple[str, ...],
    dt: float,
    *,
    substeps: int = 4,
    rounds: int = 4,
    steps: int = 7,
    state: Identified | None = None,
    notify: Callable[[Identified, str], None] = lambda *_: None,
) -> Identified:
    """Fits the free parameters to tosses; on Ctrl-C returns the best so far.

    **Arguments:** `lanes`: the measured tosses; `start`; `free`: names; `dt` [s]; `substeps`: steps
    per frame; `rounds`: refreshes of the weights; `steps`: evaluations per round; `state`: record
    to fill; `notify(record, stage)`: called as it goes on.
    """
    record = Identified(free, start, start) if state is None else state
    width = 2 * float(start.half_width)
    tosses = lanes.position.shape[0]
    try:
        params, rebuild = _parameters(record)
        for index in range(rounds):
            notify(record, f"weights, round {index + 1} of {rounds}")
            value = _compiled(record, _weights, record.cube, lanes, dt, substeps, width)
            record.rollouts += tosses
            residual = Residual(rebuild, lanes, value, dt, substeps, width)
            masks = (
                jnp.broadcast_to(value[..., None] > 0, (*value.shape, 3)),
                jnp.ones(len(PRIOR), bool),
            )

            def callback(step, progress, index=index):
                notify(record, f"round {index + 1} of {rounds}, evaluation {step}")

            fit = identification.least_squares(
                WithPrior(residual, start),
                params,
                mask=masks,
                robust=identification.Huber(HUBER),
                max_steps=steps,
                rtol=1e-3,
                callback=callback,
                throw=False,
            )
            before = record.cube
            params = fit.params
            record.cube = rebuild(params)
            record.losses += [float(x) for x in fit.history.loss]
            record.rollouts += tosses * fit.evaluations.gradient
            record.gradients += tosses * fit.evaluations.gradient
            record.compile_seconds += fit.compile_seconds
            record.run_seconds += fit.run_seconds
            if fit.result == identification.FIT_RESULTS.interrupted:
                raise KeyboardInterrupt
            notify(record, "saved")
            if _settled(before, record.cube, free):
                break
        notify(record, "standard errors")
        _uncertainty(record, params, rebuild, lanes, dt, substeps, width)
        record.status = "converged"
    except KeyboardInterrupt:
        record.status = "interrupted"
    return record


def _settled(before, after, free) -> bool:
    change = [abs(float(getattr(after, n) / getattr(before, n)) - 1) for n in free]
    return max(change) < 2e-3


def _parameters(record):
    return identification.parameters(
        record.cube,
        lambda m: {name: getattr(m, name) for name in record.free},
        {name: BOUNDS[name] for name in record.free},
        units={name: UNITS[name] for name in record.free},
    )


def _uncertainty(record, params, rebuild, lanes, dt, substeps, width):
    """Cluster-robust standard errors (tosses are the clusters) from the data alone."""
    started = time.perf_counter()
    value = _compiled(record, _weights, record.cube, lanes, dt, substeps, width)
    residual = Residual(rebuild, lanes, value, dt, substeps, width)
    mask = jnp.broadcast_to(value[..., None] > 0, (*value.shape, 3))
    linear = identification.linearise(
        residual, params, mask=mask, robust=identification.Huber(HUBER)
    )
    tosses = lanes.position.shape[0]
    record.rollouts += 2 * tosses
    record.gradients += tosses
    found = identification.uncertainty(params, linear, groups=np.arange(tosses))
    record.standard_errors = {
        n: float(s) for n, s in zip(found.labels, found.standard_errors, strict=True)
    }
    record.determined = {n: bool(s) for n, s in zip(found.labels, found.determined, strict=True)}
    record.correlations = np.asarray(found.correlations)
    record.warnings += [str(w) for w in found.warnings]
    record.run_seconds += time.perf_counter() - started


def _weights(cube, lanes, dt, substeps, width):
    return jax.vmap(lambda lane: weights(cube, lane, dt, substeps, width))(lanes)


_CACHE: dict = {}


def _compiled(record, function, cube, lanes, dt, substeps, width):
    """Calls a function compiled ahead, so that compile and run time are told apart."""
    key = function, dt, substeps, width, lanes.position.shape
    if key not in _CACHE:
        started = time.perf_counter()
        jitted = jax.jit(lambda c, x: function(c, x, dt, substeps, width))
        _CACHE[key] = jitted.lower(cube, lanes).compile()
        record.compile_seconds += time.perf_counter() - started
    started = time.perf_counter()
    out = jax.block_until_ready(_CACHE[key](cube, lanes))
    record.run_seconds += time.perf_counter() - started
    return out
