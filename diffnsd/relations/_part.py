"""Relations of one system of a product."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._block_rows import AbstractRows, EntryRows, apply
from .._expects import shown
from .._types import Config, Local, PerContact, Scalar, State, Vector
from ..groups import AbstractGroup
from ._base import AbstractRelation, AbstractWrappedRelation, Contacts


class OnPart(AbstractWrappedRelation):
    """A relation of one system of a `SystemProduct`.

        Interaction(OnPart(system, 1, FirstOrderLinear(C, B)), law)

    Next to a mechanism, a relation of a first-order system connects its state at the end of a step with
    force-like multipliers. The `impulses` of a solution are then `∫ lam dt`, as for that system alone.

    **Arguments:** `system`: the product; `part`: which of its systems; `relation`: as for that system
    alone.

    **Raises:** `ValueError` if the product has no such system, or the relation does not fit the system.
    """

    relation: AbstractRelation
    part: int = eqx.field(static=True)
    first: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    total: int = eqx.field(static=True)

    def __init__(self, system: Any, part: int, relation: AbstractRelation):
        systems = () if isinstance(system, type) else getattr(system, "systems", ())
        if not systems:
            raise TypeError(f"system must be a SystemProduct of several; got {shown(system)}.")
        count = len(systems)
        if not 0 <= part < count:
            raise ValueError(f"the product has the systems 0 to {count - 1}, got part={part}.")
        own = relation.part_of(system.systems[part])
        if own.kind.has_positions != relation.needs_positions:
            needs = "positions" if relation.needs_positions else "the state of a first-order system"
            fitting = [
                str(i)
                for i, s in enumerate(system.systems)
                if s.kind.has_positions == relation.needs_positions
            ]
            raise ValueError(
                f"{type(relation).__name__} is a relation of {needs}, and system {part} of the "
                f"product is a {type(own).__name__}; it fits system {' or '.join(fitting) or 'none'}."
            )
        where = system.slices()[part]
        self.relation = relation
        self.part = part
        self.first, self.size = where.start, where.stop - where.start
        self.total = system.velocities

    @property
    def needs_positions(self) -> bool:
        return self.relation.needs_positions

    def of_part(self, part: int) -> AbstractRelation | None:
        return self.relation if part == self.part else None

    def part_of(self, system: Any) -> Any:
        return self.relation.part_of(system.systems[self.part])

    def on(self, system: Any) -> AbstractRelation:
        placed = self.relation.on(system.systems[self.part])
        return self if placed is self.relation else eqx.tree_at(lambda r: r.relation, self, placed)

    def _group(self, group: AbstractGroup) -> AbstractGroup:
        factors = getattr(group, "factors", None)
        return group if factors is None else factors[self.part]

    def _q(self, q: Config) -> Config:
        return q[self.part] if self.needs_positions else None

    def _own(self, state: State) -> State:
        return State(self._q(state.q), state.v[self.first : self.first + self.size])

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        return self.relation.count(self._group(group), t, self._q(q))

    def gap(self, t: Scalar, q: Config) -> PerContact | None:
        return self.relation.gap(t, self._q(q))

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        own = self._group(group)
        if lam is None and not self.needs_positions:
            lam = jnp.zeros((self.count(group, t, state.q), self.rows), state.v.dtype)
        return self.relation.output(own, t, self._own(state), lam)

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        force = self.relation.input(self._group(group), t, self._own(state), lam)
        return jnp.pad(force, (self.first, self.total - self.first - self.size))

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        if not self.needs_positions:
            return super().observe(group, t, q)
        seen = self.relation.observe(self._group(group), t, self._q(q))
        return Contacts(seen.gap, self._placed(seen.H), seen.drift, seen.known)

    def _placed(self, rows: Array | AbstractRows) -> Array | AbstractRows:
        """`H` of the part in the columns of the product."""
        if isinstance(rows, AbstractRows):
            return _PlacedRows(rows, self.first, self.total)
        rest = self.total - self.first - self.size
        return jnp.pad(rows, ((0, 0), (self.first, rest), (0, 0)))

    def check(self, group: AbstractGroup) -> str | None:
        return self.relation.check(self._group(group))

    def take(self, pick: Callable[[Array], Array]) -> "OnPart | None":
        taken = self.relation.take(pick)
        return None if taken is None else eqx.tree_at(lambda r: r.relation, self, taken)


class _PlacedRows(AbstractRows):
    """Rows for the unknowns of a part, which come `first` among the `total` ones of a product.

    They keep their form: steps of large systems ask for entries, all others for the matrix, which is made
    faster from the form than from entries.
    """

    rows: AbstractRows
    start: int = eqx.field(static=True)
    total: int = eqx.field(static=True)

    def first(self, k: int) -> "_PlacedRows":
        return _PlacedRows(self.rows.first(k), self.start, self.total)

    def entries(self) -> EntryRows:
        return self.rows.entries().placed(self.start, self.total)

    def dense(self) -> Float[Array, "k n c"]:
        values = self.rows.dense()
        rest = self.total - self.start - values.shape[1]
        return jnp.pad(values, ((0, 0), (self.start, rest), (0, 0)))

    def apply(self, v: Float[Array, " n"]) -> Float[Array, "k c"]:
        return apply(self.dense(), v)
