"""Dry friction with a given limit: joints, brakes, belts."""

import equinox as eqx
from jaxtyping import Array

from ..sets import AbstractSet, Box
from ._base import AbstractLaw, Context, check_range, parameter


class DryFriction(AbstractLaw):
    """Dry friction whose limit does not depend on a normal force, row by row.

        −u ∈ N_[−h L, h L](P):      |P| <= h L,    P = −h L sign(u) where u ≠ 0

    A relay whose multiplier is the impulse of a step of length `h`.

    **Arguments:** `limit`: `L`, largest friction force [N] or couple [N m], nonnegative, shape
    `()` or `(c,)`.

    Reference: V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical systems (2008),
    doi:10.1007/978-3-540-75392-6.
    """

    limit: Array = eqx.field(converter=parameter)

    @property
    def rows(self) -> int | None:
        return None

    @property
    def never_opens(self) -> bool:
        return True

    def set(self) -> AbstractSet:
        return Box(-self.limit, self.limit)

    def in_step(self, context: Context) -> "DryFriction":
        return DryFriction(context.h * self.limit)

    def check(self) -> str | None:
        return check_range("the limit of friction", self.limit, 0, float("inf"))
