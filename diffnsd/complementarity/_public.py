"""Complementarity problems on their own: `w = W z + q` with a product of laws."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._result import RESULTS
from .._types import revealed
from ..laws._base import AbstractLaw
from ._problem import Block, MixedProblem, broadcast_law
from ._solve import solve_mixed
from ._solver import Auto


class ComplementarityProblem(eqx.Module):
    """`w = W z + q`,  `K* ∋ w + lift(w) e_N ⟂ z ∈ K`, `K` a product over contacts.

    **Arguments:**

    - `W`: matrix `(m, m)`, not necessarily symmetric. `q`: shape `(m,)`.
    - `laws`: pairs `(law, rows)`: consecutive unknowns, `c` contacts of `k` rows each given as
      `(law, (c, k))`; the unknowns are ordered contact by contact, normal first.

    **Raises:** `ValueError` if the shapes of `W` and `q` and the unknowns of the laws do not fit.
    """

    W: Float[Array, "m m"]
    q: Float[Array, " m"]
    laws: tuple[tuple[AbstractLaw, tuple[int, int]], ...]

    def __check_init__(self):
        m = np.shape(self.q)[0] if np.ndim(self.q) == 1 else -1
        if np.shape(self.W) != (m, m):
            raise ValueError(
                f"W has shape {np.shape(self.W)} and q has shape {np.shape(self.q)}; "
                "W must be square and q as long as its side."
            )
        total = sum(c * k for _, (c, k) in self.laws)
        if total != m:
            raise ValueError(f"the laws cover {total} unknowns, but q has {m}.")


class ComplementaritySolution(eqx.Module):
    """Solution of a `ComplementarityProblem`.

    **Arguments:** `z`, `w`: shape `(m,)`; `residual`: relative natural-map residual; `iterations`;
    `margin`: distance to the nearest change of mode; `result`.
    """

    z: Float[Array, " m"]
    w: Float[Array, " m"]
    residual: Array
    iterations: Array
    margin: Array
    result: RESULTS


def solve_complementarity(
    problem: ComplementarityProblem,
    solver: Auto | None = None,
    *,
    warm_start: Float[Array, " m"] | None = None,
    throw: bool = True,
) -> ComplementaritySolution:
    """Solves a complementarity problem to a certified residual, differentiably.

    **Arguments:** `problem`; `solver` (default `Auto()`); `warm_start`: a guess of `z`, shape
    `(m,)`; `throw`: raise if the tolerance is not reached (otherwise see `result`).

    **Returns:** a `ComplementaritySolution`, differentiable in `W`, `q` and the laws' parameters.

    **Raises:** `ValueError` before compiling if a law's parameters are out of range, or a law does
    not fit its rows, or the warm start has another shape; a runtime error naming the remedy if the
    residual stays above the tolerance.
    """
    m = problem.q.shape[0]
    guess = jnp.zeros_like(problem.q) if warm_start is None else warm_start
    _check(problem, guess)
    if m == 0:
        zero, count = jnp.zeros((), problem.q.dtype), jnp.zeros((), jnp.int32)
        empty = problem.q, problem.q, zero, count, zero + jnp.inf
        return ComplementaritySolution(*empty, RESULTS.successful)
    identity = jnp.eye(m, dtype=problem.q.dtype)
    blocks, starts, at = [], [], 0
    for law, (c, k) in problem.laws:
        rows = slice(at, at + c * k)

        def per_contact(x, c=c, k=k):
            return jnp.moveaxis(x.reshape((c, k, *x.shape[1:])), 0, -1)

        blocks.append(
            Block(
                per_contact(identity[rows]),
                per_contact(problem.W.T[rows]),
                jnp.zeros((k, c), identity.dtype),
                broadcast_law(law, c, identity.dtype),
                jnp.ones(c, bool),
            )
        )
        starts.append(per_contact(guess[rows]))
        at += c * k
    mixed = MixedProblem(identity, problem.q, tuple(blocks))
    w, z, stats = solve_mixed(mixed, tuple(starts), Auto() if solver is None else solver)
    flat = [jnp.moveaxis(part, -1, 0).reshape(-1) for part in z]
    z = jnp.concatenate(flat) if flat else problem.q
    result = RESULTS.where(stats.converged, RESULTS.successful, RESULTS.not_converged)
    if throw:
        z = result.error_if(z, result != RESULTS.successful)
    return ComplementaritySolution(z, w, stats.residual, stats.iterations, stats.margin, result)


def _check(problem: ComplementarityProblem, guess) -> None:
    """Raises what can be said before anything is compiled."""
    if np.shape(guess) != np.shape(problem.q):
        raise ValueError(
            f"warm_start has shape {np.shape(guess)}, expected that of q, {np.shape(problem.q)}."
        )
    for law, (_, k) in problem.laws:
        message = law.refuses(k) or revealed(law).check()
        if message is None and law.rows is not None and k != law.rows:
            message = (
                f"{type(law).__name__} acts on {law.rows} row per contact, got {k}; "
                f"for c such rows give (c, {law.rows})"
            )
        if message is not None:
            raise ValueError(f"cannot solve: {message}.")
