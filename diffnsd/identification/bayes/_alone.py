"""What the data alone say, without priors and bounds, to second order around the mode."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._mode import Mode, axes_of
from ._target import Target

_NONE = 1e-8
"""Curvatures below this fraction of the largest, with unit diagonal, count as none."""


class Alone(NamedTuple):
    """The normal distribution next to the likelihood at the mode, in the coordinates of `Target.chart`.

    `centre`, `deviations` `(p,)`: infinite deviations where the likelihood has no curvature; `correlations`
    `(p, p)`; `lost` `(f, p)`: the directions without.
    """

    centre: np.ndarray
    deviations: np.ndarray
    correlations: np.ndarray
    lost: np.ndarray


def alone(density: Target, mode: Mode, x: Float[Array, " p"]) -> Alone | None:
    """Value, slope and curvature of the likelihood are those of the density less those of the priors.

    The coordinates are bent: of a value `v(x)` the curvature is `(L'' - L' v'' / v') / v'^2`. `None` where
    the derivatives are not known. `x`: the mode, in the precision of the parameters.
    """
    if not np.all(np.isfinite(mode.hessian)):
        return None
    value, first, second, slope, hessian = map(np.asarray, eqx.filter_jit(_parts)(density, x))
    slope, hessian = mode.slope - slope, mode.hessian - hessian
    bent = (hessian - np.diag(slope * second / first)) / np.outer(first, first)
    spread, vectors, curvature = axes_of(-bent)
    known = curvature > _NONE * max(curvature[-1], 0.0)
    roots = spread[:, None] * vectors[:, known] / np.sqrt(curvature[known])
    covariance = roots @ roots.T
    lost = (spread[:, None] * vectors).T[~known]
    # With unit diagonal, so that the units of numbers do not decide who is part of a direction.
    parts = vectors.T[~known]
    unknown = np.any(
        np.abs(parts) > 0.1 * np.abs(parts).max(axis=1, initial=0, keepdims=True), axis=0
    )
    deviations = np.where(unknown, np.inf, np.sqrt(np.diag(covariance)))
    sizes = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    return Alone(
        value + covariance @ (slope / first), deviations, covariance / np.outer(sizes, sizes), lost
    )


def _parts(density: Target, x):
    ones = jnp.ones_like(x)

    def once(x):
        return jax.jvp(density.chart, (x,), (ones,))[1]

    first, second = jax.jvp(once, (x,), (ones,))
    prior = density.log_prior
    return density.chart(x), first, second, jax.grad(prior)(x), jax.hessian(prior)(x)
