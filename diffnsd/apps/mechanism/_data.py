"""Measured motions in the coordinates of a file: the format, and its checks.

A file is a NumPy `.npz` without pickles, in SI units. All runs are stored one after the other. NaN is what
was not measured.

| key | shape | meaning |
|---|---|---|
| `qpos` | `(F, nq)` | coordinates in the order of `qpos` of the model; the first frame of a run is complete |
| `times` | `(F,)` | [s]; equal steps, the same in all runs |
| `offsets` | `(n+1,)` | run j is the frames `offsets[j]` to `offsets[j+1]`; without it there is one run |
| `qvel` | `(F, nv)` | velocities, of which the first of a run is used; else from its first frames |
| `controls` | `(F, nu)` | of the actuators, held from frame to frame |
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ..._arguments import checked_arguments
from ...io import Elements
from .._files import DataFileError, archive_keys, read_archive

KEYS = ("qpos", "times", "offsets", "qvel", "controls")
UNEVEN = 0.01
"""Largest deviation of a time from equal steps, in steps."""
FIRST = 5
"""Frames from which a start velocity that was not measured is taken."""
UNIT = 1e-3
"""Largest deviation of the length of a quaternion from 1."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Measured runs, checked; arrays as in the table of this module, NaN where nothing was measured.

    **Arguments:** `qpos (F, nq)`; `velocities (n, nv)`: at the first frame of each run; `controls (F, nu)` or
    `None`; `offsets (n+1,)`; `dt`: between two frames [s].
    """

    qpos: np.ndarray
    velocities: np.ndarray
    controls: np.ndarray | None
    offsets: np.ndarray
    dt: float

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of frames of each run, `(n,)`."""
        return np.diff(self.offsets)

    def spans(self) -> list[slice]:
        """The frames of each run."""
        return [slice(a, b) for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]

    def padded(self, values: np.ndarray, frames: int = 0) -> np.ndarray:
        """Values of frames `(F, ...)` as `(n, f, ...)`; shorter runs repeat their last frame.

        `f` is `frames`, or that of the longest run if it is longer.
        """
        steps = np.minimum(self._steps(frames), self.lengths[:, None] - 1)
        return values[self.offsets[:-1, None] + steps]

    def mask(self, frames: int = 0) -> np.ndarray:
        """Which frames of `padded` exist, `(n, f)`."""
        return self._steps(frames) < self.lengths[:, None]

    def _steps(self, frames: int) -> np.ndarray:
        return np.arange(max(frames, self.lengths.max()))


@checked_arguments
def load_runs(path: str | Path, elements: Elements) -> Runs:
    """Reads measured runs of the mechanism of a file; the table in this module gives the format.

    **Raises:** `DataFileError` naming the run, the key and the remedy.
    """
    found = read_archive(path, KEYS[:2], KEYS, "a file of measured runs")
    try:
        return _checked(found, elements)
    except DataFileError as error:
        raise DataFileError(f"{path}: {error}") from None


def ignored_keys(path: str | Path) -> list[str]:
    """A sentence for each key of a file of runs that is not read, with the one it may be meant for."""
    found = archive_keys(path)
    absent = [key for key in KEYS if key not in found]
    near = {
        key: difflib.get_close_matches(key, absent, n=1, cutoff=0.0)
        for key in found
        if key not in KEYS
    }
    return [
        f"{path}: the key `{key}` is not read" + "".join(f"; is it `{one}`?" for one in meant)
        for key, meant in near.items()
    ]


def repeated_runs(runs: Runs) -> list[str]:
    """A warning for each set of copies: what was measured twice is never the same to the last bit."""
    same: dict[bytes, list[str]] = {}
    for j, span in enumerate(runs.spans()):
        same.setdefault(runs.qpos[span].tobytes(), []).append(str(j))
    return [
        f"runs {', '.join(copies)} are the same to the last bit: their scatter says nothing of the errors of "
        "the data, and they count as several; keep one of them."
        for copies in same.values()
        if len(copies) > 1
    ]


