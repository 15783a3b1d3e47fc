"""Rotations of space as matrices."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import checked_kinds
from .._numerics import dot, skew
from .._scalar_kernels import cos_half_near, sinc_half_near, sinc_kernel, versine_kernel
from .._types import Config, Scalar, Vector
from ._base import (
    AbstractGroup,
    Square,
    orthogonality_defect,
    orthogonality_problem,
    refuse_half_turn,
    shape_problem,
)
from ._so3 import SO3, Quaternion, quaternion_log


@checked_kinds
def quaternion_from_matrix(r: Float[Array, "3 3"]) -> Quaternion:
    """Unit quaternion of a rotation matrix, from its largest component (smooth at every angle)."""
    (a, b, c), (d, e, f), (g, h, i) = r
    squares = jnp.stack([1 + a + e + i, 1 + a - e - i, 1 - a + e - i, 1 - a - e + i])
    # Row k of 4 q q^T, divided by 2 |q_k|: the divisor is the largest of four, at least 1.
    rows = jnp.stack(
        [
            jnp.stack([squares[0], h - f, c - g, d - b]),
            jnp.stack([h - f, squares[1], d + b, c + g]),
            jnp.stack([c - g, d + b, squares[2], h + f]),
            jnp.stack([d - b, c + g, h + f, squares[3]]),
        ]
    )
    largest = jnp.argmax(squares)
    one_hot = (jnp.arange(4) == largest).astype(r.dtype)
    row = jnp.sum(rows * one_hot[:, None], axis=0)
    return row / (2 * jnp.sqrt(jnp.sum(squares * one_hot)))


class SO3Matrix(AbstractGroup):
    """Rotations of space as orthogonal matrices `(3, 3)`, body to world.

    The same group as `SO3`, stored as matrices: tangent vectors, tangents and their closed forms are
    shared. The exponential is Rodrigues' formula `1 + sin(t)/t x^ + (1 - cos t)/t² x^ x^`, the
    Cayley map `1 + (x^ + x^ x^/2) / (1 + t²/4)`. Quaternions cost less and drift less.
    """

    dim: ClassVar[int] = 3
    skew_ad = True

    def identity(self) -> Config:
        return jnp.eye(3)

    def compose(self, a: Config, b: Config) -> Config:
        return a[:, :1] * b[:1] + a[:, 1:2] * b[1:2] + a[:, 2:] * b[2:]

    def inverse(self, a: Config) -> Config:
        return a.T

    def _rodrigues(self, xi: Vector, first: Scalar, second: Scalar) -> Config:
        outer = xi[:, None] * xi[None]
        eye = jnp.eye(3, dtype=xi.dtype)
        return (1 - second * dot(xi, xi)) * eye + first * skew(xi) + second * outer

    def exp(self, xi: Vector) -> Config:
        t = dot(xi, xi)
        return self._rodrigues(xi, sinc_kernel(t), versine_kernel(t))

    def exp_near(self, xi: Vector) -> Config:
        t = dot(xi, xi)
        half = sinc_half_near(t)
        return self._rodrigues(xi, half * cos_half_near(t), half * half / 2)

    def log(self, g: Config) -> Vector:
        return quaternion_log(quaternion_from_matrix(g))

    def cay(self, xi: Vector) -> Config:
        scale = 1 / (1 + dot(xi, xi) / 4)
        return self._rodrigues(xi, scale, scale / 2)

    def cay_inv(self, g: Config) -> Vector:
        trace = g[0, 0] + g[1, 1] + g[2, 2]
        refuse_half_turn(1 + trace)
        return 2 * self.vee(g - g.T) / (1 + trace)

    hat, vee, ad, bracket = SO3.hat, SO3.vee, SO3.ad, SO3.bracket
    dexp, dexpinv, dcay, dcayinv = SO3.dexp, SO3.dexpinv, SO3.dcay, SO3.dcayinv
    dexp_near, dexpinv_near = SO3.dexp_near, SO3.dexpinv_near
    angle_squared, casimirs = SO3.angle_squared, SO3.casimirs

    def Ad(self, g: Config) -> Square:
        return g

    def coAd(self, g: Config, mu: Vector) -> Vector:
        return g[0] * mu[0] + g[1] * mu[1] + g[2] * mu[2]

    def defect(self, g: Config) -> Scalar:
        return orthogonality_defect(g)

    def check(self, q: Config) -> str | None:
        problem = shape_problem("a rotation matrix", q, (3, 3))
        return problem or orthogonality_problem(np.asarray(q))

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        return self.vee(q.T @ q_dot)
