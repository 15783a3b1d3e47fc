"""Event-capturing schemes: the smooth equations of a step, with the laws over the whole step."""

from ._d1_minus_linear import ContactForces as ContactForces, D1MinusLinear as D1MinusLinear
from ._first_order import (
    EulerMoreau as EulerMoreau,
    ThetaGamma as ThetaGamma,
    ZeroOrderHold as ZeroOrderHold,
)
from ._first_order_step import (
    FirstOrderDetails as FirstOrderDetails,
    step_residuals as step_residuals,
)
from ._points import (
    AbstractPoint as AbstractPoint,
    AtIterate as AtIterate,
    AtPrediction as AtPrediction,
    AtStart as AtStart,
    HalfExplicit as HalfExplicit,
)
from ._projected import CombinedProjection as CombinedProjection, Projected as Projected
from ._schatzman_paoli import SchatzmanPaoli as SchatzmanPaoli
from ._theta import (
    BackwardEuler as BackwardEuler,
    MoreauJean as MoreauJean,
    StepMatrices as StepMatrices,
    step_matrices as step_matrices,
)
