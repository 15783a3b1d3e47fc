"""The posterior after a fit: its likelihood, and the page that is written."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ... import identification
from ..pages import write_posterior
from ._fit import HUBER, Identified
from ._job import Job

WIDE, FRAMES = 2.0, 4
"""The plane of a rough likelihood goes through points so many standard errors away, in so many frames."""
PAGE = "posterior.html"
NARROWER = 3.0
"""A posterior so many times narrower than the standard errors is said: these see how runs differ."""


class Errors(eqx.Module):
    """The weighted errors of all runs `(n, f, k, d)` as a function of the parameters, outliers drawn in."""

    job: Job
    rebuild: Any
    weights: Array

    def __call__(self, params: PyTree) -> Array:
        model = self.rebuild(params)
        errors = jax.vmap(lambda run, v: self.job.motion(model, run, v).errors)
        weighted = errors(self.job.runs, self.job.velocities) * self.weights[..., None]
        return identification.Huber(HUBER).weigh(weighted)


class OnPlane(eqx.Module):
    """The residuals of a plane through those of all runs, about the parameters `centre (p,)`."""

    plane: identification.Linearisation
    centre: Array
    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Array:
        moved = ravel_pytree(params)[0] - self.centre
        return (self.plane.residual + self.plane.jacobian @ moved).reshape(self.shape)


def noise_of(record: Identified) -> identification.GaussianNoise:
    """The likelihood of the errors, with the weights at the estimate, the robust loss of the fit, and a scale
    that is integrated out.

    Errors along a run are alike: they count by the variance that they have as independent ones over that of
    whole runs, as in the standard errors of the fit.
    """
    job = record.job
    value, _ = record.motions.weights(job, record.raw)
    both = [
        (error, record.standard_errors[label])
        for label, error in record.independent_errors.items()
        if np.isfinite(error) and np.isfinite(record.standard_errors[label])
    ]
    shares = [2 * np.log(alone / whole) for alone, whole in both if alone > 0 and whole > 0]
    share = float(np.exp(min(np.mean(shares), 0.0))) if shares else 1.0
    errors = Errors(job, record.motions.rebuild, value)
    return identification.GaussianNoise(errors, mask=value > 0, weight=share)


def posterior_of(record: Identified, sampler: identification.AbstractSampler, seed: int = 0):
    """Draws from the posterior about the estimate of a fit.

    Rough residuals are replaced by a plane through them for Laplace's method, since their likelihood has no
    smooth mode; chains take derivatives from it and values from the simulation (`Guided`).

    **Raises:** `ValueError` if the fit has no standard errors, or the likelihood is not finite.
    """
    params, job = record.motions.unravel(jnp.asarray(record.raw)), record.job
    if record.spread is None and len(job) == 1:
        raise ValueError("one run says nothing about how runs differ: give two or more.")
    if record.spread is None:
        raise ValueError("the fit has no standard errors, since it has not converged.")
    if not np.all(np.diag(record.spread.covariance) > 0):
        raise ValueError("the data do not determine all of what is free: fix what they do not.")
    noise = likelihood = noise_of(record)
    if record.is_rough:
        wide = WIDE * np.sqrt(np.diag(record.spread.covariance))
        jacobian = identification.SecantJacobian(jnp.asarray(wide), frames=FRAMES)
        plane = identification.linearise(noise.residual, params, mask=noise.mask, jacobian=jacobian)
        shape = jax.eval_shape(noise.residual, params).shape
        smooth = OnPlane(plane, ravel_pytree(params)[0], shape)
        likelihood = (
            identification.Guided(noise, plane, params)
            if sampler.correlated
            else dataclasses.replace(noise, residual=smooth)
        )
    priors = {
        name: identification.Normal(job.value(job.model, name), job.quantities[name].deviation)
        for name in job.free
        if job.quantities[name].deviation is not None
    }
    key = jax.random.key(seed)
    return identification.posterior(likelihood, params, priors=priors, sampler=sampler, key=key)


def draw_and_show(
    session: Any,
    record: Identified,
    sampler: identification.AbstractSampler | None,
    folder: Path,
    title: str,
    seed: int = 0,
) -> dict:
    """Writes `posterior.html` and `posterior.json`, prints intervals and notes.

    **Returns:** the entry of `result.json`; nothing without a sampler. Where there is no posterior, a warning
    of the record says why; an interrupt ends the drawing alone, since the fit is there to be written.
    """
    if sampler is None:
        return {}
    how = type(sampler).__name__
    try:
        with session.stage(f"drawing from the posterior by {how}"):
            found = posterior_of(record, sampler, seed)
    except (ValueError, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        record.warnings.append(
            "the posterior was interrupted: there are no draws."
            if interrupted
            else f"the posterior was not drawn: {error}"
        )
        return {"posterior": None}
    exact, rough = (
        "exact, through the simulation",
        "of a plane through the residuals, which are rough",
    )
    notes = *_against_the_fit(record, found), *record.warnings
    found = dataclasses.replace(found, warnings=(*found.warnings, *notes))
    details = {
        "sampler": how,
        "derivatives": rough if record.is_rough else exact,
        "status of the fit": record.status,
        **_priors_in_words(record.job),
    }
    write_posterior(folder / PAGE, found, title=title, truth=record.truth, details=details)
    for label, (low, high) in found.interval(0.9).items():
        session.print(f"posterior: {label} from {low:.5g} to {high:.5g}, nine in ten draws")
    for sentence in found.warnings[: len(found.warnings) - len(record.warnings)]:
        session.print(f"[yellow]note of the posterior:[/] {sentence}")
    record.posterior_page = PAGE
    return {
        "posterior": {"page": PAGE, "sampler": how, "seed": seed, "warnings": list(found.warnings)}
    }


def _against_the_fit(record: Identified, posterior: identification.Posterior) -> list[str]:
    """What the standard errors of the fit say against the width of the posterior."""
    draws = posterior.samples.reshape(-1, len(posterior.labels))
    spread = dict(zip(posterior.labels, np.std(np.asarray(draws), axis=0), strict=True))
    return [
        f"the posterior of {label} is {error / spread[label]:.2g} times as narrow as the standard error "
        f"{error:.3g} of the fit, which sees how the runs differ: believe the wider one, or find what "
        "the runs do not share (outliers, several valleys: --starts)."
        for label, error in record.standard_errors.items()
        if label in spread and spread[label] * NARROWER < error
    ]


def _priors_in_words(job: Job) -> dict[str, str]:
    """The built-in priors of what is free, for the page."""
    return {
        f"prior of {name}": f"normal, {np.asarray(job.value(job.model, name)).round(6).tolist()} ± "
        f"{job.quantities[name].deviation:.3g} {job.quantities[name].unit}".rstrip()
        for name in job.free
        if job.quantities[name].deviation is not None
    }
