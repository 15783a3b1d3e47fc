"""The interface of a Lie group.

Conventions. Tangent vectors are left-trivialised (body) coordinates of length `dim`:
`g(t) = g0 exp(t xi)` moves with body velocity `xi`. The tangents `dexp`, `dcay`, `dquat` and their
inverses are right-trivialised, `d/dt tau(x) = (dtau_x x') tau(x)`; the left-trivialised ones are the
same functions at `-x`. Momenta are columns, paired with velocities by the dot product.
"""

from abc import abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import AbstractChecked
from .._jax import is_traced
from .._numerics import matvec
from .._types import Config, Scalar, Vector

Square = Float[Array, "r r"]
"""A square matrix of any size."""


class AbstractGroup(AbstractChecked):
    """A Lie group with elements stored as pytrees of arrays and tangent vectors as flat arrays."""

    skew_ad: ClassVar[bool] = False
    """Whether every `ad(xi)` is skew; the transpose of a tangent map is then that map at `-xi`."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension `n` of the group."""

    @abstractmethod
    def identity(self) -> Config:
        """The neutral element."""

    @abstractmethod
    def compose(self, a: Config, b: Config) -> Config:
        """The product `a b`."""

    @abstractmethod
    def inverse(self, a: Config) -> Config:
        """The inverse of `a`."""

    @abstractmethod
    def exp(self, xi: Vector) -> Config:
        """Exponential map, tangent vector `(n,)` to element."""

    @abstractmethod
    def log(self, g: Config) -> Vector:
        """Logarithm: the shortest `xi`, shape `(n,)`, with `exp(xi) = g`."""

    @abstractmethod
    def cay(self, xi: Vector) -> Config:
        """Cayley map `(1 - xi/2)^-1 (1 + xi/2)`.

        **Raises:** `ValueError` if the map leaves the group, see `cayley_problem`.
        """

    @abstractmethod
    def cay_inv(self, g: Config) -> Vector:
        """Inverse of the Cayley map, away from rotations by pi.

        **Raises:** `ValueError` where the map is not valid, and for a concrete rotation by pi.
        """

    @abstractmethod
    def hat(self, xi: Vector) -> Square:
        """Lie algebra matrix of `xi`, shape `(r, r)` for a group of `r x r` matrices."""

    @abstractmethod
    def vee(self, matrix: Square) -> Vector:
        """Inverse of `hat`."""

    @abstractmethod
    def ad(self, xi: Vector) -> Square:
        """Matrix of the bracket, `ad(xi) eta = [xi, eta]`, shape `(n, n)`."""

    @abstractmethod
    def Ad(self, g: Config) -> Square:
        """Matrix of the adjoint action, `Ad(g) xi = vee(g hat(xi) g^-1)`, shape `(n, n)`."""

    @abstractmethod
    def dexp(self, xi: Vector, w: Vector) -> Vector:
        """Right-trivialised tangent of `exp` at `xi` applied to `w`."""

    @abstractmethod
    def dexpinv(self, xi: Vector, w: Vector) -> Vector:
        """Inverse of `dexp` (valid for rotation parts shorter than 2 pi)."""

    @abstractmethod
    def dcay(self, xi: Vector, w: Vector) -> Vector:
        """Right-trivialised tangent of `cay` at `xi` applied to `w`."""

    @abstractmethod
    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        """Inverse of `dcay`."""

    @abstractmethod
    def angle_squared(self, xi: Vector) -> Scalar:
        """Square of the largest rotation angle [rad²] in `xi`, from the imaginary spectrum of `ad(xi)`.

        The exponential is a good chart below `pi²`; `dexpinv` is defined below `4 pi²`.
        """

    @abstractmethod
    def defect(self, g: Config) -> Scalar:
        """How far the stored numbers of `g` are from the group: the largest violation of its equations."""

    @abstractmethod
    def check(self, q: Config) -> str | None:
        """Error message if a concrete `q` is not an element of the group, else `None`."""

    @abstractmethod
    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        """Body velocity of a motion through `q` with component-wise derivative `q_dot`."""

    def rate(self, q: Config, xi: Vector) -> Config:
        """Component-wise derivative of the motion `q exp(s xi)` at `s = 0`; `tangent_of` inverts it."""
        one = jnp.ones((), xi.dtype)
        along = jax.jvp(lambda s: self.compose(q, self.exp(s * xi)), (jnp.zeros_like(one),), (one,))
        return along[1]

    def own_columns(self, places: np.ndarray) -> np.ndarray | None:
        """The entries of `xi` that `q exp(xi)` adds to `q` at these places; `None` where it is no sum.

        Places beyond the end of `q` do not count.
        """
        del places
        return None

    @property
    def cayley_problem(self) -> str | None:
        """Why the Cayley map leaves this group, and what to use instead; `None` if it does not."""
        return None

    @property
    def quaternion_problem(self) -> str | None:
        """Why there is no quaternion retraction, and what to use instead; `None` if there is one."""
        return (
            f"{type(self).__name__} has no quaternion retraction; use Exponential() or Cayley(), "
            "or SO3, Euclidean, their Product, or PoseGroup"
        )

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        """The bracket `[xi, eta]`, shape `(n,)`."""
        return matvec(self.ad(xi), eta)

    def coAd(self, g: Config, mu: Vector) -> Vector:
        """Dual of the adjoint action, `Ad(g)^T mu`: the body momentum after composing with `g`.

        `mu1 = coAd(g, mu0)` conserves the spatial momentum `Ad(q^-1)^T mu` when `q1 = q0 g`.
        """
        return matvec(self.Ad(g).T, mu)

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """Functions of a body momentum `(n,)` that are constant on its coadjoint orbit, `(k,)`.

        **Raises:** `ValueError` for groups where they are not implemented.
        """
        raise ValueError(
            f"Casimirs are known for rotations and rigid motions of plane and space, vector spaces "
            f"and their products, not for {type(self).__name__}; compare your own invariants along "
            "the solution."
        )

    def exp_near(self, xi: Vector) -> Config:
        """`exp` for rotations by less than pi, for steps; branch-free where there is a closed form."""
        return self.exp(xi)

    def dexp_near(self, xi: Vector, w: Vector) -> Vector:
        """`dexp` for rotations by less than pi; branch-free where there is a closed form."""
        return self.dexp(xi, w)

    def dexpinv_near(self, xi: Vector, w: Vector) -> Vector:
        """`dexpinv` for rotations by less than pi; branch-free where there is a closed form."""
        return self.dexpinv(xi, w)

    def quat(self, xi: Vector) -> Config:
        """Quaternion retraction: rotations `(sqrt(1 - |xi|²/4), xi/2)`, for `|xi| < 2`.

        **Raises:** `ValueError` for groups without it, see `quaternion_problem`.
        """
        raise ValueError(self.quaternion_problem)

    def quat_inv(self, g: Config) -> Vector:
        """Inverse of `quat`, for rotations by less than pi."""
        raise ValueError(self.quaternion_problem)

    def dquat(self, xi: Vector, w: Vector) -> Vector:
        """Right-trivialised tangent of `quat` at `xi` applied to `w`."""
        raise ValueError(self.quaternion_problem)

    def dquatinv(self, xi: Vector, w: Vector) -> Vector:
        """Inverse of `dquat`."""
        raise ValueError(self.quaternion_problem)


