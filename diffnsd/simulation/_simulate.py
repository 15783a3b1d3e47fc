"""Running a model over time."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral as Whole

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import checked_arguments
from .._checkpointing import Checkpointing
from .._jax import (
    AbstractLoopAdjoint,
    Checkpointed,
    differentiable_once,
    differentiable_once_where,
    is_traced,
)
from .._result import failed
from .._types import Args, State
from ..integrators import AbstractIntegrator
from ..model import Model
from ._checkpointing import run_saved
from ._checks import MOST_STEPS, checked, not_kept, number_of_steps
from ._event import Event, EventPoint
from ._integral import Augmented, Integral, OfMotion
from ._run import COMPILATIONS, Grid, run
from ._save import SaveAt
from ._solution import Solution


@checked_arguments
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
    integrals: Integral | Sequence[Integral] = (),
    adjoint: AbstractLoopAdjoint | None = None,
    progress: diffrax.AbstractProgressMeter | None = None,
    save: Checkpointing | None = None,
    start_tolerance: float = 1e-3,
    throw: bool = True,
) -> Solution:
    """Simulates a model from `t0` to `t1` with steps of length `dt`.

    Pure, and differentiable (forward and reverse) with respect to the leaves of `model`, `state0` and
    `args`; works under `jit` and `vmap`.

    **Arguments:**

    - `model`, `integrator`: what to simulate, and how.
    - `t0`, `t1`, `dt`: times [s], plain numbers; `(t1 − t0)/dt` must be a whole number of steps.
      Only that number is compiled in. The step length is `dt` to full precision at any time.
    - `max_steps`: compile one program for any number of steps up to this one, for a sweep over `t1`
      or `dt`. Arrays of the solution have the length of a run with `max_steps` steps. Entries after
      the end repeat its time and state, with zero impulses, as after an event. Reverse mode needs the
      memory of `max_steps` steps. Default: the exact number is compiled in, which runs a little
      faster.
    - `state0`: initial `State`; its precision is that of the simulation. Lists and integers become
      arrays of real numbers.
    - `args`: exogenous inputs, passed to the force of the system and to the event.
    - `saveat`: which times to save, default every step and `t0`.
    - `event`: an `Event` that ends the run early, default none.
    - `integrals`: one or more `Integral`, integrated with the motion; see `Solution.integrals`.
    - `adjoint`: how reverse mode stores the loop, default `Checkpointed()`.
    - `progress`: a progress meter of diffrax, for example `diffrax.TextProgressMeter()`; it does not
      affect the results.
    - `save`: a `Checkpointing`, which writes the run to files and goes on from them; not under a
      transformation, and without `progress`.
    - `start_tolerance`: allowed penetration of contacts and opening of joints in `state0` [m, rad],
      checked if known before compiling. Schemes keep an accepted error: they constrain the rates of
      gaps.
    - `throw`: raise if a step fails; otherwise `Solution.result` holds the failure.

    **Returns:** a `Solution`.

    **Raises:** `TypeError` for an argument of another kind, such as a system in place of a model.
    `ValueError` before compiling for times, shapes, parameters or combinations that
    make no sense, if their values are known. `RuntimeError` if a step fails and `throw` is true; it
    names cause and remedy and, outside `jit` and `vmap`, also the step and its residual. `ValueError`
    while a second derivative is traced that would not be true: through impacts located by a method of
    first order.

    **Warns:** `RecompilationWarning`, with the remedy, if the same program is compiled a second time
    because a function of the model was redefined.
    """
    steps = number_of_steps(t0, t1, dt)
    if max_steps is not None and not (isinstance(max_steps, Whole) and max_steps >= steps):
        raise ValueError(
            f"(t1 - t0)/dt = {steps} steps, and max_steps={max_steps!r} must be a whole number of "
            "at least as many; raise max_steps, or shorten the run."
        )
    if max_steps is not None and max_steps > MOST_STEPS:
        raise ValueError(f"max_steps must be at most 2**31 - 1, got {max_steps}.")
    if not start_tolerance >= 0:
        raise ValueError(f"start_tolerance must be at least 0, got {start_tolerance}.")
    h = (float(t1) - float(t0)) / max(steps, 1)
    state0 = checked(model, integrator, t0, h, state0, args, start_tolerance)
    # Arrays, so that new times do not need a new program.
    grid = Grid(
        t0=jnp.asarray(t0, state0.v.dtype),
        h=jnp.asarray(h, state0.v.dtype),
        steps=steps if max_steps is None else jnp.asarray(steps),
        capacity=steps if max_steps is None else int(max_steps),
    )
    given = (integrals,) if isinstance(integrals, Integral) else tuple(integrals)
    if problem := not_kept(integrator, saveat, event, given):
        raise ValueError(f"cannot simulate: {problem}.")
    augmented = None
    if given:
        augmented = Augmented.of(model, given, grid.t0, state0, args)
        model, state0 = augmented.model, augmented.start
        if event is not None:
            event = Event(OfMotion(event.condition, augmented.system), event.locate)
        if problem := integrator.supports(model):
            raise ValueError(f"cannot integrate along the motion: {problem}.")
    twice = integrator.second_derivative_problem(model)
    if twice is not None:
        twice = f"cannot differentiate twice: {twice}."
        # At the start, to raise before the motion is computed; at the end for reverse mode.
        model, state0, args = differentiable_once((model, state0, args), twice)
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
    # Inside a `jit`, the outer `jit` compiles and caches the program.
    compiled = COMPILATIONS.count
    if save is None:
        solution = run(*parts)
    else:
        if progress is not None:
            raise ValueError(
                "progress is not shown with save=Checkpointing(...); leave one of them out."
            )
        solution = run_saved(save, *parts[:-2])
    if twice is not None:
        solution = differentiable_once(solution, twice)
    elif integrator.keeps_impact_times:
        solution = differentiable_once_where(solution, jnp.any(solution.stats.kinks > 0))
    if augmented is not None:
        (states, sums), point = augmented.apart(solution.states), solution.event
        if point is not None:
            point = EventPoint(point.t, *augmented.apart(point.state))
        solution = replace(solution, states=states, integrals=sums, event=point)
    if not is_traced(jnp.zeros(())):
        COMPILATIONS.warn_if_repeated(compiled, "simulate", parts)
    if throw:
        bad = failed(solution.result)
        # Under a derivative the result may be known where the statistics, which a message needs, are not.
        if any(map(is_traced, jax.tree.leaves((solution.result, solution.stats)))):
            states = solution.result.error_if(solution.states, bad)
            solution = replace(solution, states=states)
        elif np.any(bad):
            raise RuntimeError(solution.message)
    return solution
