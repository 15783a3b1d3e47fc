"""Adaptive steps by embedded error estimates."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..._jax import bounded_while, where, with_value, without_derivative
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
        # Chosen once, see `bounded_while`, and made again for the derivative, where one is asked for. A force
        # may close over numbers of the derivative, which `without_derivative` does not see.
        chosen = self._chosen(*without_derivative((model, t0, h, state, args)))
        ends, steps, value, count = jax.lax.stop_gradient(chosen)

        def made(run):
            state, i = run
            before = jnp.where(i > 0, ends[i - 1], 0)
            begin, part = t0 + before * h, (ends[i] - before) * h
            return self.inner.estimated_step(model, begin, part, state, args)[0], i + 1

        start = state, jnp.zeros((), jnp.int32)
        end, _ = bounded_while(lambda run: run[1] < steps, made, start, self.max_steps)
        end = jax.tree.map(with_value, end, value)
        out, info, carry, result = finish(state, end, jnp.array(True), True, count)
        late = RESULTS.where(ends[-1] < 1, RESULTS.too_many_steps, RESULTS.successful)
        return out, info, carry, first_error(late, result)

    def _chosen(self, model: Model, t0: Scalar, h: Scalar, state: State, args: Args):
        """The steps that the tolerance requires.

        **Returns:** where they end, in parts of `h`, the last end repeated; their number; the state after
        it; the number of steps tried.
        """
        exponent = 1.0 / self.inner.order

        def proceed(run):
            _, fraction, _, count, _, _ = run
            return (fraction < 1) & (count < self.max_steps)

        def body(run):
            state, fraction, stride, count, ends, steps = run
            last = fraction + stride >= 1
            stop = jnp.where(last, 1.0, fraction + stride)
            begin, part = t0 + fraction * h, (stop - fraction) * h
            new, error, inside, _, _ = self.inner.estimated_step(model, begin, part, state, args)
            error = error / self.tolerance
            usable = inside & jnp.isfinite(error)
            error = jnp.where(usable, error, 1e10)
            accepted = error <= 1
            factor = 0.9 * jnp.maximum(error, 1e-10) ** -exponent
            stride = (stop - fraction) * jnp.clip(factor, 0.2, 5.0)
            state = where(accepted, new, state)
            place = jnp.where(accepted, steps, self.max_steps)
            ends = ends.at[place].set(stop, mode="drop")
            fraction = jnp.where(accepted, stop, fraction)
            return state, fraction, stride, count + 1, ends, steps + accepted.astype(jnp.int32)

        none, ends = jnp.zeros((), jnp.int32), jnp.zeros(self.max_steps, h.dtype)
        start = state, jnp.zeros_like(h), jnp.ones_like(h), none, ends, none
        end, fraction, _, count, ends, steps = jax.lax.while_loop(proceed, body, start)
        # In a batch, elements that are done go on in steps of length 0.
        idle = jnp.arange(self.max_steps, dtype=jnp.int32) >= steps
        return jnp.where(idle, fraction, ends), steps, end, count
