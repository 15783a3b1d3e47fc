"""Running a model over time."""

from .._checkpointing import Checkpointing as Checkpointing
from .._jax import (
    AbstractLoopAdjoint as AbstractLoopAdjoint,
    Checkpointed as Checkpointed,
    Direct as Direct,
)
from ._event import Event as Event, EventPoint as EventPoint
from ._integral import Integral as Integral
from ._save import SaveAt as SaveAt
from ._simulate import simulate as simulate
from ._solution import Solution as Solution, StepStatistics as StepStatistics
