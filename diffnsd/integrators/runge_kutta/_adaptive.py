"""Adaptive steps by embedded error estimates."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..._jax import bounded_while, where
from ..._result import RESULTS, first_error
from ..._types import Args, Scalar, State
from ...model import Model
from .._base import Carry, StepInfo
from .._wrapped import AbstractWrappedIntegrator
from ._flow_step import finish
from ._rkmk import RKMK


class Adaptive(AbstractWrappedIntegrator):
    """Steps of variable length inside every grid step, chosen by the embedded error estimate.

    Between `t0` and `t0 + h` the method takes as many steps as the tolerance requires, at least one. A
    step that is rejected or leaves the chart is repeated with a shorter length. Differentiable in
    forward and reverse mode (the chosen step lengths are held constant).

    **Arguments:** `inner`: an `RKMK` method whose tableau has an embedded pair, for example
    `RKMK(diffrax.Tsit5())`; `tolerance`: largest error estimate of a step in the algebra's
    coordinates; `max_steps`: most steps, rejected ones included, in one grid step.

    **Raises:** `ValueError` if `inner` is not an `RKMK`, its tableau is implicit or has no embedded pair,
    or `max_steps` is less than 1.

    Reference: E. Hairer, S. Norsett, G. Wanner, Solving Ordinary Differential Equations I (1993),
    section II.4, doi:10.1007/978-3-540-78862-1.
    """

    inner: RKMK
    tolerance: float = 1e-8
    max_steps: int = eqx.field(default=256, static=True)

    def __check_init__(self):
        if not isinstance(self.inner, RKMK):
            raise ValueError(
                f"adaptive steps are for RKMK methods, got {type(self.inner).__name__}; use for "
                "example RKMK(diffrax.Tsit5())."
            )
        tableau = self.inner.tableau
        if not tableau.is_explicit:
            raise ValueError(
                "adaptive steps need an explicit tableau; use for example RKMK(diffrax.Tsit5())."
            )
        if tableau.b_error is None:
            raise ValueError(
                "adaptive steps need a tableau with an embedded error estimate (b_error); use for "
                "example RKMK(diffrax.Tsit5()) or RKMK(diffrax.Dopri8())."
            )
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}.")

    is_symplectic: ClassVar[bool] = False

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        exponent = 1.0 / self.inner.order

        def proceed(run):
            _, fraction, _, _ = run
            return fraction < 1

        def body(run):
            state, fraction, stride, count = run
            last = fraction + stride >= 1
            stop = jnp.where(last, 1.0, fraction + stride)
            begin, part = t0 + fraction * h, (stop - fraction) * h
            new, error, inside, _, _ = self.inner.estimated_step(model, begin, part, state, args)
            error = jax.lax.stop_gradient(error) / self.tolerance
            usable = inside & jnp.isfinite(error)
            error = jnp.where(usable, error, 1e10)
            accepted = error <= 1
            factor = 0.9 * jnp.maximum(error, 1e-10) ** -exponent
            stride = (stop - fraction) * jnp.clip(factor, 0.2, 5.0)
            state = where(accepted, new, state)
            return state, jnp.where(accepted, stop, fraction), stride, count + 1

        zero = jnp.zeros_like(h)
        start = state, zero, jnp.ones_like(h), jnp.zeros((), jnp.int32)
        end, fraction, _, count = bounded_while(proceed, body, start, self.max_steps)
        out, info, carry, result = finish(state, end, jnp.array(True), True, count)
        late = RESULTS.where(fraction < 1, RESULTS.too_many_steps, RESULTS.successful)
        return out, info, carry, first_error(late, result)
