"""The standard errors of a finished fit, and the distribution of its estimate."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import identification
from ._draws import Spread


def note_errors(
    record: Any,
    params: identification.Parameters,
    rebuild: Callable,
    linearisation: identification.Linearisation,
    groups: np.ndarray,
    open_by: np.ndarray,
) -> None:
    """Notes standard errors, intervals, correlations and warnings from the data alone.

    Residuals along one run are far from independent, so that runs are the clusters; the errors for
    independent residuals are noted beside, for comparison.

    **Arguments:** `record`: an `Identified`; `rebuild`: the model of parameters; `groups`: the run of each
    residual; `open_by (p,)`: how far the refinement leaves each raw number open, in standard errors.
    """
    found = identification.uncertainty(params, linearisation, groups=groups)
    factors = np.sqrt(1 + np.where(np.isfinite(open_by), open_by, 0.0) ** 2)
    parts = np.split(factors, np.cumsum([raw.size for raw in params.raw])[:-1])
    wider = {name: np.max(part) for name, part in zip(params.names, parts, strict=True)}
    errors = found.standard_errors * [wider[label.split("[")[0]] for label in found.labels]
    found = dataclasses.replace(found, standard_errors=errors)

    def by_label(values: np.ndarray) -> dict[str, Any]:
        return dict(zip(found.labels, np.asarray(values).tolist(), strict=True))

    record.standard_errors = by_label(found.standard_errors)
    record.independent_errors = by_label(found.independent_errors)
    record.intervals = _within_bounds(found.interval(0.95), params)
    record.determined = by_label(found.determined)
    record.correlations = np.asarray(found.correlations)
    raw = identification.raw_covariance(linearisation, groups, [""] * open_by.size)
    covariance = raw.matrix * np.outer(factors, factors)
    record.spread = Spread(params, rebuild, covariance, found.degrees_of_freedom)
    record.warnings += found.warnings


def _within_bounds(
    intervals: dict[str, tuple[float, float]], params: identification.Parameters
) -> dict[str, tuple[float, float]]:
    """The intervals cut off at the bounds, as the draws of `Spread` are: no friction is negative."""
    sides = []
    for value, transform in zip(params.values().values(), params.transforms, strict=True):
        sides.append(
            np.stack([np.broadcast_to(x, value.shape).ravel() for x in transform.limits()])
        )
    lows, highs = np.concatenate(sides, axis=1)
    cut = zip(intervals.items(), lows, highs, strict=True)
    return {k: (float(max(lo, low)), float(min(hi, high))) for (k, (lo, hi)), low, high in cut}


def moved_by(record: Any, motion: Callable) -> dict[str, float]:
    """How far another motion of the same model would move the estimate, in standard errors.

    By one Gauss-Newton step on the last plane of the fit. With shorter steps of the same method: what the
    length of the steps makes of the estimate. Empty without standard errors.
    """
    if record.spread is None:
        return {}
    job, (plane, weights) = record.job, record.plane
    raw = np.tile(record.raw, (len(job), 1))
    both = record.motions, dataclasses.replace(record.motions, motion=motion)
    before, after = (m(job.runs, raw, job.velocities)[0].errors for m in both)
    record.rollouts += 2 * len(job)
    change = ((after - before) * np.asarray(weights)[..., None]).ravel()
    slopes = np.asarray(plane.jacobian)[: change.size]
    change = np.where(np.asarray(plane.mask)[: change.size], change, 0.0)
    step = np.linalg.lstsq(slopes, change, rcond=None)[0]
    errors = np.sqrt(np.diag(record.spread.covariance))
    found = np.abs(step) / np.where(errors > 0, errors, np.inf)
    parts = np.split(found, np.cumsum([x.size for x in record.spread.params.raw])[:-1])
    return {
        name: float(np.max(part, initial=0.0))
        for name, part in zip(record.spread.params.names, parts, strict=True)
    }
