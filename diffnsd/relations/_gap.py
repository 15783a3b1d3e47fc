"""Contacts and constraints from one user function."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx

from .._expects import returned
from .._types import Config, Local, PerContact, Scalar, State
from ..groups import AbstractGroup
from ._base import AbstractRelation, Contacts, along, linear_part, own_columns, reads_bodies


class GapRelation(AbstractRelation):
    """Contacts given by a function `g(t, q)`; `u = dg/dt` along the motion.

    `u = H v + ∂g/∂t` and `p = H^T lam` both come from `g` by automatic differentiation along the
    motions of the group, so the relation is correct on `R^n` and on rotations alike. A function that
    does not depend on `t` is scleronomous, one that does rheonomous.

    **Arguments:**

    - `function`: `g(t, q)` with shape `(c,)`: gaps [m], positive when open; or `(c, k)`: the gap
      first, then tangential displacements [m], whose rates are the slip velocities. It may be an
      `equinox.Module`: its leaves are parameters.
    - `rows_per_contact`: `k`, 1 for a function with values of shape `(c,)`.

    **Raises:** `ValueError` when a simulation is traced, before it is compiled, if the function
    returns another shape.
    """

    function: Annotated[Callable, "(t, q)"]
    rows_per_contact: int = eqx.field(default=1, static=True)

    @property
    def rows(self) -> int:
        return self.rows_per_contact

    @property
    def is_of_bodies(self) -> bool:
        return reads_bodies(self.function)

    def own_columns(self, group: AbstractGroup) -> tuple[int, ...] | None:
        return own_columns(self.function, group) if self.rows == 1 else None

    def _values(self, t: Scalar, q: Config) -> Local:
        what = "gaps, real numbers of shape (c,) or (c, k)"
        values = returned("the gap function(t, q)", self.function(t, q), what, smooth=True)
        if not values.size:
            raise ValueError(
                "the gap function(t, q) must return one gap at least; it returned none: leave its "
                "Interaction out."
            )
        if values.ndim == 1 and self.rows == 1:
            return values[:, None]
        if values.ndim != 2 or values.shape[1] != self.rows:
            raise ValueError(
                f"the gap function returned shape {values.shape}; expected (c,) for one row per "
                f"contact or (c, {self.rows}) for rows_per_contact={self.rows}."
            )
        return values

    def gap(self, t: Scalar, q: Config) -> PerContact:
        return self._values(t, q)[:, 0]

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        return along(self._values, group, t, state)[1]

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        def rates(v):
            values, rate = along(self._values, group, t, State(q, v))
            return rate, values[:, 0]

        h, drift, gap = linear_part(rates, group, q, self.own_columns(group))
        return Contacts(gap, h, drift)
