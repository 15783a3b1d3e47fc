"""Lengths of tendons that wrap around spheres and cylinders."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._numerics import cross, dot, safe_norm
from .._types import Scalar
from ..groups import rotate
from ..systems import Multibody
from ._lengths import AbstractPath, placed_sites


class WrappedPath(AbstractPath):
    """Lengths of the segments of tendons that a sphere or a cylinder may be in the way of.

    A segment is straight if it misses the geom; else two tangents and the arc between them, on the shorter
    way around it, or on the way that is nearer to a side site. On a cylinder it is a helix.

    **Arguments:** `mechanism`: which places the bodies; `points`: of sites, frames of their bodies,
    `(i, 3)`; `body`: of every site, `None` for the world; `position (w, 3)`, `orientation (w, 4)`,
    `radius (w,)`, `holder`, `is_sphere`: of the geoms; `segments`: `(tendon, site a, site b, divisor, side
    site)`, −1 without one; `count`: of all tendons.

    Reference: E. Todorov, T. Erez, Y. Tassa, MuJoCo: a physics engine for model-based control (2012),
    doi:10.1109/IROS.2012.6386109, whose lengths these are.
    """

    mechanism: Multibody
    points: Float[Array, "i 3"]
    position: Float[Array, "w 3"]
    orientation: Float[Array, "w 4"]
    radius: Float[Array, " w"]
    body: tuple[int | None, ...] = eqx.field(static=True)
    holder: tuple[int | None, ...] = eqx.field(static=True)
    is_sphere: tuple[bool, ...] = eqx.field(static=True)
    segments: tuple[tuple[int, int, int, float, int], ...] = eqx.field(static=True)
    count: int = eqx.field(static=True)

    def __call__(self, t: Scalar, q: Array) -> Float[Array, " k"]:
        frames = self.mechanism.frames(q)
        sites = placed_sites(frames, self.points, self.body)
        centre = placed_sites(frames, self.position, self.holder)
        holder = np.array([0 if b is None else b for b in self.holder], np.int32)
        held = np.array([b is not None for b in self.holder])
        unit = np.eye(4)[:1].T.repeat(len(held), axis=1)
        turn = jnp.where(held[None], frames.orientation[holder].T, unit)
        back = np.array([[1.0], [-1], [-1], [-1]])

        def local(which):
            own = rotate(turn * back, sites[:, which] - centre)
            return rotate(self.orientation.T * back, own)

        tendon, a, b, side = np.array([(*s[:3], s[4]) for s in self.segments], np.int32).T
        divisor = np.array([s[3] for s in self.segments]).astype(q.dtype)
        ends = local(a), local(b), local(np.maximum(side, 0))
        sphere = np.array(self.is_sphere)
        round_ball = _around(*ends, _in_their_plane, side >= 0, self.radius)
        round_rod = _around(*ends, _across, side >= 0, self.radius)
        lengths = jnp.where(sphere, round_ball, round_rod) / divisor
        return jnp.zeros(self.count, q.dtype).at[tendon].add(lengths)


def _around(one, two, side, projected, sided, radius):
    """The length of the path between two points; `projected` places them in the plane of the circle."""
    near, far, turn, toward, rise = projected(one, two, side)
    wraps, length = _round_circle(near, far, turn, toward, sided, radius)
    return jnp.where(wraps, safe_norm(jnp.stack([length, rise])), safe_norm(one - two))


def _across(one, two, side):
    """A cylinder along z: distances from the axis, the angle from one to two, the side, and the rise."""
    first, second, third = one[:2], two[:2], side[:2]
    toward = _unit(jnp.stack([dot(first, third), first[0] * third[1] - first[1] * third[0]]))
    turn = _angle(first[0] * second[1] - first[1] * second[0], dot(first, second))
    return safe_norm(first), safe_norm(second), turn, toward, two[2] - one[2]


def _in_their_plane(one, two, side):
    """A sphere: the same in the plane of both points and its centre."""
    axis, normal = _unit(one), _unit(cross(one, two))
    toward = _unit(jnp.stack([dot(axis, side), dot(cross(normal, axis), side)]))
    turn = _angle(safe_norm(cross(one, two)), dot(one, two))
    return safe_norm(one), safe_norm(two), turn, toward, jnp.zeros_like(turn)


def _unit(x):
    length = safe_norm(x)
    return x / jnp.where(length > 0, length, 1)[None]


def _angle(sine, cosine):
    apart = (sine != 0) | (cosine != 0)
    return jnp.where(apart, jnp.arctan2(sine, jnp.where(apart, cosine, 1)), 0)


def _round_circle(
    one: Float[Array, " w"],
    two: Float[Array, " w"],
    turn: Float[Array, " w"],
    toward: Float[Array, "2 w"],
    sided: Bool[np.ndarray, " w"],
    radius: Float[Array, " w"],
) -> tuple[Bool[Array, " w"], Float[Array, " w"]]:
    """Whether a path wraps around a circle, and its length then.

    **Arguments:** `one`, `two`: distances of its ends from the centre, the first end on the axis x, and the
    angle `turn` from it to the second one; `toward`: the direction of the side site, where there is one.
    """
    apart = (one > radius) & (two > radius)
    one, two = (jnp.where(apart, x, 2 * radius) for x in (one, two))
    tangents = [jnp.sqrt((x - radius) * (x + radius)) for x in (one, two)]
    angles = [jnp.arctan2(t, radius) for t in tangents]
    # The point of the straight line that is nearest to the centre.
    start = jnp.stack([one, jnp.zeros_like(one)])
    line = two[None] * jnp.stack([jnp.cos(turn), jnp.sin(turn)]) - start
    square = dot(line, line)
    part = jnp.clip(-dot(line, start) / jnp.where(square > 0, square, 1), 0, 1)
    nearest = start + part[None] * line
    hit = (dot(nearest, nearest) <= radius**2) | (sided & (dot(nearest, toward) < 0))

    def way(sense):
        """How good the way with or against the clock is, whether its tangents cross, and its arc."""
        arc = jnp.mod(sense * turn, 2 * np.pi) - angles[0] - angles[1]
        crossed = (arc < 0) & (-arc <= 2 * jnp.minimum(*angles))
        leaves, arrives = sense * angles[0], turn - sense * angles[1]
        middle = jnp.stack([jnp.cos(leaves) + jnp.cos(arrives), jnp.sin(leaves) + jnp.sin(arrives)])
        merit = jnp.where(sided, dot(_unit(middle), toward), jnp.cos(leaves - arrives))
        return (
            jnp.where(crossed, -jnp.inf, merit),
            crossed,
            jnp.where(arc < 0, arc + 2 * np.pi, arc),
        )

    (good, *first), (other, *second) = way(-1), way(1)
    crossed, arc = (jnp.where(good > other, x, y) for x, y in zip(first, second, strict=True))
    return apart & hit & ~crossed & (square > 0), tangents[0] + tangents[1] + radius * arc
