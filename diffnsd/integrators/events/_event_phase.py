"""The smooth motion between two events, and its end as a differentiable root."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._numerics import implicit_root, lu_solve, short_sum
from ..._types import Args, Scalar, State, Vector
from ...complementarity.problem._problem import broadcast_law
from ...model import Model
from .._impact import normal_motion, slip_rows


class Rows(NamedTuple):
    """The rows of all contacts, contact by contact, and their kinds; known before tracing.

    **Arguments:** `contact`: the contact of a row; `is_normal`, `is_slip`; `normal`: for a slip under
    Coulomb friction the row of its normal force, else the row itself; `turns`: slips of contacts with
    several slip rows, whose direction can change; each of shape `(r,)`.
    """

    contact: np.ndarray
    is_normal: np.ndarray
    is_slip: np.ndarray
    normal: np.ndarray
    turns: np.ndarray

    def summed(self, x: Array) -> Array:
        """In the row of a slip, the sum of `x` over all slips of its contact, `(r,)`."""
        if not np.any(self.turns):
            return x
        slips = self.is_slip[:, None] & self.is_slip
        same = slips & (self.contact[:, None] == self.contact)
        return short_sum(jnp.where(same, x, 0), 1)

    def size(self, x: Array) -> Array:
        """In the row of a slip, the length of the part of `x` that belongs to its contact, `(r,)`."""
        return jnp.sqrt(self.summed(x * x)) if np.any(self.turns) else jnp.abs(x)

    @property
    def pairs(self) -> np.ndarray:
        """`(r, r)`: in the row of a slip, 1 in the column of its normal force."""
        own = np.arange(len(self.normal))
        return (self.normal[:, None] == own) * (self.normal != own)[:, None] * 1.0


def rows_of(model: Model, t: Scalar, q) -> Rows:
    """The rows of a model."""
    contact, is_normal, is_slip, normal, turns, first = [], [], [], [], [], 0
    for interaction, count in zip(model.interactions, model.contacts(t, q), strict=True):
        k, slips = interaction.rows, slip_rows(interaction)
        row = np.tile(np.arange(k), count)
        start = sum(len(x) for x in contact)
        own = start + np.arange(count * k)
        opens = interaction.law.is_unilateral
        contact.append(first + np.repeat(np.arange(count), k))
        is_normal.append((row == 0) & opens)
        is_slip.append(np.isin(row, slips))
        normal.append(np.where(np.isin(row, slips) & opens, own - row, own))
        turns.append(np.isin(row, slips) & (len(slips) > 1))
        first += count
    return Rows(*map(np.concatenate, (contact, is_normal, is_slip, normal, turns)))


def limits(model: Model, t: Scalar, q, dtype) -> tuple[Array, Array, Array]:
    """Lower and upper bounds of limited forces, and friction coefficients, each `(r,)`."""
    lower, upper, mu = [], [], []
    for interaction, count in zip(model.interactions, model.contacts(t, q), strict=True):
        shape = count, interaction.rows
        admissible = broadcast_law(interaction.law, count, dtype).set()
        interval = admissible.interval()
        low, high = (0.0, 0.0) if interval is None or not interaction.law.slides else interval
        factor = admissible.mu if interval is None else 0.0  # pyright: ignore[reportAttributeAccessIssue]
        for out, value in ((lower, low), (upper, high), (mu, factor)):
            column = jnp.broadcast_to(jnp.asarray(value, dtype), (count,))[:, None]
            out.append(jnp.broadcast_to(column, shape).reshape(-1))
    return jnp.concatenate(lower), jnp.concatenate(upper), jnp.concatenate(mu)


def velocities(model: Model, t: Scalar, state: State) -> Float[Array, " r"]:
    """The local velocities of all rows."""
    group = model.system.group
    parts = (
        i.on(model.system).output(group, t, state, None)[:, : i.rows] for i in model.interactions
    )
    return jnp.concatenate([part.reshape(-1) for part in parts])


class Phase(eqx.Module):
    """A smooth phase: its start and its contact modes.

    **Arguments:** `held`: contacts kept closed, `left`: closed contacts that are not held, `(c,)`;
    `stuck`: rows other than normal ones whose velocity is kept at zero, `side`: directions of sliding
    slips at the start, a sign or the components of a unit vector, else 0, `fresh`: sliding slips that
    start at zero, `(r,)`; `given`: the directions of `fresh` slips with several rows, `(r,)`, while
    they are unknowns.
    """

    model: Model
    t: Scalar
    state: State
    held: Bool[Array, " c"]
    left: Bool[Array, " c"]
    stuck: Bool[Array, " r"]
    side: Float[Array, " r"]
    fresh: Bool[Array, " r"]
    args: Args
    given: Float[Array, " r"] | None = None

    @property
    def rows(self) -> Rows:
        return rows_of(self.model, self.t, self.state.q)

    @property
    def on(self) -> Bool[Array, " r"]:
        """Rows whose velocity is kept constant."""
        rows = self.rows
        return jnp.where(rows.is_normal, self.held[rows.contact], self.stuck)

    def contact_terms(self, t: Scalar, state: State):
        """`d/dt u` without contact forces, `H M^-1 H^T`, `M^-1 H^T (n, r)`, free acceleration."""
        model, group = self.model, self.model.system.group
        mass = model.system.mass(t, state.q)
        a = lu_solve(mass, model.system.force(t, state, self.args))
        parts = []
        for i in model.interactions:
            h = i.on(model.system).linearised(group, t, state.q)[0][: i.rows]
            parts.append(h.transpose(1, 2, 0).reshape(h.shape[1], -1))
        columns = jnp.concatenate(parts, axis=1)
        moved = lu_solve(mass[:, :, None], columns)

        def rates(s):
            turn = s * state.v
            later = State(group.compose(state.q, group.exp(turn)), state.v + s * a)
            return velocities(model, t + s, later)

        zero = jnp.zeros_like(t)
        _, free = jax.jvp(rates, (zero,), (jnp.ones_like(zero),))
        return free, short_sum(columns[:, :, None] * moved[:, None, :], 0), moved, a

    def direction(self, t: Scalar, state: State) -> Float[Array, " r"]:
        """The directions of sliding slips, else 0: `side`, or in several rows `± u_T / |u_T|`.

        The sign is that of `side · u_T`, so that the forces stay smooth where a slip passes through zero,
        as one with a single row does, until the end of the phase is located.
        """
        rows = self.rows
        if not np.any(rows.turns):
            return self.side
        u = velocities(self.model, t, state)
        square = rows.summed(u * u)
        turns = rows.turns & (self.side_size > 0) & (square > 0)
        sign = jnp.sign(rows.summed(self.side * u))
        side = jnp.where(turns, sign * u / jnp.sqrt(jnp.where(turns, square, 1)), self.side)
        return side if self.given is None else jnp.where(self.fresh & rows.turns, self.given, side)

    @property
    def side_size(self) -> Float[Array, " r"]:
        """1 in the rows of sliding contacts, else 0."""
        return self.rows.size(self.side)

    def acceleration(self, t: Scalar, state: State) -> tuple[Vector, Array, Array]:
        """The acceleration, the forces of the contacts in these modes `(r,)`, and `H M^-1 H^T (r, r)`.

        d/dt u_i = 0  where held or stuck,     lam_T = −mu s lam_N  or  lam_T = ∓L  where it slides
        """
        free, matrix, moved, a = self.contact_terms(t, state)
        lower, upper, mu = limits(self.model, self.t, state.q, free.dtype)
        side = self.direction(t, state)
        slides = (side * mu)[:, None] * self.rows.pairs.astype(free.dtype)
        given = jnp.where(side > 0, lower, jnp.where(side < 0, upper, 0))
        on, eye = self.on, jnp.eye(free.shape[0], dtype=free.dtype)
        lam = lu_solve(jnp.where(on[:, None], matrix, eye + slides), jnp.where(on, -free, given))
        return a + short_sum(moved * lam[None, :], 1), lam, matrix

    def fading(self, t: Scalar, state: State, lam: Array, matrix: Array) -> Float[Array, " r"]:
        """The rate at which friction takes away slip across its direction, `W |lam_T| / |u_T|` [1/s].

        `W` is the mean over the slip rows of a contact. Negative behind the end of a slip, as `direction`.
        """
        rows, u = self.rows, velocities(self.model, t, state)
        speed = rows.summed(self.direction(t, state) * u)
        mean = rows.summed(jnp.diagonal(matrix)) / 2
        moves = rows.turns & (self.side_size > 0) & (speed != 0)
        return jnp.where(moves, mean * rows.size(lam) / jnp.where(moves, speed, 1), 0)

    def stopped(self, t: Scalar, state: State, ends: Array) -> tuple[Vector, Array]:
        """The velocity without the slips of the rows `ends`, and the impulse that takes them away, `(r,)`."""
        _, matrix, moved, _ = self.contact_terms(t, state)
        keeps, eye = self.on | ends, jnp.eye(matrix.shape[0], dtype=matrix.dtype)
        excess = jnp.where(ends, -velocities(self.model, t, state), 0)
        p = lu_solve(jnp.where(keeps[:, None], matrix, eye), excess)
        return state.v + short_sum(moved * p[None, :], 1), p

    def at(self, part: Scalar, length: Scalar, y) -> tuple[Scalar, State]:
        """Time and state from the solver's variables."""
        group = self.model.system.group
        xi, v, *_ = y
        return self.t + part * length, State(group.compose(self.state.q, group.exp(xi)), v)

    def distances(self, part: Scalar, length: Scalar, y) -> tuple[Array, Array]:
        """Event functions that fall to zero at the next event: of normals, `(c,)`, and of slips, `(r,)`.

        Gaps of open contacts and forces of held ones; speeds of sliding rows, and distances of sticking
        forces from their bounds. The functions of contacts and slips that have just changed mode start at
        zero: they are divided by the time, which removes that root. A slip with several rows need not pass
        through zero, so it ends where it is slow, and also where it has turned by 60°, to go on from there.
        """
        t, state = self.at(part, length, y)
        gap, _ = normal_motion(self.model, t, state)
        _, lam, _ = self.acceleration(t, state)
        begins = part <= 0

        def after_start(x):
            return jnp.where(begins, 1, x / jnp.where(begins, 1, part))

        rows = self.rows
        force = (
            jnp.full_like(gap, jnp.inf).at[rows.contact[rows.is_normal]].set(lam[rows.is_normal])
        )
        normal = jnp.where(self.held, force, jnp.where(self.left, after_start(gap), gap))
        # Joints have no gap.
        normal = jnp.where(jnp.isfinite(gap), normal, jnp.inf)

        u = velocities(self.model, t, state)
        speed = rows.summed(self.side * u)
        if np.any(rows.turns):
            least = slow_slip(self.model, self.state)
            narrow = (speed - NARROW * rows.size(u)) / (1 - NARROW) - least
            speed = jnp.where(rows.turns, narrow, speed)
        lower, upper, mu = limits(self.model, self.t, state.q, lam.dtype)
        reach = (upper - lower) / 2 + mu * lam[rows.normal]
        inside = reach - rows.size(lam - (lower + upper) / 2)
        sliding = jnp.where(self.fresh, after_start(speed), speed)
        slip = jnp.where(self.side_size > 0, sliding, jnp.where(self.stuck, inside, jnp.inf))
        return normal, jnp.where(rows.is_slip, slip, jnp.inf)


