"""Counts impacts and turns of friction that a method steps over without their times, from impulses alone.

An impact is a peak: an impulse that the forces of a step do not give, before or after. What forces give is
read from the same contact one step earlier and later, and from the others beside it, among which a load may
move without an impact. So nothing is evaluated for it.

A turn is a friction that is steady and two steps later has the other sign and the same size, that of its
limit: sliding has reversed. Where it sticks under a load that turns round it changes evenly over several
steps, and where sliding ends in sticking it has another size.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._numerics import short_sum
from .._types import Scalar, State
from ..integrators import AbstractIntegrator, StepInfo
from ..model import Interaction, Model

PEAK = 4.0
"""How many times larger than the impulses before and after it the impulse of an impact is."""
STEADY = 0.2
"""How much the friction changes in a step before a turn, relative to the turn."""


class Peaks(eqx.Module):
    """Normal impulses of the last two steps, `(c,)` per interaction that is watched, and the largest so far.

    `which`: the interactions; `rebounds`: of which only a rebound counts, since the law of the others finds
    the time of a landing.
    """

    older: tuple[Array, ...]
    newer: tuple[Array, ...]
    largest: Array
    which: tuple[int, ...] = eqx.field(static=True)
    rebounds: tuple[bool, ...] = eqx.field(static=True)

    @staticmethod
    def of(
        model: Model, integrator: AbstractIntegrator, t0: Scalar, state0: State
    ) -> "Peaks | None":
        """Before the first step; `None` if there is nothing to count."""
        if integrator.keeps_impact_times or not model.system.kind.has_positions:
            return None
        which = tuple(k for k, i in enumerate(model.interactions) if _may_strike(i))
        if not which:
            return None
        counts, dtype = model.contacts(t0, state0.q), state0.v.dtype
        never = tuple(jnp.full(counts[k], jnp.inf, dtype) for k in which)
        laws = tuple(model.interactions[k].law for k in which)
        rebounds = tuple(law.needs_implicit_positions for law in laws)
        return Peaks(never, never, jnp.zeros((), dtype), which, rebounds)

    def then(self, info: StepInfo) -> tuple["Peaks", Int[Array, ""]]:
        """After the next step, and how many impacts there were in the step before it."""
        latest = tuple(jax.lax.stop_gradient(info.impulses[k][:, 0]) for k in self.which)
        total = jnp.zeros((), jnp.int32)
        largest = self.largest
        parts = zip(self.older, self.newer, latest, self.rebounds, strict=True)
        for before, now, after, rebounds in parts:
            beside = jnp.minimum(_largest(before), _largest(after))
            given = jnp.maximum(jnp.maximum(before, after), beside)
            peaks = (now > PEAK * given) & (now > 1e-6 * self.largest)
            total = total + jnp.sum(peaks & (after <= 0) if rebounds else peaks, dtype=jnp.int32)
            largest = jnp.maximum(largest, _largest(after))
        return Peaks(self.newer, latest, largest, self.which, self.rebounds), total


class Turns(eqx.Module):
    """Impulses of friction of the last three steps, `(c, k)` per interaction that is watched, newest last.

    `largest`: the largest so far; `which`: the interactions, and the first of their rows that are friction.
    """

    last: tuple[tuple[Array, ...], ...]
    largest: Array
    which: tuple[tuple[int, int], ...] = eqx.field(static=True)

    @staticmethod
    def of(
        model: Model, integrator: AbstractIntegrator, t0: Scalar, state0: State
    ) -> "Turns | None":
        """Before the first step; `None` if there is nothing to count."""
        if integrator.keeps_impact_times or not model.system.kind.has_positions:
            return None
        which = tuple(
            (k, int(i.law.is_unilateral))
            for k, i in enumerate(model.interactions)
            if i.law.slides and _is_followed(i)
        )
        if not which:
            return None
        counts, dtype = model.contacts(t0, state0.q), state0.v.dtype
        none = tuple(
            jnp.zeros((counts[k], model.interactions[k].rows - first), dtype) for k, first in which
        )
        return Turns((none,) * 3, jnp.zeros((), dtype), which)

    def then(self, info: StepInfo) -> tuple["Turns", Int[Array, ""]]:
        """After the next step, and how many turns there were in it or the one before."""
        latest = tuple(
            jax.lax.stop_gradient(info.impulses[k][:, first:]) for k, first in self.which
        )
        total, largest = jnp.zeros((), jnp.int32), self.largest
        for a, b, between, now in zip(*self.last, latest, strict=True):
            turn, change = _size(now - b), _size(b - a)
            slack = 4 * change + 1e-6 * turn
            alike = jnp.abs(_size(now) - _size(b)) < slack
            # One at the end of a step was counted after it.
            fresh = _size(now - between) > slack
            turned = (_dot(b, now) < 0) & (change < STEADY * turn) & alike & fresh
            large = turn > 1e-6 * self.largest
            total = total + jnp.sum(turned & large, dtype=jnp.int32)
            largest = jnp.maximum(largest, _largest(jnp.abs(now)))
        return Turns((*self.last[1:], latest), largest, self.which), total


def _dot(a: Array, b: Array) -> Array:
    return short_sum(a * b, 1)


def _size(a: Array) -> Array:
    return jnp.sqrt(_dot(a, a))


def _is_followed(interaction: Interaction) -> bool:
    """Whether contacts can be followed from step to step."""
    relation = interaction.relation
    return relation.needs_positions and not (relation.is_compliant or relation.lists_contacts)


def _may_strike(interaction: Interaction) -> bool:
    """Whether a contact may close with an impact, and can be followed."""
    return _is_followed(interaction) and not interaction.law.never_opens


def _largest(x: Array) -> Array:
    return jnp.max(x, initial=0.0)
