"""The search along a Newton step of a large system, on the slope of its incremental energy."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..._types import Scalar, Vector

ENOUGH = 0.5
"""Fraction of the slope of the incremental energy that a step may leave, with either sign."""
HALVINGS = 20
"""The most halvings of a step in the search along it."""


def shortened(
    residual: Callable[[Vector], Vector],
    v: Vector,
    r: Vector,
    dv: Vector,
    target: Vector,
    once: bool,
) -> tuple[Scalar, Vector, Vector]:
    """Halves a step until little of the slope `(r − target) · dv` along it is left.

    **Arguments:** `r`: the residual at `v`; `target`: the impulse that it should have; `once`: takes the
    whole step.

    **Returns:** the length of the step in units of `dv`, and the new `v` and `r`.
    """
    slope = jnp.sum((r - target) * dv)
    noise = 1e-12 * jnp.sum(jnp.abs(r * dv)) + jnp.finfo(dv.dtype).tiny

    def trial(length):
        there = v + length * dv
        return length, there, residual(there)

    def too_long(carry):
        length, _, r = carry
        fits = jnp.abs(jnp.sum((r - target) * dv)) <= ENOUGH * jnp.abs(slope) + noise
        return ~fits & (length > 0.5**HALVINGS)

    whole = trial(jnp.ones_like(slope))
    return whole if once else jax.lax.while_loop(too_long, lambda c: trial(c[0] / 2), whole)
