"""Coulomb friction with restitution, exact round cone."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import safe_norm
from ..sets import AbstractSet, SecondOrderCone, SlidingCone
from ..sets._sliding_cone import is_free
from ._base import AbstractLaw, Context, Lanes, Rows, along, friction_problem, parameter


class CoulombFriction(AbstractLaw):
    """Unilateral contact with Coulomb friction and Newton restitution.

    With `w = (u_N⁺ + e u_N⁻, u_T⁺ + e_t u_T⁻)` the law is, in De Saxcé's form,

        K* ∋ w + (mu |w_T|, 0)  ⟂  P ∈ K,     K = {|P_T| <= mu P_N}

    that is, the contact is open, or sticks with `P` inside the cone, or slides with `P` on the cone
    and opposite to the slip. Sliding does not raise the normal velocity (no convex relaxation).

    **Arguments:**

    - `mu`: friction coefficient, nonnegative and finite, shape `()` or `(c,)`.
    - `e`: normal restitution in [0, 1]. `e_t`: tangential restitution in [-1, 1], of all rows but the
      first.
    - `side`: set by integrators, see `ContactMask`.

    `w_T` are all rows of a contact but the first: with `spin` and `roll` of `ContactFrame` also those of
    rotation, whose couples share the cone. The time at which slip reverses is then not located.

    Reference: G. De Saxcé, Z.-Q. Feng, The bipotential method (1998),
    doi:10.1016/S0895-7177(98)00119-8.
    """

    mu: Array = eqx.field(converter=parameter)
    e: Array = eqx.field(converter=parameter, default=0.0)
    e_t: Array = eqx.field(converter=parameter, default=0.0)
    side: tuple[Array, ...] | None = None

    least_rows = 2
    is_unilateral = True
    slides = True

    def held(self, side: tuple[Float[Array, " c"], ...]) -> "CoulombFriction":
        return CoulombFriction(self.mu, self.e, self.e_t, side)

    def set(self) -> AbstractSet:
        return SecondOrderCone(self.mu) if self.side is None else SlidingCone(self.mu, self.side)

    def shift(self, context: Context) -> Rows:
        before = context.u_minus
        return jnp.stack([self.e * before[0], *(self.e_t * row for row in before[1:])])

    def lift(self, w: Rows) -> Lanes:
        slip = safe_norm(w[1:])
        if self.side is not None:
            held = sum(s * u for s, u in zip(self.side, w[1:], strict=False))
            slip = jnp.where(is_free(self.side), slip, held)
        return self.mu * slip

    def lift_gradient(self, w: Rows) -> Rows:
        slope = along(self.mu, w[1:])
        if self.side is not None:
            held = jnp.stack([self.mu * s for s in self.side[: len(slope)]])
            slope = jnp.where(is_free(self.side)[None], slope, held)
        return jnp.concatenate([jnp.zeros_like(w[:1]), slope])

    def check(self) -> str | None:
        return friction_problem(self.mu, self.e, self.e_t)
