"""Switches of relays, located inside the step of a first-order system.

A relay whose output crosses zero goes from one bound to the other: nothing jumps but the rate, and the
derivative of the time at which it does is lost by a step that holds the multiplier over its whole
length. Here a step is tried with the multipliers held at the bounds where their outputs put them. If an
output crosses, the crossing `s` is the root of the output at the end of a step of length `s`, and the
rest of the step is another trial, in which that relay is free: it goes on to the other bound, or slides.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._lanes import repeat_where_pending
from ..._numerics import max_abs
from ..._result import RESULTS, first_error
from ..._types import Args, Local, Scalar, State
from ...complementarity._problem import broadcast_law
from ...model import Interaction, Model
from .._base import AbstractIntegrator, Carry, StepInfo
from .._step import without_derivative


class _Run(eqx.Module):
    """A step under way: where the part that is not settled begins, and a trial of its end.

    `outputs`: at `t`, zero for relays that are free, `(c,)`; `impulses`: those before `t`; `info`: of
    the trial, the worst of all parts where parts are compared.
    """

    t: Scalar
    start: State
    carry: Carry
    outputs: Float[Array, " c"]
    end: State
    last: Carry
    crossed: Bool[Array, " c"]
    pending: Bool[Array, ""]
    count: Int[Array, ""]
    impulses: tuple[Local, ...]
    info: StepInfo
    result: RESULTS


def switching_step(
    inner: AbstractIntegrator,
    max_switches: int,
    model: Model,
    t0: Scalar,
    t1: Scalar,
    state: State,
    carry: Carry,
    args: Args,
):
    """A step of a first-order system with its switches located; what `AbstractIntegrator.step` returns."""
    counts = model.contacts(t0, state.q)
    size = 1 + max_abs(jax.lax.stop_gradient(state.v))
    tiny = 1e2 * jnp.finfo(state.v.dtype).eps ** 0.75 * size

    def trial(t, state, carry, outputs, count) -> _Run:
        """The rest of a step with relays held where outputs put them; all free after the last switch."""
        outputs = jnp.where((jnp.abs(outputs) > tiny) & (count < max_switches), outputs, 0)
        held = _held(model, t, state, outputs)
        outputs = jnp.where(_is_held(held, counts, outputs), outputs, 0)
        end, info, last, result = inner.step(held, t, t1, state, carry, args)
        after = _outputs(model, t1, end, info.details.multipliers)
        # One that ends at zero has crossed too: it is free in the next step.
        crossed = jnp.where(outputs > 0, after < tiny, (outputs < 0) & (after > -tiny))
        none = jax.tree.map(jnp.zeros_like, info.impulses)
        return _Run(
            t,
            state,
            carry,
            outputs,
            end,
            last,
            crossed,
            jnp.any(crossed),
            count,
            none,
            info,
            result,
        )

    def switch(run: _Run) -> _Run:
        """The first switch of a trial, and a new trial of what is left of the step."""

        def step(given, s):
            model, t, state, carry, args, outputs = given
            held = _held(model, t, state, outputs)
            end, info, *_ = inner.step(held, t, t + s, state, carry, args)
            return end, info, _outputs(model, t + s, end, info.details.multipliers)

        def newton(given, s, which):
            value, slope = jax.jvp(lambda s: step(given, s)[2], (s,), (jnp.ones_like(s),))
            value, slope = (jnp.sum(jnp.where(which, x, 0)) for x in (value, slope))
            usable = slope != 0
            return s - jnp.where(usable, value, 0) / jnp.where(usable, slope, 1)

        given = model, run.t, run.start, run.carry, args, run.outputs
        frozen = without_derivative(given)
        length = jax.lax.stop_gradient(t1 - run.t)
        # The first to cross by the secants; then Newton's method on the motion itself.
        after = _outputs(model, t1, run.end, run.info.details.multipliers)
        parts = run.outputs / jnp.where(run.crossed, run.outputs - after, 1)
        parts = jax.lax.stop_gradient(jnp.where(run.crossed, parts, jnp.inf))
        first = (parts == jnp.min(parts)) & run.crossed
        first = first & (jnp.cumsum(first, dtype=jnp.int32) == 1)
        low, high = 1e-9 * length, (1 - 1e-9) * length
        s = jnp.where(run.pending, jnp.min(parts), 0.5) * length

        def visit(_, s):
            return jnp.clip(newton(frozen, s, first), low, high)

        s = jax.lax.stop_gradient(jax.lax.fori_loop(0, 6, visit, s))
        # Two passes with derivatives: those of the implicit function, to second order.
        s, _ = jax.lax.scan(lambda s, _: (newton(given, s, first), None), s, length=2)

        t = run.t + s
        t = t + jax.lax.stop_gradient(jnp.minimum(t, t1 - 1e-9 * length) - t)
        at, info, outputs = step(given, s)
        outputs = jax.lax.stop_gradient(jnp.where(first, 0, outputs))
        begin = inner.init(model, t, at, args)
        begin = jax.tree.map(lambda new, old: new.astype(old.dtype), begin, run.carry)
        new = trial(t, at, begin, outputs, run.count + 1)
        worst = eqx.tree_at(
            lambda i: (i.residual, i.iterations, i.margin, i.violation, i.solved_by),
            new.info,
            (
                jnp.maximum(run.info.residual, new.info.residual),
                run.info.iterations + new.info.iterations,
                jnp.minimum(run.info.margin, new.info.margin),
                jnp.maximum(run.info.violation, new.info.violation),
                jnp.maximum(run.info.solved_by, new.info.solved_by),
            ),
        )
        return eqx.tree_at(
            lambda r: (r.impulses, r.info, r.result),
            new,
            (
                jax.tree.map(jnp.add, run.impulses, info.impulses),
                worst,
                first_error(run.result, new.result),
            ),
        )

    multipliers = carry.multipliers
    outputs = jax.lax.stop_gradient(_outputs(model, t0, state, multipliers))
    run = trial(t0, state, carry, outputs, jnp.zeros((), jnp.int32))
    run = repeat_where_pending(switch, run, max_switches)
    impulses = jax.tree.map(jnp.add, run.impulses, run.info.impulses)
    return run.end, eqx.tree_at(lambda i: i.impulses, run.info, impulses), run.last, run.result


def _outputs(model: Model, t: Scalar, state: State, multipliers: tuple[Any, ...]) -> Array:
    """The outputs of contacts with one row, zero for the others, `(c,)`."""
    parts = []
    for i, lam in zip(model.interactions, multipliers, strict=True):
        rest = i.relation.rows - lam.shape[1]
        lam = jnp.pad(lam, ((0, 0), (0, rest)))
        y = i.relation.output(model.system.group, t, state, lam)
        parts.append(y[:, 0] if i.rows == 1 else jnp.zeros_like(y[:, 0]))
    return jnp.concatenate(parts)


def _held(model: Model, t: Scalar, state: State, outputs: Array) -> Model:
    """The model with the multipliers of relays held at the bounds where outputs put them."""
    counts = model.contacts(t, state.q)
    parts = jnp.split(outputs, np.cumsum(counts)[:-1])

    def one(i: Interaction, y: Array) -> Interaction:
        law = broadcast_law(i.law, y.shape[0], y.dtype)
        return Interaction(i.relation, law.held(y), i.max_active)

    held = tuple(map(one, model.interactions, parts))
    return eqx.tree_at(lambda m: m.interactions, model, held)


def _is_held(model: Model, counts: tuple[int, ...], outputs: Array) -> Bool[Array, " c"]:
    """Which contacts have one possible multiplier only; a diode, for one, is never held."""
    parts = jnp.split(jnp.full_like(outputs, 1e30)[None], np.cumsum(counts)[:-1], axis=1)
    ends = [
        i.law.set().project(x)[0] == i.law.set().project(-x)[0]
        if i.rows == 1
        else jnp.zeros_like(x[0], dtype=bool)
        for i, x in zip(model.interactions, parts, strict=True)
    ]
    return jnp.concatenate(ends)
