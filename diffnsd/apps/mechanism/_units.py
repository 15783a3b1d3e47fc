"""Whether measured runs are in metres, seconds and radians, as far as the physics shows it."""

import numpy as np

from ...io import Elements
from .._files import DataFileError
from ._data import Runs
from ._job import as_batch, metric_of
from ._names import FREE, HINGE
from ._starts import LEAST, flying_frames

APART = 30.0
"""How far the fall may be from gravity, as a factor: units are off by a thousand or a million."""
OFTEN = 0.1
"""Share of the frames in which a hinge must be beyond its range by another range."""


def check_units(elements: Elements, runs: Runs) -> None:
    """Compares the fall of the centre of mass with gravity, and angles with the ranges of hinges.

    **Raises:** `DataFileError` naming what is off, and the remedy.
    """
    for name, _, kind, at, _ in elements.plan.joints:
        if kind == HINGE and name in elements.plan.limited:
            _check_angle(name, runs.qpos[:, at], np.asarray(elements[f"{name}/range"]))
    falls = _falls(elements, runs)
    gravity = float(np.linalg.norm(np.asarray(elements["option/gravity"])))
    if len(falls) and gravity > 0:
        fall = float(np.median(falls))
        if not gravity / APART < fall < gravity * APART:
            raise DataFileError(
                f"before their first contact the runs fall with {fall:.3g} m/s², but gravity of the file is "
                f"{gravity:.3g} m/s²: `qpos` must be in metres and `times` in seconds; divide millimetres by "
                "1000, milliseconds too."
            )


def _check_angle(name: str, angle: np.ndarray, limits: np.ndarray) -> None:
    low, high = limits
    beyond = np.maximum(low - angle, angle - high) > high - low
    if np.mean(beyond) > OFTEN:
        raise DataFileError(
            f"`qpos` of {name} lies between {np.nanmin(angle):.3g} and {np.nanmax(angle):.3g}, but its range "
            f"is {low:.3g} to {high:.3g} rad: angles must be in radians."
        )


def _falls(elements: Elements, runs: Runs) -> np.ndarray:
    """The acceleration of the centre of mass in each run that begins with a flight [m/s²].

    None where something else than gravity acts on it.
    """
    plan = elements.plan
    roots = {b for b, (_, parent) in enumerate(plan.bodies) if parent is None}
    flying = {body for _, body, kind, _, _ in plan.joints if kind == FREE}
    if not roots or roots != flying or plan.is_in_fluid or plan.equalities or plan.tendons:
        return np.zeros(0)
    batch, known = as_batch(metric_of(elements), elements, runs)
    masses = np.array([float(elements[f"{name}/mass"]) for name, _ in plan.bodies])
    centre = np.tensordot(np.asarray(batch.position), masses / masses.sum(), axes=(2, 0))
    seen = flying_frames(elements, runs) & known.all(axis=2)
    times = runs.dt * np.arange(seen.shape[1])
    fits = [
        np.polyfit(times[frames], place[frames], 2)
        for frames, place in zip(seen, centre, strict=True)
        if np.sum(frames) > LEAST
    ]
    return np.array([2 * np.linalg.norm(fit[0]) for fit in fits])
