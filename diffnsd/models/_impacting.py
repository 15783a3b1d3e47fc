"""Blocks, beads, a bar and a ball on a table: systems with unilateral contacts."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import Number, checked_arguments
from .._expects import refuse_below
from ..laws import NewtonImpact
from ..model import Interaction, Model
from ..relations import GapRelation
from ..systems import LagrangianSystem


class _Corners(eqx.Module):
    half_width: Float[Array, ""]
    half_height: Float[Array, ""]

    def __call__(self, t, q):
        del t
        across, up = self.half_width * jnp.sin(q[2]), self.half_height * jnp.cos(q[2])
        return jnp.stack([q[1] - across - up, q[1] + across - up])


@checked_arguments
def rocking_block(
    e=0.5, width: Number = 1.0, height: Number = 2.0, mass: Number = 1.0, g: Number = 9.81
) -> Model:
    """A block on smooth ground that rocks on its two corners: `q (3,)` = (x, y, angle) of its centre.

    **Arguments:** `e`: restitution; `width`, `height` [m]; `mass` [kg]; `g` [m/s²].

    Reference: F. Pfeiffer, C. Glocker, Multibody Dynamics with Unilateral Contacts (1996),
    doi:10.1002/9783527618385.
    """
    width, height, mass, g = (jnp.asarray(x, dtype=float) for x in (width, height, mass, g))
    inertia = mass * (width * width + height * height) / 12
    zero = jnp.zeros_like(mass)
    system = LagrangianSystem(
        jnp.diag(jnp.stack([mass, mass, inertia])), f_ext=jnp.stack([zero, -mass * g, zero])
    )
    return Model(system, Interaction(GapRelation(_Corners(width / 2, height / 2)), NewtonImpact(e)))


class _Stack(eqx.Module):
    radius: Float[Array, ""]

    def __call__(self, t, q):
        del t
        return jnp.concatenate([q[:1] - self.radius, q[1:] - q[:-1] - 2 * self.radius])


@checked_arguments
def column_of_beads(
    n: int = 10, e=0.9, radius: Number = 0.1, mass: Number = 1.0, g: Number = 9.81
) -> Model:
    """Beads above each other on a vertical line above the ground: `q (n,)` their heights [m].

    **Arguments:** `n`; `e`: restitution of all contacts, `()` or `(n,)`; `radius` [m]; `mass` [kg];
    `g` [m/s²].
    """
    if not 1 <= n <= 2000:
        raise ValueError(f"n must be from 1 to 2000 beads, whose mass matrix is stored, got {n}.")
    radius, mass, g = (jnp.asarray(x, dtype=float) for x in (radius, mass, g))
    system = LagrangianSystem.linear(jnp.broadcast_to(mass, (n,)), f_ext=jnp.full(n, -mass * g))
    return Model(system, Interaction(GapRelation(_Stack(radius)), NewtonImpact(e)))


class _StrainEnergy(eqx.Module):
    """Strain energy of linear elements; its force is exactly zero where the elongations are zero."""

    stiffness: Float[Array, ""]

    def __call__(self, q):
        elongation = q[1:] - q[:-1]
        return self.stiffness * jnp.sum(elongation * elongation) / 2


def _first(t, q):
    del t
    return q[:1]


@checked_arguments
def impacting_bar(
    elements: int = 99,
    e=0.0,
    length: Number = 1.0,
    young: Number = 210e9,
    section: Number = 3.14e-4,
    density: Number = 7800.0,
) -> Model:
    """An elastic bar of linear finite elements that strikes a wall: `q` nodal displacements [m].

    The wall touches the first node at `q[0] = 0`.

    **Arguments:** `elements`: their number; `e`: restitution of the node, not of the bar as a whole,
    which rebounds by its waves; `length` [m]; `young` [Pa]; `section` [m²]; `density`
    [kg/m³].
    """
    if not 1 <= elements <= 2000:
        raise ValueError(
            f"elements must be from 1 to 2000, since the mass matrix is stored, got {elements}."
        )
    length, young, section, density = (
        jnp.asarray(x, dtype=float) for x in (length, young, section, density)
    )
    for name, value in (("length", length), ("section", section), ("density", density)):
        refuse_below(name, value, 0.0, strictly=True)
    n, each = elements + 1, length / elements
    ends = np.eye(n)
    ends[1:-1, 1:-1] *= 2
    beside = np.eye(n, k=1) + np.eye(n, k=-1)
    mass = density * section * each * jnp.asarray(ends / 3 + beside / 6)
    system = LagrangianSystem(mass, potential_energy=_StrainEnergy(young * section / each))
    return Model(system, Interaction(GapRelation(_first), NewtonImpact(e)))


class _AboveTable(eqx.Module):
    amplitude: Float[Array, ""]
    omega: Float[Array, ""]

    def __call__(self, t, q):
        return q - self.amplitude * jnp.sin(self.omega * t)


@checked_arguments
def ball_on_vibrating_table(
    e=0.7, amplitude: Number = 0.05, omega: Number = 20.0, mass: Number = 1.0, g: Number = 9.81
) -> Model:
    """A ball on a table that moves like `amplitude · sin(omega t)`: `q (1,)` its height [m].

    **Arguments:** `e`: restitution; `amplitude` [m]; `omega` [rad/s]; `mass` [kg]; `g` [m/s²].
    """
    amplitude, omega, mass, g = (jnp.asarray(x, dtype=float) for x in (amplitude, omega, mass, g))
    system = LagrangianSystem(mass[None, None], f_ext=-(mass * g)[None])
    return Model(system, Interaction(GapRelation(_AboveTable(amplitude, omega)), NewtonImpact(e)))
