"""Time-stepping schemes: each writes the smooth equations of its step, one function solves them."""

from ._base import AbstractIntegrator as AbstractIntegrator, StepInfo as StepInfo
from ._corrected import Corrected as Corrected
from ._located import Located as Located
from ._step import Newton as Newton
from ._theta import BackwardEuler as BackwardEuler, MoreauJean as MoreauJean
