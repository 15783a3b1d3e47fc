"""MuJoCo's own least squares, by finite differences, on a budget of rollouts."""

from collections.abc import Callable
from typing import Any

import numpy as np

STEPS = 1e-3, 1e-2
"""Of the differences of each number, relative to it."""


def motion(model: Any, data: Any, q, v, frames: int, substeps: int) -> np.ndarray:
    """The coordinates `(f, nq)` of one run of MuJoCo in C."""
    import mujoco

    mujoco.mj_resetData(model, data)
    data.qpos[:], data.qvel[:] = q, v
    found = np.zeros((frames, model.nq))
    for frame in range(frames):
        found[frame] = data.qpos
        mujoco.mj_step(model, data, substeps)
    return found


class Spent(Exception):
    """The budget of rollouts is spent."""


def fit_by_differences(
    residual: Callable[[np.ndarray], np.ndarray],
    cost: int,
    bounds: tuple[np.ndarray, np.ndarray],
    step: float,
    budgets: list[int],
) -> list[tuple[int, float, np.ndarray]]:
    """The best numbers at each budget, from `x = 1`: `(rollouts, loss, x)`.

    **Arguments:** `residual(x)`, which takes `cost` rollouts; `bounds`, `step` of the differences and `x`
    are relative to the start values; `budgets`: of rollouts, increasing.
    """
    import mujoco.minimize

    best, found, spent = (np.inf, np.ones(len(bounds[0]))), [], 0

    def columns(points: np.ndarray) -> np.ndarray:
        nonlocal best, spent
        each = []
        for x in points.T:
            while len(found) < len(budgets) and spent + cost > budgets[len(found)]:
                found.append((budgets[len(found)], *best))
            if len(found) == len(budgets):
                raise Spent
            spent += cost
            each.append(np.nan_to_num(np.asarray(residual(x)).ravel(), nan=10.0))
            loss = float(each[-1] @ each[-1] / 2)
            best = min(best, (loss, x.copy()), key=lambda pair: pair[0])
        return np.stack(each, axis=1)

    try:
        mujoco.minimize.least_squares(
            np.ones(len(bounds[0])), columns, bounds, eps=step, max_iter=1000, verbose=0
        )
    except Spent:
        return found
    return found + [(spent, *best)]
