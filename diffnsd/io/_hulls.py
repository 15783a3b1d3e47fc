"""The shapes of a file that are more than a few numbers: hulls of meshes, and terrain."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..shapes import AbstractShape, ConvexHull, HeightField
from ..shapes._hull import fewer_corners
from ._plan import Plan
from ._read import HFIELD, MESH, Reader

MOST = 64
"""Corners of a hull: the cost of a contact grows with them, and meshes made for pictures have thousands."""


class Hull(NamedTuple):
    """Corners of the hull of a mesh [m], `(n, 3)`, and how far it reaches beyond them [m]."""

    corners: np.ndarray
    short: float


def mesh_hulls(reader: Reader, plan: Plan, most: int) -> dict[str, Hull]:
    """At most `most` corners of the meshes that may touch, by the names of their geoms.

    **Raises:** `ValueError` with the name of the geom, if a hull has no volume.
    """
    found = {}
    for g in _touching(plan, MESH):
        name = plan.geoms[g][0]
        try:
            found[name] = Hull(*fewer_corners(reader.hull_points(g), most))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def shapes_of(
    reader: Reader, plan: Plan, meshes: dict[str, Hull], most: int
) -> dict[str, AbstractShape]:
    """Hulls, and terrain, by the names of their geoms."""
    found: dict[str, AbstractShape] = {}
    for g in _touching(plan, HFIELD):
        found[plan.geoms[g][0]] = HeightField(*reader.terrain(g))
    for g in _touching(plan, MESH):
        name = plan.geoms[g][0]
        found[name] = ConvexHull(meshes[name].corners, max_vertices=most)
    return found


def large_hulls(meshes: dict[str, Hull], most: int) -> Iterator[tuple[str, str]]:
    """The hulls that keep only some of their corners: a name, and a sentence."""
    for name, hull in meshes.items():
        if hull.short > 0:
            yield (
                f"hull/{name}",
                f"has more than {most} corners (max_vertices); if ignored, {most} of them stand for it, and "
                f"others lie up to {hull.short:.1e} m outside",
            )


def _touching(plan: Plan, kind: int) -> list[int]:
    used = sorted({g for pair in plan.pairs for g in pair[:2]})
    return [g for g in used if plan.geoms[g][1] == kind]
