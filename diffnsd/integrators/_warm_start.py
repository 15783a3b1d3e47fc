"""Where the solver starts in a step: the impulses of the steps before."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._numerics import short_sum
from .._types import Scalar, State
from ..model import Model
from ._selection import Selection

STEADY, SMOOTH = 1e-5, 0.1
"""Relative changes of an impulse in a step between which it is extrapolated. A smaller one may be rounding,
which extrapolation would amplify, and a larger one is no smooth motion: a switch, or another step length."""


class Recent(eqx.Module):
    """Impulses `(c, k)` of all contacts in the last step, and in the one before."""

    last: Array
    before: Array

    def guess(self, selection: Selection) -> Array:
        """Impulses `(a, k)` of the contacts that are solved: those of the last step, with their change.

        With the change Newton's method starts where a smooth motion leads to, and needs an iteration less.
        """
        change = self.last - self.before
        size, moved = (short_sum(jnp.abs(x), 1) for x in (self.last, change))
        smooth = (moved > STEADY * size) & (moved < SMOOTH * size)
        return selection.pick(jnp.where(smooth[:, None], self.last + change, self.last))

    def then(self, selection: Selection, impulses: Array) -> "Recent":
        """What the next step starts from; `impulses`: of this step, all contacts."""
        del selection
        return Recent(impulses, self.last)


class Keyed(eqx.Module):
    """Impulses `(c, k)` of listed contacts with the keys `(c,)` by which the next step finds them."""

    keys: Int[Array, " c"]
    impulses: Array

    def guess(self, selection: Selection) -> Array:
        """The impulses of the contacts that are listed now, zero for new ones."""
        keys, order = selection.listed.keys, jnp.argsort(self.keys)
        place = jnp.searchsorted(self.keys, keys, sorter=order)
        at = order[jnp.minimum(place, len(order) - 1)]
        known = (self.keys[at] == keys) & (keys >= 0)
        return jnp.where(known[:, None], self.impulses[at], 0)

    def then(self, selection: Selection, impulses: Array) -> "Keyed":
        """As in `Recent`."""
        return Keyed(selection.listed.keys, impulses)


def zero_impulses(model: Model, t0: Scalar, state: State) -> tuple[Array, ...]:
    """Zero impulses `(c, k)` of every interaction, for a start without a guess."""
    counts = model.contacts(t0, state.q)
    return tuple(
        jnp.zeros((c, i.rows), state.v.dtype)
        for c, i in zip(counts, model.interactions, strict=True)
    )


def no_memory(model: Model, t0: Scalar, state: State) -> tuple[Recent | Keyed, ...]:
    """The memory of every interaction before the first step: `Keyed` where a relation lists its contacts."""

    def of(interaction, zero):
        if interaction.on(model.system).listed(state.q) is None:
            return Recent(zero, zero)
        return Keyed(jnp.full(len(zero), -1, jnp.int32), zero)

    return tuple(map(of, model.interactions, zero_impulses(model, t0, state)))
