"""Sentences about a posterior that should not be trusted, each with its remedy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..information._contradictions import about_bounds, about_prior
from ._alone import alone
from ._likelihood import AbstractNoise
from ._mode import ENDED, SHARE, shares_of

_RHAT, _SIZE = 1.01, 400
"""Limits of Vehtari and others (2021), doi:10.1214/20-BA1221."""

_PARTNER = 0.1
_ALIKE = 0.99
"""Correlation of two numbers that only act together."""


def warnings_of(found, sampler, density, modes, numbers, raw_labels) -> tuple[str, ...]:
    """What speaks against the draws `found` of `sampler`; `modes`: the one that they start from, others."""
    mode = modes[0]
    sentences = _about_mode(mode, raw_labels) + _about_others(modes, found, density, sampler)
    if sampler.correlated:
        sentences += _about_chains(found, sampler)
    elif not len(mode.flat):
        sentences += _about_normality(found, mode)
    sentences += _about_misfit(found, density, mode)
    said = alone(density, mode, ravel_pytree(found.params)[0])
    if said is not None:
        sentences += _about_excluded(said, numbers, raw_labels)
    sentences += _about_pairs(found, numbers, said, raw_labels, mode)
    return tuple(sentences + _about_priors(found, density, numbers) + _about_bounds(found, numbers))


def _about_others(modes, found, density, sampler) -> list[str]:
    """A sentence about each further mode that holds a part of the posterior, by Laplace's approximation.

    Further than the one with the most chains, whose draws are the most.
    """
    shares = shares_of(modes)
    counts, ranks = sampler.chains_at(shares), np.argsort(np.argsort(-shares, kind="stable"))
    main, ends = int(np.argmax(counts)), np.cumsum(counts)
    x = ravel_pytree(found.params)[0]

    def place(i):
        value = np.asarray(density.physical(jnp.asarray(modes[i].x, x.dtype)))
        return ", ".join(f"{k} = {v:.4g}" for k, v in zip(found.labels, value, strict=True))

    def rows(i):
        return f"samples[{ends[i] - counts[i]}:{ends[i]}]"

    def begin(i):
        if not sampler.visits_modes:
            return "the draws are of the latter alone"
        if not counts[i]:
            return f"no chain begins there, for which it would take chains={ranks[i] + 1}"
        verb = "begins" if counts[i] == 1 else "begin"
        return (
            f"{counts[i]} of the {sum(counts)} chains {verb} there ({rows(i)}; beside: {rows(main)}) and may "
            "never cross. The draws of all chains are pooled, so that a mode counts by the number of its "
            "chains, not by its share: take the draws of the chains of one mode"
        )

    return [
        f"the posterior has another mode, at {place(i)}, with about {shares[i]:.0%} of it, beside "
        f"{place(main)} with about {shares[main]:.0%}: {begin(i)}; report each, or add data or priors that "
        "tell them apart."
        for i in range(len(modes))
        if i != main and shares[i] > SHARE
    ]


def _about_misfit(found, density, mode) -> list[str]:
    """Residuals that are no noise, at the most probable draw or at the mode."""
    noise = density.log_likelihood
    if not isinstance(noise, AbstractNoise):
        return []
    best = np.unravel_index(np.argmax(found.log_density), found.log_density.shape)
    drawn = found.log_density[best] > mode.log_density
    x = ravel_pytree(found.params)[0]
    at = jnp.asarray(found.raw[best], x.dtype) if drawn else x
    return noise.about_misfit(density.unravel(at))


def _about_excluded(said, numbers, raw_labels) -> list[str]:
    """Bounds beyond which the likelihood has its maximum."""
    by_label = {number.label: number for number in numbers}
    own = [i for i, label in enumerate(raw_labels) if label in by_label]
    bounded = [by_label[raw_labels[i]] for i in own]
    return about_bounds(bounded, said.centre[own], said.deviations[own])


def _about_pairs(found, numbers, said, raw_labels, mode) -> list[str]:
    """Numbers of different parameters that only act together, by the likelihood, or else by the draws."""
    sentences, owner = [], {number.label: number.parameter for number in numbers}
    if said is None:
        flat = found.samples.reshape(-1, len(found.labels))
        ranks = np.argsort(np.argsort(flat, axis=0), axis=0)
        with np.errstate(invalid="ignore"):
            labels, alike = found.labels, np.atleast_2d(np.corrcoef(ranks.T))
        whose = "of the ranks of the draws"
    else:
        labels, whose = raw_labels, "in the likelihood"
        alike = np.where(
            np.isfinite(np.add.outer(said.deviations, said.deviations)), said.correlations, 0
        )
        for direction in () if len(mode.flat) else said.lost:
            names = _involved(direction, raw_labels)
            if len(names) > 1:
                sentences.append(
                    f"the data alone do not determine a combination of {', '.join(names)}: what the draws "
                    "say of each comes from priors and bounds; fix one of them, or add data that tell them "
                    "apart."
                )
    for i, one in enumerate(labels):
        for j, other in enumerate(labels[:i]):
            if owner.get(one, one) != owner.get(other, other) and abs(alike[i, j]) > _ALIKE:
                sentences.append(
                    f"{other} and {one} act together (correlation {alike[i, j]:+.4f} {whose}): the data "
                    "determine a combination better than each; fix one of them, or add data that tell them "
                    "apart."
                )
    return sentences


def _involved(direction, raw_labels) -> list[str]:
    involved = np.abs(direction) > _PARTNER * np.max(np.abs(direction))
    return list(dict.fromkeys(np.asarray(raw_labels)[involved]))


def _about_mode(mode, raw_labels) -> list[str]:
    sentences = []
    if not mode.decrement < ENDED:
        sentences.append(
            f"the mode was not found: a step of {mode.decrement:.2g} standard deviations is left; "
            "start from the result of least_squares, or use Ensemble() for a rough likelihood."
        )
    for direction in mode.flat:
        names = _involved(direction, raw_labels)
        what = "a combination of " * (len(names) > 1) + ", ".join(names)
        sentences.append(
            f"data and priors do not determine {what}: give a prior, fix it, or add data that it "
            "influences."
        )
    return sentences


def _about_chains(found, sampler) -> list[str]:
    sentences = []
    mixed = ~(found.rhat <= _RHAT)
    if mixed.any():
        names = ", ".join(
            f"{label} ({r:.3f})"
            for label, r, bad in zip(found.labels, found.rhat, mixed, strict=True)
            if bad
        )
        sentences.append(
            f"the chains do not agree, R-hat above {_RHAT}: {names}; draw more, and look at the "
            "chains one by one: the posterior may have several valleys."
        )
    few = found.effective_sizes < _SIZE
    if few.any():
        worst = int(np.argmin(found.effective_sizes))
        sentences.append(
            f"{found.labels[worst]} has only {found.effective_sizes[worst]:.0f} effective draws; "
            f"for the ends of intervals {_SIZE} are needed: draw more."
        )
    total = found.log_density.size
    if found.divergences:
        sentences.append(
            f"{found.divergences} of {total} trajectories diverged: the draws avoid a part of the "
            "posterior; raise target_acceptance, or give priors that exclude what is impossible."
        )
    low = sampler.least_acceptance
    if found.acceptance < low:
        sentences.append(
            f"only {found.acceptance:.0%} of the moves are accepted: the likelihood is rough, or "
            "its gradient is not that of its values; use Located, Corrected or EventDriven, a "
            "smaller time step, or Ensemble()."
        )
    return sentences


def _about_normality(found, mode) -> list[str]:
    """Importance weights of the normal draws: all equal where the posterior is normal."""
    z = np.linalg.solve(mode.root, (found.raw[0] - mode.x).T)
    ratio = found.log_density[0] + np.sum(z**2, axis=0) / 2
    weights = np.exp(ratio - np.max(ratio))
    share = np.sum(weights) ** 2 / np.sum(weights**2) / weights.size
    if share > 0.5:
        return []
    return [
        f"the posterior is not normal: the draws of Laplace's method are worth {share:.0%} of as "
        "many from the posterior itself; use NUTS(), or Ensemble() for a rough likelihood."
    ]


@eqx.filter_jit
def _standard(density, raw):
    return jax.vmap(jax.vmap(density.standard))(raw)


def _about_priors(found, density, numbers) -> list[str]:
    """Numbers of which the prior says as much as the data, or whose prior the data contradict.

    In standard deviations of the prior, `y`, let the posterior have the mean `m` and the variance `s^2`. If
    all is normal, what the rest says of the number, without its prior, and the centre of the prior are
    `m / sqrt(1 - s^2)` standard deviations apart, whichever of the two is sharper.
    """
    sentences = []
    # Draws are in double precision, the parameters may not be.
    raw = jnp.asarray(found.raw, ravel_pytree(found.params)[0].dtype)
    scaled = np.asarray(_standard(density, raw), float)
    for i, number in enumerate(numbers):
        y, label, what, own = scaled[..., i], found.labels[i], "prior", True
        if np.isnan(y).all() and np.isfinite(number.hi - number.lo):
            # The uniform distribution between the bounds, which no mean inside contradicts.
            middle, width = (number.lo + number.hi) / 2, number.hi - number.lo
            y, what, own = (found.samples[..., i] - middle) / width * 12**0.5, "interval", False
        if not np.all(np.isfinite(y)):
            continue
        mean, variance = np.mean(y), np.var(y, ddof=1)
        # So well the draws tell a variance near 1.
        known = 3 * np.sqrt(2 / max(np.nan_to_num(found.effective_sizes[i], nan=10.0), 10.0))
        apart = abs(mean) / np.sqrt(max(1 - variance, min(known, 1.0)))
        blamed = about_prior(label, apart) if own else []
        sentences += blamed
        if not blamed and variance > 0.8**2:
            sentences.append(
                f"the data say hardly anything about {label}: its posterior is as wide as its {what}; add "
                "data that it influences."
            )
    return sentences


def _about_bounds(found, numbers) -> list[str]:
    """Numbers whose posterior does not vanish at a bound: 1 in 20 draws is within 0.2 deviations."""
    sentences = []
    for i, number in enumerate(numbers):
        x = found.samples[..., i]
        lo, hi = np.quantile(x, [0.05, 0.95])
        near = 0.2 * np.std(x, ddof=1)
        for bound, at in ((number.lo, abs(lo - number.lo)), (number.hi, abs(hi - number.hi))):
            if at < near:
                unit = f" {number.unit}" if number.unit else ""
                sentences.append(
                    f"{number.label} reaches its bound {bound:.3g}{unit}: read its interval as "
                    "one-sided."
                )
    return sentences
