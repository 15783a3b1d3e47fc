"""Runge-Kutta-Munthe-Kaas methods."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..._jax import on_components, without_derivative
from ..._numerics import implicit_root, lu_solve, max_abs
from ..._result import RESULTS
from ..._types import Args, Scalar, State, Vector
from ...groups import AbstractRetraction, Exponential
from ...model import Model
from .._base import Carry, StepInfo
from .._step import Newton
from ._flow_step import AbstractFlowMethod, Motion, chart_holds, combination, finish
from ._tableau import ButcherTableau


class RKMK(AbstractFlowMethod):
    """A Runge-Kutta method in the coordinates `y = tau(x) . y0` of a group around each step's start.

        x_i = h sum_j a_ij k_j,   k_i = dtau_{x_i}^-1 A(t0 + c_i h, tau(x_i) . y0)
        y1 = tau(h sum_i b_i k_i) . y0

    Points stay on their space, and momenta on their orbit, to round-off; the order is that of the
    tableau. For `LieFlow`s, and for second-order systems without contacts, which move by the group
    times R^n. Energy is conserved no better than by the Runge-Kutta method itself, and a symplectic
    tableau does not make the method symplectic.

    **Arguments:**

    - `tableau`: a `ButcherTableau`, explicit or implicit, or an explicit solver of diffrax, as in
      `RKMK(diffrax.Dopri8())`. Default: the classical method of order 4.
    - `retraction`: `Exponential()`, `Cayley()` or `QuaternionVector()`.
    - `newton`: how the stages of an implicit tableau are solved.

    Steps that rotate by about pi or more leave the chart and end with `RESULTS.chart_exceeded`.

    Reference: H. Munthe-Kaas, High order Runge-Kutta methods on manifolds (1999),
    doi:10.1016/S0168-9274(98)00030-0; A. Iserles, H. Munthe-Kaas, S. Norsett, A. Zanna (2000),
    doi:10.1017/S0962492900002154.
    """

    tableau: ButcherTableau
    retraction: AbstractRetraction
    newton: Newton

    def __init__(
        self,
        tableau=None,
        retraction: AbstractRetraction | None = None,
        newton: Newton | None = None,
    ):
        if tableau is None:
            tableau = ButcherTableau.rk4()
        if not isinstance(tableau, ButcherTableau):
            tableau = ButcherTableau.from_diffrax(tableau)
        self.tableau = tableau
        self.retraction = Exponential() if retraction is None else retraction
        self.newton = Newton(max_iterations=20, tolerance=1e-13) if newton is None else newton

    @property
    def order(self) -> int:
        return self.tableau.order

    def supports(self, model: Model) -> str | None:
        return super().supports(model) or self.retraction.problem(model.system.flow_group)

    @property
    def estimates_errors(self) -> bool:
        return self.tableau.is_explicit and self.tableau.b_error is not None

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        return self.estimated(model, t0, h, state, carry, args)[0]

    def estimated(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[tuple[State, StepInfo, Carry, RESULTS], Scalar]:
        """A step, and the estimate of its error by the embedded pair of the tableau; 0 if it has none."""
        found = self._estimated_state(model, t0, h, state, args)
        state1, error, inside, converged, count = found
        return finish(state, state1, inside, converged, count), error

    def _estimated_state(self, model: Model, t0: Scalar, h: Scalar, state: State, args: Args):
        """A step with its error estimate.

        **Returns:** the new state; the estimate `h sum_i (b_i - b*_i) k_i` of the embedded method in
        the algebra, relative to the motion of the step (0 if there is none); whether the step
        stays in the chart; whether the stages of an implicit tableau were solved, and in how many iterations.
        """
        if self.tableau.is_explicit:

            def program(stage, t0, h, state):
                return self._explicit(stage, model, t0, h, state, args)

            state1, error, inside = on_components(program)(t0, h, state)
            return state1, error, inside, True, None
        return self._implicit(model, t0, h, state, args)

    def _explicit(self, stage, model, t0, h, state, args):
        tableau = self.tableau

        def rate(t, x, state):
            return Motion(model, self.retraction, state, args).rate(t, x)

        def end(h, x, state):
            return Motion(model, self.retraction, state, args).at(x)

        first = model.system.flow_rate(t0, state, args)
        slopes: list[Vector] = []
        for row, c in zip(tableau.a, tableau.c, strict=True):
            x = combination(row, slopes, h)
            at_start = x is None and c == 0
            slopes.append(first if at_start else stage(rate, t0 + c * h, x, state))
        inside = chart_holds(self.retraction, model, h, first)
        state1 = stage(end, h, combination(tableau.b, slopes, h), state)
        if tableau.b_error is None:
            return state1, jnp.zeros_like(h), inside
        return state1, max_abs(combination(tableau.b_error, slopes, h)), inside

    def _implicit(self, model, t0, h, state, args):
        first = model.system.flow_rate(t0, state, args)
        d, s = first.shape[0], self.tableau.stages
        parameters = model, t0, h, state, args

        def residual(parameters, unknown):
            model, t0, h, state, args = parameters
            motion = Motion(model, self.retraction, state, args)
            slopes = [unknown[i * d : (i + 1) * d] for i in range(s)]
            stages = zip(self.tableau.a, self.tableau.c, strict=True)
            found = [motion.rate(t0 + c * h, combination(row, slopes, h)) for row, c in stages]
            return unknown - jnp.concatenate(found)

        guess = jnp.tile(first, s)
        unknown, converged, count = _find_root(residual, parameters, guess, self.newton)
        slopes = [unknown[i * d : (i + 1) * d] for i in range(s)]
        state1 = Motion(model, self.retraction, state, args).at(
            combination(self.tableau.b, slopes, h)
        )
        inside = chart_holds(self.retraction, model, h, first)
        return state1, jnp.zeros_like(h), inside, converged, count


def _find_root(residual: Callable, parameters, guess: Vector, newton: Newton):
    """`x` with `residual(parameters, x) = 0`, differentiable in the parameters.

    The iteration is not differentiated; its result is, to second order (`implicit_root`).

    **Arguments:** `residual`: pure function; `guess`: shape `(m,)`; `newton`: iterations, tolerance.

    **Returns:** the root, whether the iteration converged, and the number of iterations.
    """
    held = without_derivative(parameters)

    def body(carry):
        x, _, count = carry
        new = x - lu_solve(jax.jacfwd(lambda z: residual(held, z))(x), residual(held, x))
        return new, max_abs(new - x) / jnp.maximum(1.0, max_abs(new)), count + 1

    def proceed(carry):
        _, change, count = carry
        return ~(change <= newton.tolerance) & (count < newton.max_iterations)

    start = without_derivative(guess), jnp.full((), jnp.inf, guess.dtype), jnp.zeros((), jnp.int32)
    x, change, count = jax.lax.stop_gradient(jax.lax.while_loop(proceed, body, start))
    root = implicit_root(lambda z: residual(parameters, z), x)
    return root, change <= newton.tolerance, count
