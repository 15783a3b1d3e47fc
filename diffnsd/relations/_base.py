"""The interface of a relation.

A relation gives the local velocity `u = H(t, q) v + drift(t, q)` of `c` contacts with `k` rows each
(normal first) and, by virtual power, the generalised force `H^T p` of their multipliers. Relations of
first-order systems define both directions themselves: an output of state and multipliers, an input.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._arguments import AbstractChecked
from .._block_rows import AbstractRows, Bodies, CoordinateRows, apply, dense
from .._expects import shown
from .._jax import is_traced
from .._types import Config, Local, PerContact, Scalar, State, Vector
from ..groups import AbstractGroup, PoseGroup


class Contacts(eqx.Module):
    """The contacts of a relation at a configuration.

    **Arguments:**

    - `gap`: gaps [m], shape `(c,)`, `None` if the relation has none.
    - `H`: `u = H v + drift`, shape `(k, n, c)`, or its blocks if each contact touches only a few bodies.
    - `drift`: shape `(k, c)`.
    - `known`: which gaps are distances, `(c,)`; the others are lower bounds of them, and such contacts are
      not solved. `None`: all.
    """

    gap: PerContact | None
    H: Float[Array, "k n c"] | AbstractRows
    drift: Float[Array, "k c"]
    known: Bool[Array, " c"] | None = None

    def dense(self) -> Float[Array, "k n c"]:
        """`H` as an array."""
        return dense(self.H)

    def velocity(self, v: Vector) -> Float[Array, "k c"]:
        """The local velocity `u`."""
        return apply(self.H, v) + self.drift

    def first(self, k: int) -> "Contacts":
        """The first `k` rows of every contact."""
        rows = self.H.first(k) if isinstance(self.H, AbstractRows) else self.H[:k]
        return Contacts(self.gap, rows, self.drift[:k], self.known)


class ContactPlaces(eqx.Module):
    """Where the contacts between bodies in space are.

    **Arguments:** `point`: halfway between the closest points [m], world frame, `(c, 3)`; `normal`: from
    body 2 to body 1, `(c, 3)`; `body1`, `body2`: indices.
    """

    point: Float[Array, "c 3"]
    normal: Float[Array, "c 3"]
    body1: Bodies = eqx.field(static=True)
    body2: Bodies = eqx.field(static=True)


class AbstractRelation(AbstractChecked):
    """A family of `c` contacts of the same kind.

    A subclass states, as class attributes or properties:

    - `rows`: rows `k` of a contact, at least 1; there is no default.
    - `needs_positions`: whether it acts on positions and velocities, as by default, not on a first-order
      system.
    - `has_feedthrough`: whether the output depends on the multipliers themselves; by default not.
    - `lists_contacts`: whether every step makes a list of its contacts, see `listed`; by default not.
    - `is_scleronomic`: whether it has no explicit dependence on time; by default it may have.
    """

    rows: ClassVar[int] = 0
    needs_positions: ClassVar[bool] = True
    has_feedthrough: ClassVar[bool] = False
    lists_contacts: ClassVar[bool] = False
    is_scleronomic: ClassVar[bool] = False

    def __check_init__(self):
        if self.rows < 1:
            name = type(self).__name__
            raise TypeError(
                f"{name} does not say how many rows a contact has: write `rows = 1` in it."
            )

    @property
    def is_compliant(self) -> bool:
        """Whether it relates positions to forces, where others relate velocities to impulses."""
        return self.needs_positions and self.has_feedthrough

    def part_of(self, system: Any) -> Any:
        """The system that the relation acts on: the whole one, or one of a product."""
        return system

    @property
    def most_known(self) -> int | None:
        """How many contacts have a known gap at a time, see `Contacts`; `None`: all."""
        return None

    def of_part(self, part: int) -> "AbstractRelation | None":
        """The relation as for one system of a product alone, `None` if it is stated for others."""
        return None

    @property
    def contact_names(self) -> tuple[str, ...] | None:
        """A name for each contact, for messages; `None`: they have none."""
        return None

    def listed(self, q: Config) -> Any:
        """The relation with the list of its contacts at a configuration, if a step makes one; else `None`.

        Its `keys (c,)` identify contacts from step to step, and its `may_miss(v, h)` says whether one that
        is not in the list may close within a step.
        """
        return None

    @property
    def is_of_bodies(self) -> bool:
        """Whether it reads `q` as the `Pose` of bodies, however their system describes them."""
        return False

    def on(self, system: Any) -> "AbstractRelation":
        """The relation in the coordinates of a system.

        A relation between bodies is itself for free bodies; in a tree of joints its bodies are placed by
        the joints, `u = H J v` with the Jacobian `J` of the frames. Integrators evaluate this one.
        """
        return OnFrames(self, system) if self.is_of_bodies and system.has_joints else self

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        """Number of contacts `c`, found without computing any values."""
        return jax.eval_shape(lambda t, q: self.observe(group, t, q).drift, t, q).shape[1]

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        """Gaps, `H` and drift of all contacts in one evaluation, as needed by a step."""

        def local(v):
            return self.checked(self.output(group, t, State(q, v), None)), None

        h, drift, _ = linear_part(local, group, q, self.own_columns(group))
        return Contacts(self.gap(t, q), h, drift)

    def own_columns(self, group: AbstractGroup) -> tuple[int, ...] | None:
        """The one entry of `v` that each contact of one row depends on; `None`, the default, for any."""
        return None

    def gap(self, t: Scalar, q: Config) -> PerContact | None:
        """Gaps [m], shape `(c,)`, positive when open; `None`, the default, if there are none."""
        return None

    def places(self, t: Scalar, q: Config) -> ContactPlaces | None:
        """Where its contacts are in space; `None`, the default, if they are no contacts between bodies."""
        return None

    @abstractmethod
    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        """Local velocity `u`, shape `(c, k)`."""

    def checked(self, output: Local) -> Local:
        """What `output` returned; raises `ValueError` if that is not one row of `k` entries per contact."""
        if np.ndim(output) != 2 or output.shape[1] != self.rows:
            raise ValueError(
                f"{type(self).__name__}.output must have shape (c, k), here (c, {self.rows}): a row of "
                f"local velocities for every contact; got {np.shape(output)}."
            )
        return output

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        """Generalised force of the multipliers `lam (c, k)`, shape `(n,)`: the transpose of H."""
        jacobian, _ = self.linearised(group, t, state.q)
        return jnp.einsum("knc,ck->n", jacobian, lam)

    def linearised(
        self, group: AbstractGroup, t: Scalar, q: Config
    ) -> tuple[Float[Array, "k n c"], Float[Array, "k c"]]:
        """`H` with shape `(k, n, c)` and the drift `(k, c)` of `u = H v + drift`."""
        contacts = self.observe(group, t, q)
        return contacts.dense(), contacts.drift

    def check(self, group: AbstractGroup) -> str | None:
        """Error message if the relation does not fit a system on `group`, else `None`."""
        return None

    def take(self, pick: Callable[[Array], Array]) -> "AbstractRelation | None":
        """The relation restricted to some contacts, or `None` if it cannot be restricted.

        **Arguments:** `pick`: maps an array with one row per contact to the rows of the kept contacts.
        """
        return None


class AbstractBodyRelation(AbstractRelation):
    """Contacts that touch few bodies each: the relation gives the blocks of `H`.

    Many contacts of one kind form one relation with arrays of body indices. The size of its program
    does not depend on their number.
    """

    is_of_bodies = True  # pyright: ignore[reportAssignmentType]

    @abstractmethod
    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        """Gaps, the blocks of `H`, and drift."""

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        return self.observe(group, t, state.q).velocity(state.v).T


class AbstractWrappedRelation(AbstractRelation):
    """A relation stated for other coordinates than those of the system; its facts are those of `relation`."""

    relation: eqx.AbstractVar[AbstractRelation]

    @property
    def rows(self) -> int:
        return self.relation.rows

    @property
    def has_feedthrough(self) -> bool:
        return self.relation.has_feedthrough

    @property
    def is_scleronomic(self) -> bool:
        return self.relation.is_scleronomic

    @property
    def most_known(self) -> int | None:
        return self.relation.most_known

    @property
    def contact_names(self) -> tuple[str, ...] | None:
        return self.relation.contact_names


class OnFrames(AbstractWrappedRelation):
    """A relation between bodies in the coordinates of the joints that place them.

    Made by `AbstractRelation.on`.

    **Arguments:** `relation`: between bodies, whose `q` is a `Pose`; `system`: a `Multibody`.
    """

    relation: AbstractRelation
    system: Any

    @property
    def _bodies(self) -> PoseGroup:
        return PoseGroup(len(self.system.masses))

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        return self.relation.count(self._bodies, t, jax.eval_shape(self.system.frames, q))

    def gap(self, t: Scalar, q: Config) -> PerContact | None:
        return self.relation.gap(t, self.system.frames(q))

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        poses, moved_by_joints = self.system.moving_rows(q)
        seen = self.relation.observe(self._bodies, t, poses)
        return Contacts(seen.gap, moved_by_joints(seen.H), seen.drift, seen.known)

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        return self.relation.output(self._bodies, t, self.system.bodies(state), lam)

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        poses, rows = self.system.moving_frames(state.q)
        return self.relation.input(self._bodies, t, State(poses, rows @ state.v), lam) @ rows

    def check(self, group: AbstractGroup) -> str | None:
        if self.relation.lists_contacts:
            return "neighbour_contacts needs free bodies; in trees of joints use shape_contacts"
        return self.relation.check(self._bodies)

    def take(self, pick: Callable[[Array], Array]) -> "OnFrames | None":
        taken = self.relation.take(pick)
        return None if taken is None else OnFrames(taken, self.system)


def reads_bodies(function: Callable) -> bool:
    """Whether a function of `(t, q)`, or the object that it is a method of, says that `q` is a `Pose`."""
    return bool(getattr(getattr(function, "__self__", function), "is_of_bodies", False))


def own_columns(function: Callable, group: AbstractGroup) -> tuple[int, ...] | None:
    """The one entry of `v` on which each value of a function of `(t, q)` depends, if it says so."""
    found = getattr(function, "own_columns", None)
    return None if found is None else found(group)


def linear_part(
    local: Callable, group: AbstractGroup, q: Config, columns: tuple[int, ...] | None = None
):
    """`H` and drift of a local velocity `(c, k)` that is affine in `v`, and its auxiliary output.

    **Arguments:** `local`: maps `v (n,)` to the local velocity and auxiliary values independent of `v`;
    `columns`: the one entry of `v` that each contact of one row depends on, `None` for any.
    """
    zero = jnp.zeros(group.dim, jax.tree.leaves(q)[0].dtype)
    drift, slopes, found = jax.linearize(local, zero, has_aux=True)
    if columns is not None:
        return CoordinateRows(slopes(jnp.ones_like(zero)).T, columns, group.dim), drift.T, found
    jacobian = jax.vmap(slopes)(jnp.eye(group.dim, dtype=zero.dtype))
    return jnp.transpose(jacobian, (2, 0, 1)), drift.T, found


def along(function: Callable, group: AbstractGroup, t: Scalar, state: State) -> tuple[Array, Array]:
    """The values of a function of `t` and `q` and their rates along the motion."""
    t = jnp.asarray(t, state.v.dtype)
    moving = jnp.ones_like(t), group.rate(state.q, state.v)
    return jax.jvp(function, (t, state.q), moving)


Indices = int | Sequence[int | None] | np.ndarray | jax.Array | None
"""Bodies as given by users: an index, or one for each contact; `None` is no body."""


def body_indices(name: str, bodies: Indices) -> Bodies:
    """Indices of bodies as stored by relations: an integer, a tuple of them, `None` for no body.

    **Raises:** `ValueError` if they are not integers, or not known when the relation is made.
    """
    if bodies is None:
        return None
    if is_traced(bodies):
        raise ValueError(
            f"{name} is computed inside a transformation: which bodies touch is part of the program; "
            "give integers or a NumPy array."
        )
    given: Any = bodies
    if isinstance(given, jax.Array | np.ndarray):
        if not jnp.issubdtype(given.dtype, jnp.number):
            raise TypeError(f"{name} must be an integer or a list of integers, got {shown(given)}.")
        given = np.asarray(given).tolist()
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    listed = list(given) if is_list else given
    entries: list[Any] = listed if isinstance(listed, list) else [listed]
    flat = np.asarray(entries, object).reshape(-1)
    if not flat.size or not all(i is None or _is_whole(i) for i in flat):
        raise ValueError(f"{name} must be an integer or a list of integers, got {bodies}.")
    if np.ndim(np.asarray(entries, object)) != 1:
        raise ValueError(f"{name} must have shape (c,), got {np.asarray(entries, object).shape}.")
    indices = tuple(None if i is None else int(i) for i in entries)
    return indices if isinstance(listed, list) else indices[0]


def check_lengths(*bodies: Bodies) -> tuple[int, ...]:
    """The shape of lists of bodies: `()` for single ones. **Raises:** `ValueError` if lengths differ."""
    sizes = {len(body) for body in bodies if isinstance(body, tuple)}
    if len(sizes) > 1:
        raise ValueError(f"body1 and body2 must be as long as each other, got {sorted(sizes)}.")
    return tuple(sizes)


def _is_whole(i: Any) -> bool:
    return isinstance(i, Real) and math.isfinite(i) and math.floor(i) == i and abs(float(i)) < 2**31


def out_of_range(name: str, bodies: Bodies, count: int) -> str | None:
    """An error message that lists the indices outside the bodies 0 to `count − 1`, or `None`."""
    if bodies is None:
        return None
    if isinstance(bodies, int):
        wrong = not 0 <= bodies < count
        return (
            f"{name} is {bodies}, but the system has the bodies 0 to {count - 1}" if wrong else None
        )
    wrong = [(place, i) for place, i in enumerate(bodies) if i is not None and not 0 <= i < count]
    if not wrong:
        return None
    shown = ", ".join(f"{name}[{place}] = {i}" for place, i in wrong[:8])
    more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
    return f"{shown}{more}: the system has the bodies 0 to {count - 1}"


def check_body(name: str, bodies: Bodies, group: AbstractGroup) -> str | None:
    """An error message if a system on `group` lacks rigid bodies with these indices, else `None`."""
    if not isinstance(group, PoseGroup):
        return (
            f"{name} needs rigid bodies (NewtonEulerSystem or Multibody), not a system on {group}"
        )
    return out_of_range(name, bodies, group.bodies)
