"""Checks of a set of tosses. Error messages are one sentence: what is wrong, where, and the remedy."""

from collections.abc import Mapping

import numpy as np

from ..._expects import shown
from .._files import DataFileError as TossFileError

# Arrays with one row per frame, and the length of a row.
FRAME_KEYS = {"position": 3, "quaternion_wxyz": 4, "velocity_world": 3, "angular_velocity_body": 3}
INDEX_KEYS = ("toss_id", "offsets")
SCALAR_KEYS = ("dt", "half_width", "mass", "inertia", "gravity")
ALL_KEYS = (*INDEX_KEYS, *FRAME_KEYS, *SCALAR_KEYS)

# No filmed toss exceeds these limits: larger numbers must be in other units.
# (key, largest magnitude, what to do)
_PLAUSIBLE = (
    ("position", 100.0, "positions must be in metres; divide millimetres by 1000"),
    ("velocity_world", 1e3, "velocities must be in m/s; divide mm/s by 1000"),
    ("angular_velocity_body", 1e4, "angular velocities must be in rad/s; multiply deg/s by pi/180"),
    ("dt", 1.0, "dt is the time between two frames in seconds; the inverse of the frame rate"),
    ("half_width", 10.0, "half widths must be in metres; divide millimetres by 1000"),
    ("gravity", 100.0, "gravity must be in m/s^2, and lengths in metres, not in half widths"),
)
_UNIT_TOLERANCE = 1e-3
_CONCENTRATED = 1000.0
"""`10 m r^2` over the least moment of inertia that is accepted: 3 % of that of a full box."""


def checked_index(data: Mapping[str, np.ndarray], frames: int) -> tuple[np.ndarray, np.ndarray]:
    """`toss_id` (n,) and `offsets` (n+1,) as int64, checked against the number of frames."""
    toss_id = _integers("toss_id", data["toss_id"])
    offsets = _integers("offsets", data["offsets"])
    if len(toss_id) == 0 or frames == 0:
        raise TossFileError(
            "there are no tosses in it: `toss_id` or `position` is empty; give at least one toss."
        )
    if len(offsets) != len(toss_id) + 1:
        raise TossFileError(
            f"`offsets` has {len(offsets)} entries for {len(toss_id)} tosses; it must have "
            "one more than `toss_id`, toss j being the frames offsets[j] to offsets[j+1]."
        )
    values, counts = np.unique(toss_id, return_counts=True)
    if np.any(counts > 1):
        raise TossFileError(
            f"`toss_id` holds the number {values[counts > 1][0]} more than once; make them unique."
        )
    short = np.flatnonzero(np.diff(offsets) < 2)
    if len(short):
        j = int(short[0])
        raise TossFileError(
            f"`offsets` gives {where(toss_id, j)} the frames {offsets[j]} to {offsets[j + 1]}; "
            "offsets must increase by at least two frames per toss: leave out shorter tosses."
        )
    if offsets[0] != 0 or offsets[-1] != frames:
        raise TossFileError(
            f"`offsets` runs from {offsets[0]} to {offsets[-1]}, but `position` has {frames} "
            f"frames; it must start at 0 and end at {frames}: is the array cut off?"
        )
    return toss_id, offsets


def checked_frames(key: str, values: np.ndarray, frames: int | None = None) -> np.ndarray:
    """An array with one row per frame as float64; `frames` is the number of rows it must have."""
    values = _array(key, values)
    width = FRAME_KEYS[key]
    if values.ndim != 2 or values.shape[1] != width:
        rows = "number of frames" if frames is None else frames
        raise TossFileError(
            f"`{key}` has shape {values.shape}; it must be ({rows}, {width}): "
            "all tosses one after the other, one row per frame."
        )
    if frames is not None and len(values) != frames:
        raise TossFileError(
            f"`{key}` has {len(values)} rows but `position` has {frames}; give one row per frame."
        )
    return _floats(key, values)


