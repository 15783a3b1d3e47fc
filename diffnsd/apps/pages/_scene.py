"""The 3D scene of a replay: stage, boxes, paths, and the recording of their motion with viser."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..._optional import require
from ._page import MEASURED, SIMULATED
from ._shapes import box_edges, box_pips, polyline

Track = tuple[np.ndarray, np.ndarray]
"""Position of the centre [m], shape (T, 3), and quaternion_wxyz (body to world), shape (T, 4)."""

# Pauses [s] in replay time, so that the viewer finds the new start and sees the final difference.
_HOLD_START, _HOLD_END = 0.5, 1.0


@dataclass(frozen=True)
class Clip:
    """One toss as shown: poses in the coordinates of the picture, and the frames to record."""

    label: str
    measured: Track | None
    simulated: Track
    frames: np.ndarray

    def tracks(self) -> dict[str, Track]:
        """The existing tracks by name."""
        both = {"measured": self.measured, "simulated": self.simulated}
        return {name: track for name, track in both.items() if track is not None}


def record(clips: Sequence[Clip], half: np.ndarray, frame_time: float) -> str:
    """Plays the clips in a scene and returns viser's page with the recording.

    `half` [m] are the half widths of the box, shape (3,); `frame_time` [s] is the time between two
    frames in the replay.
    """
    viser = require("viser", "the 3D replay")
    with quiet_viser():
        # Loopback only, on a port chosen by the system: this server is not for others.
        server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
        try:
            points = np.concatenate([(clip.measured or clip.simulated)[0] for clip in clips])
            reach = set_stage(server, points, float(half.max()))
            actors = _add_boxes(server.scene, half, list(clips[0].tracks()))
            props = [_add_paths(server.scene, j, clips[j], half, reach) for j in range(len(clips))]
            serializer = server.get_scene_serializer()
            for clip, nodes in zip(clips, props, strict=True):
                _play(serializer, clip, actors, nodes, frame_time)
            return serializer.as_html(dark_mode=False)
        finally:
            server.stop()


def set_stage(server, points: np.ndarray, size: float) -> float:
    """Adds ground, light and camera for a motion through `points` (N, 3) of things of a half `size` [m].

    Returns the half extent [m] of the motion in the picture.
    """
    # A simulation that flies away must not shrink the rest to a dot.
    reach = float(np.clip(np.abs(points[:, :2]).max() + size, 3 * size, 60 * size))
    height = float(np.clip(points[:, 2].max() + size, size, 60 * size))
    scene = server.scene
    scene.set_up_direction("+z")
    # Environment images would enlarge the file; plain lights from all sides are enough.
    scene.configure_environment_map(None)
    scene.configure_default_lights(enabled=True, cast_shadow=True)
    scene.add_light_ambient("/lights/ambient", color=(255, 255, 255), intensity=1.5)
    cell = 2 * size
    width = 2 * cell * float(np.ceil(reach / cell) + 2)
    scene.add_grid(
        "/ground",
        width=width,
        height=width,
        cell_size=cell,
        section_size=5 * cell,
        cell_color=(150, 155, 165),
        section_color=(110, 115, 125),
        shadow_opacity=0.25,
        plane_color=(128, 134, 145),
        plane_opacity=0.12,
    )
    target = np.array([0.1 * reach, 0.0, 0.35 * height])
    distance = 2.7 * max(reach, height)
    camera = server.initial_camera
    camera.fov = float(np.radians(40.0))
    camera.near, camera.far = 0.02 * distance, 100.0 * distance
    camera.position = tuple(target + distance * np.array([0.42, -0.77, 0.48]))
    camera.look_at = tuple(target)
    return reach


def _add_boxes(scene, half: np.ndarray, names: Sequence[str]) -> dict:
    """Adds the moving boxes: the simulated one solid, the measured one a translucent shell."""
    actors = {name: scene.add_frame(f"/{name}", show_axes=False) for name in names}
    scene.add_box("/simulated/box", color=SIMULATED, dimensions=tuple(2 * half))
    vertices, faces = box_pips(half)
    white = (245, 248, 255)
    scene.add_mesh_simple(
        "/simulated/pips", vertices, faces, color=white, side="double", cast_shadow=False
    )
    if "measured" in actors:
        # Slightly larger, or faces would flicker where both boxes coincide.
        shell = 1.005 * half
        scene.add_box(
            "/measured/box",
            color=MEASURED,
            dimensions=tuple(2 * shell),
            opacity=0.35,
            cast_shadow=False,
        )
        thickness = 0.05 * float(half.min())
        scene.add_line_segments("/measured/edges", box_edges(shell), MEASURED, thickness=thickness)
        vertices, faces = box_pips(shell)
        brown = (140, 75, 0)
        scene.add_mesh_simple(
            "/measured/pips",
            vertices,
            faces,
            color=brown,
            opacity=0.55,
            side="double",
            cast_shadow=False,
        )
    return actors


def _add_paths(scene, index: int, clip: Clip, half: np.ndarray, reach: float) -> list:
    """Adds the paths of the centres and the name of one toss, hidden until it is played."""
    nodes = []
    tracks = clip.tracks()
    for name, (position, _) in tracks.items():
        if len(position) > 1:
            nodes.append(
                scene.add_line_segments(
                    f"/paths/{index}/{name}",
                    polyline(np.clip(position, -1.5 * reach, 1.5 * reach), at_most=160),
                    MEASURED if name == "measured" else SIMULATED,
                    thickness=0.05 * float(half.min()),
                    visible=False,
                )
            )
    top = min(max(position[:, 2].max() for position, _ in tracks.values()), reach)
    nodes.append(
        scene.add_label(
            f"/names/{index}",
            clip.label,
            position=(0.0, 0.0, float(top + 1.8 * half.max())),
            anchor="bottom-center",
            font_screen_scale=1.4,
            visible=False,
        )
    )
    return nodes


def _play(serializer, clip: Clip, actors: dict, nodes: Sequence, frame_time: float) -> None:
    """Records one toss: the poses of its boxes, frame by frame."""
    for node in nodes:
        node.visible = True
    tracks = clip.tracks()
    previous = None
    for frame in clip.frames.tolist():
        if previous is not None:
            serializer.insert_sleep((frame - previous) * frame_time)
        for name, (position, quaternion) in tracks.items():
            k = min(frame, len(position) - 1)
            # Round to single precision: the zero bits it leaves in the file's doubles compress well.
            actors[name].position = tuple(position[k].astype(np.float32).tolist())
            actors[name].wxyz = tuple(quaternion[k].astype(np.float32).tolist())
        if previous is None:
            serializer.insert_sleep(_HOLD_START)
        previous = frame
    serializer.insert_sleep(_HOLD_END)
    for node in nodes:
        node.visible = False


_PRINT_LOCK = threading.Lock()


@contextlib.contextmanager
def quiet_viser() -> Iterator[None]:
    """Suppresses what viser prints about its server; other output through rich is unaffected.

    The messages also come from the server's own thread, and no option turns all of them off.
    """
    import rich

    def print_for_others(*args, **kwargs):
        frame = sys._getframe()
        while frame is not None:
            if frame.f_globals.get("__name__", "").partition(".")[0] == "viser":
                return
            frame = frame.f_back
        original(*args, **kwargs)

    with _PRINT_LOCK:
        original = rich.print
        rich.print = print_for_others
        try:
            yield
        finally:
            rich.print = original
