"""Builds the blocks of a step problem from interactions."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._block_rows import apply, without_world
from .._jax import call_where
from .._numerics import matrix_inverse
from .._types import Scalar, State
from ..complementarity import Block
from ..complementarity.problem._problem import broadcast_law, compact
from ..laws import AbstractLaw, Context
from ..model import Interaction, Model
from ..relations._base import Contacts


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
    # Of few contacts among many the relation is evaluated again: picking its rows instead costs more,
    # and in reverse mode twice as much as the rest of the step.
    here = there = _seen(interaction, model, t, state.q)
    # Evaluate again only where the result could differ.
    if q1 is not state.q or not (t1 is t or interaction.relation.is_scleronomic):
        there = _seen(interaction, model, t1, q1)
    around = context(interaction, model, t, state, h, gamma, before, here)
    rows, drift = without_world(there.H) if by_blocks else compact(there.H), there.drift
    if ahead is not None:
        later = _seen(interaction, model, *ahead).velocity(state.v)
        # Only where the surface falls away; a hollow one keeps its contact, and lets go of it slowly.
        bend = around.h * jnp.maximum(later[0] - here.velocity(state.v)[0], 0)
        around = eqx.tree_at(lambda a: a.bend, around, jax.lax.stop_gradient(bend))
        drift = later - apply(rows, state.v)
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
            if selection.listed is None:  # steps that list their contacts are not differentiated
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
