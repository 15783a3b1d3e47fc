"""The theta scheme of Moreau and Jean, and backward Euler as its fully implicit instance."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from ..._arguments import checked_arguments
from ..._result import RESULTS
from ..._types import Args, Local, Scalar, State
from ...complementarity import AbstractAdjoint, AbstractSolver, Auto, ImplicitAdjoint
from ...linear import ByStructure
from ...model import Model
from .._base import Carry, StepInfo, check_fractions
from .._step import Newton
from .._warm_start import Recent, no_memory, zero_impulses
from ._large_step import refusal
from ._points import AbstractPoint, AtStart, HalfExplicit
from ._theta_step import (
    AbstractStepScheme,
    Smooth,
    Step,
    rows,
    theta_rule,
    theta_step,
)


class AbstractThetaScheme(AbstractStepScheme):
    """Base class of the theta schemes for mechanisms, which carry only multipliers."""

    theta: eqx.AbstractVar[float]
    gamma: eqx.AbstractVar[float]
    newton: eqx.AbstractVar[Newton]
    contacts_at: eqx.AbstractVar[AbstractPoint]
    joints_at: eqx.AbstractVar[AbstractPoint]
    mass_at: eqx.AbstractVar[AbstractPoint | None]
    solver: eqx.AbstractVar[AbstractSolver]
    linear_solver: eqx.AbstractVar[lx.AbstractLinearSolver]
    adjoint: eqx.AbstractVar[AbstractAdjoint]

    def __check_init__(self):
        check_fractions(theta=self.theta, gamma=self.gamma)

    @property
    def order(self) -> int:
        return 2 if self.theta == 0.5 else 1

    @property
    def joints_are_first_order(self) -> bool:
        return not self.joints_at.is_second_order

    @property
    def curves_are_first_order(self) -> bool:
        return not self.contacts_at.is_second_order

    @property
    def prediction(self) -> float | None:
        return self.gamma

    @property
    def lists_contacts(self) -> bool:
        # Iterations need derivatives of the step, which steps of many bodies do not have.
        return self.newton.max_iterations == 1

    def linear_parts(self, model: Model, t0, h, state: State, args: Args):
        if self.theta == 0 or self.newton.max_iterations > 1:
            return None
        # What a reaction does to the velocity in a step is of the order of `h`, and not in the prediction.
        # With a matrix that is off by the order of `h` the error is of the order of `h²` in each step, and
        # of first order in the end, where the reaction lasts.
        joined = any(i.law.holds_gap for i in model.interactions)
        if self.order == 2 and (joined or self.contacts_at.is_second_order):
            return None
        return model.system.linear_step(t0, state, args, h * self.theta)

    def smooth(self, step: Step) -> Smooth:
        return theta_rule(step, self.mass_at)

    def supports(self, model: Model) -> str | None:
        if problem := super().supports(model):
            return problem
        if self.theta < 1 and any(i.law.needs_implicit_positions for i in model.interactions):
            return (
                "a gap-stabilised law needs positions that move with the end velocity; use "
                "MoreauJean(theta=1.0) or BackwardEuler()"
            )
        return None

    def check(self, model: Model, t0: float, dt: float, state: State, args: Args) -> str | None:
        return refusal(self, model) if model.system.is_large(t0, state, args) else None

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        del args
        return no_memory(model, t0, state)

    def reactions(self, carry: Carry) -> tuple[Recent, ...] | None:
        return carry if self.order == 2 else None

    def outputs(
        self, model: Model, t0: Scalar, h: Scalar, start: State, end: State
    ) -> tuple[Local, ...]:
        step = Step(self, model, t0, h, start, None, ())
        return tuple(step.output(i, end.v, end.v) for i in model.interactions)

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        end, info, result, memory = theta_step(self, model, t0, h, state, carry, args)
        pairs = zip(model.interactions, info.impulses, strict=True)
        impulses = tuple(p if i.relation.needs_positions else h * p for i, p in pairs)
        info = eqx.tree_at(lambda i: i.impulses, info, impulses)
        return end, info, jax.lax.stop_gradient(memory), result


class MoreauJean(AbstractThetaScheme):
    """The time-stepping scheme of Moreau and Jean.

        M (v1 − v0) = h theta F(t1, q1, v1) + h (1 − theta) F(t0, q0, v0) + H^T P
        q1 = q0 exp(h (theta v1 + (1 − theta) v0)),      u1 = H v1 + ∂g/∂t
        K* ∋ u1 + bias(u1) ⟂ P ∈ K   for contacts with  g0 + gamma h u0 <= 0

    `P` are impulses [N s]. `H(t1, q)` is evaluated at `contacts_at`, `M(q)` at `mass_at`; `u0` and
    the gaps are those at the start. Joints have `H` and `u1` at `joints_at`. First order with impacts, and
    with contacts that last on curved surfaces, unless `contacts_at` is `HalfExplicit()` too. Without
    either, second order for `theta = 1/2`, even with the default of one Newton iteration, and first order
    otherwise. Values converge through impacts, but their derivatives do not: the index of the step with
    the impact is an integer.

    **Arguments:**

    - `theta`: implicitness in [0, 1]. `theta = 1` moves positions with the end velocity.
    - `gamma`: fraction of the step over which closing is predicted, in [0, 1].
    - `newton`: linearisations of the smooth equations. `solver`: of the laws.
    - `contacts_at`: `AtStart()`, `AtPrediction()`, `HalfExplicit()`, or `AtIterate()`, implicit.
      `HalfExplicit()` for contacts that last on curved surfaces: under `Located`, after a point slid off
      a disc, derivatives are off by 8e-4 at h = 1e-3 and 8e-5 at 1e-4, at `AtStart()` by 4 % and 0.7 %.
    - `joints_at`: likewise, of joints. `HalfExplicit()` has second order, the other points first.
    - `mass_at`: likewise; `None` is the theta point, `AtIterate(theta)`.
    - `adjoint`: how the solution of the laws is differentiated, for example `SmoothedAdjoint(1e-3)`.
    - `linear_solver`: of the equations of large systems, one of `diffnsd.linear` or lineax; by default
      the one that fits the structure of their matrix.

    Reference: J. J. Moreau (1988), doi:10.1007/978-3-7091-2624-0_1; M. Jean (1999),
    doi:10.1016/S0045-7825(98)00383-1.
    """

    theta: float = eqx.field(default=0.5, static=True)
    gamma: float = eqx.field(default=0.5, static=True)
    newton: Newton = Newton(max_iterations=1)
    contacts_at: AbstractPoint = AtStart()
    joints_at: AbstractPoint = HalfExplicit()
    mass_at: AbstractPoint | None = None
    solver: AbstractSolver = Auto()
    adjoint: AbstractAdjoint = ImplicitAdjoint()
    linear_solver: lx.AbstractLinearSolver = ByStructure()


class BackwardEuler(AbstractThetaScheme):
    """Backward Euler: `MoreauJean(theta=1)` with its equations solved to a tolerance.

        M (v1 − v0) = h F(t1, q1, v1) + H^T P,      q1 = q0 exp(h v1)

    Order one, dissipative, unconditionally stable for linear systems. Each Newton iteration
    factorises `S = M − h ∂F/∂v − h² ∂F/∂q`; `step_matrices` returns it, with the compliance
    `H S^-1 H^T` of the contacts.

    **Arguments:** as in `MoreauJean`, without `theta`, with `joints_at=AtStart()`;
    `Newton(max_iterations=1)` is the linearised method.

    Reference: D. Baraff, A. Witkin, Large steps in cloth simulation (1998),
    doi:10.1145/280814.280821.
    """

    gamma: float = eqx.field(default=0.5, static=True)
    newton: Newton = Newton(max_iterations=20)
    contacts_at: AbstractPoint = AtStart()
    joints_at: AbstractPoint = AtStart()
    mass_at: AbstractPoint | None = None
    solver: AbstractSolver = Auto()
    adjoint: AbstractAdjoint = ImplicitAdjoint()
    linear_solver: lx.AbstractLinearSolver = ByStructure()

    def __repr__(self) -> str:
        """What is not as by default, and the linear solver, which the system chooses by default."""
        values = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
        told = (
            f"{f.name}={value!r}"
            for f, value in values
            if f.name == "linear_solver" or eqx.tree_equal(value, f.default) is not True
        )
        return f"{type(self).__name__}({', '.join(told)})"

    @property
    def theta(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Implicitness: 1."""
        return 1.0


