"""A step of the refinement: how wide to look around the estimate, how far to go; and runs that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ... import identification

EDGE = 1e-3
"""How near the refinement goes to the ends of an interval, as a fraction of it."""
WIDTH = 2.0
"""Width of the plane in standard errors; at least `NARROW` and at most `WIDE` of the raw number."""
NARROW, WIDE = 0.01, 0.2
OUTLYING = 3.0
"""A run is reported if most of its frames are outliers, and its error is that many times the median."""


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
    move = -_solution(linearisation.residual, linearisation.jacobian)
    held = (centre + move < lo) | (centre + move > hi)
    if held.any():
        jacobian = np.asarray(linearisation.jacobian, float)
        move = np.where(held, np.clip(centre + move, lo, hi) - centre, 0.0)
        rest = np.asarray(linearisation.residual, float) + jacobian @ move
        move[~held] = -_solution(rest, jacobian[:, ~held])
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


def widths_around(errors: np.ndarray, raw: Array, scales: np.ndarray) -> Array:
    """How far around the raw numbers the residuals are looked at; `scales` are those of numbers near 0."""
    size = np.maximum(np.maximum(np.abs(np.asarray(raw)), scales), 1e-3)
    return jnp.asarray(np.clip(WIDTH * errors, NARROW * size, WIDE * size), raw.dtype)


def about_outliers(here: identification.Linearisation, runs: int, delta: float) -> list[str]:
    """A sentence about each run most of whose frames are outliers, beyond `delta`."""
    shape = here.shapes[0]
    weighed = np.asarray(here.residual[: np.prod(shape)]).reshape(shape)
    largest = np.max(np.abs(weighed), axis=-1).reshape(runs, -1)
    counts = np.maximum(np.sum(largest > 0, axis=1), 1)
    share = np.sum(largest > delta, axis=1) / counts
    size = np.sqrt(np.sum(largest**2, axis=1) / counts)
    return [
        f"run {i} does not fit the model: {share[i]:.0%} of its frames are outliers; look at its data, or "
        "leave it out."
        for i in np.flatnonzero((share > 0.5) & (size > OUTLYING * np.median(size)))
    ]


def _solution(residual, jacobian) -> np.ndarray:
    """The least-squares solution of `J x = r` of least norm, in columns of unit length."""
    residual, jacobian = np.asarray(residual, float), np.asarray(jacobian, float)
    norms = np.linalg.norm(jacobian, axis=0)
    norms[norms == 0] = 1.0
    return np.linalg.lstsq(jacobian / norms, residual, rcond=1e-7)[0] / norms
