"""Solvers of complementarity problems behind one interface."""

from ._base import AbstractSolver as AbstractSolver, Best as Best
from ._combined import combined as combined
from ._first_order import (
    AcceleratedProjectedGradient as AcceleratedProjectedGradient,
    ProjectedGaussSeidel as ProjectedGaussSeidel,
)
from ._interior_point import InteriorPoint as InteriorPoint
from ._pivoting import Enumeration as Enumeration, Lemke as Lemke
from ._semismooth import SemismoothNewton as SemismoothNewton
from ._splitting import Splitting as Splitting
