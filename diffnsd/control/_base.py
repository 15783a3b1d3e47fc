"""The interface of a sampled controller."""

from abc import abstractmethod
from typing import Any

from .._arguments import AbstractChecked
from .._result import RESULTS
from .._types import Scalar, Vector

Memory = Any
"""State of a controller between samples: a pytree of arrays."""


class AbstractController(AbstractChecked):
    """A control law evaluated once per sampling period on measurements `y` of shape `(m,)`.

    Gains are leaves of the module.
    """

    def init(self, t: Scalar, y: Vector) -> Memory:
        """The memory before the first sample, given the first measurement `y`; empty by default."""
        del t, y
        return ()

    @abstractmethod
    def __call__(self, t: Scalar, y: Vector, memory: Memory, period: Scalar) -> tuple[Any, Memory]:
        """The control `u`, held from `t` to `t + period` [s], and the new memory."""

    def result(self, memory: Memory) -> RESULTS:
        """The outcome of the last sample, from its memory; successful unless overridden."""
        del memory
        return RESULTS.successful