class Field(eqx.Module):
    """The vector field of a phase in time scaled to [0, 1].

    Its variables are rotation vectors and the like, velocities, impulses and, of slips in two directions,
    what is left of a variation across the slip. This has no effect on the motion, but shows it to the
    control of the error: a slip may stop on a straight line while its derivative fades as a root of time.
    """

    phase: Phase
    length: Scalar

    def __call__(self, part, y, args):
        del args
        t, state = self.phase.at(part, self.length, y)
        a, lam, matrix = self.phase.acceleration(t, state)
        turn = self.phase.model.system.group.dexpinv(-y[0], state.v)
        fading = [-x * self.phase.fading(t, state, lam, matrix) for x in y[3:]]
        fading = jax.lax.stop_gradient(fading)
        return jax.tree.map(lambda x: self.length * x, (turn, a, lam, *fading))


def at_closing(phase: Phase, s: Scalar, state: State, impulses: Array, hit: Array, turned: Array):
    """Attaches the derivative of the event time to time, state and impulses.

    Values change only by rounding. The event is a root of the gap, or of the slip, along the motion to
    third order.
    """
    group = phase.model.system.group
    t = phase.t + s

    a, lam, _ = phase.acceleration(t, state)

    def along(ds):
        turn = ds * state.v + ds * ds / 2 * a
        return State(group.compose(state.q, group.exp(turn)), state.v + ds * a)

    def rate(ds):
        there = along(ds)
        return phase.acceleration(t + ds, there)[0]

    zero = jnp.zeros_like(s)
    _, jerk = jax.jvp(rate, (zero,), (jnp.ones_like(zero),))

    def moved(ds):
        there = along(ds)
        return State(there.q, there.v + ds * ds / 2 * jerk)

    def mean(values, which):
        return jnp.sum(jnp.where(which, values, 0)) / jnp.maximum(jnp.sum(which, dtype=s.dtype), 1)

    def falls(ds):
        there = moved(ds)
        gaps, _ = normal_motion(phase.model, t + ds, there)
        speeds = side * velocities(phase.model, t + ds, there)
        return mean(gaps, hit) + mean(speeds, turned)

    side = jax.lax.stop_gradient(phase.direction(t, state))
    ds = implicit_root(falls, zero, falls=True)
    s, state, impulses = s + ds, moved(ds), impulses + ds * lam
    ends = turned & phase.rows.turns
    if not np.any(phase.rows.turns):
        return s, state, impulses
    # Across its last direction a slip fades faster than along it, but does not vanish within a series.
    v, p = phase.stopped(phase.t + s, state, ends)
    still = jnp.any(ends)
    v, p = jnp.where(still, v, state.v), jnp.where(still, p, 0)
    return s, State(state.q, v), impulses + p


NARROW = 0.5
"""Cosine of the angle by which a slip may turn within a phase."""


def slow_slip(model: Model, state: State) -> Scalar:
    """Slips with several rows count as ended below this speed.

    Their direction is lost to rounding in `1 / |u_T|`, and the way from here to rest is its square.
    """
    size = jnp.maximum(1.0, model.system.scales(state)[1])
    return 10 * jnp.sqrt(jnp.finfo(state.v.dtype).eps) * size


def tiny_of(model: Model, state: State) -> Scalar:
    """Gaps and rates below this count as zero; less than `sqrt(eps)` times the size of the coordinates."""
    size = jnp.maximum(1.0, jnp.maximum(*model.system.scales(state)))
    return 1e2 * jnp.finfo(state.v.dtype).eps ** 0.75 * size
