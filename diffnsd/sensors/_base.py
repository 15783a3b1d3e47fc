"""The interface of a sensor, and sensors that are read together."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AbstractChecked
from .._expects import expects
from .._types import Args, Scalar, State
from ..model import Model
from ..simulation import Solution
from ._instant import Instant, Interval, Site


class AbstractSensor(AbstractChecked):
    """A measurement as a pure function of a solution: `reading = sensor(model, solution)`.

    Its leaves are parameters, such as the position of its site. A sensor that reads the `places` or `loads`
    of an `Interval` states `reads_contacts = True`, because finding contacts again is most of the work.
    """

    reads_contacts: ClassVar[bool] = False

    def __check_init__(self):
        site = getattr(self, "site", None)
        if site is not None:
            expects("site", site, Site, "a Site, such as Site(body, position)")

    def __call__(self, model: Model, solution: Solution, args: Args = None) -> Float[Array, "*t k"]:
        """The readings at the saved times of a solution, `(t, k)`; `(k,)` of one without a time axis.

        **Arguments:** `args`: those of the simulation, for sensors of actuators.

        **Raises:** `ValueError` if the model lacks what the sensor reads, or the mean over a step is asked of
        a solution without a time axis.
        """
        return Sensors({"": self})(model, solution, args)[""]

    @abstractmethod
    def read(self, model: Model, interval: Interval, args: Args) -> Float[Array, " k"]:
        """The reading at the end of an interval."""

    def check(self, solution: Solution) -> str | None:
        """Error message if a solution does not hold what the sensor needs, else `None`."""
        return None


class AbstractStateSensor(AbstractSensor):
    """A sensor of the state alone; controllers read it by `sensor.at(model, t, state)`."""

    def at(self, model: Model, t: Scalar, state: State, args: Args = None) -> Float[Array, " k"]:
        """The reading in one state, `(k,)`."""
        return Sensors({"": self}).at(model, t, state, args)[""]

    @abstractmethod
    def observe(self, model: Model, now: Instant, args: Args) -> Float[Array, " k"]:
        """The reading at an instant."""

    def read(self, model: Model, interval: Interval, args: Args) -> Float[Array, " k"]:
        return self.observe(model, interval.after, args)


class AbstractMeanSensor(AbstractSensor):
    """A sensor of forces: its reading is the mean since the previous saved time,

        (1 / (t1 − t0)) ∫_t0^t1 dP

    A nonsmooth motion has impulses: at an impact a force has no value, and its mean over the interval between
    two samples is what a sensor with that sampling period reads. The first reading, before which there is no
    interval, and those after an event are 0.
    """

    @abstractmethod
    def impulse(self, model: Model, interval: Interval) -> Float[Array, " k"]:
        """The integral over an interval."""

    def read(self, model: Model, interval: Interval, args: Args) -> Float[Array, " k"]:
        passed = interval.length > 0
        total = self.impulse(model, interval) / jnp.where(passed, interval.length, 1)
        return jnp.where(passed, total, 0)

    def check(self, solution: Solution) -> str | None:
        if solution.ts.ndim:
            return None
        return (
            f"{type(self).__name__} reads the mean since the previous saved time, and the solution has "
            "one time only; save more, such as SaveAt(steps=1)"
        )


class Sensors(AbstractChecked):
    """Sensors by name, read together: the frames of the bodies are computed once for all of them.

        readings = Sensors({"gyro": Gyro(site), "foot": Touch(foot, Sphere(0.05))})(model, solution)
        readings["gyro"]

    `names()`, `sensors["gyro"]` and `len(sensors)` are as for a dictionary.

    **Arguments:** `sensors`: a dictionary; `part`: of a `SystemProduct`, the index of the system that they
    are sensors of. The model and the solution are then those of the product.
    """

    sensors: dict[str, AbstractSensor]
    part: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        for name, sensor in self.sensors.items():
            expects(f"sensors[{name!r}]", sensor, AbstractSensor, "a sensor, such as Gyro(site)")

    def __getitem__(self, name: str) -> AbstractSensor:
        return self.sensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sensors)

    def __len__(self) -> int:
        return len(self.sensors)

    def names(self) -> tuple[str, ...]:
        """The names, in alphabetical order."""
        return tuple(sorted(self.sensors))

    def __call__(
        self, model: Model, solution: Solution, args: Args = None
    ) -> dict[str, Float[Array, "*t k"]]:
        """The readings of all sensors by name, `(t, k)` each; arguments as for one sensor.

        **Raises:** `TypeError` and `ValueError` as one sensor, with its name.
        """
        expects("model", model, Model, "the Model that was simulated")
        expects("solution", solution, Solution, "the Solution that simulate returned")
        for name, sensor in self.sensors.items():
            if problem := sensor.check(solution):
                raise ValueError(f"{f'{name}: ' * bool(name)}{problem}.")
        moments = solution.ts, solution.states, solution.impulses
        if solution.ts.ndim:
            return _readings(self, model, moments, args)
        alone = _readings(self, model, jax.tree.map(lambda x: x[None], moments), args)
        return jax.tree.map(lambda x: x[0], alone)

    def at(
        self, model: Model, t: Scalar, state: State, args: Args = None
    ) -> dict[str, Float[Array, " k"]]:
        """The readings in one state, of those sensors that need no more than the state."""
        return _readings_at(self, model, t, state, args)


def _in_precision(sensors, state: State):
    """The numbers of sensors in the precision of a state."""
    dtype = state.v.dtype
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, sensors)


def _own_state(model: Model, part: int | None, state: State) -> State:
    system: Any = model.system
    return state if part is None else system.split(state)[part]


@eqx.filter_jit
def _readings_at(sensors: Sensors, model: Model, t, state: State, args: Args) -> dict[str, Array]:
    own, _ = model.part(sensors.part)
    now = Instant.of(own, t, _own_state(model, sensors.part, state), state)
    return {
        name: sensor.observe(own, now, args)
        for name, sensor in _in_precision(sensors.sensors, state).items()
        if isinstance(sensor, AbstractStateSensor)
    }


@eqx.filter_jit
def _readings(sensors: Sensors, model: Model, moments, args: Args) -> dict[str, Array]:
    ts, states, impulses = moments
    given = _in_precision(sensors.sensors, states)
    own, kept = model.part(sensors.part)
    impulses = tuple(impulses[i] for i in kept)
    own_states = _own_state(model, sensors.part, states)
    after = jax.vmap(lambda *now: Instant.of(own, *now))(ts, own_states, states)
    # The first interval has no length.
    before = jax.tree.map(lambda x: jnp.concatenate([x[:1], x[:-1]]), after)

    acting = own.interactions if any(s.reads_contacts for s in given.values()) else ()

    def one(before, after, impulses):
        interval = Interval.of(acting, before, after, impulses)
        return {name: sensor.read(own, interval, args) for name, sensor in given.items()}

    return jax.vmap(one)(before, after, impulses)
