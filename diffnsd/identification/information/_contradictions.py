"""What of a prior or a bound contradicts the data: one limit, and the sentences that say it."""

from collections.abc import Sequence

import numpy as np

from ._judgement import PhysicalNumber

APART = 3.0
"""So many standard deviations between what a prior, or a bound, and what the data say are a contradiction.

By chance one right number in 370 is that far off, and one in 22 would be at two, so that a fit of ten numbers
would often be blamed for nothing (a single check may take two). Standard errors are known to some 20 %
(fifteen runs), which two would not allow for either."""


def about_bounds(
    numbers: Sequence[PhysicalNumber], said, deviations, remark: str = ""
) -> list[str]:
    """A sentence about each bound beyond which the data alone put a number.

    **Arguments:** `said`, `deviations`: what they say of each number, and how well; `remark`: ends the
    sentence.
    """
    return [
        f"the bound {bound:.3g}{unit} of {number.label} excludes what the data say, about {value:.3g} ± "
        f"{deviation:.2g}{unit}: widen it, or look for what the model lacks{remark}."
        for number, value, deviation in zip(numbers, said, deviations, strict=True)
        for side, bound in ((-1, number.lo), (1, number.hi))
        for unit in [f" {number.unit}" if number.unit else ""]
        if np.isfinite(deviation)
        # A bound that the estimate lies on is passed by rounding.
        and side * (value - bound) > max(APART * deviation, 1e-6 * max(abs(value), abs(bound)))
    ]


def about_prior(label: str, apart: float, prior: str = "", data: str = "") -> list[str]:
    """A sentence if a prior contradicts the data.

    **Arguments:** `apart`: the centre of the prior and what the data alone say, in standard deviations of
    their difference; `prior`, `data`: both in words, if they are known.
    """
    if not apart > APART:
        return []
    prior, data = (f" ({words})" if words else "" for words in (prior, data))
    return [
        f"the prior of {label}{prior} contradicts the data: its centre and what the data alone say{data} are "
        f"about {apart:.3g} standard deviations apart; correct or widen it, or look for what the model lacks."
    ]
