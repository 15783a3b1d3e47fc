"""The loop over time steps, and the data it records."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._jax import evaluated_again, scan, where, with_value, without_repetition
from .._recompilation import Compilations
from .._result import RESULTS, failed, first_error
from .._types import Count, Scalar, State
from ..integrators import StepInfo
from ..integrators._base import first_times
from ..integrators._wrapped import is_too_large
from ..model import Energy
from ._event import Event, EventPoint, happened, located
from ._flaws import Flaws, flaws_then, no_flaws
from ._resolution import Resolution
from ._solution import Solution, StepStatistics
from ._struck import Peaks, Turns


class Grid(eqx.Module):
    """The times `t0 + i h`, `i = 0 ... steps`.

    `steps` is either a number that is compiled in, or an array. For an array the loop has `capacity`
    passes, and passes after the last step do nothing.
    """

    t0: Scalar
    h: Scalar
    steps: int | Count
    capacity: int = eqx.field(static=True)

    def time(self, i) -> Scalar:
        """The time [s] after `i` steps."""
        return self.t0 + jnp.asarray(i, self.h.dtype) * self.h

    @property
    def is_open(self) -> bool:
        """Whether the number of steps is unknown when compiling."""
        return eqx.is_array(self.steps)


class _Record(eqx.Module):
    """Outcome of the steps so far: first failed and worst step with residuals; index -1 if none.

    Of the failed step also the contact without room.
    """

    result: RESULTS
    failed: tuple[Count, Scalar, Array]
    worst: tuple[Count, Scalar]

    def add(self, i, info: StepInfo, outcome: RESULTS) -> "_Record":
        """The record after step `i`."""
        first = failed(outcome) & (self.failed[0] < 0)
        worse = info.residual > self.worst[1]
        step = i, info.residual
        return _Record(
            first_error(self.result, outcome),
            where(first, (*step, info.crowded), self.failed),
            where(worse, step, self.worst),
        )


class _Watch(eqx.Module):
    """An event during a run: its condition at the current time, and the step in which it happened.

    `before`: state and memory at the start of that step, and the times of its impacts; `None` if the
    event need not be located.
    """

    value: Array
    step: Count
    before: Any


class _Loop(eqx.Module):
    """Loop carry from step to step."""

    state: State
    memory: Any
    record: _Record
    watch: _Watch | None
    peaks: Peaks | None
    turns: Turns | None
    resolution: Resolution | None
    flaws: Flaws
    impacts: Array
    meter_state: Any

    def reached(self, grid: Grid, i) -> Count:
        """Number of steps made after `i` passes; it stops at the last step or at the event."""
        if grid.is_open:
            i = jnp.minimum(i, grid.steps)
        if self.watch is None:
            return i
        return jnp.where(self.watch.step < 0, i, self.watch.step + 1)


class _Snapshot(eqx.Module):
    """Data saved at one time; `info` is the report of the steps since the previous saved time."""

    t: Scalar
    state: State
    gaps: tuple
    energy: Energy | None
    info: StepInfo


COMPILATIONS = Compilations()


@eqx.filter_jit
def run(model, integrator, grid, state0, args, saveat, event, adjoint, meter):
    """Runs the loop, compiled once per structure: calls outside `jit` do not recompile."""
    COMPILATIONS.note()
    step = stepper(model, integrator, grid, args, event, meter)
    start = started(model, integrator, grid, state0, args, saveat, event, meter)
    step = _if_before_the_end(step, grid) if grid.is_open else step
    loop, saved = _saving(model, integrator, step, start, grid, saveat.steps, adjoint)
    meter.close(loop.meter_state)
    return ended(model, integrator, grid, args, saveat, event, start, loop, saved)


def stepper(model, integrator, grid: Grid, args, event: Event | None, meter):
    """One pass of the loop, `(loop, i) -> (loop, info)`."""

    def step(loop: _Loop, i):
        state, info, memory, outcome = integrator.step(
            model, grid.time(i), grid.h, loop.state, loop.memory, args
        )
        watch, peaks, turns = loop.watch, loop.peaks, loop.turns
        going = True if watch is None else watch.step < 0
        if peaks is not None:
            peaks, struck = peaks.then(info)
            info = eqx.tree_at(lambda i: i.struck, info, jnp.where(going, struck, 0))
        if turns is not None:
            turns, turned = turns.then(model, grid.h, info)
            info = info.seeing(turned=going & turned)
        resolution = loop.resolution
        if resolution is not None:
            between = loop.state, state
            later = resolution.then(model, grid.time(i + 1), grid.h, between, info)
            resolution = where(going, later, resolution)
        flaws = flaws_then(loop.flaws, model, grid.time(i + 1), i, state)
        flaws = where(going, flaws, loop.flaws)
        if watch is not None:
            assert event is not None
            ended = watch.step >= 0
            unchanged = loop.state, loop.memory, info.nothing()
            state, memory, info = where(ended, unchanged, (state, memory, info))
            outcome = RESULTS.where(ended, RESULTS.successful, outcome)
            value = event.value(grid.time(i + 1), state, args)
            happens = ~ended & happened(watch.value, value)
            before = watch.before
            if event.locate:
                before = where(ended, before, (loop.state, loop.memory, info.impacts))
            watch = _Watch(value, jnp.where(happens, i, watch.step), before)
        record = loop.record.add(i, info, outcome)
        part = jnp.asarray(i + 1, float) / jnp.maximum(jnp.asarray(grid.steps, float), 1)
        impacts = first_times(loop.impacts, info.impacts)
        meter_state = meter.step(loop.meter_state, part)
        followed = peaks, turns, resolution, flaws
        return _Loop(state, memory, record, watch, *followed, impacts, meter_state), info

    # Traced once, although the shapes of its report are needed before the loop.
    return jax.jit(without_repetition(step))


def started(model, integrator, grid: Grid, state0, args, saveat, event: Event | None, meter):
    """The loop before the first step."""
    zero, none = jnp.zeros_like(grid.h), jnp.asarray(-1, int)
    memory = integrator.init(model, grid.t0, state0, args)
    record = _Record(RESULTS.successful, (none, zero, jnp.full(2, -1, jnp.int32)), (none, zero))
    watch = None
    if event is not None:
        before = None
        if event.locate:
            given = model, grid.t0, grid.h, state0, memory, args
            impacts = jax.eval_shape(lambda: integrator.step(*given)[1].impacts)
            before = state0, memory, jnp.full_like(impacts, jnp.inf)
        watch = _Watch(event.value(grid.t0, state0, args), none, before)
    never = jnp.full(saveat.impacts, jnp.inf, zero.dtype)
    given = model, integrator, grid.t0, state0
    followed = Peaks.of(*given), Turns.of(*given), Resolution.of(*given)
    followed = *followed, no_flaws(model, grid.t0, state0)
    return _Loop(state0, memory, record, watch, *followed, never, meter.init())


def ended(model, integrator, grid: Grid, args, saveat, event, start: _Loop, loop: _Loop, saved):
    """The solution, from the loop before the first and after the last step, and what was saved."""
    point = None
    if event is not None and event.locate:
        point = _event_point(event, model, integrator, grid, loop, args)
    info = saved.info  # per step, so without an entry for the start
    if loop.peaks is not None and info.struck.shape[0]:
        last = loop.peaks.at_last()
        if loop.watch is not None:
            last = jnp.where(loop.watch.step < 0, last, 0)
        info = eqx.tree_at(lambda i: i.struck, info, info.struck.at[-1].add(last))
    if saveat.t0:
        nothing = jax.tree.map(lambda x: jnp.zeros_like(x, shape=x.shape[1:]), info)
        first = _snapshot(model, integrator, grid, start, jnp.zeros((), int), nothing)
        saved = joined(jax.tree.map(lambda x: x[None], first), saved)
    if not saveat.has_axis:
        saved, info = jax.tree.map(lambda x: x[-1], (saved, info))
    impacts = loop.impacts if saveat.impacts else None
    too_large = is_too_large(model, grid.t0, start.state, args)
    stats = _statistics(model, grid, loop, info, integrator.solver_names, too_large)
    result = loop.record.result
    if event is not None:
        ended = RESULTS.where(stats.event_step >= 0, RESULTS.event_occurred, RESULTS.successful)
        result = first_error(result, ended)
    return Solution(
        saved.t,
        saved.state,
        saved.info.impulses,
        saved.gaps,
        saved.energy,
        stats,
        result,
        saved.info.details,
        impact_times=impacts,
        event=point,
    )


def _event_point(event: Event, model, integrator, grid: Grid, loop: _Loop, args) -> EventPoint:
    """Where the event happened; the end of the run if it did not."""
    watch: Any = loop.watch
    happened = watch.step >= 0
    step = jnp.where(happened, watch.step, 0)
    *start, impacts = watch.before
    begin = grid.time(step)
    point = located(event, model, integrator, begin, grid.h, start, impacts, args)
    last = EventPoint(grid.time(jnp.asarray(grid.steps)), loop.state)
    return where(happened, point, last)


def _if_before_the_end(step, grid: Grid):
    """A loop pass that changes nothing after the last step."""

    def one(loop, i):
        nothing = _nothing(step, loop)
        # A conditional, not a mask, so that passes after the end cost almost nothing.
        return jax.lax.cond(i < grid.steps, step, lambda loop, i: (loop, nothing), loop, i)

    return one


def _saving(model, integrator, one, loop: _Loop, grid: Grid, every: int | None, adjoint):
    """Runs `every` steps between snapshots, and the remaining steps before the last snapshot."""
    blocks, rest = (0, grid.capacity) if every is None else divmod(grid.capacity, every)
    saved: Any = None
    if every is not None and (blocks or not rest):
        loop, saved = scan(block_of(model, integrator, one, grid, every), loop, blocks, adjoint)
    if every is None or rest:
        loop, last = remainder(model, integrator, one, loop, grid, rest, adjoint)
        saved = last if saved is None else joined(saved, last)
    return loop, saved


def block_of(model, integrator, one, grid: Grid, every: int):
    """The steps up to the next snapshot, `(loop, j) -> (loop, snapshot)` for block `j`."""

    def block(loop, j):
        if every == 1:
            loop, info = one(loop, j)
        else:
            adds = evaluated_again(_adding(one, grid))
            start = loop, _nothing(one, loop)
            (loop, info), _ = jax.lax.scan(adds, start, j * every + jnp.arange(every))
        return loop, _snapshot(model, integrator, grid, loop, (j + 1) * every, info)

    return block


def remainder(model, integrator, one, loop: _Loop, grid: Grid, rest: int, adjoint):
    """The last `rest` steps, and the snapshot at their end with a time axis of one."""
    steps = grid.capacity
    adds = _adding(one, grid)
    start = loop, _nothing(one, loop)
    (loop, info), _ = scan(lambda c, i: adds(c, steps - rest + i), start, rest, adjoint)
    last = _snapshot(model, integrator, grid, loop, jnp.asarray(steps), info)
    return loop, jax.tree.map(lambda x: x[None], last)


def _snapshot(model, integrator, grid: Grid, loop: _Loop, i, info: StepInfo) -> _Snapshot:
    """The data saved after `i` passes of the loop."""
    t, state = grid.time(loop.reached(grid, i)), loop.state
    followed = integrator.followed(model, state, loop.memory)
    gaps, energy = model.gaps(t, state.q), model.energy(t, state)
    if followed is not state:
        # Their derivative is that of the motion that the derivative of the state belongs to.
        of_motion = model.gaps(t, followed.q), model.energy(t, followed)
        gaps, energy = jax.tree.map(with_value, of_motion, (gaps, energy))
    return _Snapshot(t, state, gaps, energy, info)


_LARGEST = "residual", "iterations", "violation", "solved_by"
_COUNTED = (
    "located",
    "missed",
    "slow",
    "merged",
    "kinks",
    "curved",
    "struck",
    "turned",
    "wedged",
)


def _statistics(
    model, grid: Grid, loop: _Loop, info: StepInfo, names: tuple[str, ...], too_large: bool
) -> StepStatistics:
    record, watch, resolution = loop.record, loop.watch, loop.resolution
    return StepStatistics(
        coarse=jnp.zeros_like(grid.h) if resolution is None else resolution.part_lost(),
        worst_step=record.worst[0],
        failed_step=record.failed[0],
        failed_residual=record.failed[1],
        crowded=record.failed[2],
        flaws=loop.flaws,
        event_step=jnp.asarray(-1, int) if watch is None else watch.step,
        end_time=grid.time(loop.reached(grid, jnp.asarray(grid.capacity))),
        solver_names=names,
        too_large=too_large,
        contact_names=tuple(i.relation.contact_names for i in model.interactions),
        **{name: getattr(info, name) for name in (*_LARGEST, "margin", "drifted", *_COUNTED)},
    )


def _nothing(one, loop: _Loop) -> StepInfo:
    """The report of no passes."""
    shapes = jax.eval_shape(one, loop, jnp.zeros((), int))[1]
    return jax.tree.map(jnp.zeros_like, shapes).nothing()


def _adding(one, grid: Grid):
    """A pass of the loop that adds its report to that of the passes before it.

    Not reports of all passes, summed at their end: their impulses would need memory for every step.
    """

    def both(carry, i):
        before, so_far = carry
        loop, info = one(before, i)
        made = loop.reached(grid, i + 1) > before.reached(grid, i)
        return (loop, _summary(so_far, info, made)), None

    return both


def _summary(so_far: StepInfo, info: StepInfo, made: Array) -> StepInfo:
    """The report of several passes and one more: sums, or the worst value. `made`: whether it was a step."""
    counts = {name: getattr(so_far, name) + getattr(info, name) for name in _COUNTED}
    # Details are of the last step, and only what is saved can be apart.
    given = (info.details, info.drifted), (so_far.details, so_far.drifted)
    details, drifted = where(made, *given)
    return dataclasses.replace(
        so_far,
        impulses=jax.tree.map(jnp.add, so_far.impulses, info.impulses),
        margin=jnp.minimum(so_far.margin, info.margin),
        details=details,
        impacts=jnp.minimum(so_far.impacts, info.impacts),
        drifted=drifted,
        **{name: jnp.maximum(getattr(so_far, name), getattr(info, name)) for name in _LARGEST},
        **counts,
    )


def joined(first, second):
    """Two parts of what was saved, one after the other in time."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)
