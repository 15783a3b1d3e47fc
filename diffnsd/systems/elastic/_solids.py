"""Solid elements: bars, triangles in the plane, membranes, tetrahedra."""

import math
from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._arguments import AbstractChecked
from ..._expects import expects
from ..._numerics import as_float, cross, dot, entries, implicit_root, inverse, safe_norm, stacked
from ..._types import Scalar
from ._base import NO_LENGTH, AbstractElements, connectivity, negative
from ._materials import AbstractMaterial, determinant


class AbstractThickness(AbstractChecked):
    """What a flat element does across its thickness."""

    @abstractmethod
    def energy(self, material: AbstractMaterial, F: Float[Array, "3 2"], normal) -> Scalar:
        """Energy density of a material whose in-plane columns are known, for one element."""


class PlaneStrain(AbstractThickness):
    """The thickness stays as it is: a slice of a long body."""

    def energy(self, material: AbstractMaterial, F: Float[Array, "3 2"], normal) -> Scalar:
        return material.energy(_with_third(F, normal))


class PlaneStress(AbstractThickness):
    """The thickness is free: a thin plate. Its stretch `s` makes the stress across it vanish.

    `∂ψ/∂s = 0` is solved by Newton's method from `s = 1`, `search` iterations for each element.

    **Arguments:** `search`: number of iterations before those that carry the derivative.
    """

    search: int = eqx.field(default=6, static=True)

    def energy(self, material: AbstractMaterial, F: Float[Array, "3 2"], normal) -> Scalar:
        def across(s):
            return material.energy(_with_third(F, s * normal))

        s = implicit_root(jax.grad(across), jnp.ones_like(F[0, 0]), search=self.search)
        return across(s)


def _with_third(F: Array, column: Array) -> Array:
    return jnp.concatenate([F, column[:, None]], axis=1)


class AbstractSimplex(AbstractElements):
    """Linear simplices of a material: `m + 1` nodes, constant `F`."""

    material: eqx.AbstractVar[AbstractMaterial]
    density: eqx.AbstractVar[Array]

    def width(self, dimension: int) -> int:
        return dimension

    def edges(self, X: Array) -> Float[Array, "m m"]:
        """Edges from the first node at rest, as columns in a frame of the element, for one element."""
        return X[:, 1:] - X[:, :1]

    def across(self) -> Array | float:
        """Extent in the directions without nodes: thickness."""
        return 1.0

    def gradient(self, X: Array) -> Array:
        inverted = stacked(inverse(entries(self.edges(X))))
        return jnp.concatenate([-jnp.sum(inverted, axis=0, keepdims=True), inverted])

    def measure(self, X: Array) -> Scalar:
        edges = self.edges(X)
        return determinant(edges) / math.factorial(edges.shape[0]) * self.across()

    def inertia(self, X: Array) -> Array:
        w, k = X.shape
        shape = (np.ones((k, k)) + np.eye(k)) / (k * (k + 1))
        mass = self.density * self.measure(X)
        return jnp.broadcast_to(mass * jnp.asarray(shape, X.dtype), (w, k, k))

    def volume_ratio(self, F: Array) -> Scalar | None:
        return determinant(F) if F.shape[0] == F.shape[1] else None

    def flaws(self, X):
        edges = np.swapaxes(X[:, 1:] - X[:, :1], 1, 2)  # (e, w, m)
        lengths = np.sqrt(np.sum(edges**2, axis=1))
        scale = np.prod(lengths, axis=1)
        if edges.shape[1] == edges.shape[2]:
            volume = np.linalg.det(edges)
        else:
            volume = np.sqrt(np.maximum(np.linalg.det(np.swapaxes(edges, 1, 2) @ edges), 0))
        if np.any(volume < -1e-10 * scale):
            return (
                "are inverted at rest (their nodes have the wrong orientation); exchange two of their "
                "nodes, or call mesh.oriented()"
            ), volume < -1e-10 * scale
        return "have no volume at rest; remove them or move their nodes", volume <= 1e-10 * scale

    def check(self) -> str | None:
        values = {"density": self.density, "thickness": self.across()}
        return negative(type(self).__name__, **values) or self.material.check()


