"""Methods that wrap another method."""

import equinox as eqx
import jax.numpy as jnp

from .._types import Args, Local, Scalar, State, Vector
from ..complementarity import AbstractAdjoint
from ..groups import AbstractGroup
from ..model import Model
from ..systems import Kind
from ._base import AbstractIntegrator, AbstractMemory, Carry
from ._warm_start import Recent


class AbstractWrappedIntegrator(AbstractIntegrator):
    """A method that wraps another one, `inner`: every member is that of `inner` unless overridden.

    A wrapper implements `step` and overrides the members that it changes.
    """

    inner: eqx.AbstractVar[AbstractIntegrator]

    @property
    def order(self) -> int:
        return self.inner.order

    @property
    def joints_are_first_order(self) -> bool:
        return self.inner.joints_are_first_order

    @property
    def curves_are_first_order(self) -> bool:
        return self.inner.curves_are_first_order

    @property
    def is_symplectic(self) -> bool:
        return self.inner.is_symplectic

    @property
    def point(self) -> float:
        return self.inner.point

    @property
    def prediction(self) -> float | None:
        return self.inner.prediction

    @property
    def keeps_impact_times(self) -> bool:
        return self.inner.keeps_impact_times

    @property
    def off_centre(self) -> tuple[float, float] | None:
        return self.inner.off_centre

    def second_derivative_problem(self, model: Model) -> str | None:
        return self.inner.second_derivative_problem(model)

    def reactions(self, carry: Carry) -> tuple[Recent, ...] | None:
        return self.inner.reactions(carry)

    def outputs(
        self, model: Model, t0: Scalar, h: Scalar, start: State, end: State
    ) -> tuple[Local, ...]:
        return self.inner.outputs(model, t0, h, start, end)

    def followed(self, model: Model, state: State, carry: Carry) -> State:
        return self.inner.followed(model, state, carry)

    @property
    def lists_contacts(self) -> bool:
        return self.inner.lists_contacts

    @property
    def reads_states(self) -> bool:
        return self.inner.reads_states

    @property
    def adjoint(self) -> AbstractAdjoint:
        return self.inner.adjoint

    @property
    def solver_names(self) -> tuple[str, ...]:
        return self.inner.solver_names

    @property
    def memory(self) -> AbstractMemory:
        return self.inner.memory

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self.inner.kinds

    def supports(self, model: Model) -> str | None:
        return self.inner.supports(model)

    def check(self, model: Model, t0: float, dt: float, state: State, args: Args) -> str | None:
        return self.inner.check(model, t0, dt, state, args)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        return self.inner.init(model, t0, state, args)


def restart_problem(wrapper: AbstractIntegrator, inner: AbstractIntegrator) -> str | None:
    """Why a wrapper cannot split and repeat the steps of `inner`, or `None`."""
    problem = inner.memory.restart_problem
    if problem is None:
        return None
    return (
        f"{type(wrapper).__name__} splits and repeats the steps of its inner method, but "
        f"{type(inner).__name__} {problem}"
    )


LARGEST = 500
"""Most unknowns of a system without matrices of which a mass matrix is formed for impacts."""


def is_too_large(model: Model, t0, state: State, args: Args) -> bool:
    """Whether impacts of a system are not solved at zero duration, for want of its mass matrix."""
    if state.v.shape[0] <= LARGEST or not model.interactions:
        return False
    return model.system.is_large(t0, state, args)


def size_problem(wrapper: AbstractIntegrator, model: Model, t0, state: State, args) -> str | None:
    """Why a system is too large for impacts at zero duration, with the remedy, or `None`."""
    if not is_too_large(model, t0, state, args):
        return None
    n, name = state.v.shape[0], type(wrapper).__name__
    return (
        f"{name} solves impacts with the mass matrix as an array, which a {type(model.system).__name__} of "
        f"{n} unknowns (more than {LARGEST}) does not form; use its inner method without {name}: values "
        "converge, derivatives through impacts leave out the impact times"
    )


def difference(group: AbstractGroup, a: State, b: State) -> Vector:
    """The shift from `a` to `b`: displacement and velocity, `(2 n,)`; first-order systems have only `v`."""
    if a.q is None:
        return b.v - a.v
    turn = group.log(group.compose(group.inverse(a.q), b.q))
    return jnp.concatenate([turn, b.v - a.v])
