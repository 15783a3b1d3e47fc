"""Solvers of contact problems with one protocol (`init`, `step`, `terminate`), run by one driver.

| solver | for | when |
|---|---|---|
| `complementarity.Auto` | all sets | the default; prints as its chain |
| `Chain` | the sets of its links | your own order of methods |
| `Newton`, `LevenbergMarquardt` | all sets | as links: a good start, or refining another method's result |
| `SemismoothNewton` | all sets | alternates these two: well-conditioned, or a good warm start |
| `Splitting` | all sets, monotone W | redundant contacts, loose tolerance |
| `ProjectedGaussSeidel` | all sets, no zero on W's diagonal | many contacts on a CPU, loose tolerance |
| `AcceleratedProjectedGradient` | all sets, products with W alone | very large W |
| `AndersonGradient` | all sets, products with W alone | the same, in turns with the former |
| `ColouredGaussSeidel` | all sets, steps of many free bodies | piles |
| `Lemke` | half lines and equalities | exact for P and copositive-plus W; else it may miss a solution |
| `Enumeration` | intervals, about 12 rows | an oracle: finds a nondegenerate solution if there is one |
| `InteriorPoint` | all sets, intervals above all | circuits, modes that are hard to find |
| `RegularisedNewton` | all sets | the step solver; as a link: batches of problems of at most 24 unknowns |

Each but `ColouredGaussSeidel` can be passed to `solve_complementarity`, and all to the integrators. Success
has one definition: the residual is at most the accept tolerance. The result holds the residual, the violation
of the laws, and the index `solved_by` of the link that found it. A warm start helps all but `Lemke`,
`Enumeration` and `InteriorPoint`.
"""

from ._anderson import AndersonGradient as AndersonGradient
from ._base import AbstractContactSolver as AbstractContactSolver, AbstractSolver as AbstractSolver
from ._chain import Chain as Chain
from ._coloured import ColouredGaussSeidel as ColouredGaussSeidel
from ._first_order import (
    AcceleratedProjectedGradient as AcceleratedProjectedGradient,
    ProjectedGaussSeidel as ProjectedGaussSeidel,
)
from ._interior_point import InteriorPoint as InteriorPoint
from ._pivoting import Enumeration as Enumeration, Lemke as Lemke
from ._regularised import RegularisedNewton as RegularisedNewton
from ._semismooth import (
    LevenbergMarquardt as LevenbergMarquardt,
    Newton as Newton,
    SemismoothNewton as SemismoothNewton,
)
from ._splitting import Splitting as Splitting
