"""Pairs with a ball or a capsule: closest features of a point or a segment, thickened by a radius.

Points are columns `(3, s)` here, in a frame of the second shape or relative to its centre. A feature of a
box is a vector of signs: on which face it lies along each axis, or 0 where it extends along that axis.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .._numerics import cross, dot, is_least, least, matvec, safe_norm, short_sum
from ._base import Closest, Frame
from ._primitives import Box, Capsule, Cylinder, Sphere

CORNERS = np.array(list(itertools.product([-1.0, 1.0], repeat=3))).T
"""Signs of the corners of a box in the order of its slots, `(3, 8)`: z changes first."""
NEARLY_PARALLEL = 0.05
"""Sine of the angle up to which shapes that touch along lines or faces have several different places."""
_ENDS = np.array([-1.0, 1.0])


def like(x: Array, constants) -> Any:
    """Constants in the precision of `x`."""
    return np.asarray(constants, x.dtype)


def swept(
    centre, points1, points2, normals, radius1: Array | float = 0.0, radius2: Array | float = 0.0
) -> Closest:
    """Places from columns relative to `centre`; the points move by the radii towards the other shape."""
    points1, points2 = points1 - radius1 * normals, points2 + radius2 * normals
    return Closest(centre[None] + points1.T, centre[None] + points2.T, normals.T)


def direction(
    x: Float[Array, "k ..."], fallback, size: Array | float = 0.0
) -> Float[Array, "k ..."]:
    """Unit vectors along the columns of `x`; constant ones, `fallback`, where it vanishes.

    `size`: of the numbers whose difference `x` is, where its direction must not be that of rounding errors.
    """
    square, known = dot(x, x), jnp.finfo(x.dtype)
    # So that derivatives are finite too.
    usable = square > jnp.maximum(float(known.tiny) ** 0.5, (8 * float(known.eps) * size) ** 2)
    length = jnp.sqrt(jnp.where(usable, square, 1))
    return jnp.where(usable[None], x / length[None], fallback)


def clamped(t: Float[Array, "..."], limit: Float[Array, ""]) -> Float[Array, "..."]:
    """`t` within `±limit`, with the derivative of one of the two also where they are equal."""
    return jnp.where(t > limit, limit, jnp.where(t < -limit, -limit, t))


def signs(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 or −1, also of zero."""
    return jnp.where(x < 0, -jnp.ones_like(x), jnp.ones_like(x))


def picked(mask: Bool[Array, " c"], x: Float[Array, "... c"]) -> Float[Array, "..."]:
    """The entries along the last axis where the mask is set, of which there is one."""
    return short_sum(jnp.where(mask, x, 0), -1)


def rounding(size: Float[Array, ""]) -> Float[Array, ""]:
    """Differences of lengths that decide nothing, for shapes of this size."""
    return 0.1 * float(jnp.finfo(size.dtype).eps) ** 0.5 * size


def replaced(
    closest: Sequence, places: Sequence, size: Float[Array, ""], known=True
) -> Bool[Array, " s"]:
    """Which of several places on a face make room for the closest one, each as points and normals `(3, s)`.

    None where one of them is the closest. Otherwise the nearest of them, also if it is repeated; and in
    penetration those that lie deeper, along a normal that differs a little. A closest place that is not
    `known` to be on both shapes is no better than others of the same gap.
    """
    gap, gaps = (dot(normal, one - two) for one, two, normal in (closest, places))
    tolerance = rounding(size)
    deeper = (gap < 0) & (gaps < gap - tolerance)
    turned = jnp.max(jnp.abs(closest[2] - places[2])) > rounding(jnp.ones_like(size))
    differs = (gap < least(gaps) - tolerance) | jnp.any(deeper)
    differs |= known & turned & (gap < least(gaps) + tolerance)
    apart = safe_norm(places[0] - closest[0])
    return differs & ((apart < least(apart) + tolerance) | deeper)


