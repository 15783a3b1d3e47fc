"""The first piece of a smooth phase in which a slip in two directions begins at zero.

Near zero slip the friction turns towards the slip at the rate `mu lam_N / (m |u_T|)`, which has no bound.
The motion itself is smooth: explicit methods creep there, and a collocation polynomial passes.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._jax import without_derivative
from ..._numerics import implicit_root, max_abs
from ..._types import Scalar
from ..runge_kutta import ButcherTableau
from ._event_phase import Field, Phase, velocities

RADAU = ButcherTableau.radau(7)
_S = len(RADAU.c)
_MIDDLE = (RADAU.c[-1] + RADAU.c[-2]) / 2


def _check_weights() -> tuple[np.ndarray, np.ndarray]:
    """Weights of the increments, and of the integral up to there, at a point between the last two nodes."""
    powers, j = np.vander(RADAU.c, increasing=True).T, np.arange(_S)
    rates, sums = _MIDDLE**j, _MIDDLE ** (j + 1) / (j + 1)
    return np.linalg.solve(powers, rates), np.linalg.solve(powers, sums)


class _Unknowns(NamedTuple):
    """Increments of the nodes, and how far the directions of the slips have turned from `side` [rad]."""

    k: Float[Array, "s m"]
    turn: Float[Array, "s j"]


def slip_start(phase: Phase, length: Scalar, looks: int, tolerance: float):
    """The motion over the first part of a phase, shorter if something happens there or is not resolved.

    With the nodes `c_i` of a Radau method, and directions `d_i` that begin as `side`,

        y_i = y0 + h Σ a_ij f(y_j, d_j),     d_i × u_T(y_i) = 0

    Directions as unknowns of their own keep Newton's method away from the cusp of `u_T / |u_T|`.

    **Returns:** the part; the solver's variables at its end, differentiable; whether it was found.
    """
    # The nodes are looks as well.
    most = min(1.0, _S / looks)
    known, whole = without_derivative((phase, length))

    def attempt(tried):
        part, _, _, _, count = tried
        h = part * whole
        x, size, fits = _collocated(known, h)
        y, misfit = _end(known, h, x)
        normal, slip = _distances(known, h, x)
        quiet = jnp.all(normal > 0) & jnp.all((slip > 0) | (known.fresh & known.rows.turns)[None])
        good = fits & quiet & (misfit <= tolerance)
        return jnp.where(good, part, part / 2), x, size, good, count + 1

    def proceed(tried):
        return ~tried[3] & (tried[4] < 24)

    nothing = _nothing(known)
    start = jnp.full_like(whole, most), nothing, jnp.ones_like(nothing.turn)
    none = jnp.array(False), jnp.zeros((), jnp.int32)
    part, x, size, good, _ = jax.lax.while_loop(proceed, attempt, (*start, *none))
    flat, shaped = jax.flatten_util.ravel_pytree(x)
    flat = implicit_root(lambda x: _flat_defect(phase, part * length, shaped(x), size), flat)
    return part, _end(phase, part * length, shaped(flat))[0], good


def _places(phase: Phase) -> tuple[np.ndarray, np.ndarray]:
    """The first and second rows of slips in two directions."""
    rows = np.flatnonzero(phase.rows.turns)
    return rows[::2], rows[1::2]


def _nothing(phase: Phase) -> _Unknowns:
    dtype, count = phase.state.v.dtype, len(_places(phase)[0])
    return _Unknowns(jnp.zeros((_S, 2 * phase.state.v.size), dtype), jnp.zeros((_S, count), dtype))


def _turned(phase: Phase, turn: Array) -> Float[Array, " r"]:
    """`side`, turned."""
    first, second = _places(phase)
    one, two, sin, cos = phase.side[first], phase.side[second], jnp.sin(turn), jnp.cos(turn)
    side = phase.side.at[first].set(cos * one - sin * two)
    return side.at[second].set(sin * one + cos * two)


def _rates(phase: Phase, h: Scalar, part, moved: Array, turn: Array):
    """Increments `(m,)` and impulses `(r,)` at a node, and its slip along and across the direction."""
    n, side = phase.state.v.size, _turned(phase, turn)
    begun = eqx.tree_at(lambda p: p.given, phase, side, is_leaf=lambda x: x is None)
    y = moved[:n], phase.state.v + moved[n:], jnp.zeros_like(side)
    xi, a, lam = Field(begun, h)(part, y, None)
    u = velocities(phase.model, *phase.at(part, h, y))
    first, second = _places(phase)
    along = side[first] * u[first] + side[second] * u[second]
    across = side[first] * u[second] - side[second] * u[first]
    return jnp.concatenate([xi, a]), lam, along, across


def _at_nodes(phase: Phase, h: Scalar, x: _Unknowns):
    moved = jnp.asarray(RADAU.a, h.dtype) @ x.k
    nodes = jnp.asarray(RADAU.c, h.dtype)
    return jax.vmap(lambda c, y, turn: _rates(phase, h, c, y, turn))(nodes, moved, x.turn)


def _distances(phase: Phase, h: Scalar, x: _Unknowns):
    """The event functions at the nodes."""
    moved, n = jnp.asarray(RADAU.a, h.dtype) @ x.k, phase.state.v.size
    y = moved[:, :n], phase.state.v[None] + moved[:, n:], jnp.zeros((_S, 1), h.dtype)
    return jax.vmap(lambda c, y: phase.distances(c, h, y))(jnp.asarray(RADAU.c, h.dtype), y)


def _flat_defect(phase: Phase, h: Scalar, x: _Unknowns, size: Array) -> Array:
    """The defect of the collocation equations, with slips relative to `size`."""
    increments, _, _, across = _at_nodes(phase, h, x)
    begins = phase.fresh[_places(phase)[0]][None]
    aside = jnp.where(begins, across / size, x.turn)
    return jnp.concatenate([(x.k - increments).reshape(-1), aside.reshape(-1)])


def _collocated(phase: Phase, h: Scalar) -> tuple[_Unknowns, Array, Array]:
    """Unknowns, sizes of the slips, and whether the collocation equations are solved."""
    x = _nothing(phase)
    for _ in range(3):
        x = x._replace(k=_at_nodes(phase, h, x)[0])
    begins = phase.fresh[_places(phase)[0]][None]
    size = jnp.abs(_at_nodes(phase, h, x)[2])
    size = jnp.where(begins & (size > 0), size, 1)
    flat, shaped = jax.flatten_util.ravel_pytree(x)

    def defect(x):
        return _flat_defect(phase, h, shaped(x), size)

    flat = implicit_root(defect, flat, search=6)
    x = shaped(flat)
    fits = max_abs(defect(flat)) <= 1e-10
    fits = fits & jnp.all((_at_nodes(phase, h, x)[2] > 0) | ~begins)
    return x, size, fits


def _end(phase: Phase, h: Scalar, x: _Unknowns):
    """The solver's variables at the end, and how far the polynomial misses the motion between its nodes."""
    weights, n = jnp.asarray(RADAU.b, h.dtype), phase.state.v.size
    moved, lam = weights @ x.k, _at_nodes(phase, h, x)[1]
    y = moved[:n], phase.state.v + moved[n:], weights @ lam
    rates, sums = (jnp.asarray(w, h.dtype) for w in _check_weights())
    middle = jnp.full_like(h, _MIDDLE)
    increments = _rates(phase, h, middle, sums @ x.k, rates @ x.turn)[0]
    return y, max_abs(rates @ x.k - increments)
