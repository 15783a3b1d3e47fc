"""The first piece of a smooth phase in which a slip with several rows begins at zero.

Near zero slip the friction turns towards the slip at the rate `mu lam_N / (m |u_T|)`, which has no bound, while
the motion itself is smooth: explicit methods creep, and a collocation polynomial passes.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._jax import without_derivative
from ..._numerics import implicit_root, lu_solve, max_abs
from ..._types import Scalar
from ..runge_kutta import ButcherTableau
from ._event_phase import Field, Phase, velocities

RADAU = ButcherTableau.radau(7)
LEADS = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 0.0, 0.0, 0.0, 0.0, 0.0)
"""Slips added along the direction of beginning slip while the collocation equations are solved."""


def slip_start(phase: Phase, length: Scalar, part: float, tolerance: float):
    """The motion over the first `part` of a phase, or less if something happens there or is not resolved.

    **Returns:** the part; the solver's variables at its end, differentiable; whether it was found.
    """
    known, whole = without_derivative((phase, length))

    def attempt(tried):
        part, _, _, count = tried
        k, fits = _collocated(known, part * whole)
        y, misfit = _end(known, part * whole, k)
        normal, slip = known.distances(jnp.ones_like(part), part * whole, y)
        begins = known.fresh & known.rows.turns
        quiet = jnp.all(normal > 0) & jnp.all((slip > 0) | begins)
        good = fits & quiet & (misfit <= tolerance)
        return jnp.where(good, part, part / 2), k, good, count + 1

    def proceed(tried):
        return ~tried[2] & (tried[3] < 24)

    part = jnp.full_like(whole, part)
    k = jnp.zeros(len(RADAU.c) * 2 * phase.state.v.size, whole.dtype)
    none = jnp.array(False), jnp.zeros((), jnp.int32)
    part, k, good, _ = jax.lax.while_loop(proceed, attempt, (part, k, *none))
    k = implicit_root(lambda k: _defect(phase, part * length, k), k)
    return part, _end(phase, part * length, k)[0], good


def _stages(phase: Phase, h: Scalar, k: Array):
    """Increments `(s, 2 n)` as they are, and as the equations of motion give them, and impulses `(s, r)`."""
    field, n, dtype = Field(phase, h), phase.state.v.size, h.dtype
    k = k.reshape(-1, 2 * n)
    moved = jnp.asarray(RADAU.a, dtype) @ k
    xi, v = moved[:, :n], phase.state.v + moved[:, n:]
    impulses = jnp.zeros((len(k), phase.side.size), dtype)
    given = jnp.asarray(RADAU.c, dtype), (xi, v, impulses), None
    turn, a, lam = jax.vmap(field, (0, 0, None))(*given)
    return k, jnp.concatenate([turn, a], axis=1), lam


def _defect(phase: Phase, h: Scalar, k: Array) -> Array:
    k, increments, _ = _stages(phase, h, k)
    return (k - increments).reshape(-1)


def _collocated(phase: Phase, h: Scalar) -> tuple[Array, Array]:
    """Solves the collocation equations: towards the direction of beginning slip, then less and less so."""

    def ahead(lead):
        return eqx.tree_at(lambda p: p.lead, phase, lead)

    def refined(k, lead):
        def defect(k):
            return _defect(ahead(lead), h, k)

        return k - lu_solve(jax.jacfwd(defect)(k), defect(k)), None

    k = jnp.zeros(len(RADAU.c) * 2 * phase.state.v.size, h.dtype)
    far = jnp.full_like(h, 1e12)
    for _ in range(3):
        k = k - _defect(ahead(far), h, k)
    _, v, _ = _end(phase, h, k)[0]
    _, there = phase.at(jnp.ones_like(h), h, _end(phase, h, k)[0])
    del v
    u = velocities(phase.model, phase.t + h, there)
    fastest = max_abs(jnp.where(phase.rows.turns, u, 0))
    k, _ = jax.lax.scan(refined, k, fastest * jnp.asarray(LEADS, h.dtype))
    left = max_abs(_defect(phase, h, k))
    return k, left <= 1e-12 * (1 + max_abs(k))


def _end(phase: Phase, h: Scalar, k: Array):
    """The solver's variables at the end, and how far the polynomial misses the motion between its nodes."""
    n, weights = phase.state.v.size, jnp.asarray(RADAU.b, h.dtype)
    k, _, lam = _stages(phase, h, k)
    moved = weights @ k
    y = moved[:n], phase.state.v + moved[n:], weights @ lam
    c = np.asarray(RADAU.c)
    middle = (c[-1] + c[-2]) / 2
    basis = np.array([np.prod([(middle - x) / (y - x) for x in c if x != y]) for y in c])
    powers = np.vander(c, increasing=True).T
    sums = np.linalg.solve(powers, [middle ** (i + 1) / (i + 1) for i in range(len(c))])
    inner = jnp.asarray(sums, h.dtype) @ k
    rates = Field(phase, h)(
        jnp.full_like(h, middle), (inner[:n], phase.state.v + inner[n:], y[2]), None
    )
    misfit = max_abs(jnp.asarray(basis, h.dtype) @ k - jnp.concatenate(rates[:2]))
    return y, misfit
