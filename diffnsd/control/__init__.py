"""Sampled controllers beside a plant: gains are leaves, differentiable like any parameter."""

from ._base import AbstractController as AbstractController
from ._observer import Luenberger as Luenberger
from ._pid import PID as PID
from ._sampled import Sampled as Sampled, SampledDetails as SampledDetails
from ._sliding import (
    ExplicitSlidingMode as ExplicitSlidingMode,
    ImplicitSlidingMode as ImplicitSlidingMode,
    Twisting as Twisting,
)
