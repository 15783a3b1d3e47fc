"""A double pendulum in angles, and a spherical pendulum as a constrained point."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments import Number, Two, checked_arguments
from ..._numerics import dot
from ...laws import Equality
from ...model import Interaction, Model
from ...relations import GapRelation
from ...systems import LagrangianSystem


class _TwoPoints(eqx.Module):
    masses: Float[Array, "2"]
    lengths: Float[Array, "2"]
    g: Float[Array, ""]

    def __call__(self, q, v):
        (m1, m2), (l1, l2) = self.masses, self.lengths
        mixed = m2 * l1 * l2 * v[0] * v[1] * jnp.cos(q[0] - q[1])
        kinetic = (m1 + m2) * (l1 * v[0]) ** 2 / 2 + m2 * (l2 * v[1]) ** 2 / 2 + mixed
        heights = (m1 + m2) * l1 * jnp.cos(q[0]) + m2 * l2 * jnp.cos(q[1])
        return kinetic + self.g * heights


@checked_arguments
def double_pendulum(
    masses: Two = (1.0, 1.0),
    lengths: Two = (1.0, 1.0),
    g: Number = 9.81,
) -> Model:
    """Two points on massless rods: `q (2,)` the angles [rad] of the rods from hanging, absolute.

    Its mass matrix depends on the configuration; everything is derived from the Lagrangian.

    **Arguments:** `masses` [kg] and `lengths` [m], from the pivot on, shape `(2,)`; `g` [m/s²].
    """
    masses, lengths, g = (jnp.asarray(x, dtype=float) for x in (masses, lengths, g))
    return Model(LagrangianSystem.from_lagrangian(_TwoPoints(masses, lengths, g), n=2))


class _Weight(eqx.Module):
    weight: Float[Array, ""]

    def __call__(self, q):
        return self.weight * q[2]


class _Stretch(eqx.Module):
    length: Float[Array, ""]

    def __call__(self, t, q):
        del t
        return ((dot(q, q) / self.length - self.length) / 2)[None]


@checked_arguments
def spherical_pendulum(length: Number = 1.0, g: Number = 9.81, mass: Number = 1.0) -> Model:
    """A point on a massless rod in space, `q (3,)` its position [m] from the pivot, z upwards.

    The rod is a bilateral constraint, `(|q|²/l − l)/2 = 0`, whose multiplier is its tension.

    **Arguments:** `length` [m]; `g` [m/s²]; `mass` [kg].
    """
    length, g, mass = (jnp.asarray(x, dtype=float) for x in (length, g, mass))
    system = LagrangianSystem(mass * jnp.eye(3), potential_energy=_Weight(mass * g))
    return Model(system, Interaction(GapRelation(_Stretch(length)), Equality()))
