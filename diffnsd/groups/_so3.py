"""Rotations of space as unit quaternions."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import checked_kinds
from .._numerics import cross, dot, skew, unit_matrix
from .._scalar_kernels import (
    bernoulli_kernel,
    bernoulli_near,
    cos_half_near,
    cos_kernel,
    sinc_half_near,
    sinc_kernel,
    sine_defect_kernel,
    sine_defect_near,
    versine_kernel,
)
from .._types import Config, Scalar, Vector
from ._base import AbstractGroup, Square, refuse_half_turn, shape_problem, unit_problem

Quaternion = Float[Array, "4 ..."]


@checked_kinds
def quaternion_product(a: Quaternion, b: Quaternion) -> Quaternion:
    """Hamilton product of scalar-first quaternions along the first axis."""
    (a0, a1, a2, a3), (b0, b1, b2, b3) = jnp.unstack(a), jnp.unstack(b)
    return jnp.stack(
        [
            a0 * b0 - a1 * b1 - a2 * b2 - a3 * b3,
            a0 * b1 + a1 * b0 + a2 * b3 - a3 * b2,
            a0 * b2 - a1 * b3 + a2 * b0 + a3 * b1,
            a0 * b3 + a1 * b2 - a2 * b1 + a3 * b0,
        ]
    )


@checked_kinds
def quaternion_log(q: Quaternion) -> Float[Array, "3 ..."]:
    """Rotation vector of a unit quaternion, smooth up to and at a rotation by pi.

    `theta = 2 atan2(|v|, w)` after the sign is flipped to `w >= 0`; near the identity the ratio
    `theta / |v|` is taken from its series in `(|v|/w)^2`, guarded at `w = 0`.
    """
    q = jnp.where(q[0] < 0, -q, q)
    w, v = q[0], q[1:]
    square = dot(v, v)
    small = square < 1e-2 * w * w
    length = jnp.sqrt(jnp.where(small, 1.0, square))
    ratio = jnp.where(small, square, 0.0) / jnp.where(small, w * w, 1.0)
    series = sum((-ratio) ** j / (2 * j + 1) for j in range(9)) / jnp.where(small, w, 1.0)
    closed = jnp.arctan2(length, jnp.where(small, 1.0, w)) / length
    return 2 * jnp.where(small, series, closed)[None] * v


def _half_cosine(xi: Float[Array, "3 ..."]) -> Array:
    """`sqrt(1 - |xi|²/4)`, or 1 outside the chart (which the caller reports); never NaN."""
    rest = 1 - dot(xi, xi) / 4
    return jnp.sqrt(jnp.where(rest > 0, rest, 1.0))


@checked_kinds
def rotate(q: Quaternion, x: Float[Array, "3 ..."]) -> Float[Array, "3 ..."]:
    """Rotates body components `x` to world components by a unit quaternion."""
    v = q[1:]
    inner = cross(v, x) + q[:1] * x
    return x + 2 * cross(v, inner)


@checked_kinds
def rotation_matrix(q: Quaternion) -> Float[Array, "3 3 ..."]:
    """Rotation matrix, body to world, of a unit quaternion."""
    w, v = q[0], q[1:]
    # As products of arrays, because higher-order derivatives repeat every product many times.
    half = v[:, None] * v[None] + skew(w[None] * v)
    return 2 * half + (1 - 2 * dot(v, v))[None, None] * unit_matrix(3, q)


class SO3(AbstractGroup):
    """Rotations of space as unit quaternions, scalar first, body to world.

    Elements have shape `(4,)`, tangent vectors are body angular velocities, shape `(3,)`.
    The right-trivialised tangents are (x a rotation vector, t = |x|)

        dexp    = 1 + (1 - cos t)/t^2 x^ + (t - sin t)/t^3 x^ x^
        dexpinv = 1 - x^/2 + (1 - (t/2) cot(t/2))/t^2 x^ x^
        dcay    = (1 + x^/2) / (1 + t^2/4),     dcayinv = 1 - x^/2 + x x^T/4
        dquat   = c + x^/2 + x x^T/(4 c),       dquatinv = c - x^/2,   c = sqrt(1 - t^2/4)

    Reference: A. Iserles, H. Munthe-Kaas, S. Norsett, A. Zanna, Lie-group methods (2000),
    doi:10.1017/S0962492900002154.
    """

    dim: ClassVar[int] = 3
    skew_ad = True

    def identity(self) -> Config:
        return jnp.array([1.0, 0.0, 0.0, 0.0])

    def compose(self, a: Config, b: Config) -> Config:
        return quaternion_product(a, b)

    def inverse(self, a: Config) -> Config:
        return jnp.concatenate([a[:1], -a[1:]])

    def exp(self, xi: Vector) -> Config:
        """`(cos(|xi|/2), sin(|xi|/2) xi/|xi|)`."""
        quarter = dot(xi, xi) / 4
        return self._turned(cos_kernel(quarter), sinc_kernel(quarter), xi)

    def _turned(self, half_cosine: Scalar, half_sinc: Scalar, xi: Vector) -> Config:
        half = half_sinc / 2
        return jnp.stack([half_cosine, *(half * x for x in jnp.unstack(xi))])

    def log(self, g: Config) -> Vector:
        return quaternion_log(g)

    def cay(self, xi: Vector) -> Config:
        """Rotation by `2 atan(|xi|/2)` about `xi`: the quaternion along `(1, xi/2)`."""
        # Not 1/sqrt(..): its rounding is biased, and attitudes would drift from unit norm.
        scale = jnp.sqrt(1 / (1 + dot(xi, xi) / 4))
        return jnp.concatenate([scale[None], scale * xi / 2])

    def cay_inv(self, g: Config) -> Vector:
        refuse_half_turn(g[0])
        return 2 * g[1:] / g[0]

    def hat(self, xi: Vector) -> Square:
        return skew(xi)

    def vee(self, matrix: Square) -> Vector:
        return jnp.stack([matrix[2, 1], matrix[0, 2], matrix[1, 0]])

    def ad(self, xi: Vector) -> Square:
        return skew(xi)

    def Ad(self, g: Config) -> Square:
        return rotation_matrix(g)

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        return cross(xi, eta)

    def coAd(self, g: Config, mu: Vector) -> Vector:
        return rotate(self.inverse(g), mu)

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """`|mu|²`."""
        return dot(mu, mu)[None]

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        t = dot(xi, xi)
        first = cross(xi, w)
        return w + versine_kernel(t) * first + sine_defect_kernel(t) * cross(xi, first)

    def dexpinv(self, xi: Vector, w: Vector) -> Vector:
        first = cross(xi, w)
        return w - first / 2 + bernoulli_kernel(dot(xi, xi)) * cross(xi, first)

    def exp_near(self, xi: Vector) -> Config:
        t = dot(xi, xi)
        return self._turned(cos_half_near(t), sinc_half_near(t), xi)

    def dexp_near(self, xi: Vector, w: Vector) -> Vector:
        t, first = dot(xi, xi), cross(xi, w)
        versine = sinc_half_near(t) ** 2 / 2  # (1 - cos)/t² = (sin(t/2)/(t/2))²/2
        return w + versine * first + sine_defect_near(t) * cross(xi, first)

    def dexpinv_near(self, xi: Vector, w: Vector) -> Vector:
        first = cross(xi, w)
        return w - first / 2 + bernoulli_near(dot(xi, xi)) * cross(xi, first)

    def dcay(self, xi: Vector, w: Vector) -> Vector:
        return (w + cross(xi, w) / 2) / (1 + dot(xi, xi) / 4)

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        return w - cross(xi, w) / 2 + xi * dot(xi, w) / 4

    @property
    def quaternion_problem(self) -> str | None:
        return None

    def quat(self, xi: Vector) -> Config:
        """Rotation by `2 asin(|xi|/2)` about `xi`: the quaternion `(sqrt(1 - |xi|²/4), xi/2)`."""
        return jnp.concatenate([_half_cosine(xi)[None], xi / 2])

    def quat_inv(self, g: Config) -> Vector:
        return jnp.where(g[0] < 0, -2.0, 2.0).astype(g.dtype) * g[1:]

    def dquat(self, xi: Vector, w: Vector) -> Vector:
        c = _half_cosine(xi)
        return c * w + cross(xi, w) / 2 + xi * (dot(xi, w) / (4 * c))

    def dquatinv(self, xi: Vector, w: Vector) -> Vector:
        return _half_cosine(xi) * w - cross(xi, w) / 2

    def angle_squared(self, xi: Vector) -> Scalar:
        return dot(xi, xi)

    def defect(self, g: Config) -> Scalar:
        return jnp.abs(dot(g, g) - 1)

    def check(self, q: Config) -> str | None:
        if problem := shape_problem("a quaternion", q, (4,)):
            return f"{problem}, scalar first"
        return unit_problem("a quaternion", q, 4)

    def rate(self, q: Config, xi: Vector) -> Config:
        return quaternion_product(q, jnp.concatenate([jnp.zeros_like(xi[:1]), xi / 2]))

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        return 2 * quaternion_product(self.inverse(q), q_dot)[1:]
