"""A tippe top: a sphere with its centre of mass below its centre that turns over by friction.

Spun fast on its bottom, it rises against gravity and stands on its head: the slip at the contact
does the work. Its Jellett constant, angular momentum times the arm to the contact, is
conserved whatever the friction.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import Number, checked_arguments
from .._expects import refuse_below
from .._numerics import dot
from .._types import State
from ..groups import Pose, rotate
from ..laws import AbstractLaw, CoulombFriction
from ..model import Interaction, Model
from ..relations import ContactFrame
from ..systems import NewtonEulerSystem


class _SphereOnPlane(eqx.Module):
    """Closest points of the sphere and the plane z = 0, and the normal."""

    radius: Float[Array, ""]
    offset: Float[Array, ""]

    def __call__(self, t, q):
        del t
        up = jnp.array([0.0, 0.0, 1.0], q.position.dtype)
        lowest = q.position[0] + self.offset * rotate(q.orientation[0], up) - self.radius * up
        return lowest[None], (lowest * (1 - up))[None], up[None]


@checked_arguments
def tippe_top(
    mu=0.3,
    radius: Number = 0.02,
    offset: Number = 0.003,
    mass: Number = 0.02,
    g: Number = 9.81,
    *,
    law: AbstractLaw | None = None,
) -> Model:
    """A top on the plane z = 0; its axis is the third body axis, from centre of mass to sphere centre.

    **Arguments:** `mu`: friction; `radius` of the sphere [m]; `offset` [m]: how far the centre of
    mass lies below the centre of the sphere; `mass` [kg]; `g` [m/s²]; `law`: in place of
    `CoulombFriction(mu)`. The moments of inertia are those of a homogeneous sphere.

    Reference: R. Cohen, The tippe top revisited (1977), doi:10.1119/1.10926.
    """
    mu, radius, offset, mass, g = (
        jnp.asarray(x, dtype=float) for x in (mu, radius, offset, mass, g)
    )
    refuse_below("radius", radius, 0.0, strictly=True)
    inertia = 0.4 * mass * radius * radius * jnp.ones(3)
    system = NewtonEulerSystem(mass, inertia, gravity=g * jnp.array([0.0, 0.0, -1.0]))
    contact = ContactFrame(_SphereOnPlane(radius, offset))
    return Model(system, Interaction(contact, CoulombFriction(mu) if law is None else law))


@checked_arguments
def tippe_top_state(
    tilt: Number = 0.1, spin: Number = 150.0, radius: Number = 0.02, offset: Number = 0.003
) -> State:
    """The top in contact, its axis tilted [rad] about x and spinning [rad/s] about the vertical."""
    tilt, spin, radius, offset = (jnp.asarray(x, dtype=float) for x in (tilt, spin, radius, offset))
    zero = jnp.zeros_like(tilt)
    turned = jnp.stack([jnp.cos(tilt / 2), jnp.sin(tilt / 2), zero, zero])
    height = radius - offset * jnp.cos(tilt)
    about = spin * jnp.stack([zero, jnp.sin(tilt), jnp.cos(tilt)])
    pose = Pose(jnp.stack([zero, zero, height])[None], turned[None])
    return State(pose, jnp.concatenate([jnp.zeros(3, about.dtype), about]))


@checked_arguments
def tippe_top_axis(state: State) -> Float[Array, ""]:
    """Cosine of the angle between the axis and the vertical: from 1 it falls towards −1."""
    _check_state(state)
    up = jnp.array([0.0, 0.0, 1.0], state.v.dtype)
    return rotate(state.q.orientation[0], up)[2]


@checked_arguments
def tippe_top_jellett(
    model: Model, state: State, radius: Number = 0.02, offset: Number = 0.003
) -> Float[Array, ""]:
    """Jellett's constant: spatial angular momentum times the arm from the contact to the mass."""
    _check_state(state)
    up = jnp.array([0.0, 0.0, 1.0], state.v.dtype)
    spin = model.momentum(jnp.zeros((), state.v.dtype), state)[3:]
    turned = state.q.orientation[0]
    arm = offset * rotate(turned, up) - radius * up
    return -dot(rotate(turned, spin), arm)


def _check_state(state: State) -> None:
    of_one = isinstance(state.q, Pose) and np.shape(state.q.orientation) == (1, 4)
    if not of_one or np.shape(state.v) != (6,):
        raise ValueError("state must be one of this top, as tippe_top_state() makes it.")
