"""Matrix groups of any size: GL(n), SL(n), SO(n), without closed forms.

Elements are `(n, n)` arrays. The three differ in the basis of their algebra (`hat`, `vee`); the maps
are the same matrix functions.
"""

from abc import abstractmethod

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import checked_kinds
from .._numerics import hold
from .._types import Config, Scalar, Vector
from ._base import (
    AbstractGroup,
    Square,
    orthogonality_defect,
    orthogonality_problem,
    shape_problem,
)

_GAUSS = np.polynomial.legendre.leggauss(12)


@checked_kinds
def matrix_log(a: Square) -> Square:
    """Principal logarithm of a real matrix without eigenvalues on the closed negative axis.

    Eight square roots (product form of the Denman-Beavers iteration), then the Gauss-Legendre form
    of a Padé approximant, `log(1 + e) = ∫_0^1 e (1 + s e)^-1 ds`.

    Reference: N. J. Higham, Functions of Matrices (2008), doi:10.1137/1.9780898717778.
    """
    eye = jnp.eye(a.shape[0], dtype=a.dtype)

    def root(a):
        def improve(pair, _):
            x, m = pair
            inverse = jnp.linalg.inv(m)
            return (x @ (eye + inverse) / 2, (eye + (m + inverse) / 2) / 2), None

        (x, _), _ = jax.lax.scan(improve, (a, a), None, length=12)
        return x

    roots = 8
    a, _ = jax.lax.scan(lambda a, _: (root(a), None), a, None, length=roots)
    e = a - eye
    nodes = [(float(s + 1) / 2, float(w) / 2) for s, w in zip(*_GAUSS, strict=True)]
    terms = [w * jnp.linalg.solve(eye + s * e, e) for s, w in nodes]
    return 2.0**roots * jnp.sum(jnp.stack(terms), axis=0)


class _AbstractMatrixGroup(AbstractGroup):
    """Common code of GL(n), SL(n) and SO(n)."""

    n: int

    def __check_init__(self):
        if self.n < 1:
            raise ValueError(f"the matrices must have at least one row, got n={self.n}.")

    @abstractmethod
    def _member(self, q: np.ndarray) -> str | None:
        """Error message if a concrete square matrix is not an element, else `None`."""

    def identity(self) -> Config:
        return jnp.eye(self.n)

    def compose(self, a: Config, b: Config) -> Config:
        return a @ b

    def inverse(self, a: Config) -> Config:
        return jnp.linalg.inv(a)

    def exp(self, xi: Vector) -> Config:
        return jax.scipy.linalg.expm(self.hat(xi))

    def log(self, g: Config) -> Vector:
        return self.vee(matrix_log(g))

    def _need_cayley(self) -> None:
        if self.cayley_problem is not None:
            raise ValueError(self.cayley_problem)

    def _half(self, xi: Vector, sign: int) -> Square:
        self._need_cayley()
        return jnp.eye(self.n, dtype=xi.dtype) + sign * self.hat(xi) / 2

    def cay(self, xi: Vector) -> Config:
        return jnp.linalg.solve(self._half(xi, -1), self._half(xi, 1))

    def cay_inv(self, g: Config) -> Vector:
        self._need_cayley()
        eye = jnp.eye(self.n, dtype=g.dtype)
        return self.vee(2 * jnp.linalg.solve(eye + g, g - eye))

    def ad(self, xi: Vector) -> Square:
        return jax.vmap(lambda e: self.bracket(xi, e), out_axes=1)(
            jnp.eye(self.dim, dtype=xi.dtype)
        )

    def Ad(self, g: Config) -> Square:
        inverse = self.inverse(g)
        conjugate = jax.vmap(lambda e: self.vee(g @ self.hat(e) @ inverse), out_axes=1)
        return conjugate(jnp.eye(self.dim, dtype=g.dtype))

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        x, y = self.hat(xi), self.hat(eta)
        return self.vee(x @ y - y @ x)

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        return hold(self.ad(xi), 1.0) @ w

    def dexpinv(self, xi: Vector, w: Vector) -> Vector:
        return jnp.linalg.solve(hold(self.ad(xi), 1.0), w)

    def dcay(self, xi: Vector, w: Vector) -> Vector:
        left = jnp.linalg.solve(self._half(xi, -1), self.hat(w))
        return self.vee(jnp.linalg.solve(self._half(xi, 1).T, left.T).T)

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        return self.vee(self._half(xi, -1) @ self.hat(w) @ self._half(xi, 1))

    def angle_squared(self, xi: Vector) -> Scalar:
        """Bound by the skew part: `|Im (a - b)| <= sqrt(2) |(x^ - x^T)/2|` (Bendixson)."""
        x = self.hat(xi)
        return jnp.sum((x - x.T) ** 2) / 2

    def check(self, q: Config) -> str | None:
        problem = shape_problem("a matrix", q, (self.n, self.n))
        if problem is not None:
            return problem
        q = np.asarray(q)
        if not np.all(np.isfinite(q)):
            return "a matrix has entries that are not finite"
        return self._member(q)

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        return self.vee(jnp.linalg.solve(q, q_dot))


