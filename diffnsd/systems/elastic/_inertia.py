"""Mass of elastic bodies, lumped or consistent, and Rayleigh damping."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments import AbstractChecked
from ..._numerics import as_float, short_sum
from ._base import AbstractElements, Nodal, gathered, negative, over_elements, scattered


def _inertias(elements: AbstractElements, X: Nodal) -> Float[Array, "w k k e"] | None:
    def one(element, X):
        return element.inertia(X)

    return over_elements(one, elements, gathered(elements, X))


def _axes(elements: AbstractElements, X: Nodal) -> Float[Array, "w w e"] | None:
    def one(element, X):
        return element.axes(X)

    return over_elements(one, elements, gathered(elements, X))


class AbstractMass(AbstractChecked):
    """How the mass of elements is given to their nodes."""

    @abstractmethod
    def between(self, inertia: Float[Array, "w k k e"]) -> Float[Array, "w k k e"]:
        """Mass of each coordinate between the nodes, from the consistent one."""

    @abstractmethod
    def along(self, inertia: Float[Array, "w k k e"], y: Float[Array, "w k e"]) -> Array:
        """`between(inertia)` times a vector, `(w, k, e)`."""

    def times(self, elements: AbstractElements, X: Nodal, y: Nodal) -> Nodal:
        """The mass matrix of the elements times a vector."""
        inertia = _inertias(elements, X)
        if inertia is None:
            return jnp.zeros_like(y)
        own, axes = gathered(elements, y), _axes(elements, X)
        if axes is None:
            return scattered(elements, self.along(inertia, own), y)
        inside = short_sum(axes[:, :, None] * own[:, None], 0)
        moved = self.along(inertia, inside)
        return scattered(elements, short_sum(axes[:, :, None] * moved[None], 1), y)

    def blocks(self, elements: AbstractElements, X: Nodal) -> Float[Array, "e d d"] | None:
        """The mass matrix of every element, node by node; `None` without mass."""
        inertia = _inertias(elements, X)
        if inertia is None:
            return None
        mass, axes = self.between(inertia), _axes(elements, X)
        w, k, _, e = mass.shape
        if axes is None:
            unit = jnp.eye(w, dtype=mass.dtype)[:, None, None, :, None]
            table = mass[:, :, :, None] * unit  # (w, k, k, w, e)
        else:
            table = jnp.einsum("ice,cabe,jce->iabje", axes, mass, axes)
        return jnp.transpose(table, (4, 1, 0, 2, 3)).reshape(e, k * w, k * w)


class Lumped(AbstractMass):
    """All mass at the nodes: a diagonal matrix, the sums of the rows of the consistent one."""

    def between(self, inertia: Array) -> Array:
        rows = short_sum(inertia, 2)
        return rows[:, :, None] * jnp.eye(rows.shape[1], dtype=rows.dtype)[None, :, :, None]

    def along(self, inertia: Array, y: Array) -> Array:
        return short_sum(inertia, 2) * y


class Consistent(AbstractMass):
    """The kinetic energy of the interpolated velocities: couples the nodes of an element."""

    def between(self, inertia: Array) -> Array:
        return inertia

    def along(self, inertia: Array, y: Array) -> Array:
        return short_sum(inertia * y[:, None], 2)


class Rayleigh(AbstractChecked):
    """Damping by the mass and by the stiffness of the body where it is: `f = −(α M + β K(q)) v`.

    A mode of angular frequency `ω` has the damping ratio `α/(2 ω) + β ω/2`. The second part is
    `−β d/dt ∂E/∂q`, so that rigid motions are not damped by it.

    **Arguments:** `mass`: α [1/s]; `stiffness`: β [s], or `None` for a program without it.
    """

    mass: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    stiffness: Float[Array, ""] | None = eqx.field(
        converter=lambda x: None if x is None else as_float(x), default=None
    )

    def check(self) -> str | None:
        """Error message if a known value is negative, else `None`."""
        return negative("Rayleigh", mass=self.mass, stiffness=self.stiffness)
