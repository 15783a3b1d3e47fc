"""What touches a surface: fixed places of the body, each with its nearest point of the surface."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._numerics import implicit_root, safe_norm
from .._base import Closest, Frame
from .._hull import SLOTS, ConvexHull, low_corners
from .._primitives import Box, Capsule, Cylinder, Ellipsoid, Sphere
from .._round_pairs import CORNERS, like, rounding
from ._implicit import AbstractSurface
from ._nearest import frame_at, normal_at, search, touching

BRACKET = 6
"""Steps of the search for the deepest place on a curve."""
SEGMENT, CIRCLE = np.linspace(-1, 1, 5), 2 * np.pi * np.arange(8) / 8
"""Where places on a curve are looked for at first: from end to end, and around."""
_NO_ENDS = -np.inf, np.inf
SETTLE = 10
"""Rounds in which the deepest point of an ellipsoid and the point of the surface below it find each other."""


def _places(
    surface: AbstractSurface, frame: Frame, points: Array, nearest: Array, normal: Array, radius
) -> Closest:
    """Places in the world from points of a body thickened by a radius, in the frame of the surface.

    Both points lie on the line along the normal, as they do where the nearest point is one.
    """
    gap = jnp.sum(normal * (points - nearest), axis=-1, keepdims=True) - radius
    out = normal @ frame.rotation.T
    point2 = frame.to_world(nearest)
    return Closest(point2 + gap * out, point2, out)


def _below(surface: AbstractSurface, x: Float[Array, "3"]) -> tuple[Array, Array]:
    """The point of the surface nearest to a point, and the normal there."""
    return touching(surface, lambda n: x, search(surface, x, x))


def _of_points(
    surface: AbstractSurface, frame: Frame, points: Array, radius: Array | float = 0.0
) -> Closest:
    local = frame.to_shape(points)
    return _places(surface, frame, local, *jax.vmap(lambda x: _below(surface, x))(local), radius)


def sphere_surface(
    shape1: Sphere, frame1: Frame, shape2: AbstractSurface, frame2: Frame
) -> Closest:
    """At the point of the surface that is nearest to the centre."""
    return _of_points(shape2, frame2, frame1.centre[None], shape1.radius)


def box_surface(shape1: Box, frame1: Frame, shape2: AbstractSurface, frame2: Frame) -> Closest:
    """The eight corners, in the order of a box on a half space."""
    corners = shape1.half_sizes[None] * jnp.asarray(CORNERS.T, shape1.half_sizes.dtype)
    return _of_points(shape2, frame2, frame1.to_world(corners))


def hull_surface(
    shape1: ConvexHull, frame1: Frame, shape2: AbstractSurface, frame2: Frame
) -> Closest:
    """All corners of a small hull; of a larger one the outermost low corners, seen from below its origin."""
    points = frame1.to_world(shape1.vertices)
    if len(shape1.vertices) > SLOTS:
        local, surface = jax.lax.stop_gradient((frame2.to_shape(points), shape2))
        centre = jnp.mean(local, axis=0)
        axes = frame_at(normal_at(surface, search(surface, centre, centre)))
        below = jax.vmap(lambda x: search(surface, x, x))(local)
        levels = (local - below) @ axes[:, 2:]
        points = points[low_corners(jnp.concatenate([local @ axes[:, :2], levels], axis=1))]
    return _of_points(shape2, frame2, points)


def ellipsoid_surface(
    shape1: Ellipsoid, frame1: Frame, shape2: AbstractSurface, frame2: Frame
) -> Closest:
    """Where both have a common normal, from the projection of the centre on."""
    centre = frame2.to_shape(frame1.centre)
    axes = frame2.rotation.T @ (frame1.rotation * shape1.radii[None])

    def lowest(n: Array) -> Array:
        along = n @ axes
        return centre - axes @ along / jnp.sqrt(jnp.sum(along * along))

    def settle(y, _):
        x = jax.lax.stop_gradient(lowest(normal_at(shape2, y)))
        return search(shape2, x, y), None

    start = jax.lax.stop_gradient(search(shape2, centre, centre))
    start = jax.lax.scan(settle, start, None, length=SETTLE)[0]
    y, n = touching(shape2, lowest, start, steps=4)
    return _places(shape2, frame2, lowest(n)[None], y[None], n[None], 0.0)


def capsule_surface(
    shape1: Capsule, frame1: Frame, shape2: AbstractSurface, frame2: Frame
) -> Closest:
    """The two ends, that with the smaller z of the capsule first, and the deepest place between them.

    The third is one of the ends again where nothing between them is deeper.
    """
    centre = frame2.to_shape(frame1.centre)
    arm = shape1.half_length * (frame2.rotation.T @ frame1.rotation[:, 2])
    s = _deepest(shape2, lambda s: centre + s * arm, like(centre, SEGMENT), (-1, 1))
    along = jnp.stack([-jnp.ones_like(s), jnp.ones_like(s), s])
    points = centre[None] + along[:, None] * arm[None]
    found = jax.vmap(lambda x: _below(shape2, x))(points)
    return _places(shape2, frame2, points, *found, shape1.radius)


def cylinder_surface(
    shape1: Cylinder, frame1: Frame, shape2: AbstractSurface, frame2: Frame
) -> Closest:
    """Five places: on the rims, and on the line between them that is nearest to the surface.

    The deepest ones of the rims at `z = −half_length` and `half_length`, in this order, on which a lying
    cylinder rests; the two of the deeper rim a third of the circumference away, on which together with the
    deepest one a standing cylinder rests; and the deepest place between the first two, where a lying one
    touches a crest, one of them again where nothing between is deeper. What is narrower than a disc can
    reach between the places, as with the faces of boxes.
    """
    centre, turn = frame2.to_shape(frame1.centre), frame2.rotation.T @ frame1.rotation

    def rim(end, angle):
        around = jnp.cos(angle) * turn[:, 0] + jnp.sin(angle) * turn[:, 1]
        return centre + end * shape1.half_length * turn[:, 2] + shape1.radius * around

    def deepest(end):
        return _deepest(shape2, lambda angle: rim(end, angle), like(centre, CIRCLE), _NO_ENDS)

    ends = jnp.asarray([-1, 1], centre.dtype)
    angles = jax.vmap(deepest)(ends)
    lowest = jax.vmap(rim)(ends, angles)
    _, gaps = jax.vmap(lambda x: _height(shape2, x))(jax.lax.stop_gradient(lowest))
    lower = jnp.argmin(gaps)
    thirds = jnp.asarray([1, -1], centre.dtype) * (2 * np.pi / 3)
    beside = jax.vmap(lambda more: rim(ends[lower], angles[lower] + more))(thirds)
    middle, arm = (lowest[0] + lowest[1]) / 2, (lowest[1] - lowest[0]) / 2
    s = _deepest(shape2, lambda s: middle + s * arm, like(centre, SEGMENT), (-1, 1))
    points = jnp.concatenate([lowest, beside, (middle + s * arm)[None]])
    found = jax.vmap(lambda x: _below(shape2, x))(points)
    return _places(shape2, frame2, points, *found, 0.0)


def _height(surface: AbstractSurface, x: Array, start: Array | None = None) -> tuple[Array, Array]:
    """The point of the surface nearest to `x`, looked for from `start`, and how far `x` is above it."""
    y = search(surface, x, x if start is None else start)
    return y, jnp.dot(normal_at(surface, y), x - y)


def _deepest(
    surface: AbstractSurface,
    curve: Callable[[Array], Array],
    places: Any,
    ends: tuple[float, float],
) -> Float[Array, ""]:
    """Where on a curve `x(s)`, between its ends, the signed distance to the surface is least.

    There the curve runs along the surface. It is bracketed around the lowest of some equidistant places, the
    first if all are as low; the root of `n · x'(s)` has the derivative of the implicit function theorem.
    """
    fixed: Callable = jax.lax.stop_gradient

    def moving(s):
        return jax.jvp(curve, (s,), (jnp.ones_like(s),))

    still, places = fixed(surface), jnp.asarray(places)

    def look(s, start=None):
        x, way = fixed(moving(s))
        y, height = _height(still, x, start)
        return height, jnp.dot(normal_at(still, y), way), y

    heights, slopes, below = jax.vmap(look)(places)
    size = fixed(safe_norm(moving(places[0])[1]))
    first = np.arange(len(places)) == 0
    k = jnp.argmin(heights + jnp.where(first, 0, rounding(size)))
    # The side of the lowest place on which it still falls; around a circle the last is beside the first.
    back = slopes[k] > 0
    apart = places[1] - places[0]
    other = jnp.clip(places[k] + jnp.where(back, -apart, apart), *ends)
    slope_other = slopes[jnp.where(back, k - 1, k + 1) % len(places)]
    brackets = (slopes[k] * slope_other <= 0) & (other != places[k])

    def narrow(state, _):
        a, slope_a, b, slope_b, y = state
        apart = slope_b - slope_a
        chord = a - slope_a * (b - a) / jnp.where(apart != 0, apart, 1)
        s = jnp.where(apart != 0, chord, a)
        _, slope, y = look(s, y)
        same = slope * slope_b > 0
        # Regula falsi with the weight of the end that stays halved (Illinois).
        a, slope_a = jnp.where(same, a, b), jnp.where(same, slope_a / 2, slope_b)
        return (a, slope_a, s, slope, y), None

    start = other, slope_other, places[k], slopes[k], below[k]
    (*_, s, slope, y), _ = jax.lax.scan(narrow, start, None, length=BRACKET)
    s = jnp.where(brackets, s, places[k])
    start = jnp.where(brackets, y, below[k])

    def tilt(r):
        x, way = moving(r)
        _, n = touching(surface, lambda _: x, start, steps=1)
        return jnp.dot(n, way)

    # The place is not determined where the curve runs along the surface for a while.
    _, turn = jax.jvp(tilt, (s,), (jnp.ones_like(s),))
    determined = fixed(brackets & (turn > 1e-6 * size))
    s = jnp.where(determined, s, places[k])
    return implicit_root(lambda r: jnp.where(determined, tilt(r), r - s), s)
