"""The geoms of a file as meshes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...groups import rotation_matrix
from ...io import Elements
from ..pages import CORNERS, Solid, ball_points, hull_mesh, ring_points

SHEET = 1e-3
"""Half the thickness at which the solid ground of a plane is drawn, as a fraction of its width."""
PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)
FLAT = (PLANE, CYLINDER, BOX, MESH)


def _apart(points: np.ndarray, half_length: float) -> np.ndarray:
    """Two copies of points, moved along z."""
    along = np.array([0.0, 0.0, half_length])
    return np.concatenate([points + along, points - along])


POINTS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    SPHERE: lambda size: size[0] * ball_points(),
    CAPSULE: lambda size: _apart(size[0] * ball_points(), size[1]),
    ELLIPSOID: lambda size: size * ball_points(),
    CYLINDER: lambda size: _apart(size[0] * ring_points(), size[1]),
    BOX: lambda size: size * CORNERS,
}


def solids(elements: Elements, width: float) -> list[Solid]:
    """All geoms as meshes in the frames of their bodies; planes are sheets of a `width` [m].

    Meshes of a file that touch nothing are left out: their hulls were not loaded.
    """
    found = []
    for name, kind, body in elements.plan.geoms:
        if kind == PLANE:
            points = width * CORNERS * [1, 1, SHEET] - [0, 0, width * SHEET]
        elif kind in POINTS:
            points = POINTS[kind](np.asarray(elements[f"{name}/size"]))
        elif name in elements.hulls:
            points = MESHED[kind](elements.hulls[name])
        else:
            continue
        turn = np.asarray(rotation_matrix(elements[f"{name}/quat"]))
        placed = points @ turn.T + np.asarray(elements[f"{name}/pos"])
        vertices, faces = (placed, _grid(elements, name)) if kind == HFIELD else hull_mesh(placed)
        found.append(Solid(body, vertices, faces, kind in FLAT))
    return found


def _terrain(field: Any) -> np.ndarray:
    """The points of a height field, row by row."""
    rows, columns = field.heights.shape
    x, y, z = np.asarray(field.size)
    across, along = np.meshgrid(np.linspace(-x, x, columns), np.linspace(-y, y, rows))
    return np.stack([across, along, z * np.asarray(field.heights)], axis=-1).reshape(-1, 3)


MESHED: dict[int, Callable[[Any], np.ndarray]] = {
    HFIELD: _terrain,
    MESH: lambda hull: np.asarray(hull.vertices),
}


def _grid(elements: Elements, name: str) -> np.ndarray:
    """Two triangles for every cell of a height field, facing upwards."""
    field: Any = elements.hulls[name]
    numbers = np.arange(field.heights.size).reshape(field.heights.shape)
    a, b, c, d = (
        x.ravel() for x in (numbers[:-1, :-1], numbers[:-1, 1:], numbers[1:, 1:], numbers[1:, :-1])
    )
    return np.concatenate([np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)])
