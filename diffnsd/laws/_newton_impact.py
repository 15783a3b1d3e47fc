"""Newton's impact law."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from ..sets import AbstractSet, HalfLine
from ._base import AbstractLaw, Context, Rows, check_range, parameter


class NewtonImpact(AbstractLaw):
    """`0 <= u⁺ + e u⁻ ⟂ P >= 0` for closed contacts: frictionless impact with restitution.

    **Arguments:** `e`: coefficient of restitution in [0, 1], shape `()` or `(c,)`.

    Reference: J. J. Moreau, Unilateral contact and dry friction in finite freedom dynamics (1988),
    doi:10.1007/978-3-7091-2624-0_1.
    """

    e: Array = eqx.field(converter=parameter, default=0.0)

    rows = 1
    is_unilateral = True

    def set(self) -> AbstractSet:
        return HalfLine()

    def shift(self, context: Context) -> Rows:
        return jnp.stack([self.e * row for row in context.u_minus])

    def check(self) -> str | None:
        return check_range("the restitution e", self.e, 0, 1)
