"""The theta scheme of Moreau and Jean, and backward Euler as its fully implicit instance."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._numerics import UNROLL_LIMIT
from ..._result import RESULTS
from ..._types import Args, Scalar, State
from ...complementarity import AbstractAdjoint, AbstractSolver, Auto, ImplicitAdjoint
from ...model import Model
from .._base import AbstractIntegrator, AbstractMemory, Carry, StepInfo, WarmStart, check_fractions
from .._contacts import (
    build_block,
    context,
    law_at,
    left_out,
    nearest_switch,
    select,
    zero_impulses,
)
from .._step import (
    Contact,
    Newton,
    linear_problem,
    nonlinear_problem,
    outcome,
    own_parts,
    solve_step,
)
from ._points import AbstractPoint, AtIterate, AtStart


def _equations(scheme):
    """The step equations as a function of their parameters only; see `MoreauJean`."""
    theta, gamma = scheme.theta, scheme.gamma
    mass_at = AtIterate(theta) if scheme.mass_at is None else scheme.mass_at

    def equations(parameters):
        model, interactions, t0, h, state, args = parameters
        system, t1 = model.system, t0 + h
        before = system.force(t0, state, args)

        def place(point, v):
            return point.configuration(system.group, state, h, theta, v)

        def residual(v):
            gained = State(place(mass_at, v), v - state.v)
            after = system.force(t1, State(place(AtIterate(), v), v), args)
            momentum = system.momentum(t0 + theta * h, gained)
            return momentum - h * (theta * after + (1 - theta) * before)

        by_force = any(map(_acts_by_force, interactions))
        if not (by_force or scheme.contacts_at.is_implicit):
            at = t1, place(scheme.contacts_at, state.v)
            size = system.block_size if state.v.shape[0] > UNROLL_LIMIT else None
            blocks = tuple(
                build_block(i, model, t0, state, h, gamma, at=at, by_blocks=size is not None)
                for i in interactions
            )
            return linear_problem(residual, lambda v: blocks, size)

        coupled = [_coupling(scheme, i, model, t0, h, state) for i in interactions]

        def motion(v, z):
            rigid, soft = place(scheme.contacts_at, v), place(AtIterate(theta), v)
            total, outputs = residual(v), []
            for i, (_, act), part in zip(interactions, coupled, z, strict=True):
                impulse, output = act(soft if _acts_by_force(i) else rigid, v, part)
                total = total - impulse
                outputs.append(output)
            return total, tuple(outputs)

        def inputs(v, z):
            del z
            q = place(scheme.contacts_at, v)
            return [i.relation.linearised(system.group, t1, q)[0][: i.rows] for i in interactions]

        contacts = tuple(contact for contact, _ in coupled)
        return nonlinear_problem(motion, contacts, state.v.shape[0], None if by_force else inputs)

    return equations


def _coupling(scheme, interaction, model: Model, t0, h, state: State):
    """An interaction at any end velocity `v`: its `Contact`, and `act(q, v, z)`, impulse and output.

    A compliant relation holds at the theta point, between a position and the mean force `z/h` of the
    step. A relation of states, of a circuit beside the mechanism, holds at the end of the step, with
    `z` the force itself. Others tie end velocities to impulses.
    """
    group, relation = model.system.group, interaction.relation
    theta, k = scheme.theta, interaction.rows

    def padded(z):
        return jnp.pad(z.T, ((0, 0), (0, relation.rows - k)))

    def of_states(q, v, z):
        t, force = t0 + h, padded(z)
        output = relation.output(group, t, State(q, v), force)[:, :k].T
        return h * relation.input(group, t, State(q, v), force), output

    def soft(q, v, z):
        t, force = t0 + theta * h, padded(z) / h
        # Over h, to be of the size of a velocity: the laws hold for y as for y/h.
        output = relation.output(group, t, State(q, v), force)[:, :k].T / h
        return h * relation.input(group, t, State(q, v), force), output

    def rigid(q, v, z):
        def velocity(v):
            return relation.output(group, t0 + h, State(q, v), None)[:, :k]

        # Affine in the velocity: the pull-back is `H^T`, by virtual power.
        output, pull = jax.vjp(velocity, v)
        return pull(z.T)[0], output.T

    # Where contacts are compliant there are no impacts, and no velocity before them.
    before = jnp.zeros_like if relation.is_compliant else lambda u: u
    around = context(interaction, model, t0, state, h, scheme.gamma, before)
    shift, law, active = law_at(interaction, around)
    act = of_states if not relation.needs_positions else soft if relation.is_compliant else rigid
    law = law.in_step(around) if relation.needs_positions else law
    return Contact(shift, law, active, relation.has_feedthrough), act


def _acts_by_force(interaction) -> bool:
    """Whether a relation ties positions or states to forces, where others tie velocities to impulses."""
    return interaction.relation.is_compliant or not interaction.relation.needs_positions


class AbstractThetaScheme(AbstractIntegrator):
    """What the theta schemes share: a step, and nothing to remember but impulses."""

    theta: eqx.AbstractVar[float]
    gamma: eqx.AbstractVar[float]
    newton: eqx.AbstractVar[Newton]
    contacts_at: eqx.AbstractVar[AbstractPoint]
    mass_at: eqx.AbstractVar[AbstractPoint | None]
    solver: eqx.AbstractVar[AbstractSolver]
    adjoint: eqx.AbstractVar[AbstractAdjoint]

    def __check_init__(self):
        check_fractions(theta=self.theta, gamma=self.gamma)

    @property
    def order(self) -> int:
        return 2 if self.theta == 0.5 else 1

    @property
    def is_symplectic(self) -> bool:
        return False

    @property
    def prediction(self) -> float | None:
        return self.gamma

    @property
    def memory(self) -> AbstractMemory:
        return WarmStart()

    def supports(self, model: Model) -> str | None:
        if model.system.stepping_problem is not None:
            return model.system.stepping_problem
        if self.theta < 1 and any(i.law.needs_implicit_positions for i in model.interactions):
            return (
                "a gap-stabilised law needs positions that move with the end velocity; use "
                "MoreauJean(theta=1.0) or BackwardEuler()"
            )
        return None

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        del args
        return zero_impulses(model, t0, state)

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        return theta_step(self, model, t0, h, state, carry, args)


class MoreauJean(AbstractThetaScheme):
    """The time-stepping scheme of Moreau and Jean.

        M (v1 − v0) = h theta F(t1, q1, v1) + h (1 − theta) F(t0, q0, v0) + H^T P
        q1 = q0 exp(h (theta v1 + (1 − theta) v0)),      u1 = H v1 + ∂g/∂t
        K* ∋ u1 + bias(u1) ⟂ P ∈ K   for contacts with  g0 + gamma h u0 <= 0

    `P` are impulses [N s]. `H(t1, q)` is taken where `contacts_at` says, `M(q)` where `mass_at`
    does; `u0` and the gaps are those of the start. First order with impacts and with joints,
    whose reactions act along `H` of one point of the step; without either second order for
    `theta = 1/2`, already with the one Newton iteration of the default, and first order otherwise.
    Values converge through impacts, their derivatives do not: the step that holds the impact is an
    integer.

    **Arguments:**

    - `theta`: implicitness in [0, 1]. `theta = 1` moves positions with the end velocity.
    - `gamma`: fraction of the step over which closing is predicted, in [0, 1].
    - `newton`: linearisations of the smooth equations. `solver`: of the laws.
    - `contacts_at`: `AtStart()`, `AtPrediction()`, or `AtIterate()`, implicit.
    - `mass_at`: likewise; `None` is the theta point, `AtIterate(theta)`.
    - `adjoint`: how their solution is differentiated, for example `SmoothedAdjoint(1e-3)`.

    Reference: J. J. Moreau (1988), doi:10.1007/978-3-7091-2624-0_1; M. Jean (1999),
    doi:10.1016/S0045-7825(98)00383-1.
    """

    theta: float = eqx.field(default=0.5, static=True)
    gamma: float = eqx.field(default=0.5, static=True)
    newton: Newton = Newton(max_iterations=1)
    contacts_at: AbstractPoint = AtStart()
    mass_at: AbstractPoint | None = None
    solver: AbstractSolver = Auto()
    adjoint: AbstractAdjoint = ImplicitAdjoint()


class BackwardEuler(AbstractThetaScheme):
    """Backward Euler: `MoreauJean(theta=1)` with its equations solved to a tolerance.

        M (v1 − v0) = h F(t1, q1, v1) + H^T P,      q1 = q0 exp(h v1)

    Order one, dissipative, unconditionally stable for linear systems. Each Newton iteration
    factorises `S = M − h ∂F/∂v − h² ∂F/∂q`; `step_matrices` gives it, with the compliance
    `H S^-1 H^T` of the contacts.

    **Arguments:** as in `MoreauJean`, without `theta`;
    `Newton(max_iterations=1)` is the linearised method.

    Reference: D. Baraff, A. Witkin, Large steps in cloth simulation (1998),
    doi:10.1145/280814.280821.
    """

    gamma: float = eqx.field(default=0.5, static=True)
    newton: Newton = Newton(max_iterations=20)
    contacts_at: AbstractPoint = AtStart()
    mass_at: AbstractPoint | None = None
    solver: AbstractSolver = Auto()
    adjoint: AbstractAdjoint = ImplicitAdjoint()

    @property
    def theta(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Implicitness: 1."""
        return 1.0


