"""The derivative of impact times, attached to a scheme that loses it.

A plain step applies an impact somewhere in the step; that "somewhere" is an integer and has no
derivative. For one contact the exact tangent map of an impact is the saltation matrix

    S = D R + (f⁺ − D R f⁻) ∇gᵀ / (∇gᵀ f⁻)

with the reset `R` and the vector fields `f∓` before and after. The tangent of the plain step is
`D R + O(h)`, so that `S dx = D_plain dx + c σ + O(h)` with

    σ = dg / u_N⁻,      c = f⁺ − D_plain f⁻.

`σ` is how much earlier a disturbed motion strikes. It does not matter whether the plain scheme
reacts before or after the crossing: `S` is applied where the scheme applies the impulse.

Several contacts that strike in one step each have their own `σ`. Contact i makes the velocity
jump `Δv_i = M^-1 H_i^T P_i`; its column is

    c_i = (Δv_i,  [M^-1 F]_{v̄ − Δv_i/2}^{v̄ + Δv_i/2} + M^-1 H_i^T (λ_i⁺ − λ_i⁻) − D(M^-1 H_i^T P_i) f⁻)

with `λ∓` the contact forces before and after. The columns add up to `c`, and for contacts of bodies
that do not meet each is exact.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

from ..._lanes import repeat_where_pending
from ..._loop import SAVED_NAME
from ..._numerics import lu_solve, short_sum
from ..._result import RESULTS
from ..._types import Args, Scalar, State
from ...complementarity import Auto
from ...complementarity._problem import broadcast_law
from ...model import Model
from .._base import AbstractIntegrator, Carry, StepInfo
from .._contacts import context
from .._impact import (
    Approach,
    approach,
    check_slow,
    free_acceleration,
    gate,
    impact,
    normal_motion,
    resting,
)
from .._step import without_derivative


class Corrected(AbstractIntegrator):
    """A scheme with the derivatives of impact times added: values are those of `inner`, bit by bit.

    The tangent of a step in which contacts struck is that of the impact at its crossing, `S dx`
    (see the module), evaluated on the motion of `inner`; everywhere else it is that of `inner`. It
    converges to the sensitivity of the motion with first order, as the values do. Measured on a
    ball (height 1, e = 0.9, 0.8 s, midpoint rule) at h = 1e-3: d(q, v)/dq0 to 1e-8, the derivative
    with respect to e to 1e-3; after four impacts 1e-2; on a rigid body that falls on its corner
    with friction 1.4e-3 (slip) and 7e-4 (stick), and 3e-4 and 6e-5 at h = 1e-4. The derivative is
    taken along the motion of `inner`, and is off where that is: after four impacts 1.8e-3 at h = 1e-4,
    and 7e-4 with `MoreauJean(gamma=1.0)`, whose impacts are early as often as late.

    - What strikes is decided as in `Located`, from the speed at the start of the step. Slower
      contacts keep the derivative of `inner`.
    - A law that sees the gap (a landing under `GapStabilized`) has not lost the time of the impact,
      and is not corrected.
    - Contacts that strike in one step each have their own crossing time. For contacts that feel each
      other the impulse of each moves with its own time and keeps the size of the common impact:
      this is a choice, their order is not resolved.
    - Second derivatives are refused: use `Located`.

    The correction costs two steps of `inner` and one impact for the lanes of a batch in which a
    contact struck, and only if a derivative is asked for.

    **Arguments:** `inner`; `slow`: as in `Located`; `solver`: of the impact.

    Reference: R. I. Leine, H. Nijmeijer (2004), doi:10.1007/978-3-540-44398-8; the saltation matrix
    is due to M. A. Aizerman, F. R. Gantmakher (1958), doi:10.1093/qjmam/11.4.385.
    """

    inner: AbstractIntegrator
    slow: float = eqx.field(default=4.0, static=True)
    solver: Auto = Auto()

    def __check_init__(self):
        check_slow(self.slow)

    @property
    def order(self) -> int:
        return self.inner.order

    @property
    def is_symplectic(self) -> bool:
        return self.inner.is_symplectic

    @property
    def keeps_impact_times(self) -> bool:
        return True

    def supports(self, model: Model) -> str | None:
        return model.compliance_problem or self.inner.supports(model)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        return self.inner.init(model, t0, state, args)

    def step(
        self, model: Model, t0: Scalar, t1: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        end, info, new, result = self.inner.step(model, t0, t1, state, carry, args)
        if model.interactions:
            known = without_derivative((model, t0, t1, state, carry, args))
            event = _event(known, jax.lax.stop_gradient(info.impulses), self.slow)
            columns = self._columns(known, jax.lax.stop_gradient(end), event)
            columns = checkpoint_name(jax.lax.stop_gradient(columns), SAVED_NAME)
            end = _corrected(model, t0, t1, state, end, event, columns)
        return end, info, new, result

    def _columns(self, known, end: State, event: "_Event") -> Float[Array, "m c"]:
        """The columns `c_i`, for the lanes of a batch in which a contact struck; else zero."""

        def compute(work):
            del work
            return _Work(_columns(self, known, end, event), jnp.array(False))

        zero = jnp.zeros((2 * end.v.shape[0], event.struck.shape[0]), end.v.dtype)
        return repeat_where_pending(compute, _Work(zero, jnp.any(event.struck)), 1).columns


class _Event(eqx.Module):
    """Contacts that struck in a step: when they cross, counted from its start, and how fast."""

    struck: Bool[Array, " c"]
    times: Float[Array, " c"]
    rates: Float[Array, " c"]
    before: Approach

    @property
    def time(self) -> Scalar:
        """The mean of the times; 0 if nothing struck."""
        count = jnp.sum(self.struck, dtype=self.times.dtype)
        return jnp.sum(self.times) / jnp.maximum(count, 1)


class _Work(eqx.Module):
    """The columns `(2 n, c)` and whether they are still to be computed."""

    columns: Float[Array, "m c"]
    pending: Bool[Array, ""]


def _event(known, impulses, slow: float) -> _Event:
    """What struck, if its law does not see the gap: a law that does has not lost the time."""
    model, t0, t1, state, _, args = known
    h = t1 - t0
    before = approach(model, t0, h, state, args, slow)
    pushed = jnp.concatenate([p[:, 0] > 0 for p in impulses])
    untimed = []
    for interaction in model.interactions:
        around = context(interaction, model, t0, state, h, 0.0)
        law = broadcast_law(interaction.law, around.gap.shape[0], state.v.dtype)

        def shift(gap, law=law, around=around):
            return law.shift(eqx.tree_at(lambda c: c.gap, around, gap))

        _, sees = jax.jvp(shift, (around.gap,), (jnp.ones_like(around.gap),))
        untimed.append(jnp.all(sees == 0, axis=0))
    struck = pushed & (-before.rate > before.slow) & jnp.concatenate(untimed)
    struck = struck & jnp.isfinite(before.gap)

    # The gap is a parabola: two passes from its tangent. It may have closed before the step.
    gap = jnp.where(struck, before.gap, 0)
    rate, pull = jnp.where(struck, before.rate, -1), jnp.where(struck, before.change / h, 0)
    times = -gap / rate
    times = jnp.clip(-gap / jnp.minimum(rate + times * pull / 2, rate / 2), -h, h)
    return _Event(struck, times, jnp.minimum(rate + times * pull, rate / 2), before)


def _columns(scheme: Corrected, known, end: State, event: _Event) -> Float[Array, "m c"]:
    """`c_i` of all contacts, shared among those that struck; see the module's docstring."""
    model, t0, t1, state, carry, args = known
    group, h, struck = model.system.group, t1 - t0, event.struck

    def kicks(t, q, impulses):
        """`M^-1 H_i^T P_i`, shape `(n, c)`."""
        parts = []
        for interaction, p in zip(model.interactions, impulses, strict=True):
            rows = interaction.relation.linearised(group, t, q)[0][: p.shape[1]]
            parts.append(short_sum(rows * p.T[:, None, :], 0))
        return lu_solve(model.system.mass(t, q)[:, :, None], jnp.concatenate(parts, axis=1))

    def contact_accelerations(case):
        t, state, on, touching = case
        gated = gate(model, t, state, on, touching)
        _, info, _, _ = scheme.inner.step(gated, t, t + h, state, carry, args)
        return kicks(t, state.q, info.impulses) / h

    closing = approach(model, t1, h, end, args, scheme.slow).strikes
    cases = (t0, state, ~struck, jnp.zeros_like(struck)), (t1, end, ~closing, struck)
    both = jax.tree.map(lambda *x: jnp.stack(x), *cases)
    before, after = jax.vmap(contact_accelerations)(both)

    a = free_acceleration(model, t0, state, args) + jnp.sum(before, axis=1)
    touching = struck | resting(event.before.slow, h, event.before.gap, event.before.rate)

    def flow(s):
        turn = s * state.v + s * s / 2 * a
        return t0 + s, State(group.compose(state.q, group.exp(turn)), state.v + s * a)

    def reset(t, state):
        gated = gate(model, t, state, touching, touching)
        _, impulses, *_ = impact(gated, t, h, state, scheme.solver)
        return kicks(t, state.q, impulses)

    at, along = jax.jvp(flow, (event.time,), (jnp.ones_like(event.time),))
    jump, drift = jax.jvp(reset, at, along)
    mean = at[1].v + jnp.sum(jump, axis=1) / 2

    def forces(kick):
        return model.system.force(at[0], State(at[1].q, mean + kick / 2), args)

    change = jax.vmap(lambda kick: forces(kick) - forces(-kick), in_axes=1, out_axes=1)(jump)
    smooth = lu_solve(model.system.mass(at[0], at[1].q)[:, :, None], change)
    columns = jnp.concatenate([jump, smooth + after - before - drift])
    shares = _shares(model, t0, state, jump, struck)
    return jnp.sum(columns[:, :, None] * shares[None], axis=1)


