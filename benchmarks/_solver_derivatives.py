"""The implicit derivative of the velocities against central differences, problem by problem.

Loads are moved within the range of W, so that redundant contacts stay solvable: `dq = W x` with random
x. The three problems of a central difference and the tangents of all are one batch.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import _problems
from diffnsd.complementarity import (
    ComplementarityProblem,
    NonlinearComplementarityProblem,
    SemismoothNewton,
    solve_complementarity,
    solve_nonlinear_complementarity,
)
from diffnsd.complementarity._public import as_array

MARGIN = 1e-4
"""Least distance to a change of mode."""
STEPS = 0.3, 3e-2, 1e-3
"""Steps of the difference relative to the margin: the best one counts."""
EXACT = SemismoothNewton(tolerance=1e-14, rounds=2)
"""From a solution: Newton's method until rounding."""


@eqx.filter_jit
def differences(problem, z, dq, step):
    """`dw`, its central differences, their residual and the margin."""

    def velocity(load):
        if isinstance(problem, NonlinearComplementarityProblem):
            moved = NonlinearComplementarityProblem(
                lambda x, extra: problem.function(x, problem.args) + extra, problem.laws, load
            )
            out = solve_nonlinear_complementarity(moved, z, EXACT, max_steps=20, throw=False)
        else:
            moved = ComplementarityProblem(problem.W, problem.q + load, problem.laws)
            out = solve_complementarity(moved, EXACT, warm_start=z, throw=False)
        return out.w, (out.velocity_residual, out.margin)

    def one(t):
        return jax.jvp(velocity, (t * dq,), (dq,), has_aux=True)

    steps = step * jnp.asarray(STEPS)
    w, dw, (residual, margin) = jax.vmap(one)(jnp.concatenate([jnp.zeros(1), steps, -steps]))
    ahead, behind = jnp.split(w[1:], 2)
    central = (ahead - behind) / (2 * steps)[:, None]
    return dw[0], central, jnp.max(residual), margin[0]


def compare(loaded, z: np.ndarray) -> dict:
    """The row of one problem from its solution: `error` is relative to `|dw|`, but to `|dq|` at least
    a thousandth.
    """
    problem, z = loaded.problem, jnp.asarray(z)
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=len(z)))
    if isinstance(problem, NonlinearComplementarityProblem):
        size, dq = jnp.linalg.norm(problem.function(z, problem.args)) + 1, x
    else:
        W = as_array(problem.W)
        problem = eqx.tree_at(lambda p: p.W, problem, W)
        size, dq = jnp.linalg.norm(problem.q), W @ x
    dq = dq / jnp.linalg.norm(dq)
    rank = len(z)
    if loaded.kind != "ncp":
        rank = int(np.linalg.matrix_rank(np.asarray(problem.W)))
    margin = float(differences(problem, z, dq, 1e-6 * size)[3])
    step = min(margin, 1e-2) * size
    dw, central, residual, _ = differences(problem, z, dq, step)
    error = jnp.min(jnp.linalg.norm(central - dw, axis=1))
    error = error / jnp.maximum(jnp.linalg.norm(dw), 1e-3)
    return {
        "file": loaded.name,
        "kind": loaded.kind,
        "n": loaded.size,
        "rank": rank,
        "margin": margin,
        "residual": float(residual),
        "judged": margin > MARGIN,
        "error": float(error),
    }


def sweep(files, solutions: dict, most: int) -> list[dict]:
    """All problems with a solution and at most so many unknowns."""
    rows = []
    for path in files:
        z = solutions.get(path.stem)
        if z is None or not np.all(np.isfinite(z)) or len(z) > most:
            continue
        rows.append(compare(_problems.load(path), z))
        print(
            "{file:44} {kind:6} {n:5} rank {rank:5} margin {margin:8.1e} residual {residual:8.1e} "
            "error {error:8.1e}".format(**rows[-1]),
            flush=True,
        )
        jax.clear_caches()
    judged = [row for row in rows if row["judged"]]
    worst = max((row["error"] for row in judged), default=0.0)
    met = sum(row["error"] <= 1e-6 for row in judged)
    print(f"derivatives: {met} of {len(judged)} below 1e-6, worst {worst:.1e}")
    return rows
