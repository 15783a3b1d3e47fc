"""Runge-Kutta methods on groups and homogeneous spaces, without contacts."""

from ._products import CommutatorFree as CommutatorFree, CrouchGrossman as CrouchGrossman
from ._rkmk import RKMK as RKMK
from ._tableau import ButcherTableau as ButcherTableau
