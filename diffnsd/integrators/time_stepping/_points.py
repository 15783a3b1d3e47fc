"""Points of a step at which `H(q)` or the mass matrix is evaluated."""

from abc import abstractmethod

import equinox as eqx

from ..._arguments import AbstractChecked
from ..._types import Config, Scalar, State, Vector
from ...groups import AbstractGroup


class AbstractPoint(AbstractChecked):
    """A configuration within a step from `q0` with velocities from `v0` to `v1`."""

    @abstractmethod
    def configuration(
        self, group: AbstractGroup, state0: State, h: Scalar, theta: float, v1: Vector
    ) -> Config:
        """The configuration, for an end velocity `v1` and positions moved by `theta`."""

    @property
    def is_implicit(self) -> bool:
        """Whether it depends on the end velocity."""
        return False


class AtStart(AbstractPoint):
    """The configuration `q0` at the start of the step."""

    def configuration(
        self, group: AbstractGroup, state0: State, h: Scalar, theta: float, v1: Vector
    ) -> Config:
        return state0.q


class AtPrediction(AbstractPoint):
    """`q0 exp(fraction h v0)`: predicted from the velocity at the start.

    **Arguments:** `fraction` of the step.
    """

    fraction: float = eqx.field(default=1.0, static=True)

    def configuration(
        self, group: AbstractGroup, state0: State, h: Scalar, theta: float, v1: Vector
    ) -> Config:
        return group.compose(state0.q, group.exp(self.fraction * h * state0.v))


class AtIterate(AbstractPoint):
    """`q0 exp(fraction h (theta v1 + (1 − theta) v0))`: on the motion of the step itself, implicit.

    Newton's method takes its derivative into account, so that the step is solved, and differentiated,
    exactly. With one linearisation it is evaluated at the prediction.

    **Arguments:** `fraction` of the step; 1 is its end.
    """

    fraction: float = eqx.field(default=1.0, static=True)

    def configuration(
        self, group: AbstractGroup, state0: State, h: Scalar, theta: float, v1: Vector
    ) -> Config:
        mean = theta * v1 + (1 - theta) * state0.v
        return group.compose(state0.q, group.exp(self.fraction * h * mean))

    @property
    def is_implicit(self) -> bool:
        return True
