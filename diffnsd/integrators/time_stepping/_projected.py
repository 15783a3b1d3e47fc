"""Position corrections against the drift of velocity-level schemes."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from ..._result import RESULTS, first_error
from ..._types import Args, PerContact, Scalar, State
from ...complementarity import AbstractSolver, Auto, Block, MixedProblem, solve_mixed
from ...laws import AbstractLaw, Complementarity, Equality
from ...model import Model
from .._base import AbstractIntegrator, Carry, StepInfo
from .._contacts import context, law_at
from .._wrapped import AbstractWrappedIntegrator

Corrections = tuple[PerContact, ...]


class AbstractProjection(AbstractWrappedIntegrator):
    """Base class of the projections, which correct the positions after a step of `inner`."""

    @property
    def lists_contacts(self) -> bool:
        return False  # it also steps contacts in its own way

    @property
    def is_symplectic(self) -> bool:
        return False

    def supports(self, model: Model) -> str | None:
        if self.prediction is None:
            return (
                f"{type(self).__name__} needs an inner scheme that predicts closing from "
                f"velocities, which {type(self.inner).__name__} does not; use MoreauJean() or "
                "BackwardEuler()"
            )
        if self.memory.restart_problem is not None:
            return (
                f"{type(self).__name__} moves positions at the end of each step, and "
                f"{type(self.inner).__name__} {self.memory.restart_problem}"
            )
        return self.inner.supports(model)


class Projected(AbstractProjection):
    """A step of `inner`, then a projection of the positions onto the constraints.

        q1 ← q1 exp(M^-1 G^T Λ),      0 <= g(q1) + G M^-1 G^T Λ ⟂ Λ >= 0

    for the contacts that were active in the step, if one of them has penetrated by more than
    `tolerance`; for equalities `g = 0` and any sign of Λ. Velocities are not changed. The
    correction is the smallest in the metric of the mass matrix. `Solution.details` holds Λ
    [kg m], per interaction `(c,)`.

    **Arguments:**

    - `inner`: a velocity-level scheme with a predictor `gamma`: `MoreauJean`, `BackwardEuler`.
    - `tolerance`: largest violation that is left [m].
    - `passes`: linearisations of the gaps; a gap that is linear in `q` needs one.
    - `solver`: of the projections.

    Reference: V. Acary, Projected event-capturing time-stepping schemes for nonsmooth mechanical
    systems (2013), doi:10.1016/j.cma.2012.12.012.
    """

    inner: AbstractIntegrator
    tolerance: float = 1e-8
    passes: int = eqx.field(default=2, static=True)
    solver: AbstractSolver = Auto()

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        active = _active(self.prediction, model, t0, h, state)
        laws = [Equality() if i.law.holds_gap else Complementarity() for i in model.interactions]
        done = self.inner.step(model, t0, h, state, carry, args)
        return _corrected(self, model, t0 + h, done, active, laws)


class CombinedProjection(AbstractProjection):
    """A step of `inner` whose active contacts end at `g = 0` and whose others are open.

    A contact that was not active and has penetrated by more than `tolerance` is activated, and the
    step is repeated with its law, at most `rounds` times. Then all active contacts are projected as
    equalities, up or down; see `Projected`.

    **Arguments:** as in `Projected`, and `rounds`.

    Reference: V. Acary, Projected event-capturing time-stepping schemes for nonsmooth mechanical
    systems (2013), doi:10.1016/j.cma.2012.12.012.
    """

    inner: AbstractIntegrator
    tolerance: float = 1e-10
    passes: int = eqx.field(default=2, static=True)
    rounds: int = eqx.field(default=2, static=True)
    solver: AbstractSolver = Auto()

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        active = _active(self.prediction, model, t0, h, state)

        def step(active):
            touching = jnp.concatenate(active)
            held = model.masked(t0, state.q, jnp.ones_like(touching), touching)
            return self.inner.step(held, t0, h, state, carry, args)

        def violated(active, q):
            at = jax.lax.stop_gradient(q)
            gaps = [i.reachable(i.on(model.system).gap(t0 + h, at)) for i in model.interactions]
            return tuple(
                a if g is None or i.law.never_opens else ~a & (g < -self.tolerance)
                for i, a, g in zip(model.interactions, active, gaps, strict=True)
            )

        done = step(active)
        for _ in range(self.rounds):
            more = violated(active, done[0].q)
            any_more = jnp.any(jnp.concatenate([jnp.array([False]), *more]))
            active = tuple(a | b for a, b in zip(active, more, strict=True))
            done = jax.lax.cond(any_more, lambda a, _: step(a), lambda _, d: d, active, done)
        return _corrected(self, model, t0 + h, done, active, [Equality() for _ in active])


def _active(prediction, model: Model, t0, h, state: State):
    """The contacts that take part in the step of the inner method, per interaction."""
    around = [context(i, model, t0, state, h, prediction) for i in model.interactions]
    return tuple(law_at(i, a)[2] for i, a in zip(model.interactions, around, strict=True))


def _corrected(scheme, model: Model, t1, done, active, laws: Sequence[AbstractLaw]):
    """The outcome of a step with its positions corrected."""
    state, info, carry, result = done
    group, q = model.system.group, state.q
    total = tuple(jnp.zeros(a.shape, state.v.dtype) for a in active)
    for _ in range(scheme.passes):
        q, lam, ok = _project(scheme, model, group, t1, q, active, laws)
        total = tuple(a + b for a, b in zip(total, lam, strict=True))
        failed = RESULTS.where(ok, RESULTS.successful, RESULTS.not_converged)
        result = first_error(result, failed)
    info = eqx.tree_at(lambda i: i.details, info, total, is_leaf=lambda x: x is None)
    return State(q, state.v), info, carry, result


def _holds(interaction) -> bool:
    """Whether the law constrains positions: joints and contacts do, dry friction does not."""
    return interaction.law.holds_gap or not interaction.law.never_opens


def _project(scheme, model: Model, group, t1, q, active, laws):
    """One linearisation of the gaps: the moved configuration, Λ per interaction, convergence."""
    blocks, places = [], []
    for i, mask, law in zip(model.interactions, active, laws, strict=True):
        gap = i.on(model.system).gap(t1, q)
        if gap is None or not _holds(i):
            continue
        size = jnp.abs(gap) if law.holds_gap else -gap
        violated = jnp.any(jax.lax.stop_gradient(mask & (size > scheme.tolerance)))
        jacobian = i.on(model.system).linearised(group, t1, q)[0][:1]
        blocks.append(Block(jacobian, None, gap[None], law, mask & violated))
        places.append(gap.shape)
    mass = model.system.mass(t1, q)
    problem = MixedProblem(mass, jnp.zeros_like(mass[0]), tuple(blocks))
    start = tuple(jnp.zeros_like(b.offset) for b in blocks)
    delta, z, stats = solve_mixed(problem, start, scheme.solver)
    z = iter(z)
    lam = tuple(
        next(z)[0]
        if i.on(model.system).gap(t1, q) is not None and _holds(i)
        else jnp.zeros_like(a, delta.dtype)
        for i, a in zip(model.interactions, active, strict=True)
    )
    return group.compose(q, group.exp(delta)), lam, stats.converged
