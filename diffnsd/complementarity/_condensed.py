"""The solution of a condensed problem `w = W z + q` as a differentiable function.

With `F(z; p) = z − P_K(z − rho (W z + q + lift)) = 0` at the solution, the implicit function theorem
gives `G dz = −F_p dp`, `G = 1 − D + N W`. Where contacts are redundant `G` is singular and multipliers
are not unique: of all `dz` the one of minimum norm is chosen, by a fixed number of passes of
`dz = G^T f(G G^T) r`, a linear map whose transpose serves reverse mode.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from .._jax import SAVED_NAME, AbstractKernel, call, one_by_one, with_value
from ._adjoint import AbstractAdjoint, pair, surface
from ._dense import (
    Contacts,
    DenseProblem,
    Statistics,
    by_factor,
    join,
    newton_matrix,
    row_steps,
    split,
)
from ._elimination import blockwise
from ._natural_map import argument, resting
from .solvers._base import AbstractSolver
from .solvers._certificate import certificate, far
from .solvers._drive import judge, solve_batch
from .solvers._interior_point import on_path


class Condensed(eqx.Module):
    """`w = W z + q`, `K* ∋ w + lift(w) e_N ⟂ z ∈ K`; axes of a batch, if any, come last.

    **Arguments:** `W`: shape `(m, m, ...)`; `q`: shape `(m, ...)`; `contacts`: one entry per law.
    """

    W: Float[Array, "m m ..."]
    q: Float[Array, "m ..."]
    contacts: tuple[Contacts, ...]

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """`(c, k)` of every law."""
        return tuple(part.shape for part in self.contacts)

    def apply(self, z: Array) -> Array:
        """`W z`."""
        return jnp.einsum("ij...,j...->i...", self.W, z)

    def dense(self) -> DenseProblem:
        """The same with all problems of a batch on one axis, first in matrices and last in vectors."""
        lanes = (-1,)
        W = jnp.moveaxis(self.W.reshape((*self.W.shape[:2], *lanes)), 2, 0)
        q, contacts = jax.tree.map(
            lambda x: x.reshape((x.shape[0], *lanes)), (self.q, self.contacts)
        )
        return DenseProblem(W, q, contacts)


class Outcome(eqx.Module):
    """Results of a solve other than `z`: `Statistics`, the residual of the velocity, and a proof of
    infeasibility `(m, ...)` or 0.
    """

    statistics: Statistics
    velocity_residual: Array
    certificate: Array


def solve_condensed(
    problem: Condensed, z0: Array, solver: AbstractSolver, adjoint: AbstractAdjoint
) -> tuple[Array, Outcome]:
    """Solves a `Condensed` problem and attaches the implicit derivative, forward and reverse.

    **Returns:** `z (m,)`, and the `Outcome`, which has no derivative.
    """
    kappa = adjoint.kappa
    if kappa is not None:
        kappa = jax.lax.stop_gradient(jnp.asarray(kappa, problem.q.dtype))
    dynamic, static = eqx.partition((problem, kappa), eqx.is_array)
    floats, others = eqx.partition(dynamic, eqx.is_inexact_array)
    kernel = SolveDense(solver, static) if kappa is None else RelaxedDense(solver, static)
    z0 = jax.lax.stop_gradient(z0)
    return checkpoint_name(call(kernel, floats, others, z0), SAVED_NAME)


def _shapes(floats) -> tuple[Any, Outcome]:
    problem, _ = floats
    lane: Any = jax.ShapeDtypeStruct(problem.q.shape[1:], problem.q.dtype)
    return problem.q, Outcome(Statistics.like(lane), lane, problem.q)


def _solve(solver: AbstractSolver, problem: Condensed, z0: Array):
    """The solver on all problems of a batch at once."""
    lanes = problem.q.shape[1:]
    dense = problem.dense()
    best = solve_batch(solver, dense, z0.reshape(dense.q.shape))
    dense = dense.prepared()
    statistics = judge(solver, dense, best)
    distant, converged = far(dense, best.z), statistics.converged
    proof = jax.lax.cond(
        jnp.any(distant | ~converged),
        lambda: certificate(dense, best),
        lambda: jnp.zeros_like(best.z),
    )
    # Relative to multipliers without bound any residual is small.
    converged &= ~(distant & jnp.any(proof != 0, axis=0))
    proof = jnp.where(converged[None], 0, proof)
    velocity = dense.residuals(best.z, dense.velocity(best.z))[1]
    statistics = eqx.tree_at(lambda s: s.converged, statistics, converged)
    statistics, velocity = jax.tree.map(lambda x: x.reshape(lanes), (statistics, velocity))
    shape = problem.q.shape
    return best.z.reshape(shape), Outcome(statistics, velocity, proof.reshape(shape))


class SolveDense(AbstractKernel):
    """The solver's iterations, and the implicit function theorem as their derivative."""

    solver: AbstractSolver
    static: tuple

    def __call__(self, floats, others, z0):
        problem, _ = eqx.combine(floats, others, self.static)
        return _solve(self.solver, problem, z0)

    def shapes(self, floats, others, z0):
        del others, z0
        return _shapes(floats)

    def jvp(self, primals, tangents):
        floats, others, z0 = primals
        z, outcome = checkpoint_name(call(self, floats, others, z0), SAVED_NAME)
        return (z, outcome), (_tangent(self.static, floats, others, tangents[0], z), None)


