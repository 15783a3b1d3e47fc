"""Pivoting: Lemke's method, and enumeration of all modes. For few unknowns, any matrix.

Both need sets that are intervals, row by row (`AbstractSet.interval`).
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._jax import one_by_one
from ..problem._dense import DenseProblem, solve_matrix
from ..problem._problem import join
from ._base import AbstractContactSolver, check_tolerance
from ._semismooth import POLISH, LevenbergMarquardt


def intervals(contacts) -> list[Any] | None:
    """Bounds `(lower, upper)` of every law's rows, or `None` if a set is not made of intervals."""
    found = [part.law.set().interval() for part in contacts]
    return None if any(x is None for x in found) else found


def free_rows(contacts) -> np.ndarray | None:
    """Which rows are free, if all the others are half lines; else `None`."""
    found = intervals(contacts)
    if found is None:
        return None
    out = []
    for bounds, part in zip(found, contacts, strict=True):
        c, k = part.shape
        known = [x if isinstance(x, float) else None for x in bounds]
        if known not in ([0.0, math.inf], [-math.inf, math.inf]):
            return None
        out.append(np.full(c * k, known[0] == -math.inf))
    return np.concatenate(out) if out else np.zeros(0, bool)


class Lemke(AbstractContactSolver):
    """Lemke's complementary pivoting with the lexicographic rule, for LCP and mixed LCP.

        w = W z + q + z_0 e,   0 <= z ⟂ w >= 0:   from z_0 large to z_0 = 0, pivot by pivot

    Exact in finitely many pivots, also for matrices that are not monotone. If it ends in a ray, the ray
    may prove that there is no solution (`certificate`). Free rows are eliminated first, so their block
    of W must be regular. The number of pivots is about `m` in practice and can be exponential.

    **Arguments:** `tolerance`: residual to reach; `pivots`: largest number of pivots, `None` for
    `10 m + 50`; `most`: largest number of unknowns, `None` for any.

    Reference: R. Cottle, J.-S. Pang, R. Stone, The linear complementarity problem (2009),
    doi:10.1137/1.9780898719000.
    """

    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)
    pivots: int | None = eqx.field(default=None, static=True, kw_only=True)
    most: int | None = eqx.field(default=None, static=True, kw_only=True)

    explores = True

    def __check_init__(self):
        check_tolerance(self.tolerance)

    @property
    def links(self) -> tuple[AbstractContactSolver, ...]:
        return self, LevenbergMarquardt(POLISH)

    def refuses(self, contacts) -> str | None:
        free = free_rows(contacts)
        if free is not None and self.most is not None and len(free) > self.most:
            return f"there are {len(free)} unknowns, more than most = {self.most}"
        if free is not None:
            return None
        return "Lemke's method is for half lines and equalities; use Auto() for other sets"

    def init(self, problem: DenseProblem, z0: Array) -> "_Pivoted":
        del problem
        return _Pivoted(z0, jnp.zeros_like(z0), jnp.zeros(z0.shape[1:], jnp.int32))

    def step(self, problem: DenseProblem, state: "_Pivoted") -> "_Pivoted":
        """All pivots, one problem at a time."""
        del state
        free = free_rows(problem.contacts)
        assert free is not None
        limit = 10 * problem.q.shape[0] + 50 if self.pivots is None else self.pivots
        W, q = problem.W, problem.q.T
        f, s = np.flatnonzero(free), np.flatnonzero(~free)
        given = jnp.concatenate([W[:, f][:, :, s], q[:, f, None]], axis=2)
        solved = one_by_one(jnp.linalg.solve, W[:, f][:, :, f], given) if len(f) else given
        single = partial(_lemke, f=f, s=s, limit=limit)
        z, ray, count = jax.vmap(single)(W, q, solved)
        return _Pivoted(jnp.where(problem.active, z.T, 0), ray.T, count)

    def iterations(self, state: "_Pivoted") -> Array:
        return state.pivots

    def direction(self, before: "_Pivoted", after: "_Pivoted") -> Array:
        del before
        return after.ray


class _Pivoted(eqx.Module):
    """The last point, the direction of the ray if it ended in one, and the number of pivots."""

    z: Array
    ray: Array
    pivots: Array


