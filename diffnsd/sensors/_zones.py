"""Whether a ray meets a convex zone around the origin."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._numerics import dot
from ..shapes import AbstractShape, Box, Capsule, Cylinder, Ellipsoid, Sphere

Point = Float[Array, "3"]


def is_hit(shape: AbstractShape, start: Point, direction: Point) -> Bool[Array, ""]:
    """Whether `start + s direction` is in the shape for some `s >= 0`."""
    return RAYS[type(shape)](shape, start, direction)


def zone(shape: AbstractShape) -> AbstractShape:
    """The shape; raises `ValueError` if no rays are known for it."""
    if type(shape) not in RAYS:
        known = ", ".join(kind.__name__ for kind in RAYS)
        raise ValueError(f"shape must be one of {known}, got {shape!r}.")
    return shape


def _within(x: Array, slope: Array, half: Array) -> tuple[Array, Array]:
    """The interval of `s` with `|x + s slope| <= half`, empty if its end is before its start."""
    moves = slope != 0
    safe = jnp.where(moves, slope, 1)
    one, two = (-half - x) / safe, (half - x) / safe
    always = jnp.where(jnp.abs(x) <= half, jnp.inf, -jnp.inf)
    low = jnp.where(moves, jnp.minimum(one, two), -always)
    return low, jnp.where(moves, jnp.maximum(one, two), always)


def _within_ball(x: Array, slope: Array, radius: Array) -> tuple[Array, Array]:
    """The interval of `s` with `|x + s slope| <= radius`, vectors of any length."""
    a, b, c = dot(slope, slope), dot(x, slope), dot(x, x) - radius * radius
    moves, square = a > 0, b * b - a * c
    meets = jnp.where(moves, square, -c) >= 0
    safe, root = jnp.where(moves, a, 1), jnp.sqrt(jnp.where(square > 0, square, 0))
    low = jnp.where(moves, (-b - root) / safe, -jnp.inf)
    high = jnp.where(moves, (-b + root) / safe, jnp.inf)
    return jnp.where(meets, low, jnp.inf), jnp.where(meets, high, -jnp.inf)


def _both(*intervals: tuple[Array, Array]) -> Array:
    """Whether intervals have a common part at `s >= 0`."""
    low = jnp.max(jnp.stack([jnp.max(low) for low, _ in intervals]))
    high = jnp.min(jnp.stack([jnp.min(high) for _, high in intervals]))
    return (low <= high) & (high >= 0)


def _sphere(shape: Sphere, x: Point, slope: Point) -> Array:
    return _both(_within_ball(x, slope, shape.radius))


def _ellipsoid(shape: Ellipsoid, x: Point, slope: Point) -> Array:
    return _both(_within_ball(x / shape.radii, slope / shape.radii, jnp.ones_like(x[0])))


def _box(shape: Box, x: Point, slope: Point) -> Array:
    return _both(_within(x, slope, shape.half_sizes))


def _cylinder(shape: Cylinder, x: Point, slope: Point) -> Array:
    around = _within_ball(x[:2], slope[:2], shape.radius)
    return _both(around, _within(x[2], slope[2], shape.half_length))


def _capsule(shape: Capsule, x: Point, slope: Point) -> Array:
    end = shape.half_length * jnp.array([0.0, 0.0, 1.0], x.dtype)
    caps = [_both(_within_ball(x - sign * end, slope, shape.radius)) for sign in (1, -1)]
    return _cylinder(Cylinder(shape.radius, shape.half_length), x, slope) | caps[0] | caps[1]


RAYS: dict[type[AbstractShape], Callable] = {
    Sphere: _sphere,
    Capsule: _capsule,
    Cylinder: _cylinder,
    Box: _box,
    Ellipsoid: _ellipsoid,
}
