"""Mass of elastic bodies, lumped or consistent, and Rayleigh damping."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments import AbstractChecked
from ..._numerics import as_float, short_sum
from ._base import AbstractElements, Nodal, gathered, over_elements, scattered


def _inertias(elements: AbstractElements, X: Nodal) -> Float[Array, "w k k e"] | None:
    def one(element, X):
        return element.inertia(X)

    return over_elements(one, elements, gathered(elements, X))


class AbstractMass(eqx.Module):
    """How the mass of elements is given to their nodes."""

    @abstractmethod
    def times(self, elements: AbstractElements, X: Nodal, y: Nodal) -> Nodal:
        """The mass matrix of the elements times a vector."""

    @abstractmethod
    def blocks(self, elements: AbstractElements, X: Nodal) -> Float[Array, "e d d"] | None:
        """The mass matrix of every element, node by node; `None` without mass."""


class Lumped(AbstractMass):
    """All mass at the nodes: a diagonal matrix, the sums of the rows of the consistent one."""

    def times(self, elements: AbstractElements, X: Nodal, y: Nodal) -> Nodal:
        mass = _inertias(elements, X)
        return y * (0 if mass is None else scattered(elements, short_sum(mass, 2), y))

    def blocks(self, elements: AbstractElements, X: Nodal) -> Array | None:
        mass = _inertias(elements, X)
        if mass is None:
            return None
        rows = short_sum(mass, 2)  # (w, k, e)
        flat = jnp.transpose(rows, (2, 1, 0)).reshape(rows.shape[2], -1)
        return flat[:, :, None] * jnp.eye(flat.shape[1], dtype=flat.dtype)[None]


class Consistent(AbstractMass):
    """The kinetic energy of the interpolated velocities: couples the nodes of an element."""

    def times(self, elements: AbstractElements, X: Nodal, y: Nodal) -> Nodal:
        mass = _inertias(elements, X)
        if mass is None:
            return jnp.zeros_like(y)
        own = gathered(elements, y)
        return scattered(elements, short_sum(mass * own[:, None], 2), y)

    def blocks(self, elements: AbstractElements, X: Nodal) -> Array | None:
        mass = _inertias(elements, X)
        if mass is None:
            return None
        w, k, _, e = mass.shape
        unit = jnp.eye(w, dtype=mass.dtype)[:, None, None, :, None]
        table = mass[:, :, :, None] * unit  # (w, k, k, w, e)
        return jnp.transpose(table, (4, 1, 0, 2, 3)).reshape(e, k * w, k * w)


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
