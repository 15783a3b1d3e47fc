"""Robust least squares whose scale is estimated from the residuals themselves."""

import math
from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from ..._arguments import checked_arguments
from ..._checkpointing import Checkpointing
from ..._expects import refuse_below
from ..information._judgement import about_outliers
from ..residuals._linearise import Huber, runs_of
from ._least_squares import least_squares
from ._outcome import FitResult
from ._programs import Programs

_MANY, _CHANCE = 0.1, 4.0
"""So many more of the residuals than of normal noise must be beyond `tuning` scales, and by so many standard
deviations of that number."""
_NORMAL = 1.4826
"""The standard deviation of a normal distribution over the median of its absolute values."""


class RobustFit(eqx.Module):
    """What `robust_least_squares` finds.

    **Arguments:**

    - `fit`: the `FitResult` of the last round, with residuals weighed as Huber's loss does.
    - `scale`: standard deviation of the residuals that are no outliers, in their unit.
    - `outliers`: `(r,)`, the residuals beyond `tuning` scales, flattened.
    - `rounds`: number of fits. `settled`: whether the scale had settled.
    - `warnings`: sentences about runs that are all outliers, and about many of them, each with its remedy.
    """

    fit: FitResult
    scale: float
    outliers: Bool[np.ndarray, " r"]
    rounds: int
    settled: bool
    warnings: tuple[str, ...] = ()


@checked_arguments
def robust_least_squares(
    residual: Annotated[Callable[[PyTree], PyTree[Array]], "(params)"],
    params: PyTree[Array],
    *,
    tuning: float = 1.345,
    rounds: int = 10,
    scale_rtol: float = 1e-3,
    mask: Any = None,
    groups: Array | np.ndarray | None = None,
    programs: Programs | None = None,
    save: Checkpointing | None = None,
    **options: Any,
) -> RobustFit:
    """Fits with Huber's loss beyond `tuning` scales, where the scale is that of the residuals.

        sum_i rho(r_i(p)),  rho(r) = r^2 / 2 up to delta = tuning s,  s = 1.4826 median |r_i|

    A robust loss with a fixed `delta` assumes that the noise is known: with a tenth of it the fit is one of
    absolute values, with ten times it outliers pull as in least squares. Here fits and estimates of `s`
    follow each other until it settles. Up to half of the residuals may be outliers; a fifth of them raises
    `s` by about a third.

    **Arguments:**

    - `residual`, `params`, `mask`, `programs`: as in `least_squares`; residuals in one unit.
    - `tuning`: 1.345 keeps 95 % of the efficiency of least squares for normal noise.
    - `rounds`: at most so many fits; `scale_rtol`: the relative change of `s` that ends them.
    - `groups`: labels of runs, as in `uncertainty`, for the warnings; by default the leading axis of
      residuals that have two axes or more.
    - `save`: a `Checkpointing`; every fit has a folder in its folder.
    - `options`: further arguments of `least_squares`.

    **Returns:** a `RobustFit`.

    **Raises:** `ValueError` if `tuning` is not positive, `rounds` less than 1, or no residual counts; else as
    `least_squares`.

    Reference: P. J. Huber, E. M. Ronchetti, Robust Statistics (2009), doi:10.1002/9780470434697; R. A.
    Maronna and others (2019), doi:10.1002/9781119214656.
    """
    if not tuning > 0 or rounds < 1:
        raise ValueError(
            f"tuning must be positive and rounds at least 1, got {tuning} and {rounds}."
        )
    refuse_below("scale_rtol", scale_rtol, 0)
    programs = Programs() if programs is None else programs
    given: dict[str, Any] = {"mask": mask, "programs": programs, **options}
    # A plain evaluation at the start: its residuals give the first scale.
    first = least_squares(residual, params, **{**given, "max_steps": 1, "throw": True})
    rows = first.linearisation
    labels = runs_of(rows.shapes) if groups is None else rows.rows(groups)
    kept = np.asarray(rows.mask)
    if not kept.any():
        raise ValueError("the mask leaves no residual to fit.")
    scale, dtype = _scale(np.asarray(rows.residual)[kept]), rows.residual.dtype
    fit, settled, count = first, False, 0
    sizes = np.abs(np.asarray(rows.residual, float))
    while count < rounds and not settled:
        count += 1
        delta = tuning * scale
        given["robust"] = Huber(jnp.asarray(delta, dtype))
        given["save"] = None if save is None else save.within(f"round_{count:02d}")
        fit = least_squares(residual, fit.params, **given)
        if fit.linearisation is None:
            break
        sizes = _unweighed(np.asarray(fit.linearisation.residual, float), delta)
        before, scale = scale, _scale(sizes[kept])
        settled = abs(scale - before) <= scale_rtol * before
    outliers = (sizes > tuning * scale) & kept
    expected = math.erfc(tuning / 2**0.5)
    sentences = _about(outliers[kept], None if labels is None else labels[kept], expected)
    return RobustFit(fit, scale, outliers, count, settled, tuple(sentences))


def _about(outliers: np.ndarray, labels: np.ndarray | None, expected: float) -> list[str]:
    """Sentences about many outliers, in all, or in a run; `expected`: their share in normal noise."""
    sentences, share = about_outliers(1.0 - outliers, labels), float(np.mean(outliers))
    chance = _CHANCE * math.sqrt(expected * (1 - expected) / outliers.size)
    if not sentences and share > expected + max(_MANY, chance):
        sentences.append(
            f"{share:.0%} of the residuals are outliers, of normal noise {expected:.0%} would be: so many "
            "are no exceptions; look at the data, and for what the model lacks."
        )
    return sentences


def _scale(residuals: np.ndarray) -> float:
    """The scale of residuals; never 0, where more than half of them vanish."""
    sizes = np.abs(residuals)
    found = _NORMAL * float(np.median(sizes))
    return max(found, 1e-12 * float(np.max(sizes)), float(np.finfo(float).tiny))


def _unweighed(weighed: np.ndarray, delta: float) -> np.ndarray:
    """Sizes of residuals from those that `Huber.weigh` made of them."""
    size = np.abs(weighed)
    return np.where(size > delta, (size**2 / delta + delta) / 2, size)
