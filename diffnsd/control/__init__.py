"""Sampled controllers for a plant; their gains are leaves, differentiable like any parameter."""

from ._base import AbstractController as AbstractController
from ._delayed import Delayed as Delayed
from ._observer import Luenberger as Luenberger
from ._pid import PID as PID
from ._sampled import Sampled as Sampled, SampledDetails as SampledDetails
from ._sliding import (
    ExplicitSlidingMode as ExplicitSlidingMode,
    ExplicitTwisting as ExplicitTwisting,
    ImplicitSlidingMode as ImplicitSlidingMode,
    ImprovedSlidingMode as ImprovedSlidingMode,
    SlidingModeOT2 as SlidingModeOT2,
    Twisting as Twisting,
)
