"""Solvers of complementarity problems behind one interface.

| solver | for | when |
|---|---|---|
| `complementarity.Auto` | all sets | always, unless you know better |
| `SemismoothNewton` | all sets | well-conditioned, or a good warm start |
| `Splitting` | all sets, monotone W | redundant contacts, loose tolerance |
| `ProjectedGaussSeidel` | all sets, no zero on W's diagonal | many contacts on a CPU, loose tolerance |
| `AcceleratedProjectedGradient` | all sets, products with W alone | very large W, operators above 4000 |
| `Lemke` | half lines and equalities | exact for P and copositive-plus W; else it may miss a solution |
| `Enumeration` | intervals, about 12 rows | an oracle: finds a nondegenerate solution if there is one |
| `InteriorPoint` | all sets, intervals above all | circuits, modes that are hard to find |

`Auto` goes through them: Newton, then for intervals the central path and (up to 300 unknowns that are
half lines or equalities) pivots, then rounds of splitting, Newton and sweeps, in the end enumeration (up
to 4096 modes). Batches of more than 16 problems of at most 64 unknowns begin with short visits of
splitting and Newton. Success is decided by the residual, for all. A warm start helps all but `Lemke`,
`Enumeration` and the pivots.
"""

from ._base import AbstractContactSolver as AbstractContactSolver, AbstractSolver as AbstractSolver
from ._chain import Chain as Chain
from ._first_order import (
    AcceleratedProjectedGradient as AcceleratedProjectedGradient,
    ProjectedGaussSeidel as ProjectedGaussSeidel,
)
from ._interior_point import InteriorPoint as InteriorPoint
from ._pivoting import Enumeration as Enumeration, Lemke as Lemke
from ._semismooth import (
    LevenbergMarquardt as LevenbergMarquardt,
    Newton as Newton,
    SemismoothNewton as SemismoothNewton,
)
from ._small import SmallBatches as SmallBatches
from ._splitting import Splitting as Splitting
