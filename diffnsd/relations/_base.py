"""The interface of a relation.

A relation gives the local velocity `u = H(t, q) v + drift(t, q)` of `c` contacts with `k` rows each
(normal first) and, by virtual power, the generalised force `H^T p` of their multipliers. Relations of
first-order systems state both directions themselves: an output of state and multipliers, an input.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Config, Local, PerContact, Scalar, State, Vector
from ..groups import AbstractGroup, PoseGroup


class AbstractRelation(eqx.Module):
    """A family of `c` contacts of the same kind."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows `k` of a contact."""

    @property
    def needs_positions(self) -> bool:
        """Whether the relation is one of positions and velocities, not of a first-order system."""
        return True

    @property
    def has_feedthrough(self) -> bool:
        """Whether the output depends on the multipliers themselves."""
        return False

    @property
    def is_compliant(self) -> bool:
        """Whether it ties positions to forces, where others tie velocities to impulses."""
        return self.needs_positions and self.has_feedthrough

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        """Number of contacts `c`, found without computing anything."""
        return jax.eval_shape(lambda t, q: self.linearised(group, t, q)[1], t, q).shape[1]

    @abstractmethod
    def gap(self, t: Scalar, q: Config) -> PerContact | None:
        """Gaps [m], shape `(c,)`, positive when open; `None` if there is no such thing."""

    @abstractmethod
    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        """Local velocity `u`, shape `(c, k)`."""

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        """Generalised force of the multipliers `lam (c, k)`, shape `(n,)`: the transpose of H."""
        jacobian, _ = self.linearised(group, t, state.q)
        return jnp.einsum("knc,ck->n", jacobian, lam)

    def linearised(
        self, group: AbstractGroup, t: Scalar, q: Config
    ) -> tuple[Float[Array, "k n c"], Float[Array, "k c"]]:
        """`H` with shape `(k, n, c)` and the drift `(k, c)` of `u = H v + drift`."""

        def local(v):
            return self.output(group, t, State(q, v), None)

        zero = jnp.zeros(group.dim, jax.tree.leaves(q)[0].dtype)
        drift, columns = jax.linearize(local, zero)
        jacobian = jax.vmap(columns)(jnp.eye(group.dim, dtype=zero.dtype))
        return jnp.transpose(jacobian, (2, 0, 1)), drift.T

    def check(self, group: AbstractGroup) -> str | None:
        """What is wrong with the relation for a system on `group`, in the user's terms."""
        del group
        return None

    def take(self, pick: Callable[[Array], Array]) -> "AbstractRelation | None":
        """The relation of some contacts only, or `None` if it cannot be restricted.

        **Arguments:** `pick`: takes an array with one row per contact to that of the kept ones.
        """
        del pick
        return None


class AbstractForwarding(AbstractRelation):
    """A relation that is another one, but for what is overridden.

    `clock(t)` is the time that the other one sees.
    """

    relation: eqx.AbstractVar[AbstractRelation]

    def clock(self, t: Scalar) -> Scalar:
        """The time by the clock of the other relation."""
        return t

    @property
    def rows(self) -> int:
        return self.relation.rows

    @property
    def needs_positions(self) -> bool:
        return self.relation.needs_positions

    @property
    def has_feedthrough(self) -> bool:
        return self.relation.has_feedthrough

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        return self.relation.count(group, t, q)

    def gap(self, t: Scalar, q: Config) -> PerContact | None:
        return self.relation.gap(self.clock(t), q)

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        return self.relation.output(group, self.clock(t), state, lam)

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        return self.relation.input(group, self.clock(t), state, lam)

    def linearised(
        self, group: AbstractGroup, t: Scalar, q: Config
    ) -> tuple[Float[Array, "k n c"], Float[Array, "k c"]]:
        return self.relation.linearised(group, self.clock(t), q)

    def check(self, group: AbstractGroup) -> str | None:
        return self.relation.check(group)

    def take(self, pick: Callable[[Array], Array]) -> "AbstractRelation | None":
        taken = self.relation.take(pick)
        return None if taken is None else eqx.tree_at(lambda r: r.relation, self, taken)


def check_body(name: str, body: int, group: AbstractGroup) -> str | None:
    """A sentence if a system on `group` has no rigid body with the index `body`, else `None`."""
    if not isinstance(group, PoseGroup):
        return f"{name} needs rigid bodies (NewtonEulerSystem), not a system on {group}"
    if not 0 <= body < group.bodies:
        return f"{name} is {body}, but the system has the bodies 0 to {group.bodies - 1}"
    return None
