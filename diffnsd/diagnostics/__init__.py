"""Invariants that a geometric method should preserve, and explanations of gradients."""

from ..integrators import symplecticity_defect as symplecticity_defect
from ._explain import (
    GradientExplanation as GradientExplanation,
    explain_gradient as explain_gradient,
)
from ._invariants import (
    casimirs as casimirs,
    defect as defect,
    drift as drift,
    first_order_residuals as first_order_residuals,
    poisson_defect as poisson_defect,
    spatial_momentum as spatial_momentum,
    step_map as step_map,
)
