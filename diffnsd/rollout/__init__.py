"""Batches of simulations, processed in chunks on all cores or devices."""

from ._bundled import (
    BundledGradient as BundledGradient,
    FirstOrder as FirstOrder,
    ZerothOrder as ZerothOrder,
    bundled_gradient as bundled_gradient,
)
from ._rollout import rollout as rollout
