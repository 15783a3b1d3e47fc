"""Models: a system and its interactions."""

import equinox as eqx
import jax
import numpy as np

from ._types import PerContact, Scalar, State, Vector
from .laws import AbstractLaw
from .relations import AbstractRelation
from .systems import AbstractSystem


class Interaction(eqx.Module):
    """A relation and the law that its contacts obey.

    **Arguments:**

    - `relation`: where the contacts are. `law`: what happens there.
    - `max_active`: solve only the contacts with the smallest gaps, at most this many, where the
      relation can be restricted (`None`: all). If others close in the same step, the result says
      `contact_overflow`.
    """

    relation: AbstractRelation
    law: AbstractLaw
    max_active: int | None = eqx.field(default=None, static=True)

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

    **Arguments:** `system`; `interactions`: a sequence of `Interaction`s (one is taken as such).
    """

    system: AbstractSystem
    interactions: tuple[Interaction, ...]

    def __init__(self, system: AbstractSystem, interactions=()):
        self.system = system
        single = isinstance(interactions, Interaction)
        self.interactions = (interactions,) if single else tuple(interactions)

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

    def check(self, state: State) -> str | None:
        """What is wrong with a concrete model and state, in the user's terms, or `None`."""
        problem = self.system.check()
        if problem is not None:
            return problem
        n = self.system.velocities
        if np.shape(state.v) != (n,):
            return f"the state's v has shape {np.shape(state.v)}, expected ({n},)"
        if not all(np.all(np.isfinite(np.asarray(x))) for x in jax.tree.leaves(state)):
            return "the state has entries that are not finite"
        problem = self.system.check_point(state.q)
        if problem is not None:
            return problem
        return next((m for m in (i.law.check() for i in self.interactions) if m), None)
