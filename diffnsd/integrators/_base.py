"""The interface of an integrator."""

import dataclasses
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arguments import AbstractChecked
from .._result import RESULTS
from .._types import Args, Local, Scalar, State
from ..complementarity import AbstractAdjoint, ImplicitAdjoint, Statistics
from ..model import Model
from ..systems import Kind
from ._warm_start import Recent

Carry = Any
"""What a method carries from step to step besides the state: a pytree of arrays of fixed shapes.

`AbstractIntegrator.memory` declares what a wrapper may do with it.
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
    """What a method carries from step to step, which decides what a wrapper may do with its steps.

    A wrapper that splits a step, repeats it, or continues from a state of its own checks
    `restart_problem`.
    """

    @property
    def restart_problem(self) -> str | None:
        """Why a step cannot be split, repeated or started from any state, with the remedy, or `None`."""
        return None


class NoMemory(AbstractMemory):
    """Nothing is carried: a step depends only on the state it starts from."""


class WarmStart(AbstractMemory):
    """Initial guesses for the solver. They may be dropped, or come from another step."""


class Multistep(AbstractMemory):
    """Earlier states: a step is tied to its trajectory and to a constant step length."""

    @property
    def restart_problem(self) -> str | None:
        return (
            "continues from the steps before, so that its steps can neither be split nor repeated; "
            "use a one-step method, such as MoreauJean()"
        )


class Clocked(AbstractMemory):
    """A step counter: each call of `step` is one tick of a clock."""

    @property
    def restart_problem(self) -> str | None:
        return (
            "counts its steps, so that they can neither be split nor repeated; use it outside, as "
            "in Sampled(Located(MoreauJean()), controller)"
        )


NEAR_EDGE = 1e-6
"""Steps whose `margin` is below this count as on the edge between two modes."""


class StepInfo(eqx.Module):
    """The report of a step.

    **Arguments:** `impulses`: per interaction `(c, k)` [N s]; `residual`: relative natural-map
    residual; `iterations`; `margin`: relative distance to the nearest change of mode; `details`:
    results specific to the method, any pytree of arrays, `None` for most; `violation`: of the laws,
    measured as power; `solved_by`: index into the integrator's `solver_names` of the last solver that
    was needed, 0 for the start; `located`: number of impacts and slip reversals whose time was found
    inside the step; `missed`: number of those that occurred but were not located; `slow`: number of
    impacts not located because they are hardly faster than resting contact; `merged`: number of contacts
    that struck together with another one, their order unresolved; `drifted`: 1 if the values and the
    motion that the derivatives belong to are far apart (`Corrected`); `kinks`: contacts through which only
    first derivatives are true, see `Located`; `curved`: contacts that lasted on a curved surface under a
    method whose reactions are first order there; `struck`, `turned`: impacts and turns of friction of a
    method that does not differentiate their times, counted by `simulate`; `wedged`: contacts that slide where
    a step may have no or several solutions; `impacts`: times of impacts [s], an array of any fixed length,
    infinite where there was none; `dropped`, `crept`: for wrappers around a step, the speeds [m/s] of the
    fastest rebound that `Located` took for none and of the fastest contact whose impact it left to its inner
    method; `crowded`: the first contact for which there was no room, its interaction and its place there,
    −1 each if there was room for all.
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
    drifted: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    kinks: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    curved: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    struck: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    turned: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    wedged: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), jnp.int32))
    impacts: Float[Array, " i"] = eqx.field(default_factory=lambda: jnp.zeros(0))
    dropped: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    crept: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    crowded: Int[Array, "2"] = eqx.field(default_factory=lambda: jnp.full(2, -1, jnp.int32))

    @staticmethod
    def of(
        impulses: tuple[Local, ...],
        stats: Statistics,
        details: Any = None,
        crowded: Int[Array, "2"] | None = None,
    ) -> "StepInfo":
        """The report of a step with the statistics of one solve."""
        info = StepInfo(
            impulses,
            stats.residual,
            stats.iterations,
            stats.margin,
            details,
            stats.violation,
            stats.solved_by,
        )
        rest = jnp.zeros_like(stats.residual)
        info = dataclasses.replace(info, wedged=stats.wedged, dropped=rest, crept=rest)
        return info if crowded is None else eqx.tree_at(lambda i: i.crowded, info, crowded)

    def seeing(self, **contacts: Bool[Array, " c"]) -> "StepInfo":
        """The report with counts increased by the numbers of contacts of masks, named as the counts are."""
        more = {k: getattr(self, k) + jnp.sum(x, dtype=jnp.int32) for k, x in contacts.items()}
        return dataclasses.replace(self, **more)

    def then(self, later: "StepInfo") -> "StepInfo":
        """The report of two consecutive parts of a step: impulses and counts add up.

        Of other values the worse one is kept; details are those of the later part that has any.
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
            drifted=jnp.maximum(self.drifted, later.drifted),
            kinks=self.kinks + later.kinks,
            curved=self.curved + later.curved,
            struck=self.struck + later.struck,
            turned=self.turned + later.turned,
            wedged=self.wedged + later.wedged,
            impacts=jnp.minimum(self.impacts, later.impacts),
            dropped=jnp.maximum(self.dropped, later.dropped),
            crept=jnp.maximum(self.crept, later.crept),
            crowded=jnp.where(self.crowded < 0, later.crowded, self.crowded),
        )

    def nothing(self) -> "StepInfo":
        """The report of a part of zero length, with the shapes of this one."""
        zero, never = jax.tree.map(jnp.zeros_like, self), jnp.full_like(self.impacts, jnp.inf)
        none = jnp.full_like(self.margin, jnp.inf), never, jnp.full_like(self.crowded, -1)
        return eqx.tree_at(lambda i: (i.margin, i.impacts, i.crowded), zero, none)

    def shortened(self, part: Scalar) -> "StepInfo":
        """The report if only the fraction `part` of the step is taken: impulses are scaled by it."""
        impulses = jax.tree.map(lambda p: part * p, self.impulses)
        return eqx.tree_at(lambda i: i.impulses, self, impulses)


def first_times(kept: Array, new: Array) -> Array:
    """Appends the impact times of a step to those kept so far, as far as there is space."""
    if not kept.size or not new.size:
        return kept
    happened = jnp.isfinite(new)
    count = jnp.sum(jnp.isfinite(kept), dtype=jnp.int32)
    place = count + jnp.cumsum(happened, dtype=jnp.int32) - 1
    index = np.arange(kept.size, dtype=np.int32)
    here = happened[None, :] & (place[None, :] == index[:, None])
    placed = jnp.sum(jnp.where(here, new[None, :], 0), axis=1)
    return jnp.where(jnp.any(here, axis=1), placed, kept)


class AbstractIntegrator(AbstractChecked):
    """A one-step method.

    A wrapper (`AbstractWrappedIntegrator`) may rely on the properties declared here: `order`,
    `is_symplectic`, `point`, `prediction`, `keeps_impact_times`, `adjoint` and `memory`.

    **Raises:** `TypeError` if a solver of contacts or an inner method is something else.
    """

    @property
    @abstractmethod
    def order(self) -> int:
        """Order of convergence between events."""

    @property
    def joints_are_first_order(self) -> bool:
        """Whether the reactions of joints are only first order, so that models with joints are too."""
        return False

    @property
    def curves_are_first_order(self) -> bool:
        """Whether reactions of contacts that last on curved surfaces are only first order."""
        return False

    @property
    @abstractmethod
    def is_symplectic(self) -> bool:
        """Whether a step without contact is a symplectic map."""

    @property
    def point(self) -> float:
        """The fraction of the step at which laws hold, in [0, 1]; its end by default."""
        return 1.0

    @property
    def prediction(self) -> float | None:
        """The fraction of a step over which gap closing is predicted from velocities.

        `None` for methods that find closed contacts in another way, or have none.
        """
        return None

    @property
    def keeps_impact_times(self) -> bool:
        """Whether derivatives through impacts include that of the impact time."""
        return False

    @property
    def estimates_errors(self) -> bool:
        """Whether `estimated` knows the error of a step."""
        return False

    def estimated(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[tuple[State, "StepInfo", Carry, RESULTS], Scalar]:
        """A step, and an estimate of its error; infinite of methods that have none of their own."""
        return self.step(model, t0, h, state, carry, args), jnp.full_like(h, jnp.inf)

    @property
    def off_centre(self) -> tuple[float, float] | None:
        """`theta − 1/2` and `gamma − 1/2` of a method for first-order systems that has them, else `None`."""
        return None

    def second_derivative_problem(self, model: Model) -> str | None:
        """Why second derivatives are not true for a model, with the remedy, or `None`.

        Only of methods that differentiate the times of impacts. `simulate` raises it as an error where a
        second derivative is taken.
        """
        del model
        return None

    def reactions(self, carry: Carry) -> tuple[Recent, ...] | None:
        """The impulses of the last two steps, per interaction; `None` of methods that do not carry them, or
        whose steps are of first order.
        """
        del carry
        return None

    def outputs(
        self, model: Model, t0: Scalar, h: Scalar, start: State, end: State
    ) -> tuple[Local, ...]:
        """Local velocities `(c, k)` [m/s] for which the laws of a step hold, per interaction.

        Default: those at its end. On a curved surface these differ from them by the error of the step.

        **Arguments:** `t0`, `start`: time and state at the start; `h`: length of the step; `end`: the state
        at its end.
        """
        group = model.system.group
        del start
        return tuple(
            i.on(model.system).output(group, t0 + h, end, None) for i in model.interactions
        )

    def followed(self, model: Model, state: State, carry: Carry) -> State:
        """The state of the motion that the derivatives belong to: the state itself, but for `Corrected`."""
        del model, carry
        return state

    @property
    def lists_contacts(self) -> bool:
        """Whether it steps relations that make a list of their contacts in every step."""
        return False

    @property
    def reads_states(self) -> bool:
        """Whether it passes the state to user functions other than those of the model."""
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
        """Names of the links of the contact solver, indexed by `solved_by` of a step."""
        solver = getattr(self, "solver", None)
        return ("start",) if solver is None else solver.names

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of systems that it can step; mechanical ones by default."""
        return (Kind.MECHANICAL,)

    def supports(self, model: Model) -> str | None:
        """Why the integrator cannot step the model, with the remedy, or `None`.

        Overrides with further requirements check the kind of the system first.
        """
        system = model.system
        if system.kind in self.kinds:
            return None
        return f"a {type(system).__name__} {_STEPPED_BY[system.kind]}"

    def check(self, model: Model, t0: float, dt: float, state: State, args: Args) -> str | None:
        """Why this method cannot step a model from its initial state, or `None`.

        Called once, before compilation, with concrete values.
        """
        del model, t0, dt, state, args
        return None

    @abstractmethod
    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        """The initial `Carry`, usually the warm start."""

    @abstractmethod
    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        """One step of length `h` [s] from time `t0` [s].

        The length is given rather than the end time, since `t1 − t0` would lose digits.
        """


def check_fractions(**values: float) -> None:
    """Raises `ValueError` if a parameter of a scheme is not in [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value}.")
