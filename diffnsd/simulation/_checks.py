"""Checks of the arguments of a simulation, made before anything is compiled."""

import jax
import numpy as np

from .._jax import concrete, is_traced
from .._numerics import as_float
from .._types import State
from ..model import skip_if_traced

MOST_STEPS = 2**31 - 1
"""Steps are counted by integers of 32 bits."""


def number_of_steps(t0, t1, dt) -> int:
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
    if not exact <= MOST_STEPS:
        raise ValueError(
            f"(t1 - t0)/dt = {exact:.3g} steps are too many: at most 2**31 - 1; take a larger dt or "
            "a shorter run."
        )
    steps = round(exact)
    if abs(exact - steps) > 1e-6 * max(1.0, exact):
        raise ValueError(
            f"(t1 - t0)/dt = {exact:.6f} is not a whole number; use dt={(t1 - t0) / max(steps, 1)!r}."
        )
    return steps


def checked(model, integrator, t0, dt, state0, args, start_tolerance=np.inf) -> State:
    """Returns the initial state as arrays; raises errors that are known before compiling."""
    state0 = jax.tree.map(as_float, state0, is_leaf=_is_numbers)
    problem = integrator.supports(model) or not_listed(model, integrator) or model.check(state0)
    if problem is None:
        values = concrete((model, t0, dt, state0, args))
        problem = skip_if_traced(lambda: integrator.check(*values))
    if problem is None and start_tolerance < np.inf:
        problem = skip_if_traced(lambda: model.check_gaps(t0, state0.q, start_tolerance))
    if problem is not None:
        raise ValueError(f"cannot simulate: {problem}.")
    return state0


def not_listed(model, integrator) -> str | None:
    """Why an integrator cannot step contacts that every step lists anew, with the remedy, or `None`."""
    listed = any(i.relation.lists_contacts for i in model.interactions)
    if not listed or integrator.lists_contacts:
        return None
    return (
        f"neighbour_contacts lists other contacts in every step, and {type(integrator).__name__} follows "
        "contacts through a step; use MoreauJean(), or shape_contacts for few bodies"
    )


def not_kept(integrator, saveat, event, integrals) -> str | None:
    """Which requested output an integrator cannot provide, with the remedy, or `None`."""
    name = type(integrator).__name__
    if saveat is not None and saveat.impacts and not integrator.keeps_impact_times:
        return f"{name} does not locate impacts, so SaveAt(impacts=...) has none; use Located({name}(...))"
    if event is not None and event.locate and not integrator.keeps_impact_times:
        problem = integrator.memory.restart_problem
        if problem is not None:
            return f"to locate an event a step is shortened, and {name} {problem}"
    if integrals and integrator.reads_states:
        return (
            f"{name} gives the state to a controller, which would see the integrals too; add them to the "
            "states of the plant"
        )
    return None


def _is_numbers(x) -> bool:
    """Whether `x` is a list, or a tuple of plain numbers, to be converted to an array."""
    return isinstance(x, list) or (isinstance(x, tuple) and all(map(np.isscalar, x)))
