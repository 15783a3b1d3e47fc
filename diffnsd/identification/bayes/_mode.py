"""The mode of a log-density and its curvature there."""

from collections.abc import Callable

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
    """

    x: np.ndarray
    log_density: float
    root: np.ndarray
    flat: np.ndarray
    decrement: float
    log_evidence: float


def find_mode(target: Callable, x, max_steps: int = 40, files: Parts | None = None) -> Mode:
    """Newton's method with damping on the log-density.

    Its Hessian is exact (forward over reverse), or, where second derivatives are refused because they would
    not be true, of central differences of the gradient. `files` keep the mode.

    **Raises:** `ValueError` if the log-density or a derivative is not finite at the start.
    """
    if files is None:
        return _described(*_search(target, x, max_steps))
    numbers = np.zeros(x.size)
    like = numbers, np.zeros(()), numbers, np.zeros((x.size, x.size))
    return _described(*files.next(lambda: _search(target, x, max_steps), lambda: like))


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
        spread, vectors, curvature = _axes(-hessian)
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
    spread, vectors, curvature = _axes(-hessian)
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


def _axes(hessian):
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
