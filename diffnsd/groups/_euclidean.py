"""The vector space R^n as a group under addition."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Config, Scalar, Vector
from ._base import AbstractGroup, Square, shape_problem


class Euclidean(AbstractGroup):
    """R^n with addition. Elements and tangent vectors are arrays of shape `(n,)`.

    **Arguments:** `n`: dimension.
    """

    n: int

    @property
    def dim(self) -> int:
        return self.n

    skew_ad = True

    def identity(self) -> Config:
        return jnp.zeros(self.n)

    def compose(self, a: Config, b: Config) -> Config:
        return a + b

    def inverse(self, a: Config) -> Config:
        return -a

    def exp(self, xi: Vector) -> Config:
        return xi

    def log(self, g: Config) -> Vector:
        return g

    def own_columns(self, places: np.ndarray) -> np.ndarray | None:
        return places

    cay = quat = exp
    cay_inv = quat_inv = log

    def hat(self, xi: Vector) -> Square:
        """Translations as `(n+1, n+1)` affine matrices."""
        return jnp.zeros((self.n + 1, self.n + 1), xi.dtype).at[:-1, -1].set(xi)

    def vee(self, matrix: Square) -> Vector:
        return matrix[:-1, -1]

    def ad(self, xi: Vector) -> Square:
        return jnp.zeros((self.n, self.n), xi.dtype)

    def Ad(self, g: Config) -> Square:
        return jnp.eye(self.n, dtype=g.dtype)

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        return w

    dexpinv = dcay = dcayinv = dquat = dquatinv = dexp

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        return jnp.zeros_like(xi + eta)

    def coAd(self, g: Config, mu: Vector) -> Vector:
        return mu

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """All of `mu`: the momentum of a translation does not change."""
        return mu

    @property
    def quaternion_problem(self) -> str | None:
        return None

    def angle_squared(self, xi: Vector) -> Scalar:
        return jnp.zeros((), xi.dtype)

    def defect(self, g: Config) -> Scalar:
        return jnp.zeros((), g.dtype)

    def check(self, q: Config) -> str | None:
        return shape_problem("q", q, (self.n,))

    def rate(self, q: Config, xi: Vector) -> Config:
        return xi

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        return q_dot
