"""Operator splitting (ADMM) for the step problem, on components and without forming `W`."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._block_rows import CoordinateRows
from ..._jax import staged
from ..._numerics import matrix_inverse, matvec
from ..._own_rows import OwnRows
from ..problem._elimination import congruence, inputs
from ..problem._natural_map import projected
from ..problem._problem import MixedProblem, apply, gather


def split(
    problem: MixedProblem,
    rho,
    start,
    steps: int,
    penalty: float,
    relaxation: float,
    pending: Array,
    lifts: Array,
) -> tuple[Array, ...]:
    """Iterations of `(W + sigma) z = −q − lift + sigma (y − dual)`, `y ∈ K`, `sigma = penalty / rho`.

    The linear solve is the elimination with diagonal blocks, `A + H^T B / sigma`: the unsymmetric part
    of `W` is kept, and the lift is refreshed in each iteration.

    **Arguments:** `start`: `(v, z)`; `relaxation`: over-relaxation; `pending`: whether any is unsolved;
    `lifts`: 1, or 0 for the convex problem without lift, whose solution is unique if `W` is regular.

    **Returns:** `y` per block.
    """
    blocks = problem.blocks
    sigma = tuple(penalty / r for r in rho)
    outputs = tuple(b.output for b in blocks)
    weighted = tuple(map(_over, outputs, sigma))
    matrix = staged(pending, congruence, problem.matrix, inputs(problem), weighted)
    mobility = staged(pending, matrix_inverse, matrix)

    def lifted(block, v):
        w = block.local(v) + block.offset
        lift = lifts * block.law.lift(w)
        return block.offset.at[0].add(lift), w.at[0].add(lift)

    def solve(v, y, dual, mobility):
        target = tuple(
            part - d - lifted(b, v)[0] / s[None]
            for b, part, d, s in zip(blocks, y, dual, sigma, strict=True)
        )
        v = matvec(mobility, problem.rhs + sum(map(gather, inputs(problem), target)))
        z = (t - apply(h, v) / s[None] for t, h, s in zip(target, outputs, sigma, strict=True))
        return v, tuple(z)

    def body(_, carry):
        v, y, dual = carry
        v, z = staged(pending, solve, v, y, dual, mobility)
        moved = [
            relaxation * a + (1 - relaxation) * b + d for a, b, d in zip(z, y, dual, strict=True)
        ]
        y = tuple(map(projected, blocks, moved))
        return v, y, tuple(map(jnp.subtract, moved, y))

    v, z = start
    dual = []
    for block, s in zip(blocks, sigma, strict=True):
        dual.append(-lifted(block, v)[1] / s[None])
    return jax.lax.fori_loop(0, steps, body, (v, z, tuple(dual)))[1]


def _over(output, sigma: Array):
    """`H / sigma`, `sigma (c, ...)`."""
    if not isinstance(output, OwnRows | CoordinateRows):
        return output / sigma[None, None]
    k = output.shape[0]
    unit = np.eye(k, dtype=sigma.dtype).reshape((k, k, *(1,) * sigma.ndim))
    return output.times(jnp.asarray(unit / sigma[None, None]))
