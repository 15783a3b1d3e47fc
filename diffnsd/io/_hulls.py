"""The shapes of a file that are more than a few numbers: hulls of meshes, and terrain."""

from collections.abc import Iterator

import numpy as np

from ..shapes import AbstractShape, ConvexHull, HeightField
from ..shapes._hull import fewer_corners
from ._plan import Plan
from ._read import HFIELD, MESH, Reader

MOST = 64
"""Corners of a hull: the cost of a contact grows with them, and meshes made for pictures have thousands."""


def hulls(reader: Reader, plan: Plan) -> dict[str, AbstractShape]:
    """Convex hulls of the meshes that may touch, and terrain, by the names of their geoms."""
    found: dict[str, AbstractShape] = {}
    for g in _touching(plan, HFIELD):
        found[plan.geoms[g][0]] = HeightField(*reader.terrain(g))
    for g in _touching(plan, MESH):
        found[plan.geoms[g][0]] = ConvexHull(_corners(reader, plan, g)[0])
    return found


def large_hulls(reader: Reader, plan: Plan) -> Iterator[tuple[str, str]]:
    """The hulls that keep only some of their corners: a name, and a sentence."""
    for g in _touching(plan, MESH):
        _, short = _corners(reader, plan, g)
        if short > 0:
            yield (
                f"hull/{plan.geoms[g][0]}",
                f"has more than {MOST} corners; if ignored, {MOST} of them stand for it, and others "
                f"lie up to {short:.1e} m outside",
            )


def _touching(plan: Plan, kind: int) -> list[int]:
    used = sorted({g for pair in plan.pairs for g in pair[:2]})
    return [g for g in used if plan.geoms[g][1] == kind]


def _corners(reader: Reader, plan: Plan, g: int) -> tuple[np.ndarray, float]:
    """At most `MOST` corners of the hull of a mesh, and how far it reaches beyond these [m].

    **Raises:** `ValueError` with the name of the geom, if the hull has no volume.
    """
    try:
        return fewer_corners(reader.hull_points(g), MOST)
    except ValueError as error:
        raise ValueError(f"{plan.geoms[g][0]}: {error}") from None
