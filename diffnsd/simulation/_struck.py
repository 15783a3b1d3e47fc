"""Counts impacts and turns of friction that a method steps over without their times, from impulses alone.

An impact is a peak: an impulse that the forces of a step do not give, before or after. What forces give is
read from the same contact one step earlier and later, and from the others beside it, among which a load may
move without an impact. So nothing is evaluated for it.

A turn is a friction at its limit that is at its limit again two steps later, with the other sign: sliding has
reversed. The limit is the largest friction of the contact so far, relative to its normal impulse if it has
one. Where it sticks under a load that turns round, friction changes evenly over several steps, and where
sliding ends in sticking it is below its limit.
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
STEADY, AT_LIMIT = 0.2, 0.999
"""How much the friction changes in a step before a turn, relative to the turn; and how near it is to its
limit, relative to it."""
LEAST = 1e-3
"""A coefficient of friction below which nothing slides: that is rounding."""


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
        which = tuple(k for k, i in _followed(model, integrator) if not i.law.never_opens)
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
    """Frictions of the last three steps per interaction that is watched, newest last.

    Of contacts with a normal impulse `(c, k)`, relative to it; of others every row by itself, `(c k, 1)`.

    `limit`: the largest so far of each; `normal`: the largest normal impulse so far; `which`: the
    interactions, and the first of their rows that are friction.
    """

    last: tuple[tuple[Array, ...], ...]
    limit: tuple[Array, ...]
    normal: Array
    which: tuple[tuple[int, int], ...] = eqx.field(static=True)

    @staticmethod
    def of(
        model: Model, integrator: AbstractIntegrator, t0: Scalar, state0: State
    ) -> "Turns | None":
        """Before the first step; `None` if there is nothing to count."""
        which = tuple(
            (k, int(i.law.is_unilateral)) for k, i in _followed(model, integrator) if i.law.slides
        )
        if not which:
            return None
        counts, dtype = model.contacts(t0, state0.q), state0.v.dtype
        rows = [(counts[k], model.interactions[k].rows, first) for k, first in which]
        none = tuple(jnp.zeros((c, k - 1) if first else (c * k, 1), dtype) for c, k, first in rows)
        limits = tuple(jnp.zeros(len(x), dtype) for x in none)
        return Turns((none,) * 3, limits, jnp.zeros((), dtype), which)

    def then(self, info: StepInfo) -> tuple["Turns", Int[Array, ""]]:
        """After the next step, and how many turns there were in it or the one before."""
        total, normal = jnp.zeros((), jnp.int32), self.normal
        latest, limits = [], []
        for (number, first), limit, *last in zip(self.which, self.limit, *self.last, strict=True):
            p = jax.lax.stop_gradient(info.impulses[number])
            if first:
                normal = jnp.maximum(normal, _largest(p[:, 0]))
                presses = p[:, :1] > 1e-6 * self.normal
                now = jnp.where(presses, p[:, 1:] / jnp.where(presses, p[:, :1], 1), 0)
            else:
                now = p.reshape(-1, 1)
            a, b, between = last
            turn, size = _size(now - b), _size(now)
            steady = _size(b - a) < STEADY * turn
            at_limit = jnp.minimum(size, _size(b)) > AT_LIMIT * limit
            # One at the end of a step was counted after it.
            fresh = _size(now - between) > (1 - AT_LIMIT) * limit
            slid = limit > LEAST if first else limit > 0
            turned = (short_sum(now * b, 1) < 0) & steady & at_limit & fresh & slid
            total = total + jnp.sum(turned, dtype=jnp.int32)
            latest.append(now)
            limits.append(jnp.maximum(limit, size))
        last = (*self.last[1:], tuple(latest))
        return Turns(last, tuple(limits), normal, self.which), total


def _size(a: Array) -> Array:
    return jnp.sqrt(short_sum(a * a, 1))


def _followed(model: Model, integrator: AbstractIntegrator) -> list[tuple[int, Interaction]]:
    """The interactions, numbered, whose contacts are followed from step to step: none if times are kept."""
    if integrator.keeps_impact_times or not model.system.kind.has_positions:
        return []
    numbered = ((k, i, i.relation) for k, i in enumerate(model.interactions))
    return [
        (k, i)
        for k, i, r in numbered
        if r.needs_positions and not (r.is_compliant or r.lists_contacts)
    ]


def _largest(x: Array) -> Array:
    return jnp.max(x, initial=0.0)
