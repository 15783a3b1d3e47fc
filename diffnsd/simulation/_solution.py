"""The result of a simulation."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from .._result import RESULTS, failed
from .._types import Count, Scalar, State
from ..model import Energy
from ._event import EventPoint


class StepStatistics(eqx.Module):
    """How well the steps were solved; one entry per saved time, over the steps that led to it.

    **Arguments:**

    - `residual`: largest relative natural-map residual, `(s,)`. `violation`: largest violation of the
      laws, in the measure of power, `(s,)`.
    - `iterations`: largest number of solver passes, `(s,)`. `margin`: smallest relative distance to a
      change of mode, `(s,)`.
    - `solved_by`: which link of the contact solver was needed, as an index of `solver_names`, `(s,)`: 0 is
      the start of a step, before any iteration.
    - `located`: impacts and turns of friction whose time was found inside a step, `(s,)`; `Corrected`
      counts the steps in which contacts struck. `missed`: those that `Located` met but left to the scheme
      inside, `(s,)`.
    - `slow`: impacts that `Located` left to the scheme, since their speed is close to what forces make
      of rest within a step, `(s,)`. `merged`: contacts that struck together with another one, `(s,)`.
    - `worst_step`: index of the step with the largest residual of the run, `()`. `failed_step`: index of
      the first step that failed, -1 if none did, `()`; `failed_residual`: its relative residual, `()`.
    - `event_step`: index of the step at whose end the event happened, -1 if none did, `()`. `end_time`:
      when the run ended [s], `t1` or the end of that step, `()`.
    - `solver_names`: the links of the contact solver.
    """

    residual: Float[Array, " s"]
    violation: Float[Array, " s"]
    iterations: Int[Array, " s"]
    margin: Float[Array, " s"]
    solved_by: Int[Array, " s"]
    located: Int[Array, " s"]
    missed: Int[Array, " s"]
    slow: Int[Array, " s"]
    merged: Int[Array, " s"]
    worst_step: Count
    failed_step: Count
    failed_residual: Scalar
    event_step: Count
    end_time: Scalar
    solver_names: tuple[str, ...] = eqx.field(static=True)

    @property
    def unlocated(self) -> tuple[str, ...]:
        """What a derivative across this run should know, in words: times that were not located."""
        sentences = (
            (
                self.missed,
                "the times of {} impacts or turns of friction were not located, so derivatives "
                "through them are wrong: raise max_impacts, or take shorter steps",
            ),
            (
                self.slow,
                "{} slow impacts were left to the scheme as if at rest, and their times have no "
                "derivative: take shorter steps if they matter",
            ),
            (
                self.merged,
                "{} contacts struck together with another one, and the derivative is that of "
                "striking together: move the start a little to see whether their order matters",
            ),
        )
        counted = ((int(np.sum(np.asarray(counts))), words) for counts, words in sentences)
        return tuple(words.format(count) for count, words in counted if count)


class Solution(eqx.Module):
    """A simulated motion.

    **Arguments:**

    - `ts`: saved times [s], `(t,)`; without a time axis for `SaveAt.end()`, likewise below.
    - `states`: `State` with a leading time axis.
    - `impulses`: per interaction, the impulse [N s] since the saved time before, `(t, c, k)`; zero
      at `t0`. Of a first-order system `∫ lam dt`; its multipliers `lam` are in `details`.
    - `gaps`: per interaction `(t, c)` [m], or `None`.
    - `energy`: kinetic and potential [J], `(t,)` each; `None` where it is not known.
    - `stats`: `StepStatistics`. `result`: how it ended. `message` says it in words.
    - `integrals`: of each `Integral` that was asked for, from `t0` to the saved time, `(t, ...)`.
    - `impact_times`: of the first impacts that were located [s], `(SaveAt.impacts,)`, infinite where
      there were not as many; differentiable.
    - `event`: time and state of an event with `locate=True`, differentiable; else `None`.
    - `details`: what only the integrator has to report, of the last step before each saved time
      (its docstring says what); `None` for most.

    All times saved after an event repeat it: its time and state, no impulses.
    """

    ts: Float[Array, " t"]
    states: State
    impulses: tuple[Float[Array, "t c k"], ...]
    gaps: tuple[Float[Array, "t c"] | None, ...]
    energy: Energy | None
    stats: StepStatistics
    result: RESULTS
    details: Any = None
    integrals: tuple[Float[Array, "t ..."], ...] = ()
    impact_times: Float[Array, " k"] | None = None
    event: EventPoint | None = None

    @property
    def message(self) -> str:
        """How the run ended, in words, with the step and its residual; empty if nothing happened.

        For a batch: the number of failures, and the message of the first. Only outside of `jit`.
        """
        stats, bad = self.stats, np.asarray(failed(self.result))
        ends = stats.failed_step, stats.failed_residual, stats.event_step, stats.end_time
        ends = self.result, *ends
        if not bad.any() or bad.ndim == 0:
            words = (_words(*ends),) if bad.ndim == 0 else ()
            return "; ".join(filter(None, (*words, *stats.unlocated)))
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        index = first[0] if len(first) == 1 else first
        words = _words(*jax.tree.map(lambda x: x[first], ends))
        return (
            f"{bad.sum()} of {bad.size} simulations failed, first the one at index {index}: {words}"
        )


def _words(result, failed_step, failed_residual, event_step, end_time) -> str:
    """The outcome of one simulation, all values known."""
    text = RESULTS[result]
    if bool(failed(result)):
        size = float(failed_residual)  # 0 where no solve failed: the chart ended, for example
        residual = f" with the relative residual {size:.1e}" if size else ""
        return f"step {int(failed_step)} failed{residual}: {text}"
    if int(event_step) >= 0:
        return f"{text}, at the end of step {int(event_step)}, t = {float(end_time):.6g} s"
    return text
