"""The derivative of impact times, attached to a scheme that loses it.

A plain step applies an impact somewhere in the step; that "somewhere" is an integer and has no
derivative. The exact tangent map of an impact is the saltation matrix; here it is the derivative of

    free motion to the crossing,  M (v⁺ − v⁻) = H^T P  with the law,  free motion to the end of the step

in which the crossing is a root and is differentiated as one. The steps that do it are those in which
the plain scheme pushes a contact that was closing fast, whichever side of the crossing they are on.

The plain motion has an error of `O(h)` after its first impact, and so would every derivative along
it. Therefore a second motion is carried along, as a difference `(2 n,)` from the plain one:
between impacts it follows the linearised plain step, and through an impact the motion above. It is
the located motion to second order, and impacts are differentiated there.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ..._jax import call_where, settle_where_pending, with_value, without_derivative
from ..._result import RESULTS
from ..._types import Args, Local, Scalar, State, Vector
from ...complementarity import AbstractSolver, Auto
from ...complementarity._problem import broadcast_law
from ...model import Model
from .._base import AbstractIntegrator, AbstractMemory, Carry, Multistep, StepInfo
from .._contacts import context, zero_impulses
from .._impact import (
    approach,
    check_slow,
    coupled,
    crossing,
    crossing_times,
    free_acceleration,
    impact,
    motion,
    normal_motion,
    resting,
    slip_rows,
    slips,
    total_gap,
)
from .._wrapped import AbstractWrappedIntegrator
from ._located import Located, locating_problem, still
from ._switching import switching_step

REACH = 8.0
"""Steps within which a crossing of the located motion is searched for."""


class Corrected(AbstractWrappedIntegrator):
    """A scheme with the derivatives of impact times added: values are those of `inner`, bit by bit.

    The tangent of a step in which contacts struck is that of the impact at its crossing, as
    `Located` finds it; everywhere else it is that of `inner`. Measured on closed forms, with
    `MoreauJean()` at h = 1e-4: below 1e-8 of the sensitivities of balls, a slope, a column, a rod, a
    vibrating table and a billiard, whose values are off by up to 5e-3; 8e-6 on a rigid body that falls
    on its corner, 2e-4 on a pendulum (first order, as the motion between impacts is that of `inner`).

    - What strikes is decided as in `Located`, from the speed at the start of the step. Slower
      contacts keep the derivative of `inner`.
    - A law that sees the gap (a landing under `GapStabilized`) has not lost the time of the impact,
      and is not corrected.
    - Contacts that strike in one step and are coupled strike together, at the root of the sum of
      their gaps: this is a choice, their order is not resolved. Others have crossings of their own.
    - The located motion, on which impacts are differentiated, is restarted from that of `inner`
      where its next crossing is more than eight steps away: in long and chaotic motions.
    - Impulses have the derivative of the located motion too, and so have multipliers and outputs.
    - Where dry friction turns (see `Located`), the tangent is that of the step of `Located` from the same
      start, unless something struck in the same step.
    - In a first-order system it is the switches of relays that are corrected, as `Located` finds them
      from the same start. Measured below 1e-12.

    The correction costs two steps of `inner` and two impacts for the batch elements in which a contact
    struck, and a linearised step for those in which others push; nothing where no derivative is taken.

    **Arguments:** `inner`; `slow`: as in `Located`; `solver`: of the impact; `max_impacts`: groups of
    contacts that may strike one after the other in a step, at least 1, of which the last one takes all
    that are left; in a first-order system, switches that are differentiated in a step.

    Reference: R. I. Leine, H. Nijmeijer (2004), doi:10.1007/978-3-540-44398-8; the saltation matrix
    is due to M. A. Aizerman, F. R. Gantmakher (1958), doi:10.1093/qjmam/11.4.385.
    """

    inner: AbstractIntegrator
    slow: float = eqx.field(default=4.0, static=True)
    solver: AbstractSolver = Auto()
    max_impacts: int = eqx.field(default=2, static=True)

    def __check_init__(self):
        check_slow(self.slow)
        if self.max_impacts < 1:
            raise ValueError(f"max_impacts must be at least 1, got {self.max_impacts}.")

    @property
    def keeps_impact_times(self) -> bool:
        return True

    @property
    def memory(self) -> AbstractMemory:
        # The located motion belongs to the trajectory.
        return Multistep()

    def supports(self, model: Model) -> str | None:
        return locating_problem(self, self.inner, model)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> "_Beside":
        nothing = jnp.zeros(2 * state.v.shape[0], state.v.dtype)
        return _Beside(self.inner.init(model, t0, state, args), nothing)

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: "_Beside", args: Args
    ) -> tuple[State, StepInfo, "_Beside", RESULTS]:
        if not model.interactions:
            end, info, new, result = self.inner.step(model, t0, h, state, carry.inner, args)
            return end, info, _Beside(new, carry.ahead), result

        if model.system.first_order_problem is None:
            end, info, new, result = self.inner.step(model, t0, h, state, carry.inner, args)
            given = model, t0, h, state, carry.inner, args
            there, found, *_ = switching_step(self.inner, self.max_impacts, *given)
            parts = (there.v, found.impulses, found.details), (end.v, info.impulses, info.details)
            v, impulses, details = jax.tree.map(with_value, *parts)
            info = eqx.tree_at(lambda i: (i.impulses, i.details), info, (impulses, details))
            return State(end.q, v), info, _Beside(new, carry.ahead), result

        end, info, new, result = self.inner.step(model, t0, h, state, carry.inner, args)
        known = without_derivative((model, t0, h, state, end, args, carry))
        masks = _struck(known, jax.lax.stop_gradient(info.impulses), self.slow)
        struck, pushed, _ = masks
        strikes = jnp.any(struck)
        by, after, impulses, times = call_where(
            strikes,
            lambda *given: _located(self, *given),
            model, (t0, h), state, jax.lax.stop_gradient(carry.ahead), carry.inner, args,
            known[4], masks,
        )  # fmt: skip
        end, info = _attached(model.system.group, end, info, by, impulses, strikes)
        if any(map(slip_rows, model.interactions)):
            given = model, t0, h, state, carry.inner, args
            end, info = self._turned(end, info, strikes, known, *given)
        located = info.located + strikes.astype(jnp.int32)
        times = jnp.where(strikes, times, jnp.inf)
        info = eqx.tree_at(lambda i: (i.located, i.impacts), info, (located, times))
        ahead = _followed(self.inner, known, jnp.any(pushed))
        ahead = jnp.where(strikes, after, ahead)
        ahead = jnp.where(jnp.all(jnp.isfinite(ahead)), ahead, 0)
        return end, info, _Beside(new, jax.lax.stop_gradient(ahead)), result

    def _turned(self, end, info, struck, known, *given):
        """The end of a step in which friction turned, with the derivative of the located turn."""
        model, t0, h, state, plain, *_ = known
        before, after = slips(model, t0, state), slips(model, t0 + h, plain)
        ends_at_rest = jnp.all(jnp.abs(after) <= still(model, plain), axis=0)
        ends_at_rest = ends_at_rest & jnp.any(jnp.abs(before) > still(model, plain), axis=0)
        turned = jnp.any((jnp.sum(before * after, axis=0) < 0) | ends_at_rest)
        scheme = Located(self.inner, self.max_impacts, slow=self.slow, solver=self.solver)
        group = model.system.group

        def located(*given):
            there, found, *_ = scheme.step(*given)
            return _difference(group, without_derivative(there), there), found.impulses

        by, impulses = call_where(turned & ~struck, located, *given)
        return _attached(group, end, info, by, impulses, turned & ~struck)


class _Beside(eqx.Module):
    """The carry of `inner`, and from its motion to the located one: `(2 n,)`, turn and velocity."""

    inner: Carry
    ahead: Vector


def _followed(inner: AbstractIntegrator, known, pushed: Array) -> Vector:
    """The located motion over a step without impact: the linearised free motion, or plain step.

    The linearised plain step is taken where contacts push, for batch elements whose located motion
    differs from the plain one. Elsewhere an error of second order is small compared with `ahead`.
    """
    model, t0, h, state, end, args, carry = known
    group = model.system.group

    def linearised(step, carry, state, end, ahead):
        def change(by):
            return _difference(group, end, step(_shifted(group, state, by), carry))

        return jax.jvp(change, (jnp.zeros_like(ahead),), (ahead,))[1]

    def free(state, _):
        a = free_acceleration(model, t0, state, args)
        turn = h * state.v + h * h / 2 * a
        return State(group.compose(state.q, group.exp(turn)), state.v + h * a)

    def plain(state, carry):
        return inner.step(model, t0, h, state, carry, args)[0]

    near = free(state, None)
    moved = linearised(free, None, state, near, carry.ahead)
    held = pushed & jnp.any(carry.ahead != 0)
    given = carry.inner, state, end, carry.ahead
    with_contact = call_where(held, lambda *given: linearised(plain, *given), *given)
    return jnp.where(held, with_contact, moved)


def _struck(known, impulses, slow: float):
    """Which contacts struck in a plain step, which others it pushed, and which rest, each `(c,)`.

    What struck closed fast and was pushed, by a law that does not see the gap: one that does has
    not lost the time.
    """
    model, t0, h, state, _, args, _ = known
    before = approach(model, t0, h, state, args, slow)
    # Joints always push, in either direction.
    pushed = jnp.concatenate(
        [
            (p[:, 0] > 0) | i.law.never_opens
            for i, p in zip(model.interactions, impulses, strict=True)
        ]
    )
    untimed = []
    for interaction in model.interactions:
        around = context(interaction, model, t0, state, h, 0.0)
        law = broadcast_law(interaction.law, around.gap.shape[0], state.v.dtype)

        def shift(gap, law=law, around=around):
            return law.shift(eqx.tree_at(lambda c: c.gap, around, gap))

        _, sees = jax.jvp(shift, (around.gap,), (jnp.ones_like(around.gap),))
        untimed.append(jnp.all(sees == 0, axis=0))
    struck = pushed & (-before.rate > before.slow) & jnp.concatenate(untimed)
    struck = struck & jnp.isfinite(before.gap)
    rests = resting(before.slow, h, before.gap, before.rate)
    return struck, pushed & ~struck, rests & ~struck


class _Run(eqx.Module):
    """The located motion during a plain step: state, and contacts that are closed or still to strike.

    `past`: time since the start of the step, of any sign; `end`: its state at the end of the step;
    `impulses`: so far, per interaction; `times`: of the impacts.
    """

    past: Scalar
    start: State
    left: Bool[Array, " c"]
    touching: Bool[Array, " c"]
    end: State
    impulses: tuple[Local, ...]
    times: Float[Array, " i"]
    pending: Bool[Array, ""]
    count: Int[Array, ""]


def _located(scheme: Corrected, model, grid, state, ahead, carry, args, plain: State, masks):
    """A step through impacts at their crossings, from the motion that is `ahead` of the plain one.

    **Returns:** its end relative to itself, `(2 n,)`: zero, with the derivative of that motion; how far
    it is ahead of the end of the plain step; its impulses; and the times of its impacts.
    """
    (t0, h), (struck, pushed, rests) = grid, masks
    group = model.system.group
    here = without_derivative(state)
    start = _shifted(group, here, ahead)
    near = _is_near(without_derivative((model, t0, h, here, start)), struck)
    start = jax.tree.map(lambda a, b: jnp.where(near, a, b), start, here)
    start = _shifted(group, start, _difference(group, here, state))

    def body(run: _Run) -> _Run:
        t = t0 + run.past
        held, now, length, at, given = without_derivative((model, t, h, run.start, args))
        before = approach(held, now, length, at, given, scheme.slow)
        free = ~(run.left | before.strikes)
        masked = model.masked(t, run.start.q, free, run.touching)
        end, info, *_ = scheme.inner.step(masked, t, h, run.start, carry, args)
        curve = motion(model, t, h, run.start, end, args)
        over = ~jnp.any(run.left)

        last = run.count >= scheme.max_impacts - 1
        s, hit = _next(without_derivative((model, curve, end)), run.left, last)
        s = crossing(model, curve, s, total_gap(hit), REACH)
        moved = jnp.where(over, h - run.past, s)
        at = curve(model, moved)
        touching = hit | pushed | rests
        masked = model.masked(t + s, at.q, touching, touching)
        v, kicks, *_ = impact(masked, t + s, h, at, scheme.solver, scheme.adjoint)
        after = State(at.q, jnp.where(over, at.v, v))
        impulses = jax.tree.map(
            lambda total, pushed, kick: total + moved / h * pushed + jnp.where(over, 0, kick),
            run.impulses, info.impulses, kicks,
        )  # fmt: skip
        now = ~over & (jnp.arange(scheme.max_impacts, dtype=jnp.int32) == run.count)
        return _Run(
            past=run.past + s,
            start=after,
            left=run.left & ~hit,
            touching=touching,
            end=after,
            impulses=impulses,
            times=jnp.where(now, t + s, run.times),
            pending=~over,
            count=run.count + 1,
        )

    run = _Run(
        past=jnp.zeros_like(h),
        start=start,
        left=struck,
        touching=pushed,
        end=start,
        impulses=zero_impulses(model, t0, state),
        times=jnp.full(scheme.max_impacts, jnp.inf, state.v.dtype),
        pending=jnp.any(struck),
        count=jnp.zeros((), jnp.int32),
    )
    end, impulses, times = settle_where_pending(
        body, run, scheme.max_impacts + 1, lambda run: (run.end, run.impulses, run.times)
    )
    there = without_derivative(end)
    return _difference(group, there, end), _difference(group, plain, there), impulses, times


def _next(trial, left: Array, last: Array):
    """When the first of the remaining contacts crosses along a curve, and all contacts coupled to it.

    All remaining ones, if it is the `last` crossing.
    """
    model, curve, end = trial
    gap0, rate0 = normal_motion(model, curve.t, curve.start)
    gap1, rate1 = normal_motion(model, curve.t + curve.h, end)
    times = crossing_times(curve.h, gap0, rate0, gap1, rate1, REACH)
    times = jnp.where(left, times, jnp.inf)
    earliest = jnp.min(times)
    first = (times == earliest) & (jnp.cumsum(times == earliest, dtype=jnp.int32) == 1) & left
    s = jnp.where(jnp.isfinite(earliest), earliest, 0) * curve.h
    felt = coupled(model, curve.t + s, curve(model, s), first)
    return s, left & (first | felt | last)


def _is_near(case, struck: Array) -> Bool[Array, ""]:
    """Whether contacts that struck on the plain motion are near their impact on the located one."""
    model, t, h, plain, beside = case
    _, rate = normal_motion(model, t, plain)
    gap, other = normal_motion(model, t, beside)
    falls = other < rate / 2
    near = jnp.abs(gap) < REACH * h * jnp.abs(jnp.where(falls, other, 0))
    return jnp.all(near | ~struck)


def _shifted(group, state: State, by: Vector) -> State:
    """A state moved by a turn and a velocity, `(2 n,)`."""
    n = state.v.shape[0]
    return State(group.compose(state.q, group.exp(by[:n])), state.v + by[n:])


def _difference(group, a: State, b: State) -> Vector:
    """The inverse: from `a` to `b`."""
    turn = group.log(group.compose(group.inverse(a.q), b.q))
    return jnp.concatenate([turn, b.v - a.v])


def _attached(group, end: State, info: StepInfo, by: Vector, impulses, happens: Array):
    """State and impulses unchanged, with the tangents of `by` and `impulses` where an impact happened."""
    plain = end, info.impulses
    end, own = jax.tree.map(lambda a, b: jnp.where(happens, a, b), without_derivative(plain), plain)
    flat, unravel = ravel_pytree((by, impulses))
    by, more = unravel(_zero(flat, happens))
    info = eqx.tree_at(lambda i: i.impulses, info, jax.tree.map(jnp.add, own, more))
    return _shifted(group, end, by), info


@jax.custom_jvp
def _zero(by: Vector, happens: Array) -> Vector:
    """A zero with the derivative of a computation; its value is not computed.

    Selected by `happens`, so that in a batch it has one zero per element.
    """
    zero = jnp.zeros_like(by)
    return jnp.where(happens, zero, -zero)


@_zero.defjvp
def _zero_rule(primals, tangents):
    return _zero(*primals), tangents[0]
