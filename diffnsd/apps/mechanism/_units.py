"""Whether measured runs are in metres, seconds and radians, as far as the physics shows it."""

import numpy as np

from ...io import Elements
from ...io._read import FREE, HINGE
from .._files import DataFileError
from ._data import Runs
from ._job import as_batch, metric_of
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
    falls = _falls(elements, runs, gravity / strength) if strength > 0 else np.zeros((0, 2))
    if not len(falls):
        return
    fall, error = np.median(falls, axis=0) / (1, np.sqrt(len(falls)))
    is_near = strength / APART < fall < strength * APART
    if not is_near and abs(fall - strength) > SURE * error:
        raise DataFileError(
            f"before their first contact the runs fall with {fall:.3g} m/s², but gravity of the file is "
            f"{strength:.3g} m/s²: `qpos` must be in metres and `times` in seconds; divide millimetres by "
            "1000, milliseconds too."
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


def _falls(elements: Elements, runs: Runs, down: np.ndarray) -> np.ndarray:
    """The acceleration of the centre of mass in each run that begins with a flight, and its standard error.

    `(k, 2)` [m/s²]; none where something else than gravity acts on it.
    """
    moves = _moves_freely(elements)
    if moves is None:
        return np.zeros((0, 2))
    names = [name for (name, _), moving in zip(elements.plan.bodies, moves, strict=True) if moving]
    masses = np.array([float(elements[f"{name}/mass"]) for name in names])
    batch, known = as_batch(metric_of(elements), elements, runs)
    height = np.asarray(batch.position)[:, :, moves] @ down @ (masses / masses.sum())
    seen = flying_frames(elements, runs) & known[:, :, moves].all(axis=2)
    # The median, so that a landing which is not seen, in other units, has no weight.
    rates = np.diff(height, 2, axis=1) / runs.dt**2
    threes = seen[:, 2:] & seen[:, 1:-1] & seen[:, :-2]
    found = []
    for rate, there in zip(rates, threes, strict=True):
        if np.sum(there) >= LEAST - 1:
            fall = np.median(rate[there])
            scatter = 1.5 * np.median(np.abs(rate[there] - fall))
            found.append((fall, 1.25 * scatter / np.sqrt(np.sum(there))))
    return np.array(found).reshape(-1, 2)


def _moves_freely(elements: Elements) -> np.ndarray | None:
    """Which bodies move, `(b,)`, if nothing but gravity and contacts acts on all of them from outside."""
    plan = elements.plan
    held = plan.is_in_fluid or plan.carries_weight or plan.equalities or plan.tendons
    free = {j: name for j, (name, _, kind, _, _) in enumerate(plan.joints) if kind == FREE}
    driven = any(which in free for _, _, which in plan.actuators)
    resisting = (
        float(elements[f"{n}/{k}"]) for n in free.values() for k in ("damping", "stiffness")
    )
    moves, roots = [], []
    for body, (_, parent) in enumerate(plan.bodies):
        has_joint = any(joint[1] == body for joint in plan.joints)
        carried = parent is not None and moves[parent]
        moves.append(has_joint or carried)
        if has_joint and not carried:
            roots.append(body)
    flies = {plan.joints[j][1] for j in free}
    if held or driven or any(resisting) or set(roots) != flies:
        return None
    return np.array(moves)