def _lemke(W: Array, q: Array, solved: Array, f: np.ndarray, s: np.ndarray, limit: int):
    """One problem; `solved` is `W_ff^-1 [W_fs | q_f]` for the free rows `f` and the others `s`.

    **Returns:** `z`, the direction of the final ray or zero, the number of pivots.
    """
    gain, held = solved[:, :-1], solved[:, -1]
    M, b = W[np.ix_(s, s)] - W[np.ix_(s, f)] @ gain, q[s] - W[np.ix_(s, f)] @ held
    if not len(s):
        return -held, jnp.zeros_like(q), jnp.zeros((), jnp.int32)
    rows = _scale(jnp.max(jnp.abs(M), axis=1, initial=0))
    columns = _scale(jnp.max(jnp.abs(M * rows[:, None]), axis=0, initial=0))
    y, ray, count = _pivots(rows[:, None] * M * columns[None], rows * b, limit)

    def back(y, held):
        part = columns * y
        z = jnp.zeros_like(q).at[s].set(part)
        return z.at[f].set(-held - gain @ part)

    return back(y, held), back(ray, jnp.zeros_like(held)), count


def _scale(x: Array) -> Array:
    return 1 / jnp.where((x > 0) & jnp.isfinite(x), x, 1)


def _pivots(M: Array, b: Array, limit: int):
    """Lemke's method for `w = M z + b`: the tableau `[1 | −M | −e | b]` and its basis."""
    n = len(b)
    dtype = b.dtype
    eps = 64 * float(jnp.finfo(dtype).eps)
    identity = jnp.eye(n, dtype=dtype)
    tableau = jnp.concatenate([identity, -M, -jnp.ones((n, 1), dtype), b[:, None]], axis=1)
    basis, artificial = jnp.arange(n, dtype=jnp.int32), 2 * n
    size = jnp.maximum(jnp.max(jnp.abs(b), initial=0), 1e-300)

    def leave(tableau, basis, column):
        """The row that leaves, by the lexicographic ratio test; the artificial one where possible."""
        usable = column > eps
        divisor = jnp.where(usable, column, 1)

        def narrow(rows, values, scale):
            values = jnp.where(rows, values / divisor, jnp.inf)
            return rows & (values <= jnp.min(values) + eps * scale)

        rows = narrow(usable, tableau[:, -1], size)
        rows = jnp.where(jnp.any(rows & (basis == artificial)), basis == artificial, rows)

        def tied(carry):
            rows, j = carry
            return (jnp.sum(rows) > 1) & (j < n)

        def next_column(carry):
            rows, j = carry
            return narrow(rows, tableau[:, j], 1.0), j + 1

        rows, _ = jax.lax.while_loop(tied, next_column, (rows, jnp.zeros((), jnp.int32)))
        return jnp.argmax(rows), jnp.any(usable)

    def exchange(tableau, basis, row, entering):
        chosen = tableau[row] / tableau[row, entering]
        rest = tableau - tableau[:, entering][:, None] * chosen[None]
        tableau = jnp.where((jnp.arange(n) == row)[:, None], chosen[None], rest)
        return tableau, basis.at[row].set(entering), basis[row]

    def complement(variable):
        return jnp.where(variable < n, variable + n, variable - n)

    def proceed(carry):
        *_, running, count = carry
        return running & (count < limit)

    def body(carry):
        tableau, basis, entering, _, count = carry
        row, possible = leave(tableau, basis, tableau[:, entering])
        new, moved, left = exchange(tableau, basis, row, entering)
        tableau = jnp.where(possible, new, tableau)
        basis = jnp.where(possible, moved, basis)
        running = possible & (left != artificial)
        entering = jnp.where(running, complement(left), entering)
        return tableau, basis, entering, running, count + 1

    # The artificial variable enters at the most negative row, the last one of a tie.
    first = n - 1 - jnp.argmin(b[::-1])
    needed = b[first] < 0
    begun, begun_basis, left = exchange(tableau, basis, first, artificial)
    tableau, basis = jnp.where(needed, begun, tableau), jnp.where(needed, begun_basis, basis)
    carry = tableau, basis, complement(left), needed, jnp.zeros((), jnp.int32)
    tableau, basis, entering, _, count = jax.lax.while_loop(proceed, body, carry)
    values = jnp.zeros(2 * n + 1, dtype).at[basis].set(tableau[:, -1])
    ended_in_ray = jnp.any(basis == artificial)
    ray = jnp.zeros(2 * n + 1, dtype).at[basis].set(-tableau[:, entering]).at[entering].set(1)
    return values[n : 2 * n], jnp.where(ended_in_ray, ray[n : 2 * n], 0), count


