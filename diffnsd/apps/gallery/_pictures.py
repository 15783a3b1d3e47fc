"""Pictures of motions: bodies at a few times in one image, or curves over time."""

from pathlib import Path

import numpy as np

from ..._optional import require
from ...groups import rotation_matrix
from ..pages import SIMULATED, Solid
from ._drawings import Track

_GROUND = np.array([0.78, 0.8, 0.83])
_SHOWN = 7
_SIZE = (4.8, 3.0)
# Seen from the front, a little from the right and from above: across, up, and towards the viewer.
_TURN, _TILT = np.radians(18.0), np.radians(14.0)
_AXES = np.array(
    [
        [np.cos(_TURN), np.sin(_TURN), 0.0],
        [-np.sin(_TILT) * np.sin(_TURN), np.sin(_TILT) * np.cos(_TURN), np.cos(_TILT)],
        [np.cos(_TILT) * np.sin(_TURN), -np.cos(_TILT) * np.cos(_TURN), np.sin(_TILT)],
    ]
)


def motion_picture(path: Path, solids: list[Solid], track: Track) -> None:
    """Bodies at equal intervals of time, the last one opaque, and the paths of their origins."""
    figure, axes = _figure()
    positions, turns = track
    frames = np.unique(np.linspace(0, len(positions) - 1, _SHOWN).round().astype(int))
    _add(axes, [(s.vertices, s.faces) for s in solids if s.body is None], _GROUND, 1.0)
    for i in range(positions.shape[1]):
        across, up, _ = _AXES @ positions[:, i].T
        axes.plot(across, up, color=np.array(SIMULATED) / 255, linewidth=0.8, alpha=0.5)
    for k, alpha in zip(frames, np.linspace(0.1, 1.0, len(frames)) ** 2, strict=True):
        placed = [
            (
                positions[k, s.body] + s.vertices @ np.asarray(rotation_matrix(turns[k, s.body])).T,
                s.faces,
            )
            for s in solids
            if s.body is not None
        ]
        _add(axes, placed, np.array(SIMULATED) / 255, alpha)
    axes.set_aspect("equal")
    axes.autoscale()
    axes.set_axis_off()
    figure.savefig(path, dpi=100)


def _add(axes, meshes: list, colour: np.ndarray, alpha: float) -> None:
    """Adds the faces of meshes that face the viewer, the nearest last."""
    collections = require("matplotlib.collections", "the picture of a motion")
    corners = [vertices[faces] @ _AXES.T for vertices, faces in meshes]
    if not corners:
        return
    corners = np.concatenate(corners)
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-300)
    seen = normals[:, 2] > 0
    corners, normals = corners[seen], normals[seen]
    order = np.argsort(np.mean(corners[:, :, 2], axis=1))
    light = 0.55 + 0.45 * np.clip(normals @ [-0.3, 0.6, 0.74], 0, 1)[:, None]
    colours = np.column_stack([np.clip(colour * light, 0, 1), np.full(len(light), alpha)])
    axes.add_collection(
        collections.PolyCollection(
            corners[order, :, :2], facecolors=colours[order], edgecolors="none", antialiased=False
        )
    )


def curve_picture(path: Path, ts: np.ndarray, values: np.ndarray, labels: tuple[str, ...]) -> None:
    """The entries of a state `(T, k)` over time, each relative to its largest size."""
    figure, axes = _figure()
    sizes = np.maximum(np.max(np.abs(values), axis=0), 1e-300)
    for value, label, size in zip(values.T, labels, sizes, strict=True):
        axes.plot(ts, value / size, linewidth=1.2, label=label)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    axes.set_xlabel("time [s]", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def _figure():
    figure = require("matplotlib.figure", "the gallery").Figure(figsize=_SIZE, layout="constrained")
    return figure, figure.subplots()
