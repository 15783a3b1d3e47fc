"""Running a model over time."""

from .._jax import (
    AbstractLoopAdjoint as AbstractLoopAdjoint,
    Checkpointed as Checkpointed,
    Direct as Direct,
)
from ._event import Event as Event
from ._save import SaveAt as SaveAt
from ._simulate import simulate as simulate
from ._solution import Solution as Solution, StepStatistics as StepStatistics