class StepMatrices(eqx.Module):
    """The linearised step of a theta scheme, without and with its contacts.

    **Arguments:** `system`: `S = M − h theta ∂F/∂v − h² theta² ∂F/∂q`, `(n, n)`; `outputs`: `H`,
    `(m, n)`, the rows that take part in the laws, contact by contact, normal first; `compliance`:
    `H S^-1 H^T`, `(m, m)`, from impulses to velocities.
    """

    system: Array
    outputs: Array
    compliance: Array


def step_matrices(
    scheme, model: Model, t0: Scalar, h: Scalar, state: State, args: Args = None
) -> StepMatrices:
    """The matrices of the first Newton iteration of a step from a state.

    **Arguments:** `scheme`: `MoreauJean` or `BackwardEuler`; the others as in `simulate`. Multipliers
    are those of no contact.

    **Returns:** `StepMatrices`.

    **Raises:** `ValueError` if the scheme cannot step the model, or contacts are compliant.
    """
    problem = scheme.supports(model) or model.compliance_problem
    if problem is not None:
        raise ValueError(f"no step matrices: {problem}.")
    zero = tuple(jnp.swapaxes(z, 0, 1) for z in zero_impulses(model, t0, state))
    parameters = (model, model.interactions, t0, h, state, args)
    step = _equations(scheme)(parameters)(state.v, zero).dense()

    def flat(x):
        return jnp.transpose(x, (2, 0, 1)).reshape(-1, x.shape[1])

    inputs = [b.output if b.input is None else b.input for b in step.blocks]
    none = [jnp.zeros((0, state.v.shape[0]), state.v.dtype)]
    outputs = jnp.concatenate([flat(b.output) for b in step.blocks] or none)
    loads = jnp.concatenate([flat(b) for b in inputs] or none)
    return StepMatrices(step.matrix, outputs, outputs @ jnp.linalg.solve(step.matrix, loads.T))


