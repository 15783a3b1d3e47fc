"""Shapes of bodies, and the places where two of them touch."""

from ._base import AbstractShape as AbstractShape, Closest as Closest, Frame as Frame
from ._hull import ConvexHull as ConvexHull
from ._pairs import closest as closest, is_supported as is_supported
from ._primitives import (
    Box as Box,
    Capsule as Capsule,
    Cylinder as Cylinder,
    Ellipsoid as Ellipsoid,
    HalfSpace as HalfSpace,
    Sphere as Sphere,
)
from .surfaces import HeightField as HeightField, Implicit as Implicit
