"""A 3D replay of measured and simulated motion, as one HTML file that needs no network.

The page is made by viser's scene serializer: the scene is built once in a server bound to the
loopback interface, every later change of a pose is recorded with its time, and the recording is
written into viser's own player page. The server is stopped before the function returns, and is not
needed to watch the file.

The page shows a *view* of the data: each toss is shifted and rotated about the vertical axis so
that it moves from left to right in the picture. Heights, distances and the relative pose of the two
boxes are unchanged.
"""

import html
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..._arguments import checked_arguments
from .._files import write_page
from ._page import MEASURED, SIMULATED
from ._scene import Clip, Track, record

# Browsers draw at 60 Hz; a higher recording rate would only increase the file size.
_MAX_RATE = 60.0


@checked_arguments
def write_replay(
    path: str | Path,
    *,
    dt: float,
    half_width: float | Sequence[float] | np.ndarray,
    measured: Sequence[Track] | None,
    simulated: Sequence[Track],
    labels: Sequence[str] | None = None,
    max_tosses: int = 6,
    speed: float = 0.25,
    title: str = "Measured and simulated motion",
) -> Path:
    """Writes a self-contained page that plays measured and simulated boxes in 3D.

    The tosses are played one after the other: the simulated box solid, the measured one as a
    translucent shell, with the paths of both centres, over a grid whose cells are as wide as the
    box. The page has a time slider, and the view can be rotated, moved and zoomed.

    **Arguments:**

    - `path`: the file to write, for example `replay.html`.
    - `dt` [s]: time between two frames.
    - `half_width` [m]: half the edge lengths of the box along its body axes, a scalar or shape
        `(3,)`.
    - `measured`: per toss `(position, quaternion_wxyz)`: `position` [m] of the centre of the box in
        the world frame (z up, ground at z = 0), shape `(T, 3)`; `quaternion_wxyz` scalar first,
        body to world, shape `(T, 4)`. None shows the simulation alone.
    - `simulated`: the same for the simulation. After the last finite frame, the box keeps its pose
        and the label says that the simulation failed.

    **Other arguments:**

    - `labels`: one short name per toss; "toss 0", "toss 1" ... if None.
    - `max_tosses`: maximum number of tosses to show, taken from the start.
    - `speed`: replay speed. 1 is real time; the default is slower because impacts are short.
    - `title`: title of the page.

    **Returns:** the path of the file.

    **Raises:** `ImportError` if viser is not installed; `ValueError` for shapes that do not match,
    or for measured poses that are not finite.
    """
    half = np.asarray(half_width, dtype=float)
    if half.shape not in ((), (3,)) or not np.all(np.isfinite(half) & (half > 0)):
        raise ValueError(
            f"half_width must be one or three positive lengths in metres, got {half_width!r}."
        )
    if not (np.isfinite(dt) and dt > 0 and np.isfinite(speed) and speed > 0):
        raise ValueError(f"dt and speed must be positive, got dt = {dt} and speed = {speed}.")
    clips = _clips(dt / speed, measured, simulated, labels, max_tosses)
    page = record(clips, np.broadcast_to(half, (3,)), dt / speed)
    return write_page(path, decorate(page, title, speed, measured is not None))


def _clips(
    frame_time: float,
    measured: Sequence[Track] | None,
    simulated: Sequence[Track],
    labels: Sequence[str] | None,
    max_tosses: int,
) -> list[Clip]:
    """Checks the input and converts it to clips."""
    count = len(simulated)
    if count == 0 or max_tosses < 1:
        raise ValueError("There is no toss to show: `simulated` is empty or `max_tosses` below 1.")
    for name, given in (("measured tosses", measured), ("labels", labels)):
        if given is not None and len(given) != count:
            raise ValueError(f"There are {len(given)} {name} for {count} simulated tosses.")
    stride = max(1, int(np.floor(1.0 / (_MAX_RATE * frame_time) + 1e-9)))
    clips = []
    for j in range(min(count, max_tosses)):
        real = None if measured is None else _checked(measured[j], f"measured toss {j}")
        if real is not None and not all(np.isfinite(part).all() for part in real):
            raise ValueError(f"measured toss {j} holds NaN or infinite numbers; repair it first.")
        name = f"simulated toss {j}"
        model, note = _finite_part(_checked(simulated[j], name), name)
        length = max(len(track[0]) for track in (real, model) if track is not None)
        frames = np.unique(np.append(np.arange(0, length, stride), length - 1))
        real, model = _to_picture(real, model)
        label = labels[j] if labels is not None else f"toss {j}"
        clips.append(Clip(f"{label}{note}", real, model, frames))
    return clips


