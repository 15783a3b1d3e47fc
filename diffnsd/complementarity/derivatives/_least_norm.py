"""The derivative of the solution of a problem that is given by its matrix, `w = W z + q`.

With `F(z; p) = z − P_K(z − rho (W z + q + lift)) = 0` at the solution, the implicit function theorem
gives `G dz = −F_p dp`, `G = 1 − D + N W`. Where contacts are redundant, `G` is singular, multipliers are
not unique, and changes of the entries of `W` and `q` may contradict each other. The derivative is then the
least-squares solution `dz` of minimum norm. It is found by a fixed number of iterations of
`dz = G^T f(G G^T) r`, a linear map whose transpose serves reverse mode. The elimination of `_tangents`,
made for steps, would leave rounding errors of 1e-5 to 1e-4 in the way redundant contacts share the load.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._jax import AbstractKernel, call, one_by_one
from ..problem._dense import by_factor, newton_matrix
from ..problem._elimination import blockwise
from ..problem._natural_map import argument, resting
from ..problem._problem import join, split
from ._tangents import Point


def least_norm_tangents(instance, floats, tangent, point, tilted):
    """The tangents of `_tangents.solution_tangents`; the first ones, of the tilted problem, are zero.

    With `A = H = 1`, `dv = W dz + r_v`, so that `G dz = r_z − N r_v`.
    """
    problem, kappa = instance(floats)
    v, z = point
    shapes = tuple(part.shape[1::-1] for part in z)
    rho = jax.lax.stop_gradient(problem.penalties())
    w = resting(problem.blocks, problem.local(v), z, rho, kappa)
    x = jax.lax.stop_gradient(list(map(argument, problem.blocks, w, z, rho)))
    at = Point(v, z, w, x, jnp.array(False))
    d, n = at.linearised(instance, floats)
    r_v, r_z = at.parameter_tangent(instance, floats, tangent, d)
    W = problem.loads()

    def moved(dv):
        return list(map(blockwise, n, split(shapes, dv)))

    def by_matrix(x):
        return jnp.einsum("ij...,j...->i...", W, x)

    def product(x):
        held = [blockwise(di, part) for di, part in zip(d, split(shapes, x), strict=True)]
        return x - join(held) + join(moved(by_matrix(x)))

    def solver(transpose):
        return lambda _, r: call(LeastNorm(shapes, transpose), W, d, n, r)

    right = join(r_z) - join(moved(r_v))
    found = jax.lax.custom_linear_solve(product, right, solver(False), solver(True))
    dv, dz = r_v + by_matrix(found), split(shapes, found)
    return jax.tree.map(jnp.zeros_like, (dv, dz)), (dv, dz)


PASSES = 3
SPECTRAL_LIMIT = 64
"""Largest order at which eigenvalues are affordable; they give the transpose to the last digit."""


class LeastNorm(AbstractKernel):
    """The solution of least norm of `G x = r`, or of `G^T x = r`.

    `x = G^T f(G G^T) r`, where `f` inverts outside the null space: by eigenvalues, or, for large
    matrices, by Cholesky factors with a small diagonal added. Repeating the solve on the residual
    restores what the regularisation takes from small singular values.
    """

    layout: tuple
    transpose: bool

    def __call__(self, W, d, n, r):
        W = jnp.moveaxis(W.reshape((*W.shape[:2], -1)), 2, 0)
        d, n = jax.tree.map(lambda x: x.reshape((*x.shape[:3], -1)), (d, n))
        matrix, right = newton_matrix(W, self.layout, d, n), r.reshape((len(r), -1))
        return least_norm(matrix, right, self.transpose).reshape(r.shape)

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


# The inverse of `G G^T` outside its null space, and the projection that removes the null space: no x can
# produce a part there, and inverting its rounding errors would show in x.


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
