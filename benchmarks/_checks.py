"""What must hold of a run before it is timed, and the closed forms it is held against.

Each check returns *facts*, numbers by name, which end up in the rows; `violated` compares them with
limits. The limits of the time-stepping errors (rebound heights, slide) are those of a scheme of
first order at the step of the benchmark; the facts say how large the errors are.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from _peers import BALL, CUBE, slide_distance, trajectory_checks

# Share of the lanes that may be reported as failed. A failure that is not reported is never sound.
FAILED_SHARE = 1e-3

# Largest sound values; what is `True` must hold. By dtype, for `end_checks`.
END_LIMITS: dict[str, dict[str, Any]] = {
    "float64": {"finite": True, "gradient_finite": True, "residual": 1e-8, "failed": FAILED_SHARE},
    "float32": {"finite": True, "gradient_finite": True, "residual": 1e-4, "failed": FAILED_SHARE},
}

# By dtype, for `cube_checks`: the residual of every step, impulses outside the cone and energy
# gained in a step relative to the largest impulse and the energy at the start; 1 % for the slide.
CUBE_LIMITS: dict[str, dict[str, Any]] = {
    dtype: {
        "finite": True,
        "penetration_mm": 0.5,
        "residual": residual,
        "outside_cone": residual,
        "energy_gain": gain,
        "quaternion_error": gain,
        "failed": 0.0,
        "slide_distance": 0.01,
        "slide_by_speed": 0.01,
        "slide_by_friction": 0.01,
    }
    for dtype, residual, gain in (("float64", 1e-8, 1e-9), ("float32", 1e-4, 1e-5))
}

# By dtype, for `ball_checks`: errors of the heights of the first five rebounds, at the step of the
# benchmark and at an eighth of it.
BALL_LIMITS: dict[str, dict[str, Any]] = {
    dtype: {
        "finite": True,
        "penetration_mm": 25.0,  # the way of half a step at the speed of the first impact
        "residual": residual,
        "energy_gain": 1e-5,  # at rest the ball rebounds every step, and is lifted by micrometres
        "failed": 0.0,
        "heights": 0.03,
        "heights_eighth_step": 0.005,
    }
    for dtype, residual in (("float64", 1e-8), ("float32", 1e-4))
}


class BrokenRun(RuntimeError):
    """A run whose physics is wrong is not timed."""


def violated(facts: Mapping[str, Any], limits: Mapping[str, Any]) -> list[str]:
    """What is wrong with the facts, one clause each; a fact that is missing is not held against."""
    wrong = []
    for name, limit in limits.items():
        if name not in facts:
            continue
        value = facts[name]
        if limit is True and value is not True:
            wrong.append(f"{name} does not hold")
        elif limit is not True and not value <= limit:  # so that NaN is wrong
            wrong.append(f"{name} is {value:.3g}, more than {limit:g}")
    return wrong


def refuse(facts: Mapping[str, Any], limits: Mapping[str, Any]) -> None:
    """Raises `BrokenRun` if the facts violate the limits."""
    if wrong := violated(facts, limits):
        raise BrokenRun("not timed, because the run is broken: " + "; ".join(wrong))


def end_checks(end: Mapping[str, Any]) -> dict[str, Any]:
    """Facts about the final states of a batch, `end` as `cube_forward` returns it.

    The residual is the largest of all steps of the lanes that are not reported as failed.
    """
    state = [np.asarray(leaf) for leaf in _leaves((end["q"], end["v"]))]
    if "residual" not in end:
        return {"finite": all(bool(np.isfinite(leaf).all()) for leaf in state)}
    bad = np.asarray(end["failed_step"]) >= 0
    facts = {
        "finite": all(bool(np.isfinite(leaf[~bad]).all()) for leaf in state),
        "residual": float(np.asarray(end["residual"])[~bad].max(initial=0.0)),
        "failed": float(bad.mean()),
    }
    if bad.any():
        facts["failed_lanes"] = np.flatnonzero(bad)[:8].tolist()
    return facts


def _leaves(tree: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(tree)


def cube_checks(
    qpos: np.ndarray,
    energy: np.ndarray,
    impulses: np.ndarray,
    residual: np.ndarray,
    failed: np.ndarray,
) -> dict[str, Any]:
    """Facts about tosses that were saved at every step, the start included.

    **Arguments:** `qpos` (B, T + 1, 7); `energy` (B, T + 1) [J]; `impulses` (B, T + 1, 8, 3) [N s];
    `residual` (B, T); `failed` (B,).
    """
    normal, slip = impulses[..., 0], np.hypot(impulses[..., 1], impulses[..., 2])
    outside = np.maximum(slip - CUBE.friction * normal, -normal)
    facts = trajectory_checks(qpos)
    return facts | {
        "residual": float(residual.max()),
        "outside_cone": float(max(outside.max(), 0.0) / normal.max()),
        "energy_gain": float(np.diff(energy, axis=1).max() / energy[:, 0].min()),
        "failed": float(failed.mean()),
        "contacts_at_once": int((normal > 0).sum(axis=-1).max()),
    }


def slide_checks(
    distance: np.ndarray, by_speed: np.ndarray, by_friction: np.ndarray, speed: np.ndarray
) -> dict[str, float]:
    """Largest relative errors of the rigid slide and of its derivatives, each (B,)."""
    names = ("slide_distance", "slide_by_speed", "slide_by_friction")
    got = (distance, by_speed, by_friction)
    return {
        name: float(np.abs(value / exact - 1).max())
        for name, value, exact in zip(names, got, slide_distance(speed), strict=True)
    }


def ball_checks(
    gap: np.ndarray, energy: np.ndarray, residual: np.ndarray, failed: np.ndarray, dt: float
) -> dict[str, Any]:
    """Facts about balls dropped from rest, saved at every step, the start included.

    **Arguments:** `gap` (B, T + 1) [m]; `energy` (B, T + 1) [J]; `residual` (B, T); `failed` (B,);
    `dt` [s].
    """
    return {
        "finite": bool(np.isfinite(gap).all()),
        "penetration_mm": 1e3 * max(0.0, float(-gap.min())),
        "residual": float(residual.max()),
        "energy_gain": float(np.diff(energy, axis=1).max() / energy[:, 0].min()),
        "failed": float(failed.mean()),
        "heights": height_error(gap, dt),
    }


def height_error(gap: np.ndarray, dt: float, rebounds: int = 5) -> float:
    """Largest relative error of the heights of the first rebounds, h e^2k, over all balls."""
    times = dt * np.arange(gap.shape[1])
    worst = 0.0
    for path in gap:
        begin = math.sqrt(2 * path[0] / BALL.gravity)  # of the first impact
        speed = BALL.gravity * begin
        for k in range(1, rebounds + 1):
            speed *= BALL.restitution
            end = begin + 2 * speed / BALL.gravity
            flight = path[(times >= begin) & (times <= end)]
            worst = max(worst, abs(flight.max() / (path[0] * BALL.restitution ** (2 * k)) - 1))
            begin = end
    return float(worst)
