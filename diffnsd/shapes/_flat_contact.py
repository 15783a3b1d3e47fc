"""Where two convex shapes touch along a line or over an area: a few places that hold both."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._cores import Core
from ._features import unit

ALIGNED = (1 - 0.05**2) ** 0.5
"""Cosine of the angle up to which shapes that touch along lines or faces have several different places."""
_ANGLES = np.pi / 4 + 0.15 + np.pi / 2 * np.arange(4)
_AROUND = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
"""Directions of the places, from the diagonals of a rectangle turned a little: no tie of two corners."""


def facing(core: Core, m: Float[Array, "3"], size: int) -> tuple[Array, Array, Array]:
    """The flat part of a surface that looks in direction `m`: a face, or the line of a cylinder or capsule.

    **Returns:** its corners `(size, 3)`, the last one repeated; the normal; whether it is a face.
    """
    if not len(core.normals):
        return _padded(_line(core, m), size), _across(core, m), jnp.array(False)
    k = jnp.argmax(core.normals @ jax.lax.stop_gradient(m))
    corners, normal = _padded(core.faces[k], size), core.normals[k]
    is_face = jnp.array(True)
    if core.axes is not None:
        is_face = jnp.dot(normal, m) > 0.7
        corners = jnp.where(is_face, corners, _padded(_line(core, m), size))
        normal = jnp.where(is_face, normal, _across(core, m))
    return corners, normal, is_face


def _across(core: Core, m: Float[Array, "3"]) -> Float[Array, "3"]:
    """The direction across a line of a cylinder or capsule that is nearest to `m`."""
    axis = unit(core.vertices[1] - core.vertices[0], m)
    return unit(m - jnp.dot(axis, m) * axis, m)


def _line(core: Core, m: Float[Array, "3"]) -> Float[Array, "2 3"]:
    """The line of a cylinder or capsule that looks most in direction `m`."""
    return core.vertices + core.offset(_across(core, m))[None]


def _padded(points: Array, size: int) -> Float[Array, "k 3"]:
    return points[np.minimum(np.arange(size), len(points) - 1)]


def _inside(points: Array, corners: Array, normal: Array) -> Array:
    """How far points lie inside each side of a polygon [m], `(points, sides)`."""
    sides = jnp.roll(corners, -1, axis=0) - corners
    inward = jax.vmap(lambda side: unit(jnp.cross(normal, side), jnp.zeros_like(side)))(sides)
    return jnp.sum((points[:, None] - corners[None]) * inward[None], axis=-1)


def _clipped(
    face: Array, up: Array, other: Array, normal: Array, is_face: Array, tolerance: Array
) -> tuple[Float[Array, "c 3"], Bool[Array, " c"]]:
    """Corners of what lies of a polygon or line `other` above a `face`, points of `other`."""
    # Its corners above the face.
    depth = _inside(other, face, up)
    own = jnp.min(depth, axis=1) >= -tolerance
    # Points of it above corners of the face.
    slope = jnp.dot(normal, up)
    steep = jnp.abs(slope) < 0.05
    height = (other[:1] - face) @ normal / jnp.where(steep, 1, slope)
    over = face + jnp.where(is_face & ~steep, height, 0)[:, None] * up[None]
    covered = is_face & ~steep & (jnp.min(_inside(over, other, normal), axis=1) >= -tolerance)
    # Crossings of its sides with those of the face.
    after = jnp.roll(depth, -1, axis=0)
    crosses = ((depth > 0) & (after < 0)) | ((depth < 0) & (after > 0))
    part = jnp.where(crosses, depth / jnp.where(crosses, depth - after, 1), 0)
    sides = jnp.roll(other, -1, axis=0) - other
    between = (other[:, None] + part[..., None] * sides[:, None]).reshape(-1, 3)
    at_side = crosses.reshape(-1) & (jnp.min(_inside(between, face, up), axis=1) >= -tolerance)
    return jnp.concatenate([other, over, between]), jnp.concatenate([own, covered, at_side])


def flat_places(
    core1: Core,
    core2: Core,
    n: Array,
    point: Array,
    on_first: Array,
    edges: tuple[Array, Array],
    slots: int,
) -> tuple[Float[Array, "s 3"], Float[Array, "s 3"], Bool[Array, ""]]:
    """Points of two shapes of which a flat face of one, the first or the second, looks at the other.

    The gaps are those along its normal. Those of places that are not the nearest change also as these move
    along the face, where the shapes are inclined to each other.

    **Arguments:** `point`: the point of the other shape that comes nearest; `edges`: of both shapes, those
    that come nearest, `(2, 3)`. **Returns:** `point1`, `point2`, and whether a face or an edge of the other
    shape is nearly parallel to the face.
    """
    size = max(max(core.faces.shape[1], 2) for core in (core1, core2))
    parts1, parts2 = facing(core1, -n, size), facing(core2, n, size)
    face, other, normal, is_face = (
        jnp.where(on_first, a, b)
        for a, b in zip((parts1[0], *parts2), (parts2[0], *parts1), strict=True)
    )
    up = jnp.where(on_first, -n, n)
    # A shape that is tilted about one of its edges touches along this edge.
    level = jnp.abs(jnp.dot(normal, up)) > ALIGNED
    edge = jnp.where(on_first, edges[1], edges[0])
    lies, is_face = _is_across(edge[1] - edge[0], up), is_face & level
    other = jnp.where(level, other, _padded(edge, size))
    tolerance = 1e5 * jnp.finfo(n.dtype).eps * (core1.scale + core2.scale)
    points, true = _clipped(face, up, other, normal, is_face, tolerance)
    lowest = jnp.min(jnp.where(true, (points - face[:1]) @ up, jnp.inf))
    first = jnp.dot(point - face[0], up) < lowest - tolerance
    points, true = jnp.concatenate([point[None], points]), jnp.concatenate([first[None], true])
    chosen = points[
        _outermost(*jax.lax.stop_gradient((points, true, face, up, other)), slots, tolerance)
    ]
    below = chosen - ((chosen - face[:1]) @ up)[:, None] * up[None]
    return jnp.where(on_first, below, chosen), jnp.where(on_first, chosen, below), level | lies


def _is_across(arm: Array, up: Array) -> Bool[Array, ""]:
    """Whether a line, unless its length is zero, is nearly perpendicular to a direction."""
    square = jnp.sum(arm * arm)
    return (square > 0) & (jnp.dot(arm, up) ** 2 < (1 - ALIGNED**2) * square)


def _outermost(points, true, face, up, other, slots: int, tolerance: Array) -> Array:
    """Indices of the places furthest out in fixed directions, and of the lowest one."""
    side = unit(face[1] - face[0], up)
    along = unit(other[1] - other[0], side)
    around = jnp.asarray(_AROUND, up.dtype) @ jnp.stack([side, jnp.cross(up, side)])
    around = around if slots == 4 else jnp.stack([along, -along])
    found = jnp.argmax(jnp.where(true[:, None], points @ around.T, -jnp.inf), axis=0)
    heights = points @ up
    deepest = jnp.argmin(jnp.where(true, heights, jnp.inf))
    apart = jnp.sum((points[found] - points[deepest][None]) ** 2, axis=-1)
    is_lower = heights[deepest] < jnp.min(heights[found]) - tolerance
    here = is_lower & (jnp.arange(slots) == jnp.argmin(apart))
    return jnp.where(here, deepest, found)


def line_places(
    ends1: Array, ends2: Array, n: Array, gap: Array, slots: int
) -> tuple[Array, Array, Array]:
    """The ends of the common part of two parallel lines, as points of the first and the second line.

    **Returns:** `point1`, `point2`, and whether there is a common part.
    """
    arm = unit(ends1[1] - ends1[0], n)
    along1, along2 = (ends1 - ends1[:1]) @ arm, (ends2 - ends1[:1]) @ arm
    start = jnp.maximum(jnp.min(along1), jnp.min(along2))
    stop = jnp.minimum(jnp.max(along1), jnp.max(along2))
    where = jnp.stack([start, stop] * (slots // 2))
    point1 = ends1[:1] + where[:, None] * arm[None]
    return point1, point1 - gap * n[None], stop > start
