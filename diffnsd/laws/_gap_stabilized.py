"""Contact laws that use the gap: no penetration at the end of a step."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..sets import AbstractSet
from ._base import AbstractLaw, Context, Lanes, Rows, check_range, parameter


class GapStabilized(AbstractLaw):
    """A unilateral law with `u_N + g/h >= 0` for open contacts in place of `u_N >= 0`.

    The contact may close exactly within the step, instead of being found closed afterwards. So the
    penetration is of second order in `h` (from the curvature of the gap), not of first order.
    Penetrated contacts are pushed out with at most `rest_speed`, `u_N >= min(-g/h, rest_speed)`, which adds
    no more energy than a body of that speed has. So the corners of a face that comes to rest lie in
    the plane, all of them, and it does not depend on rounding which of them carry.
    Where the inner law would rebound faster than `rest_speed`, the rebound is exact and the contact
    stays at its height at impact.

    **Arguments:**

    - `law`: the unilateral law, for example `CoulombFriction(mu, e)`.
    - `rest_speed`: normal velocities [m/s] up to this count as rest: slower rebounds are a landing without
      rebound, and penetrations are pushed out no faster. Shape `()` or `(c,)`, nonnegative. With 0 a
      penetrated contact stays where it is, and rounding may decide how a face comes to rest.

    **Raises:** `ValueError` if the law is not unilateral, since an `Equality` would glue open contacts, or is
    of this kind itself.

    Needs an integrator that moves positions with the end velocity (`theta = 1`).

    Reference: D. Stewart, J. Trinkle, An implicit time-stepping scheme (1996),
    doi:10.1002/(SICI)1097-0207(19960815)39:15<2673::AID-NME972>3.0.CO;2-I.
    """

    law: AbstractLaw
    rest_speed: Array = eqx.field(converter=parameter, default=1e-3)

    is_unilateral = True
    needs_implicit_positions = True
    switches = True

    def __check_init__(self):
        if not self.law.is_unilateral or self.law.needs_implicit_positions:
            raise ValueError(
                f"GapStabilized needs a unilateral law, such as NewtonImpact or CoulombFriction; "
                f"{type(self.law).__name__} acts on open contacts too (a law of your own that does "
                "not sets `is_unilateral = True`)."
            )

    @property
    def rows(self) -> int | None:
        """Those of the inner law."""
        return self.law.rows

    @property
    def least_rows(self) -> int:
        """Those of the inner law."""
        return self.law.least_rows

    def refuses(self, rows: int) -> str | None:
        return self.law.refuses(rows)

    @property
    def slides(self) -> bool:
        """Whether the inner law slides."""
        return self.law.slides

    def held(self, side: tuple[Float[Array, " c"], ...]) -> "GapStabilized":
        return eqx.tree_at(lambda s: s.law, self, self.law.held(side))

    def set(self) -> AbstractSet:
        return self.law.set()

    def edge(self, context: Context) -> Lanes:
        # An approaching contact rebounds if it closes and is fast enough; otherwise it lands.
        rebound = -self.law.shift(context)[0]
        closing_speed = -context.gap / context.h - context.u_minus[0]
        by_gap = jnp.where(rebound > self.rest_speed, jnp.abs(closing_speed), jnp.inf)
        approaches = (rebound > 0) & (closing_speed >= 0)
        by_speed = jnp.where(approaches, jnp.abs(rebound - self.rest_speed), jnp.inf)
        # Where a deep penetration becomes a shallow one, only the derivative jumps.
        deep = (self.rest_speed > 0) & (context.gap < 0)
        by_depth = jnp.where(deep, jnp.abs(context.gap / context.h + self.rest_speed), jnp.inf)
        return jnp.minimum(jnp.minimum(by_gap, by_speed), by_depth)

    def shift(self, context: Context) -> Rows:
        inner = self.law.shift(context)
        rebound = -inner[0]
        closing = context.gap + context.h * context.u_minus[0] <= 0
        impact = closing & (rebound > self.rest_speed)
        # The corners of a face stay in one plane as long as all of them are brought to the surface.
        reach = jnp.maximum(context.gap / context.h, -self.rest_speed)
        landing = jnp.concatenate([reach[None], jnp.zeros_like(inner[1:])])
        return jnp.where(impact[None], inner, landing)

    def lift(self, w: Rows) -> Lanes:
        return self.law.lift(w)

    def lift_gradient(self, w: Rows) -> Rows:
        return self.law.lift_gradient(w)

    def active(self, context: Context) -> Bool[Array, "..."]:
        # All: because of the shift g/h, the law gives no impulse to a contact out of reach.
        return jnp.ones_like(context.gap, dtype=bool)

    def in_step(self, context: Context) -> "GapStabilized":
        return eqx.tree_at(lambda s: s.law, self, self.law.in_step(context))

    def check(self) -> str | None:
        return self.law.check() or check_range("the rest_speed", self.rest_speed, 0)