def theta_step(scheme, model: Model, t0, h, state: State, carry: Carry, args: Args):
    """One step of the theta scheme; see `MoreauJean`."""
    chosen = [select(i, model, t0, state.q) for i in model.interactions]
    solved, selections = [i for i, _ in chosen], [s for _, s in chosen]
    # Unknowns are impulses, but forces where relations are of states.
    of_states = [not i.relation.needs_positions for i in solved]
    parts = zip(selections, carry, of_states, strict=True)
    warm = tuple(jnp.moveaxis(s.pick(z / h if f else z), 0, 1) for s, z, f in parts)

    parameters = (model, solved, t0, h, state, args)
    guess = jnp.concatenate([state.v, *own_parts(solved, warm)])
    v, z, stats, newton_converged = solve_step(
        _equations(scheme), parameters, guess, warm, scheme.solver, scheme.newton, scheme.adjoint
    )
    v = v[: state.v.shape[0]]
    parts = zip(selections, z, of_states, strict=True)
    impulses = tuple(s.spread(jnp.moveaxis(h * p if f else p, 1, 0)) for s, p, f in parts)
    mean = scheme.theta * v + (1 - scheme.theta) * state.v
    q = model.system.group.compose(state.q, model.system.group.exp(h * mean))
    overflow = jnp.array(False)
    for selection in selections:
        overflow = overflow | left_out(selection, v, h)
    result = outcome(stats, newton_converged, overflow, v)
    switch = nearest_switch(model, t0, state, h, scheme.gamma, selections)
    stats = eqx.tree_at(lambda s: s.margin, stats, jnp.minimum(stats.margin, switch))
    info = StepInfo.of(impulses, stats)
    return State(q, v), info, jax.lax.stop_gradient(impulses), result
