"""An integrator for a plant under sampled control."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._result import RESULTS, first_error
from .._types import Args, Count, Scalar, State
from ..integrators import (
    AbstractIntegrator,
    AbstractMemory,
    AbstractWrappedIntegrator,
    Clocked,
    StepInfo,
)
from ..model import Model
from ._base import AbstractController, Memory


class SampledDetails(eqx.Module):
    """Report of a step under sampled control, in `Solution.details`; zero at `t0`.

    **Arguments:** `control`: held during the step; `plant`: the details of the inner method.
    """

    control: Any
    plant: Any


class _Loop(eqx.Module):
    """Memory of the plant's method and of the controller, the control held, and the step count."""

    plant: Any
    memory: Memory
    control: Any
    count: Count


class Sampled(AbstractWrappedIntegrator):
    """Steps a plant with a control that is computed every `every` steps and held in between.

        u_j = controller(t_j, y_j),  y_j = sensor(t_j, state_j),   t_j = t0 + j every dt

    The control takes the place of `args` in the force of the system: `FirstOrderSystem.linear` with
    `inputs`, or a `forcing(t, state, u)`. Call `simulate` as usual, with `dt` the step of the plant.
    `Solution.details` holds the controls.

    **Arguments:**

    - `inner`: the method of the plant.
    - `controller`: for example `PID`; its gains are parameters.
    - `every`: steps per sampling period, at least 1.
    - `sensor`: `sensor(t, state) -> y`; `None` measures `state.v`.

    **Raises:** `ValueError` if `every` is less than 1; in a simulation, before it is compiled, if
    `args` are given too, since the control takes their place.

    Reference: K. Åström, B. Wittenmark, Computer-controlled systems (1997), ISBN 0-13-314899-8.
    """

    inner: AbstractIntegrator
    controller: AbstractController
    every: int = eqx.field(default=1, static=True)
    sensor: Callable | None = None

    def __check_init__(self):
        if self.every < 1:
            raise ValueError(f"every must be at least 1 step, got {self.every}.")

    @property
    def is_symplectic(self) -> bool:
        return False

    @property
    def reads_states(self) -> bool:
        return True

    @property
    def memory(self) -> AbstractMemory:
        return Clocked()

    def check(self, model: Model, t0: float, dt: float, state: State, args: Args) -> str | None:
        if args is not None:
            return "args are given, but the control takes their place; give them to the controller"
        _, control = self._first(jnp.asarray(t0, state.v.dtype), state)
        return self.inner.check(model, t0, dt, state, control)

    def _measured(self, t: Scalar, state: State):
        return state.v if self.sensor is None else self.sensor(t, state)

    def _first(self, t0: Scalar, state: State):
        """The memory before the first sample, and zeros in place of a control."""
        y = self._measured(t0, state)
        memory = self.controller.init(t0, y)
        shapes = jax.eval_shape(self.controller, t0, y, memory, jnp.ones_like(t0))[0]
        return memory, jax.tree.map(jnp.zeros_like, shapes)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> _Loop:
        del args
        memory, control = self._first(t0, state)
        plant = self.inner.init(model, t0, state, control)
        return _Loop(plant, memory, control, jnp.zeros((), jnp.int32))

    def reactions(self, carry: _Loop):
        return self.inner.reactions(carry.plant)

    def followed(self, model: Model, state: State, carry: _Loop) -> State:
        return self.inner.followed(model, state, carry.plant)

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: _Loop, args: Args
    ) -> tuple[State, StepInfo, _Loop, RESULTS]:
        del args

        def sample():
            return self.controller(t0, self._measured(t0, state), carry.memory, self.every * h)

        due = carry.count % self.every == 0
        control, memory = jax.lax.cond(due, sample, lambda: (carry.control, carry.memory))
        end, info, plant, result = self.inner.step(model, t0, h, state, carry.plant, control)
        result = first_error(self.controller.result(memory), result)
        info = replace(info, details=SampledDetails(control, info.details))
        return end, info, _Loop(plant, memory, control, carry.count + 1), result
