"""Counts the impacts that a method steps over without their times, from the impulses of the steps alone.

An impact is a peak: an impulse that the forces of a step do not give, before or after. What forces give is
read from the same contact one step earlier and later, and from the others beside it, among which a load may
move without an impact. So nothing is evaluated for it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._types import Scalar, State
from ..integrators import AbstractIntegrator, StepInfo
from ..model import Interaction, Model

PEAK = 4.0
"""How many times larger than the impulses before and after it the impulse of an impact is."""


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


def _may_strike(interaction: Interaction) -> bool:
    """Whether a contact may close with an impact, and can be followed from step to step."""
    relation = interaction.relation
    followed = relation.needs_positions and not (relation.is_compliant or relation.lists_contacts)
    return followed and not interaction.law.never_opens


def _largest(x: Array) -> Array:
    return jnp.max(x, initial=0.0)
