"""The loop over steps."""

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
from ..model import Model, asked
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
    state0 = _checked(
        model, integrator, t0, (t1 - t0) / max(steps, 1), state0, args, start_tolerance
    )
    saveat = SaveAt() if saveat is None else saveat
    adjoint = Checkpointed() if adjoint is None else adjoint
    meter = diffrax.NoProgressMeter() if progress is None else progress
    # Arrays: new times are new values, not new programs.
    h = (float(t1) - float(t0)) / max(steps, 1)
    grid = _Grid(jnp.asarray(t0, state0.v.dtype), jnp.asarray(h, state0.v.dtype), steps)
    # Inside of a `jit` it is that one which compiles, and finds its programs.
    inside, compiled = is_traced(jnp.zeros(())), _COMPILATIONS.count
    parts = model, integrator, grid, state0, args, saveat, event, adjoint, meter
    solution = _run(*parts)
    if not inside:
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
    """The times `t0 + i h`, `i = 0 ... steps`."""

    t0: Scalar
    h: Scalar
    steps: int = eqx.field(static=True)

    def time(self, i) -> Scalar:
        """The time [s] after `i` steps."""
        return self.t0 + jnp.asarray(i, self.h.dtype) * self.h


class _Record(eqx.Module):
    """What the steps so far say about the run; indices are -1 where there is none."""

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
    warm: tuple
    record: _Record
    watch: _Watch | None
    shown: object

    def reached(self, i) -> Count:
        """Steps made after `i` passes of the loop: no more once the event has happened."""
        if self.watch is None:
            return i
        return jnp.where(self.watch.step < 0, i, self.watch.step + 1)


_COMPILATIONS = Compilations()


@eqx.filter_jit
def _run(model, integrator, grid, state0, args, saveat, event, adjoint, meter):
    """The loop, compiled once per structure: a call outside `jit` compiles nothing twice."""
    _COMPILATIONS.note()
    steps, zero, none = grid.steps, jnp.zeros_like(grid.h), jnp.asarray(-1, int)

    def one(loop, i):
        # By a clock that starts with the step, the length of the step is exact.
        later, now = model.after(grid.time(i)), (loop.state, loop.warm)
        state, info, warm, outcome = integrator.step(later, zero, grid.h, *now, args)
        watch = loop.watch
        if watch is not None:
            over = watch.step >= 0
            state, warm = _held(over, now, (state, warm))
            info = _held(over, _idle(info), info)
            outcome = RESULTS.where(over, RESULTS.successful, outcome)
            value = event.value(grid.time(i + 1), state, args)
            now_happens = ~over & happened(watch.value, value)
            watch = _Watch(value, jnp.where(now_happens, i, watch.step))
        record = loop.record.add(i, info, outcome)
        shown = meter.step(loop.shown, jnp.asarray(i + 1, float) / max(steps, 1))
        return _Loop(state, warm, record, watch, shown), info

    warm0 = integrator.init(model, grid.t0, state0, args)
    record = _Record(RESULTS.successful, none, zero, none, zero)
    watch = None if event is None else _Watch(event.value(grid.t0, state0, args), none)
    start = _Loop(state0, warm0, record, watch, meter.init())
    loop, saved = _saving(model, one, start, grid, saveat.steps, adjoint)
    meter.close(loop.shown)
    return _assemble(model, grid, saveat, start, loop, saved, integrator.solver_names)


def _saving(model, one, loop, grid, every, adjoint):
    """Runs `every` steps between snapshots, and the steps that are left before the last one."""
    blocks, rest = (0, grid.steps) if every is None else divmod(grid.steps, every)

    def block(loop, j):
        if every == 1:
            loop, info = one(loop, j)
        else:
            loop, infos = jax.lax.scan(one, loop, j * every + jnp.arange(every))
            info = _summary(infos)
        return loop, _snapshot(model, grid, loop, (j + 1) * every, info)

    saved = None
    if every is not None and (blocks or not rest):
        loop, saved = scan(block, loop, blocks, adjoint)
    if every is None or rest:
        loop, infos = scan(lambda c, i: one(c, grid.steps - rest + i), loop, rest, adjoint)
        last = _snapshot(model, grid, loop, jnp.asarray(grid.steps), _summary(infos))
        last = jax.tree.map(lambda x: x[None], last)
        saved = last if saved is None else _joined(saved, last)
    return loop, saved


