"""The geoms of a file as meshes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...groups import rotation_matrix
from ...io import Elements
from ..pages import Solid

SIDES = 24
SHEET = 1e-3
"""Half the thickness at which the solid ground of a plane is drawn, as a fraction of its width."""
PLANE, HFIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = range(8)
FLAT = (PLANE, CYLINDER, BOX, MESH)


def _ring() -> np.ndarray:
    angles = 2 * np.pi * np.arange(SIDES) / SIDES
    return np.column_stack([np.cos(angles), np.sin(angles), np.zeros(SIDES)])


def _ball() -> np.ndarray:
    """Points of the unit sphere, no two heights alike but at the equator, where both halves have theirs."""
    heights = np.sin(np.linspace(-np.pi / 2, np.pi / 2, SIDES // 2 + 1))
    rings = [np.sqrt(1 - z * z) * _ring() + [0, 0, z] for z in heights[1:-1]]
    return np.concatenate([[[0, 0, -1], [0, 0, 1]], *rings])


def _apart(points: np.ndarray, half_length: float) -> np.ndarray:
    """Two copies of points, moved along z."""
    along = np.array([0.0, 0.0, half_length])
    return np.concatenate([points + along, points - along])


CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
POINTS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    SPHERE: lambda size: size[0] * _ball(),
    CAPSULE: lambda size: _apart(size[0] * _ball(), size[1]),
    ELLIPSOID: lambda size: size * _ball(),
    CYLINDER: lambda size: _apart(size[0] * _ring(), size[1]),
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


def hull_mesh(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The convex hull of points as vertices `(V, 3)` and triangles `(F, 3)` that face outwards."""
    from scipy.spatial import ConvexHull

    hull = ConvexHull(points)
    a, b, c = (points[hull.simplices[:, i]] for i in range(3))
    inward = np.sum(np.cross(b - a, c - a) * hull.equations[:, :3], axis=1) < 0
    faces = np.where(inward[:, None], hull.simplices[:, ::-1], hull.simplices)
    kept, faces = np.unique(faces, return_inverse=True)
    return points[kept], faces.reshape(-1, 3)
