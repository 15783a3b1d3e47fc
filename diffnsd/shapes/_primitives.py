"""Shapes described by a few sizes."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import safe_norm
from ._base import AbstractShape, positive, sized


class HalfSpace(AbstractShape):
    """All points with `z <= 0` in its frame: solid ground below the plane through the origin."""

    def bound(self) -> Float[Array, ""]:
        return jnp.array(jnp.inf)

    def clearance(self, x: Float[Array, "3"]) -> Float[Array, ""]:
        return x[2]


class Sphere(AbstractShape):
    """A ball of `radius` [m] around the origin.

    **Raises:** `ValueError` if the radius is not a number.
    """

    radius: Float[Array, ""]

    def __init__(self, radius):
        self.radius = sized("radius", radius, ())

    def bound(self) -> Float[Array, ""]:
        return self.radius

    def check(self) -> str | None:
        return super().check() or positive(self, "radius")


class AbstractAroundAxis(AbstractShape):
    """A shape around the z axis with a radius and a half length."""

    radius: Float[Array, ""]
    half_length: Float[Array, ""]

    def __init__(self, radius, half_length):
        self.radius = sized("radius", radius, ())
        self.half_length = sized("half_length", half_length, ())

    def check(self) -> str | None:
        return super().check() or positive(self, "radius", "half_length")


class Capsule(AbstractAroundAxis):
    """All points within `radius` [m] of the segment from `z = −half_length` to `z = half_length` [m].

    **Raises:** `ValueError` if a size is not a number.
    """

    def bound(self) -> Float[Array, ""]:
        return self.radius + self.half_length


class Cylinder(AbstractAroundAxis):
    """The points within `radius` [m] of the z axis with `|z| <= half_length` [m].

    **Raises:** `ValueError` if a size is not a number.
    """

    def bound(self) -> Float[Array, ""]:
        return jnp.sqrt(self.radius**2 + self.half_length**2)


class Box(AbstractShape):
    """The points with `|x_i| <= half_sizes_i` [m], `(3,)`.

    **Raises:** `ValueError` if there are not three sizes.
    """

    half_sizes: Float[Array, "3"]

    def __init__(self, half_sizes):
        self.half_sizes = sized("half_sizes", half_sizes, (3,))

    def bound(self) -> Float[Array, ""]:
        return safe_norm(self.half_sizes)

    def check(self) -> str | None:
        return super().check() or positive(self, "half_sizes")


class Ellipsoid(AbstractShape):
    """The points with `Σ (x_i / radii_i)² <= 1`, `radii` [m] `(3,)`.

    **Raises:** `ValueError` if there are not three radii.
    """

    radii: Float[Array, "3"]

    def __init__(self, radii):
        self.radii = sized("radii", radii, (3,))

    def bound(self) -> Float[Array, ""]:
        return jnp.max(self.radii)

    def check(self) -> str | None:
        return super().check() or positive(self, "radii")
