"""Relays: multipliers that switch between bounds."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._jax import is_traced
from ..sets import AbstractSet, Box
from ._base import AbstractLaw, parameter


class Relay(AbstractLaw):
    """`−y ∈ N_[lower, upper](lam)`: a relay, dry friction of known threshold, a sliding mode.

        y > 0: lam = lower,     y < 0: lam = upper,     y = 0: lower <= lam <= upper

    With the default bounds `lam ∈ −Sgn(y)`. Bounds may be infinite: `Relay(0, inf)` is
    complementarity, `Relay(-inf, inf)` an equality. It acts on all rows of a relation.

    **Arguments:** `lower`, `upper`: bounds of the multipliers, shape `()` or `(c,)`.

    Reference: V. Acary, B. Brogliato, Implicit Euler numerical scheme and chattering-free
    implementation of sliding mode systems (2010), doi:10.1016/j.sysconle.2010.03.002.
    """

    lower: Array = eqx.field(converter=parameter, default=-1.0)
    upper: Array = eqx.field(converter=parameter, default=1.0)

    never_opens = True
    slides = True

    def set(self) -> AbstractSet:
        return Box(self.lower, self.upper)

    def held(self, side: tuple[Float[Array, " c"], ...]) -> "Relay":
        lower, upper, sign = self.lower, self.upper, side[0]
        return Relay(
            jnp.where((sign < 0) & (upper < jnp.inf), upper, lower),
            jnp.where((sign > 0) & (lower > -jnp.inf), lower, upper),
        )

    def check(self) -> str | None:
        bounds = self.lower, self.upper
        if any(map(is_traced, bounds)):
            return None
        lower, upper = map(np.asarray, bounds)
        if np.all((lower <= upper) & (lower < np.inf) & (upper > -np.inf)):
            return None
        return f"the relay's lower bound {lower} must not exceed its upper bound {upper}"
