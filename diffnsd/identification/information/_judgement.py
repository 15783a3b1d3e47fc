"""Sentences about an estimate that the data do not determine, or that does not fit them."""

from typing import NamedTuple

import numpy as np

_MOST, _ALL, _SEVERAL = 0.5, 0.9, 5
"""Shares of outliers among all residuals, and among at least so many of a group, that are no exceptions."""


class PhysicalNumber(NamedTuple):
    """Metadata of one physical number; `parameter` is the name of the parameter it belongs to."""

    label: str
    parameter: str
    unit: str | None
    lo: float
    hi: float


def judge(numbers: list[PhysicalNumber], values, errors, value_limit: float, interval_limit: float):
    """Which numbers are determined, and a warning for each that is not or lies on a bound."""
    known, sentences = [], []
    for number, value, error in zip(numbers, values, errors, strict=True):
        label, unit = number.label, f" {number.unit}" if number.unit else ""
        width = number.hi - number.lo
        if np.isfinite(width):
            scale, limit, base = width, interval_limit, f"its interval of {width:.3g}"
        else:
            scale, limit, base = abs(value), value_limit, f"its value {value:.3g}"
        known.append(bool(error <= limit * scale))
        if not known[-1] and np.isfinite(error):
            share = f"{error / scale:.0%} of " if scale > 0 else "too large beside "
            sentences.append(
                f"{label} is not determined by the data: its standard error {error:.3g}{unit} "
                f"is {share}{base}{unit}; fix it, or add data that it influences."
            )
        for bound in (number.lo, number.hi):
            if np.isfinite(error) and abs(value - bound) < min(error, limit * scale):
                sentences.append(
                    f"{label} = {value:.3g}{unit} is within one standard error "
                    f"({error:.2g}{unit}) of its bound {bound:.3g}{unit}: read it as a "
                    "one-sided limit."
                )
            elif not np.isfinite(error) and abs(value - bound) < 1e-2 * scale:
                sentences.append(
                    f"{label} = {value:.3g}{unit} lies on its bound {bound:.3g}{unit}: the data ask for "
                    "more than the bound allows, or for nothing."
                )
    return known, sentences


def pairs(numbers: list[PhysicalNumber], correlations, limit: float) -> list[str]:
    """Warnings about pairs of parameters that are hard to tell apart, one per parameter."""
    sentences = []
    for i, number in enumerate(numbers):
        partners = [
            f"{other.label} ({correlations[i, j]:+.3f})"
            for j, other in enumerate(numbers)
            if j > i and other.parameter != number.parameter and abs(correlations[i, j]) > limit
        ]
        if partners:
            sentences.append(
                f"{number.label} is strongly correlated with {', '.join(partners)}: the data "
                "determine a combination better than each; fix one of them, or add data that tell "
                "them apart."
            )
    return sentences


def about_outliers(curvature: np.ndarray, labels: np.ndarray | None) -> list[str]:
    """A sentence if a robust loss takes most residuals, or all of a group, for outliers.

    **Arguments:** `curvature (r,)`: how much of its curvature the loss has at each residual, 0 at an
    outlier; `labels (r,)`: their groups.
    """
    far = curvature < 0.5
    share, groups = float(np.mean(far)), []
    if labels is not None:
        for label in np.unique(labels):
            part = far[labels == label]
            if part.size >= _SEVERAL and np.mean(part) > _ALL:
                groups.append(f"{np.mean(part):.0%} of group {label}")
    if share <= _MOST and not groups:
        return []
    more = f", among them {', '.join(groups[:5])}{', ...' * (len(groups) > 5)}" * bool(groups)
    return [
        f"{share:.0%} of the residuals are outliers of the robust loss{more}: the model does not fit "
        f"{'these data' if share > _MOST else 'them'}, or the loss begins too far in; look at the data, "
        "leave bad runs out, or let the loss begin further out."
    ]
