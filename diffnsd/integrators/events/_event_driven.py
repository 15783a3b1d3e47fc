"""Event-driven motion: the reference for time stepping through impacts and friction.

Between events the contacts of the index set `I` stay closed, at acceleration level:

    M v' = F + H_I^T lam_I,     d/dt u_I = 0,     lam_I >= 0

and all others are open. A sliding contact has the friction force of its slip direction,
`−mu lam_N u_T / |u_T|`; a sticking one has its tangential rows in `I`. The phase ends when a gap closes (an
impact, `M (v⁺ − v⁻) = H^T P` with the law), a force `lam_i` vanishes (the contact is released), a slip
vanishes (it sticks or reverses), or a sticking force reaches its bound (it slides). Then the modes of the
closed contacts at rest are determined again, by the laws between `lam` and accelerations.
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._jax import repeat_where_pending, where, without_derivative
from ..._result import RESULTS, first_error
from ..._types import Args, Scalar, State
from ...complementarity import AbstractSolver
from ...model import Model
from .._base import AbstractIntegrator, AbstractMemory, Carry, NoMemory, StepInfo
from .._impact import coupled, impact, normal_motion, slip_rows
from .._step import PRECISE, overflowed
from ._event_flow import Flow
from ._event_modes import modes
from ._event_phase import Phase, at_closing, rows_of, slow_slip, tiny_of, velocities
from ._event_run import Run, split
from ._refusals import ONCE
from ._slip_start import slip_start

NOT_OVER = 1e-2
"""Of the fastest impact of a step: one that is slower ends a sequence that is all but over."""


class EventDriven(AbstractIntegrator):
    """Event-driven scheme: smooth phases by an adaptive high-order method, events located to rounding.

    The derivative is that of the motion. A phase is differentiated with respect to its state, its
    parameters and its length; the length is the root of the closing gap, differentiated by the implicit
    function theorem; the impact is differentiated through its law. Together this is the saltation
    matrix, up to second derivatives, in forward and reverse mode. Measured relative errors of
    sensitivities on frictionless impact motions with known solutions, in one step: at most 4e-12
    (pendulum), 4e-15 on the others.

    A step goes from one grid time to the next, through all its events. Length and number of steps do
    not affect accuracy. A contact that closes and opens again between two evaluations of the gaps
    (`looks`) is missed.

    - An infinite bounce sequence ends after `max_impacts` impacts in a step: the next one is
      inelastic, and the contact is held from then on. The derivative is that of this motion. If it is
      faster than 1 % of the fastest one of the step, the sequence was not over: it counts as `missed`.
    - Contacts that close at the same instant and are coupled strike together.
    - Redundant contacts that persist have no unique forces and a singular matrix: remove some of
      them.
    - In space a slip ends below 1.5e-7 times the largest speed, at least 1.5e-7 (float64); what is left
      of it stops at once. Known motions of points: errors at most 1e-12, of sensitivities 4e-10
      where a curved slip stops; a ball, 2e-13 and 8e-12.
    - Friction in space has first derivatives; second ones raise `ValueError`.
    - Near rest a slip in space is stiff, at the rate `mu lam_N / (m |u_T|)`: slow slips that last need
      a larger `max_steps`. One that begins does so on a Radau polynomial of 7 nodes.
    - A sticking contact is held at zero slip, a joint at its current rate; both drift by the error of
      the solver.

    **Arguments:**

    - `solver`: explicit Runge-Kutta method of diffrax. `tolerance`: relative and absolute, of its
      error estimate.
    - `max_impacts`: per step. `max_steps`: of the solver in one phase. `looks`: minimum number
      of gap evaluations from an event to the end of the step.
    - `laws`: solver of the impacts and of the index set.

    Supports unilateral contacts with one row, or with Coulomb friction of one or two slip rows (not with
    further rows of rolling and spinning); dry friction of single rows; joints.

    Reference: F. Pfeiffer, C. Glocker, Multibody dynamics with unilateral contacts (1996),
    doi:10.1002/9783527618385; V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical
    systems (2008), doi:10.1007/978-3-540-75392-6, chapter 8.
    """

    solver: diffrax.AbstractSolver = diffrax.Dopri8()
    tolerance: float = eqx.field(default=1e-12, static=True)
    max_impacts: int = eqx.field(default=16, static=True)
    max_steps: int = eqx.field(default=256, static=True)
    looks: int = eqx.field(default=64, static=True)
    laws: AbstractSolver = PRECISE

    def __check_init__(self):
        if self.max_impacts < 1:
            raise ValueError(f"max_impacts must be at least 1, got {self.max_impacts}.")
        if self.looks < 1:
            raise ValueError(f"looks must be at least 1, got {self.looks}.")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance}.")

    @property
    def order(self) -> int:
        return int(self.solver.order(diffrax.ODETerm(lambda t, y, args: y)) or 1)

    @property
    def solver_names(self) -> tuple[str, ...]:
        # Here `solver` integrates the smooth motion.
        return self.laws.names

    @property
    def is_symplectic(self) -> bool:
        return False

    @property
    def keeps_impact_times(self) -> bool:
        return True

    @property
    def memory(self) -> AbstractMemory:
        return NoMemory()

    def supports(self, model: Model) -> str | None:
        if problem := super().supports(model) or model.compliance_problem:
            return problem
        if not model.interactions:
            return "EventDriven locates the events of contacts, and the model has none; use RKMK()"
        for interaction in model.interactions:
            law, slips = interaction.law, slip_rows(interaction)
            if law.needs_implicit_positions:
                return (
                    "EventDriven finds the closing of gaps by itself, and has no use for a law that "
                    f"sees them; use the law without {type(law).__name__}"
                )
            others = interaction.rows - len(slips) - law.is_unilateral
            if others and not law.holds_gap:
                name = type(law).__name__
                reason = f"not {name} with {interaction.rows} rows"
                if others == 1 and not law.is_unilateral:
                    reason = f"and {name} does not set `is_unilateral = True`"
                return (
                    "EventDriven moves unilateral contacts with one row or with friction in one or two "
                    "directions, without rolling and spinning, "
                    f"dry friction of single rows, and joints, {reason}; use Located(MoreauJean()), "
                    "whose derivatives are true too"
                )
        return None

    def second_derivative_problem(self, model: Model) -> str | None:
        return ONCE if any(len(slip_rows(i)) > 1 for i in model.interactions) else None

    @property
    def _flow(self) -> Flow:
        return Flow(self.solver, self.tolerance, self.max_steps)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        del model, t0, state, args
        return ()

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        counts = model.contacts(t0, state.q)
        c, dtype = sum(counts), state.v.dtype
        rows = rows_of(model, t0, state.q)
        none, zero = jnp.zeros(c, bool), jnp.zeros((), dtype)
        forces = jnp.zeros(len(rows.contact), dtype)
        start = Run(
            past=zero,
            state=state,
            impulses=forces,
            hit=none,
            released=none,
            loose=forces,
            pending=jnp.array(True),
            impacts=jnp.zeros((), jnp.int32),
            times=jnp.full(self.max_impacts, jnp.inf, dtype),
            fastest=zero,
            missed=jnp.zeros((), jnp.int32),
            passes=jnp.zeros((), jnp.int32),
            residual=zero,
            iterations=jnp.zeros((), jnp.int32),
            margin=jnp.full((), jnp.inf, dtype),
            violation=zero,
            solved_by=jnp.zeros((), jnp.int32),
            crowded=jnp.full(2, -1, jnp.int32),
            wedged=jnp.zeros((), jnp.int32),
            result=RESULTS.successful,
        )
        start = jax.tree.map(jnp.asarray, start)
        # A slip with several rows takes a phase more to begin, and one for each 60° that it turns.
        kinds = 2 + 2 * bool(np.any(rows.is_slip)) + 4 * bool(np.any(rows.turns))
        passes = kinds * self.max_impacts + 4
        run = repeat_where_pending(
            lambda run: self._phase(model, t0, h, args, run, passes), start, passes
        )
        late = RESULTS.where(run.passes < 0, RESULTS.too_many_steps, RESULTS.successful)
        impulses = split(run.impulses, counts, [i.rows for i in model.interactions])
        info = StepInfo(
            impulses=impulses,
            residual=run.residual,
            iterations=run.iterations,
            margin=run.margin,
            violation=run.violation,
            solved_by=run.solved_by,
            located=jnp.sum(jnp.isfinite(run.times), dtype=jnp.int32),
            impacts=run.times,
            missed=run.missed,
            crowded=run.crowded,
            wedged=run.wedged,
        )
        return run.state, info, carry, first_error(run.result, late)

    def _phase(self, model: Model, t0, h, args: Args, run: Run, passes: int) -> Run:
        """Applies the impact that is due, if any, then follows the smooth motion until the next event."""
        begin, length = t0 + run.past, h - run.past
        run = self._struck(model, begin, length, run)
        known, t, state, inputs = without_derivative((model, begin, run.state, args))
        gap, rate = normal_motion(known, t, state)
        tiny = tiny_of(known, state)
        # Contacts that cannot open have no gap: they are neither held nor left.
        closed = (gap <= tiny) & jnp.isfinite(gap)
        due = closed & (rate < -tiny)
        may_hold = closed & (jnp.abs(rate) <= tiny) & ~run.released
        given = known, t, state, inputs, may_hold, run.loose, self.laws
        held, stuck, side, fresh, solved, wedged = modes(*given)

        left = closed & ~held
        start = Phase(model, begin, run.state, held, left, stuck, side, fresh, args)
        part, event, end, impulses, result = self._followed(start, length, due)
        hit, freed, turned, loose, over = event
        s, end, impulses = at_closing(start, part * length, end, impulses, hit, turned)
        # Without an event the phase ends with the step, whose length has a derivative of its own.
        past = jnp.where(over, h, run.past + s)

        ok = RESULTS.successful
        solved = RESULTS.where(solved | jnp.any(due), ok, RESULTS.no_smooth_motion)
        result = first_error(first_error(run.result, solved), result)
        count = run.passes + 1
        exhausted = ~over & (count >= passes)
        return Run(
            past=past,
            state=end,
            impulses=run.impulses + impulses,
            hit=hit,
            released=freed,
            loose=loose,
            pending=~over & ~exhausted & (result == ok),
            impacts=run.impacts,
            times=run.times,
            fastest=run.fastest,
            missed=run.missed,
            passes=jnp.where(exhausted, -1, count),
            residual=run.residual,
            iterations=run.iterations,
            margin=run.margin,
            violation=run.violation,
            solved_by=run.solved_by,
            crowded=run.crowded,
            wedged=run.wedged + jnp.where(jnp.any(due), 0, wedged),
            result=result,
        )

    def _followed(self, phase: Phase, length: Scalar, due: Array):
        """The smooth motion to the next event.

        **Returns:** its part of the length; the event, see `_next_event`; the state there and the impulses,
        both differentiable; the result.
        """

        def through():
            part, event, found = self._next_event(without_derivative(phase), length, due)
            y, solved = self._flow.over(phase, part * length)
            return part, event, y, found & solved

        def begun():
            # A short piece of its own, after which the slip has its direction and the modes are the same.
            part, y, found = slip_start(phase, length, self.looks, 1e2 * self.tolerance)
            no, none = jnp.zeros_like(due), jnp.zeros_like(phase.stuck)
            return part, (no, no, none, 0 * phase.side, jnp.array(False)), y, found

        turns = phase.rows.turns
        if np.any(turns):
            begins = jnp.any(phase.fresh & turns) & ~jnp.any(due)
            part, event, y, found = jax.lax.cond(begins, begun, through)
        else:
            part, event, y, found = through()
        group, ok = phase.model.system.group, RESULTS.successful
        inside = group.angle_squared(jax.lax.stop_gradient(y[0])) < jnp.pi**2
        end = State(group.compose(phase.state.q, group.exp(y[0])), y[1])
        result = RESULTS.where(found, ok, RESULTS.too_many_steps)
        result = first_error(RESULTS.where(inside, ok, RESULTS.chart_exceeded), result)
        return part, event, end, y[2], result

    def _struck(self, model: Model, t: Scalar, length: Scalar, run: Run) -> Run:
        """The run after the impact of the contacts that closed in the last phase."""
        gap, rate = without_derivative(normal_motion(model, t, run.state))
        tiny = tiny_of(*without_derivative((model, run.state)))
        due = run.hit
        touching = due | ((gap <= tiny) & (jnp.abs(rate) <= tiny))
        elastic = jnp.where(run.impacts < self.max_impacts, 1.0, 0.0).astype(gap.dtype)
        # After `max_impacts` the impact is inelastic.
        factor = jnp.broadcast_to(elastic, gap.shape)
        masked = model.masked(t, run.state.q, touching, touching, factor)
        v, impulses, stats, crowded = impact(masked, t, length, run.state, self.laws)

        any_due = jnp.any(due)
        speed = jnp.max(jnp.where(due, -rate, 0), initial=0.0)
        cut = (run.impacts >= self.max_impacts) & (speed > NOT_OVER * run.fastest)
        now = any_due & (jnp.arange(self.max_impacts, dtype=jnp.int32) == run.impacts)
        v = jnp.where(any_due, v, run.state.v)
        kicks = jnp.where(any_due, jnp.concatenate([p.reshape(-1) for p in impulses]), 0)
        ok = RESULTS.successful
        result = RESULTS.where(any_due & ~stats.converged, RESULTS.not_converged, ok)
        crowded = jnp.where(any_due, crowded, -1)
        result = first_error(result, overflowed(crowded))
        return eqx.tree_at(
            lambda r: (
                r.state.v, r.impulses, r.released, r.impacts, r.times, r.fastest, r.missed, r.residual,
                r.iterations, r.margin, r.violation, r.solved_by, r.crowded, r.result,
            ),
            run,
            (
                v,
                run.impulses + kicks,
                run.released & ~due,
                run.impacts + any_due.astype(jnp.int32),
                jnp.where(now, t, run.times),
                jnp.maximum(run.fastest, speed),
                run.missed + cut.astype(jnp.int32),
                jnp.where(any_due, jnp.maximum(run.residual, stats.residual), run.residual),
                run.iterations + jnp.where(any_due, stats.iterations, 0),
                jnp.where(any_due, jnp.minimum(run.margin, stats.margin), run.margin),
                jnp.where(any_due, jnp.maximum(run.violation, stats.violation), run.violation),
                jnp.where(any_due, jnp.maximum(run.solved_by, stats.solved_by), run.solved_by),
                jnp.where(run.crowded < 0, crowded, run.crowded),
                first_error(run.result, result),
            ),
        )  # fmt: skip

    def _next_event(self, phase: Phase, length: Scalar, due: Array):
        """The next event of a phase: when, as a fraction of its length, and what happens.

        Immediate if contacts are `due`: closed and still closing. Of contacts that close together, the
        first one and all that are coupled to it are hit; the others have their own event.

        **Returns:** the fraction; the event: contacts that close and contacts that are released, `(c,)`,
        slips that vanish, and directions in which sticking rows begin to slide, else 0, `(r,)`, and whether
        none came; whether the search succeeded.
        """
        length = jax.lax.stop_gradient(length)

        def watch(t, y, args, **rest):
            del args, rest
            normal, slip = phase.distances(t, length, y)
            return jnp.minimum(jnp.min(normal, initial=jnp.inf), jnp.min(slip, initial=jnp.inf))

        solution = self._flow.until(phase, length, watch, self.looks)
        part, y = solution.ts[-1], jax.tree.map(lambda x: x[-1], solution.ys)  # pyright: ignore
        happened = solution.result == diffrax.RESULTS.event_occurred
        found = happened | (solution.result == diffrax.RESULTS.successful)
        now = jnp.any(due)
        happened, part = happened | now, jnp.where(now, 0, part)
        normal, slip = phase.distances(part, length, y)
        t, state = phase.at(part, length, y)
        lam = phase.acceleration(t, state)[1]
        # Compiled code may compute these functions twice, with another rounding: no event is lost by that.
        scales = phase.model.system.scales(state)
        size = jnp.maximum(jnp.max(jnp.abs(lam), initial=1), jnp.maximum(*scales))
        least = watch(part, y, None) + 1e2 * jnp.finfo(lam.dtype).eps * size
        released = phase.held & (normal <= least) & happened & ~now
        changes = (slip <= least) & happened & ~now
        slides, breaks = changes & (phase.side_size > 0), changes & phase.stuck
        # A slip that has turned but is not slow goes on in the next phase.
        rows, u = phase.rows, velocities(phase.model, t, state)
        slow = rows.size(u) < 2 * slow_slip(phase.model, phase.state)
        turned = slides & (slow | ~rows.turns)
        force = rows.size(lam)
        loose = jnp.where(breaks, -lam / jnp.where(breaks & (force > 0), force, 1), 0)
        gaps = jnp.where(phase.held, jnp.inf, normal)
        nearest = jnp.min(gaps, initial=jnp.inf)
        closes = gaps <= jnp.maximum(nearest, tiny_of(phase.model, phase.state))
        closes = jnp.where(now, due, closes & jnp.isfinite(gaps))
        closes = closes & happened & ~jnp.any(released) & ~jnp.any(changes)
        first = closes & (jnp.cumsum(closes, dtype=jnp.int32) == 1)
        state = where(now, phase.state, state)
        hit = first | (closes & coupled(phase.model, t, state, first))
        event = hit, released, turned, loose, ~happened
        return jnp.where(happened, part, 1.0), event, found | now
