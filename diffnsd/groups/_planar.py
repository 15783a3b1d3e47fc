"""Rotations and rigid motions of the plane."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import (
    bernoulli_kernel,
    cos_kernel,
    dot,
    sinc_kernel,
    sine_defect_kernel,
    versine_kernel,
)
from .._types import Config, Scalar, Vector
from ._base import AbstractGroup, refuse_half_turn, shape_problem, unit_problem


def _times(a: Float[Array, "2"], b: Float[Array, "2"]) -> Float[Array, "2"]:
    """Product of complex numbers `(real, imaginary)`."""
    return jnp.stack([a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]])


def _conjugate(a: Float[Array, "2"]) -> Float[Array, "2"]:
    return jnp.stack([a[0], -a[1]])


def _turned(x: Float[Array, "2"]) -> Float[Array, "2"]:
    """A quarter turn, `i x`."""
    return jnp.stack([-x[1], x[0]])


def _exp(angle: Scalar) -> Float[Array, "2"]:
    t = angle * angle
    return jnp.stack([cos_kernel(t), angle * sinc_kernel(t)])


def _cay(angle: Scalar) -> Float[Array, "2"]:
    """`(1 + i angle/2) / (1 - i angle/2)`."""
    square = angle * angle / 4
    return jnp.stack([1 - square, angle]) / (1 + square)


def _cay_inv(c: Float[Array, "2"]) -> Scalar:
    refuse_half_turn(1 + c[0])
    return 2 * c[1] / (1 + c[0])


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
        return _exp(xi[0])

    def log(self, g: Config) -> Vector:
        return jnp.arctan2(g[1], g[0])[None]

    def cay(self, xi: Vector) -> Config:
        return _cay(xi[0])

    def cay_inv(self, g: Config) -> Vector:
        return _cay_inv(g)[None]

    def hat(self, xi: Vector) -> Float[Array, "2 2"]:
        zero = jnp.zeros_like(xi[0])
        return jnp.stack([jnp.stack([zero, -xi[0]]), jnp.stack([xi[0], zero])])

    def vee(self, matrix: Float[Array, "2 2"]) -> Vector:
        return matrix[1, :1]

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """All of `mu`: the group is commutative."""
        return mu

    def ad(self, xi: Vector) -> Float[Array, "1 1"]:
        return jnp.zeros((1, 1), xi.dtype)

    def Ad(self, g: Config) -> Float[Array, "1 1"]:
        return jnp.ones((1, 1), g.dtype)

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        del xi
        return w

    dexpinv = dexp

    def dcay(self, xi: Vector, w: Vector) -> Vector:
        return w / (1 + xi * xi / 4)

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        return w * (1 + xi * xi / 4)

    def angle_squared(self, xi: Vector) -> Scalar:
        """The square of the rotation itself: a turn by more than pi is no chart of a circle."""
        return xi[0] * xi[0]

    def defect(self, g: Config) -> Scalar:
        return jnp.abs(dot(g, g) - 1)

    def check(self, q: Config) -> str | None:
        problem = shape_problem("a rotation of the plane (cos, sin)", q, (2,))
        return problem or unit_problem("a rotation of the plane (cos, sin)", np.asarray(q))

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        return _times(_conjugate(q), q_dot)[1:]


class SE2(AbstractGroup):
    """Rigid motions of the plane, `x -> R x + p`, as tuples `(p (2,), (cos, sin) (2,))`.

    Tangent vectors `(v, omega)` have shape `(3,)`: velocity of the origin and angular velocity,
    both in the body frame. With `t = omega`, `ad` of order three and the scalar functions of SO(3),

        dexp = 1 + (1 - cos t)/t² ad + (t - sin t)/t³ ad²,   exp = ((dexp of the rotation) v, e^{it})
        dcayinv (w_v, w) = w - [x, w]/2 - x^ w^ x^ / 4,       cay = (v / (1 - i t/2), cay(t))
    """

    dim: ClassVar[int] = 3

    def identity(self) -> Config:
        return jnp.zeros(2), jnp.array([1.0, 0.0])

    def compose(self, a: Config, b: Config) -> Config:
        return a[0] + _times(a[1], b[0]), _times(a[1], b[1])

    def inverse(self, a: Config) -> Config:
        turned = _conjugate(a[1])
        return -_times(turned, a[0]), turned

    def exp(self, xi: Vector) -> Config:
        t = xi[2] * xi[2]
        mean = jnp.stack([sinc_kernel(t), xi[2] * versine_kernel(t)])
        return _times(mean, xi[:2]), _exp(xi[2])

    def log(self, g: Config) -> Vector:
        angle = jnp.arctan2(g[1][1], g[1][0])
        mean_inverse = jnp.stack([1 - angle * angle * bernoulli_kernel(angle * angle), -angle / 2])
        return jnp.concatenate([_times(mean_inverse, g[0]), angle[None]])

    def cay(self, xi: Vector) -> Config:
        half = jnp.stack([jnp.ones_like(xi[2]), xi[2] / 2]) / (1 + xi[2] * xi[2] / 4)
        return _times(half, xi[:2]), _cay(xi[2])

    def cay_inv(self, g: Config) -> Vector:
        angle = _cay_inv(g[1])
        back = jnp.stack([jnp.ones_like(angle), -angle / 2])
        return jnp.concatenate([_times(back, g[0]), angle[None]])

    def hat(self, xi: Vector) -> Float[Array, "3 3"]:
        zero = jnp.zeros_like(xi[0])
        rows = [[zero, -xi[2], xi[0]], [xi[2], zero, xi[1]], [zero, zero, zero]]
        return jnp.stack([jnp.stack(row) for row in rows])

    def vee(self, matrix: Float[Array, "3 3"]) -> Vector:
        return jnp.stack([matrix[0, 2], matrix[1, 2], matrix[1, 0]])

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """`|p|²` of a momentum `(p, pi)`."""
        return (mu[0] * mu[0] + mu[1] * mu[1])[None]

    def ad(self, xi: Vector) -> Float[Array, "3 3"]:
        zero = jnp.zeros_like(xi[0])
        rows = [[zero, -xi[2], xi[1]], [xi[2], zero, -xi[0]], [zero, zero, zero]]
        return jnp.stack([jnp.stack(row) for row in rows])

    def Ad(self, g: Config) -> Float[Array, "3 3"]:
        (x, y), (c, s) = g
        zero, one = jnp.zeros_like(c), jnp.ones_like(c)
        rows = [[c, -s, y], [s, c, -x], [zero, zero, one]]
        return jnp.stack([jnp.stack(row) for row in rows])

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
        angle = w[2] / (1 + xi[2] * xi[2] / 4)
        right = w[:2] - angle * _turned(xi[:2]) / 2 - (angle * xi[2] / 4) * xi[:2]
        back = jnp.stack([jnp.ones_like(angle), xi[2] / 2]) / (1 + xi[2] * xi[2] / 4)
        return jnp.concatenate([_times(back, right), angle[None]])

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        return w - self.bracket(xi, w) / 2 + (xi[2] * w[2] / 4) * xi

    def angle_squared(self, xi: Vector) -> Scalar:
        return xi[2] * xi[2]

    def defect(self, g: Config) -> Scalar:
        return jnp.abs(dot(g[1], g[1]) - 1)

    def check(self, q: Config) -> str | None:
        if not isinstance(q, tuple) or len(q) != 2:
            return "an element of SE(2) is a tuple (position (2,), (cos, sin) (2,))"
        return shape_problem("the position", q[0], (2,)) or SO2().check(q[1])

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        turned = _conjugate(q[1])
        return jnp.concatenate([_times(turned, q_dot[0]), _times(turned, q_dot[1])[1:]])