class RelaxedDense(AbstractKernel):
    """The solver's iterations, with the derivative of the solution on the central path."""

    solver: AbstractSolver
    static: tuple

    def __call__(self, floats, others, z0):
        problem, _ = eqx.combine(floats, others, self.static)
        return _solve(self.solver, problem, z0)

    def shapes(self, floats, others, z0):
        del others, z0
        return _shapes(floats)

    def jvp(self, primals, tangents):
        floats, others, _ = primals
        z, outcome = checkpoint_name(call(self, *primals), SAVED_NAME)
        path = OnPath(self.static)

        def relaxed(floats):
            return call(path, floats, others, jax.lax.stop_gradient(z))

        return (z, outcome), (jax.jvp(relaxed, (floats,), (tangents[0],))[1], None)


class OnPath(AbstractKernel):
    """The point of the central path, from the exact solution."""

    static: tuple

    def __call__(self, floats, others, z0):
        problem, kappa = eqx.combine(floats, others, self.static)
        dense = problem.dense()
        kappa = jnp.broadcast_to(kappa, problem.q.shape[1:]).reshape(dense.q.shape[1:])
        return on_path(dense, z0.reshape(dense.q.shape), kappa).reshape(problem.q.shape)

    def shapes(self, floats, others, z0):
        del floats, others
        return z0

    def jvp(self, primals, tangents):
        floats, others, z0 = primals
        z = checkpoint_name(call(self, floats, others, z0), SAVED_NAME)
        return (z,), (_tangent(self.static, floats, others, tangents[0], z),)


def _tangent(static, floats, others, tangent, z: Array) -> Array:
    """`dz` of `G dz = −F_p dp`.

    The derivative of the projection with respect to its argument is the set's own `jacobian`, so
    that the right-hand side and the matrix take the same side of a kink.
    """

    def instance(p) -> tuple[Condensed, Any]:
        return eqx.combine(p, others, static)

    problem, kappa = instance(floats)
    shapes = problem.shapes
    rho = [r[0] for r in split(shapes, jax.lax.stop_gradient(row_steps(shapes, problem.W)))]
    parts = split(shapes, z)

    def velocities(q):
        return split(shapes, q.apply(z) + q.q)

    at = resting(problem.contacts, velocities(problem), parts, rho, kappa)
    w = list(map(with_value, velocities(problem), at))

    def arguments(p):
        q, _ = instance(p)
        moved = map(with_value, velocities(q), at)
        return tuple(map(argument, q.contacts, moved, parts, rho))

    xs, dxs = jax.jvp(arguments, (floats,), (tangent,))

    def projections(p):
        q, kappa = instance(p)
        return tuple(surface(b, x, r, kappa) for b, x, r in zip(q.contacts, xs, rho, strict=True))

    _, from_sets = jax.jvp(projections, (floats,), (tangent,))
    pairs = [
        pair(b, u, x, r, kappa) for b, u, x, r in zip(problem.contacts, w, xs, rho, strict=True)
    ]
    d, n = (tuple(x[i] for x in pairs) for i in range(2))
    right = join([blockwise(di, dx) + p for di, dx, p in zip(d, dxs, from_sets, strict=True)])

    def product(x):
        moved = split(shapes, problem.apply(x))
        rows = [
            p - blockwise(di, p) + blockwise(ni, u)
            for p, u, di, ni in zip(split(shapes, x), moved, d, n, strict=True)
        ]
        return join(rows)

    def solver(transpose):
        return lambda _, r: call(LeastNorm(shapes, transpose), problem.W, d, n, r)

    return jax.lax.custom_linear_solve(product, right, solver(False), solver(True))