def crosses(square: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Whether two lines have a common normal, of this squared length, known better than `rounding`."""
    return square > float(jnp.finfo(square.dtype).eps) ** (2 / 3)


def feature(y: Float[Array, " k"], sizes: Float[Array, " k"]) -> Float[Array, " k"]:
    """The feature of a box that is nearest to a point: from inside the nearest face."""
    outside = jnp.abs(y) > sizes
    nearest = is_least(sizes - jnp.abs(y))
    return stop_gradient(jnp.where(jnp.where(jnp.any(outside), outside, nearest), signs(y), 0))


def on_feature(
    y: Float[Array, "k ..."], sizes: Float[Array, "k ..."], on: Float[Array, "k ..."]
) -> tuple:
    """The points of features nearest to `y`, and the normals there: towards `y`, or out of a face."""
    fixed = on != 0
    point = jnp.where(fixed, on * sizes, y)
    faces = jnp.sum(fixed, axis=0, keepdims=True)
    away = jnp.where(faces == 1, 0, y - point)
    return point, direction(away, on / jnp.sqrt(jnp.maximum(faces, 1)).astype(on.dtype))


def sphere_sphere(shape1: Sphere, frame1: Frame, shape2: Sphere, frame2: Frame) -> Closest:
    """On the line of centres; along the world's z axis where these coincide."""
    apart = frame1.centre - frame2.centre
    normal = direction(apart, like(apart, [0, 0, 1]))[:, None]
    origin = jnp.zeros_like(normal)
    return swept(frame2.centre, apart[:, None], origin, normal, shape1.radius, shape2.radius)


def sphere_capsule(shape1: Sphere, frame1: Frame, shape2: Capsule, frame2: Frame) -> Closest:
    """At the nearest point of the axis; along the capsule's x axis from a centre on its axis."""
    apart, axis = frame1.centre - frame2.centre, frame2.rotation[:, 2]
    on_axis = clamped(dot(axis, apart), shape2.half_length) * axis
    size = stop_gradient(shape1.radius + shape2.radius + shape2.half_length)
    normal = direction(apart - on_axis, frame2.rotation[:, 0], size)[:, None]
    return swept(
        frame2.centre, apart[:, None], on_axis[:, None], normal, shape1.radius, shape2.radius
    )


def _sphere_at(shape1: Sphere, y: Array, point: Array, normal: Array, frame2: Frame) -> Closest:
    y, point, normal = (matvec(frame2.rotation, x)[:, None] for x in (y, point, normal))
    return swept(frame2.centre, y, point, normal, shape1.radius)


def sphere_box(shape1: Sphere, frame1: Frame, shape2: Box, frame2: Frame) -> Closest:
    """At the nearest point of the box; from inside it through the nearest face."""
    y = dot(frame2.rotation, frame1.centre - frame2.centre)
    point, normal = on_feature(y, shape2.half_sizes, feature(y, shape2.half_sizes))
    return _sphere_at(shape1, y, point, normal, frame2)


def sphere_cylinder(shape1: Sphere, frame1: Frame, shape2: Cylinder, frame2: Frame) -> Closest:
    """At the nearest point; from inside through the side or the nearer disc.

    In the plane of the axis and the centre the cylinder is a rectangle. On the axis this is the xz plane.
    """
    y = dot(frame2.rotation, frame1.centre - frame2.centre)
    radial = direction(y[:2], like(y, [1, 0]))
    plane = jnp.stack([safe_norm(y[:2]), y[2]])
    sizes = jnp.stack([shape2.radius, shape2.half_length])
    on = feature(plane, sizes)
    across, normal = on_feature(plane, sizes, on)
    sideways = jnp.where(on[0] != 0, shape2.radius * radial, y[:2])
    point = jnp.concatenate([sideways, across[1:]])
    return _sphere_at(shape1, y, point, jnp.concatenate([normal[0] * radial, normal[1:]]), frame2)


def capsule_capsule(shape1: Capsule, frame1: Frame, shape2: Capsule, frame2: Frame) -> Closest:
    """Closest points of the two axes; ends of their common interval where they are nearly parallel.

    The second kind has two places, ordered along the axis of capsule 1. If the closest points are not one
    of these, they replace the nearer place.
    """
    axis1, axis2 = frame1.rotation[:, 2], frame2.rotation[:, 2]
    apart = frame1.centre - frame2.centre
    t1, t2, common = _axis_points(apart, axis1, axis2, shape1.half_length, shape2.half_length)
    between = apart[:, None] + t1[None] * axis1[:, None] - t2[None] * axis2[:, None]
    size = shape1.half_length + shape2.half_length
    slots = _capsule_slots(
        *stop_gradient((between, t1, t2, cross(axis1, axis2))),
        common,
        *stop_gradient((shape1.half_length, shape2.half_length, size)),
    )
    t1, t2 = picked(slots, t1[None]), picked(slots, t2[None])
    point1 = apart[:, None] + t1[None] * axis1[:, None]
    point2 = t2[None] * axis2[:, None]
    normal = _between_axes(
        point1 - point2, axis1, axis2, frame2.rotation[:, 0], slots[:, 4], stop_gradient(size)
    )
    return swept(frame2.centre, point1, point2, normal, shape1.radius, shape2.radius)


def _axis_points(apart, axis1, axis2, half1, half2) -> tuple:
    """Parameters of five pairs of points: for the ends of axis 1, of axis 2, and inside both axes.

    Also which of the first four begins and ends the common interval along axis 1, `(2, 4)`, none where
    there is no such interval.
    """
    cosine, along1, along2 = dot(axis1, axis2), dot(axis1, apart), dot(axis2, apart)
    normal = cross(axis1, axis2)
    square = dot(normal, normal)
    usable = square > float(jnp.finfo(apart.dtype).eps)
    inside1 = (cosine * along2 - along1) / jnp.where(usable, square, 1)
    ends1, ends2 = half1 * like(apart, _ENDS), half2 * like(apart, _ENDS)
    over1 = ends2 * cosine - along1  # where the ends of axis 2 are along axis 1
    t1 = jnp.concatenate([ends1, clamped(over1, half1), inside1[None]])
    t2 = jnp.concatenate(
        [clamped(along2 + ends1 * cosine, half2), ends2, (along2 + cosine * inside1)[None]]
    )
    places = jnp.concatenate([ends1, over1])
    # Which ends come first along axis 1.
    first = jnp.stack([jnp.array(True), jnp.array(False), cosine >= 0, cosine < 0])
    low, high = jnp.where(first, places, -jnp.inf), jnp.where(first, jnp.inf, places)
    common = jnp.stack([is_least(-low), is_least(high)])
    return t1, t2, common & (-least(-low) < least(high))


def _capsule_slots(between, t1, t2, normal, common, half1, half2, size) -> Bool[Array, "2 5"]:
    """Which of the five pairs are in the two slots."""
    distance = safe_norm(between)
    crossing = (jnp.abs(t1[4]) <= half1) & (jnp.abs(t2[4]) <= half2)
    crossing &= dot(normal, normal) > float(jnp.finfo(t1.dtype).eps)
    is_end = np.arange(5) < 4
    # The pair inside both axes is taken only if it is nearer, because of parallel axes.
    score = distance + jnp.where(is_end, 0, jnp.where(crossing, rounding(size), jnp.inf))
    closest = is_least(score)
    common = jnp.concatenate([common, jnp.zeros((2, 1), bool)], axis=1)
    both = jnp.any(common) & (dot(normal, normal) < NEARLY_PARALLEL**2)
    gap = picked(common, distance[None])
    nearer = is_least(jnp.abs(picked(common, t1[None]) - picked(closest, t1)))
    better = picked(closest, distance) < least(gap) - rounding(size)
    repeated = ~both | (better & nearer)
    return jnp.where(repeated[:, None], closest[None], common)


def _between_axes(between, axis1, axis2, beside, inside, size) -> Float[Array, "3 s"]:
    """Unit normals: perpendicular to both axes for points inside both, else from point to point."""
    normal = cross(axis1, axis2)
    usable = dot(normal, normal) > float(jnp.finfo(normal.dtype).eps)
    normal = jnp.where(usable, direction(jnp.where(usable, normal, 0), beside), beside)[:, None]
    towards = stop_gradient(signs(dot(jnp.broadcast_to(normal, between.shape), between)))
    apart = direction(jnp.where(inside[None], 0, between), normal, size)
    return jnp.where(inside[None], towards[None] * normal, apart)


def capsule_box(shape1: Capsule, frame1: Frame, shape2: Box, frame2: Frame) -> Closest:
    """Closest points of axis and box; where the axis lies along a face or an edge, two places.

    These are the ends of the part of the axis over the face or beside the edge, in the order of the axis. If
    the closest points are not one of them, they replace the nearer place. An axis that crosses the box leaves
    it on the shortest way: through a face or perpendicular to an edge and the axis.
    """
    centre = dot(frame2.rotation, frame1.centre - frame2.centre)
    axis = dot(frame2.rotation, frame1.rotation[:, 2])
    sizes, half = shape2.half_sizes, shape1.half_length
    on, end, face = _axis_feature(*stop_gradient((centre, axis, sizes, half)))
    t, point2, normal = _axis_place(centre, axis, sizes, half, on, end)
    ends, features, has_two = _axis_ends(centre, axis, sizes, half, face)
    point1 = centre[:, None] + jnp.stack([t, *ends])[None] * axis[:, None]
    places = (
        (point1[:, :1], point2[:, None], normal[:, None]),
        (point1[:, 1:], *on_feature(point1[:, 1:], sizes[:, None], features)),
    )
    repeated = replaced(*stop_gradient((*places, half + jnp.sum(sizes)))) | ~has_two
    chosen = (jnp.where(repeated[None], x, y) for x, y in zip(*places, strict=True))
    point1, point2, normal = (matvec(frame2.rotation[..., None], x) for x in chosen)
    return swept(frame2.centre, point1, point2, normal, shape1.radius)


def _axis_edges(centre, axis, sizes, half) -> tuple:
    """A segment and the edges of a box along each of its axes, those that may be closest.

    **Returns:** separations perpendicular to segment and edge, −∞ where they are parallel, `(3,)`; normals
    and features as columns, `(3, 3)`; whether the closest points are inside both segment and edge.
    """
    eye = jnp.eye(3, dtype=axis.dtype)
    across = cross(eye, jnp.broadcast_to(axis[:, None], (3, 3)))
    square = dot(across, across)
    usable = crosses(square)
    length = jnp.sqrt(jnp.where(usable, square, 1))
    offset = dot(across, centre[:, None])
    normal = across * (signs(offset) / length)[None]
    reach = dot(jnp.abs(normal), sizes[:, None])
    separation = jnp.where(usable, jnp.abs(offset) / length - reach, -jnp.inf)
    on = signs(normal) * (1 - eye)
    to_edge = on * sizes[:, None] - centre[:, None] * (1 - eye)
    t = dot(jnp.broadcast_to(axis[:, None], (3, 3)), to_edge) / jnp.where(usable, square, 1)
    meet = usable & (jnp.abs(t) <= half) & (jnp.abs(centre + t * axis) <= sizes)
    return separation, normal, on, meet


def _axis_feature(centre, axis, sizes, half) -> tuple:
    """What of the axis of a capsule and of a box is closest.

    **Returns:** the feature of the box; the end of the axis, −1 or 1, or 0 for a point inside it; and the
    face along which the axis lies, zeros if there is none.
    """
    size = half + jnp.sum(sizes)
    faces = jnp.abs(centre) - sizes - half * jnp.abs(axis)
    edges, normals, on_edges, meet = _axis_edges(centre, axis, sizes, half)
    tips = centre[:, None] + half * axis[:, None] * like(axis, _ENDS)[None]
    over = jnp.abs(tips) - sizes[:, None]
    outside = over > 0
    from_tips = jnp.where(jnp.any(outside, axis=0), safe_norm(jnp.where(outside, over, 0)), jnp.inf)
    corners = like(axis, CORNERS)
    to_corners = corners * sizes[:, None] - centre[:, None]
    t = dot(axis[:, None], to_corners)
    from_corners = safe_norm(to_corners - t[None] * axis[:, None])
    from_corners = jnp.where(jnp.abs(t) < half, from_corners, jnp.inf)
    from_edges = jnp.where(meet, edges, jnp.inf)
    never = jnp.full(3, jnp.inf, axis.dtype)
    apart = jnp.concatenate([from_tips, from_corners, from_edges, never])
    crossing = jnp.concatenate([jnp.full(10, jnp.inf, axis.dtype), rounding(size) - edges, -faces])
    separation = jnp.maximum(jnp.max(faces), jnp.max(edges))
    is_apart = (separation > 16 * float(jnp.finfo(axis.dtype).eps) * size) & jnp.any(
        apart < jnp.inf
    )
    chosen = is_least(jnp.where(is_apart, apart, crossing))
    eye = np.eye(3, dtype=axis.dtype)
    on = jnp.concatenate(
        [jnp.where(outside, signs(tips), 0), corners, on_edges, eye * signs(centre)[None]], axis=1
    )
    inner = jnp.zeros(11, axis.dtype)
    end = jnp.concatenate([like(axis, _ENDS), inner, -signs(centre * axis)])
    face = jnp.where(is_least(-faces), signs(centre), 0)
    is_edge = jnp.max(edges) > jnp.max(faces) + rounding(size)
    normal = jnp.where(is_edge, picked(is_least(-edges), normals), face)
    aligned = is_least(-jnp.abs(normal)) & (jnp.abs(normal) > (1 - NEARLY_PARALLEL**2) ** 0.5)
    aligned &= jnp.abs(axis) < NEARLY_PARALLEL
    return picked(chosen, on), picked(chosen, end), jnp.where(aligned, signs(normal), 0)


def _axis_place(centre, axis, sizes, half, on, end) -> tuple:
    """Where on the axis a feature is closest, the point of the feature, and the normal there."""
    fixed, at_end = on != 0, end != 0
    square = jnp.sum(jnp.where(fixed, axis**2, 0))
    along = jnp.sum(jnp.where(fixed, axis * (on * sizes - centre), 0))
    t = jnp.where(at_end, end * half, along / jnp.where(at_end | (square == 0), 1, square))
    point, normal = on_feature(centre + t * axis, sizes, on)
    # Perpendicular to an edge and the axis, even where these intersect.
    is_edge = ~at_end & (jnp.sum(fixed) == 2)
    across = cross(jnp.where(fixed, 0, jnp.ones_like(on)), axis)
    across = direction(jnp.where(is_edge, across, 0), normal)
    return t, point, jnp.where(is_edge, stop_gradient(signs(jnp.sum(across * on))) * across, normal)


def _axis_ends(centre, axis, sizes, half, face) -> tuple:
    """The two places of an axis along a face or an edge.

    **Returns:** where on the axis they are, `(2,)`; the features of the box below them, `(3, 2)`; and
    whether there are two.
    """
    over, is_over = _over_face(centre, axis, sizes, half, face)
    along = is_least(-jnp.abs(axis))
    across = (~along).astype(axis.dtype)
    beside, is_beside = _over_face(centre, axis, sizes, half, across)
    points = centre[:, None] + beside[None] * axis[:, None]
    touching = 16 * float(jnp.finfo(axis.dtype).eps) * (half + jnp.sum(sizes))
    outside = (jnp.abs(points) > sizes[:, None] + touching) & ~along[:, None]
    is_beside &= jnp.all(jnp.any(outside, axis=0))
    is_beside &= jnp.max(jnp.abs(axis)) > (1 - NEARLY_PARALLEL**2) ** 0.5
    features = jnp.where(is_over, face[:, None], jnp.where(outside, signs(points), 0))
    return jnp.where(is_over, over, beside), stop_gradient(features), is_over | is_beside


def _over_face(centre, axis, sizes, half, face) -> tuple:
    """The ends of the part of the axis that is over a face, or beside an edge, `(2,)`; whether there is one.

    **Arguments:** `face`: zero along the axes of the box in which the feature extends.
    """
    is_face = face != 0
    slanted = (jnp.abs(axis) > float(jnp.finfo(axis.dtype).eps) ** 0.5) & ~is_face
    slope, towards = jnp.where(slanted, axis, 1), stop_gradient(signs(axis))
    low = jnp.where(slanted, (-towards * sizes - centre) / slope, -half)
    high = jnp.where(slanted, (towards * sizes - centre) / slope, half)
    low, high = picked(is_least(-low), low), picked(is_least(high), high)
    is_over = jnp.all(slanted | is_face | (jnp.abs(centre) <= sizes)) & (low <= high)
    return jnp.stack([low, high]), is_over & jnp.any(is_face)
