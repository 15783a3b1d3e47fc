"""Unilateral constraints without impact."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..sets import AbstractSet, HalfLine
from ._base import AbstractLaw, Context


class Complementarity(AbstractLaw):
    """`0 <= u ⟂ P >= 0` for closed contacts: inelastic stops, ideal diodes."""

    @property
    def rows(self) -> int | None:
        return 1

    def set(self) -> AbstractSet:
        return HalfLine()

    def shift(self, context: Context) -> Float[Array, "k ..."]:
        return jnp.zeros_like(context.u_minus)

    def active(self, context: Context) -> Bool[Array, "..."]:
        return context.closed

    def check(self) -> str | None:
        return None