PASSES = 3
SPECTRAL_LIMIT = 64
"""Largest order at which eigenvalues are affordable: they keep the transpose to the last digit."""


class LeastNorm(AbstractKernel):
    """The solution of least norm of `G x = r`, or of `G^T x = r`.

    `x = G^T f(G G^T) r`, where `f` inverts away from the null space: by eigenvalues, or, for large
    matrices, by Cholesky's factors with a small diagonal added. Repeated on the residual, what the
    regularisation takes from small singular values comes back.
    """

    layout: tuple
    transpose: bool

    def __call__(self, W, d, n, r):
        problem = Condensed(W, r, ()).dense()
        d, n = jax.tree.map(lambda x: x.reshape((*x.shape[:3], -1)), (d, n))
        matrix = newton_matrix(problem.W, self.layout, d, n)
        return least_norm(matrix, problem.q, self.transpose).reshape(r.shape)

    def shapes(self, W, d, n, r):
        del W, d, n
        return r


def least_norm(matrix: Array, right: Array, transpose: bool) -> Array:
    """See `LeastNorm`: `matrix (l, m, m)`, `right (m, l)`."""
    square = jnp.einsum("lik,ljk->lij", matrix, matrix)
    spectral = matrix.shape[-1] <= SPECTRAL_LIMIT
    first, clean = (_by_eigenvalues if spectral else _by_factors)(square)

    def f(b):
        def once(_, y):
            return y + first(b - jnp.einsum("lij,lj->li", square, y))

        b = clean(b)
        return jax.lax.fori_loop(0, PASSES, once, jnp.zeros_like(b))

    if transpose:
        return f(jnp.einsum("lij,jl->li", matrix, right)).T
    return jnp.einsum("lji,lj->il", matrix, f(right.T))


# The inverse of `G G^T` away from its null space, and the projection that removes the null space: what
# is there no x can produce, and the inverse of a rounding error would show in x.


def _by_eigenvalues(square: Array):
    values, vectors = one_by_one(lambda a: tuple(jnp.linalg.eigh(a)), square)
    cut = 1e-13 if jnp.finfo(square.dtype).bits >= 64 else 1e-6
    keep = values > cut * values[:, -1:]
    scale = jnp.where(keep, 1 / jnp.where(keep, values, 1), 0)

    def spectral(weight, b):
        return jnp.einsum("lij,lj->li", vectors, weight * jnp.einsum("lji,lj->li", vectors, b))

    return lambda b: spectral(scale, b), lambda b: spectral(keep.astype(b.dtype), b)


def _by_factors(square: Array):
    m = square.shape[-1]
    double = jnp.finfo(square.dtype).bits >= 64
    level = (1e-12 if double else 1e-5) * jnp.einsum("lii->l", square) / m
    regular = square + level[:, None, None] * jnp.eye(m, dtype=square.dtype)[None]
    factor = one_by_one(jnp.linalg.cholesky, regular)

    def inverse(b):
        return one_by_one(by_factor, factor, b)

    def clean(b):
        # level K^-1 is one in the null space and small elsewhere.
        def once(_, b):
            return b - level[:, None] * inverse(level[:, None] * inverse(b))

        return jax.lax.fori_loop(0, PASSES, once, b)

    return inverse, clean
