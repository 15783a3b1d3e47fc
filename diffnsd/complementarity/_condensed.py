"""Problems that are given by their matrix, `w = W z + q`: step problems with unit matrices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._solve import solve_mixed
from .derivatives._adjoint import AbstractAdjoint
from .derivatives._least_norm import least_norm_tangents
from .problem._dense import Contacts, DenseProblem, Statistics
from .problem._problem import MixedProblem, join, split
from .solvers._base import AbstractSolver
from .solvers._certificate import certificate, far
from .solvers._drive import given, judge, solve_batch


class Condensed(eqx.Module):
    """`w = W z + q`, `K* ∋ w + lift(w) e_N ⟂ z ∈ K`, unknowns contact by contact.

    **Arguments:** `W`: shape `(m, m)`; `q`: shape `(m,)`; `contacts`: one entry per law.
    """

    W: Float[Array, "m m"]
    q: Float[Array, " m"]
    contacts: tuple[Contacts, ...]

    @property
    def order(self) -> np.ndarray:
        """Indices that reorder the unknowns component by component, as solvers need them."""
        at, out = 0, []
        for c, k in (part.shape for part in self.contacts):
            out.append(at + np.arange(c * k).reshape(c, k).T.ravel())
            at += c * k
        return np.concatenate(out)

    def apply(self, z: Array) -> Array:
        """`W z`."""
        return self.W @ z

    def mixed(self) -> MixedProblem:
        """The same problem in the form of a step problem."""
        order = self.order
        return MixedProblem.of_matrix(self.W[np.ix_(order, order)], self.q[order], self.contacts)

    def dense(self) -> DenseProblem:
        """The same problem as a batch of one."""
        return given(self.mixed())


class Outcome(eqx.Module):
    """Results of a solve other than `z`: `Statistics`, the residual of the velocity, and a proof of
    infeasibility `(m, ...)` or 0.
    """

    statistics: Statistics
    velocity_residual: Array
    certificate: Array

    @staticmethod
    def like(rhs) -> "Outcome":
        """Shapes of the outcome; `rhs` has those of the unknowns."""
        statistics = Statistics.like(rhs)
        return Outcome(statistics, statistics.residual, rhs)


class Judged(eqx.Module):
    """A solver that returns an `Outcome` in place of `Statistics`."""

    solver: AbstractSolver

    def __call__(self, problem: MixedProblem, z0: tuple[Array, ...]):
        lanes, shape = problem.rhs.shape[1:], problem.rhs.shape
        dense = given(problem).prepared()
        best = solve_batch(self.solver, dense, join(z0).reshape(dense.q.shape))
        statistics = judge(self.solver, dense, best)
        distant, converged = far(dense, best.z), statistics.converged
        proof = jax.lax.cond(
            jnp.any(distant | ~converged),
            lambda: certificate(dense, best),
            lambda: jnp.zeros_like(best.z),
        )
        # Where multipliers diverge, any residual relative to them is small.
        converged &= ~(distant & jnp.any(proof != 0, axis=0))
        proof = jnp.where(converged[None], 0, proof)
        w = dense.velocity(best.z)
        statistics = eqx.tree_at(lambda s: s.converged, statistics, converged)
        each = statistics, dense.residuals(best.z, w)[1]
        statistics, velocity = jax.tree.map(lambda x: x.reshape(lanes), each)
        point = dense.apply(best.z).reshape(shape), split(dense.shapes, best.z.reshape(shape))
        return *point, Outcome(statistics, velocity, proof.reshape(shape)), point


def solve_condensed(
    problem: Condensed, z0: Array, solver: AbstractSolver, adjoint: AbstractAdjoint
) -> tuple[Array, Outcome]:
    """Solves a `Condensed` problem and attaches the implicit derivative, forward and reverse.

    **Returns:** `z (m,)`, and the `Outcome`, which has no derivative.
    """
    order = problem.order
    back, shapes = np.argsort(order), tuple(part.shape for part in problem.contacts)
    start = split(shapes, z0[order])
    mixed, judged = problem.mixed(), Judged(solver)
    _, z, outcome = solve_mixed(mixed, start, judged, adjoint, Outcome, least_norm_tangents)
    outcome = eqx.tree_at(lambda o: o.certificate, outcome, outcome.certificate[back])
    return join(z)[back], outcome
