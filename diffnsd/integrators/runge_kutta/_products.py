"""Runge-Kutta methods on groups by products of exponentials."""

from functools import partial
from typing import ClassVar

from ..._jax import on_components
from ..._result import RESULTS
from ..._types import Args, Scalar, State, Vector
from ...groups import Exponential
from ...model import Model
from .._base import Carry, StepInfo
from ._flow_step import AbstractFlowMethod, Motion, chart_holds, combination, finish
from ._tableau import ButcherTableau


def _moved(model: Model, h: Scalar, x: Vector | None, state: State) -> State:
    """`exp(x) . state`, or the state itself if `x` is `None`."""
    if x is None:
        return state
    group = model.system.flow_group
    return model.system.flow_apply(Exponential().map(group, x), state)


class CrouchGrossman(AbstractFlowMethod):
    """Crouch-Grossman methods: stages are products of exponentials, without `dexpinv`.

        Y_i = exp(h a_{i,i-1} k_{i-1}) ... exp(h a_i1 k_1) . y0,     k_i = A(t0 + c_i h, Y_i)
        y1 = exp(h b_s k_s) ... exp(h b_1 k_1) . y0

    There are more order conditions than for the tableau alone: with the classical tableau of order 4
    the method has order 2. The default has order 3 and three stages. For the same systems as `RKMK`.

    **Arguments:** `tableau`: an explicit `ButcherTableau`, made for products of exponentials.

    **Raises:** `ValueError` if `tableau` is implicit, or is not a `ButcherTableau`.

    Reference: P. Crouch, R. Grossman, Numerical integration of ordinary differential equations on
    manifolds (1993), doi:10.1007/BF02429858.
    """

    tableau: ButcherTableau = ButcherTableau.crouch_grossman3()

    def __check_init__(self):
        if not isinstance(self.tableau, ButcherTableau):
            raise ValueError(
                f"products of exponentials need a ButcherTableau, got {type(self.tableau).__name__}; "
                "use ButcherTableau.crouch_grossman3(), or RKMK, which takes solvers of diffrax."
            )
        if not self.tableau.is_explicit:
            raise ValueError(
                "products of exponentials need an explicit tableau; use "
                "ButcherTableau.crouch_grossman3(), or RKMK for an implicit one."
            )

    @property
    def order(self) -> int:
        return self.tableau.product_order

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        def advance(stage, t0, h, state):
            slopes = []
            field = Motion(model, Exponential(), state, args).field

            def product(weights):
                y = state
                for weight, k in zip(weights, slopes, strict=False):
                    y = stage(partial(_moved, model), h, combination([weight], [k], h), y)
                return y

            for row, c in zip(self.tableau.a, self.tableau.c, strict=True):
                slopes.append(field(t0 + c * h, product(row)))
            return product(self.tableau.b), chart_holds(Exponential(), model, h, slopes[0])

        state1, inside = on_components(advance)(t0, h, state)
        return finish(state, state1, inside)


class CommutatorFree(AbstractFlowMethod):
    """The commutator-free method of order 4 with five exponentials.

        Y2 = e^{k1/2} y0,  Y3 = e^{k2/2} y0,  Y4 = e^{k3 - k1/2} Y2,           k_i = h A(Y_i)
        y1 = e^{(-k1 + 2 k2 + 2 k3 + 3 k4)/12} e^{(3 k1 + 2 k2 + 2 k3 - k4)/12} y0

    Cheaper than `RKMK` of order 4 where brackets are expensive (large matrices).

    Reference: E. Celledoni, A. Marthinsen, B. Owren, Commutator-free Lie group methods (2003),
    doi:10.1016/S0167-739X(02)00161-9.
    """

    order: ClassVar[int] = 4

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        def advance(stage, t0, h, state):
            middle = t0 + h / 2
            field = Motion(model, Exponential(), state, args).field
            moved = partial(stage, partial(_moved, model), h)
            k1 = h * field(t0, state)
            y2 = moved(k1 / 2, state)
            k2 = h * field(middle, y2)
            k3 = h * field(middle, moved(k2 / 2, state))
            k4 = h * field(t0 + h, moved(k3 - k1 / 2, y2))
            y = moved((3 * k1 + 2 * k2 + 2 * k3 - k4) / 12, state)
            y = moved((-k1 + 2 * k2 + 2 * k3 + 3 * k4) / 12, y)
            return y, Exponential().inside(model.system.flow_group, k1)

        state1, inside = on_components(advance)(t0, h, state)
        return finish(state, state1, inside)
