"""The linear systems of the solver and of its derivative.

Newton's method and the implicit derivative need the same matrix,

    [ A     −B      ] [dv]   [r_v]
    [ N H    1 − D  ] [dz] = [r_z]

which is singular where contacts are redundant (stick adds rows, D = 1, that depend on each other).
The proximal term `eps` on the lower right block makes it regular; repeating the solve on the true
residual then converges to the exact system, with the multipliers' part in the null space left at
zero: the solution of minimum norm. Each contact is eliminated by its own k x k block, so what is
factorised is n x n whatever the number of contacts:

    (A + B (1 − D + eps)^-1 N H) dv = r_v + B (1 − D + eps)^-1 r_z.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._jax import staged
from .._numerics import UNROLL_LIMIT, inverse, lu_solve, matvec, short_sum
from ._problem import MixedProblem, apply, gather

REFINEMENTS = 3


class Linearised(eqx.Module):
    """The matrix above: `matrix (n, n, ...)` and per block `output`, `input`, `d`, `n`."""

    matrix: Array
    output: tuple[Array, ...]
    input: tuple[Array, ...]
    d: tuple[Array, ...]
    n: tuple[Array, ...]

    def product(self, dv: Array, dz: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        """The matrix times `(dv, dz)`."""
        top = matvec(self.matrix, dv)
        low = []
        for h, b, d, n, part in zip(self.output, self.input, self.d, self.n, dz, strict=True):
            top = top - gather(b, part)
            low.append(part - blockwise(d, part) + blockwise(n, apply(h, dv)))
        return top, tuple(low)

    def transposed(self, a: Array, c: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        """The transpose of the matrix times `(a, c)`."""
        top = matvec(swap(self.matrix), a)
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
    total = blocks[:, 0] * x[0][None]
    for j in range(1, x.shape[0]):
        total = total + blocks[:, j] * x[j][None]
    return total


def regularised_inverse(d: Array, eps) -> Array:
    """`(1 − D + eps)^-1` of every contact, `(k, k, c, ...)`; `eps` is a number or one per problem."""
    k = d.shape[0]
    eps = jnp.broadcast_to(jnp.asarray(eps, d.dtype), d.shape[2:])
    rows = [[(1.0 + eps if i == j else 0.0) - d[i, j] for j in range(k)] for i in range(k)]
    return jnp.stack([jnp.stack(row) for row in inverse(rows)])


def products(left: Array, right: Array) -> Array:
    """Blockwise `(k, k, c, ...)` times `(k, x, c, ...)`."""
    total = left[:, 0][:, None] * right[0][None]
    for j in range(1, right.shape[0]):
        total = total + left[:, j][:, None] * right[j][None]
    return total


def congruence(matrix: Array, left: tuple[Array, ...], right: tuple[Array, ...]) -> Array:
    """`A + sum_i B_i X_i` with `B, X (k, n, c, ...)`, shape `(n, n, ...)`."""
    for b, x in zip(left, right, strict=True):
        if matrix.shape[0] > UNROLL_LIMIT:
            matrix = matrix + jnp.einsum("kic...,kjc...->ij...", b, x)
            continue
        total = b[0][:, None] * x[0][None]
        for i in range(1, b.shape[0]):
            total = total + b[i][:, None] * x[i][None]
        matrix = matrix + short_sum(total, 2)
    return matrix


class Factors(eqx.Module):
    """Everything about the regularised matrix that does not depend on the right-hand side."""

    inverse: tuple[Array, ...]
    reduced: tuple[Array, ...]
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


def refine(system: Linearised, r_v, r_z, eps: float, transpose: bool):
    """Solves the exact (or transposed) system: regularised solves on the true residual."""
    pending = jnp.any(r_v != 0) | jnp.any(jnp.stack([jnp.any(x != 0) for x in r_z]))
    factors = eliminate(system, jnp.full_like(r_v[0], eps), pending)
    solve = back_substitute_transposed if transpose else back_substitute
    product = system.transposed if transpose else system.product

    def body(_, carry):
        dv, dz = carry
        top, low = product(dv, dz)
        residual = tuple(a - b for a, b in zip(r_z, low, strict=True))
        ddv, ddz = solve(factors, system, r_v - top, residual, pending)
        return dv + ddv, tuple(a + b for a, b in zip(dz, ddz, strict=True))

    # A fixed number of passes is a linear map, and reverse mode its transpose to the last digit,
    # singular systems included; a loop that ends by its residual is neither.
    start = jnp.zeros_like(r_v), tuple(jnp.zeros_like(x) for x in r_z)
    return jax.lax.fori_loop(0, REFINEMENTS, body, start)
