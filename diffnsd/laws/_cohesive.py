"""Unilateral contact that sticks until it is pulled off."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..sets import AbstractSet, Box
from ._base import AbstractLaw, Context, Rows, check_range, parameter


class Cohesive(AbstractLaw):
    """Contact with a cohesive zone, which pulls up to a strength that falls with the opening.

        0 <= u⁺ + e u⁻ ⟂ P + h r >= 0    closed,      P = −h r    open by g < length
        r(g) = strength (1 − g/length)

    Separation costs the energy `strength · length / 2`. The zone has no memory: it heals.

    **Arguments:** `strength` [N], nonnegative; `length` [m], positive; `e`: restitution in [0, 1]; each of
    shape `()` or `(c,)`.

    Needs an integrator that moves positions with the end velocity (`theta = 1`).

    Reference: M. Jean, V. Acary, Y. Monerie, Non-smooth contact dynamics approach of cohesive
    materials (2001), doi:10.1098/rsta.2001.0906.
    """

    strength: Array = eqx.field(converter=parameter)
    length: Array = eqx.field(converter=parameter)
    e: Array = eqx.field(converter=parameter, default=0.0)

    rows = 1
    needs_implicit_positions = True

    def set(self) -> AbstractSet:
        return Box(-self.strength, jnp.full_like(self.strength, jnp.inf))

    def shift(self, context: Context) -> Rows:
        # An open contact may close within the step: until then P is at its bound.
        reach = jnp.maximum(context.gap, 0) / context.h
        return jnp.where(context.closed, self.e * context.u_minus[0], reach)[None]

    def active(self, context: Context) -> Bool[Array, "..."]:
        return context.closed | (context.gap < self.length)

    def in_step(self, context: Context) -> "Cohesive":
        opening = jnp.clip(context.gap, 0, self.length)
        pull = context.h * self.strength * (1 - opening / self.length)
        return eqx.tree_at(lambda law: law.strength, self, pull)

    def check(self) -> str | None:
        return (
            check_range("the strength", self.strength, 0)
            or check_range("the length of the cohesive zone", self.length, 1e-300)
            or check_range("the restitution e", self.e, 0, 1)
        )
