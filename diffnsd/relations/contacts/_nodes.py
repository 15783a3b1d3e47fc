"""Nodes of large systems against half spaces."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._arguments import Numbers
from ..._block_rows import EntryRows
from ..._expects import not_unit
from ..._jax import concrete, is_traced
from ..._numerics import as_float, dot
from ..._types import Config, Local, PerContact, Scalar, State
from ...groups import AbstractGroup
from .._base import AbstractRelation, Contacts
from ._body_points import tangents


class NodesHalfSpace(AbstractRelation):
    """Chosen nodes of a system against the half space `{x : normal · x <= offset}`.

    The gap of a node is `normal · (rest + q[dofs]) − offset`. The rows of a contact are the normal and, in
    the plane and in space, one and two tangents. `H` has as many entries per row as the node has
    coordinates, and is stored so.

    **Arguments:**

    - `dofs`: indices of the coordinates of every node in `q`, `(c, d)` with d = 1, 2 or 3. An index that is
      not below `n` is no unknown, that of a coordinate which does not move. Of nodes that turn only the
      positions: `body.unknowns_of(nodes, [0, 1, 2])` of `Beams`.
    - `normal`: unit normal towards the nodes, `(d,)`. `offset`: distance of the plane from the origin [m].
    - `rest`: positions where `q` is zero [m], `(c, d)`, if `q` are displacements; default zero.

    **Raises:** `ValueError` if shapes do not match or the normal is not of unit length.
    """

    dofs: Int[Array, "c d"]
    normal: Float[Array, " d"]
    offset: Float[Array, ""]
    rest: Float[Array, "c d"]

    is_scleronomic = True

    def __init__(self, dofs, normal, offset: Numbers = 0.0, rest: Numbers = 0.0):
        self.dofs, self.normal = jnp.asarray(dofs), as_float(normal)
        self.offset = as_float(offset, self.normal.dtype)
        if self.dofs.ndim != 2 or self.normal.shape != self.dofs.shape[1:]:
            raise ValueError(
                f"dofs must have shape (c, d) and normal (d,), got {self.dofs.shape} and {self.normal.shape}."
            )
        if not jnp.issubdtype(self.dofs.dtype, jnp.integer):
            raise TypeError(f"dofs must be whole numbers, got numbers of type {self.dofs.dtype}.")
        if self.offset.shape not in ((), self.dofs.shape[:1]):
            raise ValueError(
                f"offset must be one number, or one for each node, got shape {self.offset.shape}."
            )
        if np.shape(rest) not in ((), self.dofs.shape[1:], self.dofs.shape):
            raise ValueError(
                f"rest must be one number or have the shape of dofs, {self.dofs.shape}, got {np.shape(rest)}."
            )
        self.rest = jnp.broadcast_to(as_float(rest, self.normal.dtype), self.dofs.shape)
        if problem := not_unit(self.normal):
            raise ValueError(f"{problem}.")

    @property
    def rows(self) -> int:
        return self.normal.shape[0]

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        return self.dofs.shape[0]

    def gap(self, t: Scalar, q: Config) -> PerContact:
        place = self.rest + q.at[self.dofs].get(mode="fill", fill_value=0)
        return dot(self.normal[:, None], place.T) - self.offset

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        frame = jnp.stack([self.normal, *self._tangents()])
        c, d = self.dofs.shape
        values = jnp.broadcast_to(frame[:, :, None], (d, d, c))
        drift = jnp.zeros((d, c), frame.dtype)
        return Contacts(self.gap(t, q), EntryRows(values, self.dofs, group.dim), drift)

    def _tangents(self) -> tuple[Array, ...]:
        if self.rows == 3:
            return tangents(self.normal)
        return (jnp.stack([-self.normal[1], self.normal[0]]),) if self.rows == 2 else ()

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        return self.observe(group, t, state.q).velocity(state.v).T

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Array:
        return self.observe(group, t, state.q).H.gather(lam.T)  # pyright: ignore[reportAttributeAccessIssue]

    def check(self, group: AbstractGroup) -> str | None:
        dofs = concrete(self.dofs)
        places = np.zeros(0, int) if is_traced(dofs) else np.asarray(dofs)
        if np.array_equal(places, group.own_columns(places)):  # pyright: ignore[reportArgumentType]
            return None
        return (
            f"NodesHalfSpace needs coordinates that are positions; not all of its dofs on {group} are: of "
            "nodes that turn give the positions alone, as body.unknowns_of(nodes, [0, 1, 2]), and for rigid "
            "bodies take shape_contacts(...)"
        )

    def take(self, pick: Callable[[Array], Array]) -> "NodesHalfSpace":
        dofs = pick(self.dofs.astype(self.normal.dtype))
        dofs = jnp.round(dofs).astype(self.dofs.dtype)
        return NodesHalfSpace(dofs, self.normal, self.offset, pick(self.rest))
