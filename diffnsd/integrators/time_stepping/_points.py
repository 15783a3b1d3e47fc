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

    @property
    def time(self) -> float:
        """The fraction of the step at which explicit time is taken, its end by default."""
        return 1.0

    @property
    def is_second_order(self) -> bool:
        """Whether reactions along `H` at this point have second order where `theta = 1/2`."""
        return self.ahead is not None

    @property
    def ahead(self) -> "AbstractPoint | None":
        """Where the local velocities hold that forces at this point change; `None`, the default: here."""
        return None


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


class HalfExplicit(AbstractPoint):
    """Forces act along `H` in the predicted middle, and local velocities hold at the predicted end.

        u1 = u(t1, q0 exp(h v0), v0) + H (v1 − v0),      H = H(t0 + h/2, q0 exp(h v0 / 2))

    Both configurations are known at the start, so that the equations stay linear. The reactions of joints,
    and of contacts that last on curved surfaces, are then of second order under `theta = 1/2`, where those
    along `H` of a single point are of first order; errors of the local velocity do not add up.

    Reference: E. Hairer, C. Lubich, M. Roche, The numerical solution of differential-algebraic systems by
    Runge-Kutta methods (1989), doi:10.1007/BFb0093947 (half-explicit methods).
    """

    def configuration(
        self, group: AbstractGroup, state0: State, h: Scalar, theta: float, v1: Vector
    ) -> Config:
        return AtPrediction(0.5).configuration(group, state0, h, theta, v1)

    @property
    def time(self) -> float:
        return 0.5

    @property
    def ahead(self) -> AbstractPoint:
        return AtPrediction()
