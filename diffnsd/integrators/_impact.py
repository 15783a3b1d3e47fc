"""Impacts: which contacts are about to strike, when, and the impact itself.

Contacts are numbered consecutively over all interactions; arrays `(c,)` hold one entry per contact.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._jax import with_value
from .._numerics import implicit_root, lu_solve, matvec, short_sum
from .._types import Args, Scalar, State, Vector
from ..complementarity import AbstractAdjoint, ImplicitAdjoint, MixedProblem, solve_mixed
from ..laws import Context
from ..model import Interaction, Model
from ._contacts import build_block, law_at
from ._selection import crowded, select


def normal_motion(model: Model, t: Scalar, state: State) -> tuple[Array, Array]:
    """Gaps and their rates `u_N`, each `(c,)`, for the detection of impacts.

    Contacts that cannot open (joints, however far they have drifted, and relations without a gap) count
    as closed and at rest, with gap `-inf` and rate 0, so they take part in every impact. Contacts that
    are switched off have the gap `inf`.
    """
    gaps, rates = [], []
    for interaction in model.interactions:
        relation = interaction.on(model.system)
        rate = relation.output(model.system.group, t, state, None)[:, 0]
        gap = (
            None if interaction.law.never_opens else interaction.reachable(relation.gap(t, state.q))
        )
        gaps.append(jnp.full_like(rate, -jnp.inf) if gap is None else gap)
        rates.append(jnp.zeros_like(rate) if gap is None else rate)
    return jnp.concatenate(gaps), jnp.concatenate(rates)


def slips(model: Model, t: Scalar, state: State) -> Array:
    """Slips, `(2, c)`, whose direction puts a multiplier at a bound: those of dry and Coulomb friction.

    The second row is zero for contacts with a single slip row; both are zero for all other contacts.
    """
    group = model.system.group
    return slips_of(
        model, [i.on(model.system).output(group, t, state, None) for i in model.interactions]
    )


def slips_of(model: Model, outputs: Sequence[Array]) -> Array:
    """The same for local velocities `(c, k)` per interaction."""
    parts = []
    for interaction, u in zip(model.interactions, outputs, strict=True):
        rows = [u[:, i] for i in slip_rows(interaction)]
        parts.append(jnp.stack([*rows, *[jnp.zeros_like(u[:, 0])] * (2 - len(rows))]))
    return jnp.concatenate(parts, axis=1)


def slip_rows(interaction: Interaction) -> tuple[int, ...]:
    """The slip rows of an interaction; empty where slip reversals cannot be located."""
    law, rows = interaction.law, interaction.rows
    if not law.slides:
        return ()
    if rows == max(law.least_rows, 1):
        return (rows - 1,)
    # A law that depends on the gap holds over a step, not at an instant; one without a normal row row by row.
    in_space = rows == 3 and law.is_unilateral and not law.needs_implicit_positions
    return (1, 2) if in_space else ()


def one_slip(model: Model, t: Scalar, state: State) -> np.ndarray:
    """Which contacts have a single slip row, `(c,)`."""
    counts = model.contacts(t, state.q)
    single = [len(slip_rows(i)) == 1 for i in model.interactions]
    return np.repeat(single, counts)


def still(model: Model, state: State) -> Scalar:
    """The speed below which a slip is rounding."""
    return 1e2 * jnp.finfo(state.v.dtype).eps ** 0.75 * (1 + model.system.scales(state)[1])


def free_acceleration(model: Model, t: Scalar, state: State, args: Args) -> Vector:
    """`M^-1 F`: the acceleration without contacts, shape `(n,)`."""
    return lu_solve(model.system.mass(t, state.q), model.system.force(t, state, args))


def jointed_acceleration(model: Model, t: Scalar, state: State, args: Args) -> Vector:
    """The acceleration under forces and joint reactions, without contacts, shape `(n,)`.

        M a = F + H^T l,    d(H v + drift)/dt = 0

    For redundant joints, a tiny added compliance makes the reactions unique.
    """
    free = free_acceleration(model, t, state, args)
    joints = [i for i in model.interactions if i.law.holds_gap]
    if not joints:
        return free
    group = model.system.group

    def rates(s):
        q = group.compose(state.q, group.exp(s * state.v))
        moved = State(q, state.v + s * free)
        parts = [i.on(model.system).output(group, t + s, moved, None)[:, : i.rows] for i in joints]
        return jnp.concatenate([part.reshape(-1) for part in parts])

    rows = [i.on(model.system).linearised(group, t, state.q)[0][: i.rows] for i in joints]
    on = [
        jnp.ones(h.shape[2], bool) if i.mask is None else i.mask.on
        for i, h in zip(joints, rows, strict=True)
    ]
    on = jnp.concatenate([jnp.repeat(x, len(h)) for x, h in zip(on, rows, strict=True)])
    change = jnp.where(on, jax.jvp(rates, (jnp.zeros_like(t),), (jnp.ones_like(t),))[1], 0)
    jacobian = jnp.concatenate([h.transpose(2, 0, 1).reshape(-1, h.shape[1]) for h in rows])
    jacobian = jnp.where(on[:, None], jacobian, 0)
    moved = jax.vmap(lu_solve, (None, 0))(model.system.mass(t, state.q), jacobian)
    compliance = jacobian @ moved.T
    size = jnp.trace(compliance) * np.sqrt(jnp.finfo(change.dtype).eps)
    reaction = lu_solve(compliance + jnp.diag(jnp.where(on & (size > 0), size, 1)), -change)
    return free + reaction @ moved


class Approach(eqx.Module):
    """Predicted normal motion of the contacts over a step.

    **Arguments:** `gap`, `rate`: at the start; `change`: of the rate over the step; `slow`: the rate
    change that the forces can cause within one step, times a factor: slower contacts rest, slide, roll
    or are at the end of a bounce sequence; `fastest`: largest closing rate over the step. Each of
    shape `(c,)`.
    """

    gap: Array
    rate: Array
    change: Array
    slow: Array
    fastest: Array

    @property
    def strikes(self) -> Array:
        """Whether a contact closes fast enough to strike."""
        return (self.fastest > self.slow) & jnp.isfinite(self.gap)


SLOW = 2.5
"""Steps: impacts are located that are faster than forces make a contact in so many; 2 is without margin."""


def check_slow(factor: float) -> None:
    """Raises `ValueError` if the factor is too small to tell impacts from resting contacts."""
    if not factor >= 2:
        raise ValueError(f"slow must be at least 2, got {factor}; {SLOW:g} is the default.")


def approach(
    model: Model, t: Scalar, h: Scalar, state: State, args: Args, factor: float
) -> Approach:
    """The approach of all contacts, predicted from the motion without contact forces."""
    group = model.system.group
    a = free_acceleration(model, t, state, args)
    later = State(group.compose(state.q, group.exp(h * state.v + h * h / 2 * a)), state.v + h * a)
    gap, rate = normal_motion(model, t, state)
    _, end_rate = normal_motion(model, t + h, later)
    _, pushed = normal_motion(model, t, State(state.q, later.v))
    floor = np.sqrt(jnp.finfo(rate.dtype).eps) * model.system.scales(state)[1]
    change = end_rate - rate
    # Add the changes due to forces and due to the curvature of the gap in absolute value: where a contact
    # is about to lift off a convex surface they cancel, and the remaining motion would count as fast.
    slow = factor * (jnp.abs(pushed - rate) + jnp.abs(end_rate - pushed)) + floor
    return Approach(gap, rate, change, slow, jnp.maximum(-rate, -end_rate))


class Motion(eqx.Module):
    """The motion over a step, as a curve through both of its ends with velocity `v0` at the start.

        q(s) = q0 exp(s v0 + (s/h)² (φ − h v0) + s² (s − h) j/6),      φ = log(q0^-1 q1)
        v(s) = v0 + (s/h) (v1 − v0) + s (s − h) j/2

    `j` is the jerk. For a constant force it is zero, and the curve is the theta scheme's own step of
    length `s`. With `j` the curve is correct to the third power of `s`, and so are its first and second
    derivatives with respect to `s`. It may be extrapolated backwards.

    **Arguments:** `t`, `h`: start and length; `start`; `chord` = φ, `change` = v1 − v0; `jerk` = j.
    """

    t: Scalar
    h: Scalar
    start: State
    chord: Vector
    change: Vector
    jerk: Vector

    def __call__(self, model: Model, s: Scalar) -> State:
        """The state after the time `s`."""
        group, v0 = model.system.group, self.start.v
        part, bubble = s / self.h, s * (s - self.h)
        turn = s * v0 + part * part * (self.chord - self.h * v0) + s * bubble / 6 * self.jerk
        v = v0 + part * self.change + bubble / 2 * self.jerk
        return State(group.compose(self.start.q, group.exp(turn)), v)


def motion(
    model: Model,
    t: Scalar,
    h: Scalar,
    start: State,
    end: State,
    args: Args,
    middle: Callable[[], State],
) -> Motion:
    """The curve through the two ends of a step.

    Its `jerk` is that of the motion under forces and joints alone. With friction, whose slip reversals are
    crossings too, it is that of the step: `h² j = 4 (v1 − 2 v(h/2) + v0)` for a second-order scheme. The
    derivative of this value is omitted, since it enters derivatives of the state with `h²`. Models with
    joints always use the former: a step may be only first order in their reactions, and a half step does
    then not show how they change.

    **Arguments:** `middle()`: the state after half the step, without derivative.
    """
    group = model.system.group
    chord = group.log(group.compose(group.inverse(start.q), end.q))
    first = jointed_acceleration(model, t, start, args)
    jerk = (jointed_acceleration(model, t + h, end, args) - first) / h
    jointed = any(i.law.holds_gap for i in model.interactions)
    if any(map(slip_rows, model.interactions)) and not jointed:
        v0, v, v1 = jax.lax.stop_gradient((start.v, middle().v, end.v))
        bend, held = 4 * (v1 - 2 * v + v0), jax.lax.stop_gradient(h)
        noise = 1e3 * jnp.finfo(v.dtype).eps * model.system.scales(start)[1]
        bend = jnp.where(jnp.abs(bend) > jax.lax.stop_gradient(noise), bend, 0)
        jerk = with_value(jerk, bend / held**2)
    return Motion(t, h, start, chord, end.v - start.v, jerk)


def crossing_times(h: Scalar, gap0, rate0, gap1, rate1) -> Array:
    """When fast-closing gaps reach zero, `(c,)` in units of `h`: roots of cubics through both ends.

    Negative for gaps that are already closed. Clipped to one step, [−1, 1].
    """

    def visit(_, x):
        a, b = (
            h * rate0 + 2 * (gap0 - gap1) + h * rate1,
            3 * (gap1 - gap0) - h * (2 * rate0 + rate1),
        )
        value = gap0 + x * (h * rate0 + x * (b + x * a))
        slope = h * rate0 + x * (2 * b + 3 * x * a)
        fine = slope < 0
        return jnp.where(fine, jnp.clip(x - value / jnp.where(fine, slope, 1), -1, 1), x)

    falls = gap0 - gap1 > 0
    chord = gap0 / jnp.where(falls, gap0 - gap1, 1)
    return jax.lax.fori_loop(0, 6, visit, jnp.where(falls, jnp.clip(chord, -1, 1), 0))


def total_gap(which: Array) -> Callable[[Model, Scalar, State], Scalar]:
    """An indicator: the sum of the gaps selected by `which (c,)`."""

    def indicator(model, t, state):
        gaps, _ = normal_motion(model, t, state)
        return jnp.sum(jnp.where(which, gaps, 0))

    return indicator


def crossing(model: Model, curve: Motion, guess: Scalar, indicator: Callable) -> Scalar:
    """The time at which an indicator falls to zero along a curve, with all its derivatives.

    `indicator(model, t, state)` is a scalar. The search extends up to one length of the curve.
    """

    def along(s):
        return indicator(model, curve.t + s, curve(model, s))

    return implicit_root(along, guess, search=3, bound=curve.h, falls=True)


def coupled(model: Model, t: Scalar, state: State, first: Array) -> Array:
    """Which contacts are affected by an impulse at the contact `first` (a mask with one entry), `(c,)`.

    Where `H M^-1 H_first^T` vanishes, the impulse does not change the velocity of the contact.
    """
    group = model.system.group
    rows = [i.on(model.system).linearised(group, t, state.q)[0] for i in model.interactions]
    normals = jnp.concatenate([r[0] for r in rows], axis=1)
    push = short_sum(jnp.where(first[None], normals, 0), 1)
    moved = lu_solve(model.system.mass(t, state.q), push)
    felt = [jnp.max(jnp.abs(jnp.sum(r * moved[None, :, None], axis=1)), axis=0) for r in rows]
    own = jnp.sum(jnp.where(first, jnp.concatenate(felt), 0))
    return jnp.concatenate(felt) > 1e-9 * own


def rebounds(model: Model, t: Scalar, h: Scalar, state: State, gap: Array, rate: Array) -> Array:
    """Speeds at which the laws let contacts rebound that close with `rate` and no slip, `(c,)`."""
    speeds, cuts = [], np.cumsum(model.contacts(t, state.q))[:-1]
    parts = zip(model.interactions, jnp.split(gap, cuts), jnp.split(rate, cuts), strict=True)
    for interaction, own, closing in parts:
        rows = [closing, *[jnp.zeros_like(closing)] * (interaction.rows - 1)]
        ones = jnp.ones_like(closing)
        around = Context(jnp.stack(rows), own, h * ones, 0 * ones)
        speeds.append(-law_at(interaction, around)[0][0])
    return jnp.concatenate(speeds)


def resting(slow: Array, h: Scalar, gap: Array, rate: Array) -> Array:
    """Which contacts rest, slide or roll at an instant: closed to second order in `h`, and slow.

    They take part in an impact at that instant.
    """
    return (gap <= slow * h) & (jnp.abs(rate) <= slow)


LONG = 20.0
"""Steps after which a bounce sequence should have ended by itself, where it is ended at once."""


def lasts_long(slow: float, pressed: Array, rate: Array, back: Array) -> Array:
    """Which bounce sequences that are ended here, after a rebound `back` from `rate`, would go on for long.

    A flight takes `2 slow back / pressed` steps, and each is shorter than the one before by `back / rate`.
    """
    # Without division, as either may be zero.
    return 2 * slow * back * -rate > LONG * pressed * (-rate - back)


def impact(
    model: Model, t: Scalar, h: Scalar, state: State, solver, adjoint: AbstractAdjoint | None = None
):
    """The impact of zero duration: `M (v⁺ − v⁻) = H^T P` with the laws of a model with masks.

    **Arguments:** `h`: length of the enclosing step, which laws may use; `adjoint`: how the solution is
    differentiated, as in the method between impacts.

    **Returns:** `v⁺`, impulses per interaction `(c, k)`, statistics, and the first contact that takes
    part and was left out because `max_active` is too small, see `StepInfo.crowded`.
    """
    chosen = [select(i, model, t, state.q) for i in model.interactions]
    blocks = tuple(build_block(i, model, t, state, h, 0.0, duration=0.0) for i, _ in chosen)
    mass = model.system.mass(t, state.q)
    problem = MixedProblem(mass, matvec(mass, state.v), blocks)
    start = tuple(jnp.zeros_like(block.offset) for block in blocks)
    adjoint = ImplicitAdjoint() if adjoint is None else adjoint
    v, z, stats = solve_mixed(problem, start, solver, adjoint)
    impulses = tuple(
        s.spread(jnp.moveaxis(part, 1, 0)) for (_, s), part in zip(chosen, z, strict=True)
    )
    missed = [
        s.rest if s.hit is None or i.mask is None else i.mask.on & s.rest
        for i, (_, s) in zip(model.interactions, chosen, strict=True)
    ]
    return v, impulses, stats, crowded(missed)