def _checked(found: dict[str, np.ndarray], elements: Elements) -> Runs:
    system = elements.tree()
    group, joints = system.group, elements.plan.joints
    nq, nv = len(system.rest), group.dim
    which = ", ".join(name for name, *_ in joints[:12]) + ", ..." * (len(joints) > 12)
    qpos = _table("qpos", found["qpos"], nq, None, f"the file has {nq} coordinates ({which})")
    frames = len(qpos)
    offsets = _offsets(found.get("offsets", np.array([0, frames])), frames)
    spans = [slice(a, b) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    dt = _step(found["times"], frames, spans)
    qpos = _unit_quaternions(qpos, elements, spans)
    for j, span in enumerate(spans):
        if not np.all(np.isfinite(qpos[span][0])):
            raise DataFileError(
                f"run {j}: `qpos` of its first frame has NaN; a run is simulated from its first "
                "frame: let it begin at one that is complete."
            )
    qvel, controls = found.get("qvel"), found.get("controls")
    start = np.full((len(spans), nv), np.nan)
    if qvel is not None:
        rates = f"the file has {nv} velocities, of joints {which}"
        start = _table("qvel", qvel, nv, frames, rates)[offsets[:-1]]
    guessed = np.stack([_first_velocity(group, qpos[span], dt) for span in spans])
    if controls is not None:
        count = len(elements.plan.actuators)
        controls = _table("controls", controls, count, frames, f"the file has {count} actuators")
        for j, span in enumerate(spans):
            if not np.all(np.isfinite(controls[span])):
                raise DataFileError(f"run {j}: `controls` has NaN; controls must be known.")
    return Runs(qpos, np.where(np.isfinite(start), start, guessed), controls, offsets, dt)


def _table(key: str, values: np.ndarray, width: int, frames: int | None, why: str) -> np.ndarray:
    """An array with a row per frame as numbers."""
    rows = "F" if frames is None else frames
    if values.dtype.kind not in "fiu":
        raise DataFileError(f"`{key}` has the type {values.dtype}; it must hold real numbers.")
    if values.ndim != 2 or values.shape[1] != width or (frames or len(values)) != len(values):
        raise DataFileError(
            f"`{key}` has shape {values.shape}, but {why}: it must be ({rows}, {width}), all runs one "
            "after the other, one row per frame."
        )
    if np.any(np.isinf(values)):
        raise DataFileError(f"`{key}` has infinite numbers; NaN stands for what was not measured.")
    return values.astype(float)


def _offsets(values: np.ndarray, frames: int) -> np.ndarray:
    if values.ndim != 1 or len(values) < 2 or not np.array_equal(values, np.round(values)):
        raise DataFileError(
            "`offsets` must be a vector of whole numbers, one more than there are runs: run j is the "
            "frames offsets[j] to offsets[j+1]."
        )
    offsets = values.astype(int)
    short = np.flatnonzero(np.diff(offsets) < 2)
    if len(short):
        j = int(short[0])
        count = max(0, int(offsets[j + 1] - offsets[j]))
        raise DataFileError(
            f"run {j}: `offsets` gives it {count or 'no'} frame{'s' * (count != 1)}, {offsets[j]} to "
            f"{offsets[j + 1]}; a run needs at least two: leave it out."
        )
    if offsets[0] != 0 or offsets[-1] != frames:
        raise DataFileError(
            f"`offsets` runs from {offsets[0]} to {offsets[-1]}, but `qpos` has {frames} frames; it must "
            f"start at 0 and end at {frames}: is the array cut off?"
        )
    return offsets


def _step(times: np.ndarray, frames: int, spans: list[slice]) -> float:
    """The time between two frames [s]."""
    if times.shape != (frames,) or not np.all(np.isfinite(times)):
        raise DataFileError(
            f"`times` must be {frames} finite numbers, one per row of `qpos`, got shape {times.shape}."
        )
    times = times.astype(float)
    for j, span in enumerate(spans):
        back = np.flatnonzero(np.diff(times[span]) <= 0)
        if len(back):
            k = int(back[0])
            raise DataFileError(
                f"run {j}: `times` do not increase: {times[span][k]:g} s at frame {k}, then "
                f"{times[span][k + 1]:g} s."
            )
    dt = float(np.median(np.concatenate([np.diff(times[span]) for span in spans])))
    for j, span in enumerate(spans):
        even = times[span][0] + dt * np.arange(len(times[span]))
        apart = np.abs(times[span] - even)
        if np.max(apart) > UNEVEN * dt + 1e-6 * np.max(np.abs(times[span])):
            raise DataFileError(
                f"run {j}: `times` are not equal steps of {dt:.6g} s (frame {int(np.argmax(apart))} is "
                f"{np.max(apart):.3g} s off); resample the runs to one step, and put NaN where a frame "
                "was lost."
            )
    return dt


def _unit_quaternions(qpos: np.ndarray, elements: Elements, spans: list[slice]) -> np.ndarray:
    """Normalises quaternions; one with a missing entry is missing as a whole."""
    qpos = qpos.copy()
    for name, at in rotations(elements):
        part = qpos[:, at : at + 4]
        length = np.linalg.norm(part, axis=1)
        bad = np.flatnonzero(np.abs(length - 1) > UNIT)
        if len(bad):
            j = next(j for j, span in enumerate(spans) if span.start <= bad[0] < span.stop)
            raise DataFileError(
                f"run {j}: `qpos` of {name} is no unit quaternion at frame {bad[0] - spans[j].start}: "
                f"its length is {length[bad[0]]:.4g}; columns {at} to {at + 3} are a rotation from body "
                "to world, scalar first."
            )
        qpos[:, at : at + 4] = part / length[:, None]
    return qpos


def rotations(elements: Elements) -> list[tuple[str, int]]:
    """The joints with a quaternion, and where it begins in `qpos`."""
    widths = widths_of(elements)
    return [
        (name, at + widths[i] - 4)
        for i, (name, _, _, at, _) in enumerate(elements.plan.joints)
        if widths[i] >= 4
    ]


def widths_of(elements: Elements) -> list[int]:
    """The number of coordinates of every joint."""
    starts = [joint[3] for joint in elements.plan.joints]
    return np.diff([*starts, len(elements.tree().rest)]).tolist()


def _first_velocity(group, qpos: np.ndarray, dt: float) -> np.ndarray:
    """The velocity at the first frame, from a parabola through the first few."""
    first = qpos[:FIRST]
    back = group.inverse(jnp.asarray(first[0]))
    moved = np.asarray(jax.vmap(lambda q: group.log(group.compose(back, q)))(jnp.asarray(first)))
    velocity = np.zeros(moved.shape[1])
    for i, along in enumerate(moved.T):
        known = np.isfinite(along) & (np.arange(len(along)) > 0)
        t = dt * np.flatnonzero(known)
        powers = np.stack([t, t**2][: max(1, min(2, len(t) - 1))], axis=1)
        if len(t):
            velocity[i] = np.linalg.lstsq(powers, along[known], rcond=None)[0][0]
    return velocity
