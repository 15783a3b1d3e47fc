"""Interactions: contacts, the law that they obey, and which of them take part."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._argument_rules import of_numbers, shape_of
from ._arguments import AbstractChecked
from ._expects import booleans, shown
from ._numerics import as_float
from ._types import Local, PerContact, Scalar, State, Vector
from .laws import AbstractLaw
from .laws._base import check_range
from .relations import AbstractRelation


class ContactMask(AbstractChecked):
    """Which contacts of an interaction take part, and how; shape `(c,)` each.

    **Arguments:**

    - `on`: booleans. A contact that is off has no impulse, whatever its gap and its law.
    - `closed`: booleans. Such a contact is treated as closed regardless of rounding error in the gap:
      the law gets a gap of at most 0. Default: none.
    - `restitution`: factor in [0, 1] on the law's `shift`, which is added to the velocity before the solve;
      0 makes an impact inelastic. Default: 1.
    - `side`: direction of the slip against which a multiplier is held at its bound, while a reversal is
      located: a sign, or a tuple with the two components of a unit vector; 0 where it is free. Only for
      laws that slide (`AbstractLaw.slides`). Default: free.

    **Raises:** `ValueError` if shapes do not match, or known factors lie outside [0, 1].
    """

    on: Bool[Array, " c"]
    closed: Bool[Array, " c"]
    restitution: Float[Array, " c"] | None
    side: tuple[Float[Array, " c"], ...] | None

    def __init__(self, on, closed=None, restitution=None, side=None):
        self.on = booleans("the mask", on)
        self.closed = jnp.zeros_like(self.on) if closed is None else booleans("closed", closed)
        if restitution is not None:
            restitution = as_float(restitution)
            if restitution.shape not in ((), (1,) * self.on.ndim, self.on.shape):
                raise ValueError(
                    f"restitution must be a number or have the shape of the mask, {self.on.shape}, "
                    f"got {restitution.shape}."
                )
            if problem := check_range(
                "restitution, a factor on that of the law,", restitution, 0, 1
            ):
                raise ValueError(f"{problem}.")
            restitution = jnp.broadcast_to(restitution, self.on.shape)
        self.restitution = restitution
        sides = side if side is None or isinstance(side, tuple) else (side,)
        for x in sides or ():
            if not of_numbers(x) or shape_of(x) != self.on.shape:
                raise ValueError(
                    f"side must be numbers with the shape of the mask, {self.on.shape}, or a tuple of two "
                    f"such arrays, got {shown(x)}."
                )
        self.side = sides

    def __and__(self, other: "ContactMask | None") -> "ContactMask":
        """Both masks: on where both are, closed where one is, with the product of their factors."""
        if other is None:
            return self
        factors = [x for x in (self.restitution, other.restitution) if x is not None]
        factor = (
            None if not factors else factors[0] if len(factors) == 1 else factors[0] * factors[1]
        )
        side = other.side if self.side is None else self.side
        return ContactMask(self.on & other.on, self.closed | other.closed, factor, side)

    def pick(self, pick: Callable[[Array], Array], dtype) -> "ContactMask":
        """The mask of some contacts; `pick` maps numbers `(c,)` to those of the kept contacts."""
        on, closed = (pick(x.astype(dtype)) > 0.5 for x in (self.on, self.closed))
        rest = jax.tree.map(pick, (self.restitution, self.side))
        return ContactMask(on, closed, *rest)


def _as_mask(value) -> ContactMask | None:
    return value if value is None or isinstance(value, ContactMask) else ContactMask(value)


class Interaction(AbstractChecked):
    """A relation and the law that its contacts obey.

    **Arguments:**

    - `relation`: where the contacts are. `law`: the law they obey. A law with fewer rows than the
      relation acts on the first ones: `NewtonImpact` on the normal, without friction.
    - `max_active`: solve only the contacts with the smallest gaps, at most this many, where the
      relation can be restricted (`None`: all). If others close in the same step, the result is
      `contact_overflow`.
    - `mask`: which contacts take part, booleans `(c,)`, or a `ContactMask`; `None`: all of them.
      It is data: another mask of the same length needs no compilation.

    **Raises:** `TypeError` if the relation is no relation or the law no law. `ValueError` if the law needs
    more rows than the relation has, `max_active` is not at least 1, or a mask holds other numbers than
    booleans.
    """

    relation: AbstractRelation
    law: AbstractLaw
    max_active: int | None = eqx.field(default=None, static=True)
    mask: ContactMask | None = eqx.field(default=None, converter=_as_mask)

    def __check_init__(self):
        if self.max_active is not None and self.max_active < 1:
            raise ValueError(
                f"max_active must be at least 1, or None for all contacts, got {self.max_active}."
            )
        if problem := self.law.refuses(self.relation.rows):
            raise ValueError(f"{type(self.relation).__name__}: {problem}.")

    @property
    def rows(self) -> int:
        """Rows per contact that take part in the law."""
        return self.relation.rows if self.law.rows is None else self.law.rows

    def on(self, system: Any) -> AbstractRelation:
        """The relation in the coordinates of a system, see `AbstractRelation.on`."""
        return self.relation.on(system)

    def output(self, system: Any, t: Scalar, state: State, lam: Local) -> Local:
        """The outputs that take part in the law, `(c, k)`, for their multipliers `(c, k)`."""
        relation = self.on(system)
        values = relation.output(system.group, t, state, self._padded(lam))
        return relation.checked(values)[:, : self.rows]

    def input(self, system: Any, t: Scalar, state: State, lam: Local) -> Vector:
        """The generalised force of these multipliers, `(n,)`."""
        return self.on(system).input(system.group, t, state, self._padded(lam))

    def _padded(self, lam: Local) -> Local:
        return jnp.pad(lam, ((0, 0), (0, self.relation.rows - self.rows)))

    def held(self, gap: PerContact | None) -> PerContact | None:
        """Gaps [m] passed to the law, `(c,)`: at most 0 where the mask is `closed`."""
        if gap is None or self.mask is None:
            return gap
        return jnp.where(self.mask.closed, jnp.minimum(gap, 0), gap)

    def reachable(self, gap: PerContact | None) -> PerContact | None:
        """The same gaps for finding the contacts that close: infinite where the mask is not `on`."""
        gap = self.held(gap)
        return gap if gap is None or self.mask is None else jnp.where(self.mask.on, gap, jnp.inf)
