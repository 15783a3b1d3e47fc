"""Bodies of any shape in a 3D scene, and a page that replays their measured and simulated motion."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..._arguments import checked_arguments
from ..._expects import refuse_below
from ..._optional import require
from .._files import write_page
from ._page import MEASURED, SIMULATED
from ._replay import decorate
from ._scene import quiet_viser, set_stage

_RATE = 60.0
_HOLD = 1.0
_GROUND = (200, 204, 212)
_FORCE = (200, 40, 60)


@dataclass(frozen=True, eq=False)
class Solid:
    """A convex solid fixed to a body: a mesh in the frame of the body.

    **Arguments:** `body`: its number, `None` for the world; `vertices (V, 3)` [m]; `faces (F, 3)`: triangles;
    `is_flat`: whether its faces are flat, not parts of a round surface.
    """

    body: int | None
    vertices: np.ndarray
    faces: np.ndarray
    is_flat: bool


@dataclass(frozen=True, eq=False)
class Motion:
    """One run to show: origins `(T, b, 3)` [m] and quaternions `(T, b, 4)` of all bodies.

    **Arguments:** `label`; `measured`: the same for the measurement, or `None`; `forces`: of every frame the
    arrows of contact forces, `(a, 2, 3)`, from point to tip [m], or none at all.
    """

    label: str
    simulated: tuple[np.ndarray, np.ndarray]
    measured: tuple[np.ndarray, np.ndarray] | None = None
    forces: Sequence[np.ndarray] = ()

    def tracks(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """What there is to show, by name."""
        both = {"simulated": self.simulated, "measured": self.measured}
        return {name: track for name, track in both.items() if track is not None}


def add_bodies(
    scene, solids: Sequence[Solid], bodies: int, name: str, opacity: float | None
) -> list:
    """Adds a frame for every body with its solids under `/name`, and those of the world once.

    **Returns:** the handles of the frames.
    """
    color = MEASURED if opacity else SIMULATED
    frames = [scene.add_frame(f"/{name}/{i}", show_axes=False) for i in range(bodies)]
    for k, solid in enumerate(solids):
        under = f"/{name}/{solid.body}" if solid.body is not None else "/world"
        scene.add_mesh_simple(
            f"{under}/{k}",
            solid.vertices.astype(np.float32),
            solid.faces,
            color=_GROUND if solid.body is None else color,
            flat_shading=solid.is_flat,
            opacity=opacity,
            cast_shadow=opacity is None,
        )
    return frames


def place(frames: list, track: tuple[np.ndarray, np.ndarray], k: int) -> None:
    """Moves the frames of bodies to frame `k` of a track; a pose that is not finite stays where it was."""
    for i, handle in enumerate(frames):
        position, turn = track[0][k, i], track[1][k, i]
        if np.isfinite(position).all() and np.isfinite(turn).all():
            # Single precision: the zero bits that it leaves in doubles compress well.
            handle.position = tuple(position.astype(np.float32).tolist())
            handle.wxyz = tuple(turn.astype(np.float32).tolist())


def draw_forces(scene, arrows: np.ndarray, size: float) -> None:
    """Shows contact points and forces in place of those before; `size`: of the mechanism [m]."""
    width, arrows = 0.02 * size, arrows.astype(np.float32)
    shape = {"shaft_radius": width, "head_radius": 2 * width, "head_length": 4 * width}
    scene.add_arrows("/forces", arrows, _FORCE, visible=len(arrows) > 0, **shape)
    scene.add_point_cloud("/contacts", arrows[:, 0], _FORCE, point_size=2 * width)


@checked_arguments
def write_motion(
    path: str | Path,
    *,
    dt: float,
    size: float,
    solids: Sequence[Solid],
    motions: Sequence[Motion],
    title: str,
    speed: float = 0.25,
) -> Path:
    """Writes a self-contained page that plays the motion of bodies in 3D, run after run.

    Simulated bodies are solid, measured ones translucent. Positions are those of the world.

    **Arguments:** `dt`: between two frames [s]; `size`: of the bodies [m]; `solids`: fixed to them;
    `motions`: the runs; `title`; `speed`: 1 is real time.

    **Returns:** the path.

    **Raises:** `ImportError` if viser is not installed.
    """
    for name, value in (("dt", dt), ("size", size), ("speed", speed)):
        refuse_below(name, value, 0, strictly=True)
    if len(motions) == 0:
        raise ValueError("motions is empty; give at least one run to show.")
    viser = require("viser", "the 3D replay")
    bodies = motions[0].simulated[0].shape[1]
    points = np.concatenate([t[0].reshape(-1, 3) for m in motions for t in m.tracks().values()])
    stride = max(1, int(np.floor(speed / (_RATE * dt) + 1e-9)))
    with quiet_viser():
        server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
        try:
            set_stage(server, points[np.isfinite(points).all(axis=1)], size)
            kept = [s for s in solids if s.body is not None]
            actors = {"simulated": add_bodies(server.scene, solids, bodies, "simulated", None)}
            if motions[0].measured is not None:
                actors["measured"] = add_bodies(server.scene, kept, bodies, "measured", 0.35)
            serializer = server.get_scene_serializer()
            for motion in motions:
                _play(server.scene, serializer, motion, actors, stride, dt / speed, size)
            page = serializer.as_html(dark_mode=False)
        finally:
            server.stop()
    return write_page(path, decorate(page, title, speed, motions[0].measured is not None))


def _play(
    scene, serializer, motion: Motion, actors: dict, stride: int, frame_time: float, size: float
) -> None:
    """Records one run, frame by frame."""
    top = float(np.nanmax(motion.simulated[0][..., 2])) + size
    label = scene.add_label(f"/names/{motion.label}", motion.label, position=(0.0, 0.0, top))
    last = len(motion.simulated[0]) - 1
    for k in range(0, last + 1, stride):
        for name, track in motion.tracks().items():
            place(actors[name], track, min(k, last))
        if motion.forces:
            draw_forces(scene, motion.forces[k], 2 * size)
        serializer.insert_sleep(frame_time * stride)
    serializer.insert_sleep(_HOLD)
    label.visible = False
