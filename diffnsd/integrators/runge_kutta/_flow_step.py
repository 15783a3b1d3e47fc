"""Shared parts of the Runge-Kutta methods on groups: stages, validity of a step, and its report."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..._jax import where
from ..._result import RESULTS, first_error
from ..._types import Args, Scalar, State, Vector
from ...groups import AbstractRetraction
from ...model import Model
from ...systems import Kind
from .._base import AbstractIntegrator, AbstractMemory, Carry, NoMemory, StepInfo


def combination(weights, vectors, h: Scalar) -> Any:
    """`h` times the weighted sum of vectors, zero weights skipped; `None` if no term is left."""
    total = None
    for weight, vector in zip(weights, vectors, strict=False):
        if weight != 0.0:
            term = (h * weight) * vector
            total = term if total is None else total + term
    return total


class AbstractFlowMethod(AbstractIntegrator):
    """Base class of the Runge-Kutta methods on groups: no impulses, and no memory."""

    is_symplectic: ClassVar[bool] = False
    memory: ClassVar[AbstractMemory] = NoMemory()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(Kind)

    def supports(self, model: Model) -> str | None:
        if model.interactions:
            return (
                "a Runge-Kutta step on a group has no impulses, and the model has interactions; use "
                "MoreauJean() or BackwardEuler(), or a Model without them"
            )
        return super().supports(model)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        return ()


def chart_holds(retraction: AbstractRetraction, model: Model, h: Scalar, rate: Vector):
    """Whether the motion at the present rate stays in the chart for a step of length `h`."""
    return retraction.inside(model.system.flow_group, h * rate)


def finish(
    state0: State, state1: State, inside: Bool[Array, ""], converged: Any = True, iterations=None
) -> tuple[State, StepInfo, tuple, RESULTS]:
    """The outcome of a step. Outside the chart the old state is kept, which avoids NaN."""
    state = where(inside, state1, state0)

    def unless(condition, failure):
        return RESULTS.where(condition, RESULTS.successful, failure)

    finite = jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(state)])
    result = unless(inside, RESULTS.chart_exceeded)
    result = first_error(result, unless(jnp.all(finite), RESULTS.nonfinite))
    failed = unless(jnp.asarray(converged), RESULTS.nonlinear_not_converged)
    dtype = state0.v.dtype
    count = jnp.zeros((), jnp.int32) if iterations is None else iterations
    info = StepInfo((), jnp.zeros((), dtype), count, jnp.full((), jnp.inf, dtype))
    return state, info, (), first_error(result, failed)


class Motion(eqx.Module):
    """The motion of a model around a state, in the coordinates of a retraction.

    `rate(t, x)` is the field at `tau(x) . state0`, pulled back by the inverse tangent.
    """

    model: Model
    retraction: AbstractRetraction
    state: State
    args: object

    def at(self, x: Vector) -> State:
        """`tau(x) . state0`."""
        system = self.model.system
        return system.flow_apply(self.retraction.map(system.flow_group, x), self.state)

    def field(self, t: Scalar, state: State) -> Vector:
        """The velocity at a state, in the algebra."""
        return self.model.system.flow_rate(t, state, self.args)

    def rate(self, t: Scalar, x: Vector) -> Vector:
        """`dtau_x^-1 A(t, tau(x) . state0)`."""
        group = self.model.system.flow_group
        return self.retraction.tangent_inverse(group, x, self.field(t, self.at(x)))
