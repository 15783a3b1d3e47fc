"""Whether the steps of a first-order system are short enough for a method of first order.

A step that weighs its end by `theta` for `f` and by `gamma` for the inputs `r` of its interactions is off by

    E e = h ((theta − 1/2) (f1 − f0) + (gamma − 1/2) (r1 − r0)),

up to second order, and by no more than what `E x'` changes times `h / 2`. The sum of `|E e|` estimates what a
motion that forgets nothing has lost so far. Where a state is held, `r` follows `f`: nothing is lost, and what
was lost before is forgotten.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._jax import without_derivative
from .._numerics import matvec
from .._types import Scalar, State, Vector
from ..integrators import AbstractIntegrator, StepInfo
from ..integrators.time_stepping._first_order_step import total_input
from ..model import Model
from ..systems import Kind

EACH = 0.005
"""What steps may lose of the way that they went: less is not seen in motions that forget."""
HELD = 1e-9
"""A state that moves by less than this part of its way so far is held, and what it lost is forgotten."""
ROUNDING = 1e-10
"""States that moved less than this part of what the largest did are rounding."""


class Resolution(eqx.Module):
    """What the steps so far have lost, moved and spanned, each in the units of `E x`, `(n,)`.

    `rest`, `inputs`: the means of `f` and of `r` over the last step; `begun`: whether there was one;
    `weights`: `theta − 1/2` and `gamma − 1/2`.
    """

    rest: Vector
    inputs: Vector
    begun: Bool[Array, ""]
    lost: Vector
    moved: Vector
    low: Vector
    high: Vector
    weights: tuple[float, float] = eqx.field(static=True)

    @staticmethod
    def of(
        model: Model, integrator: AbstractIntegrator, t0: Scalar, state0: State
    ) -> "Resolution | None":
        """Before the first step; `None` if the method is not of first order."""
        weights = integrator.off_centre
        if weights is None or not any(weights) or model.system.kind != Kind.STATE_SPACE:
            return None
        zero, x = jnp.zeros_like(state0.v), _stored(model, t0, state0)
        return Resolution(zero, zero, jnp.asarray(False), zero, zero, x, x, weights)

    def then(
        self, model: Model, t1: Scalar, h: Scalar, states: tuple[State, State], info: StepInfo
    ) -> "Resolution":
        """After a step of length `h` that ends at `t1`, between two states."""
        given = model, t1, h, states, info.impulses
        model, t1, h, (before, after), impulses = without_derivative(given)
        inputs = total_input(model, t1, after, tuple(p / h for p in impulses))
        begin, end = _stored(model, t1, before), _stored(model, t1, after)
        way = jnp.abs(end - begin)
        rest = (end - begin) / h - inputs
        theta, gamma = self.weights
        of_rest, of_inputs = rest - self.rest, inputs - self.inputs
        off = jnp.abs(theta * of_rest + gamma * of_inputs)
        off = jnp.minimum(off, jnp.abs(of_rest + of_inputs) / 2)
        moved = self.moved + way
        held = way <= HELD * moved
        lost = jnp.where(held, 0, self.lost + jnp.where(self.begun, h * off, 0))
        return Resolution(
            rest,
            inputs,
            jnp.ones_like(self.begun),
            lost,
            moved,
            jnp.minimum(self.low, end),
            jnp.maximum(self.high, end),
            self.weights,
        )

    def part_lost(self) -> Scalar:
        """Estimate of what a state has lost, relative to its range; 0 where each step loses little."""
        span = self.high - self.low
        counts = (span > ROUNDING * jnp.max(span, initial=0)) & (self.lost > EACH * self.moved)
        return jnp.max(jnp.where(counts, self.lost / jnp.where(counts, span, 1), 0), initial=0)


def _stored(model: Model, t: Scalar, state: State) -> Vector:
    return matvec(model.system.mass(t, None).astype(state.v.dtype), state.v)
