"""Events that end a simulation early."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arguments import AbstractChecked
from .._expects import returned
from .._jax import without_derivative
from .._numerics import implicit_root, is_least
from .._types import Args, Scalar, State


class Event(AbstractChecked):
    """Ends a simulation when a condition is met.

    **Arguments:** `condition(t, state, args)`, evaluated at the end of every step; `args` as given
    to `simulate`. It may be an `equinox.Module`, whose leaves are traced; a new function object
    causes a recompilation. It returns, with shape `()`,

    - a boolean: the run ends after the first step at whose end it is true; or
    - a real number: the run ends after the first step in which it reaches zero or changes sign. A
      zero at the start is not an event, and neither is leaving it.

    The run ends on the grid: the last saved state is that at the end of the step in which the event
    happens, up to `dt` after the event. With `locate=True` and a real condition, `Solution.event`
    holds the time of the event itself and the state there, `c(t, state(t)) = 0`, both with the
    derivative of that root. They come from an integrator step that ends at the root, so an impact
    inside that step is included. If the condition changes sign by a jump, the jump is at an impact and
    the event has the time of the impact. If the integrator does not locate it, the time has no
    derivative.

    **Raises:** `ValueError` in a simulation, before it is compiled, if the condition returns the
    wrong shape or a type that is neither boolean nor real, or if `locate` is set for a boolean.
    """

    condition: Annotated[Callable, "(t, state, args)"]
    locate: bool = eqx.field(default=False, static=True)

    def measure(self, t: Scalar, state: State, args: Args) -> Array:
        """The condition, shape `()`, differentiable."""
        what = "one boolean or one real number"
        value = returned("the condition of an Event", self.condition(t, state, args), what)
        if value.shape != ():
            raise ValueError(
                "the condition of an Event must return one boolean or one real number, got "
                f"{value.dtype} of shape {value.shape}."
            )
        if self.locate and not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                "an event with a boolean or integer condition has no time inside of a step; return a "
                "real number that changes its sign, or leave locate=False."
            )
        return value

    def value(self, t: Scalar, state: State, args: Args) -> Array:
        """The condition without derivative."""
        return jax.lax.stop_gradient(self.measure(t, state, args))


def happened(before: Array, after: Array) -> Array:
    """Whether the event happens in a step, given its condition at both ends."""
    if after.dtype == bool:
        return after
    return ((before > 0) & (after <= 0)) | ((before < 0) & (after >= 0))


class EventPoint(eqx.Module):
    """Where an event happened: time `t` [s], `state`, and the integrals up to `t`, one per `Integral`.

    If it did not happen: the end of the run.
    """

    t: Scalar
    state: State
    integrals: tuple[Array, ...] = ()


HALVINGS = 60
"""Bisections of the bracket of an event: a few more than the significant bits of a float64."""


def located(
    event: Event, model, integrator, t0: Scalar, h: Scalar, start, impacts: Array, args
) -> EventPoint:
    """Locates the event in a step from `start`, a state with the memory of the integrator.

    Bisection shortens the step until the condition vanishes at its end.

    **Arguments:** `impacts`: times of the impacts in the whole step.
    """

    def at(given, s):
        model, integrator, t0, (state, memory), args, event = given
        end = integrator.step(model, t0, s, state, memory, args)[0]
        return event.measure(t0 + s, end, args), end

    given = model, integrator, t0, start, args, event
    frozen = without_derivative(given)
    before = frozen[-1].measure(frozen[2], frozen[3][0], args)

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        same = at(frozen, middle)[0] * jnp.sign(before) > 0
        return jnp.where(same, middle, low), jnp.where(same, high, middle)

    length = jax.lax.stop_gradient(h)
    _, s = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.zeros_like(length), length))

    root = implicit_root(lambda s: at(given, s)[0], s)
    # If the condition jumps there is no root: it jumps with the velocity, at an impact.
    near = 1e-6 * length
    times = impacts - t0
    away = jnp.abs(jax.lax.stop_gradient(times) - s)
    jump = s
    if times.size:
        nearest = jnp.sum(jnp.where(is_least(away), times, 0))
        jump = jnp.where(jnp.min(away) < near, nearest, s)
    s = jnp.where(jnp.abs(jax.lax.stop_gradient(root) - s) < near, root, jump)
    return EventPoint(t0 + s, at(given, s)[1])
