"""The mode of a log-density and its curvature there."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._checkpointing import Parts
from ..._jax import SecondDerivativeError

_FLAT = 1e-8
"""Curvatures below this fraction of the largest, with unit diagonal, count as none."""


class Mode(eqx.Module):
    """Where the log-density is largest.

    **Arguments:**

    - `x`: raw numbers `(p,)`; `log_density`: there.
    - `root`: `(p, p)` with `root root^T` the inverse of the negative Hessian, where it has one.
    - `flat`: `(f, p)`, directions in which the log-density has no curvature or a positive one.
    - `decrement`: the Newton step that is left, in standard deviations.
    - `log_evidence`: Laplace's approximation of the logarithm of the integral of the density.
    - `slope` `(p,)`, `hessian` `(p, p)`: of the log-density, NaN where they are not known.
    """

    x: np.ndarray
    log_density: float
    root: np.ndarray
    flat: np.ndarray
    decrement: float
    log_evidence: float
    slope: np.ndarray
    hessian: np.ndarray


def find_modes(
    target: Callable, x, others=(), max_steps: int = 40, files: Parts | None = None
) -> tuple[Mode, tuple[Mode, ...]]:
    """The highest mode found by Newton's method with damping from `x` and from `others`, and lower ones.

    Its Hessian is exact (forward over reverse), or, where second derivatives are refused because they would
    not be true, of central differences of the gradient. `files` keep the modes.

    **Raises:** `ValueError` if the log-density or a derivative is not finite at `x`; other starts like
    that, or whose likelihood fails, are left out.
    """
    p, count = x.size, 1 + len(others)

    def all_searches():
        found: list[tuple] = [_search(target, x, max_steps)]
        for other in others:
            try:
                found.append(_search(target, other, max_steps))
            except (ValueError, RuntimeError):  # such as a simulation that fails there
                found.append(tuple(np.full_like(part, np.nan) for part in found[0]))
        return tuple(np.stack(parts) for parts in zip(*found, strict=True))

    def like():
        return tuple(np.zeros((count, *shape)) for shape in ((p,), (), (p,), (p, p)))

    rows = all_searches() if files is None else files.next(all_searches, like)
    found = [_described(*row) for row in zip(*rows, strict=True) if np.all(np.isfinite(row[1]))]
    # The same mode found again is higher by rounding, which should not change what is drawn.
    ended = list(filter(_is_one, found)) or found
    best = max(ended, key=lambda mode: mode.log_density - _HIGHER * (mode is not found[0]))
    rest = sorted(found, key=lambda mode: -mode.log_density)
    return best, _distinct(best, [mode for mode in rest if mode is not best])


_HIGHER = 1e-3
"""By how much the log-density at another mode must be larger to take the place of the one nearby."""
_ELSEWHERE = 5.0
"""Modes so many standard deviations apart are two."""
SHARE = 0.01
"""Share of the posterior below which another mode does not matter."""
ENDED = 1e-2
"""Decrement below which a search has ended at a mode."""


def _distinct(best: Mode, rest: list[Mode]) -> tuple[Mode, ...]:
    """The modes that are not the best one over again; none where one of its directions has no curvature."""
    kept = [best]
    for mode in rest:
        if _is_one(mode) and all(_apart(one, mode) > _ELSEWHERE for one in kept):
            kept.append(mode)
    return () if len(best.flat) else tuple(kept[1:])


def shares_of(modes: Sequence[Mode]) -> np.ndarray:
    """The parts of the posterior that the modes hold, by Laplace's approximation."""
    evidences = np.array([mode.log_evidence for mode in modes])
    weights = np.exp(evidences - np.max(evidences))
    return weights / np.sum(weights)


def _is_one(mode: Mode) -> bool:
    """Whether a search ended at a maximum, in every direction."""
    return mode.decrement < ENDED and not len(mode.flat)


def _apart(one: Mode, other: Mode) -> float:
    return float(np.linalg.norm(np.linalg.solve(one.root, other.x - one.x)))


def _search(target: Callable, x, max_steps: int):
    """Raw numbers of the mode; log-density, gradient and Hessian there."""

    def at(x):
        value, slope, hessian = (np.asarray(a, float) for a in _evaluate(target, x))
        return value, slope, (hessian + hessian.T) / 2

    dtype, x = x.dtype, np.asarray(x, float)
    value, slope, hessian = at(jnp.asarray(x, dtype))
    if not (np.isfinite(value) and np.all(np.isfinite(slope)) and np.all(np.isfinite(hessian))):
        raise ValueError(
            "the log-likelihood or a derivative of it is not finite at the start: check the start "
            "values, the data and their masks; Ensemble() needs no derivatives."
        )
    damping = 0.0
    for _ in range(max_steps):
        spread, vectors, curvature = axes_of(-hessian)
        along = vectors.T @ (spread * slope)
        step = spread * (vectors @ (along / (np.maximum(curvature, _FLAT) + damping)))
        if _decrement(along, curvature) < 1e-6:
            break
        new = at(jnp.asarray(x + step, dtype))
        if np.isfinite(new[0]) and np.all(np.isfinite(new[2])) and new[0] >= value:
            (value, slope, hessian), x, damping = new, x + step, damping / 10
        elif damping > 1e8:
            break
        else:
            damping = max(10 * damping, 1e-3)
    return x, value, slope, hessian


def _described(x, value, slope, hessian) -> Mode:
    value = float(value)
    spread, vectors, curvature = axes_of(-hessian)
    none = curvature < _FLAT
    root = spread[:, None] * vectors / np.sqrt(np.where(none, 1.0, curvature))
    volume = np.sum(np.log(spread)) - np.sum(np.log(np.where(none, np.nan, curvature))) / 2
    return Mode(
        x,
        value,
        root,
        (spread[:, None] * vectors).T[none],
        _decrement(vectors.T @ (spread * slope), curvature),
        value + x.size / 2 * np.log(2 * np.pi) + volume,
        slope,
        hessian,
    )


@eqx.filter_jit
def _evaluate(target, x):
    """Value, gradient and Hessian; compiled once for targets that differ in arrays only."""
    value, slope = jax.value_and_grad(target)(x)
    return value, slope, _hessian(target, x)


def _hessian(target, x):
    try:
        return jax.jacfwd(jax.grad(target))(x)
    except SecondDerivativeError:
        width = float(jnp.finfo(x.dtype).eps) ** (1 / 3)
        moves = width * jnp.eye(x.size, dtype=x.dtype)
        ends = jnp.stack([x[None] + moves, x[None] - moves])
        ahead, back = jax.lax.map(jax.vmap(jax.grad(target)), ends)
        return (ahead - back) / (2 * width)


def axes_of(hessian):
    """Scales that give a unit diagonal, principal directions and curvatures of the scaled matrix."""
    diagonal = np.abs(np.diag(hessian))
    silent = diagonal <= 0
    spread = 1 / np.sqrt(np.where(silent, 1.0, diagonal))
    curvature, vectors = np.linalg.eigh(hessian * np.outer(spread, spread))
    return spread, vectors, curvature


def _decrement(along, curvature) -> float:
    """Length of the Newton step in standard deviations, along directions that have one."""
    known = curvature >= _FLAT
    return float(np.sqrt(np.sum(along[known] ** 2 / curvature[known])))
