"""A slider-crank mechanism whose slider has clearance in its guide.

The slider is free between two walls, which its four corners may strike. The mechanism has three
degrees of freedom, the ideal one has one.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import Number, checked_arguments
from .._types import State
from ..laws import CoulombFriction
from ..model import Interaction, Model
from ..relations import GapRelation
from ..systems import LagrangianSystem

CRANK, ROD = 0.153, 0.306  # [m]
HALF_LENGTH, HALF_HEIGHT = 0.05, 0.025  # of the slider [m]
MASSES = 0.038, 0.038, 0.076  # crank, rod, slider [kg]
INERTIAS = 7.4e-5, 5.9e-4, 2.7e-6  # [kg m²]


class _Mechanism(eqx.Module):
    """Kinetic minus potential energy, in the absolute angles of crank, rod and slider."""

    g: Float[Array, ""]

    def __call__(self, q, v):
        def point(crank, rod):
            """Velocity of a point and its height."""
            x = -crank * jnp.sin(q[0]) * v[0] - rod * jnp.sin(q[1]) * v[1]
            y = crank * jnp.cos(q[0]) * v[0] + rod * jnp.cos(q[1]) * v[1]
            return x * x + y * y, crank * jnp.sin(q[0]) + rod * jnp.sin(q[1])

        total = 0.0
        for m, inertia, arms, spin in zip(
            MASSES, INERTIAS, ((CRANK / 2, 0.0), (CRANK, ROD / 2), (CRANK, ROD)), v, strict=True
        ):
            square, height = point(*arms)
            total = total + (m * square + inertia * spin * spin) / 2 - m * self.g * height
        return total


class _Guide(eqx.Module):
    clearance: Float[Array, ""]

    def __call__(self, t, q):
        """Gaps of the four corners and their displacements along the guide, `(4, 2)`."""
        del t
        x = CRANK * jnp.cos(q[0]) + ROD * jnp.cos(q[1])
        y = CRANK * jnp.sin(q[0]) + ROD * jnp.sin(q[1])
        s, c = jnp.sin(q[2]), jnp.cos(q[2])
        rows = []
        for side in (1.0, -1.0):
            for end in (-1.0, 1.0):
                height = y + end * HALF_LENGTH * s + side * HALF_HEIGHT * c
                gap = HALF_HEIGHT + self.clearance - side * height
                slip = x + end * HALF_LENGTH * c - side * HALF_HEIGHT * s
                rows.append(jnp.stack([gap, slip]))
        return jnp.stack(rows)


@checked_arguments
def slider_crank(mu=0.01, e=0.4, clearance: Number = 1e-3, g: Number = 9.81) -> Model:
    """A slider-crank with clearance: `q (3,)` absolute angles of crank, rod and slider [rad].

    **Arguments:** `mu`, `e`: friction and restitution of the corners; `clearance` [m] between the
    centred slider and either wall; `g` [m/s²].

    Reference: P. Flores, R. Leine, C. Glocker, Modeling and analysis of planar rigid multibody
    systems with translational clearance joints (2010), doi:10.1007/s11044-009-9178-y.
    """
    clearance, g = jnp.asarray(clearance, dtype=float), jnp.asarray(g, dtype=float)
    system = LagrangianSystem.from_lagrangian(_Mechanism(g), n=3)
    contact = Interaction(GapRelation(_Guide(clearance), 2), CoulombFriction(mu, e))
    return Model(system, contact)


@checked_arguments
def slider_crank_state(speed: Number = 150.0) -> State:
    """The stretched mechanism, its crank turning with `speed` [rad/s], the slider centred."""
    speed = jnp.asarray(speed, dtype=float)
    return State(jnp.zeros(3), jnp.stack([speed, -speed * CRANK / ROD, jnp.zeros(())]))