def _shares(model: Model, t: Scalar, state: State, jump: Array, struck: Array):
    """Row j: to which of the contacts that struck the impulse of contact j belongs, `(c, c)`.

    A contact that was closed beside an impact reacts to it, at its time: it belongs to the ones
    that struck in proportion to the square of the velocity that each of them gives it.
    """
    felt = []
    for interaction in model.interactions:
        rows = interaction.relation.linearised(model.system.group, t, state.q)[0]
        change = jnp.sum(rows[:, :, :, None] * jump[None, :, None, :], axis=1)
        felt.append(jnp.sum(change * change, axis=0))
    felt = jnp.where(struck[None, :], jnp.concatenate(felt), 0)
    total = jnp.sum(felt, axis=1, keepdims=True)
    shared = felt / jnp.where(total > 0, total, 1)
    own = np.eye(struck.shape[0], dtype=bool)
    return jnp.where(struck[:, None], own.astype(shared.dtype), shared)


def _corrected(model, t0, t1, state, end, event: _Event, columns) -> State:
    """`end` with the tangents of impact times.

    Within the step the disturbed motion goes on with `v0` until the impact and with `v1` from then,
    `q1 = q0 exp(s v0 + (h − s) v1)`: where a contact struck, this takes the place of the scheme's
    own rule, and brings the error of the tangent from `h |dv|` down to that of the values.
    """
    group, h = model.system.group, jax.lax.stop_gradient(t1 - t0)
    n = group.dim
    gap, rate = normal_motion(model, t0, state)
    by = _applied(columns, jnp.where(event.struck, (gap + event.times * rate) / event.rates, 0))
    chord = group.log(group.compose(group.inverse(state.q), end.q))
    within = event.time * state.v + (h - event.time) * (end.v + by[n:]) - chord
    position = jnp.where(jnp.any(event.struck), by[:n] + within, 0)
    return _shifted(group, end, jnp.concatenate([position, by[n:]]))


