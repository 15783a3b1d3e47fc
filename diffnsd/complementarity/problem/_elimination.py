"""The linear systems of the solver and of its derivative.

Newton's method and the implicit derivative need the same matrix,

    [ A     −B      ] [dv]   [r_v]
    [ N H    1 − D  ] [dz] = [r_z]

It is singular where contacts are redundant (sticking contacts, D = 1, add rows that depend on each
other). The proximal term `eps` on the lower right block makes it regular. Repeating the solve on the
true residual then converges to the solution of the exact system and leaves the null-space part of the
multipliers as it was at the start. Each contact is eliminated by its own k x k block, so the factorised
matrix is n x n for any number of contacts:

    (A + B (1 − D + eps)^-1 N H) dv = r_v + B (1 − D + eps)^-1 r_z.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._block_rows import CoordinateRows
from ..._jax import staged
from ..._numerics import (
    LOOP_LIMIT,
    entries,
    inverse,
    lu_solve,
    matrix_inverse,
    matvec,
    short_sum,
    stacked,
    weighted_sum,
)
from ..._own_rows import OwnRows
from ._problem import MixedProblem, apply, gather

REFINEMENTS = 3


class Linearised(eqx.Module):
    """The matrix above: `matrix (n, n, ...)`, `None` for 1, and per block `output`, `input`, `d`, `n`."""

    matrix: Array | None
    output: tuple[Array | OwnRows | CoordinateRows, ...]
    input: tuple[Array | CoordinateRows, ...]
    d: tuple[Array, ...]
    n: tuple[Array, ...]

    def product(self, dv: Array, dz: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        """The matrix times `(dv, dz)`."""
        top = dv if self.matrix is None else matvec(self.matrix, dv)
        low = []
        for h, b, d, n, part in zip(self.output, self.input, self.d, self.n, dz, strict=True):
            top = top - gather(b, part)
            low.append(part - blockwise(d, part) + blockwise(n, apply(h, dv)))
        return top, tuple(low)

    def transposed(self, a: Array, c: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        """The transpose of the matrix times `(a, c)`."""
        top = a if self.matrix is None else matvec(swap(self.matrix), a)
        low = []
        for h, b, d, n, part in zip(self.output, self.input, self.d, self.n, c, strict=True):
            top = top + gather(h, blockwise(swap(n), part))
            low.append(part - blockwise(swap(d), part) - apply(b, a))
        return top, tuple(low)


def inputs(problem: MixedProblem) -> tuple[Array, ...]:
    """`B` of every block."""
    return tuple(b.output if b.input is None else b.input for b in problem.blocks)


def linearised(problem: MixedProblem, d, n) -> Linearised:
    """The linearisation with given derivatives `D`, `N` of the natural map."""
    outputs = tuple(block.output for block in problem.blocks)
    return Linearised(problem.matrix, outputs, inputs(problem), tuple(d), tuple(n))


def swap(blocks: Array) -> Array:
    """Transpose of the k x k blocks."""
    return jnp.swapaxes(blocks, 0, 1)


def blockwise(blocks: Array, x: Array) -> Array:
    """k x k blocks `(k, k, c, ...)` times `x (k, c, ...)`."""
    return weighted_sum(blocks, x, axis=1)


def regularised_inverse(d: Array, eps) -> Array:
    """`(1 − D + eps)^-1` of every contact, `(k, k, c, ...)`; `eps` is a number or one per problem."""
    eps = jnp.broadcast_to(jnp.asarray(eps, d.dtype), d.shape[2:])
    rows = [
        [(1.0 + eps if i == j else 0.0) - entry for j, entry in enumerate(row)]
        for i, row in enumerate(entries(d))
    ]
    return stacked(inverse(rows)) if len(d) <= 3 else matrix_inverse(stacked(rows))


def products(left: Array, right):
    """Blockwise `(k, k, c, ...)` times `(k, x, c, ...)`."""
    if isinstance(right, OwnRows | CoordinateRows):
        return right.times(left)
    return weighted_sum(left[:, :, None], right, axis=1)


def congruence(matrix: Array | None, left: tuple[Array, ...], right: tuple) -> Array:
    """`A + sum_i B_i X_i` with `B, X (k, n, c, ...)`, shape `(n, n, ...)`.

    `None` is the unit matrix, whose `X` are `OwnRows` that cover all columns in their order.
    """
    if matrix is None:
        columns = jnp.concatenate([x.after(b) for b, x in zip(left, right, strict=True)], axis=1)
        n = len(columns)
        return columns + np.eye(n, dtype=columns.dtype).reshape(n, n, *(1,) * (columns.ndim - 2))
    for b, x in zip(left, right, strict=True):
        if isinstance(b, CoordinateRows):
            diagonal = b.square(x)
            on = np.eye(len(diagonal), dtype=bool)
            on = on.reshape(on.shape + (1,) * (diagonal.ndim - 1))
            matrix = matrix + jnp.where(on, diagonal[:, None], 0)
            continue
        if matrix.shape[0] > LOOP_LIMIT:
            matrix = matrix + jnp.einsum("kic...,kjc...->ij...", b, x)
            continue
        matrix = matrix + short_sum(weighted_sum(b[:, :, None], x), 2, LOOP_LIMIT)
    return matrix


class Factors(eqx.Module):
    """Everything about the regularised matrix that does not depend on the right-hand side."""

    inverse: tuple[Array, ...]
    reduced: tuple[Array | OwnRows | CoordinateRows, ...]
    matrix: Array


def eliminate(system: Linearised, eps: Array, pending: Array) -> Factors:
    """Eliminates the contacts: `(1 − D + eps)^-1`, that times `N H`, and the n x n matrix."""
    inv = staged(pending, lambda d, e: tuple(regularised_inverse(x, e) for x in d), system.d, eps)
    gain = staged(pending, lambda i, n: tuple(map(products, i, n)), inv, system.n)
    reduced = staged(pending, lambda g, h: tuple(map(products, g, h)), gain, system.output)
    matrix = staged(pending, congruence, system.matrix, system.input, reduced)
    return Factors(inv, reduced, matrix)


def back_substitute(
    factors: Factors, system: Linearised, r_v: Array | None, r_z: tuple[Array, ...], pending: Array
) -> tuple[Array, tuple[Array, ...]]:
    """Solves the regularised system for one right-hand side (`r_v = None` is zero)."""
    local = staged(pending, lambda i, r: tuple(map(blockwise, i, r)), factors.inverse, r_z)
    total = staged(pending, lambda b, x: sum(map(gather, b, x)), system.input, local)
    total = total if r_v is None else total + r_v
    dv = staged(pending, lu_solve, factors.matrix, total)
    dz = staged(
        pending,
        lambda local, reduced, dv: tuple(
            x - apply(g, dv) for x, g in zip(local, reduced, strict=True)
        ),
        local,
        factors.reduced,
        dv,
    )
    return dv, dz


def back_substitute_transposed(
    factors: Factors, system: Linearised, r_v: Array, r_z: tuple[Array, ...], pending: Array
) -> tuple[Array, tuple[Array, ...]]:
    """Solves the transposed regularised system for one right-hand side."""

    def load(reduced, r_v, r_z):
        return r_v - sum(map(gather, reduced, r_z))

    total = staged(pending, load, factors.reduced, r_v, r_z)
    a = staged(pending, lambda m, r: lu_solve(swap(m), r), factors.matrix, total)
    c = staged(
        pending,
        lambda inv, b, r_z, a: tuple(
            blockwise(swap(i), r + apply(x, a)) for i, x, r in zip(inv, b, r_z, strict=True)
        ),
        factors.inverse,
        system.input,
        r_z,
        a,
    )
    return a, c


def solve_both(tilted: Linearised, system: Linearised, first, second, eps: float):
    """Solves `(tilted + eps) x1 = first`, and from there `system x = second`.

    `x` starts at `x1` and is refined by `x += (system + eps)^-1 (second − system x)`. Where `system` is
    regular, this converges to its solution. Where it is singular, `x` keeps the null-space part of `x1`:
    the corrections lie in the range of `system`, and its own factors add no null-space part. The factors
    of `tilted` differ too much, by the square of the tilt times the curvature of the laws.

    **Arguments:** `first`, `second`: pairs `(r_v, r_z)`. **Returns:** `x1` and `x`, like them.
    """
    around, solve = _factorised((tilted, system), eps, (first, second), back_substitute)
    start = around(first)

    def body(_, x):
        return jax.tree.map(
            jnp.add, x, solve(jax.tree.map(jnp.subtract, second, system.product(*x)))
        )

    # A fixed number of iterations is a linear map, and reverse mode is its transpose to the last digit,
    # also for singular systems. Neither holds for a loop that stops by its residual.
    return start, jax.lax.fori_loop(0, REFINEMENTS, body, start)


def solve_both_transposed(tilted: Linearised, system: Linearised, first, second, eps: float):
    """The transpose of `solve_both`."""
    around, solve = _factorised((tilted, system), eps, (first, second), back_substitute_transposed)

    def body(_, carry):
        rest, total = carry
        step = solve(rest)
        return jax.tree.map(jnp.subtract, rest, system.transposed(*step)), jax.tree.map(
            jnp.add, total, step
        )

    zero = jax.tree.map(jnp.zeros_like, second)
    rest, total = jax.lax.fori_loop(0, REFINEMENTS, body, (second, zero))
    return around(jax.tree.map(jnp.add, first, rest)), total


def _factorised(systems: tuple[Linearised, ...], eps: float, right, substitute):
    """Returns a solve function for each of the systems, raised by `eps`."""
    pending = jnp.any(jnp.stack([jnp.any(x != 0) for x in jax.tree.leaves(right)]))

    def factorised(system):
        level = jnp.full(system.d[0].shape[3:], eps, system.d[0].dtype)
        factors = eliminate(system, level, pending)
        return lambda r: substitute(factors, system, *r, pending)

    return tuple(map(factorised, systems))
