"""The smooth motion between two events, and its end as a root that is differentiated."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._numerics import implicit_root, lu_solve, short_sum
from ..._types import Args, Scalar, State, Vector
from ...model import Model
from .._impact import normal_motion


class Phase(eqx.Module):
    """A smooth phase: where it starts, which contacts it holds, and which it leaves behind."""

    model: Model
    t: Scalar
    state: State
    held: Bool[Array, " c"]
    left: Bool[Array, " c"]
    args: Args

    def contact_terms(self, t: Scalar, state: State):
        """`d/dt u` without contact forces, `H M^-1 H^T`, `M^-1 H^T (n, c)`, free acceleration."""
        model, group = self.model, self.model.system.group
        mass = model.system.mass(t, state.q)
        a = lu_solve(mass, model.system.force(t, state, self.args))
        rows = [i.relation.linearised(group, t, state.q)[0][0] for i in model.interactions]
        normals = jnp.concatenate(rows, axis=1)
        moved = lu_solve(mass[:, :, None], normals)

        def rates(s):
            turn = s * state.v
            later = State(group.compose(state.q, group.exp(turn)), state.v + s * a)
            return normal_motion(model, t + s, later)[1]

        zero = jnp.zeros_like(t)
        _, free = jax.jvp(rates, (zero,), (jnp.ones_like(zero),))
        return free, short_sum(normals[:, :, None] * moved[:, None, :], 0), moved, a

    def acceleration(self, t: Scalar, state: State) -> tuple[Vector, Array]:
        """The acceleration with the held contacts, and their forces."""
        free, matrix, moved, a = self.contact_terms(t, state)
        both = self.held[:, None] & self.held[None, :]
        eye = jnp.eye(free.shape[0], dtype=free.dtype)
        lam = lu_solve(jnp.where(both, matrix, eye), jnp.where(self.held, -free, 0))
        return a + short_sum(moved * lam[None, :], 1), lam

    def at(self, part: Scalar, length: Scalar, y) -> tuple[Scalar, State]:
        """Time and state from the solver's variables."""
        group = self.model.system.group
        xi, v, _ = y
        return self.t + part * length, State(group.compose(self.state.q, group.exp(xi)), v)

    def distances(self, part: Scalar, length: Scalar, y) -> Float[Array, " c"]:
        """What reaches zero from above at the next event, `(c,)`.

        Gaps of open contacts, forces of held ones. A contact that has just been left starts at zero:
        its gap is divided by the time, which removes that root.
        """
        t, state = self.at(part, length, y)
        gap, _ = normal_motion(self.model, t, state)
        _, lam = self.acceleration(t, state)
        begins = part <= 0
        slope = jnp.where(begins, 1, gap / jnp.where(begins, 1, part))
        return jnp.where(self.held, lam, jnp.where(self.left, slope, gap))


class Field(eqx.Module):
    """The motion of a phase by a clock that runs from 0 to 1."""

    phase: Phase
    length: Scalar

    def __call__(self, part, y, args):
        del args
        t, state = self.phase.at(part, self.length, y)
        a, lam = self.phase.acceleration(t, state)
        turn = self.phase.model.system.group.dexpinv(-y[0], state.v)
        return jax.tree.map(lambda x: self.length * x, (turn, a, lam))


def at_closing(phase: Phase, s: Scalar, state: State, impulses: Array, hit: Array):
    """Time, state and impulses with the derivative of the event time; values change by rounding.

    A root of the gap along the motion to third order.
    """
    group = phase.model.system.group
    weights = jnp.where(hit, 1 / jnp.maximum(jnp.sum(hit, dtype=s.dtype), 1), 0)
    t = phase.t + s

    a, lam = phase.acceleration(t, state)

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

    def gap(ds):
        gaps, _ = normal_motion(phase.model, t + ds, moved(ds))
        return jnp.sum(jnp.where(hit, weights * gaps, 0))

    ds = implicit_root(gap, zero, falls=True)
    return s + ds, moved(ds), impulses + ds * lam


def tiny_of(model: Model, state: State) -> Scalar:
    """Gaps and rates below this are zero: the square root of rounding times the coordinates, less."""
    size = jnp.maximum(1.0, jnp.maximum(*model.system.scales(state)))
    return 1e2 * jnp.finfo(state.v.dtype).eps ** 0.75 * size
