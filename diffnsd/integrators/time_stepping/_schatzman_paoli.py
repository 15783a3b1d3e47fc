"""The position-level scheme of Schatzman and Paoli."""

import equinox as eqx
import jax
import jax.numpy as jnp

from ..._numerics import matvec
from ..._result import RESULTS
from ..._types import Args, Scalar, State
from ...complementarity import AbstractAdjoint, AbstractSolver, Auto, ImplicitAdjoint
from ...complementarity.problem._problem import apply
from ...laws import Context
from ...model import Model
from .._base import AbstractIntegrator, AbstractMemory, Carry, Multistep, StepInfo
from .._contacts import all_solved, law_block
from .._step import Newton, linear_problem, outcome, solve_step
from .._warm_start import zero_impulses


class SchatzmanPaoli(AbstractIntegrator):
    """Central differences with the impact law on positions, two steps apart.

        M(q0) (w1 − w0) = h F(t0 + theta h, q_theta, v_theta) + H(q0)^T P,    q1 = q0 exp(h w1)
        K* ∋ (g(q1) + e g(q_-1))/h,  w_T  ⟂  P ∈ K,     v1 = (w0 + w1)/2

    `w` is the mean velocity of a step, so `w0` is that of the previous one; `q_theta` and `v_theta`
    are weighted means of start and end. Laws for velocities are used with `g/h` in place of the
    normal velocity; all contacts take part in every step. Positions do not drift. Velocities are
    means over two steps, noisy at impacts, and gradients are those of the scheme.
    The first step starts from `w0 = v0`.

    **Arguments:** `theta`: implicitness of the forces in [0, 1]; `newton`, `solver`, `adjoint` as
    in `MoreauJean`.

    Reference: L. Paoli, M. Schatzman, A numerical scheme for impact problems I (2002),
    doi:10.1137/S0036142900378728.
    """

    theta: float = eqx.field(default=0.5, static=True)
    newton: Newton = Newton(max_iterations=20)
    solver: AbstractSolver = Auto()
    adjoint: AbstractAdjoint = ImplicitAdjoint()

    def __check_init__(self):
        if not 0 <= self.theta <= 1:
            raise ValueError(f"theta must lie in [0, 1], got {self.theta}.")

    @property
    def order(self) -> int:
        return 1

    @property
    def is_symplectic(self) -> bool:
        return False

    @property
    def memory(self) -> AbstractMemory:
        return Multistep()

    def supports(self, model: Model) -> str | None:
        problem = super().supports(model) or model.compliance_problem or all_solved(model)
        if problem:
            return problem
        if any(i.law.needs_implicit_positions for i in model.interactions):
            return (
                "SchatzmanPaoli holds gaps by itself, and has no use for a law that sees them; use "
                "the law without GapStabilized, or BackwardEuler()"
            )
        return None

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        del args
        return zero_impulses(model, t0, state), state.v

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        warm, w0 = carry
        warm = tuple(jnp.moveaxis(z, 0, 1) for z in warm)
        parameters = model, t0, h, state, w0, args
        w, z, stats, converged = solve_step(
            _equations(self.theta), parameters, w0, warm, self.solver, self.newton, self.adjoint
        )
        group = model.system.group
        q = group.compose(state.q, group.exp(h * w))
        impulses = tuple(jnp.moveaxis(part, 1, 0) for part in z)
        info = StepInfo.of(impulses, stats)
        result = outcome(stats, converged, w)
        return State(q, (w0 + w) / 2), info, (jax.lax.stop_gradient(impulses), w), result


def _equations(theta: float):
    """The step equations as a function of their parameters only; see `SchatzmanPaoli`."""

    def equations(parameters):
        model, t0, h, state, w0, args = parameters
        system, group = model.system, model.system.group
        mass = system.mass(t0, state.q)

        def move(w):
            return group.compose(state.q, group.exp(w))

        def residual(w):
            v = theta * (w0 + w) / 2 + (1 - theta) * state.v
            force = system.force(t0 + theta * h, State(move(theta * h * w), v), args)
            return matvec(mass, w - w0) - h * force

        def local(interaction, t, q, w):
            """Local velocities `(c, k)`, with `g/h` in place of the normal one."""
            u = interaction.on(model.system).output(group, t, State(state.q, w), None)
            gap = interaction.on(model.system).gap(t, q)
            return u if gap is None else jnp.concatenate([gap[:, None] / h, u[:, 1:]], axis=1)

        def block(interaction, w):
            k = interaction.rows
            before = local(interaction, t0 - h, move(-h * w0), w0)[:, :k].T
            c = before.shape[1]
            closed = jnp.full((c,), -jnp.inf, before.dtype)
            around = Context(before, closed, jnp.broadcast_to(h, (c,)), jnp.zeros_like(closed))
            rows = interaction.on(model.system).linearised(group, t0, state.q)[0][:k]

            def after(w):
                u = local(interaction, t0 + h, move(h * w), w)[:, :k].T
                return u, u

            slope, u = jax.jacfwd(after, has_aux=True)(w)
            slope = jnp.swapaxes(slope, 1, 2)
            return law_block(interaction, around, slope, u - apply(slope, w), rows)

        return linear_problem(residual, lambda w: tuple(block(i, w) for i in model.interactions))

    return equations