def _shifted(group, end: State, by: Array) -> State:
    """`end` unchanged, with the tangent of `by`, shape `(2 n,)`, added to its own."""

    def moved(end, by):
        n = group.dim
        return State(group.compose(end.q, group.exp(by[:n])), end.v + by[n:])

    @jax.custom_jvp
    def attach(end, by):
        del by
        return end

    @attach.defjvp
    def rule(primals, tangents):
        end, by = primals
        _, tangent = jax.jvp(moved, (end, jnp.zeros_like(by)), tangents)
        return end, tangent

    return attach(end, by)


@jax.custom_jvp
def _applied(columns: Array, earlier: Array) -> Array:
    """`columns · earlier`, differentiated in `earlier` only."""
    return jnp.sum(columns * earlier[None, :], axis=1)


@_applied.defjvp
def _applied_rule(primals, tangents):
    columns, earlier = primals
    change = jnp.sum(_first_order(columns, earlier) * tangents[1][None, :], axis=1)
    return _applied(columns, earlier), change


@jax.custom_jvp
def _first_order(columns: Array, earlier: Array) -> Array:
    """`columns`; refuses to be differentiated where `earlier` is."""
    del earlier
    return columns


@_first_order.defjvp
def _refuse(primals, tangents):
    raise ValueError(
        "second derivatives through Corrected(...) are not available: the correction is of first "
        "order. Use Located(...), which may be differentiated any number of times."
    )
