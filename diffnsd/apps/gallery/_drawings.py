"""How the ready mechanisms look: convex solids on their bodies, and the poses of these.

Planar mechanisms move in the plane of x and z; an angle turns from x to z, about −y.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...models import ReadyModel
from ...models._slider_crank import CRANK, HALF_HEIGHT, HALF_LENGTH, ROD
from ...models._woodpecker import (
    BEAK_HEIGHT,
    BEAK_LENGTH,
    POLE_RADIUS,
    SLEEVE_HALF_HEIGHT,
    SLEEVE_RADIUS,
    TO_BIRD,
    TO_SPRING,
)
from ..pages import CORNERS, Solid, ball_points, hull_mesh

Track = tuple[np.ndarray, np.ndarray]
"""Origins of bodies `(T, b, 3)` [m] and quaternions `(T, b, 4)`, scalar first."""


@dataclass(frozen=True)
class Drawing:
    """The looks of a mechanism.

    **Arguments:** `solids`; `poses(ts, q)`: those of its bodies at times `(T,)` and configurations;
    `size`: half of that of a body [m]; `slow`: how many times slower than real the motion is shown;
    `note`: what is drawn otherwise than it is.
    """

    solids: list[Solid]
    poses: Callable[[np.ndarray, np.ndarray], Track]
    size: float
    slow: float = 1.0
    note: str = ""


def relation(ready: ReadyModel) -> Any:
    """The relation of the contacts of a mechanism, with its sizes."""
    return ready.model.interactions[0].relation


def box(body: int | None, half, centre=(0.0, 0.0, 0.0)) -> Solid:
    """A box of half widths `half` [m] in the frame of a body."""
    return Solid(body, *hull_mesh(np.asarray(half) * CORNERS + np.asarray(centre)), is_flat=True)


def ball(body: int, radius: float) -> Solid:
    """A ball about the origin of a body."""
    return Solid(body, *hull_mesh(radius * ball_points()), is_flat=False)


def planar(x: ArrayLike, z: ArrayLike, angle: ArrayLike = 0.0) -> Track:
    """Poses of bodies in the plane: numbers or arrays that broadcast to `(T, b)`."""
    x, z, half = np.broadcast_arrays(x, z, 0.5 * np.asarray(angle))
    zero = np.zeros_like(x)
    turn = np.stack([np.cos(half), zero, -np.sin(half), zero], axis=-1)
    return np.stack([x, zero, z], axis=-1), turn


def bouncing_ball(ready: ReadyModel) -> Drawing:
    return Drawing([ball(0, 0.1)], lambda ts, q: planar(0 * q, q + 0.1), 0.1)


def vibrating_table(ready: ReadyModel) -> Drawing:
    table = relation(ready).function

    def poses(ts, q):
        level = float(table.amplitude) * np.sin(float(table.omega) * ts)[:, None]
        return planar(np.zeros((1, 2)), np.concatenate([q + 0.05, level], axis=1) + [0, 0.1])

    plate = box(1, (0.3, 0.3, 0.02), (0.0, 0.0, -0.02))
    return Drawing([ball(0, 0.05), plate], lambda ts, q: poses(ts, q + 0.1), 0.1)


def column_of_beads(ready: ReadyModel) -> Drawing:
    radius = float(relation(ready).function.radius)
    beads = [ball(i, radius) for i in range(len(ready.coordinates))]
    return Drawing(beads, lambda ts, q: planar(0 * q, q), radius, 2.0)


def sliding_block(ready: ReadyModel) -> Drawing:
    def poses(ts, q):
        return (q + [0, 0, 0.05])[:, None], np.tile([1.0, 0, 0, 0], (len(ts), 1, 1))

    return Drawing([box(0, (0.1, 0.1, 0.05))], poses, 0.1)


def tossed_cube(ready: ReadyModel) -> Drawing:
    half = float(np.max(np.asarray(relation(ready).points)))

    def poses(ts, q):
        return np.asarray(q.position), np.asarray(q.orientation)

    return Drawing([box(0, 3 * (half,))], poses, half, 2.0)


def rocking_block(ready: ReadyModel) -> Drawing:
    corners = relation(ready).function
    half = float(corners.half_width), 0.3, float(corners.half_height)
    return Drawing([box(0, half)], lambda ts, q: planar(q[:, :1], q[:, 1:2], q[:, 2:]), 0.5)


def pendulum_wall(ready: ReadyModel) -> Drawing:
    gap = relation(ready).function
    length, wall = float(gap.length), float(gap.distance) + 0.08
    solids = [
        box(0, (0.01, 0.01, length / 2), (0.0, 0.0, -length / 2)),
        Solid(0, *hull_mesh(0.08 * ball_points() - [0, 0, length]), is_flat=False),
        box(None, (0.02, 0.3, 0.3), (-wall - 0.02, 0.0, 0.3)),
    ]

    def poses(ts, q):
        return planar(0 * q, 0 * q + 1.3, q)

    return Drawing(solids, poses, 0.2)


def slider_crank(ready: ReadyModel) -> Drawing:
    clearance = float(relation(ready).function.clearance)
    thin, lift = 0.006, 0.2
    far, wall = CRANK + ROD, HALF_HEIGHT + clearance + thin

    def rod(body, length):
        return box(body, (length / 2, thin, thin), (length / 2, 0.0, 0.0))

    def guide(side):
        return box(None, (0.22, 0.02, thin), (far - 0.15, 0.0, lift + side * wall))

    solids = [rod(0, CRANK), rod(1, ROD), box(2, (HALF_LENGTH, 0.02, HALF_HEIGHT))]
    solids += [guide(1), guide(-1)]

    def poses(ts, q):
        x1, z1 = CRANK * np.cos(q[:, 0]), CRANK * np.sin(q[:, 0])
        x2, z2 = x1 + ROD * np.cos(q[:, 1]), z1 + ROD * np.sin(q[:, 1])
        x, z = np.stack([0 * x1, x1, x2], axis=1), np.stack([0 * z1, z1, z2], axis=1)
        return planar(x, z + lift, q)

    return Drawing(solids, poses, 0.05, 100.0)


def woodpecker(ready: ReadyModel) -> Drawing:
    thin = 1e-3
    solids = [
        box(None, (POLE_RADIUS, POLE_RADIUS, 0.06), (0.0, 0.0, 0.06)),
        box(0, (SLEEVE_RADIUS, SLEEVE_RADIUS, SLEEVE_HALF_HEIGHT)),
        box(0, (TO_SPRING / 2, thin, thin), (TO_SPRING / 2, 0.0, 0.0)),
        box(1, (TO_BIRD / 2, thin, thin), (TO_BIRD / 2, 0.0, 0.0)),
        box(1, (3e-3, 3e-3, BEAK_HEIGHT / 2), (TO_BIRD, 0.0, BEAK_HEIGHT / 2)),
        box(
            1,
            (BEAK_LENGTH / 2, thin, 1.5 * thin),
            (TO_BIRD - BEAK_LENGTH / 2, 0.0, BEAK_HEIGHT),
        ),
    ]

    def poses(ts, q):
        y, sleeve, bird = (q[:, i] for i in range(3))
        x, z = TO_SPRING * np.cos(sleeve), y + TO_SPRING * np.sin(sleeve)
        return planar(
            np.stack([0 * x, x], axis=1),
            np.stack([y, z], axis=1) + 0.09,
            np.stack([sleeve, bird], 1),
        )

    return Drawing(solids, poses, 0.01, 8.0)


def impacting_bar(ready: ReadyModel) -> Drawing:
    nodes, enlarged = len(ready.coordinates), 800.0
    places = np.linspace(0.0, 1.0, nodes)
    solids = [box(i, (0.012, 0.05, 0.05)) for i in range(nodes)]
    solids.append(box(None, (0.01, 0.15, 0.1), (-0.022, 0.0, 0.1)))
    note = f"Slices of the bar; displacements enlarged {enlarged:g} times."

    def poses(ts, q):
        return planar(places + enlarged * q, 0.1)

    return Drawing(solids, poses, 0.1, 2000.0, note)


DRAWINGS: dict[str, Callable[[ReadyModel], Drawing]] = {
    "bouncing_ball": bouncing_ball,
    "sliding_block": sliding_block,
    "pendulum_wall": pendulum_wall,
    "tossed_cube": tossed_cube,
    "woodpecker": woodpecker,
    "slider_crank": slider_crank,
    "rocking_block": rocking_block,
    "column_of_beads": column_of_beads,
    "impacting_bar": impacting_bar,
    "ball_on_vibrating_table": vibrating_table,
}
"""The mechanisms among `models.READY`; the others are circuits and relays, which have no shape."""
