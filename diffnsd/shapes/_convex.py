"""The places where two convex shapes of any kind touch."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractShape, Closest, Frame
from ._cores import Core, core_of
from ._features import (
    CROSSED,
    EDGE1,
    EDGE2,
    FACE1,
    FACE2,
    choose,
    crossed,
    edge_ends,
    newton_step,
    parallel,
)
from ._flat_contact import flat_places, line_places
from ._separation import search

SLOTS = 4
"""Places of two shapes that both have flat faces; two if only one has some and the other lines."""
LINES = 1e-4
"""Largest sine of an angle between lines that touch along their length."""


def convex_pair(
    shape1: AbstractShape, frame1: Frame, shape2: AbstractShape, frame2: Frame
) -> Closest:
    """The places where two convex shapes touch or would touch first.

    The gap is their distance, and in penetration minus the smallest translation that separates them. The
    features that touch are searched without derivatives (`search`, `choose`). The direction at them is
    differentiated by the implicit function theorem, and a point moves with the feature it lies on.
    """
    core1, core2 = core_of(shape1, frame1), core_of(shape2, frame2)
    n, kind, features = choose(core1, core2, search(core1, core2))
    n = _direction(core1, core2, n, kind, features)
    gap, one1, one2 = _nearest(core1, core2, n, kind, features)
    if core1.strict or core2.strict:
        return Closest(one1[None], one2[None], n[None])
    slots = SLOTS if len(core1.normals) and len(core2.normals) else 2
    # Of a kind of contact that is not there, places exist too, but are not used.
    on_first = kind == FACE1
    reached = jnp.where(on_first, one2, one1)
    ends1, ends2 = edge_ends(core1, features[2]), edge_ends(core2, features[3])
    face1, face2, level = flat_places(core1, core2, n, reached, on_first, (ends1, ends2), slots)
    lines = parallel(ends1[1] - ends1[0], ends2[1] - ends2[0], LINES)
    lines &= (kind == EDGE1) | (kind == EDGE2) | (kind == CROSSED)
    ends1, ends2 = ends1 - core1.offset(n)[None], ends2 + core2.offset(n)[None]
    line1, line2, common = line_places(ends1, ends2, n, gap, slots)
    flat, lines = (kind >= FACE1) & level, lines & common
    point1 = jnp.where(flat, face1, jnp.where(lines, line1, one1[None]))
    point2 = jnp.where(flat, face2, jnp.where(lines, line2, one2[None]))
    return Closest(point1, point2, jnp.broadcast_to(n, point1.shape))


def _between(core1: Core, core2: Core, kind: Array, features: tuple) -> tuple[Array, Array]:
    """Points of the two polytopes of which the features that touch are made."""
    vertex1, vertex2, edge1, edge2, *_ = features
    on_edge1, on_edge2 = (kind == EDGE1) | (kind == CROSSED), (kind == EDGE2) | (kind == CROSSED)
    base1 = jnp.where(on_edge1, edge_ends(core1, edge1)[0], core1.vertices[vertex1])
    base2 = jnp.where(on_edge2, edge_ends(core2, edge2)[0], core2.vertices[vertex2])
    return base1, base2


def _arms(core1: Core, core2: Core, features: tuple) -> tuple[Array, Array]:
    ends1, ends2 = edge_ends(core1, features[2]), edge_ends(core2, features[3])
    return ends1[1] - ends1[0], ends2[1] - ends2[0]


def _direction(
    core1: Core, core2: Core, n: Array, kind: Array, features: tuple
) -> Float[Array, "3"]:
    """The direction with its derivative."""
    base1, base2 = _between(core1, core2, kind, features)
    arm1, arm2 = _arms(core1, core2, features)
    edge = jnp.where(kind == EDGE1, arm1, arm2)
    on_edge = (kind == EDGE1) | (kind == EDGE2)
    moved = newton_step(core1, core2, n, base1 - base2, edge, on_edge)
    moved = jnp.where(kind == CROSSED, crossed(arm1, arm2, n), moved)
    if len(core1.normals):
        moved = jnp.where(kind == FACE1, -core1.normals[features[4]], moved)
    if len(core2.normals):
        moved = jnp.where(kind == FACE2, core2.normals[features[5]], moved)
    return n + moved - jax.lax.stop_gradient(moved)


def _nearest(core1: Core, core2: Core, n: Array, kind: Array, features: tuple) -> tuple:
    """The gap, and one point of each shape that has it."""
    base1, base2 = _between(core1, core2, kind, features)
    gap = jnp.dot(n, base1 - base2) - core1.spread(n) - core2.spread(n)
    point1 = base1 - _offset(core1, n, kind >= FACE1)
    point2 = base2 + _offset(core2, n, kind >= FACE1)
    arm1, arm2 = _arms(core1, core2, features)
    across = jnp.cross(arm2, n)
    slope = jnp.dot(arm1, across)
    skew = (kind == CROSSED) & (slope != 0)
    along = jnp.where(skew, jnp.dot(point2 - point1, across) / jnp.where(skew, slope, 1), 0)
    point1 = point1 + along * arm1
    follows = (kind == EDGE1) | (kind == FACE1)
    point1 = jnp.where(follows, point2 + gap * n, point1)
    return gap, point1, point1 - gap * n


def _offset(core: Core, n: Array, on_face: Array) -> Float[Array, "3"]:
    """`core.offset(n)`; on a face that is almost flat against a disc, a point that is fixed on the rim."""
    if core.axes is None:
        return jnp.zeros_like(n)
    is_fixed = on_face & (core.spread(n) < 1e-3 * core.scale)
    return core.offset(jnp.where(is_fixed, jax.lax.stop_gradient(n), n))
