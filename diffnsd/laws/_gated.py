"""Switching contacts of a law off, or holding them closed, from outside."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..sets import AbstractSet
from ._base import AbstractLaw, Context


class Gated(AbstractLaw):
    """A law of which some contacts are switched off and some are known to touch.

    Where `on` is 0 a contact has no impulse. Where `touching` is 1 it is closed whatever rounding
    left of its gap: the law sees a gap of 0 at most, and takes part. Elsewhere the law decides.

    **Arguments:** `law`; `on`, `touching`: 0 or 1, shape `()` or `(c,)`.
    """

    law: AbstractLaw
    on: Float[Array, "..."]
    touching: Float[Array, "..."]

    @property
    def rows(self) -> int | None:
        return self.law.rows

    @property
    def least_rows(self) -> int:
        return self.law.least_rows

    @property
    def is_unilateral(self) -> bool:
        return self.law.is_unilateral

    @property
    def needs_implicit_positions(self) -> bool:
        return self.law.needs_implicit_positions

    def set(self) -> AbstractSet:
        return self.law.set()

    def _seen(self, context: Context) -> Context:
        gap = jnp.where(self.touching > 0.5, jnp.minimum(context.gap, 0), context.gap)
        return eqx.tree_at(lambda c: c.gap, context, gap)

    def shift(self, context: Context) -> Float[Array, "k ..."]:
        return self.law.shift(self._seen(context))

    def lift(self, w: Float[Array, "k ..."]) -> Float[Array, "..."]:
        return self.law.lift(w)

    def lift_gradient(self, w: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
        return self.law.lift_gradient(w)

    def active(self, context: Context) -> Bool[Array, "..."]:
        return (self.on > 0.5) & ((self.touching > 0.5) | self.law.active(self._seen(context)))

    def in_step(self, context: Context) -> "Gated":
        return eqx.tree_at(lambda g: g.law, self, self.law.in_step(self._seen(context)))

    def held(self, y: Float[Array, " c"]) -> "Gated":
        return Gated(self.law.held(y), self.on, self.touching)

    def check(self) -> str | None:
        return self.law.check()
