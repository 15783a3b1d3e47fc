"""Schemes for first-order systems `E x' = f(t, x) + r`."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp

from ..._numerics import hold, lu_solve, matvec
from ..._result import RESULTS
from ..._types import Args, Scalar, State
from ...complementarity import AbstractAdjoint, AbstractSolver, ImplicitAdjoint
from ...model import Model
from ...systems import Kind
from .._base import StepInfo, check_fractions
from .._step import PRECISE, Newton
from .._warm_start import Recent, zero_impulses
from ._first_order_step import FirstOrderDetails, Memory, on_their_sets, total_input, unreached
from ._theta_step import AbstractStepScheme, Smooth, Step, theta_rule, theta_step


class AbstractFirstOrderScheme(AbstractStepScheme):
    """Base class of the schemes for first-order systems.

    A scheme defines where in the step relations hold (`point`, by default its end) and the weight of
    the new input (`weight`, by default 1).
    """

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (Kind.STATE_SPACE,)

    def check(self, model: Model, t0: float, dt: float, state: State, args: Args) -> str | None:
        return unreached(self, model, t0, dt, state, args)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Memory:
        del args
        return Memory(zero_impulses(model, t0, state), None)

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Memory, args: Args
    ) -> tuple[State, StepInfo, Memory, RESULTS]:
        old, w, p = carry.multipliers, self.weight, self.point
        warm = tuple(Recent(z, z) for z in old)
        end, info, result, _ = theta_step(self, model, t0, h, state, warm, args, carry.input)
        lam = info.impulses
        t = t0 + p * h
        at = end if p == 1 else State(None, (1 - p) * state.v + p * end.v)
        pairs = zip(model.interactions, lam, strict=True)
        details = FirstOrderDetails(lam, tuple(i.output(model.system, t, at, z) for i, z in pairs))
        pairs = zip(lam, old, strict=True)
        impulses = tuple(h * (w * after + (1 - w) * before) for after, before in pairs)
        r = total_input(model, t0 + h, end, lam) if w < 1 else None
        memory = Memory(on_their_sets(model, details), r)
        return end, replace(info, impulses=impulses, details=details), memory, result


class AbstractFirstOrderTheta(AbstractFirstOrderScheme):
    """Base class of the theta schemes for first-order systems."""

    theta: eqx.AbstractVar[float]
    gamma: eqx.AbstractVar[float]

    def __check_init__(self):
        check_fractions(theta=self.theta, gamma=self.gamma)

    @property
    def order(self) -> int:
        return 2 if self.theta == self.gamma == 0.5 else 1

    @property
    def off_centre(self) -> tuple[float, float]:
        return self.theta - 0.5, self.gamma - 0.5

    def smooth(self, step: Step) -> Smooth:
        return theta_rule(step)


class EulerMoreau(AbstractFirstOrderTheta):
    """The theta scheme for first-order systems, with its law at the end of the step.

        E (x1 − x0) = h theta f(t1, x1) + h (1 − theta) f(t0, x0) + h gamma r1 + h (1 − gamma) r0
        y1 = h(t1, x1, lam1),     r1 = g(t1, x1, lam1),     K* ∋ y1 ⟂ lam1 ∈ K

    `theta = gamma = 1` is backward Euler, `theta = gamma = 1/2` the trapezoidal rule. With
    `gamma = 1`, the default, multipliers are fully implicit whatever `theta` is, and no input is
    carried over. With `gamma < 1` the input `r0` of the previous step enters too; the first one is
    that of the multipliers that hold just after `t0`. First order where multipliers act, unless
    `theta = gamma = 1/2`.

    Derivatives converge to those of the motion where multipliers act directly on their own outputs,
    through `D` or `C B` (relative degree 0 or 1): diodes, dry friction, sliding modes. A relay of
    higher degree, or one whose output is driven across its threshold by others, switches at a step,
    and the derivative of the switching time is lost, as `MoreauJean` loses that of impact times: use
    `Located(EulerMoreau())` or `Corrected(EulerMoreau())`.

    `Solution.details` holds `FirstOrderDetails`: multipliers and outputs.

    **Arguments:**

    - `theta`: implicitness of `f`, in [0, 1]. `gamma`: that of the input `r`, in [0, 1].
    - `newton`: linearisations of `f`, `h` and `g`; affine equations always take one.
    - `solver`: of the laws. `adjoint`: how their solution is differentiated.

    **Raises:** `ValueError` if `theta` or `gamma` are not in [0, 1]; in a simulation, before
    compilation, if the system is not of first order, or if an output is reached by no multiplier and
    its multiplier reaches no output (a zero row and column of the one-step matrix).

    Reference: V. Acary, O. Bonnefon, B. Brogliato, Nonsmooth modeling and simulation for switched
    circuits (2011), doi:10.1007/978-90-481-9681-4.
    """

    theta: float = eqx.field(default=0.5, static=True)
    gamma: float = eqx.field(default=1.0, static=True)
    newton: Newton = Newton(max_iterations=20)
    solver: AbstractSolver = PRECISE
    adjoint: AbstractAdjoint = ImplicitAdjoint()

    @property
    def weight(self) -> float:
        """Weight of the new input: `gamma`."""
        return self.gamma

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Memory:
        nothing = super().init(model, t0, state, args)
        if self.weight == 1:
            return nothing
        # The multipliers just after t0: those of an implicit step that is too short to move x.
        tiny = float(jnp.finfo(state.v.dtype).eps) ** 0.5
        implicit = EulerMoreau(1.0, 1.0, self.newton, self.solver, self.adjoint)
        tiny = jnp.asarray(tiny, state.v.dtype)
        found = implicit.step(model, t0, tiny, state, nothing, args)[2].multipliers
        return Memory(found, total_input(model, t0, state, found))


class ThetaGamma(AbstractFirstOrderTheta):
    """The full theta-gamma scheme for first-order systems, with its law inside the step.

        E (x1 − x0) = h theta f(t1, x1) + h (1 − theta) f(t0, x0) + h g(t_g, x_g, lam)
        y = h(t_g, x_g, lam),     K* ∋ y ⟂ lam ∈ K,     x_g = (1 − gamma) x0 + gamma x1

    The multipliers belong to the time `t_g = t0 + gamma h`; earlier ones do not enter. With
    `theta = gamma = 1/2` the energy balance of a passive linear circuit is exact. `Solution.details`
    is as for `EulerMoreau`; multipliers and outputs are those at `t_g`.

    Derivatives are as for `EulerMoreau` only if `gamma > 1/2`, or where multipliers act through `D`.
    With `gamma = 1/2` an output that is held at zero changes its sign from step to step, and so does
    its derivative, which stays as large as when holding began, however short the steps (a sliding
    relay, a current blocked by a diode).

    **Arguments:** `theta`; `gamma`: in [0, 1]; the others and the errors raised as in `EulerMoreau`.

    Reference: V. Acary, O. Bonnefon, B. Brogliato, Nonsmooth modeling and simulation for switched
    circuits (2011), doi:10.1007/978-90-481-9681-4.
    """

    theta: float = eqx.field(default=0.5, static=True)
    gamma: float = eqx.field(default=0.5, static=True)
    newton: Newton = Newton(max_iterations=20)
    solver: AbstractSolver = PRECISE
    adjoint: AbstractAdjoint = ImplicitAdjoint()

    @property
    def point(self) -> float:
        """Where in the step relations hold: `gamma`."""
        return self.gamma


class ZeroOrderHold(AbstractFirstOrderScheme):
    """Exact steps of a linear system whose inputs are held over a step.

        x1 = x0 + Phi (f(t1, x0) + r1),     Phi = ∫_0^h exp(s A) ds E^-1,     A = E^-1 ∂f/∂x
        y1 = h(t1, x1, lam1),     r1 = g(t1, x1, lam1),     K* ∋ y1 ⟂ lam1 ∈ K

    For `f = A x + b(t)` this is `exp(h A) x0 + Phi (b(t1) + r1)`: exact for terms that are constant
    over the step; time-dependent terms are taken at its end. For other fields it is the exponential
    Euler method, with `A` at the start. Intended for plants under sampled control.

    **Arguments:** `newton`: linearisations of `h` and `g`; the others and the errors raised as in
    `EulerMoreau`.

    Reference: M. Hochbruck, A. Ostermann, Exponential integrators (2010),
    doi:10.1017/S0962492910000048.
    """

    newton: Newton = Newton(max_iterations=20)
    solver: AbstractSolver = PRECISE
    adjoint: AbstractAdjoint = ImplicitAdjoint()

    @property
    def order(self) -> int:
        return 1

    def smooth(self, step: Step) -> Smooth:
        """The exact flow of the linear part."""
        system, x0, t1 = step.model.system, step.state.v, step.t0 + step.h

        def rate(x):
            return system.flow_rate(t1, State(None, x), step.args)

        held = hold(jax.jacfwd(rate)(x0), step.h)
        moved = x0 + matvec(held, rate(x0))

        def gain(r):
            return matvec(held, lu_solve(system.mass(t1, None).astype(r.dtype), r))

        return Smooth(lambda x: x - moved, gain)
