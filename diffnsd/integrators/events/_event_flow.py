"""The smooth motion of a phase by a method of diffrax with variable steps, in time scaled to [0, 1]."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float, Int

from ..._jax import with_value, without_derivative
from ..._types import Scalar
from ._event_phase import Field, Phase


class Flow(eqx.Module):
    """How smooth motion is integrated; arguments as of `EventDriven`."""

    solver: diffrax.AbstractSolver
    tolerance: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    def until(self, phase: Phase, length: Scalar, watch: Callable, looks: int) -> diffrax.Solution:
        """The motion until the function `watch` falls to zero, without derivative."""
        return self._solve(
            phase,
            length,
            self._adaptive(1 / looks),
            shows_fading=True,
            event=diffrax.Event(watch, optx.Bisection(1e-14, 1e-14, flip=True), direction=False),
            max_steps=self.max_steps + 2 * looks,
        )

    def over(self, phase: Phase, length: Scalar):
        """The motion over `length`, differentiable.

        The steps are chosen once, and made again for the derivative: diffrax computes them in groups in
        reverse mode, as `bounded_while` does. Lengths that a group chose anew would differ by percents where
        the estimates of the error are nothing but rounding.

        **Returns:** rotation vectors and the like, velocities and impulses; whether it succeeded.
        """
        steps = diffrax.SubSaveAt(steps=True, fn=_time)
        known, whole = without_derivative((phase, length))
        chosen = self._solve(
            known,
            whole,
            self._adaptive(None),
            shows_fading=True,
            saveat=diffrax.SaveAt(subs=[steps, diffrax.SubSaveAt(t1=True)]),
            max_steps=self.max_steps,
        )
        ends, values = jax.lax.stop_gradient((chosen.ts[0], chosen.ys[1]))  # pyright: ignore
        made = self._solve(
            phase,
            length,
            _Chosen(ends),
            shows_fading=False,
            # Before 1 if there were too few steps.
            t1=jnp.max(ends, where=jnp.isfinite(ends), initial=0),
            adjoint=diffrax.DirectAdjoint(),
            max_steps=self.max_steps,
        )
        # Without a derivative the second solution is not computed.
        y = jax.tree.map(lambda x, value: with_value(x[-1], value[-1]), made.ys, values[:3])
        return y, chosen.result == diffrax.RESULTS.successful

    def _adaptive(self, longest: float | None) -> diffrax.PIDController:
        return diffrax.PIDController(self.tolerance, self.tolerance, dtmax=longest)

    def _solve(self, phase: Phase, length: Scalar, controller, *, shows_fading: bool, **options):
        size = phase.side.shape
        start = jnp.zeros_like(phase.state.v), phase.state.v, jnp.zeros(size, length.dtype)
        if shows_fading and np.any(phase.rows.turns):
            start = *start, jnp.ones(size, length.dtype)
        defaults: dict[str, Any] = dict(
            t1=jnp.ones_like(length), saveat=diffrax.SaveAt(t1=True), adjoint=diffrax.ForwardMode()
        )
        return diffrax.diffeqsolve(
            diffrax.ODETerm(Field(phase, length)),
            self.solver,
            t0=jnp.zeros_like(length),
            dt0=None,
            y0=start,
            stepsize_controller=controller,
            throw=False,
            **(defaults | options),
        )


def _time(t, y, args):
    del y, args
    return t


class _Chosen(diffrax.AbstractStepSizeController):
    """Steps that end at given times, which may be followed by infinite ones."""

    ends: Float[Array, " n"]

    def wrap(self, direction):
        del direction
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        del terms, t0, t1, y0, dt0, args, func, error_order
        return self.ends[0], jnp.ones((), jnp.int32)

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state: Int[Array, ""]
    ):
        del t0, y0, y1_candidate, args, y_error, error_order
        following = self.ends[jnp.minimum(controller_state, len(self.ends) - 1)]
        return True, t1, following, False, controller_state + 1, diffrax.RESULTS.successful
