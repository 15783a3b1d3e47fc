"""The interface of a Lie group.

Conventions. Tangent vectors are left-trivialised (body) coordinates of length `dim`:
`g(t) = g0 exp(t xi)` moves with body velocity `xi`. The tangents `dexp`, `dcay`, `dquat` and their
inverses are right-trivialised, `d/dt tau(x) = (dtau_x x') tau(x)`; the left-trivialised ones are the
same functions at `-x`. Momenta are columns, paired with velocities by the dot product.
"""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._jax import is_traced
from .._numerics import matvec
from .._types import Config, Scalar, Vector

Square = Float[Array, "r r"]
"""A square matrix of any order."""


class AbstractGroup(eqx.Module):
    """A Lie group with elements stored as pytrees of arrays and tangent vectors as flat arrays."""

    skew_ad: ClassVar[bool] = False
    """Whether every `ad(xi)` is skew: transposing a tangent is then evaluating it at `-xi`."""

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

        **Raises:** `ValueError` on a group that it leads out of, see `cayley_problem`.
        """

    @abstractmethod
    def cay_inv(self, g: Config) -> Vector:
        """Inverse of the Cayley map, away from rotations by pi.

        **Raises:** `ValueError` where the map is not valid, and for a concrete rotation by pi.
        """

    @abstractmethod
    def hat(self, xi: Vector) -> Square:
        """Matrix of the Lie algebra that belongs to `xi`, `(r, r)` if the group has `r` rows."""

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
        """Square of the largest rotation [rad²] in `xi`: of the imaginary spectrum of `ad(xi)`.

        The exponential is a good chart while it stays below `pi²`; `dexpinv` ends at `4 pi²`.
        """

    @abstractmethod
    def defect(self, g: Config) -> Scalar:
        """How far the numbers of `g` are from an element: the largest violation of its equations."""

    @abstractmethod
    def check(self, q: Config) -> str | None:
        """What is wrong with a concrete `q` as an element, in the user's terms, or `None`."""

    @abstractmethod
    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        """Body velocity of a motion through `q` with component-wise derivative `q_dot`."""

    def rate(self, q: Config, xi: Vector) -> Config:
        """Component-wise derivative of the motion `q exp(s xi)` at `s = 0`; `tangent_of` inverts it."""
        one = jnp.ones((), xi.dtype)
        along = jax.jvp(lambda s: self.compose(q, self.exp(s * xi)), (jnp.zeros_like(one),), (one,))
        return along[1]

    @property
    def cayley_problem(self) -> str | None:
        """Why the Cayley map is not a map to this group, with the remedy, or `None` if it is."""
        return None

    @property
    def quaternion_problem(self) -> str | None:
        """Why there is no quaternion retraction, with the remedy, or `None` if there is one."""
        return (
            f"{type(self).__name__} has no quaternion retraction; use Exponential() or Cayley(), "
            "or SO3, Euclidean, their Product, or PoseGroup"
        )

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        """The bracket `[xi, eta]`, shape `(n,)`."""
        return matvec(self.ad(xi), eta)

    def coAd(self, g: Config, mu: Vector) -> Vector:
        """Dual of the adjoint action, `Ad(g)^T mu`: a body momentum after `g` is composed.

        `mu1 = coAd(g, mu0)` keeps the spatial momentum `Ad(q^-1)^T mu` while `q1 = q0 g`.
        """
        return matvec(self.Ad(g).T, mu)

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """Functions of a body momentum `(n,)` that are constant on its coadjoint orbit, `(k,)`.

        **Raises:** `ValueError` on a group where they are not written down.
        """
        raise ValueError(
            f"Casimirs are known for rotations and rigid motions of plane and space, vector spaces "
            f"and their products, not for {type(self).__name__}; compare your own invariants along "
            "the solution."
        )

    def exp_near(self, xi: Vector) -> Config:
        """`exp` for rotations shorter than pi: branch-free where there is a closed form, for steps."""
        return self.exp(xi)

    def dexp_near(self, xi: Vector, w: Vector) -> Vector:
        """`dexp` for rotations shorter than pi, branch-free where there is a closed form."""
        return self.dexp(xi, w)

    def dexpinv_near(self, xi: Vector, w: Vector) -> Vector:
        """`dexpinv` for rotations shorter than pi, branch-free where there is a closed form."""
        return self.dexpinv(xi, w)

    def quat(self, xi: Vector) -> Config:
        """Quaternion retraction: rotations `(sqrt(1 - |xi|²/4), xi/2)`, for `|xi| < 2`.

        **Raises:** `ValueError` on a group without it, see `quaternion_problem`.
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
    """Raises for a concrete rotation by pi, of which there is no Cayley vector."""
    if is_traced(half_cosine):
        return
    if float(np.min(np.abs(np.asarray(half_cosine)))) < 1e-12:
        raise ValueError(
            "a rotation by pi has no inverse Cayley image; use log, or compose shorter rotations."
        )


def shape_problem(what: str, q, shape: tuple[int, ...]) -> str | None:
    """A sentence if `q` is not an array of the shape, else `None`."""
    found = np.shape(q) if not isinstance(q, tuple) else "of a tuple"
    return None if found == shape else f"{what} has shape {found}, expected {shape}"


def unit_problem(what: str, q, size: int) -> str | None:
    """A sentence if a concrete `q` is no vector of the size with the norm 1, else `None`."""
    if problem := shape_problem(what, q, (size,)):
        return problem
    norm = float(np.linalg.norm(q))
    return None if abs(norm - 1) < 1e-3 else f"{what} has norm {norm:.6g}; divide it by its norm"


def orthogonality_problem(q: np.ndarray) -> str | None:
    """A sentence if a concrete square matrix is no rotation, else `None`."""
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
