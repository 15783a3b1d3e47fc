"""Switches of relays, located inside the step of a first-order system.

When the output of a relay crosses zero, its multiplier goes from one bound to the other. Only the rate
jumps, but a step that holds the multiplier over its whole length loses the derivative of the switching
time. Here a step is tried with the multipliers held at the bounds given by the signs of their outputs. If
an output crosses zero, the crossing `s` is the root of the output at the end of a step of length `s`. The
rest of the step is another trial, in which that relay is free: it switches to the other bound, or slides.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._jax import repeat_where_pending, with_value, without_derivative
from ..._numerics import implicit_root, is_least, max_abs
from ..._result import RESULTS, first_error
from ..._types import Args, Scalar, State
from ...complementarity.problem._problem import broadcast_law
from ...model import Model
from .._base import AbstractIntegrator, Carry, StepInfo


class _Run(eqx.Module):
    """State within a step: the state `start` at its time `past`, and a trial of the rest.

    `outputs`: at `start`, zero for free relays, `(c,)`; `before`, `trial`: the reports of the part
    before `start` and of the trial.
    """

    past: Scalar
    start: State
    carry: Carry
    outputs: Float[Array, " c"]
    end: State
    last: Carry
    crossed: Bool[Array, " c"]
    pending: Bool[Array, ""]
    count: Int[Array, ""]
    before: StepInfo
    trial: StepInfo
    result: RESULTS


def switching_step(
    inner: AbstractIntegrator,
    max_switches: int,
    model: Model,
    t0: Scalar,
    h: Scalar,
    state: State,
    carry: Carry,
    args: Args,
):
    """A step of a first-order system with its switches located; returns as `AbstractIntegrator.step`."""
    counts = model.contacts(t0, state.q)
    size = 1 + max_abs(jax.lax.stop_gradient(state.v))
    tiny = 1e2 * jnp.finfo(state.v.dtype).eps ** 0.75 * size

    def trial(past, state, carry, outputs, count) -> _Run:
        """Tries the rest of a step with relays held by `outputs`; all are free after the last switch."""
        outputs = jnp.where((jnp.abs(outputs) > tiny) & (count < max_switches), outputs, 0)
        t = t0 + past
        held = _held(model, t, state, outputs)
        outputs = jnp.where(_is_held(model, counts, outputs), outputs, 0)
        end, info, last, result = inner.step(held, t, h - past, state, carry, args)
        after = _outputs(model, t0 + h, end, info.details.multipliers)
        # An output that ends at zero has crossed too: its relay is free in the next step.
        crossed = jnp.where(outputs > 0, after < tiny, (outputs < 0) & (after > -tiny))
        return _Run(
            past=past,
            start=state,
            carry=carry,
            outputs=outputs,
            end=end,
            last=last,
            crossed=crossed,
            pending=jnp.any(crossed),
            count=count,
            before=info.nothing(),
            trial=info,
            result=result,
        )

    def switch(run: _Run) -> _Run:
        """Locates the first switch of a trial, and tries the rest of the step again."""

        def step(given, s):
            model, t, state, carry, args, outputs = given
            held = _held(model, t, state, outputs)
            end, info, *_ = inner.step(held, t, s, state, carry, args)
            return end, info, _outputs(model, t + s, end, info.details.multipliers)

        def newton(given, s, which):
            value, slope = jax.jvp(lambda s: step(given, s)[2], (s,), (jnp.ones_like(s),))
            value, slope = (jnp.sum(jnp.where(which, x, 0)) for x in (value, slope))
            usable = slope != 0
            return s - jnp.where(usable, value, 0) / jnp.where(usable, slope, 1)

        given = model, t0 + run.past, run.start, run.carry, args, run.outputs
        frozen = without_derivative(given)
        length = jax.lax.stop_gradient(h - run.past)
        # Find the first crossing by secants, then refine it by Newton's method on the motion itself.
        after = _outputs(model, t0 + h, run.end, run.trial.details.multipliers)
        parts = run.outputs / jnp.where(run.crossed, run.outputs - after, 1)
        parts = jax.lax.stop_gradient(jnp.where(run.crossed, parts, jnp.inf))
        first = is_least(parts)
        low, high = 1e-9 * length, (1 - 1e-9) * length
        s = jnp.where(run.pending, jnp.min(parts), 0.5) * length

        def visit(_, s):
            return jnp.clip(newton(frozen, s, first), low, high)

        s = jax.lax.stop_gradient(jax.lax.fori_loop(0, 6, visit, s))
        s = implicit_root(lambda s: jnp.sum(jnp.where(first, step(given, s)[2], 0)), s)

        past = run.past + s
        past = with_value(past, jnp.minimum(past, h - 1e-9 * length))
        at, info, outputs = step(given, s)
        outputs = jax.lax.stop_gradient(jnp.where(first, 0, outputs))
        begin = inner.init(model, t0 + past, at, args)
        begin = jax.tree.map(lambda new, old: new.astype(old.dtype), begin, run.carry)
        new = trial(past, at, begin, outputs, run.count + 1)
        result = first_error(run.result, new.result)
        info = eqx.tree_at(lambda i: i.located, info, info.located + 1)
        return eqx.tree_at(lambda r: (r.before, r.result), new, (run.before.then(info), result))

    multipliers = carry.multipliers
    outputs = jax.lax.stop_gradient(_outputs(model, t0, state, multipliers))
    run = trial(jnp.zeros_like(h), state, carry, outputs, jnp.zeros((), jnp.int32))
    run = repeat_where_pending(switch, run, max_switches)
    return run.end, run.before.then(run.trial), run.last, run.result


def _outputs(model: Model, t: Scalar, state: State, multipliers: tuple[Any, ...]) -> Array:
    """The outputs of contacts with one row, zero for others and those switched off, `(c,)`."""
    parts = []
    for i, lam in zip(model.interactions, multipliers, strict=True):
        y = i.output(model.system, t, state, lam)
        free = i.rows == 1 if i.mask is None else i.mask.on & (i.rows == 1)
        parts.append(jnp.where(free, y[:, 0], 0))
    return jnp.concatenate(parts)


def _held(model: Model, t: Scalar, state: State, outputs: Array) -> Model:
    """The model with the multipliers of relays held at the bounds given by the signs of `outputs`."""
    return model.masked(t, state.q, jnp.ones_like(outputs, bool), side=jnp.sign(outputs))


def _is_held(model: Model, counts: tuple[int, ...], outputs: Array) -> Bool[Array, " c"]:
    """Which contacts have a single possible multiplier; a diode, for example, is never held."""
    ends = []
    for i, y in zip(model.interactions, jnp.split(outputs, np.cumsum(counts)[:-1]), strict=True):
        law_set = broadcast_law(i.law, y.shape[0], y.dtype).held((jnp.sign(y),)).set()
        far = jnp.full_like(y, 1e30)[None]
        one = law_set.project(far)[0] == law_set.project(-far)[0] if i.rows == 1 else y != y
        ends.append(one)
    return jnp.concatenate(ends)
