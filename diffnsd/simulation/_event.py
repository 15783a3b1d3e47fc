"""What ends a simulation before its time."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Args, Scalar, State


class Event(eqx.Module):
    """Ends a simulation when a condition is met.

    **Arguments:** `condition(t, state, args)`, evaluated at the end of every step; `args` as given
    to `simulate`. It may be an `equinox.Module`: its leaves are traced, while a new function object
    compiles again. It returns, with shape `()`,

    - a boolean: the run ends after the first step at whose end it is true; or
    - a real number: the run ends after the first step over which it comes to zero or changes its
      sign. A zero at the start is no event, leaving it neither.

    The run ends on the grid: the time of the event is the end of the step in which it happens, late
    by up to `dt`, and the state is the one there. So the saved values are differentiable with the
    number of steps held fixed, and the derivative of the time of the event is not part of them.

    **Raises:** `ValueError` in a simulation, before it is compiled, if the condition returns
    another shape or a type that is neither boolean nor real.
    """

    condition: Callable

    def value(self, t: Scalar, state: State, args: Args) -> Array:
        """The condition, shape `()`."""
        value = jnp.asarray(self.condition(t, state, args))
        if value.shape != () or jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise ValueError(
                "the condition of an Event must return one boolean or one real number, got "
                f"{value.dtype} of shape {value.shape}."
            )
        return jax.lax.stop_gradient(value)


def happened(before: Array, after: Array) -> Array:
    """Whether the event lies in a step, from its condition at both ends."""
    if after.dtype == bool:
        return after
    return ((before > 0) & (after <= 0)) | ((before < 0) & (after >= 0))
