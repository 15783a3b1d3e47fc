"""A model and its motion in the browser: bodies, contacts and their forces at any time."""

import ipaddress
import socket
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._optional import require
from ...io._contacts import alike
from ..pages import Motion, add_bodies, draw_forces, place, quiet_viser, set_stage, write_motion
from ._job import size_of
from ._simulate import Simulated, is_file
from ._solids import solids

RATE = 60.0
"""Frames shown per second of the motion."""
NEAR = 1e-3
"""A contact is drawn where its gap is smaller than this, in sizes of the mechanism."""


def check_is_file(file: Path) -> None:
    """Raises `ValueError` for what is no file, such as the name of a ready model."""
    if not is_file(str(file)) and not file.exists():
        raise ValueError(
            f"{file}: there is no such file; view takes MJCF and URDF files. Ready models have their own "
            f"commands: diffnsd simulate {file} and diffnsd gallery {file}."
        )


def check_host(host: str, is_public: bool) -> None:
    """Refuses a host that others can reach, unless told otherwise.

    **Raises:** `ValueError` with the remedy.
    """
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise ValueError(f"--host {host} is no address of this machine: {error}.") from None
    if not is_public and not all(ipaddress.ip_address(x).is_loopback for x in found):
        raise ValueError(
            f"--host {host} can be reached by other machines, and the page has no password; the default "
            "127.0.0.1 is seen from here alone. Give --public to show it to others."
        )


class Scene:
    """The frames of a simulated file: poses of bodies, contact points, forces."""

    def __init__(self, shown: Simulated):
        self.elements = shown.elements
        stride = max(1, int(1 / (RATE * shown.h)))
        self.times = np.asarray(shown.run.ts)[::stride]
        states = jax.tree.map(lambda x: x[::stride], shown.run.states)
        tree, bodies = shown.elements.tree(), shown.elements.split(states)[0]
        pose = jax.jit(jax.vmap(tree.frames))(bodies.q)
        self.poses = np.asarray(pose.position), np.asarray(pose.orientation)
        self.size = size_of(shown.elements)
        self.arrows = _forces(shown, stride, pose, self.size)
        reach = float(np.abs(self.poses[0]).max()) + 3 * self.size
        self.solids = solids(shown.elements, reach)

    def write(self, path: Path, title: str) -> None:
        """Writes a page that plays bodies, contacts and forces, and needs no server."""
        write_motion(
            path,
            dt=float(self.times[1] - self.times[0]),
            size=self.size / 2,
            solids=self.solids,
            motions=[Motion(title, self.poses, forces=self.arrows)],
            title=title,
            speed=1.0,
        )


def _forces(shown: Simulated, stride: int, pose, size: float) -> list[np.ndarray]:
    """Of each frame the arrows of the forces of contacts between geoms, `(a, 2, 3)`, from point to tip.

    They are those on the first body of a pair, on the second where the first is the world. The longest is as
    long as the mechanism; a contact without force is a point.
    """
    frames, plan = len(pose.position), shown.elements.plan
    bodies, _ = shown.model.part(0 if plan.activations else None)
    found = []
    for number, pairs in enumerate(alike(plan)):
        relation: Any = bodies.interactions[number].relation
        on_first = np.array([plan.geoms[first][2] is not None for first, *_ in pairs])
        sign = np.where(on_first, 1.0, -1.0)[np.array(relation.function.pair)]

        def one(pose, impulse, relation=relation):
            point, _, normal = relation.function(jnp.zeros(()), pose)
            axes = jnp.stack(relation.frame(normal.T))
            return point, jnp.sum(axes * impulse.T[:3, None], axis=0).T / shown.h

        gaps: Any = shown.run.gaps[number]
        impulses, gaps = shown.run.impulses[number][::stride], gaps[::stride]
        points, forces = jax.jit(jax.vmap(one))(pose, impulses)
        found.append((np.asarray(points), sign[:, None] * np.asarray(forces), np.asarray(gaps)))
    if not found:
        return [np.zeros((0, 2, 3))] * frames
    points, forces, gaps = (np.concatenate(x, axis=1) for x in zip(*found, strict=True))
    largest = np.linalg.norm(forces, axis=-1).max(initial=0.0)
    tips = points + forces * (size / largest if largest > 0 else 0.0)
    near = (gaps < NEAR * size) | (np.linalg.norm(forces, axis=-1) > 0)
    return [np.stack([points[k], tips[k]], axis=1)[near[k]] for k in range(frames)]


def open_view(scene: Scene, host: str, port: int) -> tuple[Any, Any]:
    """Starts the server of a scene; the time is dragged with a slider.

    **Returns:** the server, to be stopped by the caller; `advance()`, which shows the next frame if the box
    `play` is checked.
    """
    viser = require("viser", "the view")
    server = viser.ViserServer(host=host, port=port, verbose=False)
    set_stage(server, scene.poses[0].reshape(-1, 3), scene.size)
    bodies = add_bodies(server.scene, scene.solids, scene.poses[0].shape[1], "bodies", None)
    last = len(scene.times) - 1
    frame = server.gui.add_slider("frame", min=0, max=last, step=1, initial_value=0)
    clock = server.gui.add_text("time [s]", initial_value="0", disabled=True)
    play = server.gui.add_checkbox("play", initial_value=False)

    def show(_=None):
        k = int(frame.value)
        place(bodies, scene.poses, k)
        clock.value = f"{scene.times[k]:.4g}"
        draw_forces(server.scene, scene.arrows[k], scene.size)

    def advance():
        if play.value:
            frame.value = (int(frame.value) + 1) % (last + 1)

    frame.on_update(show)
    show()
    return server, advance


def view_file(session: Any, scene: Scene, host: str, port: int) -> None:
    """Serves a scene until Ctrl-C."""
    with quiet_viser():
        server, advance = open_view(scene, host, port)
    try:
        session.print(f"http://{host}:{server.get_port()} shows it, until Ctrl-C")
        while True:
            time.sleep(1 / RATE)
            advance()
    except KeyboardInterrupt:
        session.print("stopped")
    finally:
        with quiet_viser():
            server.stop()
