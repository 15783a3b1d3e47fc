"""The interface of a sampled controller."""

from abc import abstractmethod
from typing import Any

import equinox as eqx

from .._result import RESULTS
from .._types import Scalar, Vector

Memory = Any
"""What a controller remembers between samples: a pytree of arrays."""


class AbstractController(eqx.Module):
    """A control law evaluated once per sampling period, of measurements `y` of shape `(m,)`.

    Gains are leaves of the module.
    """

    def init(self, t: Scalar, y: Vector) -> Memory:
        """What is remembered before the first sample, given the first measurement `y`: nothing."""
        del t, y
        return ()

    @abstractmethod
    def __call__(self, t: Scalar, y: Vector, memory: Memory, period: Scalar) -> tuple[Any, Memory]:
        """The control `u` that is held from `t` to `t + period` [s], and the new memory."""

    def result(self, memory: Memory) -> RESULTS:
        """How the last sample went, of the memory it left: successful unless a controller says so."""
        del memory
        return RESULTS.successful
