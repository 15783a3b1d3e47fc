"""What a step of the event-driven method carries from phase to phase."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._result import RESULTS
from ..._types import Local, Scalar, State


class Run(eqx.Module):
    """State within a step.

    `past`: time since its start; `hit`: contacts whose impact is due; `released`: contacts released by
    the last event; `loose`: directions of slips that broke loose in it; `passes`: number of phases, -1
    if too many were needed; `times`: of the impacts; `fastest`: speed of the fastest one; `missed`: those
    that were made inelastic although they were not slow beside it.
    """

    past: Scalar
    state: State
    impulses: Float[Array, " r"]
    hit: Bool[Array, " c"]
    released: Bool[Array, " c"]
    loose: Float[Array, " r"]
    pending: Bool[Array, ""]
    impacts: Int[Array, ""]
    times: Float[Array, " i"]
    fastest: Scalar
    missed: Int[Array, ""]
    passes: Int[Array, ""]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]
    margin: Float[Array, ""]
    violation: Float[Array, ""]
    solved_by: Int[Array, ""]
    crowded: Int[Array, "2"]
    wedged: Int[Array, ""]
    result: RESULTS


def split(values: Array, counts, rows) -> tuple[Local, ...]:
    """Impulses of all rows as `(c, k)` per interaction."""
    sizes = [count * k for count, k in zip(counts, rows, strict=True)]
    parts = jnp.split(values, np.cumsum(sizes)[:-1])
    return tuple(p.reshape(c, k) for p, c, k in zip(parts, counts, rows, strict=True))
