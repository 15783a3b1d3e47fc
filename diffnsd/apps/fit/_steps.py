"""A step of the refinement: how wide to look around the estimate, how far to go."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ... import identification
from ._job import Simulated

EDGE = 1e-3
"""How near the refinement goes to the ends of an interval, as a fraction of it."""
WIDTH = 2.0
"""Width of the plane in standard errors; at least `NARROW` and at most `WIDE` of the raw number."""
NARROW, WIDE = 0.01, 0.2
NARROWEST = 0.003
"""The least width in place of `NARROW` where residuals are smooth (`is_smooth`). Their curvature moves an
estimate by the square of it, about 1e-5 of the number; narrower looks see the steps of time."""


def edges_of(params: identification.Parameters) -> tuple[np.ndarray, np.ndarray]:
    """The raw numbers next to the ends of intervals, between which the refinement stays.

    At the end of an interval the raw number is infinite: no step towards it would ever be small.
    """
    lo, hi = [], []
    for raw, transform in zip(params.raw, params.transforms, strict=True):
        low, high = (np.asarray(side, float) for side in transform.limits())
        sides = np.full(raw.shape, -np.inf), np.full(raw.shape, np.inf)
        if transform.is_box and np.all(np.isfinite(high - low)):
            inside = EDGE * (high - low)
            sides = tuple(
                np.asarray(transform.inverse(jnp.asarray(side)))
                for side in (low + inside, high - inside)
            )
        for ends, side in zip((lo, hi), sides, strict=True):
            ends.append(np.broadcast_to(np.asarray(side), raw.shape).ravel())
    return np.concatenate(lo), np.concatenate(hi)


def gauss_newton(linearisation, centre: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """The Gauss-Newton step from `centre`; numbers that it takes beyond an edge end there."""
    move = -solution(linearisation.residual, linearisation.jacobian)
    held = (centre + move < lo) | (centre + move > hi)
    if held.any():
        jacobian = np.asarray(linearisation.jacobian, float)
        move = np.where(held, np.clip(centre + move, lo, hi) - centre, 0.0)
        rest = np.asarray(linearisation.residual, float) + jacobian @ move
        move[~held] = -solution(rest, jacobian[:, ~held])
        move = np.clip(centre + move, lo, hi) - centre
    return move


def scales_of(params: identification.Parameters, deviations: list[float]) -> np.ndarray:
    """Standard deviations of priors in raw numbers, at most 1: a scale for numbers that may be 0.

    It is 0 without a prior. At the bounds, where the slope of raw numbers vanishes, it has no meaning.
    """
    parts = []
    for raw, transform, deviation in zip(params.raw, params.transforms, deviations, strict=True):
        _, slope = jax.jvp(transform.forward, (raw,), (jnp.ones_like(raw),))
        slope = np.abs(np.asarray(slope, float).ravel())
        parts.append(np.minimum(deviation / np.maximum(slope, 1e-12), 1.0))
    return np.concatenate(parts)


def widths_around(
    errors: np.ndarray, raw: Array, scales: np.ndarray, smooth: bool = False
) -> Array:
    """How far around the raw numbers the residuals are looked at; `scales` are those of numbers near 0;
    `smooth`: whether the residuals are.
    """
    size = np.maximum(np.maximum(np.abs(np.asarray(raw)), scales), 1e-3)
    narrow = NARROWEST if smooth else NARROW
    return jnp.asarray(np.clip(WIDTH * errors, narrow * size, WIDE * size), raw.dtype)


def across(centre: Array, widths: Array) -> tuple[np.ndarray, np.ndarray]:
    """The points of `is_smooth` `(3 p, p)`: for each number a width above the centre, at it, and below; and
    the direction at each, as long as the width.
    """
    ways = np.diag(np.asarray(widths))
    points = np.asarray(centre) + np.concatenate([ways, np.zeros_like(ways), -ways])
    return points, np.concatenate([ways, ways, ways])


def is_smooth(found: Simulated, tangents: np.ndarray, weights: Array) -> bool:
    """Whether the derivatives of the residuals explain how they differ across the widest look.

    A look a fifth of a number wide sees through jumps and teeth. Where there are none it only adds a bias,
    for over such a range the residuals are curved. What tells the two apart is what a derivative knows: for
    each number the change of the residuals between the two sides is compared with the integral of their
    derivative by Simpson's rule,

        | r(+) - r(-) - (r'(-) + 4 r'(0) + r'(+)) / 3 |  <=  NARROW / WIDE | r(+) - r(-) |.

    The two agree to fourth order in the width where the motion is curved: to 0.1 % for one that goes with
    `1 / mu`. The derivative misses a jump, and in a tooth it is not the slope of the saw. The limit, 5 %, is
    a jump as large as the change over the narrowest look at a rough loss, which is not safe from it either.
    Noise of the data cancels in the change. Measured: a pendulum 4e-5, a block that stops 0.009, a loss that
    jumps 0.11, tossed cubes 0.3 and more, teeth 2. Where a run fails or is not finite, nothing is smooth.

    The residuals are taken without a robust loss, whose bend is none of the motion.

    **Arguments:** `found`, `tangents`: the runs at the points of `across`, and the derivatives of their
    errors along the directions, with leading axes `(3 p, n)`; `weights (n, f, k)`: of the errors.
    """
    known = np.any(np.asarray(weights) > 0, axis=(1, 2))
    values, slopes = (_weighed(x, weights) for x in (found.errors, tangents))
    finite = np.all(np.isfinite(values)) and np.all(np.isfinite(slopes))
    if np.any(np.asarray(found.failed) & known) or not finite:
        return False
    (above, _, below), (ends, middle, starts) = values, slopes
    change = above - below
    missing = change - (starts + 4 * middle + ends) / 3
    limits = NARROW / WIDE * np.linalg.norm(change, axis=1)
    return bool(np.all(np.linalg.norm(missing, axis=1) <= limits))


def bends_of(found: Simulated, tangents: np.ndarray, weights: Array) -> np.ndarray | None:
    """How far the weighted residuals bend over the width of each number, `r'' w^2 / 2`, `(p, r)`.

    `None` where they are not smooth. The arguments are those of `is_smooth`.
    """
    if not is_smooth(found, tangents, weights):
        return None
    above, at, below = _weighed(found.errors, weights)
    return (above + below) / 2 - at


def bias_of(linearisation, bends: np.ndarray, narrowed: np.ndarray) -> np.ndarray:
    """How far the bends of the residuals move the aim of a look, to second order in its width, `(p,)`.

    No scatter shows it, so that it is added to the errors: without noise it is all of them.

    **Arguments:** `bends (p, r)`: over widths; `narrowed (p,)`: the widths of the look, as fractions of them.
    """
    # The mean square of the distances along each number is 1 / p of its width squared.
    mean = np.mean(narrowed[:, None] ** 2 * bends, axis=0)
    rest = linearisation.residual.size - mean.size  # priors and marks of failed runs have none
    return np.abs(solution(np.pad(mean, (0, rest)), linearisation.jacobian))


def _weighed(errors: Any, weights: Array) -> np.ndarray:
    """Weighted errors, 0 where nothing was measured, at the points of `across`: `(3, p, r)`."""
    weigh = np.asarray(weights)[..., None]
    return (np.where(weigh > 0, errors, 0.0) * weigh).reshape(3, len(errors) // 3, -1)


def solution(residual, jacobian) -> np.ndarray:
    """The least-squares solution of `J x = r` of least norm, in columns of unit length."""
    residual, jacobian = np.asarray(residual, float), np.asarray(jacobian, float)
    norms = np.linalg.norm(jacobian, axis=0)
    norms[norms == 0] = 1.0
    return np.linalg.lstsq(jacobian / norms, residual, rcond=1e-7)[0] / norms
