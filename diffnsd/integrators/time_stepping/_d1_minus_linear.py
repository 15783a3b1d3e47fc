"""A half-explicit scheme of second order that keeps contact forces and impulses apart."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..._numerics import matvec, max_abs
from ..._result import RESULTS
from ..._types import Args, Local, Scalar, State, Vector
from ...complementarity import (
    AbstractAdjoint,
    AbstractSolver,
    Auto,
    Block,
    ImplicitAdjoint,
    MixedProblem,
    solve_mixed,
)
from ...complementarity.problem._problem import broadcast_law
from ...model import Model
from .._base import AbstractIntegrator, AbstractMemory, Carry, StepInfo, WarmStart
from .._contacts import all_solved, build_block
from .._impact import free_acceleration
from .._step import outcome
from .._warm_start import zero_impulses

Masks = list[Bool[Array, " c"]]


class ContactForces(eqx.Module):
    """The parts of the contact impulses of a step of `D1MinusLinear`.

    **Arguments:** `start`, `end`: forces [N] just after the start and just before the end of the
    step; `impact`: the impulse [N s] at its end. Per interaction, `(c, k)`. The total over the step
    is `h/2 (start + end) + impact`.
    """

    start: tuple[Local, ...]
    end: tuple[Local, ...]
    impact: tuple[Local, ...]


class D1MinusLinear(AbstractIntegrator):
    """A time-discontinuous Galerkin scheme: half-explicit trapezoidal rule, impacts at the nodes.

        M0 a0 = F(t0, q0, v0) + H0^T L0            contacts that are closed and do not part
        q1 = q0 exp(h v0 + h²/2 a0)
        M1 a1 = F(t1, q1, v0 + h a0) + H1^T L1     contacts that stay closed
        M1 (v1 − v1⁻) = H1^T P,   v1⁻ = v0 + h/2 (a0 + a1)       closed contacts, with their law

    The forces `L` satisfy `0 <= du/dt ⟂ L >= 0`. Second order between impacts, with contact forces
    apart from impulses; explicit, so stable for small steps only. Positions are not corrected.
    `Solution.details` holds the `ContactForces`.

    **Arguments:** `solver`, `adjoint`: as in `MoreauJean`. Supports frictionless contacts
    (`NewtonImpact`, `Complementarity`) and equalities.

    Reference: T. Schindler, V. Acary, Timestepping schemes for nonsmooth dynamics based on
    discontinuous Galerkin methods (2014), doi:10.1016/j.matcom.2012.04.012.
    """

    solver: AbstractSolver = Auto()
    adjoint: AbstractAdjoint = ImplicitAdjoint()

    @property
    def order(self) -> int:
        return 2

    @property
    def is_symplectic(self) -> bool:
        return False

    @property
    def memory(self) -> AbstractMemory:
        return WarmStart()

    def supports(self, model: Model) -> str | None:
        problem = super().supports(model) or model.compliance_problem or all_solved(model)
        if problem:
            return problem
        for law in (i.law for i in model.interactions):
            frictionless = law.is_unilateral and law.rows == 1 and not law.needs_implicit_positions
            if not (frictionless or law.holds_gap):
                return (
                    f"D1MinusLinear has no forces for {type(law).__name__}, only for frictionless "
                    "contacts (NewtonImpact, Complementarity) and Equality; use MoreauJean()"
                )
        return None

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        del args
        zero = zero_impulses(model, t0, state)
        return ContactForces(zero, zero, zero)

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        group, v0, t1 = model.system.group, state.v, t0 + h
        closed0 = _closed(model, t0, state.q)
        stays = _stays(model, t0, state, closed0)
        a0, first, stats0 = self._forces(model, t0, state, stays, args, carry.start)

        q1 = group.compose(state.q, group.exp(h * v0 + h * h / 2 * a0))
        end, half = State(q1, v0 + h * a0), v0 + h / 2 * a0
        closed = [a & b for a, b in zip(closed0, _closed(model, t1, q1), strict=True)]
        falling = State(q1, half + h / 2 * free_acceleration(model, t1, end, args))
        stays = _stays(model, t1, falling, closed)
        a1, second, stats1 = self._forces(model, t1, end, stays, args, carry.end)

        before = State(q1, half + h / 2 * a1)
        blocks = tuple(build_block(i, model, t1, before, h, 0.0) for i in model.interactions)
        v1, impact, stats2 = self._solve(model, t1, before.v, q1, blocks, carry.impact)

        details = ContactForces(first, second, impact)
        impulses = jax.tree.map(lambda a, b, p: h / 2 * (a + b) + p, first, second, impact)
        stats = stats0.then(stats1).then(stats2)
        info = StepInfo.of(impulses, stats, details)
        result = outcome(stats, jnp.array(True), v1)
        return State(q1, v1), info, jax.lax.stop_gradient(details), result

    def _forces(self, model, t, state, stays: Masks, args, warm):
        """Acceleration, contact forces `(c, k)` of the contacts that stay, and statistics."""
        a = free_acceleration(model, t, state, args)
        parts = zip(model.interactions, stays, strict=True)
        blocks = tuple(_force_block(i, model, t, state, mask) for i, mask in parts)
        return self._solve(model, t, a, state.q, blocks, warm)

    def _solve(self, model, t, free: Vector, q, blocks, warm):
        """`M (x − free) = H^T z` with the laws of the blocks."""
        mass = model.system.mass(t, q)
        start = tuple(jnp.moveaxis(z, 0, 1) for z in warm)
        problem = MixedProblem(mass, matvec(mass, free), blocks)
        x, z, stats = solve_mixed(problem, start, self.solver, self.adjoint)
        return x, tuple(jnp.moveaxis(part, 1, 0) for part in z), stats


def _closed(model: Model, t: Scalar, q) -> Masks:
    """Which contacts of every interaction are closed; equalities always are, disabled ones never."""
    masks = []
    counts = model.contacts(t, q)
    for interaction, c in zip(model.interactions, counts, strict=True):
        gap, mask = interaction.held(interaction.on(model.system).gap(t, q)), interaction.mask
        if gap is None or interaction.law.holds_gap:
            closed = jnp.ones((c,), bool)
        else:
            closed = jax.lax.stop_gradient(gap) <= 8 * jnp.finfo(gap.dtype).eps
        masks.append(closed if mask is None else mask.on & closed)
    return masks


def _stays(model: Model, t: Scalar, state: State, closed: Masks) -> Masks:
    """Which closed contacts do not separate at the velocity of `state`."""
    slack = 8 * jnp.finfo(state.v.dtype).eps * max_abs(state.v)
    masks = []
    for interaction, mask in zip(model.interactions, closed, strict=True):
        u = interaction.on(model.system).output(model.system.group, t, state, None)[:, 0]
        parts = jax.lax.stop_gradient(u > slack)
        masks.append(mask if interaction.law.holds_gap else mask & ~parts)
    return masks


def _force_block(interaction, model: Model, t: Scalar, state: State, active) -> Block:
    """The law on the rate of the local velocity, `du/dt = H a + (dH/dt) v + ...`, without shift."""
    group, k = model.system.group, interaction.rows
    t = jnp.asarray(t, state.v.dtype)

    def along(s):
        q = group.compose(state.q, group.exp(s * state.v))
        return interaction.on(model.system).output(group, t + s, State(q, state.v), None)

    zero = jnp.zeros_like(t)
    rate = jax.jvp(along, (zero,), (jnp.ones_like(zero),))[1].T[:k]
    jacobian = interaction.on(model.system).linearised(group, t, state.q)[0][:k]
    law = broadcast_law(interaction.law, jacobian.shape[2], state.v.dtype)
    return Block(jacobian, None, rate, law, active)
