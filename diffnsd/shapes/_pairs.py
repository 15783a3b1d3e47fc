"""The table of pairs: which function finds the places where two shapes touch."""

from collections.abc import Callable

from .._arguments import checked_arguments
from ._base import AbstractShape, Closest, Frame
from ._boxes import box_box
from ._convex import convex_pair
from ._hull import ConvexHull, hull_plane
from ._plane_pairs import (
    box_plane,
    capsule_plane,
    cylinder_plane,
    ellipsoid_plane,
    sphere_plane,
)
from ._primitives import Box, Capsule, Cylinder, Ellipsoid, HalfSpace, Sphere
from ._round_pairs import (
    capsule_box,
    capsule_capsule,
    sphere_box,
    sphere_capsule,
    sphere_cylinder,
    sphere_sphere,
)
from .surfaces import (
    HeightField,
    Implicit,
    box_surface,
    capsule_surface,
    cylinder_surface,
    ellipsoid_surface,
    hull_surface,
    sphere_surface,
)

_ON_SURFACES: dict[type[AbstractShape], Callable] = {
    Sphere: sphere_surface,
    Capsule: capsule_surface,
    Cylinder: cylinder_surface,
    Box: box_surface,
    Ellipsoid: ellipsoid_surface,
    ConvexHull: hull_surface,
}

PAIRS: dict[tuple[type[AbstractShape], type[AbstractShape]], Callable] = {
    (Sphere, HalfSpace): sphere_plane,
    (Capsule, HalfSpace): capsule_plane,
    (Ellipsoid, HalfSpace): ellipsoid_plane,
    (Cylinder, HalfSpace): cylinder_plane,
    (Box, HalfSpace): box_plane,
    (Sphere, Sphere): sphere_sphere,
    (Sphere, Capsule): sphere_capsule,
    (Sphere, Cylinder): sphere_cylinder,
    (Sphere, Box): sphere_box,
    (Capsule, Capsule): capsule_capsule,
    (Capsule, Box): capsule_box,
    (Box, Box): box_box,
    (ConvexHull, HalfSpace): hull_plane,
    (Ellipsoid, Sphere): convex_pair,
    (Ellipsoid, Capsule): convex_pair,
    (Ellipsoid, Cylinder): convex_pair,
    (Ellipsoid, Box): convex_pair,
    (Ellipsoid, Ellipsoid): convex_pair,
    (Ellipsoid, ConvexHull): convex_pair,
    (Cylinder, Capsule): convex_pair,
    (Cylinder, Cylinder): convex_pair,
    (Cylinder, Box): convex_pair,
    (Cylinder, ConvexHull): convex_pair,
    (ConvexHull, Sphere): convex_pair,
    (ConvexHull, Capsule): convex_pair,
    (ConvexHull, Box): convex_pair,
    (ConvexHull, ConvexHull): convex_pair,
    **{(kind, on): f for kind, f in _ON_SURFACES.items() for on in (Implicit, HeightField)},
}
"""`(shape1, frame1, shape2, frame2) -> Closest` for pairs of types, in one of the two orders."""


@checked_arguments
def closest(shape1: AbstractShape, frame1: Frame, shape2: AbstractShape, frame2: Frame) -> Closest:
    """The places where two shapes touch or would touch first.

    Which features touch is a constant of the derivative; points, normals and gaps at them are differentiable
    by frames and sizes.

    **Raises:** `ValueError` if there is no function for such a pair.
    """
    one, two = type(shape1), type(shape2)
    if (one, two) in PAIRS:
        return PAIRS[one, two](shape1, frame1, shape2, frame2)
    if (two, one) in PAIRS:
        return PAIRS[two, one](shape2, frame2, shape1, frame1).swapped()
    raise ValueError(f"contacts between a {one.__name__} and a {two.__name__} are not supported.")


@checked_arguments
def is_supported(kind1: type[AbstractShape] | None, kind2: type[AbstractShape] | None) -> bool:
    """Whether there is a function for shapes of these two types."""
    return (kind1, kind2) in PAIRS or (kind2, kind1) in PAIRS
