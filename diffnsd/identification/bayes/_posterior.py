"""The posterior distribution of parameters, how far to trust its draws, and predictions from it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from ..._arguments import checked_arguments
from ..._checkpointing import Checkpointing, Parts
from ..._expects import expects
from .._base import check_parameters
from ..fitting._starts import spread_out
from ..information._uncertainty import physical
from ._mode import Mode, find_modes, shares_of
from ._priors import AbstractPrior
from ._samplers import AbstractSampler, Laplace
from ._target import Target, target
from ._trust import warnings_of


class Posterior(eqx.Module):
    """Draws from the posterior of parameters, flattened to `k` numbers in physical units.

    **Arguments:**

    - `params`: the mode in raw coordinates, of the type of the start.
    - `labels`, `units`: of each number, as in `uncertainty`.
    - `samples`: `(c, d, k)`: chains, draws, numbers. Of an ensemble each walker is a chain.
    - `raw`: `(c, d, p)`, the raw numbers of the same draws.
    - `log_density`: `(c, d)`, of the posterior in raw coordinates, up to a constant.
    - `rhat`, `effective_sizes`: `(k,)`: rank-normalised split R-hat, and how many independent draws
      are worth as much for the mean. R-hat is 1 for `Laplace`.
    - `divergences`, `acceptance`, `evaluations`: see the samplers.
    - `log_evidence`: Laplace's approximation of the logarithm of the marginal likelihood, for priors
      that are densities; NaN from a sampler that does not look for the mode.
    - `warnings`: sentences, each with its remedy; empty if nothing speaks against the draws.

    References: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner, "Rank-normalization,
    folding, and localization: an improved R-hat" (2021), doi:10.1214/20-BA1221.
    """

    params: PyTree[Array]
    labels: tuple[str, ...]
    units: tuple[str | None, ...]
    samples: Float[np.ndarray, "c d k"]
    raw: Float[np.ndarray, "c d p"]
    log_density: Float[np.ndarray, "c d"]
    rhat: Float[np.ndarray, " k"]
    effective_sizes: Float[np.ndarray, " k"]
    divergences: int
    acceptance: float
    evaluations: int
    log_evidence: float
    warnings: tuple[str, ...]
    unravel: Callable = eqx.field(repr=False)

    def __getitem__(self, label: str) -> tuple[float, float]:
        """Posterior mean and standard deviation. **Raises:** `KeyError` listing the labels."""
        if label not in self.labels:
            raise KeyError(f"no parameter {label!r}; there are: {', '.join(self.labels)}.")
        x = self.samples[..., self.labels.index(label)]
        return float(np.mean(x)), float(np.std(x, ddof=1))

    def interval(self, level: float = 0.9) -> dict[str, tuple[float, float]]:
        """Central intervals that hold the share `level` of the posterior, by label.

        **Raises:** `ValueError` if `level` is not between 0 and 1.
        """
        _check_level(level)
        flat = self.samples.reshape(-1, len(self.labels))
        lo, hi = np.quantile(flat, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return {
            label: (float(a), float(b)) for label, a, b in zip(self.labels, lo, hi, strict=True)
        }

    def draws(self, n: int, key: PRNGKeyArray) -> PyTree[Array]:
        """`n` of the draws, as parameters with a leading axis: for predictions.

            runs = rollout(lambda p: simulated(rebuild(p)), posterior.draws(100, key))

        Drawn with replacement if there are fewer than `n`.
        """
        flat = self.raw.reshape(-1, self.raw.shape[-1])
        rows = jax.random.choice(key, len(flat), (n,), replace=n > len(flat))
        return jax.vmap(self.unravel)(jnp.asarray(flat)[rows])


@checked_arguments
def posterior(
    log_likelihood: Annotated[Callable[[PyTree], Float[Array, ""]], "(params)"],
    params: PyTree[Array],
    *,
    priors: Mapping[str, AbstractPrior] | None = None,
    sampler: AbstractSampler | None = None,
    key: PRNGKeyArray | None = None,
    save: Checkpointing | None = None,
) -> Posterior:
    """Draws from the posterior `p(params | data) ~ L(params) prior(params)`.

        noise = identification.GaussianNoise(residual, deviation=1e-3)
        found = identification.posterior(noise, params, sampler=identification.NUTS())
        print(found["mu"], found.interval(0.9)["mu"], found.warnings)

    First the mode is found by Newton's method with the exact Hessian, for the samplers that use it. The
    warnings say what speaks against the draws: chains that do not mix, other modes, a prior or a bound that
    excludes what the data say, numbers that they do not tell apart, residuals larger than the noise.

    **Arguments:**

    - `log_likelihood`: pure function of the parameters that returns one number: `GaussianNoise` or
      `StudentNoise` of a residual, or your own.
    - `params`: pytree of floating arrays, usually from `parameters`; the start, best an estimate.
    - `priors`: a prior of the physical value by name; `Flat()` within the bounds by default.
    - `sampler`: `Laplace()` by default, `NUTS()`, or `Ensemble()`.
    - `key`: for the random numbers; `jax.random.key(0)` by default.
    - `save`: a `Checkpointing`, which writes the mode and then the draws to files and goes on from them;
      `every` counts the steps of a chain or the sweeps of an ensemble, warm-up and all.

    **Returns:** a `Posterior`.

    **Raises:** `TypeError` or `ValueError` for unsuitable parameters, priors or samplers, for a
    log-likelihood that is not one number, or not finite at the start.
    """
    check_parameters(params)
    sampler = Laplace() if sampler is None else sampler
    expects("sampler", sampler, AbstractSampler, "a sampler such as NUTS(draws=500)")
    density, x = target(log_likelihood, params, priors)
    key = jax.random.key(0) if key is None else key
    given = log_likelihood, params, priors, sampler, key
    files = None if save is None else Parts(save, given)
    if sampler.uses_curvature:
        others = _others(density.unravel(x), x, sampler.searches - 1)
        mode, rivals = find_modes(density, x, others, files=files)
    else:
        mode, rivals = _around(density, x), ()
    modes = mode, *rivals
    centres, roots = (
        jnp.asarray(np.stack(each), x.dtype)
        for each in zip(*((m.x, m.root) for m in modes), strict=True)
    )
    drawn = sampler.prepare(density, centres, roots, shares_of(modes), key).drawn(files)

    _, _, numbers, raw_labels = physical(density.unravel(jnp.asarray(mode.x, x.dtype)))
    raw = np.asarray(drawn.x, float)
    samples = np.asarray(jax.jit(jax.vmap(jax.vmap(density.physical)))(drawn.x), float)
    rhat, sizes = sampler.diagnose(samples)
    found = Posterior(
        params=density.unravel(jnp.asarray(mode.x, x.dtype)),
        labels=tuple(number.label for number in numbers),
        units=tuple(number.unit for number in numbers),
        samples=samples,
        raw=raw,
        log_density=np.asarray(drawn.log_density, float),
        rhat=rhat,
        effective_sizes=sizes,
        divergences=int(drawn.divergences),
        acceptance=float(drawn.acceptance),
        evaluations=int(drawn.evaluations),
        log_evidence=mode.log_evidence,
        warnings=(),
        unravel=density.unravel,
    )
    sentences = warnings_of(found, sampler, density, modes, numbers, raw_labels)
    return dataclasses.replace(found, warnings=sentences)


def _around(density: Target, x: Array) -> Mode:
    """The start itself with a small spread, for a sampler that finds the scales."""
    value, at = float(eqx.filter_jit(density)(x)), np.asarray(x, float)
    if not np.isfinite(value):
        raise ValueError(
            "the log-likelihood is not finite at the start: check the start values, the data and "
            "their masks."
        )
    root = np.diag(0.02 * (1 + np.abs(at)))
    unknown = np.full(at.size, np.nan), np.full((at.size, at.size), np.nan)
    return Mode(at, value, root, np.zeros((0, at.size)), 0.0, float("nan"), *unknown)


def _others(params: PyTree, x: Array, count: int):
    """Further starts of the search for the mode: the same ones whatever is drawn afterwards."""
    return spread_out(params, x, count, 1.0, jax.random.key(0)) if count else ()


@checked_arguments
def coverage(
    predictions: ArrayLike,
    measured: ArrayLike,
    level: float = 0.9,
    *,
    mask: ArrayLike | None = None,
) -> float:
    """Share of the measurements inside the central band of predictions.

    A model whose posterior can be trusted has about `level`. The band is that of what is predicted:
    for measurements, add the noise of the sensor to each prediction.

    **Arguments:** `predictions`: `(n, ...)`, one per draw of the posterior; `measured`: `(...)`;
    `level`: of the band; `mask`: which measurements count, a leading shape of `measured`.

    **Raises:** `ValueError` for shapes that do not fit, a level that is not between 0 and 1, or no
    measurement that counts.
    """
    _check_level(level)
    predictions, measured = np.asarray(predictions), np.asarray(measured)
    if predictions.ndim < 1 or predictions.shape[1:] != measured.shape:
        raise ValueError(
            f"predictions must be arrays like measured, of shape {measured.shape}, one per draw, (n, ...); "
            f"got {predictions.shape}."
        )
    keep = np.ones(measured.shape, bool)
    if mask is not None:
        mask = np.asarray(mask, bool)
        if mask.shape != measured.shape[: mask.ndim]:
            raise ValueError(f"the mask of shape {mask.shape} does not fit {measured.shape}.")
        keep &= mask.reshape(mask.shape + (1,) * (measured.ndim - mask.ndim))
    if not keep.any():
        raise ValueError("no measurement counts: the mask leaves none.")
    lo, hi = np.quantile(predictions, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return float(np.mean(((lo <= measured) & (measured <= hi))[keep]))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.9, got {level}.")