def check_finite(key: str, values: np.ndarray, toss_id: np.ndarray, offsets: np.ndarray) -> None:
    """Rejects NaN and infinite values; the error says where the first one is."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise TossFileError(
            f"`{key}` holds NaN or infinite numbers in {len(bad)} frames, first in "
            f"{_frame(toss_id, offsets, bad[0])}; repair these frames or leave the toss out."
        )


def unit_quaternions(
    quaternion: np.ndarray, toss_id: np.ndarray, offsets: np.ndarray
) -> np.ndarray:
    """Rejects quaternions further than 0.001 from unit length; normalises the others."""
    norm = np.linalg.norm(quaternion, axis=1)
    bad = np.flatnonzero(~(np.abs(norm - 1.0) <= _UNIT_TOLERANCE))
    if len(bad):
        raise TossFileError(
            f"`quaternion_wxyz` is not a unit quaternion in {len(bad)} frames, first in "
            f"{_frame(toss_id, offsets, bad[0])}, where its length is {norm[bad[0]]:.6g}; "
            "it must be a rotation from body to world, scalar first, of length 1: "
            "check the order of the columns, or normalise them."
        )
    return quaternion / norm[:, None]


def checked_scalar(key: str, value) -> float | np.ndarray:
    """A positive constant; `half_width` and `inertia` may have one value per body axis."""
    value = _array(key, value)
    per_axis = key in ("half_width", "inertia")
    if value.shape == (1,):
        value = value.reshape(())
    if value.shape != () and not (per_axis and value.shape == (3,)):
        allowed = "one number or three" if per_axis else "one number"
        raise TossFileError(f"`{key}` has shape {value.shape}; it must be {allowed}.")
    number = _floats(key, value)
    if not (np.all(np.isfinite(number)) and np.all(number > 0)):
        raise TossFileError(f"`{key}` is {number.tolist()}; it must be positive and finite.")
    return number if number.shape else float(number)


def check_units(
    data: Mapping[str, np.ndarray | float], toss_id: np.ndarray, offsets: np.ndarray
) -> None:
    """Rejects numbers so large that they cannot be in SI units."""
    for key, largest, advice in _PLAUSIBLE:
        size = np.abs(np.asarray(data[key]))
        if np.all(size <= largest):
            continue
        place = ""
        if size.ndim == 2:
            first = np.flatnonzero((size > largest).any(axis=1))[0]
            place = f" (first in {_frame(toss_id, offsets, first)})"
        raise TossFileError(
            f"`{key}` reaches {size.max():.6g}{place}, which looks like another unit; {advice}."
        )


def check_inertia(mass: float, half_width: float | np.ndarray, inertia: float | np.ndarray) -> None:
    """Rejects principal moments [kg m^2] that no body, or no body of about this size, can have."""
    moments = np.broadcast_to(np.asarray(inertia, dtype=float), (3,))
    if 2 * moments.max() > moments.sum() * (1 + 1e-9):
        raise TossFileError(
            f"`inertia` is {moments.tolist()}; no body has a principal moment larger than the "
            "sum of the other two."
        )
    # All mass in the corners gives mass * (sum of two squares); ten times that is another unit.
    squares = np.broadcast_to(np.asarray(half_width, dtype=float), (3,)) ** 2
    largest = 10 * mass * (squares.sum() - squares.min())
    if moments.max() > largest:
        raise TossFileError(
            f"`inertia` reaches {moments.max():.6g}, more than a body of this mass and size "
            f"can have ({largest / 10:.3g} kg m^2); "
            "inertia must be in kg m^2: multiply g cm^2 by 1e-7."
        )
    # A full box has a third of it; a body whose mass is near its centre has less, no box a hundredth.
    if moments.max() < largest / _CONCENTRATED:
        raise TossFileError(
            f"`inertia` reaches only {moments.max():.3g} kg m^2, far less than a body of this mass and size "
            f"has (a full box of {mass:.3g} kg: {largest / 30:.3g}); `mass` must be in kg, `inertia` in "
            "kg m^2: divide grams by 1000, multiply kg mm^2 by 1e-6."
        )


def where(toss_id: np.ndarray, j: int) -> str:
    """Name of toss number j in messages."""
    return f"toss {toss_id[j]} (number {j} in the file)"


def _frame(toss_id: np.ndarray, offsets: np.ndarray, row) -> str:
    j = int(np.searchsorted(offsets, row, side="right")) - 1
    return f"{where(toss_id, j)}, frame {int(row) - int(offsets[j])}"


def _array(key: str, values) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError):
        raise TossFileError(f"`{key}` must be an array of numbers, got {shown(values)}.") from None


def _floats(key: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "fiu":
        raise TossFileError(f"`{key}` has the type {values.dtype}; it must hold real numbers.")
    return values.astype(np.float64)


def _integers(key: str, values: np.ndarray) -> np.ndarray:
    """A vector of whole numbers; they may be stored as floats."""
    values = _array(key, values)
    if values.ndim != 1:
        raise TossFileError(f"`{key}` has shape {values.shape}; it must be a vector.")
    number = _floats(key, values)
    if not np.all((np.abs(number) < 2.0**53) & (number == np.round(number))):
        raise TossFileError(f"`{key}` must hold whole numbers.")
    return number.astype(np.int64)
