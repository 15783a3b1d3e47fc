"""The step that all variational integrators share, in position-momentum form, with contacts.

A discrete Lagrangian gives two discrete Legendre transforms, one for each end of a step. With the
left-trivialised momentum `μ = M v` and the displacement `x` of the step, `q1 = q0 τ(x)`,

    pushed(x)            = μ0 + a0(x) + H0^T P0          solved for x
    μ⁻                   = Ad_τ(x)^T (μ0 + a0(x) + H0^T P0)
    M(q1) v1 − a1(x, v1) = μ⁻ + H1^T P1                  solved for v1

`a0` and `a1` are the impulses of the forces at the two ends. Because `μ⁻` is transported by `Ad^T`
and not taken from the equation that was solved, momenta of symmetries are conserved exactly, whatever
the tolerance of Newton's method.

Contacts are momentum kicks at both ends. `P0` acts on contacts that are closed at the start and
prevents them from closing further: the law is written for the mean rate of the gap over the step,
`(g(q1) − g(q0))/h`, which satisfies bilateral constraints exactly and lets persistent contacts neither
sink nor lift. `P1` acts on contacts that are closed at the end, by the impact law with the arriving
velocity as `u⁻`; a contact that pushed at the start is not an impact and has `u⁻ = 0`. For equality
constraints this is RATTLE, for an elastic impact the reflection of the momentum, which conserves the
energy at the node.

Reference: J. Marsden, M. West, Discrete mechanics and variational integrators (2001),
doi:10.1017/S096249290100006X; H. Andersen, RATTLE (1983), doi:10.1016/0021-9991(83)90014-1.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._block_rows import dense
from ..._jax import where
from ..._numerics import lu_solve, newton_solve
from ..._result import RESULTS, first_error
from ..._types import Args, Config, Scalar, State, Vector
from ...complementarity import AbstractSolver, Block
from ...groups import AbstractRetraction
from ...model import Interaction, Model
from ...systems import AbstractSystem
from .._base import AbstractIntegrator, AbstractMemory, Carry, StepInfo, WarmStart
from .._contacts import build_block
from .._selection import left_out, select
from .._step import Newton, linear_problem, outcome, solve_step
from .._warm_start import zero_impulses


class Discretisation(eqx.Module):
    """The discrete Lagrangian of one step as functions of its unknowns.

    The unknowns `z (m,)` are velocities; the last `n` of them are the displacement of the whole step
    over its length, `z[-n:] = x/h`.

    **Arguments:**

    - `inner(z) -> (m - n,)`: the equations of the inner nodes, zero at the solution.
    - `pushed(z) -> (n,)`: the momentum at the start that belongs to `z`, without forces.
    - `start(z) -> (n,)`: impulse `a0` of the forces at the start.
    - `end(z, v1) -> (n,)`: impulse `a1` at the end.
    - `guess`: first guess, shape `(m,)`.
    """

    inner: Callable
    pushed: Callable
    start: Callable
    end: Callable
    guess: Float[Array, " m"]


class AbstractVariational(AbstractIntegrator):
    """An integrator derived from a discrete Lagrangian; see this module's docstring."""

    retraction: eqx.AbstractVar[AbstractRetraction]
    newton: eqx.AbstractVar[Newton]
    solver: eqx.AbstractVar[AbstractSolver]

    @abstractmethod
    def discretise(
        self, system: AbstractSystem, t0: Scalar, h: Scalar, state: State, args: Args
    ) -> Discretisation:
        """The equations of a step of length `h` from `t0`."""

    is_symplectic: ClassVar[bool] = True
    memory: ClassVar[AbstractMemory] = WarmStart()

    def supports(self, model: Model) -> str | None:
        problem = super().supports(model) or model.compliance_problem
        return problem or self.retraction.problem(model.system.group)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        return zero_impulses(model, t0, state)

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        """One step in position-momentum form; see this module's docstring."""
        system, n, t1 = model.system, state.v.shape[0], t0 + h
        chosen = [select(i, model, t0, state.q) for i in model.interactions]
        parameters = (self, model, [i for i, _ in chosen], t0, h, state, args)
        d = self.discretise(system, t0, h, state, args)
        warm = _warm(chosen, carry)
        z, p0, stats0, solved0 = solve_step(
            _first_half, parameters, d.guess, warm, self.solver, self.newton
        )
        x = h * z[-n:]
        moved = self.retraction.map(system.group, x)
        q1 = system.group.compose(state.q, moved)
        kicked = system.momentum(t0, state) + d.start(z) + _impulse(model, chosen, t0, state.q, p0)
        arriving = system.group.coAd(moved, kicked)

        held = _spread(chosen, p0)
        chosen1 = [select(i, model, t1, q1) for i in model.interactions]
        guess = lu_solve(system.mass(t1, q1), arriving)
        persistent = tuple(s.pick(x)[:, 0] > 0 for x, (_, s) in zip(held, chosen1, strict=True))
        parameters = (self, model, [i for i, _ in chosen1], t0, h, state, args)
        parameters = (*parameters, (q1, z, arriving, jax.lax.stop_gradient(guess), persistent))
        v1, p1, stats1, solved1 = solve_step(
            _second_half, parameters, guess, _warm(chosen1, carry), self.solver, self.newton
        )
        # M v1 is the momentum of the next step: solve for v1 again, whatever Newton's tolerance. Without the
        # zero term the compiler multiplies by the rounded inverse of a constant mass, a bias that drifts.
        leaving = arriving + d.end(z, State(q1, v1)) + _impulse(model, chosen1, t1, q1, p1)
        v1 = lu_solve(system.mass(t1, q1) + 0 * leaving[None], leaving)
        impulses = jax.tree.map(jnp.add, held, _spread(chosen1, p1))

        crowded = left_out([selection for _, selection in chosen], z[-n:], h)
        result = first_error(
            outcome(stats0, solved0, v1, crowded), outcome(stats1, solved1, v1, crowded)
        )
        inside = self.retraction.inside(system.group, x)
        left = RESULTS.where(inside, RESULTS.successful, RESULTS.chart_exceeded)
        stats = stats0.then(stats1)
        info = StepInfo.of(impulses, stats, crowded=crowded)
        new = _kept(State(q1, v1), state, inside)
        return new, info, jax.lax.stop_gradient(impulses), first_error(left, result)


