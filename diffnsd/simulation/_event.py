"""What ends a simulation before its time."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._jax import without_derivative
from .._numerics import implicit_root, is_least
from .._types import Args, Scalar, State


class Event(eqx.Module):
    """Ends a simulation when a condition is met.

    **Arguments:** `condition(t, state, args)`, evaluated at the end of every step; `args` as given
    to `simulate`. It may be an `equinox.Module`: its leaves are traced, while a new function object
    compiles again. It returns, with shape `()`,

    - a boolean: the run ends after the first step at whose end it is true; or
    - a real number: the run ends after the first step over which it comes to zero or changes its
      sign. A zero at the start is no event, leaving it neither.

    The run ends on the grid: saved states are those at the end of the step in which the event happens,
    up to `dt` after the event. With `locate=True` and a real condition `Solution.event` holds the time of the
    event itself and the state there, `c(t, state(t)) = 0`, both with the derivative of that root: a step
    of the integrator of the length that the root says, so that an impact inside that step is included.
    A condition that changes its sign by a jump does so at an impact, and has its time; where the
    integrator locates none, the time has no derivative.

    **Raises:** `ValueError` in a simulation, before it is compiled, if the condition returns
    another shape or a type that is neither boolean nor real, or a boolean is to be located.
    """

    condition: Callable
    locate: bool = eqx.field(default=False, static=True)

    def measure(self, t: Scalar, state: State, args: Args) -> Array:
        """The condition, shape `()`, with its derivative."""
        value = jnp.asarray(self.condition(t, state, args))
        if value.shape != () or jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise ValueError(
                "the condition of an Event must return one boolean or one real number, got "
                f"{value.dtype} of shape {value.shape}."
            )
        if self.locate and value.dtype == bool:
            raise ValueError(
                "an event with a boolean condition has no time inside of a step; return a real number "
                "that changes its sign, or leave locate=False."
            )
        return value

    def value(self, t: Scalar, state: State, args: Args) -> Array:
        """The condition as a constant."""
        return jax.lax.stop_gradient(self.measure(t, state, args))


def happened(before: Array, after: Array) -> Array:
    """Whether the event lies in a step, from its condition at both ends."""
    if after.dtype == bool:
        return after
    return ((before > 0) & (after <= 0)) | ((before < 0) & (after >= 0))


class EventPoint(eqx.Module):
    """Where an event happened: `t` [s], `state`, and the integrals up to there, one for each `Integral`.

    The end of the run if it did not happen.
    """

    t: Scalar
    state: State
    integrals: tuple[Array, ...] = ()


HALVINGS = 60
"""Of the bracket of an event: as many as a float64 has bits, and a few."""


def located(
    event: Event, model, integrator, t0: Scalar, h: Scalar, start, impacts: Array, args
) -> EventPoint:
    """The event in a step from `start`, a state with the memory of the integrator.

    The step is shortened until the condition vanishes at its end, by bisection.

    **Arguments:** `impacts`: times of those of the whole step.
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
    # Where the condition jumps there is no root: it jumps with the velocity, at an impact.
    near = 1e-6 * length
    times = impacts - t0
    away = jnp.abs(jax.lax.stop_gradient(times) - s)
    jump = s
    if times.size:
        nearest = jnp.sum(jnp.where(is_least(away), times, 0))
        jump = jnp.where(jnp.min(away) < near, nearest, s)
    s = jnp.where(jnp.abs(jax.lax.stop_gradient(root) - s) < near, root, jump)
    return EventPoint(t0 + s, at(given, s)[1])
