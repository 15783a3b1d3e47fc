"""What is said of a finished fit: its status, runs that do not fit, priors that the data contradict."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ... import identification
from ...identification.information._contradictions import about_prior
from ._steps import solution

CONVERGED = 1.0
"""Largest accepted uncertainty of the mean of the refinement's steps, in standard errors, which it is added
to."""
OUTLYING, ABSURD = 3.0, 1.5
"""A run is reported if most of its frames are outliers, and its error is that many times the median, or this
error in a mean frame [sizes, rad]: where all runs are bad none is worse than the others."""
HARDLY = 0.1
"""A prediction is compared with no motion only if its error is larger than this, in sizes: runs that hardly
move are predicted by noise."""


def status_of(
    record: Any, params: identification.Parameters, spread: np.ndarray, left: np.ndarray
) -> str:
    """The status of a finished fit; adds a warning with the reason if it is not `converged`.

    **Arguments:** `record`: an `Identified`; `spread (p,)`: how far the refinement leaves the raw numbers
    open; `left (p,)`: the same in standard errors, or in what a round may leave open where that is more.
    """
    job = record.job
    if record.failed:
        record.warnings.append(
            f"in the simulation of {len(record.failed)} of {len(job)} runs a step did not "
            "reach its tolerance at the estimate: look at these runs, and leave them out if "
            "their data are wrong."
        )
    if np.max(left) < CONVERGED:
        if record.determined and not any(record.determined.values()):
            record.warnings.append(
                f"the data determine none of what is free ({', '.join(record.determined)}), for the reasons "
                "above, and the values mean nothing: take runs that these numbers influence, such as runs "
                "with contact for friction and restitution."
            )
            return "not determined"
        return "converged"
    worst = int(np.argmax(left))
    sizes = np.cumsum([raw.size for raw in params.raw])
    name = params.names[int(np.searchsorted(sizes, worst, side="right"))]
    amount = "its steps had not settled when the fit ended"
    if np.isfinite(spread[worst]):
        flat, unravel = ravel_pytree(params)
        aside = jnp.zeros_like(flat).at[worst].set(spread[worst])
        ends = (np.asarray(unravel(flat + side * aside)[name]) for side in (-1, 1))
        unit = job.quantities[name].unit
        amount = (
            f"its last steps leave it open by {np.max(np.abs(np.subtract(*ends))) / 2:.2g}"
            f"{' ' * bool(unit)}{unit}, {left[worst]:.2g} of its standard errors"
        )
    record.warnings.append(
        f"the fit has not converged in {name}: {amount}; free fewer parameters or take more runs."
    )
    return "not converged"


def about_bad_runs(record: Any, here: identification.Linearisation, delta: float) -> list[str]:
    """A sentence about each run most of whose frames are outliers, beyond `delta`."""
    runs, shape = len(record.job), here.shapes[0]
    weighed = np.asarray(here.residual[: np.prod(shape)]).reshape(shape)
    parts = np.max(np.abs(weighed), axis=-1).reshape(runs, shape[1], -1)
    largest = parts.reshape(runs, -1)
    counts = np.maximum(np.sum(largest > 0, axis=1), 1)
    share = np.sum(largest > delta, axis=1) / counts
    size = np.sqrt(np.sum(largest**2, axis=1) / counts)
    # Huber's loss has weighed an outlier r down to sqrt(2 delta r - delta^2).
    weights = np.asarray(record.plane[1]).reshape(parts.shape)
    errors = np.where(parts > delta, (parts**2 / delta + delta) / 2, parts)
    errors = np.max(errors / np.where(weights > 0, weights, np.inf), axis=2)
    seen = np.maximum(np.sum(np.any(weights > 0, axis=2), axis=1), 1)
    bad = (size > OUTLYING * np.median(size)) | (np.sum(errors, axis=1) / seen > ABSURD)
    return [
        f"run {i} does not fit the model: {share[i]:.0%} of its frames are outliers: look at its data, "
        "and leave it out if they are wrong; good data of impacts that amplify every error need more steps a "
        "frame, or shorter runs."
        for i in np.flatnonzero((share > 0.5) & bad)
    ]


def about_priors(
    record: Any, here: identification.Linearisation, params: identification.Parameters
) -> list[str]:
    """A sentence about each built-in prior that the data contradict.

    What the data alone say is a Gauss-Newton step away from the estimate, a compromise that hides how far
    the two are apart. **Arguments:** `here`: the linearisation of the data, without the priors.
    """
    flat, unravel = ravel_pytree(params)
    kept = np.asarray(here.mask)[:, None]
    step = -solution(np.asarray(here.residual) * kept[:, 0], np.asarray(here.jacobian) * kept)
    ways = (flat,), (jnp.asarray(step, flat.dtype),)
    values, moves = jax.jvp(lambda raw: unravel(raw).values(), *ways)
    job, sentences = record.job, []
    for name, value in values.items():
        quantity = job.quantities[name]
        if quantity.deviation is None:
            continue
        alone, centre = np.asarray(value + moves[name]), job.value(job.model, name)
        labels = list(record.numbers(name))
        for label, data, prior in zip(labels, np.ravel(alone), np.ravel(centre), strict=True):
            error = record.standard_errors.get(label, np.inf)
            apart = abs(data - prior) / np.hypot(quantity.deviation, error)
            unit = f" {quantity.unit}" * bool(quantity.unit)
            sentences += about_prior(
                label,
                apart,
                f"{prior:.4g} ± {quantity.deviation:.2g}{unit}, about the number that the fit starts from",
                f"{data:.4g} ± {error:.2g}{unit}",
            )
    return sentences


def about_predictions(errors: np.ndarray, still: np.ndarray, names: list[str]) -> list[str]:
    """A sentence about runs that are predicted worse than nothing.

    **Arguments:** of each run `(n,)`: `errors` of its prediction, `still` those of a body that stays where it
    was in the first frame, means over the measured frames [sizes]; `names`.
    """
    bad = ~(errors < 1) | ((errors > still) & (errors > HARDLY))
    if not bad.any():
        return []
    shown = ", ".join(f"{names[i]} ({errors[i]:.0%})" for i in np.flatnonzero(bad)[:5])
    count = int(np.sum(bad))
    return [
        f"{count} of {len(errors)} predicted runs are off by more than the size of the body, or by more "
        f"than if it had stayed where it was: {shown}{', ...' * (count > 5)} of the size; look at their data "
        "and units, and do not trust the estimate for such runs."
    ]