def acceleration(system: AbstractSystem, t: Scalar, state: State, args: Args) -> Vector:
    """`v'` at a state, for first guesses only: it has no derivative."""
    found = newton_solve(system.mass(t, state.q), system.force(t, state, args))
    return jax.lax.stop_gradient(found)


def displaced(scheme, system, q: Config, x: Vector) -> Config:
    """`q τ(x)`."""
    return system.group.compose(q, scheme.retraction.map(system.group, x))


def _first_half(parameters):
    """Equations of the displacement, with the contacts that are closed at the start."""
    scheme, model, interactions, t0, h, state, args = parameters
    d = scheme.discretise(model.system, t0, h, state, args)
    before = model.system.momentum(t0, state)

    def residual(z):
        outer = d.pushed(z) - d.start(z) - before
        return jnp.concatenate([d.inner(z), outer])

    def blocks(z):
        return tuple(_mean_block(i, scheme, model, t0, h, state, z) for i in interactions)

    return linear_problem(residual, blocks)


def _second_half(parameters):
    """Equations of the velocity at the end, with the contacts that are closed there."""
    scheme, model, interactions, t0, h, state, args, found = parameters
    q1, z, arriving, guess, persistent = found
    d, t1 = scheme.discretise(model.system, t0, h, state, args), t0 + h

    def residual(v):
        return model.system.momentum(t1, State(q1, v)) - d.end(z, State(q1, v)) - arriving

    def blocks(v):
        late = lu_solve(model.system.mass(t1, q1), d.end(z, State(q1, guess)))
        free = State(q1, guess + late)

        def at_impact(i, persistent):
            def before(u):
                return jnp.where(persistent[None], 0.0, u)

            # The impact has no duration: limited forces have already acted at the start.
            return build_block(i, model, t1, free, h, 0.0, before, duration=0.0)

        return tuple(at_impact(i, p) for i, p in zip(interactions, persistent, strict=True))

    return linear_problem(residual, blocks)


def _mean_block(interaction: Interaction, scheme, model: Model, t0, h, state, z) -> Block:
    """The block at the start of the step; its normal row is the mean rate of the gap over the step."""
    n, m = state.v.shape[0], z.shape[0]
    relation, group = interaction.on(model.system), model.system.group
    block = build_block(interaction, model, t0, state, h, 0.0, jnp.zeros_like)
    fixed, offset = dense(block.output), block.offset
    output = fixed
    gap0 = relation.gap(t0, state.q)
    if gap0 is not None:
        length = jnp.where(h != 0, h, 1)
        since = 0.0 if interaction.law.holds_gap else gap0

        def rate(mean):
            gap1 = relation.gap(t0 + h, displaced(scheme, model.system, state.q, h * mean))
            return (gap1 - since) / length  # pyright: ignore[reportOptionalOperand,reportOperatorIssue]

        slope = jax.jacfwd(rate)(z[-n:]).T
        _, drift = relation.linearised(group, t0, state.q)
        here = rate(z[-n:]) - jnp.sum(slope * z[-n:, None], axis=0)
        output = jnp.concatenate([slope[None], output[1:]])
        offset = jnp.concatenate([(offset[0] - drift[0] + here)[None], offset[1:]])
    pad = ((0, 0), (m - n, 0), (0, 0))
    return Block(jnp.pad(output, pad), jnp.pad(fixed, pad), offset, block.law, block.active)


def _warm(chosen, carry: Carry):
    """Half of the impulses of the last step for each end, in the layout of the solver."""
    return tuple(jnp.moveaxis(s.pick(z), 0, 1) / 2 for (_, s), z in zip(chosen, carry, strict=True))


def _spread(chosen, parts):
    """Impulses of the solved contacts, `(k, a)`, as impulses of all, `(c, k)`."""
    pairs = zip(chosen, parts, strict=True)
    return tuple(s.spread(jnp.moveaxis(part, 1, 0)) for (_, s), part in pairs)


def _impulse(model: Model, chosen, t, q, parts) -> Vector:
    """`H^T P` of all interactions, `(n,)`."""
    group = model.system.group
    total = jnp.zeros(group.dim, jax.tree.leaves(q)[0].dtype)
    for (interaction, _), part in zip(chosen, parts, strict=True):
        jacobian, _ = interaction.on(model.system).linearised(group, t, q)
        total = total + jnp.einsum("knc,kc->n", jacobian[: interaction.rows], part)
    return total


def _kept(new: State, old: State, inside: Array) -> State:
    """The new state, or the old one where the step failed; `RESULTS` gives the reason."""
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(new)]))
    return where(finite & inside, new, old)
