"""Builds the blocks of a step problem from interactions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from .._block_rows import apply
from .._jax import always_staged, call_where
from .._numerics import matrix_inverse, short_sum
from .._types import Scalar, State
from ..complementarity import Block
from ..complementarity.problem._problem import broadcast_law
from ..laws import AbstractLaw, Context
from ..model import Interaction, Model
from ..relations._base import Contacts


class Selection(eqx.Module):
    """Which contacts of an interaction are solved: `hit`, or `None` for all of them.

    Of few contacts a mask `(a, c)`: `hit[i, j]` is true if the i-th solved contact is contact j. Picking and
    spreading are sums over it, which are elementwise over a batch, unlike gather and scatter. Of more than
    `MASKED` their indices `(a,)`, as a mask costs with the product of both numbers. `seen`: the
    relation evaluated for all contacts, `None` where all are solved. `keys`, `beyond`: of a relation that
    lists its contacts in every step, see `AbstractRelation.listed`. `time`: of the step, not batched.
    """

    hit: Bool[Array, "a c"] | Int[Array, " a"] | None
    seen: Contacts | None = None
    keys: Int[Array, " c"] | None = None
    beyond: Scalar | None = None
    time: Any = None

    def pick(self, x: Array) -> Array:
        """Rows of `x (c, ...)` that are solved, `(a, ...)`."""
        if self.hit is None:
            return x
        return _masked_sum(self.time, self.hit, x) if self.hit.ndim == 2 else x[self.hit]

    def spread(self, x: Array) -> Array:
        """The inverse of `pick`: `(a, ...)` to `(c, ...)`, zero elsewhere."""
        if self.hit is None or self.seen is None:
            return x
        if self.hit.ndim == 2:
            return _masked_sum(self.time, self.hit.T, x)
        zeros = jnp.zeros((self.seen.drift.shape[1], *x.shape[1:]), x.dtype)
        return zeros.at[self.hit].set(x)

    @property
    def rest(self) -> Bool[Array, " c"]:
        """Contacts that are not solved, and those that are but should not be: their gaps are not known."""
        if self.hit is None or self.seen is None:
            return jnp.zeros(0, bool)
        count = self.seen.drift.shape[1]
        if self.hit.ndim == 2:
            left = ~jnp.any(self.hit, axis=0)
        else:
            left = jnp.ones(count, bool).at[self.hit].set(False)
        return left if self.seen.known is None else left | ~self.seen.known


def _masked_sum(time, hit: Array, x: Array) -> Array:
    """`Σ_j hit_ij x_j`. On a CPU a stage of its own: fused with it, `x` is computed again for each `i`."""

    def chosen(hit, x):
        mask = hit.reshape(hit.shape + (1,) * (x.ndim - 1))
        return short_sum(jnp.where(mask, x[None], 0), 1, UNROLLED)

    stage = partial(always_staged, time, chosen)
    return jax.lax.platform_dependent(hit, x, cpu=stage, default=chosen)


UNROLLED = 32
"""Most contacts over which a pick is a chain of additions, which fuses where a reduction does not."""

MASKED = 128
"""Most contacts of which some are picked by a mask; ranks cost with their square."""


def smallest(values: Array, count: int) -> Bool[Array, "a c"] | Int[Array, " a"]:
    """The mask of the `count` smallest entries, in their order of appearance; of many their indices.

    Computed by ranks: comparisons are elementwise and vectorise over a batch; a sort does not.
    """
    if values.shape[0] > MASKED:
        return jnp.sort(jax.lax.top_k(-values, count)[1])
    order = np.arange(values.shape[0], dtype=np.int32)
    earlier = order[None, :] < order[:, None]
    below = (values[None, :] < values[:, None]) | ((values[None, :] == values[:, None]) & earlier)
    chosen = jnp.sum(below, axis=1, dtype=jnp.int32) < count
    place = jnp.sum(chosen[None, :] & earlier, axis=1, dtype=jnp.int32)
    return chosen[None, :] & (place[None, :] == np.arange(count, dtype=np.int32)[:, None])


def select(interaction: Interaction, model: Model, t: Scalar, q) -> tuple[Interaction, Selection]:
    """The interaction restricted to the contacts with the smallest gaps."""
    relation = interaction.on(model.system)
    listed = relation.listed(q) if relation.needs_positions else None
    if listed is not None:
        if interaction.mask is not None or interaction.max_active is not None:
            raise ValueError(
                "neighbour_contacts lists other contacts in every step: it takes no mask and no max_active; "
                "its `capacity` limits them."
            )
        seen = listed.observe(model.system.group, t, q)
        chosen = Interaction(listed, interaction.law)
        return chosen, Selection(None, seen, listed.keys, listed.list.beyond)
    limits = [x for x in (interaction.max_active, relation.most_known) if x is not None]
    if not limits or not relation.needs_positions:
        return interaction, Selection(None)
    limit = min(limits)
    if relation.count(model.system.group, t, q) <= limit:
        return interaction, Selection(None)
    seen = relation.observe(model.system.group, t, q)
    gap = interaction.reachable(seen.gap)
    if gap is None:
        return interaction, Selection(None)
    seen = Contacts(gap, seen.H, seen.drift, seen.known)
    ranked = gap if seen.known is None else jnp.where(seen.known, gap, jnp.inf)
    selection = Selection(
        smallest(jax.lax.stop_gradient(ranked), limit), seen, time=jnp.asarray(t, gap.dtype)
    )
    restricted = relation.take(selection.pick)
    if restricted is None:
        return interaction, Selection(None)
    law = broadcast_law(interaction.law, gap.shape[0], gap.dtype)
    mask = None if interaction.mask is None else interaction.mask.pick(selection.pick, gap.dtype)
    return Interaction(restricted, jax.tree.map(selection.pick, law), mask=mask), selection


def context(
    interaction: Interaction,
    model: Model,
    t: Scalar,
    state: State,
    h: Scalar,
    gamma: float,
    before: Callable[[Array], Array] = lambda u: u,
    seen: Contacts | None = None,
) -> Context:
    """The data that the law of an interaction may use at a state.

    **Arguments:** `before`: maps the local velocity of `state`, `(k, c)`, to the velocity before impact
    that the law uses; `seen`: the relation evaluated at the state, if already known.
    """
    seen = _seen(interaction, model, t, state.q) if seen is None else seen
    c, dtype = seen.drift.shape[1], state.v.dtype
    gap = interaction.held(seen.gap)
    gap = jnp.full((c,), -jnp.inf, dtype) if gap is None else gap
    h = jnp.asarray(h, dtype)
    length, speed = model.system.scales(state)
    reach = jnp.maximum(length, jnp.abs(h) * speed)
    return Context(
        before(seen.velocity(state.v)),
        gap,
        jnp.broadcast_to(h, (c,)),
        jnp.full((c,), gamma, dtype),
        jax.lax.stop_gradient(jnp.broadcast_to(reach, (c,))),
    )


def _seen(interaction: Interaction, model: Model, t: Scalar, q) -> Contacts:
    """The relation evaluated at a configuration, restricted to the rows that take part in the law."""
    return interaction.on(model.system).observe(model.system.group, t, q).first(interaction.rows)


def build_block(
    interaction: Interaction,
    model: Model,
    t: Scalar,
    state: State,
    h: Scalar,
    gamma: float,
    before: Callable[[Array], Array] = lambda u: u,
    at: tuple[Scalar, Any] | None = None,
    ahead: tuple[Scalar, Any] | None = None,
    duration: float | None = None,
    by_blocks: bool = False,
) -> Block:
    """The block of an interaction at a state; the arguments are those of `context`.

    **Arguments:** `at`: time and configuration of `H` and the drift, default those of the state; `ahead`:
    time and configuration at which the velocity of `state` has the local velocity from which `H` takes
    changes of velocity, default `at`; `duration`: how long limited forces act, default `h`, 0 in an impact;
    `by_blocks`: keep `H` in the blocks that a relation between few bodies returns.
    """
    t1, q1 = (t, state.q) if at is None else at
    # Of few contacts among many the relation is evaluated again: picking its rows costs more in reverse mode.
    here = there = _seen(interaction, model, t, state.q)
    # Evaluate again only where the result could differ.
    if q1 is not state.q or not (t1 is t or interaction.relation.is_scleronomic):
        there = _seen(interaction, model, t1, q1)
    around = context(interaction, model, t, state, h, gamma, before, here)
    rows, drift = there.H if by_blocks else there.dense(), there.drift
    if ahead is not None:
        drift = _seen(interaction, model, *ahead).velocity(state.v) - apply(rows, state.v)
    return law_block(interaction, around, rows, drift, duration=duration)


def law_block(
    interaction: Interaction, around: Context, output, drift, inputs=None, duration=None
) -> Block:
    """The block of an interaction, local velocities `u = C v + drift`.

    **Arguments:** `around`: the data of the law; `output`: `C (k, n, c)`; `drift`: `(k, c)`;
    `inputs`: how multipliers enter the equations, `(k, n, c)`, `None` for `C`; `duration`: as in
    `build_block`.
    """
    shift, law, active = law_at(interaction, around)
    if duration is not None:
        around = eqx.tree_at(lambda a: a.h, around, jnp.full_like(around.h, duration))
    return Block(output, inputs, drift + shift, law.in_step(around), active)


def law_at(
    interaction: Interaction, around: Context
) -> tuple[Array, AbstractLaw, Bool[Array, " c"]]:
    """The law of an interaction under its mask.

    **Returns:** the shift `(k, c)`; the law with its parameters `(c,)`; which contacts take part.
    """
    law = broadcast_law(interaction.law, around.gap.shape[0], around.gap.dtype)
    shift, active = shift_of(law, around), law.active(around)
    mask = interaction.mask
    if mask is not None:
        law = law if mask.side is None else law.held(mask.side)
        shift = shift if mask.restitution is None else mask.restitution[None] * shift
        active = mask.on & (mask.closed | active)
    return shift, law, jax.lax.stop_gradient(active)


def shift_of(law: AbstractLaw, around: Context) -> Array:
    """The shift of a law; raises `ValueError` if it would be broadcast over rows or contacts."""
    shift, expected = law.shift(around), around.u_minus.shape
    lift = jax.eval_shape(law.lift, around.u_minus)
    name = type(law).__name__
    if jnp.shape(shift) != expected:
        raise ValueError(
            f"{name}.shift must have shape {expected}, one entry for every row and contact, got "
            f"{jnp.shape(shift)}."
        )
    if lift.shape != expected[1:]:
        raise ValueError(
            f"{name}.lift must have shape {expected[1:]}, one entry per contact, got {lift.shape}."
        )
    return shift


def all_solved(model: Model) -> str | None:
    """Why a method that solves all contacts does not fit a model: some have no known gap; else `None`."""
    if all(i.relation.most_known is None for i in model.interactions):
        return None
    return (
        "this method solves all contacts, and shape_contacts(..., near) leaves some out; use it without "
        "`near`, or MoreauJean()"
    )


class Keyed(eqx.Module):
    """Impulses `(c, k)` of listed contacts with the keys `(c,)` by which the next step finds them."""

    keys: Int[Array, " c"]
    impulses: Array

    def of(self, keys: Int[Array, " c"]) -> Array:
        """The impulses of the contacts with these keys, zero for new ones."""
        order = jnp.argsort(self.keys)
        place = jnp.searchsorted(self.keys, keys, sorter=order)
        at = order[jnp.minimum(place, len(order) - 1)]
        known = (self.keys[at] == keys) & (keys >= 0)
        return jnp.where(known[:, None], self.impulses[at], 0)


def crowded(left: Sequence[Array]) -> Int[Array, "2"]:
    """The first contact of masks, one `(c,)` for each interaction; see `StepInfo.crowded`."""
    first = jnp.full(2, -1, jnp.int32)
    for number, mask in reversed(list(enumerate(left))):
        places = np.arange(len(mask), dtype=np.int32)
        place = jnp.min(jnp.where(mask, places, len(mask)), initial=len(mask))  # `argmax` is slower
        first = jnp.where(place < len(mask), jnp.stack([jnp.int32(number), place]), first)
    return first


def left_out(selections: Sequence[Selection], v, h) -> Int[Array, "2"]:
    """The first contact that was not solved and closes within the step, see `crowded`."""
    return crowded([_left_out(selection, v, h) for selection in selections])


def _left_out(selection: Selection, v, h) -> Bool[Array, " c"]:
    """Which contacts were not solved and close within the step; for a list one entry, that of its bound."""
    if selection.beyond is not None:
        # Two bodies approach each other with at most twice the largest speed.
        fastest = jnp.sqrt(jnp.max(jnp.sum(v.reshape(-1, 6)[:, :3] ** 2, axis=1)))
        return (selection.beyond < 2 * h * fastest)[None]
    if selection.hit is None or selection.seen is None or selection.seen.gap is None:
        return jnp.zeros(0, bool)
    normal = selection.seen.first(1).velocity(v)[0]
    return selection.rest & (selection.seen.gap + h * jnp.minimum(normal, 0) < 0)


def nearest_switch(
    model: Model, t: Scalar, state: State, h: Scalar, gamma: float, selections, multipliers
) -> Array:
    """Smallest distance of a law from a jump of its shift, relative to the speed of the motion; `()`.

    Zero where the share of a load jumps, see `_contradict`. `multipliers`: of all contacts, per interaction.
    """
    state, multipliers = jax.lax.stop_gradient((state, multipliers))
    least = jnp.full((), jnp.inf, state.v.dtype)
    every = zip(model.interactions, selections, multipliers, strict=True)
    for interaction, selection, z in every:
        if interaction.law.switches and interaction.relation.needs_positions:
            seen = (
                _seen(interaction, model, t, state.q) if selection.seen is None else selection.seen
            )
            seen = jax.lax.stop_gradient(seen.first(1))
            around = context(interaction, model, t, state, h, gamma, seen=seen)
            law = broadcast_law(interaction.law, around.gap.shape[0], around.gap.dtype)
            law = jax.lax.stop_gradient(law)
            least = jnp.minimum(least, jnp.min(law.edge(around), initial=jnp.inf))
            if selection.keys is None:  # steps that list their contacts are not differentiated
                jumps = _contradict(law, around, seen, z[:, 0] != 0)
                least = jnp.where(jumps, 0, least)
    speed = model.system.scales(state)[1]
    return least / jnp.where(speed > 0, speed, 1)


CONTRADICTS = 1e-2
"""Part of a change of shifts, relative to the largest, that counts as that of no motion."""


def _contradict(law: AbstractLaw, around: Context, seen: Contacts, loaded) -> Bool[Array, ""]:
    """Whether a small change of the motion makes the shifts of redundant contacts contradict each other.

    Normal velocities of loaded contacts are `N v`, and their shifts must be of this form for all of them to
    stay closed. The gaps and the velocities at the start change as `N x` does, and so do shifts that depend
    on them in the same way in all contacts. If one edge of a face rebounds and the other one lands, they
    do not: for any small change one corner opens, and the share of the load jumps.
    """

    def shift(normal, gap):
        u = jnp.concatenate([normal[None], around.u_minus[1:]])
        return law.shift(eqx.tree_at(lambda a: (a.u_minus, a.gap), around, (u, gap)))[0]

    one = jnp.ones_like(around.gap)
    slope = jax.jvp(shift, (around.u_minus[0], around.gap), (one, one))[1]
    most = jnp.max(jnp.where(loaded, slope, -jnp.inf))
    differ = most > jnp.min(jnp.where(loaded, slope, jnp.inf))

    def test(seen, slope):
        rows = jnp.where(loaded[:, None], seen.dense()[0].T, 0)
        size = jnp.sqrt(jnp.sum(rows * rows, axis=0))
        rows = rows / jnp.where(size > 0, size, 1)[None]
        little = jnp.sqrt(jnp.finfo(rows.dtype).eps) * np.eye(rows.shape[1], dtype=rows.dtype)
        shifts = slope[:, None] * rows
        rest = shifts - rows @ (matrix_inverse(rows.T @ rows + little) @ (rows.T @ shifts))
        return jnp.max(jnp.abs(rest)) > CONTRADICTS * jnp.max(jnp.abs(shifts))

    return call_where(differ, test, seen, slope)


def zero_impulses(model: Model, t0: Scalar, state: State) -> tuple[Array, ...]:
    """Zero impulses `(c, k)` of every interaction, for a start without a guess."""
    counts = model.contacts(t0, state.q)
    return tuple(
        jnp.zeros((c, i.rows), state.v.dtype)
        for c, i in zip(counts, model.interactions, strict=True)
    )


def no_memory(model: Model, t0: Scalar, state: State) -> tuple:
    """Zero impulses as a warm start, `Keyed` where a relation lists its contacts in every step."""

    def of(interaction, zero):
        if interaction.on(model.system).listed(state.q) is None:
            return zero
        return Keyed(jnp.full(len(zero), -1, jnp.int32), zero)

    return tuple(map(of, model.interactions, zero_impulses(model, t0, state)))


def first_guess(selection: Selection, memory) -> Array:
    """The impulses `(a, k)` of the contacts that are solved, from those of the step before."""
    if selection.keys is None:
        return selection.pick(memory)
    return memory.of(selection.keys) if isinstance(memory, Keyed) else jnp.zeros_like(memory)


def remembered(selection: Selection, impulses: Array):
    """What the next step starts from."""
    return impulses if selection.keys is None else Keyed(selection.keys, impulses)
