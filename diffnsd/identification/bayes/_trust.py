"""Sentences about a posterior that should not be trusted, each with its remedy."""

import jax.numpy as jnp
import numpy as np

_RHAT, _SIZE = 1.01, 400
"""Limits of Vehtari and others (2021), doi:10.1214/20-BA1221."""

_PARTNER = 0.1


def warnings_of(found, sampler, density, mode, numbers, raw_labels) -> tuple[str, ...]:
    """What speaks against the draws `found` of `sampler`."""
    sentences = _about_mode(mode, raw_labels)
    if sampler.correlated:
        sentences += _about_chains(found, sampler)
    elif not len(mode.flat):
        sentences += _about_normality(found, mode)
    return tuple(sentences + _about_priors(found, density, mode) + _about_bounds(found, numbers))


def _about_mode(mode, raw_labels) -> list[str]:
    sentences = []
    if not mode.decrement < 1e-2:
        sentences.append(
            f"the mode was not found: a step of {mode.decrement:.2g} standard deviations is left; "
            "start from the result of least_squares, or use Ensemble() for a rough likelihood."
        )
    labels = np.asarray(raw_labels)
    for direction in mode.flat:
        involved = np.abs(direction) > _PARTNER * np.max(np.abs(direction))
        names = ", ".join(dict.fromkeys(labels[involved]))
        what = f"a combination of {names}" if involved.sum() > 1 else names
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


def _about_priors(found, density, mode) -> list[str]:
    """Parameters of which the prior says as much as the data, or against which it pulls."""
    sentences = []
    spreads, pulls = density.about_priors(jnp.asarray(mode.x), jnp.asarray(mode.root))
    for i, label in enumerate(found.labels):
        deviation, spread, pull = np.std(found.samples[..., i], ddof=1), spreads[i], abs(pulls[i])
        if np.isfinite(spread) and pull > 3 * deviation:
            sentences.append(
                f"the prior of {label} contradicts the data: it pulls the value by "
                f"{pull / deviation:.1f} standard deviations; widen it, or look for what the "
                "model lacks."
            )
        elif np.isfinite(spread) and deviation > 0.8 * spread:
            sentences.append(
                f"the data say hardly anything about {label}: its posterior is as wide as its "
                "prior; add data that it influences."
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
