"""Models: a system and its interactions."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._types import PerContact, Scalar, State, Vector, is_hidden, revealed
from .laws import AbstractLaw, Equality
from .relations import AbstractRelation, PrescribedVelocity
from .systems import AbstractSystem


class Interaction(eqx.Module):
    """A relation and the law that its contacts obey.

    **Arguments:**

    - `relation`: where the contacts are. `law`: what happens there. A law on fewer rows than the
      relation has acts on the first ones: `NewtonImpact` on the normal, without friction.
    - `max_active`: solve only the contacts with the smallest gaps, at most this many, where the
      relation can be restricted (`None`: all). If others close in the same step, the result says
      `contact_overflow`.

    **Raises:** `ValueError` if the law needs more rows than the relation has, or `max_active` is
    not at least 1.
    """

    relation: AbstractRelation
    law: AbstractLaw
    max_active: int | None = eqx.field(default=None, static=True)

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


class Energy(eqx.Module):
    """Kinetic and potential energy [J]."""

    kinetic: Scalar
    potential: Scalar

    @property
    def total(self) -> Scalar:
        """Their sum."""
        return self.kinetic + self.potential


class Model(eqx.Module):
    """A system with its interactions: everything that a simulation needs but the state.

    **Arguments:** `system`; `interactions`: a sequence of `Interaction`s (one is taken as such);
    `prescribed`: a `PrescribedVelocity` or a sequence of them. These are equality constraints like
    any other: they come last among the interactions, and their impulses are the reactions.
    """

    system: AbstractSystem
    interactions: tuple[Interaction, ...]

    def __init__(self, system: AbstractSystem, interactions=(), prescribed=()):
        self.system = system
        single = isinstance(interactions, Interaction)
        given = (interactions,) if single else tuple(interactions)
        single = isinstance(prescribed, PrescribedVelocity)
        held = (prescribed,) if single else tuple(prescribed)
        self.interactions = (*given, *(Interaction(p, Equality()) for p in held))

    def gaps(self, t: Scalar, q) -> tuple[PerContact | None, ...]:
        """Gaps [m] of every interaction, each of shape `(c,)`."""
        return tuple(i.relation.gap(t, q) for i in self.interactions)

    def energy(self, t: Scalar, state: State) -> Energy:
        """Kinetic and potential energy of a state."""
        return Energy(self.system.kinetic(t, state), self.system.potential(t, state.q))

    def momentum(self, t: Scalar, state: State) -> Vector:
        """Generalised momentum `M v`, shape `(n,)`."""
        return self.system.momentum(t, state)

    def contacts(self, t: Scalar, q) -> tuple[int, ...]:
        """Number of contacts `c` of every interaction, found without computing anything."""
        counts = []
        for interaction in self.interactions:
            shape = jax.eval_shape(
                lambda t, q, i=interaction: i.relation.linearised(self.system.group, t, q)[1], t, q
            )
            counts.append(shape.shape[1])
        return tuple(counts)

    def after(self, start: Scalar) -> "Model":
        """The same model by a clock that starts at `start` [s].

        A step that is taken from 0 to `h` by this clock has the length `h` to all digits, which the
        difference of two absolute times has not.
        """
        interactions = (
            Interaction(_LaterRelation(i.relation, start), i.law, i.max_active)
            for i in self.interactions
        )
        return Model(_LaterSystem(self.system, start), interactions)

    def check(self, state: State) -> str | None:
        """What is wrong with a model and a state, in the user's terms, or `None`.

        Shapes are always checked, values where they are known: not those that `jit` or `vmap` trace.
        """
        model, state = revealed((self, state))
        group = model.system.group
        n = model.system.velocities
        if np.shape(state.v) != (n,):
            return f"the state's v has shape {np.shape(state.v)}, expected ({n},)"
        checks: list[Callable[[], str | None]] = [
            *(i.law.check for i in model.interactions),
            *(lambda r=i.relation: r.check(group) for i in model.interactions),
            lambda: _not_finite(state),
            lambda: model.system.check_point(state.q),
            lambda: model.system.check(state.q),
            lambda: _too_precise(model, state),
        ]
        return next((problem for check in checks if (problem := _asked(check))), None)


def _asked(check: Callable[[], str | None]) -> str | None:
    """The answer of a check, `None` if it would need a value that a transformation hides."""
    try:
        return check()
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        return None


def _not_finite(state: State) -> str | None:
    known = [x for x in jax.tree.leaves(state) if not is_hidden(x)]
    if all(np.all(np.isfinite(np.asarray(x))) for x in known):
        return None
    return "the state has entries that are not finite"


def _too_precise(model: Model, state: State) -> str | None:
    """The precision of the state is that of the simulation; laws are converted to it."""
    dtype = state.v.dtype
    others = {x.dtype for x in jax.tree.leaves(state.q)} - {dtype}
    if others:
        return f"the state's q has the dtype {others.pop()} and its v {dtype}; give both the same"
    parts = (model.system, *(i.relation for i in model.interactions))
    for x in jax.tree.leaves(eqx.filter(parts, eqx.is_inexact_array)):
        if jnp.finfo(x.dtype).bits > jnp.finfo(dtype).bits:
            return (
                f"the state has the dtype {dtype}, but the model has parameters of {x.dtype}; "
                f"convert one of them, for example jax.tree.map(lambda x: x.astype({x.dtype}), "
                "state)"
            )
    return None


class _LaterSystem(AbstractSystem):
    """A system by a clock that starts at `start`."""

    system: AbstractSystem
    start: Scalar

    @property
    def group(self):
        return self.system.group

    def mass(self, t, q):
        return self.system.mass(self.start + t, q)

    def force(self, t, state, args):
        return self.system.force(self.start + t, state, args)

    def applied(self, t, state, args):
        return self.system.applied(self.start + t, state, args)

    def inertia_force(self, t, state):
        return self.system.inertia_force(self.start + t, state)

    def kinetic_slope(self, t, state):
        return self.system.kinetic_slope(self.start + t, state)

    @property
    def velocities(self):
        return self.system.velocities

    @property
    def stepping_problem(self):
        return self.system.stepping_problem

    def check_point(self, q):
        return self.system.check_point(q)

    def defect(self, q):
        return self.system.defect(q)

    @property
    def flow_group(self):
        return self.system.flow_group

    def flow_apply(self, g, state):
        return self.system.flow_apply(g, state)

    def flow_rate(self, t, state, args):
        return self.system.flow_rate(self.start + t, state, args)

    def potential(self, t, q):
        return self.system.potential(self.start + t, q)

    def momentum(self, t, state):
        return self.system.momentum(self.start + t, state)

    def kinetic(self, t, state):
        return self.system.kinetic(self.start + t, state)

    def check(self, q=None):
        return self.system.check(q)


class _LaterRelation(AbstractRelation):
    """A relation by a clock that starts at `start`."""

    relation: AbstractRelation
    start: Scalar

    @property
    def rows(self):
        return self.relation.rows

    def gap(self, t, q):
        return self.relation.gap(self.start + t, q)

    def output(self, group, t, state, lam):
        return self.relation.output(group, self.start + t, state, lam)

    def input(self, group, t, state, lam):
        return self.relation.input(group, self.start + t, state, lam)

    def linearised(self, group, t, q):
        return self.relation.linearised(group, self.start + t, q)

    def check(self, group):
        return self.relation.check(group)

    def take(self, pick):
        taken = self.relation.take(pick)
        return None if taken is None else _LaterRelation(taken, self.start)
