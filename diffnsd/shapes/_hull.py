"""The convex hull of points, and where it touches the ground."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._jax import concrete, is_traced
from .._numerics import as_float, safe_norm
from ._base import AbstractShape, Closest, Frame
from ._primitives import HalfSpace

SLOTS = 8
"""The most places where a hull touches a half space."""


class ConvexHull(AbstractShape):
    """The smallest convex body that holds the points `vertices` [m], `(n, 3)`.

    Points inside it are dropped. The derivative moves the other points; which of them form edges and faces is
    decided once, from the values. To differentiate by the vertices, or to change them under `jit`, replace
    the leaf `vertices` of a hull built before (`equinox.tree_at`). Needs SciPy.

    **Arguments:** `vertices`; `max_vertices`: the largest number of corners.

    **Raises:** `ValueError` if the points are traced, not finite, in a plane, or have too many corners;
    `ImportError` without SciPy.
    """

    vertices: Float[Array, "n 3"]
    edges: tuple[tuple[int, int], ...] = eqx.field(static=True)
    faces: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    """Corners of each face in counterclockwise order seen from outside."""

    def __init__(self, vertices, *, max_vertices: int = 64):
        points = concrete(vertices)
        if is_traced(points):
            raise ValueError(
                "a ConvexHull needs known vertices: build it outside of jit, grad and vmap, and replace "
                "its leaf `vertices` there."
            )
        values = np.asarray(points, float)
        if values.ndim != 2 or values.shape[1] != 3:
            raise ValueError(f"vertices must have shape (n, 3), got {values.shape}.")
        if not np.all(np.isfinite(values)):
            raise ValueError("vertices of a ConvexHull must be finite.")
        kept, self.edges, self.faces = _topology(values)
        if kept.size > max_vertices:
            raise ValueError(
                f"the hull has {kept.size} corners, more than max_vertices={max_vertices}: "
                "simplify it, or raise the limit."
            )
        self.vertices = as_float(points)[kept]

    def bound(self) -> Float[Array, ""]:
        return jnp.max(safe_norm(self.vertices.T))


def _qhull(points: np.ndarray) -> Any:
    try:
        from scipy.spatial import ConvexHull as Hull, QhullError
    except ImportError as error:
        raise ImportError("ConvexHull needs SciPy: pip install scipy") from error
    try:
        return Hull(points)
    except (QhullError, ValueError) as error:
        reason = "its points lie in a plane, or are fewer than four"
        raise ValueError(f"a ConvexHull needs a volume: {reason}.") from error


def fewer_corners(points: np.ndarray, most: int) -> tuple[np.ndarray, float]:
    """At most `most` of the points `(n, 3)`, and how far others lie beyond the faces of their hull [m].

    To a large tetrahedron the point furthest outside of the hull is added, again and again. Qhull itself can
    stop at a number of points (`TAn`), but takes the furthest of one face at a time: 64 of 300 points on a
    sphere of 100 mm leave others 30 mm outside, the furthest of all faces 6 mm.
    """
    if len(points) <= most:
        return points[_qhull(points).vertices], 0.0
    kept = _tetrahedron(points)
    while True:
        hull = _qhull(points[kept])
        beyond = np.max(points @ hull.equations[:, :3].T + hull.equations[:, 3], axis=1)
        furthest = int(np.argmax(beyond))
        # Single precision of a mesh is not a corner.
        short = float(beyond[furthest]) if beyond[furthest] > 1e-7 * np.ptp(points) else 0.0
        if len(kept) == most or not short:
            return points[kept][hull.vertices], short
        kept.append(furthest)


def _tetrahedron(points: np.ndarray) -> list[int]:
    """Four points, each as far as possible from the mean, point, line or plane of those before."""
    arms = points - points.mean(axis=0)
    kept = [int(np.argmax(np.linalg.norm(arms, axis=1)))]
    arms = points - points[kept[0]]
    for _ in range(3):
        kept.append(int(np.argmax(np.linalg.norm(arms, axis=1))))
        along = arms[kept[-1]] / max(float(np.linalg.norm(arms[kept[-1]])), np.finfo(float).tiny)
        arms = arms - np.outer(arms @ along, along)
    return kept


def _topology(points: np.ndarray) -> tuple[np.ndarray, tuple, tuple]:
    """Which points are corners; edges and faces as indices into these, triangles in a plane joined."""
    hull = _qhull(points)
    size = np.ptp(points, axis=0).max()
    free, faces = np.ones(len(hull.simplices), bool), []
    while free.any():
        first = np.flatnonzero(free)[0]
        plane = hull.equations[first]
        near = np.all(np.abs(hull.equations[:, :3] - plane[:3]) < 1e-7, axis=1)
        same = free & near & (np.abs(hull.equations[:, 3] - plane[3]) < 1e-7 * size)
        free &= ~same
        faces.append(_ordered(points, np.unique(hull.simplices[same]), plane[:3]))
    kept = np.unique(np.concatenate(faces))
    number = {int(old): new for new, old in enumerate(kept)}
    faces = tuple(tuple(number[int(i)] for i in face) for face in faces)
    edges = {tuple(sorted(pair)) for f in faces for pair in zip(f, f[1:] + f[:1], strict=True)}
    return kept, tuple(sorted(edges)), faces


def _ordered(points: np.ndarray, corners: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Corners of a face counterclockwise around its outward normal."""
    arms = points[corners] - points[corners].mean(axis=0)
    across = np.cross(normal, arms[0])
    return corners[np.argsort(np.arctan2(arms @ across, arms @ arms[0] * np.linalg.norm(normal)))]


def hull_plane(hull: ConvexHull, frame1: Frame, ground: HalfSpace, frame2: Frame) -> Closest:
    """All corners of a small hull; of a larger one the outermost low corners in fixed directions."""
    points = frame1.to_world(hull.vertices)
    if len(hull.vertices) > SLOTS:
        points = points[low_corners(jax.lax.stop_gradient(frame2.to_shape(points)))]
    normal = jnp.broadcast_to(frame2.rotation[:, 2], points.shape)
    heights = frame2.to_shape(points)[:, 2]
    return Closest(points, points - heights[:, None] * normal, normal)


def low_corners(points: Array) -> Array:
    """Indices of the corners that lie furthest in eight directions that look down, among them the lowest.

    The directions look down at a slope of ten, which finds the corners of a face that lies on the ground.
    """
    angles = 2 * np.pi * (np.arange(SLOTS) + 0.5) / SLOTS
    around = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], axis=1), points.dtype)
    found = jnp.argmax(0.1 * points[:, :2] @ around.T - points[:, 2:], axis=0)
    lowest = jnp.argmin(points[:, 2])
    arm = points[lowest, :2] - jnp.mean(points[:, :2], axis=0)
    here = (jnp.arange(SLOTS) == jnp.argmax(around @ arm)) & ~jnp.any(found == lowest)
    return jnp.where(here, lowest, found)
