"""The interface of a contact law.

A law requires, for every contact,

    K* ∋ w + lift(w) e_N  ⟂  P ∈ K,      w = u + shift

`set()` is `K`. The bias of the law has two parts: the `shift`, known before the step is solved
(restitution, stabilisation), and the `lift` of the normal row by the slip velocity (the De Saxcé
term of friction). Arrays have the rows of a contact on the first axis, `u` of shape `(k, ...)`; the
trailing axes are contacts and batch elements. Parameters are leaves of shape `()` or `(c,)`.
"""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._arguments import AbstractChecked
from .._jax import eval_now, is_traced
from .._numerics import as_float, safe_norm
from ..sets import AbstractSet

Rows = Float[Array, "k ..."]
"""The rows of contacts."""
Lanes = Float[Array, "..."]
"""A number for every contact."""


LIFTED = 1e-5, 1e-8
"""Gaps under lasting contacts that count as closed, relative to the coordinates, in float32 and float64."""


class Context(eqx.Module):
    """The data that a law may use about its contacts before the step is solved.

    **Arguments:**

    - `u_minus`: local velocity at the start of the step [m/s], shape `(k, ...)`.
    - `gap`: gap at the start of the step [m], open is positive, shape `(...)`; `-inf` for
      relations without a gap, which are always closed.
    - `h`: length of the step [s], shape `(...)`.
    - `gamma`: the fraction of the step over which closing is predicted, shape `(...)`.
    - `size`: magnitude of the coordinates [m], to which the errors of a gap are relative; shape
      `(...)` or a number.
    - `bend`: how far the gap opens in a step because the surface falls away under the contact [m], shape
      `(...)` or a number: of this size are the gaps that steps leave there under contacts that last.
    """

    u_minus: Rows
    gap: Lanes
    h: Lanes
    gamma: Lanes
    size: Lanes | float = 1.0
    bend: Lanes | float = 0.0

    @property
    def predicted_gap(self) -> Lanes:
        """`g + gamma h u_N`, the gap predicted from the velocity at the start."""
        return self.gap + self.gamma * self.h * self.u_minus[0]

    @property
    def closed(self) -> Bool[Array, "..."]:
        """Whether the predicted gap is closed; a gap of rounding size counts as closed.

        So does one that the tolerance of a step, or its error on a curved surface, has left under a contact
        that neither opens nor closes: if it counted as open, the contact would fall freely for a step.
        """
        lifted = LIFTED[jnp.finfo(self.gap.dtype).bits >= 64] * self.size + self.bend
        lasts = (self.gap <= lifted) & (self.h * jnp.abs(self.u_minus[0]) <= lifted)
        rounding = 64 * jnp.finfo(self.gap.dtype).eps * self.size
        return (self.predicted_gap <= rounding) | lasts


