"""Elements that bend: hinges between triangles, beams in the plane, rods in space."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._numerics import as_float, cross, dot, safe_norm
from ..._types import Scalar
from ._base import NO_LENGTH, AbstractElements, connectivity, negative


class Hinges(AbstractElements):
    """Bending of a membrane at the edges between its triangles: `E = k/2 |e|²/A (θ − θ0)²`.

    `e` is the edge, `A` the area of the two triangles at rest, `θ` the angle between their normals. For
    a plate `k` is its flexural rigidity `E t³/(12 (1 − ν²))`: exact for a roll along the rows of squares and
    for equilateral triangles; on other meshes the pattern of the mesh changes it.

    **Arguments:** `nodes`: `(e, 4)`, the ends of the edge, then the two opposite corners, as
    `mesh.hinges()` lists them; `stiffness`: k [N m], `()` or `(e,)`.

    Reference: E. Grinspun et al., Discrete shells (2003), doi:10.2312/SCA03/062-067, with the factor of
    H. S. Seung, D. R. Nelson (1988), doi:10.1103/PhysRevA.38.1005.
    """

    dimensions: ClassVar[tuple[int, ...]] = (3,)
    nodes: Int[Array, "e 4"]
    stiffness: Float[Array, "..."]

    def __init__(self, nodes, stiffness):
        self.nodes = connectivity("Hinges", nodes, (4,))
        self.stiffness = as_float(stiffness)

    def width(self, dimension: int) -> int:
        return dimension

    def gradient(self, X: Array) -> Array:
        return jnp.asarray([[-1.0, -1, -1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], X.dtype)

    def measure(self, X: Array) -> Scalar:
        edge, one, other = (X[:, i] - X[:, 0] for i in (1, 2, 3))
        area = (safe_norm(cross(edge, one)) + safe_norm(cross(other, edge))) / 2
        return dot(edge, edge) / area

    def density_of_energy(self, X: Array, F: Array) -> Scalar:
        rest = _dihedral(X[:, 1:] - X[:, :1])
        return self.stiffness / 2 * (_dihedral(F) - rest) ** 2

    def flaws(self, X):
        edge, one, other = (X[:, i] - X[:, 0] for i in (1, 2, 3))
        flat = np.zeros(len(X), bool)
        for side in (one, other):
            area, scale = np.cross(edge, side), np.sum(edge**2 + side**2, axis=1)
            flat |= np.sqrt(np.sum(area**2, axis=1)) <= 1e-10 * scale
        return "lie at a triangle without area at rest; remove it, or move its nodes", flat

    def check(self) -> str | None:
        return negative("Hinges", stiffness=self.stiffness)


def _dihedral(edges: Array) -> Scalar:
    edge, one, other = jnp.unstack(edges, axis=1)
    first, second = cross(edge, one), cross(other, edge)
    return jnp.arctan2(dot(cross(first, second), edge) / safe_norm(edge), dot(first, second))


class PlanarBeams(AbstractElements):
    """Slender beams in the plane, corotational: small strains, large displacements and rotations.

        E = EA/(2 L) (l − L)² + 2 EI/L (α² + α β + β²)

    `α`, `β` are the angles of the two nodes relative to the chord. Nodes have the coordinates `(x, y, φ)`;
    `φ` is zero at rest. Forces at the nodes of a slender (Euler–Bernoulli) beam are exact for small
    motions. Mass and rotary inertia are interpolated linearly, so that frequencies are of second order.

    **Arguments:** `nodes`: `(e, 2)`; `axial`: EA [N]; `bending`: EI [N m²]; `line_density`: ρA [kg/m];
    `rotary`: ρI [kg m]; each `()` or `(e,)`. A `rotary` of zero, the default, is for
    `equilibrium`: it leaves angles without mass, which a simulation refuses. That of a rectangular section
    is `line_density * height**2 / 12`.

    Reference: M. A. Crisfield, Non-linear finite element analysis of solids and structures, volume 1
    (1991), chapter 7.
    """

    dimensions: ClassVar[tuple[int, ...]] = (2,)
    nodes: Int[Array, "e 2"]
    axial: Float[Array, "..."]
    bending: Float[Array, "..."]
    line_density: Float[Array, "..."]
    rotary: Float[Array, "..."]

    def __init__(self, nodes, axial, bending, line_density=0.0, rotary=0.0):
        self.nodes = connectivity("PlanarBeams", nodes, (2,))
        self.axial, self.bending = as_float(axial), as_float(bending)
        self.line_density, self.rotary = as_float(line_density), as_float(rotary)

    def width(self, dimension: int) -> int:
        return dimension + 1

    def gradient(self, X: Array) -> Array:
        return jnp.eye(2, dtype=X.dtype)

    def measure(self, X: Array) -> Scalar:
        return safe_norm(X[:2, 1] - X[:2, 0])

    def density_of_energy(self, X: Array, F: Array) -> Scalar:
        rest, chord = X[:2, 1] - X[:2, 0], F[:2, 1] - F[:2, 0]
        length = safe_norm(rest)
        # The turn of the chord as cosine and sine, so that angles may pass any number of turns.
        cos, sin = dot(rest, chord), rest[0] * chord[1] - rest[1] * chord[0]

        def relative(angle):
            c, s = jnp.cos(angle), jnp.sin(angle)
            return jnp.arctan2(s * cos - c * sin, c * cos + s * sin)

        one, other = relative(F[2, 0] - X[2, 0]), relative(F[2, 1] - X[2, 1])
        strain = safe_norm(chord) / length - 1
        bent = 2 * self.bending / length**2 * (one * one + one * other + other * other)
        return self.axial / 2 * strain**2 + bent

    def inertia(self, X: Array) -> Array:
        shape = self.measure(X) * jnp.asarray([[1 / 3, 1 / 6], [1 / 6, 1 / 3]], X.dtype)
        scale = jnp.stack([self.line_density, self.line_density, self.rotary])
        return scale[:, None, None] * shape[None]

    def flaws(self, X):
        return NO_LENGTH, np.all(X[:, 0] == X[:, 1], axis=1)

    def check(self) -> str | None:
        return negative(
            "PlanarBeams",
            axial=self.axial,
            bending=self.bending,
            line_density=self.line_density,
            rotary=self.rotary,
        )
