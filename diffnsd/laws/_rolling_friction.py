"""Coulomb friction with rolling resistance."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._numerics import safe_norm
from ..sets import AbstractSet, RollingCone
from ._base import (
    AbstractLaw,
    Context,
    Lanes,
    Rows,
    along,
    check_range,
    friction_problem,
    parameter,
)


class RollingFriction(AbstractLaw):
    """Unilateral contact with Coulomb friction, rolling resistance and restitution.

    With `w = (u_N⁺ + e u_N⁻, u_T⁺ + e_t u_T⁻, ω_R⁺)`, the last the rolling rate [rad/s],

        K* ∋ w + (mu |w_T| + mu_r |w_R|, 0, 0)  ⟂  P ∈ K
        K = {|P_T| <= mu P_N, |P_R| <= mu_r P_N}

    `P_R` [N m s] is the couple against rolling. A rolling body works against the couple `mu_r P_N`;
    below this couple it does not roll.

    **Arguments:**

    - `mu`: friction coefficient, nonnegative and finite, shape `()` or `(c,)`.
    - `mu_r`: rolling friction coefficient [m], likewise.
    - `e`: normal restitution in [0, 1]. `e_t`: tangential restitution in [-1, 1].

    It needs relations with as many rolling rows as tangential ones: 5 rows in space
    (`ContactFrame(..., rolling=True)`), 3 in the plane.

    Reference: A. Tasora, M. Anitescu, A complementarity-based rolling friction model for rigid
    contacts (2013), doi:10.1007/s11012-013-9694-y (there without the shift of friction).
    """

    mu: Array = eqx.field(converter=parameter)
    mu_r: Array = eqx.field(converter=parameter)
    e: Array = eqx.field(converter=parameter, default=0.0)
    e_t: Array = eqx.field(converter=parameter, default=0.0)

    least_rows = 3

    def refuses(self, rows: int) -> str | None:
        if rows in (3, 5):
            return None
        return (
            "RollingFriction needs contacts with 5 rows (normal, 2 tangential, 2 rolling) or, in the "
            f"plane, 3; got {rows}. ContactFrame(..., rolling=True) has them"
        )

    is_unilateral = True

    def set(self) -> AbstractSet:
        return RollingCone(self.mu, self.mu_r)

    def shift(self, context: Context) -> Rows:
        before, half = context.u_minus, (context.u_minus.shape[0] - 1) // 2
        slip = [self.e_t * row for row in before[1 : 1 + half]]
        return jnp.stack([self.e * before[0], *slip, *jnp.zeros_like(before[1 + half :])])

    def lift(self, w: Rows) -> Lanes:
        half = (w.shape[0] - 1) // 2
        return self.mu * safe_norm(w[1 : 1 + half]) + self.mu_r * safe_norm(w[1 + half :])

    def lift_gradient(self, w: Rows) -> Rows:
        half = (w.shape[0] - 1) // 2
        slip, roll = along(self.mu, w[1 : 1 + half]), along(self.mu_r, w[1 + half :])
        return jnp.concatenate([jnp.zeros_like(w[:1]), slip, roll])

    def check(self) -> str | None:
        rolling = check_range("the rolling friction coefficient mu_r", self.mu_r, 0)
        return friction_problem(self.mu, self.e, self.e_t) or rolling
