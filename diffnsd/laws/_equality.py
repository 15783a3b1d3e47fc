"""Bilateral constraints."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..sets import AbstractSet, Free
from ._base import AbstractLaw, Context


class Equality(AbstractLaw):
    """`u = 0` with a free multiplier: joints and other bilateral constraints."""

    @property
    def rows(self) -> int | None:
        return None

    @property
    def holds_gap(self) -> bool:
        return True

    def set(self) -> AbstractSet:
        return Free()

    def shift(self, context: Context) -> Float[Array, "k ..."]:
        return jnp.zeros_like(context.u_minus)

    def active(self, context: Context) -> Bool[Array, "..."]:
        return jnp.ones_like(context.gap, dtype=bool)

    def check(self) -> str | None:
        return None
