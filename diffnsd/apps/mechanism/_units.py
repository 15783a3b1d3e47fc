"""Whether measured runs are in metres, seconds and radians, as far as the physics shows it."""

import numpy as np

from ...io import Elements
from ...io._read import FREE, HINGE
from .._files import DataFileError
from .._statistics import median_and_error
from ._data import Runs
from ._job import as_batch, metric_of, moving
from ._starts import LEAST, flying_frames

APART = 30.0
"""How far the fall may be from gravity, as a factor: units are off by a thousand or a million."""
SURE = 10.0
"""By how many standard errors it must be."""
OFTEN = 0.1
"""Share of the frames in which a hinge must be beyond its range by another range."""


def check_units(elements: Elements, runs: Runs) -> None:
    """Compares the fall of the centre of mass with gravity, and angles with the ranges of hinges.

    **Raises:** `DataFileError` naming what is off, and the remedy.
    """
    for name, _, kind, at, _ in elements.plan.joints:
        if kind == HINGE and name in elements.plan.limited:
            _check_angle(name, runs.qpos[:, at], np.asarray(elements[f"{name}/range"]))
    gravity = np.asarray(elements["option/gravity"])
    strength = float(np.linalg.norm(gravity))
    for falls in _falls(elements, runs, gravity / strength) if strength > 0 else ():
        if len(falls) < LEAST:
            continue
        fall, error = median_and_error(falls)
        is_near = strength / APART < fall < strength * APART
        if not is_near and abs(fall - strength) > SURE * error:
            raise DataFileError(
                f"before their first contact the runs fall with {fall:.3g} m/s², but gravity of the file is "
                f"{strength:.3g} m/s²: `qpos` must be in metres and `times` in seconds; divide millimetres "
                "by 1000, milliseconds too (in which bodies that lie on something seem to float)."
            )


def _check_angle(name: str, angle: np.ndarray, limits: np.ndarray) -> None:
    angle = angle[np.isfinite(angle)]
    (low, high), as_degrees = limits, np.radians(angle)
    beyond = np.mean(np.maximum(low - angle, angle - high) > high - low)
    inside = np.mean((low <= as_degrees) & (as_degrees <= high))
    if beyond > OFTEN and inside > 1 - OFTEN:
        raise DataFileError(
            f"`qpos` of {name} lies between {angle.min():.3g} and {angle.max():.3g}, but its range is "
            f"{low:.3g} to {high:.3g} rad: angles must be in radians, and these look like degrees."
        )


def _falls(elements: Elements, runs: Runs, down: np.ndarray) -> list[np.ndarray]:
    """Accelerations of the centre of mass in flights [m/s²], by three kinds of parabolas.

    Between neighbouring frames; through what comes before the first bounce, since runs in millimetres seem to
    bounce in the air; and through whole runs, in which noise counts less, of 30 frames two hundred times.
    None where something else than gravity acts on it.
    """
    if not _falls_freely(elements):
        return []
    moves = moving(elements)
    names = [name for (name, _), moved in zip(elements.plan.bodies, moves, strict=True) if moved]
    masses = np.array([float(elements[f"{name}/mass"]) for name in names])
    batch, known = as_batch(metric_of(elements), elements, runs)
    depth = np.asarray(batch.position)[:, :, moves] @ down @ (masses / masses.sum())
    seen = flying_frames(elements, runs) & known[:, :, moves].all(axis=2)
    threes = seen[:, 2:] & seen[:, 1:-1] & seen[:, :-2]
    near = (np.diff(depth, 2, axis=1) / runs.dt**2)[threes]
    return [near, *(_parabolas(depth, kept, runs.dt) for kept in (_first(depth, seen), seen))]


def _parabolas(depth: np.ndarray, kept: np.ndarray, dt: float) -> np.ndarray:
    """The accelerations of parabolas, one through the kept frames of each run that has enough of them."""
    time = dt * np.arange(depth.shape[1])
    return np.array(
        [
            2 * np.polyfit(time[which], one[which], 2)[0]
            for one, which in zip(depth, kept, strict=True)
            if which.sum() >= LEAST
        ]
    )


def _first(depth: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Which frames come before the first deepest one, at which a run turns upwards.

    That one is left out: the impact may lie before it.
    """
    kept = seen.copy()
    for one, which in zip(depth, kept, strict=True):
        at = np.flatnonzero(which)
        step = np.diff(one[at])
        turns = at[1:-1][(step[:-1] > 0) & (step[1:] < 0)]
        which[turns[0] if len(turns) else len(which) :] = False
    return kept


def _falls_freely(elements: Elements) -> bool:
    """Whether nothing but gravity and contacts acts from outside on all that moves."""
    plan, moves = elements.plan, moving(elements)
    free = {j: name for j, (name, _, kind, _, _) in enumerate(plan.joints) if kind == FREE}
    held = plan.is_in_fluid or plan.carries_weight or plan.equalities or plan.tendons
    held = held or any(which in free for _, _, which in plan.actuators)
    held = held or any(
        float(elements[f"{name}/{key}"])
        for name in free.values()
        for key in ("damping", "stiffness")
    )
    parents = {body: plan.bodies[body][1] for _, body, *_ in plan.joints}
    roots = {body for body, parent in parents.items() if parent is None or not moves[parent]}
    return not held and roots == {plan.joints[j][1] for j in free}