def _checked(track: Track, name: str) -> Track:
    """The track as float arrays, with its shapes checked."""
    position, quaternion = (np.asarray(part, dtype=float) for part in track)
    frames = len(position) if position.ndim else 0
    if frames == 0 or position.shape != (frames, 3) or quaternion.shape != (frames, 4):
        raise ValueError(
            f"{name}: position must have shape (T, 3) and quaternion_wxyz (T, 4) with T at "
            f"least 1, got {position.shape} and {quaternion.shape}."
        )
    return position, quaternion


def _finite_part(track: Track, name: str) -> tuple[Track, str]:
    """Cuts a simulation at its first non-finite frame; also returns a note for its label."""
    position, quaternion = track
    bad = ~(np.isfinite(position).all(axis=1) & np.isfinite(quaternion).all(axis=1))
    if not bad.any():
        return track, ""
    stop = int(np.argmax(bad))
    if stop == 0:
        raise ValueError(f"{name}: the first frame is not finite, so there is nothing to show.")
    return (position[:stop], quaternion[:stop]), f" (simulation failed at frame {stop})"


def _to_picture(measured: Track | None, simulated: Track) -> tuple[Track | None, Track]:
    """Rotates about z so that the motion is along +x, and centres it at the origin of the plane.

    The measured motion defines the rotation; without one, the simulated motion does.
    """
    plane = (simulated if measured is None else measured)[0][:, :2]
    along = plane[-1] - plane[0]
    angle = -np.arctan2(along[1], along[0])
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned = plane @ turn.T
    centre = 0.5 * (turned.min(axis=0) + turned.max(axis=0))

    def move(track: Track) -> Track:
        position, quaternion = track
        placed = np.column_stack([position[:, :2] @ turn.T - centre, position[:, 2]])
        return placed, _turned_about_z(angle, quaternion)

    return None if measured is None else move(measured), move(simulated)


def _turned_about_z(angle: float, quaternion: np.ndarray) -> np.ndarray:
    """Product of a rotation by `angle` [rad] about z with quaternions (T, 4), normalised."""
    c, s = np.cos(angle / 2), np.sin(angle / 2)
    w, x, y, z = quaternion.T
    product = np.stack([c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w], axis=-1)
    return product / np.linalg.norm(product, axis=-1, keepdims=True)


_OVERLAY = """
<style>
#legend { position: fixed; left: .8rem; bottom: 3.4rem; z-index: 5; pointer-events: none;
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; max-width: calc(100vw - 1.6rem);
  box-sizing: border-box; padding: .5rem .8rem; border-radius: .6rem;
  background: rgba(255, 255, 255, .85); color: #1b2330; border: 1px solid rgba(27, 35, 48, .14); }
#legend b { display: block; }
#legend i { display: inline-block; width: .8em; height: .8em; border-radius: .2em;
  margin-right: .4em; }
#legend span { white-space: nowrap; margin-right: 1em; }
/* Upright screens: the player is nearly square, as the motion is broad, and the legend below it. */
@media (max-aspect-ratio: 4/5) {
  #root { height: calc(75vw + 3rem) !important; }
  #legend { bottom: auto; top: calc(75vw + 3.8rem); }
}
@media (prefers-color-scheme: dark) {
  html, body { background: #141414; }
  #legend { background: rgba(22, 27, 36, .85); color: #e8ecf3;
    border-color: rgba(232, 236, 243, .18); }
}
</style>
<div id="legend"><b>TITLE</b>KEYS<span>PACE</span></div>
"""


def decorate(page: str, title: str, speed: float, has_measured: bool) -> str:
    """Adds a title, a legend and support for the reader's light or dark mode to viser's page."""
    entries = [(MEASURED, "measured")] if has_measured else []
    entries.append((SIMULATED, "simulated"))
    keys = "".join(
        f'<span><i style="background: rgb{color}"></i>{name}</span>' for color, name in entries
    )
    pace = "real time" if speed == 1 else f"{speed:g} × real time"
    overlay = _OVERLAY.replace("KEYS", keys).replace("PACE", pace)
    overlay = overlay.replace("TITLE", html.escape(title))
    # Both replacements are cosmetic: if they do not match, the page stays valid.
    name = f"<title>{html.escape(title)}</title>"
    page = page.replace("<title>Viser</title>", name, 1)
    dark = "darkMode:matchMedia('(prefers-color-scheme: dark)').matches"
    page = page.replace("{darkMode:false}", "{" + dark + "}", 1)
    before, end, after = page.rpartition("</body>")
    return before + overlay + end + after
