"""Forces of actuators, and their controls."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import AbstractChecked
from .._jax import concrete, is_traced
from .._numerics import as_float, short_sum
from .._types import Args, Scalar, State, Vector
from ._lengths import Coordinates, TendonLength


class Actuators(eqx.Module):
    """Forces `gain x + bias` along coordinates and tendons, limited by ranges: MJCF's `general` actuator.

    The input `x` is the control `u`, or an activation. With the length `l` of every actuator and its rate,
    `gain = g0 + g1 l + g2 l'`; the bias likewise.

    **Arguments:** `transmission (a, n)`, `along (a, k)`: `l = T x + A L` of the coordinates and the lengths
    of the tendons; `gain`, `bias`: `(a, 3)`; `controls`, `forces`: ranges `(a, 2)`; `totals`: ranges of the
    sums in the entries of `v`, `(n, 2)`.
    """

    coordinates: Coordinates
    transmission: Float[Array, "a n"]
    tendons: TendonLength
    along: Float[Array, "a k"]
    gain: Float[Array, "a 3"]
    bias: Float[Array, "a 3"]
    controls: Float[Array, "a 2"]
    forces: Float[Array, "a 2"]
    totals: Float[Array, "n 2"]

    def given(self, t: Scalar, state: State, args: Args) -> Float[Array, " a"]:
        """The controls `u` in their ranges: `args`, or what it returns for `(t, state)`, zero without it.

        **Raises:** `ValueError` if their shape is not `(a,)`.
        """
        count = len(self.gain)
        found = jnp.zeros(count) if args is None else args(t, state) if callable(args) else args
        found = jnp.asarray(found, state.v.dtype)
        if found.shape != (count,):
            raise ValueError(
                f"args must be the controls of the {count} actuators, shape ({count},), or a function "
                f"(t, state) of them; got shape {found.shape}."
            )
        return jnp.clip(found, self.controls[:, 0], self.controls[:, 1])

    def exerted(
        self, t: Scalar, state: State, inputs: Float[Array, " a"]
    ) -> tuple[Array, Callable]:
        """The force of every actuator `(a,)` [N, N m], and forces of tendons as generalised forces."""
        lengths, rates, pull = self.tendons.moving(t, state)
        length = self.transmission @ self.coordinates(state.q) + self.along @ lengths
        rate = self.transmission @ state.v + self.along @ rates
        known = jnp.stack([jnp.ones_like(length), length, rate], axis=1)
        force = short_sum(self.gain * known, 1) * inputs + short_sum(self.bias * known, 1)
        return jnp.clip(force, self.forces[:, 0], self.forces[:, 1]), pull

    def driven(self, t: Scalar, state: State, inputs: Float[Array, " a"]) -> Vector:
        """The generalised force with these inputs [N, N m]."""
        force, pull = self.exerted(t, state, inputs)
        total = force @ self.transmission + pull(force @ self.along)
        return jnp.clip(total, self.totals[:, 0], self.totals[:, 1])

    def force(self, t: Scalar, state: State, args: Args) -> Float[Array, " a"]:
        """The force of every actuator in a state of the model [N, N m]."""
        return self.exerted(t, state, self.given(t, state, args))[0]

    def __call__(self, t: Scalar, state: State, args: Args) -> Vector:
        return self.driven(t, state, self.given(t, state, args))


class Activated(eqx.Module):
    """Actuators some of which act by a state of their own, the second system of a `SystemProduct`.

        tau act' = u − act,   or   act' = u

    The first-order system has all of this but `u`, which is the force of this coupling on it.

    **Arguments:** `which`: the actuators with an activation.
    """

    actuators: Actuators
    which: tuple[int, ...] = eqx.field(static=True)

    def inputs(self, t: Scalar, states: tuple[State, ...], args: Args) -> tuple[Array, Array]:
        """The inputs of all actuators, and the controls of those with an activation."""
        bodies, activations = states
        u, which = self.actuators.given(t, bodies, args), np.array(self.which, np.int32)
        return u.at[which].set(activations.v), u[which]

    def __call__(self, t: Scalar, states: tuple[State, ...], args: Args) -> tuple[Array, Array]:
        inputs, controls = self.inputs(t, states, args)
        return self.actuators.driven(t, states[0], inputs), controls

    def force(self, t: Scalar, state: State, args: Args) -> Float[Array, " a"]:
        """The force of every actuator in a state of the product [N, N m]."""
        n = self.actuators.transmission.shape[1]
        states = State(state.q[0], state.v[:n]), State(None, state.v[n:])
        return self.actuators.exerted(t, states[0], self.inputs(t, states, args)[0])[0]


class Total(eqx.Module):
    """The sum of generalised forces."""

    parts: tuple[Any, ...]

    def __call__(self, t: Scalar, state: State, args: Args) -> Vector:
        return sum((part(t, state, args) for part in self.parts), jnp.zeros_like(state.v))

    def potential(self, t: Scalar, q: Array) -> Scalar:
        """The potential energy of those that have one [J]."""
        known = [part.potential(t, q) for part in self.parts if hasattr(part, "potential")]
        return sum(known, jnp.zeros((), q.dtype))


class SampledControls(AbstractChecked):
    """Controls that are held between samples, as `args` of a simulation.

    **Arguments:** `times`: increasing [s], `(k,)`; `values`: after each of these times until the next, which
    is included, so that an implicit step that ends there still has them, `(k, nu)`; before the first time,
    the first ones.

    **Raises:** `ValueError` if shapes do not match, or known times do not increase.
    """

    times: Float[Array, " k"]
    values: Float[Array, "k nu"]

    def __init__(self, times, values):
        self.times, self.values = as_float(times), as_float(values)
        if self.times.ndim != 1 or self.values.ndim != 2 or len(self.times) != len(self.values):
            raise ValueError(
                f"times must have shape (k,) and values (k, nu), got {self.times.shape} and "
                f"{self.values.shape}."
            )
        known = concrete(self.times)
        if not is_traced(known) and np.any(np.diff(known) <= 0):
            raise ValueError("the times of controls must increase.")

    def __call__(self, t: Scalar, state: State) -> Float[Array, " nu"]:
        # A step that ends at a sample, but for rounding, belongs to the one before.
        before = t - 64 * jnp.finfo(self.times.dtype).eps * jnp.max(jnp.abs(self.times))
        index = jnp.searchsorted(self.times, before, side="left") - 1
        return self.values[jnp.clip(index, 0)]