def _held(over, old, new):
    return jax.tree.map(lambda a, b: jnp.where(over, a, b), old, new)


def _idle(info: StepInfo) -> StepInfo:
    """The report of a step that does nothing."""
    nothing = jax.tree.map(jnp.zeros_like, info)
    return eqx.tree_at(lambda i: i.margin, nothing, jnp.full_like(info.margin, jnp.inf))


def _summary(infos: StepInfo) -> StepInfo:
    """The report of several steps, of none too: impulses add up, the rest is the worst."""
    return StepInfo(
        jax.tree.map(lambda x: jnp.sum(x, axis=0), infos.impulses),
        jnp.max(infos.residual, initial=0),
        jnp.max(infos.iterations, initial=0),
        jnp.min(infos.margin, initial=jnp.inf),
        # Of the last step.
        jax.tree.map(
            lambda x: x[-1] if x.shape[0] else jnp.zeros_like(x, shape=x.shape[1:]), infos.details
        ),
        jnp.max(infos.violation, initial=0),
        jnp.max(infos.solved_by, initial=0),
    )


def _joined(first, second):
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)


def _snapshot(model, grid, loop, i, info):
    """What is saved after `i` passes of the loop: first what the initial state has too."""
    t, state = grid.time(loop.reached(i)), loop.state
    told = info.impulses, info.details
    here = t, state, told, model.gaps(t, state.q), model.energy(t, state)
    return here, (info.residual, info.violation, info.iterations, info.margin, info.solved_by)


def _assemble(model, grid, saveat, start, loop, saved, names) -> Solution:
    here, quality = saved
    if saveat.t0:
        t, state = grid.t0, start.state
        told = jax.tree.map(lambda x: jnp.zeros_like(x, shape=x.shape[1:]), here[2])
        first = t, state, told, model.gaps(t, state.q), model.energy(t, state)
        here = _joined(jax.tree.map(lambda x: x[None], first), here)
    if not saveat.has_axis:
        here, quality = jax.tree.map(lambda x: x[-1], (here, quality))
    record, watch = loop.record, loop.watch
    result, event_step = record.result, jnp.asarray(-1, int)
    if watch is not None:
        event_step = watch.step
        ended = RESULTS.where(event_step >= 0, RESULTS.event_occurred, RESULTS.successful)
        result = first_error(result, ended)
    stats = StepStatistics(
        *quality,
        record.worst_step,
        record.failed_step,
        record.failed_residual,
        event_step,
        grid.time(loop.reached(jnp.asarray(grid.steps))),
        names,
    )
    ts, states, (impulses, details), gaps, energy = here
    return Solution(ts, states, impulses, gaps, energy, stats, result, details)


def _count(t0, t1, dt) -> int:
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if is_traced(value) or not np.isscalar(value) and np.ndim(value) != 0:
            raise ValueError(
                f"{name} must be a plain number: the number of steps is fixed when compiling."
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
        problem = asked(lambda: integrator.check(*values))
    if problem is None and start_tolerance < np.inf:
        problem = asked(lambda: model.check_gaps(t0, state0.q, start_tolerance))
    if problem is not None:
        raise ValueError(f"cannot simulate: {problem}.")
    return state0


def _is_numbers(x) -> bool:
    """A list, or a tuple of plain numbers: an array in the making."""
    return isinstance(x, list) or (isinstance(x, tuple) and all(map(np.isscalar, x)))
