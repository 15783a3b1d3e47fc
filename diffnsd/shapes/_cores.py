"""Convex shapes in one form: the sum of a polytope and an ellipsoid."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import safe_norm
from ._base import AbstractShape, Frame
from ._hull import ConvexHull
from ._primitives import Box, Capsule, Cylinder, Ellipsoid, Sphere

RIM = 8
"""Corners of the polygon that stands for an end of a cylinder where it lies flat on something."""
_BOX_CORNERS = 2 * np.array(np.unravel_index(np.arange(8), (2, 2, 2))).T - 1
_BOX_EDGES = tuple((i, i + step) for step in (1, 2, 4) for i in range(8) if not i & step)
_BOX_FACES = np.array(
    [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
)
_BOX_NORMALS = np.array([(-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1)])


class Core(eqx.Module):
    """The points `v + a`, `v` in the hull of `vertices`, `a` in the ellipsoid of half `axes`, world frame.

    A sphere is one vertex and a ball, a capsule two and a ball, a cylinder two and a disc.

    **Arguments:** `vertices` [m], `(m, 3)`; `axes`: half axes [m] as columns, `(3, k)`, `None` of a polytope;
    `normals`: outward unit normals of the flat faces, `(f, 3)`; `faces`: their corners counterclockwise [m],
    `(f, c, 3)`, the last one repeated; `edges`: pairs of vertices.
    """

    vertices: Float[Array, "m 3"]
    axes: Float[Array, "3 k"] | None
    normals: Float[Array, "f 3"]
    faces: Float[Array, "f c 3"]
    edges: tuple[tuple[int, int], ...] = eqx.field(static=True)

    @property
    def scale(self) -> Array:
        """The order of magnitude of the size [m]."""
        size = jnp.max(jnp.abs(self.vertices - self.vertices[:1]))
        return size if self.axes is None else size + jnp.max(jnp.abs(self.axes))

    @property
    def strict(self) -> bool:
        """Whether the surface has no straight lines."""
        return not self.edges

    def spread(self, n: Float[Array, "... 3"]) -> Float[Array, "..."]:
        """Largest `n · a` of the ellipsoid."""
        if self.axes is None:
            return jnp.zeros(n.shape[:-1], n.dtype)
        along = n @ self.axes
        square = jnp.sum(along * along, axis=-1)
        positive = square > _tiny(self.axes)
        return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)

    def offset(self, n: Float[Array, "3"]) -> Float[Array, "3"]:
        """The point of the ellipsoid with the largest `n · a`; its centre where all of a disc has it."""
        if self.axes is None:
            return jnp.zeros_like(n)
        return _arm(self.axes, n) @ self.axes.T

    def curvature(self, n: Float[Array, "3"]) -> Float[Array, "3 3"]:
        """Derivative of `offset` by `n`."""
        if self.axes is None:
            return jnp.zeros((3, 3), n.dtype)
        arm, spread = _arm(self.axes, n), self.spread(n)
        flat = jnp.eye(arm.size, dtype=n.dtype) - arm[:, None] * arm[None]
        inverse = jnp.where(spread > 0, 1 / jnp.where(spread > 0, spread, 1), 0)
        return self.axes @ flat @ self.axes.T * inverse


def _arm(axes: Float[Array, "3 k"], n: Float[Array, "3"]) -> Float[Array, " k"]:
    """`offset` in units of the half axes."""
    along = n @ axes
    square = jnp.sum(along * along)
    positive = square > _tiny(axes)
    return jnp.where(positive, along / jnp.sqrt(jnp.where(positive, square, 1)), 0)


def _tiny(axes: Array) -> Array:
    return (100 * jnp.finfo(axes.dtype).eps) ** 2 * jnp.sum(axes * axes)


def _no_faces(like: Array) -> tuple[Array, Array]:
    return jnp.zeros((0, 3), like.dtype), jnp.zeros((0, 1, 3), like.dtype)


def _sphere(shape: Sphere, frame: Frame) -> Core:
    axes = shape.radius * jnp.eye(3, dtype=frame.centre.dtype)
    return Core(frame.centre[None], axes, *_no_faces(axes), ())


def _ellipsoid(shape: Ellipsoid, frame: Frame) -> Core:
    axes = frame.rotation * shape.radii[None]
    return Core(frame.centre[None], axes, *_no_faces(axes), ())


def _ends(shape: Capsule | Cylinder, frame: Frame) -> Array:
    arm = shape.half_length * frame.rotation[:, 2]
    return jnp.stack([frame.centre - arm, frame.centre + arm])


def _capsule(shape: Capsule, frame: Frame) -> Core:
    axes = shape.radius * jnp.eye(3, dtype=frame.centre.dtype)
    return Core(_ends(shape, frame), axes, *_no_faces(axes), ((0, 1),))


def _cylinder(shape: Cylinder, frame: Frame) -> Core:
    ends, axes = _ends(shape, frame), shape.radius * frame.rotation[:, :2]
    normals = jnp.stack([-frame.rotation[:, 2], frame.rotation[:, 2]])
    angles = 2 * np.pi * np.arange(RIM) / RIM
    turns = np.array([-1, 1])[:, None] * angles
    around = jnp.asarray(np.stack([np.cos(turns), np.sin(turns)], axis=-1), axes.dtype)
    return Core(ends, axes, normals, ends[:, None] + around @ axes.T, ((0, 1),))


def _box(shape: Box, frame: Frame) -> Core:
    vertices = frame.to_world(
        shape.half_sizes[None] * jnp.asarray(_BOX_CORNERS, shape.half_sizes.dtype)
    )
    normals = jnp.asarray(_BOX_NORMALS, vertices.dtype) @ frame.rotation.T
    return Core(vertices, None, normals, vertices[_BOX_FACES], _BOX_EDGES)


def _hull(shape: ConvexHull, frame: Frame) -> Core:
    vertices = frame.to_world(shape.vertices)
    longest = max(map(len, shape.faces))
    faces = np.array([face + face[-1:] * (longest - len(face)) for face in shape.faces])
    polygons = vertices[faces]
    arms = polygons - polygons[:, :1]
    areas = jnp.sum(jnp.cross(arms[:, :-1], arms[:, 1:]), axis=1)
    normals = areas / safe_norm(areas.T)[:, None]
    return Core(vertices, None, normals, polygons, shape.edges)


_CORES = {
    Sphere: _sphere,
    Capsule: _capsule,
    Cylinder: _cylinder,
    Ellipsoid: _ellipsoid,
    Box: _box,
    ConvexHull: _hull,
}


def core_of(shape: AbstractShape, frame: Frame) -> Core:
    """A shape as the sum of a polytope and an ellipsoid in the world frame."""
    return _CORES[type(shape)](shape, frame)