CHUNK = 32
"""Combinations of modes that are solved at once."""


class Enumeration(AbstractContactSolver):
    """Tries every combination of modes: each row at its lower bound, inside, or at its upper bound.

        z_i = bound_i    or    w_i = 0

    An oracle for small problems: it finds a solution whenever some regular system of modes has one,
    and where it finds none the problem has no nondegenerate solution.

    **Arguments:** `tolerance`: residual to reach; `most`: largest number of combinations.

    Reference: K. Murty, Linear complementarity, linear and nonlinear programming (1988).
    """

    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)
    most: int = eqx.field(default=2**14, static=True, kw_only=True)

    def __check_init__(self):
        check_tolerance(self.tolerance)

    @property
    def max_iterations(self) -> int:
        return -(-self.most // CHUNK)

    def refuses(self, contacts) -> str | None:
        count = modes(contacts)
        if count is None:
            return "Enumeration needs sets that are intervals; use Auto() for cones"
        if count > self.most:
            return f"there are {count} combinations of modes, more than most = {self.most}"
        return None

    def init(self, problem: DenseProblem, z0: Array) -> "_Enumerated":
        del problem
        return _Enumerated(z0, jnp.zeros((), jnp.int32))

    def step(self, problem: DenseProblem, state: "_Enumerated") -> "_Enumerated":
        """The best of the next `CHUNK` combinations."""
        contacts = problem.contacts
        found, total = intervals(contacts), modes(contacts)
        assert found is not None and total is not None
        bases = _bases(contacts, found)
        strides = np.concatenate([[1], np.cumprod(bases)[:-1]]) if len(bases) else bases
        m, dtype = len(bases), problem.q.dtype
        ends = []
        for bounds, (c, k) in zip(found, problem.shapes, strict=True):
            shape = (k, c, *problem.q.shape[1:])
            ends.append([jnp.broadcast_to(jnp.asarray(x, dtype), shape) for x in bounds])
        lower, upper = (join([pair[i] for pair in ends]) for i in range(2))

        def small(x):
            return jnp.asarray(x, jnp.int32)

        def solve(index):
            digit = (index // small(strides)) % small(bases)
            # Mode 0 is inside; then come the finite bounds, the lower one first.
            at_lower = (digit == 1)[:, None] & jnp.isfinite(lower)
            second = (digit == 2)[:, None] | ((digit == 1)[:, None] & ~jnp.isfinite(lower))
            at_upper = second & jnp.isfinite(upper)
            held = at_lower | at_upper | ~problem.active
            bound = jnp.where(at_lower, lower, jnp.where(at_upper, upper, 0))
            bound = jnp.where(problem.active, bound, 0)
            mask = held.T[:, :, None]
            matrix = jnp.where(mask, jnp.eye(m, dtype=dtype)[None], problem.W)
            z = solve_matrix(matrix, jnp.where(held, bound, -problem.q))
            return z, problem.residual(z, problem.velocity(z))

        index = jnp.minimum(state.at + small(np.arange(min(CHUNK, total))), total - 1)
        z, residual = one_by_one(solve, index)
        best = jnp.argmin(residual, axis=0)
        z = jnp.take_along_axis(z, best[None, None], axis=0)[0]
        return _Enumerated(z, state.at + CHUNK)

    def terminate(self, problem: DenseProblem, state: "_Enumerated") -> Array:
        total = modes(problem.contacts)
        assert total is not None
        return jnp.broadcast_to(state.at >= total, problem.q.shape[1:])


class _Enumerated(eqx.Module):
    """The best combination of the last step, and the number of those tried."""

    z: Array
    at: Array


def modes(contacts) -> int | None:
    """The number of combinations of modes, `None` if a set is not made of intervals."""
    found = intervals(contacts)
    return None if found is None else math.prod(int(b) for b in _bases(contacts, found))


def _bases(contacts, found) -> np.ndarray:
    """How many modes each row has: a bound that is known to be infinite adds none."""
    out = []
    for bounds, part in zip(found, contacts, strict=True):
        c, k = part.shape
        ends = sum(not (isinstance(x, float) and math.isinf(x)) for x in bounds)
        out.append(np.full(c * k, 1 + ends))
    return np.concatenate(out) if out else np.ones(0, int)