def refuse_half_turn(half_cosine) -> None:
    """Raises `ValueError` for a concrete rotation by pi, which has no Cayley vector."""
    if is_traced(half_cosine):
        return
    if float(np.min(np.abs(np.asarray(half_cosine)))) < 1e-12:
        raise ValueError(
            "a rotation by pi has no inverse Cayley image; use log, or compose shorter rotations."
        )


def shape_problem(what: str, q, shape: tuple[int, ...]) -> str | None:
    """An error message if `q` is not an array of the given shape, else `None`."""
    found = np.shape(q) if not isinstance(q, tuple) else "of a tuple"
    return None if found == shape else f"{what} has shape {found}, expected {shape}"


def unit_problem(what: str, q, size: int) -> str | None:
    """An error message if a concrete `q` is not a unit vector of the given size, else `None`."""
    if problem := shape_problem(what, q, (size,)):
        return problem
    norm = float(np.linalg.norm(q))
    if abs(norm - 1) < 1e-3:
        return None
    remedy = "divide it by its norm" if norm else "give that of no rotation, if none is meant"
    return f"{what} has norm {norm:.6g}; {remedy}"


def orthogonality_problem(q: np.ndarray) -> str | None:
    """An error message if a concrete square matrix is not a rotation, else `None`."""
    error = float(np.max(np.abs(q.T @ q - np.eye(q.shape[0])), initial=0.0))
    if not error < 1e-3:
        return (
            f"a matrix is not orthogonal (R^T R differs from 1 by {error:.3g}); take the nearest "
            "rotation, U V^T of its singular value decomposition"
        )
    if np.linalg.det(q) < 0:
        return "an orthogonal matrix has determinant -1: a reflection, not a rotation"
    return None


def orthogonality_defect(g: Float[Array, "r c"]) -> Scalar:
    """Largest entry of `g^T g - 1`."""
    return jnp.max(jnp.abs(g.T @ g - jnp.eye(g.shape[1], dtype=g.dtype)))
