"""The complementarity kernel: problems, residuals, solvers and the implicit derivative."""

from ._nonlinear import (
    NonlinearComplementarityProblem as NonlinearComplementarityProblem,
    solve_nonlinear_complementarity as solve_nonlinear_complementarity,
)
from ._public import (
    ComplementarityProblem as ComplementarityProblem,
    ComplementaritySolution as ComplementaritySolution,
    solve_complementarity as solve_complementarity,
)
from ._solve import solve_mixed as solve_mixed
from ._solver import Auto as Auto
from .derivatives._adjoint import (
    AbstractAdjoint as AbstractAdjoint,
    ImplicitAdjoint as ImplicitAdjoint,
    SmoothedAdjoint as SmoothedAdjoint,
)
from .problem._dense import Statistics as Statistics
from .problem._operators import Delassus as Delassus
from .problem._problem import Block as Block, MixedProblem as MixedProblem
from .solvers import (
    AbstractContactSolver as AbstractContactSolver,
    AbstractSolver as AbstractSolver,
    AcceleratedProjectedGradient as AcceleratedProjectedGradient,
    AndersonGradient as AndersonGradient,
    Chain as Chain,
    ColouredGaussSeidel as ColouredGaussSeidel,
    Enumeration as Enumeration,
    InteriorPoint as InteriorPoint,
    Lemke as Lemke,
    ProjectedGaussSeidel as ProjectedGaussSeidel,
    SemismoothNewton as SemismoothNewton,
    Splitting as Splitting,
)
