"""Counts events that a method steps over without their times, from impulses alone: impacts and turns.

An impact is a peak: an impulse that the forces of a step do not give, before or after. What forces give is
read from the same contact one step earlier and later, and from the others beside it, among which a load may
move without an impact. So nothing is evaluated for it.

A turn is a friction, or a relay, at a bound of its law two steps after it was at the opposite one: its slip
or output has changed sign without being held at zero.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .._jax import call_where, without_derivative
from .._numerics import short_sum
from .._types import Scalar, State
from ..complementarity.problem._problem import broadcast_law
from ..integrators import AbstractIntegrator, StepInfo
from ..integrators._impact import slip_rows
from ..laws import AbstractLaw, Context
from ..model import Interaction, Model

PEAK = 4.0
"""How many times larger than the impulses before and after it the impulse of an impact is."""
STEADY, NEAR = 0.2, 1e-3
"""How much a multiplier changes in a step before a turn, and how near to a bound it is, both relative to the
turn."""
LEAST = 1e-3
"""A coefficient of friction below which nothing slides: that is rounding."""
FAR = 1e15
"""A force before the first step: outside all bounds, as zero need not be."""


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
        which = tuple(
            k for k, i in _followed(model) if i.relation.needs_positions and not i.law.never_opens
        )
        if not which or integrator.keeps_impact_times:
            return None
        counts, dtype = model.contacts(t0, state0.q), state0.v.dtype
        none = tuple(jnp.zeros(counts[k], dtype) for k in which)
        laws = tuple(model.interactions[k].law for k in which)
        rebounds = tuple(law.needs_implicit_positions for law in laws)
        return Peaks(none, none, jnp.zeros((), dtype), which, rebounds)

    def then(self, info: StepInfo) -> tuple["Peaks", Int[Array, ""]]:
        """After the next step, and how many impacts there were in the step before it."""
        return self._followed_by([info.impulses[k][:, 0] for k in self.which])

    def at_last(self) -> Int[Array, ""]:
        """How many impacts there were in the last step, after which nothing is known."""
        return self._followed_by([jnp.zeros_like(p) for p in self.newer])[1]

    def _followed_by(self, latest: Sequence[Array]) -> tuple["Peaks", Int[Array, ""]]:
        latest = tuple(map(jax.lax.stop_gradient, latest))
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
    """Multipliers of the last three steps per interaction that is watched, `(k, c)`, newest last.

    Those of contacts with a normal impulse are relative to it.

    `normal`: the largest normal impulse so far; `which`: the interactions.
    """

    last: tuple[tuple[Array, ...], ...]
    normal: Array
    which: tuple[int, ...] = eqx.field(static=True)

    @staticmethod
    def of(
        model: Model, integrator: AbstractIntegrator, t0: Scalar, state0: State
    ) -> "Turns | None":
        """Before the first step; `None` if there is nothing to count."""
        keeps = integrator.keeps_impact_times
        which = tuple(
            k for k, i in _followed(model) if _has_bounds(i) and not (keeps and slip_rows(i))
        )
        if not which:
            return None
        counts, dtype = model.contacts(t0, state0.q), state0.v.dtype
        each = [(model.interactions[k], counts[k]) for k in which]
        first = [(FAR * (not i.law.is_unilateral), (i.rows, c)) for i, c in each]
        none = tuple(jnp.full(shape, value, dtype) for value, shape in first)
        return Turns((none,) * 3, jnp.zeros((), dtype), which)

    def then(self, model: Model, h: Scalar, info: StepInfo) -> tuple["Turns", Bool[Array, " c"]]:
        """After the next step, and which contacts turned in it or the one before, of all interactions."""
        normal, latest = self.normal, []
        turned = [jnp.zeros(len(p), bool) for p in info.impulses]
        model, h, impulses = without_derivative((model, h, info.impulses))
        for k, *last in zip(self.which, *self.last, strict=True):
            interaction, p = model.interactions[k], impulses[k].T
            law = broadcast_law(interaction.law, p.shape[1], p.dtype)
            if law.is_unilateral:
                normal = jnp.maximum(normal, _largest(p[0]))
                presses = p[:1] > 1e-6 * self.normal
                p = jnp.where(presses, p / jnp.where(presses, p[:1], 1), 0)
            elif interaction.relation.needs_positions:
                law = law.in_step(_of_length(h, p))
            else:
                p = p / h
            latest.append(p)
            before, old, between = last
            turned[k] = _has_turned(law, before, old, between, p)
        last = (*self.last[1:], tuple(latest))
        return Turns(last, normal, self.which), jnp.concatenate(turned)


def _has_bounds(interaction: Interaction) -> bool:
    """Whether multipliers have bounds that the sign of a slip or output decides between."""
    law = interaction.law
    if law.is_unilateral:
        return interaction.rows > 1
    return law.never_opens and not law.holds_gap


def _of_length(h: Scalar, p: Array) -> Context:
    """The data of a law that knows no more of a step than its length."""
    zero = jnp.zeros_like(p[0])
    return Context(jnp.zeros_like(p), zero, zero + h, zero)


def _has_turned(law: AbstractLaw, before: Array, old: Array, between: Array, now: Array) -> Array:
    """Which multipliers `(k, c)` are at the bound opposite to that of two steps ago, `(c,)`."""
    if law.is_unilateral:
        away, back = now.at[0].set(0), old.at[0].set(0)
    else:
        away, back = (now - old) / 2, (old - now) / 2
    turn = _size(away - back)
    steady = _size(old - before) < STEADY * turn
    # One that was there a step earlier was counted after that step.
    fresh = _size(now - between) > NEAR * turn
    slid = turn > (LEAST if law.is_unilateral else 0)
    opposite = short_sum(away * back, 0) < 0
    candidates = opposite & steady & fresh & slid

    def at_bounds(law, now, away, old, back):
        return _at_bound(law, now, away) & _at_bound(law, old, back)

    # Few contacts turn, and most of the work is what the bounds cost.
    return candidates & call_where(jnp.any(candidates), at_bounds, law, now, away, old, back)


def _at_bound(law: AbstractLaw, z: Array, away: Array) -> Array:
    """Whether a multiplier is in the set of its law, and leaves it with a little more of `away`."""

    def outside(z):
        return _size(law.set().project(z) - z) > 1e-3 * NEAR * _size(away)

    return outside(z + NEAR * away) & ~outside(z - NEAR * away)


def _size(a: Array) -> Array:
    return jnp.sqrt(short_sum(a * a, 0))


def _followed(model: Model) -> list[tuple[int, Interaction]]:
    """The interactions, numbered, whose contacts are the same from step to step."""
    numbered = ((k, i, i.relation) for k, i in enumerate(model.interactions))
    return [(k, i) for k, i, r in numbered if not (r.is_compliant or r.lists_contacts)]


def _largest(x: Array) -> Array:
    return jnp.max(x, initial=0.0)
