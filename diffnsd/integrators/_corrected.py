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

from .._lanes import repeat_where_pending
from .._loop import SAVED_NAME
from .._numerics import lu_solve, short_sum
from .._result import RESULTS
from .._types import Args, Scalar, State
from ..complementarity._problem import broadcast_law
from ..model import Model
from ._base import AbstractIntegrator, Carry, StepInfo
from ._contacts import context
from ._impact import approach, free_acceleration, gate, normal_motion
from ._step import without_derivative


class Corrected(AbstractIntegrator):
    """A scheme with the derivatives of impact times added: values are those of `inner`, bit by bit.

    **Arguments:** `inner`; `slow`.
    """

    inner: AbstractIntegrator
    slow: float = eqx.field(default=4.0, static=True)

    @property
    def order(self) -> int:
        return self.inner.order

    @property
    def is_symplectic(self) -> bool:
        return self.inner.is_symplectic

    def supports(self, model: Model) -> str | None:
        return self.inner.supports(model)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        return self.inner.init(model, t0, state, args)

    def step(
        self, model: Model, t0: Scalar, t1: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        end, info, new, result = self.inner.step(model, t0, t1, state, carry, args)
        if model.interactions:
            gap, rate = normal_motion(model, t0, state)
            known = without_derivative((model, t0, t1, state, carry, args))
            reached = jax.lax.stop_gradient((end, info.impulses))
            struck = _struck(known, reached, self.slow)
            columns = checkpoint_name(
                jax.lax.stop_gradient(_columns(self.inner, known, reached, struck, self.slow)),
                SAVED_NAME,
            )
            # The gap where the contact crosses, and with it how much earlier it strikes.
            u, g = jax.lax.stop_gradient((rate, gap))
            safe = jnp.where(struck, u, -1)
            earlier = jnp.where(struck, (gap - jnp.where(struck, g, 0) / safe * rate) / safe, 0)
            end = _shifted(model.system.group, end, columns, earlier)
        return end, info, new, result


def _shifted(group, end: State, columns: Array, earlier: Array) -> State:
    """`end` unchanged, with the tangent `columns · d(earlier)` added to its own."""

    def moved(end, by):
        n = group.dim
        return State(group.compose(end.q, group.exp(by[:n])), end.v + by[n:])

    @jax.custom_jvp
    def attach(end, columns, earlier):
        return end

    @attach.defjvp
    def rule(primals, tangents):
        end, columns, earlier = primals
        by = jnp.sum(_first_order(columns, earlier) * tangents[2][None, :], axis=1)
        zero = jnp.zeros_like(by)
        _, tangent = jax.jvp(moved, (end, zero), (tangents[0], by))
        return end, tangent

    return attach(end, columns, earlier)


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


def _struck(known, reached, slow: float) -> Bool[Array, " c"]:
    """Contacts that struck in a step whose law does not see the gap, so that its time was lost."""
    model, t0, t1, state, _, args = known
    _, impulses = reached
    before = approach(model, t0, t1 - t0, state, args, slow)
    pushed = jnp.concatenate([p[:, 0] > 0 for p in impulses])
    untimed = []
    for interaction in model.interactions:
        around = context(interaction, model, t0, state, t1 - t0, 0.0)
        law = broadcast_law(interaction.law, around.gap.shape[0], state.v.dtype)

        def shift(gap, law=law, around=around):
            return law.shift(eqx.tree_at(lambda c: c.gap, around, gap))

        _, sees = jax.jvp(shift, (around.gap,), (jnp.ones_like(around.gap),))
        untimed.append(jnp.all(sees == 0, axis=0))
    striking = jnp.isfinite(before.gap) & (-before.rate > before.slow)
    return pushed & striking & jnp.concatenate(untimed)


class _Work(eqx.Module):
    """The columns `(2 n, c)` and whether they are still to be computed."""

    columns: Float[Array, "m c"]
    pending: Bool[Array, ""]


def _columns(inner, known, reached, struck, slow: float) -> Float[Array, "m c"]:
    """`c_i` of all contacts, mixed so that they multiply `σ` of the contacts that struck.

    A contact that was closed beside an impact reacts to it with an impulse of its own, at the time
    of the impact: its column belongs to the ones that struck, in proportion to the square of the
    velocity that each of them gives it.
    """

    def compute(work):
        return _Work(_all_columns(inner, known, reached, struck, slow), jnp.array(False))

    zero = jnp.zeros((2 * known[0].system.group.dim, struck.shape[0]), known[3].v.dtype)
    return repeat_where_pending(compute, _Work(zero, jnp.any(struck)), 1).columns


def _all_columns(inner, known, reached, struck, slow: float):
    model, t0, t1, state, carry, args = known
    end, impulses = reached
    group, h = model.system.group, t1 - t0
    mass = model.system.mass(t0, state.q)

    def kicks(t, q, impulses):
        """`M^-1 H_i^T P_i`, shape `(n, c)`."""
        mass, parts = model.system.mass(t, q), []
        for interaction, p in zip(model.interactions, impulses, strict=True):
            rows = interaction.relation.linearised(group, t, q)[0][: p.shape[1]]
            parts.append(short_sum(rows * p.T[:, None, :], 0))
        return lu_solve(mass[:, :, None], jnp.concatenate(parts, axis=1))

    jump = kicks(t0, state.q, impulses)
    none = jnp.zeros_like(struck)
    quiet = gate(model, t0, state, ~struck, none)
    _, info, _, _ = inner.step(quiet, t0, t1, state, carry, args)
    forces_before = kicks(t0, state.q, info.impulses) / h
    a = free_acceleration(model, t0, state, args) + jnp.sum(forces_before, axis=1)

    after = approach(model, t1, h, end, args, slow)
    quiet = gate(model, t1, end, ~after.strikes, struck)
    _, info, _, _ = inner.step(quiet, t1, t1 + h, end, carry, args)
    forces_after = kicks(t0, state.q, info.impulses) / h

    def impact(t0, t1, state):
        _, info, _, _ = inner.step(model, t0, t1, state, carry, args)
        return kicks(t0, state.q, info.impulses)

    def along(s):
        return State(group.compose(state.q, group.exp(s * state.v)), state.v + s * a)

    zero, one = jnp.zeros_like(h), jnp.ones_like(h)
    _, flow = jax.jvp(along, (zero,), (one,))
    _, drift = jax.jvp(impact, (t0, t1, state), (one, one, flow))

    mean = (state.v + end.v) / 2

    def smooth(kick):
        below, above = (
            model.system.force(t0, State(state.q, mean + x * kick), args) for x in (-0.5, 0.5)
        )
        return lu_solve(mass, above - below)

    turn = jax.vmap(smooth, in_axes=1, out_axes=1)(jump)
    columns = jnp.concatenate([jump, turn + forces_after - forces_before - drift])
    return jnp.sum(columns[:, :, None] * _shares(model, t0, state, jump, struck)[None], axis=1)


def _shares(model, t, state, jump, struck):
    """Row j: to which of the contacts that struck the impulse of contact j belongs."""
    felt = []
    for interaction in model.interactions:
        rows = interaction.relation.linearised(model.system.group, t, state.q)[0]
        change = jnp.sum(rows[:, :, :, None] * jump[None, :, None, :], axis=1)
        felt.append(jnp.sum(change * change, axis=0))
    felt = jnp.where(struck[None, :], jnp.concatenate(felt), 0)
    total = jnp.sum(felt, axis=1, keepdims=True)
    shared = felt / jnp.where(total > 0, total, 1)
    own = np.eye(struck.shape[0]).astype(bool)
    return jnp.where(struck[:, None], (own & struck[:, None]).astype(shared.dtype), shared)
