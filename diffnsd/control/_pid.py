"""Proportional, integral and derivative control."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._numerics import as_float
from .._types import Scalar, Vector, at_time
from ._base import AbstractController, Memory


class PID(AbstractController):
    """A PID controller in its velocity form.

        u_k = u_{k−1} + c1 e_k + c2 e_{k−1} + c3 e_{k−2},     e = reference − y
        c1 = kp + ki T + kd / T,   c2 = −kp − 2 kd / T,   c3 = kd / T,   T the sampling period

    Several measurements are treated elementwise. Errors and controls before the first sample are zero.

    **Arguments:** `kp`, `ki` [1/s], `kd` [s]: gains, shape `()` or `(m,)`; `reference`: `(m,)` or
    `()`, or a function of `t`.

    Reference: K. Åström, T. Hägglund, PID controllers (1995), ISBN 1-55617-516-7.
    """

    kp: Array = eqx.field(converter=as_float)
    ki: Array = eqx.field(converter=as_float, default=0.0)
    kd: Array = eqx.field(converter=as_float, default=0.0)
    reference: Array | float | Callable = 0.0

    def init(self, t: Scalar, y: Vector) -> Memory:
        del t
        return (jnp.zeros_like(y),) * 3

    def __call__(
        self, t: Scalar, y: Vector, memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        u, last, before = memory
        error = jnp.asarray(at_time(self.reference, t), y.dtype) - y
        c1 = self.kp + self.ki * period + self.kd / period
        c2, c3 = -self.kp - 2 * self.kd / period, self.kd / period
        u = u + c1 * error + c2 * last + c3 * before
        return u, (u, error, last)
