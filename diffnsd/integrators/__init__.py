"""Integrators: each scheme writes the smooth equations of its step, and one function solves them.

| folder | schemes |
|---|---|
| `time_stepping` | Moreau-Jean and its relatives, first-order systems: laws over a whole step |
| `variational` | discrete mechanics on vector spaces and groups, with contact |
| `runge_kutta` | Runge-Kutta-Munthe-Kaas and its relatives: smooth motion on groups |
| `events` | schemes that locate impacts, or add the derivatives of their times |
"""

from ._adaptive import Adaptive as Adaptive
from ._base import (
    AbstractIntegrator as AbstractIntegrator,
    AbstractMemory as AbstractMemory,
    Clocked as Clocked,
    Multistep as Multistep,
    NoMemory as NoMemory,
    StepInfo as StepInfo,
    WarmStart as WarmStart,
)
from ._step import Newton as Newton
from ._wrapped import AbstractWrappedIntegrator as AbstractWrappedIntegrator
from .events import Corrected as Corrected, EventDriven as EventDriven, Located as Located
from .runge_kutta import (
    RKMK as RKMK,
    ButcherTableau as ButcherTableau,
    CommutatorFree as CommutatorFree,
    CrouchGrossman as CrouchGrossman,
)
from .time_stepping import (
    AbstractPoint as AbstractPoint,
    AtIterate as AtIterate,
    AtPrediction as AtPrediction,
    AtStart as AtStart,
    BackwardEuler as BackwardEuler,
    CombinedProjection as CombinedProjection,
    ContactForces as ContactForces,
    D1MinusLinear as D1MinusLinear,
    EulerMoreau as EulerMoreau,
    FirstOrderDetails as FirstOrderDetails,
    HalfExplicit as HalfExplicit,
    MoreauJean as MoreauJean,
    Projected as Projected,
    SchatzmanPaoli as SchatzmanPaoli,
    StepMatrices as StepMatrices,
    ThetaGamma as ThetaGamma,
    ZeroOrderHold as ZeroOrderHold,
    step_matrices as step_matrices,
    step_residuals as step_residuals,
)
from .variational import (
    ElasticImpact as ElasticImpact,
    Galerkin as Galerkin,
    LieVariational as LieVariational,
    Quadrature as Quadrature,
    TripleJump as TripleJump,
    gauss as gauss,
    lobatto as lobatto,
    symplectic_form as symplectic_form,
    symplecticity_defect as symplecticity_defect,
)
