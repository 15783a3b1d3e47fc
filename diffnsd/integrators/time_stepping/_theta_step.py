"""The step that mechanisms and first-order systems share.

With the smooth defect `d(v)` of a scheme and the gain `G` of forces (`h` for theta rules) it solves

    d(v1) = H^T P + G (w r + (1 − w) r0),        r = g(t_p, x_p, lam),
    K* ∋ u1 + bias ⟂ P ∈ K,                      K* ∋ h(t_p, x_p, lam) ⟂ lam ∈ K

Contacts relate velocities to impulses `P`. Relations of states relate `x_p = (1 − p) x0 + p x1`, at the
point `p` of the step, to forces `lam`, and the new input has the weight `w`; compliant ones relate the
position at `theta` to the mean force. A first-order system is one without positions: `q = None`,
`v = x`, `M = E`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._block_rows import dense
from ..._jax import where
from ..._numerics import UNROLL_LIMIT, newton_solve
from ..._result import RESULTS, first_error
from ..._types import Args, Config, Scalar, State, Vector
from ...complementarity import Block, MixedProblem
from ...groups import Exponential
from ...laws import Context
from ...model import Interaction, Model
from .._base import AbstractIntegrator, AbstractMemory, StepInfo, WarmStart
from .._contacts import (
    build_block,
    context,
    law_at,
    nearest_switch,
)
from .._selection import left_out, select
from .._step import (
    Contact,
    Linearisation,
    linear_problem,
    nonlinear_problem,
    outcome,
    overflowed,
    own_parts,
    solve_step,
)
from ._large_step import large_step
from ._points import AbstractPoint, AtIterate


class Smooth(NamedTuple):
    """A scheme on one step: `defect(v)`, and `gain` times a force.

    `matrix`: that of a linearised step, by default the derivative of `defect`.
    """

    defect: Callable[[Vector], Vector]
    gain: Callable[[Vector], Vector]
    matrix: Array | None = None


class AbstractStepScheme(AbstractIntegrator):
    """A scheme that defines its motion without laws, `smooth`; has `newton`, `solver` and `adjoint`."""

    @property
    def is_symplectic(self) -> bool:
        return False

    @property
    def memory(self) -> AbstractMemory:
        # With a weight below 1, also the input at the start, which `init` computes from any state.
        return WarmStart()

    @property
    def weight(self) -> float:
        """Weight of the new input, in [0, 1]; the previous one has the rest."""
        return 1.0

    def linear_parts(self, model: Model, t0, h, state: State, args: Args):
        """`Step.linear`; `None`, the default, where a step is linearised by its derivatives, or solved."""
        return None

    @abstractmethod
    def smooth(self, step: "Step") -> Smooth:
        """The equations of a step without its laws, and how a force enters them."""


class Step(eqx.Module):
    """A step of a scheme: everything that its equations depend on.

    **Arguments:** `scheme`: an `AbstractStepScheme`; `model`: with the interactions that are solved;
    `warm`: initial multipliers, per interaction `(k, c)`; `input0`: `r0`, with a weight below 1; `linear`:
    matrix and force of a linearised step, if the system gives them (`AbstractSystem.linear_step`).
    """

    scheme: Any
    model: Model
    t0: Scalar
    h: Scalar
    state: State
    args: Args
    warm: tuple[Array, ...]
    input0: Vector | None = None
    linear: tuple[Array, Vector] | None = None

    def of_part(self, system: Any, state: State) -> "Step":
        """The step of one system of a product, without contacts."""
        return Step(self.scheme, Model(system), self.t0, self.h, state, self.args, ())

    def place(self, point: AbstractPoint, v: Vector) -> Config:
        """The configuration at a point of the step with the end velocity `v`; `None` without positions."""
        if self.state.q is None:
            return None
        group = self.model.system.group
        return point.configuration(group, self.state, self.h, self.scheme.theta, v)

    def point(self, interaction: Interaction) -> AbstractPoint:
        """Where the rows of an interaction are taken."""
        scheme = self.scheme
        return scheme.joints_at if interaction.law.holds_gap else scheme.contacts_at

    def timed(self, point: AbstractPoint, v: Vector) -> tuple[Scalar, Config]:
        """Time and configuration of a point."""
        return self.t0 + point.time * self.h, self.place(point, v)

    def block(self, interaction: Interaction, by_blocks: bool) -> Block:
        """The block of an interaction whose point is known at the start."""
        point, v0 = self.point(interaction), self.state.v
        ahead = None if point.ahead is None else self.timed(point.ahead, v0)
        return build_block(
            interaction,
            self.model,
            self.t0,
            self.state,
            self.h,
            self.scheme.gamma,
            at=self.timed(point, v0),
            ahead=ahead,
            by_blocks=by_blocks,
        )

    def output(self, interaction: Interaction, v: Vector, w: Vector) -> Array:
        """Local velocities `(c, k)` of the velocity `w` for which a law holds, at the end velocity `v`."""
        relation, group = interaction.on(self.model.system), self.model.system.group
        point = self.point(interaction)

        def velocity(w, at=point):
            t, q = self.timed(at, v)
            return relation.output(group, t, State(q, w), None)[:, : interaction.rows]

        u = velocity(w)
        if point.ahead is not None:
            u = u + velocity(self.state.v, point.ahead) - velocity(self.state.v)
        return u

    def blocks(self, by_blocks: bool) -> tuple[Block, ...]:
        """The blocks of all interactions, as `block`."""
        return tuple(self.block(i, by_blocks) for i in self.model.interactions)

    def at(self, p: float, v: Vector) -> State:
        """The state at the fraction `p` of the step with the end velocity `v`."""
        x = v if p == 1 else (1 - p) * self.state.v + p * v
        return State(self.place(AtIterate(p), v), x)

    def equations(self) -> Linearisation:
        """The equations of the step, linearised at any point."""
        scheme, model, state = self.scheme, self.model, self.state
        interactions, n = model.interactions, state.v.shape[0]
        if not self.is_linear:
            by_force = any(map(_acts_by_force, interactions))
            motion, contacts = self.motion()

            def inputs(v, z):
                del z
                system, places = model.system, [self.timed(self.point(i), v) for i in interactions]
                return [
                    i.on(system).linearised(system.group, *at)[0][: i.rows]
                    for i, at in zip(interactions, places, strict=True)
                ]

            return nonlinear_problem(motion, contacts, n, None if by_force else inputs)

        size = model.system.block_size if n > UNROLL_LIMIT else None
        blocks = self.blocks(size is not None)
        smooth = scheme.smooth(self)
        return linear_problem(smooth.defect, lambda v: blocks, size, smooth.matrix)

    @property
    def is_linear(self) -> bool:
        """Whether contacts are taken where they are known, and multipliers enter as impulses."""
        # Schemes for first-order systems have no point of contact.
        return not any(
            _acts_by_force(i) or self.point(i).is_implicit for i in self.model.interactions
        )

    def guess(self) -> Vector:
        """The velocity at which the equations are linearised first: as at the start, or as predicted."""
        if self.linear is None or not self.is_linear:
            return self.state.v
        matrix, force = self.linear
        return self.state.v + newton_solve(matrix, self.h * force)

    def motion(self) -> tuple[Callable, tuple[Contact, ...]]:
        """The function `(v, z)` -> residual of the equations and outputs; the `Contact`s."""
        smooth, weight = self.scheme.smooth(self), self.scheme.weight
        known = 0 if weight == 1 else smooth.gain((1 - weight) * self.input0)
        coupled = [
            self._coupling(i, z0, smooth.gain)
            for i, z0 in zip(self.model.interactions, self.warm, strict=True)
        ]

        def motion(v, z):
            total, outputs = smooth.defect(v) - known, []
            for (_, act), part in zip(coupled, z, strict=True):
                impulse, output = act(v, part)
                total = total - impulse
                outputs.append(output)
            return total, tuple(outputs)

        return motion, tuple(contact for contact, _ in coupled)

    def _coupling(self, interaction: Interaction, z0, gain) -> tuple[Contact, Callable]:
        """The `Contact` of an interaction, and `act(v, z)`, which returns its impulse and output."""
        scheme, t0, h, state = self.scheme, self.t0, self.h, self.state
        system, relation = self.model.system, interaction.on(self.model.system)
        # The unknowns of compliant relations are impulses too, and their outputs are divided by h, like
        # velocities: their laws hold for y as for y/h.
        p, unit = (scheme.theta, h) if relation.is_compliant else (scheme.point, 1)

        def by_force(v, z):
            t, at, lam = t0 + p * h, self.at(p, v), z.T / unit
            output = interaction.output(system, t, at, lam).T / unit
            return gain(scheme.weight * interaction.input(system, t, at, lam)), output

        def by_impulse(v, z):
            # Affine in the velocity: the pull-back is `H^T`, by virtual power.
            output, pull = jax.vjp(lambda w: self.output(interaction, v, w), v)
            return pull(z.T)[0], output.T

        if relation.needs_positions:
            # Compliant contacts have no impacts, and so no velocity before impact.
            before = jnp.zeros_like if relation.is_compliant else lambda u: u
            around = context(interaction, self.model, t0, state, h, scheme.gamma, before)
        else:
            y0 = interaction.output(system, t0, state, z0.T).T
            ones = jnp.ones_like(y0[0])
            around = Context(y0, -jnp.inf * ones, h * ones, p * ones)
        shift, law, active = law_at(interaction, around)
        law = law.in_step(around) if relation.needs_positions else law
        act = by_force if _acts_by_force(interaction) else by_impulse
        return Contact(shift, law, active, relation.has_feedthrough), act


def _acts_by_force(interaction: Interaction) -> bool:
    """Whether a relation relates positions or states to forces, instead of velocities to impulses."""
    return interaction.relation.is_compliant or not interaction.relation.needs_positions


def theta_rule(step: Step, mass_at: AbstractPoint | None = None) -> Smooth:
    """The theta rule on `M dv = f dt`, with the mass matrix at `mass_at`, by default the theta point."""
    system, t0, h, state, args = step.model.system, step.t0, step.h, step.state, step.args
    theta, matrix, force = step.scheme.theta, None, None
    if step.linear is not None:
        matrix, force = step.linear
    elif theta < 1:
        force = system.force(t0, state, args)
    known = h * (1 - theta) * force if theta < 1 else 0

    def defect(v):
        gained = State(step.place(mass_at or AtIterate(theta), v), v - state.v)
        moved = system.momentum(t0 + theta * h, gained) - known
        return moved - h * theta * system.force(t0 + h, step.at(1, v), args) if theta else moved

    def gain(r):
        return h * r

    return Smooth(defect, gain, matrix)


def theta_step(scheme, model: Model, t0, h, state: State, warm, args: Args, input0=None):
    """One step; see this module's docstring.

    **Arguments:** `warm`: per interaction what the step before has left, `Recent` or `Keyed`; `input0`: as in
    `Step`.

    **Returns:** the state at the end; the report, with multipliers `(c, k)`, which are impulses, or forces
    for relations of states; the result; the warm start of the next step.
    """
    chosen = [select(i, model, t0, state.q) for i in model.interactions]
    interactions, selections = [i for i, _ in chosen], [s for _, s in chosen]
    pairs = zip(selections, warm, strict=True)
    z0 = tuple(jnp.moveaxis(part.guess(s), 0, 1) for s, part in pairs)
    linear = scheme.linear_parts(model, t0, h, state, args)
    reduced = Model(model.system, interactions)

    def memory(multipliers):
        every = zip(warm, selections, multipliers, strict=True)
        return tuple(part.then(s, z) for part, s, z in every)

    step = Step(scheme, reduced, t0, h, state, args, z0, input0, linear)
    if model.system.is_large(t0, state, args):
        v, z, stats, result = large_step(step, z0)
        end, left, multipliers, crowded = _ended(step, selections, v, z)
        info = StepInfo.of(multipliers, stats, crowded=crowded)
        result = first_error(first_error(left, result), overflowed(crowded))
        return end, info, result, memory(multipliers)
    guess = jnp.concatenate([step.guess(), *own_parts(interactions, z0)])
    v, z, stats, converged = solve_step(
        Step.equations, step, guess, z0, scheme.solver, scheme.newton, scheme.adjoint
    )
    end, left, multipliers, crowded = _ended(step, selections, v[: state.v.shape[0]], z)
    result = first_error(left, outcome(stats, converged, end.v, crowded))
    known = model, t0, state, h, scheme.prediction
    switch = nearest_switch(*known, selections, multipliers)
    stats = eqx.tree_at(lambda s: s.margin, stats, jnp.minimum(stats.margin, switch))
    return end, StepInfo.of(multipliers, stats, crowded=crowded), result, memory(multipliers)


def _ended(step: Step, selections, v: Vector, z):
    """The state at the end, whether it is in the chart, the multipliers of all contacts, the first left out.

    Where a body turns by half a revolution the state stays as it was: what the midpoint of such a step says
    of the turning forces is no approximation, and they would feed it with energy.
    """
    end, state = step.at(1, v), step.state
    pairs = zip(selections, z, strict=True)
    multipliers = tuple(s.spread(jnp.moveaxis(part, 1, 0)) for s, part in pairs)
    crowded, left = left_out(selections, end.v, step.h), RESULTS.successful
    if state.q is not None:
        theta = step.scheme.theta
        turn = step.h * (theta * end.v + (1 - theta) * state.v)
        inside = Exponential().inside(step.model.system.group, turn)
        # What is not finite has a result of its own.
        exceeds = ~inside & jnp.all(jnp.isfinite(turn))
        left = RESULTS.where(exceeds, RESULTS.chart_exceeded, RESULTS.successful)
        end = where(exceeds, state, end)
    return end, left, multipliers, crowded


def rows(problem: MixedProblem) -> tuple[Array, Array]:
    """Outputs and inputs of a dense problem, each `(m, n)`: contact by contact, normal first."""

    def flat(parts):
        n = problem.rhs.shape[0]
        each = [jnp.transpose(dense(x), (2, 0, 1)).reshape(-1, n) for x in parts]
        return jnp.concatenate([*each, jnp.zeros((0, n), problem.rhs.dtype)])

    blocks = problem.blocks
    return flat([b.output for b in blocks]), flat(
        [b.output if b.input is None else b.input for b in blocks]
    )
