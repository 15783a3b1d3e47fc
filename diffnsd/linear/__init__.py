"""Large linear systems: operators by their structure, solvers and preconditioners as objects."""

from ._direct import (
    BlockTridiagonalLU as BlockTridiagonalLU,
    Cholesky as Cholesky,
    Tridiagonal as Tridiagonal,
)
from ._direct_sum import DirectSum as DirectSum, PartByPart as PartByPart
from ._iterative import (
    MINRES as MINRES,
    BiCGStab as BiCGStab,
    ConjugateGradients as ConjugateGradients,
)
from ._node_blocks import NodeBlocks as NodeBlocks, NodePattern as NodePattern
from ._operators import (
    AbstractLargeOperator as AbstractLargeOperator,
    AbstractSparse as AbstractSparse,
    Banded as Banded,
    BlockTridiagonal as BlockTridiagonal,
    ElementSum as ElementSum,
)
from ._preconditioners import (
    SSOR as SSOR,
    AbstractPreconditioner as AbstractPreconditioner,
    BlockJacobi as BlockJacobi,
    Chebyshev as Chebyshev,
    Jacobi as Jacobi,
    NoPreconditioner as NoPreconditioner,
)
from ._sparse import SparseLU as SparseLU
from ._structure import (
    ByStructure as ByStructure,
    Factored as Factored,
    linear_solve as linear_solve,
)