class Tetrahedra(AbstractSimplex):
    """Tetrahedra with four nodes and constant strain.

    **Arguments:** `nodes`: node numbers, `(e, 4)`, the last one on the side to which the right-hand rule
    turns the first three; `material`: an `AbstractMaterial`; `density` [kg/m³], `()` or `(e,)`.
    """

    dimensions: ClassVar[tuple[int, ...]] = (3,)
    nodes: Int[Array, "e 4"]
    material: AbstractMaterial
    density: Float[Array, "..."]

    def __init__(self, nodes, material: AbstractMaterial, density=0.0):
        self.nodes = connectivity("Tetrahedra", nodes, (4,))
        self.material = _material(material)
        self.density = as_float(density)

    def density_of_energy(self, X: Array, F: Array) -> Scalar:
        del X
        return self.material.energy(F)


class AbstractTriangles(AbstractSimplex):
    """Flat triangles with three nodes, constant strain and a thickness."""

    usual: ClassVar[AbstractThickness]
    nodes: Int[Array, "e 3"]
    material: AbstractMaterial
    density: Float[Array, "..."]
    thickness: Float[Array, "..."]
    plane: AbstractThickness

    def __init__(
        self,
        nodes,
        material: AbstractMaterial,
        density=0.0,
        thickness=1.0,
        plane: AbstractThickness | None = None,
    ):
        self.nodes = connectivity(type(self).__name__, nodes, (3,))
        self.material = _material(material)
        self.density, self.thickness = as_float(density), as_float(thickness)
        self.plane = self.usual if plane is None else plane

    def across(self):
        return self.thickness


class Triangles(AbstractTriangles):
    """Triangles in the plane with three nodes and constant strain.

    **Arguments:** `nodes`: `(e, 3)`, counter-clockwise; `material`; `density` [kg/m³] and `thickness`
    [m], each `()` or `(e,)`; `plane`: `PlaneStrain()`, the default, or `PlaneStress()`.
    """

    dimensions: ClassVar[tuple[int, ...]] = (2,)
    usual: ClassVar[AbstractThickness] = PlaneStrain()

    def density_of_energy(self, X: Array, F: Array) -> Scalar:
        del X
        upright = jnp.asarray([0.0, 0.0, 1.0], F.dtype)
        flat = jnp.concatenate([F, jnp.zeros_like(F[:1])])
        return self.plane.energy(self.material, flat, upright)


class Membranes(AbstractTriangles):
    """Triangles in space that resist stretching and shear, with a free thickness; bending is `Hinges`.

    **Arguments:** as `Triangles`; `plane`: by default `PlaneStress()`.
    """

    dimensions: ClassVar[tuple[int, ...]] = (3,)
    usual: ClassVar[AbstractThickness] = PlaneStress()

    def edges(self, X: Array) -> Array:
        first, second = X[:, 1] - X[:, 0], X[:, 2] - X[:, 0]
        length = safe_norm(first)
        along = dot(first, second) / length
        height = safe_norm(cross(first, second)) / length
        return stacked([[length, along], [jnp.zeros_like(length), height]])

    def density_of_energy(self, X: Array, F: Array) -> Scalar:
        del X
        upright = cross(F[:, 0], F[:, 1])
        return self.plane.energy(self.material, F, upright / safe_norm(upright))


