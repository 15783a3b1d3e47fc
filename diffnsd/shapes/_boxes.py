"""Two boxes: separating axes, closest features, and four places where a face lies on a face.

Which features are closest is decided without derivatives, by the fifteen axes that can separate two boxes
(S. Gottschalk, M. C. Lin, D. Manocha, 1996, doi:10.1145/237170.237244) and, for boxes that are apart, by
the distances of all corners and of the edges; then their places are computed with derivatives.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .._numerics import cross, dot, is_least, matvec, safe_norm
from ._base import Closest, Frame
from ._primitives import Box
from ._round_pairs import (
    CORNERS,
    NEARLY_PARALLEL,
    crosses,
    direction,
    like,
    on_feature,
    picked,
    replaced,
    rounding,
    signs,
    swept,
)

# Lines that bound two faces: two directions of the one that is inclined, two of the one that is level.
_PAIRS = np.array(list(itertools.combinations(range(4), 2)))
_LINE1, _LINE2 = np.repeat(_PAIRS, 4, axis=0).T
_SIDE1, _SIDE2 = np.array(list(itertools.product([-1, 1], repeat=2)) * 6).T
# Not quite the diagonals, because a square that is turned by 45 degrees has sides across these.
_DIAGONALS = np.pi / 4 + 0.1 + np.pi / 2 * np.arange(4)
_OF1 = np.isin(np.arange(31), [*range(8), 16, 17, 18])
_ALIGNED = (1 - NEARLY_PARALLEL**2) ** 0.5


class _Body(NamedTuple):
    """A box: centre relative to that of box 2, axes as columns, half sizes."""

    centre: Float[Array, "3"]
    axes: Float[Array, "3 3"]
    sizes: Float[Array, "3"]


class _Edges(NamedTuple):
    """The pairs of edges along axis `i` of box 2 and axis `j` of box 1 that may be closest, `(3, 3)`.

    Normals are from box 2 to box 1, `(3, i, j)`; `corner1`, `corner2`: signs of the sides of the boxes where
    the edges are, `(3, i, j)`, 0 along the edge; `meet`: the closest points are inside both edges.
    """

    separation: Float[Array, "3 3"]
    normal: Float[Array, "3 3 3"]
    corner1: Float[Array, "3 3 3"]
    corner2: Float[Array, "3 3 3"]
    meet: Bool[Array, "3 3"]


class _Features(NamedTuple):
    """The closest features of two boxes.

    A corner of one box, of box 1 if `of1`, and the feature `on` of the other; or edges of both, `is_edges`,
    with the signs `corner` on box 1 and `on` on box 2. `normal`: of the axis that separates them most.
    """

    is_edges: Bool[Array, ""]
    of1: Bool[Array, ""]
    corner: Float[Array, "3"]
    on: Float[Array, "3"]
    normal: Float[Array, "3"]


def box_box(shape1: Box, frame1: Frame, shape2: Box, frame2: Frame) -> Closest:
    """Four places where a face lies nearly on a face, otherwise the closest one four times.

    The four are the corners of what two faces have in common that reach farthest along the diagonals
    of a face, with gaps along its normal. If the closest place is not one of them, it replaces the nearest.
    The gaps of the others are those of these corners: where faces are inclined to each other, they
    also change as the corners move along the other face.
    """
    body1 = _Body(frame1.centre - frame2.centre, frame1.rotation, shape1.half_sizes)
    body2 = _Body(jnp.zeros_like(body1.centre), frame2.rotation, shape2.half_sizes)
    fixed1, fixed2 = stop_gradient((body1, body2))
    found = _closest_features(fixed1, fixed2)
    *closest, is_known = _place(body1, body2, found)
    *places, is_face = _face_places(body1, body2, fixed1, fixed2, found.normal)
    size = jnp.sum(body1.sizes + body2.sizes)
    repeated = replaced(*stop_gradient((closest, places, size, is_known))) | ~is_face
    pairs = zip(closest, places, strict=True)
    return swept(frame2.centre, *(jnp.where(repeated[None], x, y) for x, y in pairs))


def _edges(body1: _Body, body2: _Body, cosines: Array, seen1: Array, seen2: Array) -> _Edges:
    """`cosines` `(i, j)` between axes; `seen1`, `seen2`: from box 2 to box 1, along the axes of either."""
    axes1, axes2 = body1.axes, body2.axes
    across = cross(axes2[:, :, None], axes1[:, None, :])
    square = dot(across, across)
    usable = crosses(square)
    length = jnp.sqrt(jnp.where(usable, square, 1))
    normal = across / length[None]
    normal = normal * signs(dot(normal, body1.centre[:, None, None]))[None]
    along1, along2 = (dot(x[:, :, None, None], normal[:, None]) for x in (axes1, axes2))
    sizes1, sizes2 = body1.sizes[:, None, None], body2.sizes[:, None, None]
    reach = dot(jnp.abs(along1), sizes1) + dot(jnp.abs(along2), sizes2)
    separation = dot(normal, body1.centre[:, None, None]) - reach
    eye = np.eye(3, dtype=square.dtype)
    corner1, corner2 = -signs(along1) * (1 - eye[:, None]), signs(along2) * (1 - eye[:, :, None])
    # From the middle of the edge of box 2 to that of box 1, along both edges.
    apart1 = seen1[None] - dot(cosines[:, None], corner2 * sizes2)
    apart2 = seen2[:, None] + dot(cosines.T[:, :, None], corner1 * sizes1)
    t1 = (cosines * apart2 - apart1) / jnp.where(usable, square, 1)
    meet = (jnp.abs(t1) <= body1.sizes[None]) & (
        jnp.abs(apart2 + cosines * t1) <= body2.sizes[:, None]
    )
    return _Edges(jnp.where(usable, separation, -jnp.inf), normal, corner1, corner2, meet & usable)


def _corners_at(corners: Float[Array, "3 8"], sizes: Float[Array, "3"]) -> tuple:
    """Distances of points outside of a box and its features there; infinite for points inside."""
    over = jnp.abs(corners) - sizes[:, None]
    outside = over > 0
    distance = safe_norm(jnp.where(outside, over, 0))
    return jnp.where(distance > 0, distance, jnp.inf), jnp.where(outside, signs(corners), 0)


def _closest_features(body1: _Body, body2: _Body) -> _Features:
    """Boxes that are apart by distances, others by the shortest way apart; without derivatives."""
    axes1, axes2, centre, size = (
        body1.axes,
        body2.axes,
        body1.centre,
        jnp.sum(body1.sizes + body2.sizes),
    )
    cosines = dot(axes2[:, :, None], axes1[:, None, :])
    seen1, seen2 = dot(axes1, centre), dot(axes2, centre)
    edges = _edges(body1, body2, cosines, seen1, seen2)
    faces2 = jnp.abs(seen2) - body2.sizes - matvec(jnp.abs(cosines), body1.sizes)
    faces1 = jnp.abs(seen1) - body1.sizes - dot(jnp.abs(cosines), body2.sizes)
    corners = like(centre, CORNERS)
    local1, local2 = corners * body1.sizes[:, None], corners * body2.sizes[:, None]
    from1, on2 = _corners_at(seen2[:, None] + matvec(cosines[..., None], local1), body2.sizes)
    from2, on1 = _corners_at(
        dot(cosines[:, :, None], local2[:, None]) - seen1[:, None], body1.sizes
    )

    between = edges.separation.reshape(9)
    # Faces come first where both separate equally, so that boxes that rest on each other stay on their faces.
    separations = jnp.concatenate([faces2, faces1, between - rounding(size)])
    never = jnp.full(16, jnp.inf, centre.dtype)
    meeting = jnp.where(edges.meet.reshape(9), between, jnp.inf)
    apart = jnp.concatenate([from1, from2, never[:6], meeting])
    is_apart = jnp.max(separations) > 16 * float(jnp.finfo(centre.dtype).eps) * size
    is_apart &= jnp.any(apart < jnp.inf)
    chosen = is_least(jnp.where(is_apart, apart, jnp.concatenate([never, -separations])))

    side1, side2, eye = signs(seen1), signs(seen2), np.eye(3, dtype=centre.dtype)
    lowest1, lowest2 = -signs(cosines).T * side2[None], signs(cosines) * side1[None]
    corner = [corners, corners, lowest1, lowest2, edges.corner1.reshape(3, 9)]
    on = [on2, on1, eye * side2[None], -eye * side1[None], edges.corner2.reshape(3, 9)]
    normals = [axes2 * side2[None], axes1 * side1[None], edges.normal.reshape(3, 9)]
    return _Features(
        is_edges=jnp.any(chosen[22:]),
        of1=jnp.any(chosen & _OF1),
        corner=picked(chosen, jnp.concatenate(corner, axis=1)),
        on=picked(chosen, jnp.concatenate(on, axis=1)),
        normal=picked(is_least(-separations), jnp.concatenate(normals, axis=1)),
    )


def _chosen(condition: Bool[Array, ""], body1: _Body, body2: _Body) -> _Body:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), body1, body2)


def _place(body1: _Body, body2: _Body, found: _Features) -> tuple:
    """Points of box 1 and box 2 on given features, the normal, `(3, 1)`; whether they are on both boxes.

    They are but for rounding where several features are equally close.
    """
    of1 = found.of1 | found.is_edges
    body, other = _chosen(of1, body1, body2), _chosen(of1, body2, body1)
    point1 = body.centre + matvec(body.axes, found.corner * body.sizes)
    local, normal = on_feature(dot(other.axes, point1 - other.centre), other.sizes, found.on)
    slack = rounding(jnp.sum(other.sizes))
    is_over = jnp.all(jnp.abs(local) <= other.sizes + slack)
    # Two edges: from the middles of both to the closest points.
    local = jnp.where(found.is_edges, found.on * other.sizes, local)
    point2 = other.centre + matvec(other.axes, local)
    along1, along2 = ((on == 0) & found.is_edges for on in (found.corner, found.on))
    axis1, axis2 = picked(along1, body1.axes), picked(along2, body2.axes)
    across, cosine, apart = cross(axis2, axis1), dot(axis1, axis2), point1 - point2
    square = jnp.where(found.is_edges, dot(across, across), 1)
    t1 = (cosine * dot(axis2, apart) - dot(axis1, apart)) / square
    t2 = dot(axis2, apart) + cosine * t1
    beyond1 = jnp.abs(t1) - picked(along1, body1.sizes)
    beyond2 = jnp.abs(t2) - picked(along2, body2.sizes)
    are_inside = jnp.maximum(beyond1, beyond2) <= slack
    point1, point2 = point1 + t1 * axis1, point2 + t2 * axis2
    outwards = stop_gradient(signs(dot(found.on, dot(body2.axes, across))))
    normal = matvec(other.axes, normal)
    normal = jnp.where(found.is_edges, outwards * direction(across, normal), normal)
    point1, point2 = jnp.where(of1, point1, point2), jnp.where(of1, point2, point1)
    normal = jnp.where(of1, normal, -normal)
    return (
        point1[:, None],
        point2[:, None],
        normal[:, None],
        jnp.where(found.is_edges, are_inside, is_over),
    )


def _face_first(body: _Body, face: Bool[Array, "3"]) -> _Body:
    """The box with its axes in cyclic order, so that the normal of a face is the last one."""
    order = jnp.stack([jnp.roll(face, 1), jnp.roll(face, 2), face])
    axes = picked(order[None], body.axes[:, None])
    return _Body(body.centre, axes, picked(order, body.sizes[None]))


def _face_places(body1: _Body, body2: _Body, fixed1: _Body, fixed2: _Body, normal: Array) -> tuple:
    """Four places of a face on the face that is nearly perpendicular to `normal`, of box 2 if both are.

    **Returns:** points of box 1 and box 2, normals, `(3, 4)`, and whether there are such places.
    """
    seen1, seen2 = dot(fixed1.axes, normal), dot(fixed2.axes, normal)
    is_on2 = jnp.max(jnp.abs(seen2)) > _ALIGNED
    is_aligned = is_on2 | (jnp.max(jnp.abs(seen1)) > _ALIGNED)
    level, inclined = _chosen(is_on2, body2, body1), _chosen(is_on2, body1, body2)
    seen = jnp.where(is_on2, seen2, -seen1)
    face = is_least(-jnp.abs(seen))
    level, side = _face_first(level, face), signs(picked(face, seen))
    normal = side * level.axes[:, 2]
    seen = stop_gradient(dot(inclined.axes, normal))
    face = is_least(-jnp.abs(seen))
    inclined, opposite = _face_first(inclined, face), -signs(picked(face, seen))
    middle = inclined.centre + opposite * inclined.sizes[2] * inclined.axes[:, 2]
    t, is_common = _common_corners(level, inclined, middle - level.centre)
    point = middle[:, None] + matvec(inclined.axes[:, :2, None], t)
    normal = jnp.broadcast_to(normal[:, None], point.shape)
    gap = dot(normal, point - level.centre[:, None]) - level.sizes[2]
    below = point - gap[None] * normal
    point1, point2 = jnp.where(is_on2, point, below), jnp.where(is_on2, below, point)
    return point1, point2, jnp.where(is_on2, normal, -normal), is_aligned & is_common


def _common_corners(level: _Body, inclined: _Body, apart: Float[Array, "3"]) -> tuple:
    """Corners of what two faces have in common, seen along the normal of the level one.

    All intersections of two of the eight lines that bound them are tried.

    **Returns:** coordinates of four corners in the inclined face, `(2, 4)`; whether there are any.
    """
    cosines = dot(level.axes[:, :2, None], inclined.axes[:, None, :2])
    offset = jnp.concatenate([jnp.zeros_like(apart[:2]), dot(level.axes[:, :2], apart)])
    slopes = jnp.concatenate([np.eye(2, dtype=apart.dtype), cosines]).T
    limits = jnp.concatenate([inclined.sizes[:2], level.sizes[:2]])
    (a, b), (c, d) = slopes[:, _LINE1], slopes[:, _LINE2]
    right1 = like(apart, _SIDE1) * limits[_LINE1] - offset[_LINE1]
    right2 = like(apart, _SIDE2) * limits[_LINE2] - offset[_LINE2]
    determinant = a * d - b * c
    usable = jnp.abs(determinant) > 8 * float(jnp.finfo(apart.dtype).eps) ** 0.5
    scale = 1 / jnp.where(usable, determinant, 1)
    t = jnp.stack([d * right1 - b * right2, a * right2 - c * right1]) * scale[None]
    values = stop_gradient(dot(slopes[:, :, None], t[:, None]) + offset[:, None])
    slack = rounding(jnp.sum(stop_gradient(limits)))
    is_common = usable & jnp.all(jnp.abs(values) <= stop_gradient(limits)[:, None] + slack, axis=0)
    towards = like(apart, np.stack([np.cos(_DIAGONALS), np.sin(_DIAGONALS)]))[:, :, None]
    reach = jnp.where(is_common, dot(towards, values[2:, None]), -jnp.inf)
    chosen = np.arange(24)[None] == jnp.argmax(reach, axis=1)[:, None]
    return picked(chosen, t[:, None]), jnp.any(is_common)
