"""Draws from the distribution of an estimate, and the bands of what it predicts."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ... import identification
from ._steps import EDGE

DRAWS, LEVEL = 400, 0.9
"""Number of draws for the corner plot, and what a band holds."""
BANDED = 24, 40
"""At most so many runs get a band, each from so many draws."""


@dataclass(frozen=True)
class Spread:
    """The distribution of an estimate: Student's t with its covariance, cut off at the bounds.

    `covariance (p, p)`: of the raw numbers, to first order, 0 along what the data do not determine;
    `freedom`: its degrees of freedom, those of the intervals.
    """

    params: identification.Parameters
    rebuild: Callable
    covariance: np.ndarray
    freedom: int

    def draw(self, n: int, seed: int = 0) -> identification.Parameters:
        """`n` draws, as parameters with a leading axis.

        Of a number with bounds the value itself is drawn, as the intervals take it; a draw beyond a bound
        ends next to it. Near a bound raw numbers are far from normal.
        """
        flat, unravel = ravel_pytree(self.params)
        size, vectors = np.linalg.eigh(self.covariance)
        rng = np.random.default_rng(seed)
        moves = rng.normal(size=(n, flat.size)) @ (vectors * np.sqrt(np.maximum(size, 0.0))).T
        moves *= np.sqrt(self.freedom / rng.chisquare(self.freedom, (n, 1)))
        aside = jax.vmap(unravel)(jnp.asarray(moves, flat.dtype))
        drawn = []
        for raw, move, transform in zip(
            self.params.raw, aside.raw, self.params.transforms, strict=True
        ):
            if not transform.is_box:
                drawn.append(raw[None] + move)
                continue
            value, slope = jax.jvp(transform.forward, (raw,), (jnp.ones_like(raw),))
            lo, hi = (np.asarray(side, float) for side in transform.limits())
            middle = np.asarray(value)
            sides = (middle + (1 - EDGE) * (side - middle) for side in (lo, hi))
            inside = np.clip(np.asarray(value + slope * move), *sides)
            drawn.append(transform.inverse(jnp.asarray(inside, raw.dtype)))
        return identification.Parameters(
            tuple(drawn), self.params.names, self.params.transforms, self.params.units
        )

    def samples(self, n: int = DRAWS, seed: int = 0) -> dict[str, np.ndarray]:
        """Draws of each number by its label, `(n,)`."""
        values = jax.vmap(lambda drawn: drawn.values())(self.draw(n, seed))
        found = {}
        for name in self.params.names:
            array = np.asarray(values[name])
            for i in np.ndindex(*array.shape[1:]):
                found[name + (f"[{','.join(map(str, i))}]" if i else "")] = array[:, *i]
        return found


@dataclass(frozen=True)
class Bands:
    """The central band of predictions of some runs, and what it holds of the measured frames.

    `runs`: their indices; `low`, `high`: positions `(b, f, ..., 3)`, in the unit of the predictions;
    `share`: of the measured numbers inside.
    """

    runs: np.ndarray
    low: np.ndarray
    high: np.ndarray
    share: float

    def of(self, run: int, frames: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Low and high positions of a run in its frames, `None` if it has no band."""
        (at,) = np.nonzero(self.runs == run)
        return (self.low[at[0], :frames], self.high[at[0], :frames]) if at.size else None


def bands(
    spread: Spread | None,
    simulate: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    runs: np.ndarray,
    velocities: np.ndarray,
    deviations: np.ndarray,
    tolerance: float,
    measured: np.ndarray,
    known: np.ndarray,
    seed: int = 0,
) -> Bands | None:
    """Predicts runs with draws of the parameters, of the start velocities and of the error of a frame.

    **Arguments:** `simulate(which, raw, velocities)`: the positions `(l, f, ..., 3)` of runs `which (l,)`,
    each with its own raw numbers `(l, p)` and start velocity `(l, m)`; `runs (b,)`: indices;
    `velocities (b, m)`, `deviations (m,)`: of their starts; `tolerance`: standard deviation of a frame, in
    the unit of positions; `measured (b, f, ..., 3)`, `known`: which of it counts, what its shape begins with.

    **Returns:** the bands, or `None` without a distribution.
    """
    if spread is None or not len(runs):
        return None
    (count, m), n = velocities.shape, BANDED[1]
    rng = np.random.default_rng(seed)
    raw = np.asarray(jax.vmap(lambda drawn: ravel_pytree(drawn)[0])(spread.draw(n, seed)))
    starts = np.repeat(velocities, n, axis=0) + deviations * rng.normal(size=(count * n, m))
    found = simulate(np.repeat(runs, n), np.tile(raw, (count, 1)), starts)
    found = found + tolerance * rng.normal(size=found.shape)
    found = found.reshape(count, n, *found.shape[1:])
    low, high = np.nanquantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    share = identification.coverage(np.moveaxis(found, 1, 0), measured, LEVEL, mask=known)
    return Bands(runs, low, high, share)


def banded_runs(order: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """The runs that get a band: those shown, and others from the best to the worst predicted."""
    every = order[:: max(1, len(order) // BANDED[0])]
    return np.array(list(dict.fromkeys([*shown.tolist(), *every.tolist()]))[: BANDED[0]], int)
