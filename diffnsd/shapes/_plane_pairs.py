"""Shapes against a half space: fixed places of the shape and the points of the plane below them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import dot, matvec
from ._base import Closest, Frame
from ._primitives import Box, Capsule, Cylinder, Ellipsoid, HalfSpace, Sphere
from ._round_pairs import CORNERS, direction, like, signs, swept

_AROUND = 2 * np.pi / 3 * np.array([0, 0, 1, -1])


def _above(points: Float[Array, "3 s"], plane: Frame) -> Closest:
    """Points of a shape, relative to the centre of the plane's frame, over that plane."""
    normal = jnp.broadcast_to(plane.rotation[:, 2:], points.shape)
    below = points - dot(normal, points)[None] * normal
    return swept(plane.centre, points, below, normal)


def sphere_plane(shape1: Sphere, frame1: Frame, shape2: HalfSpace, frame2: Frame) -> Closest:
    """The lowest point of a ball."""
    down = frame1.centre - frame2.centre - shape1.radius * frame2.rotation[:, 2]
    return _above(down[:, None], frame2)


def capsule_plane(shape1: Capsule, frame1: Frame, shape2: HalfSpace, frame2: Frame) -> Closest:
    """The lowest points of the balls at the two ends, that with the smaller z of the capsule first."""
    centre = frame1.centre - frame2.centre - shape1.radius * frame2.rotation[:, 2]
    along = shape1.half_length * frame1.rotation[:, 2:] * like(frame1.centre, [[-1, 1]])
    return _above(centre[:, None] + along, frame2)


def box_plane(shape1: Box, frame1: Frame, shape2: HalfSpace, frame2: Frame) -> Closest:
    """The eight corners, in the order of `CORNERS`."""
    corners = matvec(
        frame1.rotation[..., None], like(frame1.centre, CORNERS) * shape1.half_sizes[:, None]
    )
    return _above((frame1.centre - frame2.centre)[:, None] + corners, frame2)


def ellipsoid_plane(shape1: Ellipsoid, frame1: Frame, shape2: HalfSpace, frame2: Frame) -> Closest:
    """The lowest point: for a plane with the normal n in the frame of the ellipsoid, `−r² n / |r n|`."""
    scaled = shape1.radii * dot(frame1.rotation, frame2.rotation[:, 2])
    lowest = -shape1.radii * scaled / jnp.sqrt(dot(scaled, scaled))
    point = frame1.centre - frame2.centre + matvec(frame1.rotation, lowest)
    return _above(point[:, None], frame2)


def cylinder_plane(shape1: Cylinder, frame1: Frame, shape2: HalfSpace, frame2: Frame) -> Closest:
    """Four points of the two rims.

    The lowest ones of the disc at `z = −half_length` and of that at `z = half_length`, in this order, on
    which a lying cylinder rests; then the two points of the lower disc a third of the circumference
    away, on which together with the lowest one a standing cylinder rests. The last two change discs when the
    axis passes through the horizontal, where they have equal gaps on both. Of an upright cylinder, where
    every point of the rim is the lowest, that on the x axis of its frame is taken.
    """
    tip = dot(frame1.rotation, frame2.rotation[:, 2])  # the plane's normal in the cylinder's frame
    # A tilt smaller than this is rounding, and so would be the direction of the lowest point.
    upright = dot(tip[:2], tip[:2]) < jnp.finfo(tip.dtype).eps ** (4 / 3)
    sideways = jnp.where(upright, 0, -tip[:2])
    lowest = direction(sideways, like(tip, [1, 0]))
    quarter = jnp.stack([-lowest[1], lowest[0]])
    cosines, sines = like(tip, np.cos(_AROUND)), like(tip, np.sin(_AROUND))
    rim = lowest[:, None] * cosines[None] + quarter[:, None] * sines[None]
    lower = jnp.broadcast_to(-signs(tip[2]), (2,))
    ends = jnp.concatenate([like(tip, [-1, 1]), lower])
    local = jnp.concatenate([shape1.radius * rim, (shape1.half_length * ends)[None]])
    centre = (frame1.centre - frame2.centre)[:, None]
    return _above(centre + matvec(frame1.rotation[..., None], local), frame2)
