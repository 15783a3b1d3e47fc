"""Rotations and rigid motions of the plane."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import dot, stacked
from .._scalar_kernels import (
    bernoulli_kernel,
    cos_kernel,
    sinc_kernel,
    sine_defect_kernel,
    versine_kernel,
)
from .._types import Config, Scalar, Vector
from ._base import AbstractGroup, Square, refuse_half_turn, unit_problem
from ._motions import AbstractRigidMotions


def _times(a: Float[Array, "2"], b: Float[Array, "2"]) -> Float[Array, "2"]:
    """Product of complex numbers `(real, imaginary)`."""
    return jnp.stack([a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]])


def _conjugate(a: Float[Array, "2"]) -> Float[Array, "2"]:
    return jnp.stack([a[0], -a[1]])


def _turned(x: Float[Array, "2"]) -> Float[Array, "2"]:
    """A quarter turn, `i x`."""
    return jnp.stack([-x[1], x[0]])


class SO2(AbstractGroup):
    """Rotations of the plane as unit complex numbers `(cos, sin)`, shape `(2,)`.

    Tangent vectors are angular velocities, shape `(1,)`. The group is commutative: `dexp = 1`,
    `dcay = 1 / (1 + x²/4)`.
    """

    dim: ClassVar[int] = 1

    def identity(self) -> Config:
        return jnp.array([1.0, 0.0])

    def compose(self, a: Config, b: Config) -> Config:
        return _times(a, b)

    def inverse(self, a: Config) -> Config:
        return _conjugate(a)

    def exp(self, xi: Vector) -> Config:
        t = xi[0] * xi[0]
        return jnp.stack([cos_kernel(t), xi[0] * sinc_kernel(t)])

    def log(self, g: Config) -> Vector:
        return jnp.arctan2(g[1], g[0])[None]

    def cay(self, xi: Vector) -> Config:
        """`(1 + i x/2) / (1 - i x/2)`."""
        square = xi[0] * xi[0] / 4
        return jnp.stack([1 - square, xi[0]]) / (1 + square)

    def cay_inv(self, g: Config) -> Vector:
        refuse_half_turn(1 + g[0])
        return 2 * g[1:] / (1 + g[0])

    def hat(self, xi: Vector) -> Square:
        zero = jnp.zeros_like(xi[0])
        return stacked([[zero, -xi[0]], [xi[0], zero]])

    def vee(self, matrix: Square) -> Vector:
        return matrix[1, :1]

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """All of `mu`: the group is commutative."""
        return mu

    def ad(self, xi: Vector) -> Square:
        return jnp.zeros((1, 1), xi.dtype)

    def Ad(self, g: Config) -> Square:
        return jnp.ones((1, 1), g.dtype)

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        return w

    dexpinv = dexp

    def dcay(self, xi: Vector, w: Vector) -> Vector:
        return w / (1 + xi * xi / 4)

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        return w * (1 + xi * xi / 4)

    def angle_squared(self, xi: Vector) -> Scalar:
        """The square of the rotation angle; beyond pi `exp` is no longer a chart of the circle."""
        return xi[0] * xi[0]

    def defect(self, g: Config) -> Scalar:
        return jnp.abs(dot(g, g) - 1)

    def check(self, q: Config) -> str | None:
        return unit_problem("a rotation of the plane (cos, sin)", q, 2)

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        return _times(_conjugate(q), q_dot)[1:]


class SE2(AbstractRigidMotions):
    """Rigid motions of the plane, `x -> R x + p`, as tuples `(p (2,), (cos, sin) (2,))`.

    Tangent vectors `(v, omega)` have shape `(3,)`: velocity of the origin and angular velocity,
    both in the body frame. With `t = omega`, `ad` of order three and the scalar functions of SO(3),

        dexp = 1 + (1 - cos t)/t² ad + (t - sin t)/t³ ad²,   exp = ((dexp of the rotation) v, e^{it})
        dcayinv (w_v, w) = w - [x, w]/2 - x^ w^ x^ / 4,       cay = (v / (1 - i t/2), cay(t))
    """

    dim: ClassVar[int] = 3
    space = 2
    rotations = SO2()
    stored = "(cos, sin) (2,)"

    def _turn(self, r: Config, x: Vector) -> Vector:
        return _times(r, x)

    def _mean(self, x: Vector, v: Vector) -> Vector:
        t = x[0] * x[0]
        return _times(jnp.stack([sinc_kernel(t), x[0] * versine_kernel(t)]), v)

    def _mean_inverse(self, x: Vector, p: Vector) -> Vector:
        t = x[0] * x[0]
        return _times(jnp.stack([1 - t * bernoulli_kernel(t), -x[0] / 2]), p)

    def _cay_mean(self, x: Vector, v: Vector) -> Vector:
        return (v + x * _turned(v) / 2) / (1 + x * x / 4)

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """`|p|²` of a momentum `(p, pi)`."""
        return dot(mu[:2], mu[:2])[None]

    def ad(self, xi: Vector) -> Square:
        zero = jnp.zeros_like(xi[0])
        return stacked([[zero, -xi[2], xi[1]], [xi[2], zero, -xi[0]], [zero, zero, zero]])

    def Ad(self, g: Config) -> Square:
        (x, y), (c, s) = g
        zero, one = jnp.zeros_like(c), jnp.ones_like(c)
        return stacked([[c, -s, y], [s, c, -x], [zero, zero, one]])

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        linear = xi[2] * _turned(eta[:2]) - eta[2] * _turned(xi[:2])
        return jnp.concatenate([linear, jnp.zeros_like(xi[:1])])

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        t = xi[2] * xi[2]
        first = self.bracket(xi, w)
        return w + versine_kernel(t) * first + sine_defect_kernel(t) * self.bracket(xi, first)

    def dexpinv(self, xi: Vector, w: Vector) -> Vector:
        first = self.bracket(xi, w)
        return w - first / 2 + bernoulli_kernel(xi[2] * xi[2]) * self.bracket(xi, first)

    def dcay(self, xi: Vector, w: Vector) -> Vector:
        spin = self.rotations.dcay(xi[2:], w[2:])
        right = w[:2] - spin * _turned(xi[:2]) / 2 - (spin * xi[2] / 4) * xi[:2]
        return jnp.concatenate([self._cay_mean(xi[2:], right), spin])

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        return w - self.bracket(xi, w) / 2 + (xi[2] * w[2] / 4) * xi