class GL(_AbstractMatrixGroup):
    """Invertible real matrices `(n, n)`. Tangent vectors are their entries, row by row, `(n²,)`.

    The logarithm and the inverse Cayley map are those near the identity. **Arguments:** `n`: rows.
    """

    @property
    def dim(self) -> int:
        return self.n * self.n

    def hat(self, xi: Vector) -> Square:
        return xi.reshape(self.n, self.n)

    def vee(self, matrix: Square) -> Vector:
        return matrix.reshape(-1)

    def defect(self, g: Config) -> Scalar:
        """Zero: invertibility is an open condition."""
        return jnp.zeros((), g.dtype)

    def _member(self, q: np.ndarray) -> str | None:
        singular = np.linalg.svd(q, compute_uv=False)
        if not singular[-1] > 1e-12 * singular[0]:
            return f"a matrix is singular (singular values {singular})"
        return None


class SL(_AbstractMatrixGroup):
    """Real matrices `(n, n)` of determinant 1. Tangent vectors: all entries but the last, row by row.

    The last entry of a trace-free matrix follows from the others, so the shape is `(n² − 1,)`. The
    Cayley map keeps the determinant for n = 2 only (a quadratic group); for n > 2 it raises `ValueError`.

    **Arguments:** `n`: rows.
    """

    @property
    def dim(self) -> int:
        return self.n * self.n - 1

    @property
    def cayley_problem(self) -> str | None:
        if self.n <= 2:
            return None
        return (
            f"the Cayley map leaves SL({self.n}): it keeps the determinant of quadratic groups only "
            "(rotations, rigid motions, SL(2)); use the exponential"
        )

    def hat(self, xi: Vector) -> Square:
        diagonal = sum((xi[i * (self.n + 1)] for i in range(self.n - 1)), jnp.zeros((), xi.dtype))
        return jnp.concatenate([xi, -diagonal[None]]).reshape(self.n, self.n)

    def vee(self, matrix: Square) -> Vector:
        return matrix.reshape(-1)[:-1]

    def defect(self, g: Config) -> Scalar:
        return jnp.abs(jnp.linalg.det(g) - 1)

    def _member(self, q: np.ndarray) -> str | None:
        determinant = float(np.linalg.det(q))
        if not abs(determinant - 1) < 1e-3:
            return (
                f"a matrix has determinant {determinant:.6g}, expected 1: it is not in SL({self.n})"
            )
        return None


class SO(_AbstractMatrixGroup):
    """Rotations of R^n as orthogonal matrices `(n, n)`, for any n; `SO2`, `SO3Matrix` are faster.

    Tangent vectors are the entries below the diagonal of the skew matrix, row by row: (2,1), (3,1),
    (3,2), (4,1), ...; shape `(n (n − 1)/2,)`. **Arguments:** `n`: rows.
    """

    @property
    def dim(self) -> int:
        return self.n * (self.n - 1) // 2

    def inverse(self, a: Config) -> Config:
        return a.T

    def hat(self, xi: Vector) -> Square:
        lower = jnp.zeros((self.n, self.n), xi.dtype).at[np.tril_indices(self.n, -1)].set(xi)
        return lower - lower.T

    def vee(self, matrix: Square) -> Vector:
        return matrix[np.tril_indices(self.n, -1)]

    def defect(self, g: Config) -> Scalar:
        return orthogonality_defect(g)

    def _member(self, q: np.ndarray) -> str | None:
        return orthogonality_problem(q)
