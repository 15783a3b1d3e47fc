"""Impacts located inside the step."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from ..._jax import settle_where_pending, where, without_derivative
from ..._numerics import is_least, max_abs
from ..._result import RESULTS, first_error
from ..._types import Args, Scalar, State
from ...complementarity import AbstractSolver, Auto
from ...model import Model
from .._base import AbstractIntegrator, Carry, StepInfo
from .._impact import (
    SLOW,
    approach,
    check_slow,
    coupled,
    crossing,
    crossing_times,
    impact,
    lasts_long,
    motion,
    normal_motion,
    one_slip,
    rebounds,
    resting,
    slip_rows,
    slips,
    slips_of,
    still,
    total_gap,
)
from .._step import overflowed
from .._wrapped import AbstractWrappedIntegrator, size_problem
from ._located_run import Before, Run, kept
from ._refusals import curvature_problem, locating_problem
from ._release import Releases, pressed, released, stuck
from ._switching import switching_step


class Located(AbstractWrappedIntegrator):
    """A scheme with its impacts located inside the step, so that derivatives through impacts are correct.

    A step first tries `inner` without the contacts that are about to strike. If one of them crosses,
    the crossing `s` is the root of its gap along the motion of that trial,

        q(s) = q0 exp(s v0 + (s/h)² (log(q0^-1 q1) − h v0) + s² (s − h) j/6),
        v(s) = v0 + (s/h) (v1 − v0) + s (s − h) j/2

    with the jerk `j` of the motion under forces and joints alone or, in models with friction and without
    joints, of the step. The law acts there at zero duration, `M (v⁺ − v⁻) = H^T P` with `v⁻ = v(s)`.
    Then `inner` tries the rest `h − s` in the same way, at most `max_impacts` times; what is left after
    that is a plain step with all contacts. A step without impact is one step of `inner`.

    `s` is differentiated as a root, so that the derivative is that of the discrete motion. With `j`,
    first derivatives have the order of the values, and second derivatives converge where `inner` has
    second order. With an inner method of first order they do not (140 % off for a rod on a hinge whose
    reactions have first order), and `simulate` raises `ValueError` where they are taken. After contacts
    that last on curved surfaces, let go, or begin to slip they would not be true either: these are
    counted (`Solution.stats.kinks`), and second derivatives of such a `Solution` overflow.

    Errors at h = 1e-3 and 1e-4: for a pendulum at a wall 5e-6 and 5e-8 in value, 4e-6 and 4e-8 in first,
    9e-6 and 6e-7 in second derivatives; in second derivatives with friction in its bearing and a turn
    8e-4 and 8e-5, of a rod on a hinge 5e-3 and 3e-4 (with `D1MinusLinear` 1.5e-3 and 7e-5). On 100 random
    mechanisms of three masses with stops, springs and dry friction, with 7 impacts and slip reversals
    each, at h = 1e-3, derivatives are off by 8e-5 in the median, of nine tenths by at most 5e-4. Between
    impacts, derivatives are as accurate as those of `inner`; of `MoreauJean()`, projected or not, also where
    contacts let go or begin to slip, and with `contacts_at=HalfExplicit()` where they let go of surfaces that
    fall away. With it and constant forces, values and sensitivities are exact: measured 1e-11 relative on
    flights, oblique bounces, slopes, columns and rods. Values keep second order, the most there is through
    impacts, away from resting contact.

    Which contacts strike:

    - A contact strikes if it closes faster than `slow` times the change of its rate that the forces
      alone cause in a step. Slower ones (rest, sliding, rolling, grazing) are left to `inner` and its
      law. Their derivative is that of `inner`: finite, but without the derivative of impact times.
    - A rebound so slow that forces bring the contact back within `2 slow` steps is none: the contact
      stays closed, at the time of this impact. So an infinite bounce sequence ends with the derivative of
      its limit, under constant forces to 1e-7 at every h. Until it ends, values change by the order of
      `slow` times `h²` in positions and `h` in velocities; if that takes 20 steps, it is counted as slow.
    - Contacts that rest or slide at the time of an impact take part in it with their laws.
    - Contacts that cross within `simultaneous` (a fraction of the step) of the first, and are coupled
      to it, strike together, at the root of the sum of their gaps. Their order, on which the derivative
      may depend, is not resolved. Contacts that are not coupled strike one after the other.
    - A closed contact closing fast strikes where it crossed, up to a step before; a deeper one where it is.
    - Impacts beyond `max_impacts` of a step are left to `inner`; their times have no derivative.

    **Arguments:**

    - `inner`: the scheme between impacts, whose steps can be split and repeated. It should let contacts
      that carry no load move freely.
    - `max_impacts`: impacts per step, at least 1.
    - `slow`, `simultaneous`: see above. `solver`: of the impacts.

    Slip reversals of dry friction (`DryFriction`, `CoulombFriction`) are located in the same way: the
    step is tried with friction held against the slip, the reversal is the root of the slip, and the rest
    of the step has the law itself: the contact slides back or sticks. In space the root is that of the
    slip along its direction at the start of the step. `max_impacts` counts reversals too.

    In a first-order system the switches of relays are located in the same way: a step is tried with
    multipliers held at their bounds, and the crossing is the root of the output at the end of a step
    of that length. Only the rate jumps there. `max_impacts` then counts switches.

    Joints and prescribed velocities take part in every impact, however far their gaps have drifted;
    limited forces (`DryFriction`) do not act in it, since it has no duration. Impacts are differentiated as
    `inner` differentiates its laws (`adjoint`). In a batch, the elements with an impact are gathered.

    Reference: R. I. Leine, H. Nijmeijer, Dynamics and bifurcations of non-smooth mechanical systems
    (2004), doi:10.1007/978-3-540-44398-8.
    """

    inner: AbstractIntegrator
    max_impacts: int = eqx.field(static=True)
    slow: float = eqx.field(static=True)
    simultaneous: float = eqx.field(static=True)
    solver: AbstractSolver

    def __init__(
        self,
        inner: AbstractIntegrator,
        max_impacts: int = 2,
        *,
        slow=SLOW,
        simultaneous=1e-6,
        solver=None,
    ):
        if max_impacts < 1:
            raise ValueError(f"max_impacts must be at least 1, got {max_impacts}.")
        check_slow(slow)
        if not 0 <= simultaneous < 1:
            raise ValueError(f"simultaneous must lie in [0, 1), got {simultaneous}.")
        self.inner = inner
        self.max_impacts = max_impacts
        self.slow = slow
        self.simultaneous = simultaneous
        self.solver = Auto() if solver is None else solver

    @property
    def lists_contacts(self) -> bool:
        return False  # it also steps contacts in its own way

    @property
    def order(self) -> int:
        return min(self.inner.order, 2)

    @property
    def solver_names(self) -> tuple[str, ...]:
        return (*self.inner.solver_names, *self.solver.names[1:])

    @property
    def keeps_impact_times(self) -> bool:
        return True

    def supports(self, model: Model) -> str | None:
        return locating_problem(self, self.inner, model)

    def second_derivative_problem(self, model: Model) -> str | None:
        return curvature_problem(self.inner, model)

    def check(self, model: Model, t0: float, dt: float, state: State, args: Args) -> str | None:
        return size_problem(self, model, t0, state, args) or super().check(
            model, t0, dt, state, args
        )

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        if not model.interactions:
            return self.inner.step(model, t0, h, state, carry, args)
        if not model.system.kind.has_positions:
            return switching_step(self.inner, self.max_impacts, model, t0, h, state, carry, args)
        grid = t0, h
        none = jnp.zeros(sum(model.contacts(t0, state.q)), dtype=bool)
        known = Before(none, none, none, jnp.array(True))
        run = self._trial(model, grid, jnp.zeros_like(h), state, carry, args, known)
        # In space a slip reversal takes one pass to detect and one to locate.
        more = any(len(slip_rows(i)) > 1 for i in model.interactions)
        return settle_where_pending(
            lambda run: self._strike(model, grid, args, run),
            run,
            self.max_impacts + more,
            lambda run: (run.end, run.before.then(run.trial), run.carry, run.result),
        )

    @eqx.filter_jit
    def _trial(self, model, grid, past, state, carry, args, known: Before) -> Run:
        """Tries the rest of a step without the contacts that strike in it, with sliding friction held.

        In the plane friction is held wherever a contact slides. In space the slip direction changes with
        time, so friction is held only after a trial without holding has shown a slip reversal.
        """
        t0, h = grid
        t, rest = t0 + past, h - past
        frozen, at, span, here, inputs = without_derivative((model, t, h, state, args))
        before = kept(approach(frozen, at, span, here, inputs, self.slow))
        reach = 1.5 * jax.lax.stop_gradient(rest) * before.fastest
        strikes = known.may & before.strikes & (before.gap < reach)
        closed = resting(before.slow, h, before.gap, before.rate)
        forces = self.inner.reactions(carry)
        none = jnp.zeros_like(strikes)
        side, turned, unheld, moves, slides, holds = None, none, none, none, none, none
        along, planar = jnp.zeros((2, *none.shape), before.gap.dtype), one_slip(model, t, state)
        if any(map(slip_rows, model.interactions)):
            now = slips(frozen, at, here)
            speed = jnp.sqrt(jnp.sum(now * now, axis=0))
            sticks = stuck(model, forces) & closed & ~known.touching & (speed <= before.slow)
            moves = closed & (speed > still(frozen, here)) & ~sticks
            slides = known.may & moves & ~strikes & ~known.turning
            holds = slides & (planar | known.turns)
            along = now / jnp.where(moves, speed, 1)[None]
            side = jax.lax.stop_gradient(jnp.where(holds[None], along, 0))
        held = None if side is None else tuple(side)
        # At rest but for rounding: open by so little, a contact would fall for a step before it is held.
        noise = 1e-5 * before.slow
        rests = (before.gap <= noise * h) & (jnp.abs(before.rate) <= noise)
        touching = known.touching | jax.lax.stop_gradient(rests)
        masked = model.masked(t, state.q, ~strikes, touching, side=held)
        end, info, last, result = self.inner.step(masked, t, rest, state, carry, args)
        gap, rate = normal_motion(model, t0 + h, end)
        pushed = jnp.concatenate([p[:, 0] > 0 for p in info.impulses])
        missed = before.strikes & (before.gap < reach) & ~strikes & pushed
        # A contact that lasts keeps its rate where its surface is flat; one that lets go gets another one.
        outputs = self.inner.outputs(model, t, rest, state, end)
        leaving = jnp.concatenate([u[:, 0] for u in outputs]) > 0
        opens = closed & ~strikes & ~known.touching & ~pushed & leaving & pressed(forces, rests)
        leaves = opens | rests & ~known.touching & (rate > noise)
        kinks = ~strikes & jnp.where(pushed, jnp.abs(rate) > noise, leaves)
        curved, broken = kinks & pushed & self.inner.curves_are_first_order, none
        if side is not None:
            after = jnp.sum(along * slips(model, t0 + h, end), axis=0)
            ends = after <= still(model, end)  # a slip that ends at rest has reversed too
            turned, unheld = holds & ends, slides & ~holds & ends
            missed = missed | (moves & ~slides & ~strikes & (after < 0))
            stays = ((rests | sticks) & pushed | jnp.isneginf(before.gap)) & ~moves
            speed = jnp.sqrt(jnp.sum(slips_of(model, outputs) ** 2, axis=0))
            left = (speed > still(model, end)) & ~known.turning & ~known.touching
            broken = stays & left
            kinks |= broken
        found = Releases(opens, broken & ~strikes)
        end = released(model, t0 + h, end, outputs, forces, self.inner.reactions(last), found)
        # Contacts faster than the forces of a step can make a resting one, and yet left to `inner`.
        crawls = pushed & ~strikes & ~missed & (before.fastest > 1.5 * before.slow / self.slow)
        crept = max_abs(jnp.where(crawls, before.fastest, 0))
        never = jnp.full(self.max_impacts, jnp.inf, state.v.dtype)
        seen = info.seeing(missed=missed, slow=crawls, kinks=kinks, curved=curved)
        info = dataclasses.replace(seen, impacts=never, crept=crept)
        side = jnp.zeros((2, *before.gap.shape), before.gap.dtype) if side is None else side
        return Run(
            past=past,
            start=state,
            end=end,
            carry=last,
            strikes=strikes,
            touching=touching,
            slow=before.slow,
            pressed=self.slow * jnp.maximum(-before.change, 0),
            side=side,
            turned=turned,
            unheld=unheld,
            pending=jnp.any((strikes & (gap < 0)) | turned | unheld),
            count=jnp.zeros((), jnp.int32),
            before=info.nothing(),
            trial=info,
            result=result,
        )

    def _strike(self, model, grid, args, run: Run) -> Run:
        """Applies the first impact of a trial, and tries the rest of the step again."""
        t0, h = grid
        begin, rest = t0 + run.past, h - run.past

        def middle():
            held = tuple(run.side) if any(map(slip_rows, model.interactions)) else None
            masked = model.masked(begin, run.start.q, ~run.strikes, run.touching, side=held)
            given = masked, begin, rest / 2, run.start, run.carry, args
            return self.inner.step(*without_derivative(given))[0]

        curve = motion(model, begin, rest, run.start, run.end, args, middle)
        s, group, turning = self._first(model, curve, run)
        group, turning = kept((group, turning))
        tiny = max(1e-12, 4 * float(jnp.finfo(h.dtype).eps))
        past = jnp.minimum(run.past + s, h - tiny * h)
        t = t0 + past
        before = curve(model, s)

        gap, rate = kept(without_derivative(normal_motion(model, t, before)))
        touching = group | (resting(run.slow, h, gap, rate) & ~run.strikes)
        # At a slip reversal nothing strikes, and no contact takes part.
        again, turns = jnp.any(run.unheld), jnp.any(turning)
        # A contact that forces would bring back within a few steps stays closed: the end of its bounces.
        given = without_derivative((model, t, h, before))
        back = rebounds(*given, gap=gap, rate=rate)
        ends = group & (back < run.pressed)
        stays = jnp.where(ends, 0, 1).astype(rate.dtype)
        masked = model.masked(t, before.q, touching & ~turns & ~again, touching, stays)
        v, impulses, stats, crowded = impact(masked, t, curve.h, before, self.solver, self.adjoint)
        after = State(before.q, v)

        count = run.count + jnp.where(again, 0, 1)
        known = Before(touching, turning, run.unheld, count < self.max_impacts)
        trial = self._trial(model, grid, past, after, run.carry, args, known)
        struck = StepInfo.of(impulses, stats, crowded=crowded)
        first = jnp.arange(self.max_impacts, dtype=jnp.int32) == run.count
        times = jnp.where(first & ~turns & ~again, t, jnp.inf)
        # The impact's solver comes after that of the inner method in `solver_names`.
        own = struck.solved_by + len(self.inner.solver_names) - 1
        own = jnp.where(struck.solved_by > 0, own, 0)
        one = jnp.where(again, 0, 1).astype(struck.located.dtype)
        merged = jnp.maximum(jnp.sum(group, dtype=jnp.int32) - 1, 0)
        struck = eqx.tree_at(
            lambda i: (i.solved_by, i.located, i.merged, i.impacts, i.dropped),
            struck.seeing(slow=ends & lasts_long(self.slow, run.pressed, rate, back)),
            (own, one, merged, times, max_abs(jnp.where(ends, back, 0))),
        )
        made = run.before.then(run.trial.shortened(s / curve.h)).then(struck)
        info = where(again, run.before, made)
        result = RESULTS.where(stats.converged, RESULTS.successful, RESULTS.not_converged)
        result = first_error(result, overflowed(crowded))
        result = first_error(first_error(run.result, result), trial.result)
        return eqx.tree_at(lambda r: (r.count, r.before, r.result), trial, (count, info, result))

    def _first(self, model, curve, run):
        """When the first contact strikes or reverses its slip, and which contacts do so then."""
        frozen, held, begin, finish = without_derivative((model, curve, run.start, run.end))
        gap0, rate0 = normal_motion(frozen, held.t, begin)
        gap1, rate1 = normal_motion(frozen, held.t + held.h, finish)
        times = crossing_times(held.h, gap0, rate0, gap1, rate1)
        located = ~jnp.any(run.unheld)
        times = jnp.where(run.strikes & (gap1 < 0) & located, times, jnp.inf)
        turns, friction = jnp.full_like(times, jnp.inf), any(map(slip_rows, model.interactions))
        if friction:
            ends = (held.t, begin), (held.t + held.h, finish)
            slip0, slip1 = (jnp.sum(run.side * slips(frozen, *end), axis=0) for end in ends)
            part = slip0 / jnp.where(run.turned & (slip0 != slip1), slip0 - slip1, 1)
            turns = jnp.where(run.turned & located, jnp.clip(part, 0, 1), jnp.inf)
        turning = is_least(turns) & (turns < jnp.min(times))
        times = jnp.where(jnp.any(turning), jnp.inf, times)
        earliest = jnp.minimum(jnp.min(times), jnp.min(turns))
        first = is_least(times)
        guess = jnp.where(jnp.isfinite(earliest), earliest, 0) * held.h
        at = held(frozen, guess)
        group = (times <= earliest + self.simultaneous) & jnp.isfinite(times)
        group = first | (group & coupled(frozen, held.t + guess, at, first))
        # A contact that crossed more than one step back strikes where it is.
        deep = earliest <= -1
        gaps, side = total_gap(group), jax.lax.stop_gradient(jnp.where(turning[None], run.side, 0))

        def indicator(model, t, state):
            gap = gaps(model, t, state)
            if not friction:
                return gap
            return jnp.where(jnp.any(turning), jnp.sum(side * slips(model, t, state)), gap)

        s = crossing(model, curve, guess, indicator)
        return jnp.where(deep, 0, s), group, turning