class AbstractLaw(AbstractChecked):
    """A contact law: a set and a bias.

    A subclass implements `set`, and what differs from the default of another method: `shift` is the bias
    that is known before the step, `check` says what is wrong with the parameters. As class attributes or
    properties it states what differs from these defaults:

    - `rows = None`: rows per contact that the law acts on (the first ones); `None` for all.
    - `least_rows = 1`: rows per contact that the law needs.
    - `is_unilateral = False`: whether `K` excludes pulling (`P_N >= 0`), so that an open contact has no
      impulse.
    - `never_opens = False`: whether the law acts whatever the gap is: constraints, relays, dry friction.
      Such contacts take part in every step and in every impact, but never cause an impact.
    - `holds_gap = False`: whether the gap itself must vanish, not only its rate: a bilateral constraint.
    - `needs_implicit_positions = False`: whether the law is correct only if the step moves positions with
      the end velocity.
    - `switches = False`: whether the shift jumps where the data of a step cross a threshold, at distance
      `edge`.
    - `slides = False`: whether the sign of an output or slip puts the multiplier on a bound, see `held`:
      relays, friction.
    """

    rows: ClassVar[int | None] = None
    least_rows: ClassVar[int] = 1
    is_unilateral: ClassVar[bool] = False
    never_opens: ClassVar[bool] = False
    holds_gap: ClassVar[bool] = False
    needs_implicit_positions: ClassVar[bool] = False
    switches: ClassVar[bool] = False
    slides: ClassVar[bool] = False

    def refuses(self, rows: int) -> str | None:
        """Error message if the law cannot act on contacts with this many rows, else `None`."""
        needed = max(self.least_rows, self.rows or 1)
        if rows >= needed:
            return None
        return (
            f"{type(self).__name__} needs at least {needed} rows per contact (the normal, then the "
            f"tangents), got {rows}; a relation of your own has rows_per_contact= for it"
        )

    @abstractmethod
    def set(self) -> AbstractSet:
        """The set `K` of admissible multipliers."""

    def shift(self, context: Context) -> Rows:
        """The part of the bias that does not depend on the solution, shape `(k, ...)`.

        Zero by default.
        """
        return jnp.zeros_like(context.u_minus)

    def edge(self, context: Context) -> Lanes:
        """How far the data are from a jump of the shift [m/s], shape `(...)`; infinite where none is near.

        Used only if the law `switches`. It enters the `margin` of a step.
        """
        return jnp.full_like(context.gap, jnp.inf)

    def lift(self, w: Rows) -> Lanes:
        """The term that slip adds to the normal row, shape `(...)`; zero by default."""
        return jnp.zeros_like(w[0])

    def lift_gradient(self, w: Rows) -> Rows:
        """Derivative of `lift` with respect to `w`, one element of it where it is not smooth."""
        return jnp.zeros_like(w)

    def active(self, context: Context) -> Bool[Array, "..."]:
        """Which contacts take part in the step: all if the law never opens, else the closed ones."""
        return jnp.ones_like(context.closed) if self.never_opens else context.closed

    def in_step(self, context: Context) -> "AbstractLaw":
        """The law with force limits multiplied by the step length, as impulse limits.

        By default the law itself. `shift` and `active` are evaluated on the original law, `set` and
        `lift` on this one. At an impact `context.h` is 0: it has no duration in which a limited
        force could act.
        """
        return self

    def held(self, side: tuple[Float[Array, " c"], ...]) -> "AbstractLaw":
        """The law with multipliers held at their bound for slip along `side`; free where `side` is 0.

        The law itself unless it `slides`. `side` holds the components of a unit vector. The first is a
        sign if the slip has one row.
        """
        return self

    def check(self) -> str | None:
        """Error message if a parameter with a known value is invalid, else `None`."""
        return None


def parameter(value) -> Array:
    """A parameter of a law as an array of real numbers; known values stay known inside `jit`."""
    return eval_now(as_float, value)


def check_range(name: str, value, low: float, high: float = np.inf) -> str | None:
    """An error message if a parameter is known to be not finite or outside `[low, high]`, else `None`."""
    if is_traced(value):
        return None
    array = np.asarray(value, dtype=float)
    if np.all((array >= low) & (array <= high) & np.isfinite(array)):
        return None
    end = "]" if np.isfinite(high) else ")"
    found = np.array2string(array, threshold=8)
    return f"{name} must lie in [{low:g}, {high:g}{end}, got {found}"


def friction_problem(mu, e, e_t) -> str | None:
    """An error message if a friction coefficient or restitution is known to be out of range, else `None`."""
    return (
        check_range("the friction coefficient mu", mu, 0)
        or check_range("the restitution e", e, 0, 1)
        or check_range("the tangential restitution e_t", e_t, -1, 1)
    )


def along(mu: Array, slip: Rows) -> Rows:
    """The derivative of `mu |slip|`, zero without slip."""
    length = safe_norm(slip)
    return (mu / jnp.where(length > 0, length, 1))[None] * slip