class StepMatrices(eqx.Module):
    """The linearised step of a theta scheme, without and with its contacts.

    **Arguments:** `system`: `S = M − h theta ∂F/∂v − h² theta² ∂F/∂q`, `(n, n)`; `outputs`: `H`,
    `(m, n)`, the rows that take part in the laws, contact by contact, normal first; `compliance`:
    `H S^-1 H^T`, `(m, m)`, from impulses to velocities.
    """

    system: Array
    outputs: Array
    compliance: Array


@checked_arguments
def step_matrices(
    scheme: AbstractThetaScheme,
    model: Model,
    t0: Scalar,
    h: Scalar,
    state: State,
    args: Args = None,
) -> StepMatrices:
    """The matrices of the first Newton iteration of a step from a state.

    **Arguments:** `scheme`: `MoreauJean` or `BackwardEuler`; the others as in `simulate`. Multipliers
    are zero.

    **Returns:** `StepMatrices`.

    **Raises:** `ValueError` if the scheme cannot step the model, or contacts are compliant.
    """
    problem = scheme.supports(model) or model.check(state) or model.compliance_problem
    if problem is not None:
        raise ValueError(f"no step matrices: {problem}.")
    zero = tuple(jnp.swapaxes(z, 0, 1) for z in zero_impulses(model, t0, state))
    linear = scheme.linear_parts(model, t0, h, state, args)
    step = Step(scheme, model, t0, h, state, args, zero, linear=linear)
    problem = step.equations()(state.v, zero).dense()
    outputs, inputs = rows(problem)
    compliances = outputs @ jnp.linalg.solve(problem.matrix, inputs.T)
    return StepMatrices(problem.matrix, outputs, compliances)
