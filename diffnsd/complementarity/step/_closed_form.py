"""The one step problem with a closed form: a single row of a single contact."""

import jax.numpy as jnp

from ..._numerics import matrix_inverse
from ..problem._dense import Statistics
from ..problem._natural_map import argument, distances, projected, relative, residual
from ..problem._problem import MixedProblem, moved


def one_unknown(problem: MixedProblem, accept: float):
    """One row of one contact: `w = a z + q` with `a > 0` is solved by `z = P_K(−q / a)`.

    A scalar variational inequality with a positive slope: exact for every interval `K`.
    """
    (block,), (rho,) = problem.blocks, problem.penalties()
    mobility = None if problem.matrix is None else matrix_inverse(problem.matrix)
    free, column = moved(mobility, problem.rhs), moved(mobility, problem.loads()[:, 0])
    q, a = block.local(free) + block.offset, block.local(column)
    z = projected(block, -q / jnp.where(a > 0, a, 1))
    w = a * z + q
    x = argument(block, w, z, rho)
    size = jnp.where(block.active, jnp.abs(rho * q[0]), 0)[0]
    norm = relative((residual(block, x, z),), (z,), size)
    none = jnp.zeros(norm.shape, jnp.int32)
    margin, violation = distances(problem, (w,), (z,), (x,), (rho,), size)
    done = norm <= accept
    return (
        free + column * z[0],
        (z,),
        Statistics(norm, violation, none, margin, none, done, none),
    )
