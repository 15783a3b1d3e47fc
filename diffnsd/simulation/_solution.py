"""The result of a simulation."""

import equinox as eqx
from jaxtyping import Array, Float, Int

from .._result import RESULTS
from .._types import State
from ..model import Energy


class StepStatistics(eqx.Module):
    """How well the steps were solved; one entry per saved time, over the steps that led to it.

    **Arguments:** `residual`: largest relative natural-map residual, `(s,)`; `iterations`: largest
    number of solver passes, `(s,)`; `margin`: smallest relative distance to a change of mode,
    `(s,)`; `worst_step`: index of the step with the largest residual of the run, `()`;
    `failed_step`: index of the first step that failed, -1 if none did, `()`.
    """

    residual: Float[Array, " s"]
    iterations: Int[Array, " s"]
    margin: Float[Array, " s"]
    worst_step: Int[Array, ""]
    failed_step: Int[Array, ""]


class Solution(eqx.Module):
    """A simulated motion.

    **Arguments:**

    - `ts`: saved times [s], `(t,)`; without a time axis for `SaveAt.end()`, likewise below.
    - `states`: `State` with a leading time axis.
    - `impulses`: per interaction, the impulse [N s] since the saved time before, `(t, c, k)`; zero
      at `t0`.
    - `gaps`: per interaction `(t, c)` [m], or `None`.
    - `energy`: kinetic and potential [J], `(t,)` each.
    - `stats`: `StepStatistics`. `result`: how it ended.
    """

    ts: Float[Array, " t"]
    states: State
    impulses: tuple[Float[Array, "t c k"], ...]
    gaps: tuple[Float[Array, "t c"] | None, ...]
    energy: Energy
    stats: StepStatistics
    result: RESULTS
