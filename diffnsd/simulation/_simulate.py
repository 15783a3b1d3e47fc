"""The loop over steps."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._loop import AbstractLoopAdjoint, Checkpointed, Direct, scan
from .._result import RESULTS, failed, first_error
from .._types import Args, State
from ..integrators import AbstractIntegrator
from ..model import Model
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
    adjoint: AbstractLoopAdjoint | None = None,
    progress: diffrax.AbstractProgressMeter | None = None,
    throw: bool = True,
) -> Solution:
    """Simulates a model from `t0` to `t1` with steps of length `dt`.

    Pure and differentiable (forward and reverse) in the leaves of `model`, `state0` and `args`;
    works under `jit` and `vmap`.

    **Arguments:**

    - `model`, `integrator`: what to simulate, and how.
    - `t0`, `t1`, `dt`: times [s], plain numbers; `(t1 − t0)/dt` must be a whole number of steps.
    - `state0`: initial `State`. `args`: exogenous inputs, passed to the force.
    - `saveat`: which times are kept, default every step and `t0`.
    - `adjoint`: how reverse mode stores the loop, default `Checkpointed()`.
    - `progress`: a progress meter of diffrax, for example `diffrax.TextProgressMeter()`; it does
      not change any number.
    - `throw`: raise if a step fails; otherwise the failure is in `Solution.result`.

    **Returns:** a `Solution`.

    **Raises:** `ValueError` before compiling for times, shapes, parameters or combinations that
    make no sense; a runtime error naming cause and remedy if a step fails and `throw` is true.
    """
    steps = _count(t0, t1, dt)
    _check(model, integrator, state0)
    saveat = SaveAt() if saveat is None else saveat
    adjoint = Checkpointed() if adjoint is None else adjoint
    meter = diffrax.NoProgressMeter() if progress is None else progress
    grid = float(t0), (float(t1) - float(t0)) / max(steps, 1), steps
    solution = _run(model, integrator, grid, state0, args, saveat, adjoint, meter)
    if throw:
        states = solution.result.error_if(solution.states, failed(solution.result))
        solution = eqx.tree_at(lambda s: s.states, solution, states)
    return solution


@eqx.filter_jit
def _run(model, integrator, grid, state0, args, saveat, adjoint, meter):
    """The loop, compiled once per structure: a call outside `jit` compiles nothing twice."""
    t0, h, steps = grid
    dtype = state0.v.dtype

    def time(i):
        return t0 + jnp.asarray(i, dtype) * h

    carry0 = integrator.init(model, time(0), state0, args)

    def one(carry, i):
        run, result, failed_step, worst, shown = carry
        state, warm = run
        state, info, warm, outcome = integrator.step(model, time(i), time(i + 1), state, warm, args)
        first = failed(outcome) & (failed_step < 0)
        worse = info.residual > worst[0]
        worst = (jnp.maximum(info.residual, worst[0]), jnp.where(worse, i, worst[1]))
        carry = (
            (state, warm),
            first_error(result, outcome),
            jnp.where(first, i, failed_step),
            worst,
            meter.step(shown, jnp.asarray(i + 1, float) / max(steps, 1)),
        )
        return carry, info

    counter = jnp.asarray(-1)
    start = (
        (state0, carry0),
        RESULTS.successful,
        counter,
        (jnp.zeros((), dtype), counter),
        meter.init(),
    )
    if saveat.steps is None:
        carry, infos = scan(one, start, steps, adjoint)
        info = _summary(infos) if steps else None
        saved = _snapshot(model, time(steps), carry[0], info)
    else:
        carry, saved = _saving(model, one, start, steps, saveat.steps, time, adjoint)
    meter.close(carry[-1])
    return _assemble(model, saved, carry, saveat, time, state0, carry0)


def _saving(model, one, start, steps, every, time, adjoint):
    """Runs `every` steps between snapshots; the rest of the steps follows unsaved."""
    blocks, rest = divmod(steps, every)

    def block(carry, j):
        if every == 1:
            carry, info = one(carry, j)
        else:
            carry, infos = jax.lax.scan(one, carry, j * every + jnp.arange(every))
            info = _summary(infos)
        return carry, _snapshot(model, time((j + 1) * every), carry[0], info)

    carry, saved = scan(block, start, blocks, adjoint)
    if rest:
        carry, _ = scan(lambda c, i: one(c, blocks * every + i), carry, rest, Direct())
    return carry, saved


def _summary(infos):
    last = jax.tree.map(lambda x: x[-1], infos)
    impulses = jax.tree.map(lambda x: jnp.sum(x, axis=0), infos.impulses)
    return eqx.tree_at(
        lambda i: (i.impulses, i.residual, i.iterations, i.margin),
        last,
        (impulses, jnp.max(infos.residual), jnp.max(infos.iterations), jnp.min(infos.margin)),
    )


def _snapshot(model, t, run, info):
    state, _ = run
    return t, state, info, model.gaps(t, state.q), model.energy(t, state)


def _assemble(model, saved, carry, saveat, time, state0, carry0):
    ts, states, info, gaps, energy = saved
    if saveat.t0 and saveat.steps is not None:
        first = (
            time(0),
            state0,
            carry0,
            model.gaps(time(0), state0.q),
            model.energy(time(0), state0),
        )
        rest = ts, states, info.impulses, gaps, energy
        ts, states, impulses, gaps, energy = jax.tree.map(
            lambda a, b: jnp.concatenate([a[None], b]), first, rest
        )
    else:
        impulses = info.impulses if info is not None else carry0
    if info is None:
        zero = jnp.zeros_like(ts)
        info_parts = zero, jnp.zeros((), jnp.int32), zero
    else:
        info_parts = info.residual, info.iterations, info.margin
    _, result, failed_step, (_, worst_step), _ = carry
    stats = StepStatistics(*info_parts, worst_step, failed_step)
    return Solution(ts, states, impulses, gaps, energy, stats, result)


def _count(t0, t1, dt) -> int:
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if isinstance(value, Tracer) or not np.isscalar(value) and np.ndim(value) != 0:
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


def _check(model, integrator, state0):
    """Checks what is concrete; under a transformation the shapes only."""
    problem = integrator.supports(model)
    leaves = jax.tree.leaves((eqx.filter(model, eqx.is_array), state0))
    if problem is None and not any(isinstance(x, Tracer) for x in leaves):
        problem = model.check(state0)
    if problem is None and np.shape(state0.v) != (model.system.velocities,):
        problem = (
            f"the state's v has shape {np.shape(state0.v)}, expected ({model.system.velocities},)"
        )
    if problem is not None:
        raise ValueError(f"cannot simulate: {problem}.")
