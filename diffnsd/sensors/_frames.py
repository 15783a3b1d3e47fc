"""Sensors of frames: where a site is, and how it moves.

A site has the origin `p`, axes `R` (columns), velocity `v` and angular velocity `ω`, all in the world frame;
those of a reference have the index r.
"""

import equinox as eqx
from jaxtyping import Array, Float

from .._numerics import as_float, cross
from .._types import Args
from ..groups import quaternion_product
from ..model import Model
from ._base import AbstractStateSensor
from ._instant import Instant, Site


class FramePosition(AbstractStateSensor):
    """The position of a site, `R_r^T (p − p_r)` [m], `(3,)`.

    **Arguments:** `site`; `reference`: a `Site`, by default the world.
    """

    site: Site
    reference: Site = eqx.field(default_factory=Site)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        own, seen = now.frame(self.site), now.frame(self.reference)
        return seen.axes.T @ (own.position - seen.position)


class FrameOrientation(AbstractStateSensor):
    """The orientation of a site, the unit quaternion of `R_r^T R`, scalar first, `(4,)`.

    **Arguments:** as for `FramePosition`.
    """

    site: Site
    reference: Site = eqx.field(default_factory=Site)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "4"]:
        own, seen = now.frame(self.site).quaternion, now.frame(self.reference).quaternion
        return quaternion_product(seen * as_float([1.0, -1.0, -1.0, -1.0], seen.dtype), own)


class FrameAxis(AbstractStateSensor):
    """An axis of a site, a column of `R_r^T R`, `(3,)`.

    **Arguments:** as for `FramePosition`; `axis`: 0, 1 or 2.

    **Raises:** `ValueError` for another axis.
    """

    site: Site
    axis: int = eqx.field(default=0, static=True)
    reference: Site = eqx.field(default_factory=Site)

    def __check_init__(self):
        if self.axis not in (0, 1, 2):
            raise ValueError(f"axis must be 0, 1 or 2, got {self.axis}.")

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        return now.frame(self.reference).axes.T @ now.frame(self.site).axes[:, self.axis]


class FrameLinearVelocity(AbstractStateSensor):
    """The velocity of a site, `R_r^T (v − v_r − ω_r × (p − p_r))` [m/s], `(3,)`.

    **Arguments:** as for `FramePosition`.
    """

    site: Site
    reference: Site = eqx.field(default_factory=Site)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        own, seen = now.frame(self.site), now.frame(self.reference)
        carried = seen.velocity + cross(seen.rate, own.position - seen.position)
        return seen.axes.T @ (own.velocity - carried)


class FrameAngularVelocity(AbstractStateSensor):
    """The angular velocity of a site, `R_r^T (ω − ω_r)` [rad/s], `(3,)`.

    **Arguments:** as for `FramePosition`.
    """

    site: Site
    reference: Site = eqx.field(default_factory=Site)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        seen = now.frame(self.reference)
        return seen.axes.T @ (now.frame(self.site).rate - seen.rate)


class Gyro(AbstractStateSensor):
    """The angular velocity along the axes of the site, `R^T ω` [rad/s], `(3,)`.

    **Arguments:** `site`.
    """

    site: Site

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        own = now.frame(self.site)
        return own.axes.T @ own.rate


class Velocimeter(AbstractStateSensor):
    """The velocity of the site along its axes, `R^T v` [m/s], `(3,)`.

    **Arguments:** `site`.
    """

    site: Site

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        own = now.frame(self.site)
        return own.axes.T @ own.velocity


class Magnetometer(AbstractStateSensor):
    """A uniform field along the axes of the site, `R^T B`, `(3,)`.

    **Arguments:** `site`; `field`: `B`, world frame, `(3,)`.
    """

    site: Site
    field: Float[Array, "3"] = eqx.field(converter=as_float)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, "3"]:
        return now.frame(self.site).axes.T @ self.field
