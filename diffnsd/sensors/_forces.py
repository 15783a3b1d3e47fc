"""Sensors of forces: means over the intervals between saved times, see `AbstractMeanSensor`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import cross
from ..model import Model
from ..relations import ContactPlaces
from ..relations._base import out_of_range
from ..shapes import AbstractShape
from ._base import AbstractMeanSensor
from ._instant import Frame, Instant, Interval, Site
from ._masses import Masses, several
from ._zones import is_hit, zone


class Accelerometer(AbstractMeanSensor):
    """The mean acceleration of the site without gravity, along its axes [m/s²], `(3,)`:

        R(t1)^T ((v(t1) − v(t0)) / (t1 − t0) − g)

    At rest it reads `g` upwards, in free fall 0. A nonsmooth motion has no acceleration at an impact: the
    change of the velocity over the interval between two samples is what remains, and in a smooth motion it
    differs from the acceleration at `t1` by a term of the first order in the length of the interval.

    **Arguments:** `site`.
    """

    site: Site

    def impulse(self, model: Model, interval: Interval) -> Float[Array, "3"]:
        start, end = (x.frame(self.site) for x in (interval.before, interval.after))
        system: Any = model.system
        return end.axes.T @ (end.velocity - start.velocity - interval.length * system.gravity)


class Touch(AbstractMeanSensor):
    """The mean normal force of contacts of the body of the site within a zone around the site [N], `(1,)`:

        Σ p_N / (t1 − t0)

    As in MuJoCo, a contact counts if the ray from its point, outwards from the body, meets the zone, as it
    always does if the point is inside. Points are those at `t1`.

    **Arguments:** `site`; `shape`: the zone in the frame of the site: a `Sphere`, `Capsule`, `Cylinder`,
    `Box` or `Ellipsoid`.

    **Raises:** `ValueError` for another shape.
    """

    site: Site
    shape: AbstractShape = eqx.field(converter=zone)

    reads_contacts = True

    def impulse(self, model: Model, interval: Interval) -> Float[Array, "1"]:
        frame = interval.after.frame(self.site)
        parts = [
            self._of(frame, places, impulse)
            for places, impulse in zip(interval.places, interval.impulses, strict=True)
            if places is not None
        ]
        return sum(parts, jnp.zeros((), frame.position.dtype))[None]

    def _of(self, frame: Frame, places: ContactPlaces, impulse: Array) -> Array:
        ours = self.site.body
        first, second = (
            np.array(_listed(bodies, len(impulse)), object) == ours
            for bodies in (places.body1, places.body2)
        )
        outwards = jnp.where(second[:, None], places.normal, -places.normal)
        points = (places.point - frame.position[None]) @ frame.axes
        hit = jax.vmap(is_hit, (None, 0, 0))(self.shape, points, outwards @ frame.axes)
        return jnp.sum(jnp.where((first | second) & hit, impulse[:, 0], 0))


def _listed(bodies, count: int) -> list[int | None]:
    """One body for each contact."""
    return list(bodies) if isinstance(bodies, tuple) else [bodies] * count


class ContactForce(AbstractMeanSensor):
    """The mean force of an interaction on a body, `Σ H^T p / (t1 − t0)` [N], world frame, `(3,)`.

    Normals and tangents are those at `t1`. For a joint between bodies, stated with `Equality`, it is the
    reaction.

    **Arguments:** `body`: index of the body; `interaction`: which of the interactions of the model, of
    those of its part in `Sensors(..., part=)`.

    **Raises:** `ValueError` if there is no such body or interaction, or the interaction does not act between
    bodies.
    """

    body: int = eqx.field(default=0, static=True)
    interaction: int = eqx.field(default=0, static=True)

    reads_contacts = True

    def impulse(self, model: Model, interval: Interval) -> Float[Array, "3"]:
        _, frames = interval.after.needed()
        if problem := out_of_range("body", self.body, len(frames.position) - 1):
            raise ValueError(f"{problem}.")
        if not 0 <= self.interaction < len(interval.loads):
            raise ValueError(
                f"interaction is {self.interaction}, but the model has {len(interval.loads)} "
                "interactions, counted from 0."
            )
        load = interval.loads[self.interaction]
        if load is None:
            relation = type(model.interactions[self.interaction].relation).__name__
            raise ValueError(
                f"interaction {self.interaction} ({relation}) does not act between bodies; its "
                "impulses are in solution.impulses."
            )
        return load[self.body, :3]


class Force(AbstractMeanSensor):
    """The mean force by which several bodies are carried, along the axes of the site [N], `(3,)`:

        R^T (Δ Σ m v / (t1 − t0) − Σ m g − F)

    with the forces `F` of all interactions between bodies on them. For the subtree of a body it is the force
    that its joints transmit, as a sensor between a hand and an arm reads it, positive on the hand.

    **Arguments:** `site`; `bodies`: their indices, `None` for all.

    **Raises:** `ValueError` if there are no such bodies.
    """

    site: Site
    bodies: tuple[int, ...] | None = eqx.field(static=True, converter=several, default=None)

    reads_contacts = True

    def impulse(self, model: Model, interval: Interval) -> Float[Array, "3"]:
        return interval.after.frame(self.site).axes.T @ carried(model, interval, self)[0]


class Torque(AbstractMeanSensor):
    """The mean torque about the site by which several bodies are carried, along its axes [N m], `(3,)`.

    The counterpart of `Force`: the change of the angular momentum about the point where the site is at `t1`,
    without the moments of gravity and of interactions.

    **Arguments:** as for `Force`.
    """

    site: Site
    bodies: tuple[int, ...] | None = eqx.field(static=True, converter=several, default=None)

    reads_contacts = True

    def impulse(self, model: Model, interval: Interval) -> Float[Array, "3"]:
        return interval.after.frame(self.site).axes.T @ carried(model, interval, self)[1]


def carried(model: Model, interval: Interval, sensor: Force | Torque) -> tuple[Array, Array]:
    """Impulse and moment about the site that carry bodies, world frame."""
    system: Any = model.system
    moving, _ = interval.after.needed()
    point = interval.after.frame(sensor.site).position
    still = jnp.zeros_like(point)

    def momenta(now: Instant) -> tuple[Masses, Array, Array]:
        own = Masses.of(model, now, sensor.bodies)
        return own, own.mass @ own.velocity, own.angular_momentum(point, still)

    (_, *before), (own, *after) = map(momenta, (interval.before, interval.after))
    weight = own.mass[:, None] * (interval.length * system.gravity)[None]
    force = after[0] - before[0] - jnp.sum(weight, axis=0)
    moment = after[1] - before[1] - _moment(own.centre - point[None], weight)
    index = slice(None) if sensor.bodies is None else np.array(sensor.bodies, np.int32)
    arms = moving.q.position[index] - point[None]
    for load in (x[index] for x in interval.loads if x is not None):
        force = force - jnp.sum(load[:, :3], axis=0)
        moment = moment - jnp.sum(load[:, 3:], axis=0) - _moment(arms, load[:, :3])
    return force, moment


def _moment(arms: Float[Array, "s 3"], forces: Float[Array, "s 3"]) -> Float[Array, "3"]:
    return jnp.sum(cross(arms.T, forces.T), axis=1)
