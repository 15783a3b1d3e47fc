"""Dry friction with a given limit: joints, brakes, belts."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..sets import AbstractSet, Box
from ._base import AbstractLaw, Context, check_range, parameter


class DryFriction(AbstractLaw):
    """Dry friction whose limit does not depend on a normal force, row by row.

        −u ∈ N_[−h L, h L](P):      |P| <= h L,    P = −h L sign(u) where u ≠ 0

    A relay whose multiplier is the impulse of a step of length `h`.

    **Arguments:** `limit`: `L`, largest friction force [N] or couple [N m], nonnegative, shape
    `()` or `(c,)`. `side`: set by integrators, see `ContactMask`.

    Reference: V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical systems (2008),
    doi:10.1007/978-3-540-75392-6.
    """

    limit: Array = eqx.field(converter=parameter)
    side: Array | None = None

    never_opens = True
    slides = True

    def set(self) -> AbstractSet:
        if self.side is None:
            return Box(-self.limit, self.limit)
        lower = jnp.where(self.side < 0, self.limit, -self.limit)
        return Box(lower, jnp.where(self.side > 0, -self.limit, self.limit))

    def held(self, side: tuple[Float[Array, " c"], ...]) -> "DryFriction":
        return DryFriction(self.limit, side[0])

    def in_step(self, context: Context) -> "DryFriction":
        return DryFriction(context.h * self.limit, self.side)

    def check(self) -> str | None:
        return check_range("the limit of friction", self.limit, 0)
