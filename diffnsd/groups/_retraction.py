"""Retractions: the maps from tangent vectors to group elements that integrators are built on.

A retraction `tau` has `tau(0) = 1`, `tau(-x) = tau(x)^-1`, and two trivialised tangents,

    d/dt tau(x) = (dR_x x') tau(x) = tau(x) (dL_x x'),    dR_x = Ad_tau(x) dL_x,    dL_x = dR_-x.
"""

from math import factorial, pi
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._arguments import AbstractChecked, checked_arguments, checked_kinds
from .._scalar_kernels import bernoulli_numbers
from .._types import Config, Vector
from ._base import AbstractGroup


@checked_arguments
def truncation(order: int) -> int:
    """Largest power of `ad` that `dexpinv` needs in a Runge-Kutta-Munthe-Kaas method of this order.

    `order - 2`, since `ad_x^k A = O(h^(k+1))` where `x` is parallel to `A` up to `O(h)`. Odd powers
    beyond the first have coefficient zero. Thus 0, 1, 2, 2, 4, 4, 6 for orders 2 to 8.
    """
    power = max(order - 2, 0)
    return power if power < 2 else power - power % 2


MOST_POWER = 100
"""Beyond this power the terms of a series that converges are less than rounding."""


def _check_power(power: int) -> None:
    if not 0 <= power <= MOST_POWER:
        raise ValueError(f"power must be between 0 and {MOST_POWER}, got {power}.")


@checked_kinds
def dexpinv_series(
    group: AbstractGroup, xi: Float[Array, "n ..."], w: Float[Array, "n ..."], power: int
) -> Float[Array, "n ..."]:
    """`sum_{k <= power} B_k/k! ad_xi^k w`: `dexpinv` truncated, right-trivialised.

    Converges for spectra of `ad_xi` below `2 pi`. **Arguments:** `group`; `xi`, `w`: shape `(n,)`;
    `power`: largest power kept, from 0 to 100, see `truncation`.

    **Raises:** `ValueError` for another power.

    Reference: A. Iserles, H. Munthe-Kaas, S. Norsett, A. Zanna, Lie-group methods (2000),
    doi:10.1017/S0962492900002154.
    """
    _check_power(power)
    total = term = w
    for k, number in enumerate(bernoulli_numbers(power + 1)[1:], start=1):
        term = group.bracket(xi, term)
        if number:
            total = total + float(number / factorial(k)) * term
    return total


class AbstractRetraction(AbstractChecked):
    """A map `tau` from the Lie algebra to the group; an option of every geometric integrator."""

    maps: ClassVar[tuple[str, str, str, str]]
    """Names of the group's own maps: `tau`, its inverse, its tangent, and the inverse of that."""

    def problem(self, group: AbstractGroup) -> str | None:
        """Why the retraction leaves the group, and what to use instead, or `None`."""
        return None

    def map(self, group: AbstractGroup, xi: Vector) -> Config:
        """`tau(xi)`."""
        return getattr(group, self.maps[0])(xi)

    def inverse(self, group: AbstractGroup, g: Config) -> Vector:
        """`xi` with `tau(xi) = g`, near the identity."""
        return getattr(group, self.maps[1])(g)

    def tangent(self, group: AbstractGroup, xi: Vector, w: Vector) -> Vector:
        """Right-trivialised tangent `dR_xi w`."""
        return getattr(group, self.maps[2])(xi, w)

    def tangent_inverse(self, group: AbstractGroup, xi: Vector, w: Vector) -> Vector:
        """Inverse of the right-trivialised tangent, `dR_xi^-1 w`."""
        return getattr(group, self.maps[3])(xi, w)

    def inside(self, group: AbstractGroup, xi: Vector) -> Bool[Array, ""]:
        """Whether `xi` lies in the chart; by default, rotations by less than pi."""
        return group.angle_squared(xi) < pi**2

    def left_tangent(self, group: AbstractGroup, xi: Vector, w: Vector) -> Vector:
        """Left-trivialised tangent `dL_xi w = dR_-xi w`."""
        return self.tangent(group, -xi, w)

    def left_tangent_inverse(self, group: AbstractGroup, xi: Vector, w: Vector) -> Vector:
        """Inverse of the left-trivialised tangent, `dL_xi^-1 w = dR_-xi^-1 w`."""
        return self.tangent_inverse(group, -xi, w)

    def cotangent_inverse(self, group: AbstractGroup, xi: Vector, mu: Vector) -> Vector:
        """Dual of `tangent_inverse`: `(dR_xi^-1)^T mu`."""
        if group.skew_ad:
            return self.tangent_inverse(group, -xi, mu)
        _, pull_back = jax.vjp(lambda w: self.tangent_inverse(group, xi, w), jnp.zeros_like(mu))
        return pull_back(mu)[0]


class Exponential(AbstractRetraction):
    """The exponential map; its chart is used for rotations by less than pi.

    **Arguments:** `power`: highest power of `ad` in `tangent_inverse`, truncated as in
    `dexpinv_series` (for methods of order p, `truncation(p)` suffices); `None`: the closed form of
    the group, which costs less on rotations and rigid motions.
    """

    power: int | None = eqx.field(default=None, static=True)

    maps = "exp_near", "log", "dexp_near", "dexpinv_near"

    def __check_init__(self):
        if self.power is not None:
            _check_power(self.power)

    def tangent_inverse(self, group: AbstractGroup, xi: Vector, w: Vector) -> Vector:
        if self.power is None:
            return super().tangent_inverse(group, xi, w)
        return dexpinv_series(group, xi, w, self.power)


class Cayley(AbstractRetraction):
    """The Cayley map, rational and without branches: `xi` rotates by `2 atan(|xi|/2)`.

    Every `xi` is in its chart, but the map flattens for large `xi`. So tangent vectors longer than
    pi are rejected, as for the exponential.
    """

    maps = "cay", "cay_inv", "dcay", "dcayinv"

    def problem(self, group: AbstractGroup) -> str | None:
        return group.cayley_problem


class QuaternionVector(AbstractRetraction):
    """Unit quaternions from their vector part, `(sqrt(1 - |xi|²/4), xi/2)`, for `|xi| < 2`.

    For rotations and products with vector spaces. Its discrete Euler-Poincaré equations are those
    of Moser and Veselov, in which a free body conserves its energy exactly.
    """

    maps = "quat", "quat_inv", "dquat", "dquatinv"

    def problem(self, group: AbstractGroup) -> str | None:
        return group.quaternion_problem

    def inside(self, group: AbstractGroup, xi: Vector) -> Bool[Array, ""]:
        return group.angle_squared(xi) < 4.0
