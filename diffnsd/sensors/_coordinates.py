"""Sensors of coordinates and of actuators."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Args, State, Vector
from ..groups import PoseGroup
from ..model import Model
from ..relations._base import along, reads_bodies
from ._base import AbstractStateSensor
from ._instant import Instant

Indices = int | Sequence[int]


def _indices(index: Indices) -> tuple[int, ...]:
    try:
        found: Any = np.atleast_1d(np.asarray(index))
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer) or np.any(found < 0):
        raise ValueError(f"index must be an integer of at least 0, or a list of them, got {index}.")
    return tuple(found.tolist())


def _entries(name: str, x: Array, index: tuple[int, ...]) -> Array:
    if np.ndim(x) != 1 or max(index) >= len(x):
        raise ValueError(
            f"the sensor reads {name}[{max(index)}], but {name} has the shape {np.shape(x)}; bodies "
            "without joints are read by FramePosition and FrameLinearVelocity."
        )
    return x[np.array(index, np.int32)]


def _seen_by(function: Callable, now: Instant) -> State:
    """The state that a function reads: of the bodies, or of the system."""
    return now.needed()[0] if reads_bodies(function) else now.state


class JointPosition(AbstractStateSensor):
    """Entries of `q`, `(k,)`: the angle [rad] or displacement [m] of a joint, the quaternion of a ball joint.

    **Arguments:** `index`: an entry of `q`, or several.

    **Raises:** `ValueError` if an index is no integer, or `q` has no such entry.
    """

    index: tuple[int, ...] = eqx.field(static=True, converter=_indices)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, " k"]:
        return _entries("q", now.state.q, self.index)


class JointVelocity(AbstractStateSensor):
    """Entries of `v`, `(k,)`: the rate of a joint [rad/s, m/s], of a ball joint its angular velocity.

    **Arguments:** `index`: an entry of `v`, or several.

    **Raises:** `ValueError` if an index is no integer, or `v` has no such entry.
    """

    index: tuple[int, ...] = eqx.field(static=True, converter=_indices)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, " k"]:
        return _entries("v", now.state.v, self.index)


class Coordinate(AbstractStateSensor):
    """A function of the configuration, `(k,)`: the angle of a joint between bodies, the length of a tendon.

    **Arguments:** `function`: `(t, q) -> (k,)` or `()`, such as `joint.angle` of `hinge(...)`, which is given
    the `Pose` of the bodies, or `relations.Coordinates(1)`.
    """

    function: Callable

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, " k"]:
        return jnp.atleast_1d(self.function(now.t, _seen_by(self.function, now).q))


class CoordinateRate(AbstractStateSensor):
    """The rate of a function of the configuration along the motion, `∂x/∂t + ∂x/∂q q'`, `(k,)`.

    **Arguments:** as for `Coordinate`.
    """

    function: Callable

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, " k"]:
        state = _seen_by(self.function, now)
        group = model.system.group
        if reads_bodies(self.function):
            group = PoseGroup(len(state.q.position))
        return jnp.atleast_1d(along(self.function, group, now.t, state)[1])


class ActuatorForce(AbstractStateSensor):
    """The force of an actuator [N, N m], `(k,)`.

    **Arguments:** `force`: `(t, state, args) -> (a,)`, the forces of all actuators in a state of the model,
    of the whole product if it is one; `index`: which of them.

    **Raises:** `ValueError` if an index is no integer.
    """

    force: Callable[..., Vector]
    index: tuple[int, ...] = eqx.field(static=True, converter=_indices)

    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, " k"]:
        return _entries("force", self.force(now.t, now.whole, args), self.index)
