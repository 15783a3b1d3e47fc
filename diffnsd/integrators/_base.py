"""The interface of an integrator."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._result import RESULTS
from .._types import Args, Local, Scalar, State
from ..complementarity import Statistics
from ..model import Model

Carry = Any
"""What a method hands from step to step beside the state: warm starts, states before the last."""


class StepInfo(eqx.Module):
    """What a step reports.

    **Arguments:** `impulses`: per interaction `(c, k)` [N s]; `residual`: relative natural-map
    residual; `iterations`; `margin`: relative distance to the nearest change of mode; `details`:
    what only this method has to report, arrays in any pytree, `None` for most; `violation`: of the
    laws, in the measure of power; `solved_by`: which of the integrator's `solver_names` solved the step,
    the last one that was needed, 0 the start.
    """

    impulses: tuple[Local, ...]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]
    margin: Float[Array, ""]
    details: Any = None
    violation: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    solved_by: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))

    @staticmethod
    def of(impulses: tuple[Local, ...], stats: Statistics, details: Any = None) -> "StepInfo":
        """The report of a step with the statistics of one solve."""
        return StepInfo(
            impulses,
            stats.residual,
            stats.iterations,
            stats.margin,
            details,
            stats.violation,
            stats.solved_by,
        )


class AbstractIntegrator(eqx.Module):
    """A one-step method."""

    @property
    @abstractmethod
    def order(self) -> int:
        """Order of convergence between events."""

    @property
    @abstractmethod
    def is_symplectic(self) -> bool:
        """Whether a step without contact is a symplectic map."""

    @property
    def point(self) -> float:
        """Where in the step laws hold, in [0, 1]: at its end unless a scheme says otherwise."""
        return 1.0

    @property
    def keeps_impact_times(self) -> bool:
        """Whether derivatives through impacts have that of the time of the impact."""
        return False

    @property
    def solver_names(self) -> tuple[str, ...]:
        """What `solved_by` of a step counts: the names of the links of the contact solver."""
        inner, solver = getattr(self, "inner", None), getattr(self, "solver", None)
        if inner is not None:
            return inner.solver_names
        return ("start",) if solver is None else solver.names

    @abstractmethod
    def supports(self, model: Model) -> str | None:
        """Why the integrator cannot step the model, with the remedy, or `None`."""

    def check(self, model: Model, t0: float, dt: float, state: State, args: Args) -> str | None:
        """What is wrong with a model at its initial state for this method, or `None`.

        Asked once, before anything is compiled, of values that are known.
        """
        del model, t0, dt, state, args
        return None

    @abstractmethod
    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        """What is carried from step to step beside the state: most often the warm start."""

    @abstractmethod
    def step(
        self, model: Model, t0: Scalar, t1: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        """One step from `t0` to `t1`, times of the model's clock.

        `simulate` gives a model whose clock starts with the step (`Model.after`), so `t0 = 0`, and
        `t1 − t0` is the length of the step to all digits.
        """


def check_fractions(**values: float) -> None:
    """Raises `ValueError` for a parameter of a scheme that is not in [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value}.")
