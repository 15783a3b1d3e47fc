"""Time-stepping schemes: each writes the smooth equations of its step, one function solves them."""

from ._adaptive import Adaptive as Adaptive
from ._base import AbstractIntegrator as AbstractIntegrator, StepInfo as StepInfo
from ._products import CommutatorFree as CommutatorFree, CrouchGrossman as CrouchGrossman
from ._rkmk import RKMK as RKMK
from ._step import Newton as Newton
from ._tableau import ButcherTableau as ButcherTableau
from ._theta import BackwardEuler as BackwardEuler, MoreauJean as MoreauJean
