"""Surfaces given by a function, and what touches them."""

from ._height_field import HeightField as HeightField
from ._implicit import AbstractSurface as AbstractSurface, Implicit as Implicit
from ._pairs import (
    box_surface as box_surface,
    capsule_surface as capsule_surface,
    cylinder_surface as cylinder_surface,
    ellipsoid_surface as ellipsoid_surface,
    hull_surface as hull_surface,
    sphere_surface as sphere_surface,
)
