"""The loop over steps."""

from numbers import Integral
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._jax import (
    AbstractLoopAdjoint,
    Checkpointed,
    concrete,
    is_traced,
    scan,
)
from .._numerics import as_float
from .._recompilation import Compilations
from .._result import RESULTS, failed, first_error
from .._types import Args, Count, Scalar, State
from ..integrators import AbstractIntegrator, StepInfo
from ..model import Energy, Model, skip_if_traced
from ._event import Event, happened
from ._save import SaveAt
from ._solution import Solution, StepStatistics


def simulate(
    model: Model,
    integrator: AbstractIntegrator,
    t0: float,
    t1: float,
    dt: float,
    state0: State,
    args: Args = None,
    *,
    saveat: SaveAt | None = None,
    max_steps: int | None = None,
    event: Event | None = None,
    adjoint: AbstractLoopAdjoint | None = None,
    progress: diffrax.AbstractProgressMeter | None = None,
    start_tolerance: float = 1e-3,
    throw: bool = True,
) -> Solution:
    """Simulates a model from `t0` to `t1` with steps of length `dt`.

    Pure and differentiable (forward and reverse) in the leaves of `model`, `state0` and `args`;
    works under `jit` and `vmap`.

    **Arguments:**

    - `model`, `integrator`: what to simulate, and how.
    - `t0`, `t1`, `dt`: times [s], plain numbers; `(t1 − t0)/dt` must be a whole number of steps.
      Only that number is compiled in, and a step has the length `dt` to all digits at any time.
    - `max_steps`: compile for any number of steps up to this one, for a sweep over `t1` or `dt`:
      one program serves them all. Arrays of the solution have the length of a run with `max_steps`
      steps, and the times that are saved after the end repeat it, as after an event: its time and
      state, no impulses. Reverse mode needs the memory of `max_steps` steps. Default: the exact
      number is compiled in, which is a little faster to run.
    - `state0`: initial `State`; its precision is that of the simulation. Lists and integers become
      arrays of real numbers.
    - `args`: exogenous inputs, passed to the force of the system and to the event.
    - `saveat`: which times are kept, default every step and `t0`.
    - `event`: an `Event` that ends the run early, default none.
    - `adjoint`: how reverse mode stores the loop, default `Checkpointed()`.
    - `progress`: a progress meter of diffrax, for example `diffrax.TextProgressMeter()`; it does
      not change any number.
    - `start_tolerance`: how deep contacts may penetrate in `state0`, and how far joints be open [m,
      rad], as far as that is known before compiling. Schemes keep what is accepted: they hold the
      rates of gaps.
    - `throw`: raise if a step fails; otherwise the failure is in `Solution.result`.

    **Returns:** a `Solution`.

    **Raises:** `ValueError` before compiling for times, shapes, parameters or combinations that
    make no sense, as far as their values are known; `RuntimeError` if a step fails and `throw` is
    true, naming cause and remedy, and outside of `jit` and `vmap` the step and its residual too.

    **Warns:** `RecompilationWarning` if the same program is compiled a second time because a function
    of the model was defined anew, with the remedy.
    """
    steps = _count(t0, t1, dt)
    if max_steps is not None and not (isinstance(max_steps, Integral) and max_steps >= steps):
        raise ValueError(
            f"(t1 - t0)/dt = {steps} steps, and max_steps={max_steps!r} must be a whole number of "
            "at least as many; raise max_steps, or shorten the run."
        )
    h = (float(t1) - float(t0)) / max(steps, 1)
    state0 = _checked(model, integrator, t0, h, state0, args, start_tolerance)
    # Arrays: new times are new values, not new programs.
    grid = _Grid(
        t0=jnp.asarray(t0, state0.v.dtype),
        h=jnp.asarray(h, state0.v.dtype),
        steps=steps if max_steps is None else jnp.asarray(steps),
        capacity=steps if max_steps is None else int(max_steps),
    )
    parts = (
        model,
        integrator,
        grid,
        state0,
        args,
        SaveAt() if saveat is None else saveat,
        event,
        Checkpointed() if adjoint is None else adjoint,
        diffrax.NoProgressMeter() if progress is None else progress,
    )
    # Inside of a `jit` it is that one which compiles, and finds its programs.
    compiled = _COMPILATIONS.count
    solution = _run(*parts)
    if not is_traced(jnp.zeros(())):
        _COMPILATIONS.warn_if_repeated(compiled, "simulate", parts)
    if throw:
        bad = failed(solution.result)
        if is_traced(bad):
            states = solution.result.error_if(solution.states, bad)
            solution = eqx.tree_at(lambda s: s.states, solution, states)
        elif np.any(bad):
            raise RuntimeError(solution.message)
    return solution


