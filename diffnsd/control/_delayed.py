"""Measurements that arrive late."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._result import RESULTS
from .._types import Scalar, Vector
from ._base import AbstractController, Memory


class Delayed(AbstractController):
    """A controller with a delayed sensor: at sample `j` it receives `y_{j − samples}`.

    Before the first delayed measurement arrives it receives the initial one. For a delay shorter than
    a sampling period, use a smaller `every` and a delay of several samples.

    **Arguments:** `controller`; `samples`: the delay in sampling periods, at least 0.

    **Raises:** `ValueError` if `samples` is negative.

    Reference: K. Åström, B. Wittenmark, Computer-controlled systems (1997), ISBN 0-13-314899-8.
    """

    controller: AbstractController
    samples: int = eqx.field(static=True)

    def __check_init__(self):
        if self.samples < 0:
            raise ValueError(f"the delay must be at least 0 samples, got {self.samples}.")

    def init(self, t: Scalar, y: Vector) -> Memory:
        waiting = jnp.broadcast_to(y[None], (self.samples, *y.shape))
        return waiting, self.controller.init(t, y)

    def result(self, memory: Memory) -> RESULTS:
        return self.controller.result(memory[1])

    def __call__(self, t: Scalar, y: Vector, memory: Memory, period: Scalar) -> tuple[Any, Memory]:
        waiting, inner = memory
        waiting = jnp.concatenate([waiting, y[None]])
        u, inner = self.controller(t, waiting[0], inner, period)
        return u, (waiting[1:], inner)
