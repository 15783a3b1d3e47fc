"""Points of simple convex solids, and the mesh of their hull."""

import numpy as np
from jaxtyping import Float

from ..._arguments import checked_arguments

_SIDES = 24
CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
"""Corners of the box of half width 1."""


def ring_points() -> np.ndarray:
    """Points of the unit circle in the plane z = 0."""
    angles = 2 * np.pi * np.arange(_SIDES) / _SIDES
    return np.column_stack([np.cos(angles), np.sin(angles), np.zeros(_SIDES)])


def ball_points() -> np.ndarray:
    """Points of the unit sphere, no two heights alike but at the equator, where both halves have theirs."""
    heights = np.sin(np.linspace(-np.pi / 2, np.pi / 2, _SIDES // 2 + 1))
    rings = [np.sqrt(1 - z * z) * ring_points() + [0, 0, z] for z in heights[1:-1]]
    return np.concatenate([[[0, 0, -1], [0, 0, 1]], *rings])


@checked_arguments
def hull_mesh(points: Float[np.ndarray, "n 3"]) -> tuple[np.ndarray, np.ndarray]:
    """The convex hull of points as vertices `(V, 3)` and triangles `(F, 3)` that face outwards."""
    from scipy.spatial import ConvexHull, QhullError

    try:
        hull = ConvexHull(points)
    except (QhullError, ValueError):
        raise ValueError(
            "points must be four or more that span a body, all of them finite."
        ) from None
    a, b, c = (points[hull.simplices[:, i]] for i in range(3))
    inward = np.sum(np.cross(b - a, c - a) * hull.equations[:, :3], axis=1) < 0
    faces = np.where(inward[:, None], hull.simplices[:, ::-1], hull.simplices)
    kept, faces = np.unique(faces, return_inverse=True)
    return points[kept], faces.reshape(-1, 3)
