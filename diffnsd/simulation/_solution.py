"""The result of a simulation."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from .._jax import is_traced
from .._result import RESULTS, failed
from .._types import Count, Scalar, State
from ..integrators._base import NEAR_EDGE
from ..integrators._wrapped import LARGEST
from ..model import Energy
from ._event import EventPoint
from ._flaws import Flaws, sentences

COARSE = 0.012
"""Part of the range of a state that steps may have lost (`coarse`) before it is said. Of what is left of a
motion that decays it is several times as much."""


class StepStatistics(eqx.Module):
    """How well the steps were solved; one entry per saved time, for the steps since the previous one.

    **Arguments:**

    - `residual`: largest relative natural-map residual, `(s,)`. `violation`: largest violation of the
      laws, measured as a power, `(s,)`.
    - `iterations`: largest number of solver iterations, `(s,)`. `margin`: smallest relative distance
      to a change of mode, `(s,)`. Below 1e-6 a derivative is one of several, and so it is where the
      solver did not find the defined choice among redundant impulses, for which the margin is 0.
    - `solved_by`: the last link of the contact solver's chain that was needed, as an index into
      `solver_names`, `(s,)`; 0 means the start of a step, before any iteration.
    - `located`: number of impacts and slip reversals whose time was located inside a step, `(s,)`;
      `Corrected` counts the steps with impacts. `missed`: those that `Located` detected but left to
      its inner scheme, `(s,)`.
    - `slow`: impacts that `Located` left to its inner scheme because their speed is close to what
      forces produce from rest within one step, `(s,)`. `merged`: contacts that struck together with
      another one, `(s,)`.
    - `struck`: impacts that were stepped over by a method that does not differentiate their times,
      `(s,)`: steps in which a contact has an impulse several times those before and after; those of
      `neighbour_contacts` are not seen. `turned`: contacts whose
      friction, or relays whose multiplier, went from one bound to the opposite one within two steps, without
      a derivative of that time, `(s,)`; not in the first two steps. `drifted`: 1 where the values of
      `Corrected` and the motion of its derivatives are apart at the saved time, by more than 5 steps or by a
      twentieth of the fastest velocity, as on two sides of an impact, `(s,)`.
    - `kinks`: contacts under `Located` and `Corrected` that lasted on a curved surface, let go or began to
      slip, `(s,)`. Second derivatives are not true after them, and overflow. `curved`: those that lasted
      on a curved surface while `contacts_at` of the method inside was not `HalfExplicit()`, `(s,)`.
    - `wedged`: contacts that slid where `mu W_NT` exceeds `W_NN` in their own block of `W` (Painlevé), so
      that a step may have no or several solutions, `(s,)`; not counted where bodies are many.
    - `coarse`: for a first-order system, an estimate of what the steps have lost since `theta` or `gamma` of
      the method is not 1/2, relative to the range of a state, `()`; 0 where that is little.
    - `worst_step`: index of the step with the largest residual of the run, `()`. `failed_step`: index
      of the first step that failed, -1 if none did, `()`; `failed_residual`: its relative residual,
      `()`; `crowded`: the first contact for which it had no room, as its interaction and its place
      there, `(2,)`, -1 each if there was room.
    - `event_step`: index of the step in which the event happened, -1 if it did not, `()`. `end_time`:
      end of the run [s], either `t1` or the end of that step, `()`.
    - `flaws`: by its sentence, the first step after which parts of the system were where its model does not
      hold, as elements inside out, and which: `step`, `()`, -1 if none, and `parts`, `(e,)`.
    - `solver_names`: names of the links of the contact solver; `Auto` in steps uses only "start",
      "RegularisedNewton" and "Splitting". `contact_names`: per interaction names of its contacts,
      `None` if they have none. `too_large`: whether the system has more unknowns than the methods that keep
      the times of impacts take.
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
    drifted: Int[Array, " s"]
    kinks: Int[Array, " s"]
    curved: Int[Array, " s"]
    struck: Int[Array, " s"]
    turned: Int[Array, " s"]
    wedged: Int[Array, " s"]
    coarse: Scalar
    worst_step: Count
    failed_step: Count
    failed_residual: Scalar
    crowded: Int[Array, "2"]
    event_step: Count
    end_time: Scalar
    flaws: Flaws
    solver_names: tuple[str, ...] = eqx.field(static=True)
    contact_names: tuple[tuple[str, ...] | None, ...] = eqx.field(static=True)
    too_large: bool = eqx.field(static=True)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is known of this run that makes its derivatives wrong, or one of several."""
        by = "Located(...), Corrected(...)"
        impacts = f"use {by} or EventDriven()"
        turns = f"{by} and EventDriven() keep them, of friction and relays with one row, and of "
        turns += "CoulombFriction in space"
        if self.too_large:
            impacts = turns = (
                f"the methods that keep them form the mass matrix, of up to {LARGEST} unknowns; compare such "
                "derivatives with those of a coarser mesh or with differences"
            )
        sentences = (
            (
                self.missed,
                "the times of {} impacts or turns of friction were not located, or the motion beside "
                "Corrected failed in so many steps, so derivatives through them are wrong: raise "
                "max_impacts, or take shorter steps",
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
            (
                self.struck,
                "{} impacts were stepped over, and the derivatives of their times are lost: those by "
                f"what moves them are wrong; {impacts}",
            ),
            (
                self.turned,
                "sliding reversed or a relay switched ({} times of a contact), and the derivatives of these "
                f"times are lost: those by what moves them are wrong; {turns}",
            ),
            (
                self.drifted,
                "at {} saved times the values of Corrected and the motion of its derivatives are apart, by "
                "more than 5 steps or as on two sides of an impact: take shorter steps, save at other "
                "times, or use Located(...)",
            ),
            (
                self.curved,
                "contacts lasted on curved surfaces ({} steps of a contact), and derivatives after them have "
                "only first order: use contacts_at=HalfExplicit() of the method inside, or shorter steps",
            ),
            (
                np.asarray(self.coarse) > COARSE,
                "steps were long for a method of first order: a state may be off by "
                f"{np.max(np.asarray(self.coarse), initial=0):.0%} of its range, and derivatives with it; "
                "take shorter steps, or theta = gamma = 1/2",
            ),
            (
                self.wedged,
                "friction drew a sliding contact in more than its load lifted it ({} times, Painlevé): such "
                "a step has no solution that slides, or several, and the one that was taken may stop the "
                "contact at once; compare with a smaller mu, or with a compliant contact",
            ),
            (
                np.asarray(self.margin) < NEAR_EDGE,
                f"{{}} of the saved intervals have a step within {NEAR_EDGE:g} of a change of mode "
                "(stats.margin), where the derivative is one of several: compare it with that of a "
                "start moved a little",
            ),
        )
        counted = ((int(np.sum(np.asarray(counts))), words) for counts, words in sentences)
        return tuple(words.format(count) for count, words in counted if count)


class Solution(eqx.Module):
    """A simulated motion.

    **Arguments:**

    - `ts`: saved times [s], `(t,)`. With `SaveAt.end()` there is no time axis, here and below.
    - `states`: `State` with a leading time axis: `states.q`, `states.v`; of a first-order system `states.v`
      is `x`, and `states.q` is `None`.
    - `impulses`: per interaction, the impulse [N s] since the previous saved time, `(t, c, k)`; zero
      at `t0`. For a first-order system `∫ lam dt`; its multipliers `lam` are in `details`.
    - `gaps`: per interaction `(t, c)` [m], or `None`.
    - `energy`: `energy.kinetic`, `.potential` and `.total` [J], `(t,)` each; `None` if unknown.
    - `stats`: `StepStatistics`. `result`: how the run ended; `message` gives it in words.
    - `integrals`: the value of each requested `Integral` from `t0` to the saved time, `(t, ...)`.
    - `impact_times`: times of the first impacts that were located [s], `(SaveAt.impacts,)`, padded
      with infinity; differentiable.
    - `event`: time and state of an event with `locate=True`, differentiable; else `None`.
    - `details`: output specific to the integrator, for the last step before each saved time (see the
      docstring of the integrator); `None` for most.

    All entries saved after an event repeat its time and state, with zero impulses.
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
        """`outcome`, and what is known of the run that makes its derivatives wrong (`stats.warnings`).

        Whether or not they are taken. Of a batch with failures: the outcome alone.

        **Raises:** `ValueError` under `jit` or a derivative, where nothing is known yet.
        """
        outcome = self.outcome
        bad = np.asarray(failed(self.result))
        if bad.ndim and bad.any():
            return outcome
        return "; ".join(filter(None, (outcome, *self.stats.warnings)))

    @property
    def outcome(self) -> str:
        """How the run ended, in words, with the step and its residual; empty if all went well.

        With the first step in which parts of the system left what its model holds for, such as elements
        inside out.
        For a batch: the number of failures, and the outcome of the first.

        **Raises:** `ValueError` under `jit` or a derivative, where nothing is known yet.
        """
        if any(map(is_traced, jax.tree.leaves((self.result, self.stats)))):
            raise ValueError(
                "a message is read from a finished run: return the solution from the function that is "
                "transformed, for a derivative with has_aux=True, and read it there."
            )
        stats, bad = self.stats, np.asarray(failed(self.result))
        ends = stats.failed_step, stats.failed_residual, stats.event_step, stats.end_time
        ends = self.result, *ends, stats.crowded
        if not bad.any() or bad.ndim == 0:
            words = (_words(stats.contact_names, *ends),) if bad.ndim == 0 else ()
            return "; ".join(filter(None, (*words, *sentences(stats.flaws))))
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        index = first[0] if len(first) == 1 else first
        ends, flaws = jax.tree.map(lambda x: x[first], (ends, stats.flaws))
        words = "; ".join((_words(stats.contact_names, *ends), *sentences(flaws)))
        return (
            f"{bad.sum()} of {bad.size} simulations failed, first the one at index {index}: {words}"
        )


def _words(names, result, failed_step, failed_residual, event_step, end_time, crowded) -> str:
    """The outcome of one simulation in words; all values must be concrete."""
    text = "" if bool(result == RESULTS.successful) else RESULTS[result]
    if bool(failed(result)):
        size = float(failed_residual)  # 0 if no solve failed: for example, the chart ended
        residual = f" with the relative residual {size:.1e}" if size else ""
        return f"step {int(failed_step)} failed{residual}: {text}{_without_room(names, *crowded)}"
    if int(event_step) >= 0:
        return f"{text}, at the end of step {int(event_step)}, t = {float(end_time):.6g} s"
    return text


def _without_room(names, interaction, contact) -> str:
    """Which contact had no room in a step, in words; empty if all had."""
    if int(interaction) < 0:
        return ""
    own = names[int(interaction)]
    which = f"contact {int(contact)}" if own is None else f"the contact of {own[int(contact)]}"
    return f"; the first without room is {which} of interaction {int(interaction)}"
