"""Equilibrium of elastic bodies under static loads."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float

from ..._arguments import checked_arguments
from ..._expects import listed
from ..._jax import is_traced, without_derivative
from ..._numerics import max_abs
from ..._types import Args, Scalar, State, Vector
from ...linear import ByStructure, Factored
from .._base import in_words
from ._elastic import Elastic

DIRECT = ByStructure(symmetric=lx.LU(), sparse=lx.LU(), nodal=lx.LU())
"""Direct solvers for every structure, since a stiffness under load need not be definite."""


class Equilibrium(eqx.Module):
    """A configuration at rest under its loads.

    **Arguments:** `q`: configuration, `(n,)`; `residual`: largest force that is left, relative to the largest
    one at the start, `()`; `iterations`: of Newton's method; `converged`: whether the residual is below
    the tolerance, or below the rounding of the forces; `solved`: whether the linear solve of the last
    iteration succeeded; `reactions`: forces that hold the prescribed coordinates, `(p, w)`; `flaws`: those of
    the body at `q`, as `Elastic.flaws` gives them.
    """

    q: Vector
    residual: Scalar
    iterations: Array
    converged: Array
    solved: Array
    reactions: Float[Array, "p w"]
    flaws: dict[str, Array]

    @property
    def message(self) -> str:
        """Why it is none, or none that the body could take, with the remedy; empty if all went well.

        **Raises:** `ValueError` under `jit` or a derivative, and of a batch.
        """
        if is_traced(self.converged) or self.converged.ndim:
            raise ValueError(
                "a message is read from one equilibrium that is known: return it from the function that is "
                "transformed, and of a batch take one by jax.tree.map(lambda x: x[i], found)."
            )
        count = int(self.iterations)
        if not bool(self.solved):
            return f"no equilibrium was found: in iteration {count} {SINGULAR}"
        if not bool(self.converged):
            return (
                f"no equilibrium was found in {count} iterations: the relative residual is "
                f"{float(self.residual):.1e}; apply the load in several steps with `guess`, or raise "
                "`max_iterations`"
            )
        return "; ".join(
            f"in the equilibrium that was found {flaw}" for flaw in in_words(self.flaws)
        )


SINGULAR = (
    "the linear solve of the stiffness failed. It is singular where a part can move without resistance, as "
    "a node between two springs in one line, a beam without bending stiffness, or a body that buckles: hold "
    "more coordinates by Prescribed(...), give stiffness to that motion, or begin at a `guess` with "
    "tension. Else `linear_solver` does not fit: SparseLU() takes any matrix"
)


@checked_arguments
def equilibrium(
    body: Elastic,
    args: Args = None,
    *,
    t: float = 0.0,
    guess: Vector | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 50,
    linear_solver: lx.AbstractLinearSolver = DIRECT,
    throw: bool = True,
) -> Equilibrium:
    """The configuration in which the forces `f(t, q)` vanish, by Newton's method with full steps.

    The result has the derivative of the implicit function theorem.

    **Arguments:** `body`: an `Elastic`; `args`, `t`: of its loads; `guess`: a configuration `(n,)`, default
    at rest; `tolerance`: of the residual; `max_iterations`; `linear_solver`: by default matrices of nodes in
    a row are solved by their bands, all others densely, for up to some thousand unknowns. For more take
    `SparseLU()`, or `MINRES()` where loads do not turn with the body.

    **Returns:** an `Equilibrium`.

    **Raises:** `ValueError` if a parameter is out of its range, or if the prescribed coordinates leave a
    rigid motion free, which a static load does not determine. `RuntimeError` with the `message` of the
    equilibrium if `throw` is true: where the stiffness is singular, the residual is not below `tolerance`, or
    (outside `jit`) elements are inside out.
    """
    if problem := body.check() or _free_motion(body):
        raise ValueError(f"{problem}.")
    q = body.rest if guess is None else guess
    if q.shape != body.rest.shape:
        raise ValueError(
            f"guess must have shape {body.rest.shape}, one number for every coordinate that is not "
            f"prescribed, as body.rest, got {q.shape}."
        )
    given = body, args, jnp.asarray(t, q.dtype), q
    inside = any(map(is_traced, jax.tree.leaves(given)))
    settings = tolerance, max_iterations, linear_solver
    found = _solve(*given, *settings, throw and inside)
    if throw and not inside and found.message:
        raise RuntimeError(f"{found.message}.")
    return found


@eqx.filter_jit
def _solve(body, args, t, q, tolerance, max_iterations, linear_solver, throw):
    def force(body, args, q):
        return body.force(t, State(q, jnp.zeros_like(q)), args)

    frozen_body, frozen_args = without_derivative((body, args))
    start = jax.lax.stop_gradient(q)
    scale = max_abs(force(frozen_body, frozen_args, start))
    # Rounding of the coordinates alone leaves forces of this size.
    stiffest = max_abs(lx.diagonal(frozen_body.stiffness(t, start, frozen_args)))
    rounding = 16 * jnp.finfo(q.dtype).eps * stiffest * max_abs(frozen_body.rest_nodes)
    enough = jnp.maximum(tolerance * scale, rounding)

    def moved(q, move):
        return frozen_body.group.compose(q, frozen_body.group.exp(move))

    def factored(q):
        return Factored(frozen_body.stiffness(t, q, frozen_args), linear_solver)

    def size(q):
        return max_abs(force(frozen_body, frozen_args, q))

    def going(carry):
        _, left, count, solved = carry
        return (left > enough) & (count < max_iterations) & solved

    def step(carry):
        q, left, count, _ = carry
        found, right = factored(q), force(frozen_body, frozen_args, q)
        move, result = found.values(right)
        solved = (result == lx.RESULTS.successful) & ~found.left(right, move)
        move = jnp.where(solved, move, 0)

        def fails(trial):
            part, value = trial
            return ~jnp.isfinite(value) & (part > 1e-3)

        def halve(trial):
            part, _ = trial
            return part / 2, size(moved(q, part / 2 * move))

        one = jnp.ones_like(left)
        part, value = jax.lax.while_loop(fails, halve, (one, size(moved(q, move))))
        return moved(q, part * move), value, count + 1, solved

    first = start, size(start), jnp.zeros((), jnp.int32), jnp.array(True)
    q, left, count, solved = jax.lax.while_loop(going, step, first)
    if throw:
        # What was not found has no derivative, which must not pass for one of zero.
        q = eqx.error_if(q, left > enough, f"an equilibrium was not found: {SINGULAR}.")
    # One more step with derivatives: that of the implicit function theorem.
    move = factored(q).solve(force(body, args, q), expected=left <= enough)
    q = moved(q, jnp.where(left <= enough, move, 0))
    relative = left / jnp.where(scale > 0, scale, 1)
    held = body.reactions(t, State(q, jnp.zeros_like(q)), args)
    flaws = without_derivative(body.flaws(t, q))
    return Equilibrium(q, relative, count, left <= enough, solved, held, flaws)


def _free_motion(body: Elastic) -> str | None:
    """Which part of a body is not held, or `None`: rigid motions that move no prescribed coordinate."""
    if any(is_traced(x) for x in (body.points, body.unknown)):
        return None
    points, held = np.asarray(body.points), np.asarray(body.unknown) == body.free.shape[0]
    p, d = points.shape
    label = _components(p, [np.asarray(part.nodes) for part in body.elements])
    for number in np.unique(label):
        nodes = np.flatnonzero(label == number)
        motions = _rigid_motions(points[nodes] - points[nodes].mean(axis=0), held.shape[1])
        rank = np.linalg.matrix_rank(motions.reshape(len(motions), -1))
        if np.linalg.matrix_rank(motions[:, held[nodes]].reshape(len(motions), -1)) < rank:
            whole = (
                "the body" if np.all(label == label[0]) else f"the part with nodes {listed(nodes)}"
            )
            return (
                f"{whole} can still move as a rigid body, so a static load has no equilibrium; hold at least "
                f"{rank} coordinates that exclude this, for example Prescribed(nodes)"
            )
    return None


def _rigid_motions(points: np.ndarray, width: int) -> np.ndarray:
    """Displacements of translations and rotations, `(r, p, w)`."""
    p, d = points.shape
    motions = []
    for i in range(d):
        move = np.zeros((p, width))
        move[:, i] = 1
        motions.append(move)
    for i in range(d):
        for j in range(i + 1, d):
            turn = np.zeros((p, width))
            turn[:, j], turn[:, i] = points[:, i], -points[:, j]
            # About the third axis; in the plane there is one angle.
            turn[:, d + (3 - i - j if width == 6 else 0) :][:, :1] = 1 if j == i + 1 else -1
            motions.append(turn)
    return np.stack(motions)


def _components(p: int, groups: list[np.ndarray]) -> np.ndarray:
    """For every node the smallest number of a node that it hangs together with."""
    label = np.arange(p)
    while True:
        new = label.copy()
        for nodes in groups:
            least = new[nodes].min(axis=1)
            for column in nodes.T:
                np.minimum.at(new, column, least)
        new = new[new]  # jumps, so that long chains take few rounds
        if np.array_equal(new, label):
            return label
        label = new
