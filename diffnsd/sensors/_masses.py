"""Sensors of the motion of several bodies together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import cross
from .._types import Args
from ..model import Model
from ..relations._base import body_indices, out_of_range
from ._base import AbstractStateSensor
from ._instant import Instant


def several(bodies: Sequence[int] | None) -> tuple[int, ...] | None:
    """Indices of bodies as stored by sensors; `None` for all of them."""
    if bodies is None:
        return None
    found = body_indices("bodies", bodies)
    if not isinstance(found, tuple) or None in found or not found:
        raise ValueError(f"bodies must be a list of indices, or None for all, got {bodies}.")
    return found  # pyright: ignore[reportReturnType]


class Masses(NamedTuple):
    """Masses [kg], centres of mass [m], their velocities [m/s] and spins [kg m²/s], world frame."""

    mass: Float[Array, " s"]
    centre: Float[Array, "s 3"]
    velocity: Float[Array, "s 3"]
    spin: Float[Array, "s 3"]

    @staticmethod
    def of(model: Model, now: Instant, bodies: tuple[int, ...] | None) -> "Masses":
        """Those of some bodies.

        **Raises:** `ValueError` if there are no such bodies.
        """
        _, frames = now.needed()
        system: Any = model.system
        count = len(system.masses)
        listed = tuple(range(count)) if bodies is None else bodies
        if problem := out_of_range("bodies", listed, count):
            raise ValueError(f"{problem}.")
        index = np.array(listed, np.int32)
        inertia = system.inertia[index]
        if inertia.ndim == 2:
            inertia = inertia[:, :, None] * np.eye(3, dtype=inertia.dtype)[None]
        own = jax.tree.map(lambda x: x[index], frames)
        arm = (own.axes @ system.centres[index][:, :, None])[..., 0]
        turn = jnp.swapaxes(own.axes, 1, 2) @ own.rate[:, :, None]
        return Masses(
            system.masses[index],
            own.position + arm,
            own.velocity + cross(own.rate.T, arm.T).T,
            (own.axes @ (inertia @ turn))[..., 0],
        )

    def mean(self, x: Float[Array, "s 3"]) -> Float[Array, "3"]:
        """The mean of a quantity, weighted with the masses; 0 without any mass."""
        total = jnp.sum(self.mass)
        massive = total > 0
        return jnp.where(massive, self.mass @ x / jnp.where(massive, total, 1), 0)

    def angular_momentum(self, point: Array, velocity: Array) -> Float[Array, "3"]:
        """About a point, of the motion relative to a velocity."""
        arms, own = self.centre - point[None], self.velocity - velocity[None]
        momentum = self.mass[:, None] * own
        return jnp.sum(self.spin + cross(arms.T, momentum.T).T, axis=0)


class CentreOfMass(AbstractStateSensor):
    """The centre of mass of several bodies, `Σ m x / Σ m` [m], world frame, `(3,)`.

    **Arguments:** `bodies`: their indices, `None` for all.

    **Raises:** `ValueError` if they are no list of indices, or a body does not exist.
    """

    bodies: tuple[int, ...] | None = eqx.field(static=True, converter=several, default=None)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        own = Masses.of(model, now, self.bodies)
        return own.mean(own.centre)


class CentreOfMassVelocity(AbstractStateSensor):
    """The velocity of the centre of mass of several bodies, `Σ m v / Σ m` [m/s], world frame, `(3,)`.

    **Arguments:** as for `CentreOfMass`.
    """

    bodies: tuple[int, ...] | None = eqx.field(static=True, converter=several, default=None)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        own = Masses.of(model, now, self.bodies)
        return own.mean(own.velocity)


class AngularMomentum(AbstractStateSensor):
    """The angular momentum of several bodies about their centre of mass `c`,

        Σ R I R^T ω + m (x − c) × (v − c')      [kg m²/s], world frame, `(3,)`

    **Arguments:** as for `CentreOfMass`.
    """

    bodies: tuple[int, ...] | None = eqx.field(static=True, converter=several, default=None)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        own = Masses.of(model, now, self.bodies)
        return own.angular_momentum(own.mean(own.centre), own.mean(own.velocity))
