"""Measured tosses of one rigid box: the file format, its checks, and access to the data.

A file is a NumPy `.npz` without pickles, in SI units. All tosses are stored one after the other
(ragged storage):

| key | shape | meaning |
|---|---|---|
| `toss_id` | `(n,)` | a number that names each toss |
| `offsets` | `(n+1,)` | toss j is the frames `offsets[j]` to `offsets[j+1]` |
| `position` | `(F, 3)` | centre of the box [m], world frame, z up |
| `quaternion_wxyz` | `(F, 4)` | unit quaternion, scalar first, body to world |
| `velocity_world` | `(F, 3)` | velocity of the centre [m/s], world frame |
| `angular_velocity_body` | `(F, 3)` | angular velocity [rad/s], body frame |
| `dt` | `()` | time between two frames [s] |
| `half_width` | `()` or `(3,)` | half the edge length(s) of the box [m] |
| `mass` | `()` | [kg] |
| `inertia` | `()` or `(3,)` | principal moment(s) of inertia [kg m^2], body axes |
| `gravity` | `()` | [m/s^2], acting along -z |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..._arguments import checked_arguments
from .._files import read_archive, save_archive
from ._checks import (
    ALL_KEYS,
    FRAME_KEYS,
    INDEX_KEYS,
    SCALAR_KEYS,
    TossFileError as TossFileError,
    check_finite,
    check_inertia,
    check_units,
    checked_frames,
    checked_index,
    checked_scalar,
    unit_quaternions,
)


class Toss(NamedTuple):
    """One toss: views of a `Tosses`, shapes `(T, 3)` or `(T, 4)`, same units and reference frames."""

    toss_id: int
    position: np.ndarray
    quaternion_wxyz: np.ndarray
    velocity_world: np.ndarray
    angular_velocity_body: np.ndarray


class PaddedTosses(NamedTuple):
    """All tosses padded to one length, shapes `(n, T_max, 3)` or `(n, T_max, 4)`.

    `mask`, shape `(n, T_max)`, is True for measured frames. Shorter tosses repeat their last frame,
    so that every entry is a valid state.
    """

    position: np.ndarray
    quaternion_wxyz: np.ndarray
    velocity_world: np.ndarray
    angular_velocity_body: np.ndarray
    mask: np.ndarray


@dataclass(frozen=True, eq=False)
class Tosses:
    """Measured tosses of one box in ragged storage; the table in this module gives shapes and units.

    All data are checked: arrays are float64 (int64 for `toss_id` and `offsets`), read-only, finite
    and of matching shapes; quaternions have unit length to rounding.

    **Raises:** `TossFileError` when a check fails.
    """

    toss_id: np.ndarray
    offsets: np.ndarray
    position: np.ndarray
    quaternion_wxyz: np.ndarray
    velocity_world: np.ndarray
    angular_velocity_body: np.ndarray
    dt: float
    half_width: float | np.ndarray
    mass: float
    inertia: float | np.ndarray
    gravity: float

    def __post_init__(self) -> None:
        position = checked_frames("position", self.position)
        frames = len(position)
        toss_id, offsets = checked_index({key: getattr(self, key) for key in INDEX_KEYS}, frames)
        checked = {key: checked_frames(key, getattr(self, key), frames) for key in FRAME_KEYS}
        for key, values in checked.items():
            check_finite(key, values, toss_id, offsets)
        checked["quaternion_wxyz"] = unit_quaternions(checked["quaternion_wxyz"], toss_id, offsets)
        scalars = {key: checked_scalar(key, getattr(self, key)) for key in SCALAR_KEYS}
        check_units(checked | scalars, toss_id, offsets)
        check_inertia(float(scalars["mass"]), scalars["half_width"], scalars["inertia"])
        for key, value in ({"toss_id": toss_id, "offsets": offsets} | checked | scalars).items():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, key, value)

    def __len__(self) -> int:
        return len(self.toss_id)

    @property
    def lengths(self) -> np.ndarray:
        """Number of frames of each toss, shape `(n,)`."""
        return np.diff(self.offsets)

    def toss(self, j: int) -> Toss:
        """The toss with index `j` (its position in the file, not its `toss_id`), without copying."""
        j = int(self._indices([j])[0])
        part = slice(*self._span(j))
        return Toss(int(self.toss_id[j]), *(getattr(self, key)[part] for key in FRAME_KEYS))

    def select(self, indices: Sequence[int] | np.ndarray) -> "Tosses":
        """The tosses with these indices, in this order, or where a mask of shape `(n,)` is True."""
        chosen = self._indices(indices)
        rows = np.concatenate([np.arange(*self._span(j)) for j in chosen])
        arrays = {key: getattr(self, key)[rows] for key in FRAME_KEYS}
        arrays["toss_id"] = self.toss_id[chosen]
        arrays["offsets"] = np.concatenate([[0], np.cumsum(self.lengths[chosen])])
        return _tosses(arrays, {key: getattr(self, key) for key in SCALAR_KEYS})

    def padded(self) -> PaddedTosses:
        """All tosses as rectangular arrays with a mask; see `PaddedTosses`."""
        step = np.arange(int(self.lengths.max()))
        rows = self.offsets[:-1, None] + np.minimum(step, self.lengths[:, None] - 1)
        return PaddedTosses(
            *(getattr(self, key)[rows] for key in FRAME_KEYS), mask=step < self.lengths[:, None]
        )

    def _span(self, j) -> tuple[int, int]:
        """First frame of toss j, and the frame after its last."""
        return int(self.offsets[j]), int(self.offsets[j + 1])

    def _indices(self, indices) -> np.ndarray:
        """Converts indices, or a boolean mask, to non-negative int64 indices."""
        chosen = np.asarray(indices)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise IndexError(
                    f"A mask of tosses must have shape ({len(self)},), got {chosen.shape}."
                )
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or len(chosen) == 0 or chosen.dtype.kind not in "iu":
            raise IndexError(
                "Choose tosses by a non-empty list of whole numbers or by a boolean mask."
            )
        outside = chosen[(chosen < -len(self)) | (chosen >= len(self))]
        if len(outside):
            raise IndexError(
                f"There is no toss with index {outside[0]}: there are {len(self)}, counted from 0."
            )
        return chosen.astype(np.int64) % len(self)


@checked_arguments
def load_tosses(path: str | Path) -> Tosses:
    """Reads a file of measured tosses; the table in this module gives the format.

    Pickles are never loaded. Numbers may be stored in any real type. Other keys are ignored.

    **Raises:** `TossFileError`, naming the file, the key, the toss and the remedy, if the file is
    missing, truncated or of another kind, lacks keys, or fails a check of `Tosses`.
    """
    path = Path(path)
    data = read_archive(path, ALL_KEYS, ALL_KEYS, "a file of tosses")
    try:
        scalars = {key: checked_scalar(key, data[key]) for key in SCALAR_KEYS}
        return _tosses({key: data[key] for key in (*INDEX_KEYS, *FRAME_KEYS)}, scalars)
    except TossFileError as error:
        raise TossFileError(f"{path}: {error}") from None


def _tosses(arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float | np.ndarray]) -> Tosses:
    """Builds a `Tosses` from dictionaries of its arrays and scalars."""
    return Tosses(
        **arrays,
        dt=float(scalars["dt"]),
        half_width=scalars["half_width"],
        mass=float(scalars["mass"]),
        inertia=scalars["inertia"],
        gravity=float(scalars["gravity"]),
    )


@checked_arguments
def save_tosses(path: str | Path, tosses: Tosses) -> Path:
    """Writes tosses so that `load_tosses` can read them; never leaves a partial file.

    Returns the path. Raises `OutputDirError` if the file cannot be written.
    """
    return save_archive(path, {key: getattr(tosses, key) for key in ALL_KEYS})


def save_predictions(
    path: str | Path,
    toss_id: np.ndarray,
    offsets: np.ndarray,
    position: np.ndarray,
    quaternion_wxyz: np.ndarray,
) -> Path:
    """Writes simulated tosses in the layout of the measured ones.

    **Arguments:**

    - `toss_id`: shape `(n,)`, the numbers of the measured tosses.
    - `offsets`: shape `(n+1,)`; toss j is the frames `offsets[j]` to `offsets[j+1]`, frame 0 being
        the measured start.
    - `position` [m], world frame: shape `(F, 3)`. `quaternion_wxyz`, body to world: shape `(F, 4)`.
        A failed simulation may contain NaN, which makes the failure visible when scoring.

    **Returns:** the path.

    **Raises:** `TossFileError` for shapes that do not match; `OutputDirError` if the file cannot be
    written.
    """
    position = checked_frames("position", position)
    quaternion_wxyz = checked_frames("quaternion_wxyz", quaternion_wxyz, len(position))
    toss_id, offsets = checked_index({"toss_id": toss_id, "offsets": offsets}, len(position))
    arrays = {
        "toss_id": toss_id,
        "offsets": offsets,
        "position": position,
        "quaternion_wxyz": quaternion_wxyz,
    }
    return save_archive(path, arrays)
