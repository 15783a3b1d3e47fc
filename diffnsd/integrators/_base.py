"""The interface of an integrator."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._result import RESULTS
from .._types import Args, Local, Scalar, State
from ..complementarity import AbstractAdjoint, ImplicitAdjoint, Statistics
from ..model import Model
from ..systems import Kind

Carry = Any
"""What a method hands from step to step beside the state: a pytree of arrays of fixed shapes.

What a wrapper may do with it is declared by `AbstractIntegrator.memory`.
"""


_STEPPED_BY = {
    Kind.MECHANICAL: "is no first-order system E x' = f + r; use MoreauJean or BackwardEuler, or "
    "another method for its kind",
    Kind.STATE_SPACE: "has no positions and velocities, which this method steps; use EulerMoreau, "
    "ThetaGamma or ZeroOrderHold",
    Kind.FLOW: "has no velocities for a time-stepping scheme to solve for; use RKMK, CrouchGrossman "
    "or CommutatorFree",
}


class AbstractMemory(eqx.Module):
    """What a method remembers from step to step, and so what a wrapper may do with its steps.

    A wrapper that splits a step, repeats it, or continues from a state of its own asks for
    `restart_problem`.
    """

    @property
    def restart_problem(self) -> str | None:
        """Why a step cannot be split, repeated or begun from any state, with the remedy, or `None`."""
        return None


class NoMemory(AbstractMemory):
    """Nothing: a step depends on its state alone."""


class WarmStart(AbstractMemory):
    """Guesses that a solver starts from. They may be dropped or be of another step."""


class Multistep(AbstractMemory):
    """States before the last one: a step belongs to its trajectory, and to one length of steps."""

    @property
    def restart_problem(self) -> str | None:
        return (
            "continues from the steps before, so that its steps can neither be split nor repeated; "
            "use a one-step method, such as MoreauJean()"
        )


class Clocked(AbstractMemory):
    """The number of steps: each call of `step` is one tick of a clock."""

    @property
    def restart_problem(self) -> str | None:
        return (
            "counts its steps, so that they can neither be split nor repeated; use it outside, as "
            "in Sampled(Located(MoreauJean()), controller)"
        )


class StepInfo(eqx.Module):
    """What a step reports.

    **Arguments:** `impulses`: per interaction `(c, k)` [N s]; `residual`: relative natural-map
    residual; `iterations`; `margin`: relative distance to the nearest change of mode; `details`:
    what only this method has to report, arrays in any pytree, `None` for most; `violation`: of the
    laws, in the measure of power; `solved_by`: which of the integrator's `solver_names` solved the step,
    the last one that was needed, 0 the start; `located`: impacts and turns of friction whose time was
    found inside the step; `missed`: those that the step met but left without their time; `slow`:
    impacts left without it because they are hardly faster than rest; `merged`: contacts that struck
    together with another one, in an order that is not resolved;
    `impacts`: the times of impacts [s], of any fixed length, infinite where there was none.
    """

    impulses: tuple[Local, ...]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]
    margin: Float[Array, ""]
    details: Any = None
    violation: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    solved_by: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    located: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    missed: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    slow: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    merged: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    impacts: Float[Array, " i"] = eqx.field(default_factory=lambda: jnp.zeros(0))

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

    def then(self, later: "StepInfo") -> "StepInfo":
        """The report of two parts of a step: impulses and counts add up, the rest is the worst.

        Details are those of the later part that has any.
        """
        return StepInfo(
            impulses=jax.tree.map(jnp.add, self.impulses, later.impulses),
            residual=jnp.maximum(self.residual, later.residual),
            iterations=self.iterations + later.iterations,
            margin=jnp.minimum(self.margin, later.margin),
            details=self.details if later.details is None else later.details,
            violation=jnp.maximum(self.violation, later.violation),
            solved_by=jnp.maximum(self.solved_by, later.solved_by),
            located=self.located + later.located,
            missed=self.missed + later.missed,
            slow=self.slow + later.slow,
            merged=self.merged + later.merged,
            impacts=jnp.minimum(self.impacts, later.impacts),
        )

    def nothing(self) -> "StepInfo":
        """The report of a part of no length, in the shapes of this one."""
        zero, never = jax.tree.map(jnp.zeros_like, self), jnp.full_like(self.impacts, jnp.inf)
        none = jnp.full_like(self.margin, jnp.inf), never
        return eqx.tree_at(lambda i: (i.margin, i.impacts), zero, none)

    def shortened(self, part: Scalar) -> "StepInfo":
        """The report if only a part of the step, in [0, 1], is made: that part of the impulses."""
        impulses = jax.tree.map(lambda p: part * p, self.impulses)
        return eqx.tree_at(lambda i: i.impulses, self, impulses)


class AbstractIntegrator(eqx.Module):
    """A one-step method.

    A wrapper around one (`AbstractWrappedIntegrator`) may rely on what is declared here: `order`,
    `is_symplectic`, `point`, `prediction`, `keeps_impact_times`, `adjoint` and `memory`.
    """

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
    def prediction(self) -> float | None:
        """The fraction of a step over which closing of gaps is predicted from velocities.

        `None` for methods that find closed contacts in another way, or have none.
        """
        return None

    @property
    def keeps_impact_times(self) -> bool:
        """Whether derivatives through impacts have that of the time of the impact."""
        return False

    @property
    def reads_states(self) -> bool:
        """Whether it hands the state to functions of the user beside those of the model."""
        return False

    @property
    def adjoint(self) -> AbstractAdjoint:
        """How the solution of the laws is differentiated."""
        return ImplicitAdjoint()

    @property
    @abstractmethod
    def memory(self) -> AbstractMemory:
        """What is carried from step to step: `NoMemory()`, `WarmStart()`, `Multistep()`, `Clocked()`."""

    @property
    def solver_names(self) -> tuple[str, ...]:
        """What `solved_by` of a step counts: the names of the links of the contact solver."""
        solver = getattr(self, "solver", None)
        return ("start",) if solver is None else solver.names

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of systems that it steps: mechanical ones unless it says otherwise."""
        return (Kind.MECHANICAL,)

    def supports(self, model: Model) -> str | None:
        """Why the integrator cannot step the model, with the remedy, or `None`.

        A method that asks for more than the kind of the system asks for that first.
        """
        system = model.system
        if system.kind in self.kinds:
            return None
        return f"a {type(system).__name__} {_STEPPED_BY[system.kind]}"

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
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        """One step of the length `h` [s] from the time `t0` [s].

        The length is given, and not the time at the end, of which `t0` has taken digits.
        """


def check_fractions(**values: float) -> None:
    """Raises `ValueError` for a parameter of a scheme that is not in [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value}.")