class _Grid(eqx.Module):
    """The times `t0 + i h`, `i = 0 ... steps`.

    `steps` is a number that is compiled in, or an array: then the program has `capacity` passes, and
    those after the last step do nothing.
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
        """Whether the number of steps is not known when compiling."""
        return eqx.is_array(self.steps)


class _Record(eqx.Module):
    """The outcome of the steps so far; indices are -1 where there is none."""

    result: RESULTS
    failed_step: Count
    failed_residual: Scalar
    worst_step: Count
    worst_residual: Scalar

    def add(self, i, info: StepInfo, outcome: RESULTS) -> "_Record":
        """The record after step `i`."""
        first = failed(outcome) & (self.failed_step < 0)
        worse = info.residual > self.worst_residual
        return _Record(
            first_error(self.result, outcome),
            jnp.where(first, i, self.failed_step),
            jnp.where(first, info.residual, self.failed_residual),
            jnp.where(worse, i, self.worst_step),
            jnp.where(worse, info.residual, self.worst_residual),
        )


class _Watch(eqx.Module):
    """An event during a run: its condition at the last time, and the step in which it happened."""

    value: Array
    step: Count


class _Loop(eqx.Module):
    """What is carried from step to step."""

    state: State
    memory: Any
    record: _Record
    watch: _Watch | None
    meter_state: Any

    def reached(self, grid: _Grid, i) -> Count:
        """Steps made after `i` passes: no more after the last step, or once the event happened."""
        if grid.is_open:
            i = jnp.minimum(i, grid.steps)
        if self.watch is None:
            return i
        return jnp.where(self.watch.step < 0, i, self.watch.step + 1)


class _Snapshot(eqx.Module):
    """What is saved at one time; `info` is the report of the steps since the time before."""

    t: Scalar
    state: State
    gaps: tuple
    energy: Energy | None
    info: StepInfo


_COMPILATIONS = Compilations()


@eqx.filter_jit
def _run(model, integrator, grid, state0, args, saveat, event, adjoint, meter):
    """The loop, compiled once per structure: a call outside `jit` compiles nothing twice."""
    _COMPILATIONS.note()
    zero, none = jnp.zeros_like(grid.h), jnp.asarray(-1, int)

    def step(loop: _Loop, i):
        state, info, memory, outcome = integrator.step(
            model, grid.time(i), grid.h, loop.state, loop.memory, args
        )
        watch = loop.watch
        if watch is not None:
            ended = watch.step >= 0
            state, memory = _where(ended, (loop.state, loop.memory), (state, memory))
            info = _where(ended, _no_step(info), info)
            outcome = RESULTS.where(ended, RESULTS.successful, outcome)
            value = event.value(grid.time(i + 1), state, args)
            happens = ~ended & happened(watch.value, value)
            watch = _Watch(value, jnp.where(happens, i, watch.step))
        record = loop.record.add(i, info, outcome)
        part = jnp.asarray(i + 1, float) / jnp.maximum(jnp.asarray(grid.steps, float), 1)
        return _Loop(state, memory, record, watch, meter.step(loop.meter_state, part)), info

    memory = integrator.init(model, grid.t0, state0, args)
    record = _Record(RESULTS.successful, none, zero, none, zero)
    watch = None if event is None else _Watch(event.value(grid.t0, state0, args), none)
    start = _Loop(state0, memory, record, watch, meter.init())
    step = _if_before_the_end(step, grid) if grid.is_open else step
    loop, saved = _saving(model, step, start, grid, saveat.steps, adjoint)
    meter.close(loop.meter_state)
    return _assemble(model, grid, saveat, start, loop, saved, integrator.solver_names)


def _if_before_the_end(step, grid: _Grid):
    """A pass of the loop that leaves everything as it is after the last step."""
    step = jax.jit(step)  # traced once for the two uses below

    def one(loop, i):
        info = jax.eval_shape(step, loop, i)[1]
        nothing = _no_step(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), info))
        # A condition, not a mask: passes after the end cost next to nothing.
        return jax.lax.cond(i < grid.steps, step, lambda loop, i: (loop, nothing), loop, i)

    return one


def _saving(model, one, loop: _Loop, grid: _Grid, every: int | None, adjoint):
    """Runs `every` steps between snapshots, and the steps that are left before the last one."""
    steps = grid.capacity
    blocks, rest = (0, steps) if every is None else divmod(steps, every)

    def block(loop, j):
        if every == 1:
            loop, info = one(loop, j)
        else:
            loop, infos = jax.lax.scan(one, loop, j * every + jnp.arange(every))
            info = _summary(infos, loop.reached(grid, (j + 1) * every) - j * every)
        return loop, _snapshot(model, grid, loop, (j + 1) * every, info)

    saved: Any = None
    if every is not None and (blocks or not rest):
        loop, saved = scan(block, loop, blocks, adjoint)
    if every is None or rest:
        loop, infos = scan(lambda c, i: one(c, steps - rest + i), loop, rest, adjoint)
        end = jnp.asarray(steps)
        info = _summary(infos, loop.reached(grid, end) - (steps - rest))
        last = _snapshot(model, grid, loop, end, info)
        last = jax.tree.map(lambda x: x[None], last)
        saved = last if saved is None else _joined(saved, last)
    return loop, saved


def _snapshot(model, grid: _Grid, loop: _Loop, i, info: StepInfo) -> _Snapshot:
    """What is saved after `i` passes of the loop."""
    t, state = grid.time(loop.reached(grid, i)), loop.state
    return _Snapshot(t, state, model.gaps(t, state.q), model.energy(t, state), info)


def _assemble(
    model, grid: _Grid, saveat, start: _Loop, loop: _Loop, saved: _Snapshot, names: tuple[str, ...]
) -> Solution:
    info = saved.info
    if saveat.t0:
        nothing = jax.tree.map(lambda x: jnp.zeros_like(x, shape=x.shape[1:]), info)
        first = _snapshot(model, grid, start, jnp.zeros((), int), nothing)
        saved = _joined(jax.tree.map(lambda x: x[None], first), saved)
    if not saveat.has_axis:
        saved, info = jax.tree.map(lambda x: x[-1], (saved, info))
    record, watch = loop.record, loop.watch
    result, event_step = record.result, jnp.asarray(-1, int)
    if watch is not None:
        event_step = watch.step
        ended = RESULTS.where(event_step >= 0, RESULTS.event_occurred, RESULTS.successful)
        result = first_error(result, ended)
    stats = StepStatistics(
        residual=info.residual,  # of steps: none at the start
        violation=info.violation,
        iterations=info.iterations,
        margin=info.margin,
        solved_by=info.solved_by,
        located=info.located,
        missed=info.missed,
        worst_step=record.worst_step,
        failed_step=record.failed_step,
        failed_residual=record.failed_residual,
        event_step=event_step,
        end_time=grid.time(loop.reached(grid, jnp.asarray(grid.capacity))),
        solver_names=names,
    )
    return Solution(
        ts=saved.t,
        states=saved.state,
        impulses=saved.info.impulses,
        gaps=saved.gaps,
        energy=saved.energy,
        stats=stats,
        result=result,
        details=saved.info.details,
    )


def _where(condition, first, second):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)


def _no_step(info: StepInfo) -> StepInfo:
    """The report of a step that does nothing."""
    nothing = jax.tree.map(jnp.zeros_like, info)
    return eqx.tree_at(lambda i: i.margin, nothing, jnp.full_like(info.margin, jnp.inf))


def _summary(infos: StepInfo, made: Count) -> StepInfo:
    """The report of several steps of which `made` were made, or none: sums, and the worst of the rest."""
    last = jnp.maximum(made - 1, 0)
    return StepInfo(
        jax.tree.map(lambda x: jnp.sum(x, axis=0), infos.impulses),
        jnp.max(infos.residual, initial=0),
        jnp.max(infos.iterations, initial=0),
        jnp.min(infos.margin, initial=jnp.inf),
        # Of the last step.
        jax.tree.map(
            lambda x: x[last] if x.shape[0] else jnp.zeros_like(x, shape=x.shape[1:]), infos.details
        ),
        jnp.max(infos.violation, initial=0),
        jnp.max(infos.solved_by, initial=0),
        *(jnp.sum(x, dtype=x.dtype) for x in (infos.located, infos.missed)),
    )


def _joined(first, second):
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)


def _count(t0, t1, dt) -> int:
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if is_traced(value) or not np.isscalar(value) and np.ndim(value) != 0:
            raise ValueError(
                f"{name} must be a plain number: it decides about the number of steps, which is fixed "
                "when compiling, or bounded by `max_steps`."
            )
    t0, t1, dt = float(t0), float(t1), float(dt)
    if not (np.isfinite([t0, t1, dt]).all() and dt > 0 and t1 >= t0):
        raise ValueError(f"need finite t0 <= t1 and dt > 0, got t0={t0}, t1={t1}, dt={dt}.")
    exact = (t1 - t0) / dt
    steps = round(exact)
    if abs(exact - steps) > 1e-6 * max(1.0, exact):
        raise ValueError(
            f"(t1 - t0)/dt = {exact:.6f} is not a whole number; use dt={(t1 - t0) / max(steps, 1)!r}."
        )
    return steps


def _checked(model, integrator, t0, dt, state0, args, start_tolerance=np.inf) -> State:
    """The initial state as arrays; raises what can be said before anything is compiled."""
    state0 = jax.tree.map(as_float, state0, is_leaf=_is_numbers)
    problem = integrator.supports(model) or model.check(state0)
    if problem is None:
        values = concrete((model, t0, dt, state0, args))
        problem = skip_if_traced(lambda: integrator.check(*values))
    if problem is None and start_tolerance < np.inf:
        problem = skip_if_traced(lambda: model.check_gaps(t0, state0.q, start_tolerance))
    if problem is not None:
        raise ValueError(f"cannot simulate: {problem}.")
    return state0


def _is_numbers(x) -> bool:
    """A list, or a tuple of plain numbers: an array in the making."""
    return isinstance(x, list) or (isinstance(x, tuple) and all(map(np.isscalar, x)))