class Bars(AbstractElements):
    """Straight bars that carry normal forces, in 1, 2 or 3 dimensions: `E = L EA/2 (l/L − 1)²`.

    **Arguments:** `nodes`: `(e, 2)`; `stiffness`: EA [N]; `line_density`: mass per length [kg/m], each
    `()` or `(e,)`.
    """

    dimensions: ClassVar[tuple[int, ...]] = (1, 2, 3)
    nodes: Int[Array, "e 2"]
    stiffness: Float[Array, "..."]
    line_density: Float[Array, "..."]

    def __init__(self, nodes, stiffness, line_density=0.0):
        self.nodes = connectivity("Bars", nodes, (2,))
        self.stiffness, self.line_density = as_float(stiffness), as_float(line_density)

    def width(self, dimension: int) -> int:
        return dimension

    def gradient(self, X: Array) -> Array:
        return _difference(X) / self.measure(X)

    def measure(self, X: Array) -> Scalar:
        return safe_norm(X[:, 1] - X[:, 0])

    def density_of_energy(self, X: Array, F: Array) -> Scalar:
        del X
        return self.stiffness / 2 * (safe_norm(F[:, 0]) - 1) ** 2

    def inertia(self, X: Array) -> Array:
        shape = jnp.asarray([[1 / 3, 1 / 6], [1 / 6, 1 / 3]], X.dtype)
        mass = self.line_density * self.measure(X)
        return jnp.broadcast_to(mass * shape, (X.shape[0], 2, 2))

    def flaws(self, X):
        return NO_LENGTH, np.all(X[:, 0] == X[:, 1], axis=1)

    def check(self) -> str | None:
        return negative("Bars", stiffness=self.stiffness, line_density=self.line_density)


class Springs(AbstractElements):
    """Springs without mass between two nodes: `E = k/2 (l − l0)²`.

    **Arguments:** `nodes`: `(e, 2)`; `stiffness`: k [N/m]; `length`: l0 [m], by default the distance at
    rest; each `()` or `(e,)`.
    """

    dimensions: ClassVar[tuple[int, ...]] = (1, 2, 3)
    nodes: Int[Array, "e 2"]
    stiffness: Float[Array, "..."]
    length: Float[Array, "..."] | None

    def __init__(self, nodes, stiffness, length=None):
        self.nodes = connectivity("Springs", nodes, (2,))
        self.stiffness = as_float(stiffness)
        self.length = None if length is None else as_float(length)

    def width(self, dimension: int) -> int:
        return dimension

    def gradient(self, X: Array) -> Array:
        return _difference(X)

    def measure(self, X: Array) -> Scalar:
        return jnp.ones_like(X[0, 0])

    def density_of_energy(self, X: Array, F: Array) -> Scalar:
        length = safe_norm(X[:, 1] - X[:, 0]) if self.length is None else self.length
        return self.stiffness / 2 * (safe_norm(F[:, 0]) - length) ** 2

    def flaws(self, X):
        nodes = np.asarray(self.nodes)
        to_itself = nodes[:, 0] == nodes[:, 1]
        if self.length is not None:  # their nodes need not be apart where others place them
            return "connect a node with itself; connect two nodes", to_itself
        return NO_LENGTH, np.all(X[:, 0] == X[:, 1], axis=1)

    def check(self) -> str | None:
        return negative("Springs", stiffness=self.stiffness, length=self.length)


class Masses(AbstractElements):
    """Point masses at nodes.

    **Arguments:** `nodes`: `(e,)`; `mass` [kg], `()` or `(e,)`.
    """

    dimensions: ClassVar[tuple[int, ...]] = (1, 2, 3)
    nodes: Int[Array, "e 1"]
    mass: Float[Array, "..."]

    def __init__(self, nodes, mass):
        self.nodes = connectivity("Masses", np.reshape(np.asarray(nodes), (-1, 1)), (1,))
        self.mass = as_float(mass)

    def width(self, dimension: int) -> int:
        return dimension

    def gradient(self, X: Array) -> Array:
        return jnp.ones((1, 1), X.dtype)

    def measure(self, X: Array) -> Scalar:
        return jnp.ones_like(X[0, 0])

    def density_of_energy(self, X: Array, F: Array) -> Scalar:
        return jnp.zeros_like(F[0, 0])

    def inertia(self, X: Array) -> Array:
        return jnp.broadcast_to(self.mass, (X.shape[0], 1, 1))

    def check(self) -> str | None:
        return negative("Masses", mass=self.mass)


def _difference(X: Array) -> Array:
    return jnp.asarray([[-1.0], [1.0]], X.dtype)


def _material(material) -> AbstractMaterial:
    expects("material", material, AbstractMaterial, "a material, such as NeoHookean(1e6, 0.4)")
    return material
