"""Newton's impact law."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..sets import AbstractSet, HalfLine
from ._base import AbstractLaw, Context, check_range


class NewtonImpact(AbstractLaw):
    """`0 <= u⁺ + e u⁻ ⟂ P >= 0` for closed contacts: frictionless impact with restitution.

    **Arguments:** `e`: coefficient of restitution in [0, 1], shape `()` or `(c,)`.

    Reference: J. J. Moreau, Unilateral contact and dry friction in finite freedom dynamics (1988),
    doi:10.1007/978-3-7091-2624-0_1.
    """

    e: Array | float = 0.0

    @property
    def rows(self) -> int | None:
        return 1

    def set(self) -> AbstractSet:
        return HalfLine()

    def shift(self, context: Context) -> Float[Array, "k ..."]:
        return jnp.stack([self.e * row for row in context.u_minus])

    def active(self, context: Context) -> Bool[Array, "..."]:
        return context.closed

    def check(self) -> str | None:
        return check_range("the restitution e", self.e, 0, 1)
