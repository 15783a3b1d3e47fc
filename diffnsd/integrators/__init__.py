"""Time-stepping schemes: each writes the smooth equations of its step, one function solves them."""

from ._adaptive import Adaptive as Adaptive
from ._base import AbstractIntegrator as AbstractIntegrator, StepInfo as StepInfo
from ._corrected import Corrected as Corrected
from ._d1_minus_linear import ContactForces as ContactForces, D1MinusLinear as D1MinusLinear
from ._elastic_impact import ElasticImpact as ElasticImpact
from ._event_driven import EventDriven as EventDriven
from ._first_order import (
    EulerMoreau as EulerMoreau,
    ThetaGamma as ThetaGamma,
    ZeroOrderHold as ZeroOrderHold,
)
from ._first_order_step import (
    FirstOrderDetails as FirstOrderDetails,
    step_residuals as step_residuals,
)
from ._galerkin import Galerkin as Galerkin
from ._lie_variational import LieVariational as LieVariational
from ._located import Located as Located
from ._points import (
    AbstractPoint as AbstractPoint,
    AtIterate as AtIterate,
    AtPrediction as AtPrediction,
    AtStart as AtStart,
)
from ._products import CommutatorFree as CommutatorFree, CrouchGrossman as CrouchGrossman
from ._projected import CombinedProjection as CombinedProjection, Projected as Projected
from ._quadrature import Quadrature as Quadrature, gauss as gauss, lobatto as lobatto
from ._rkmk import RKMK as RKMK
from ._schatzman_paoli import SchatzmanPaoli as SchatzmanPaoli
from ._step import Newton as Newton
from ._symplecticity import (
    symplectic_form as symplectic_form,
    symplecticity_defect as symplecticity_defect,
)
from ._tableau import ButcherTableau as ButcherTableau
from ._theta import BackwardEuler as BackwardEuler, MoreauJean as MoreauJean
from ._triple_jump import TripleJump as TripleJump
