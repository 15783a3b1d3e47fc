"""Rigid motions of space: the semidirect product of rotations and translations."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import cross, dot, skew
from .._types import Config, Vector
from ._base import Square
from ._motions import AbstractRigidMotions
from ._so3 import SO3, rotate, rotation_matrix

_ROTATIONS = SO3()


class SE3(AbstractRigidMotions):
    """Rigid motions `x -> R x + p` as tuples `(p (3,), unit quaternion (4,))`, body to world.

    Stored like `Product((Euclidean(3), SO3()))`, but composed as motions. Tangent vectors are
    screws `(v, omega)` of shape `(6,)`, both parts in the body frame.

    Motions are rotations over the dual numbers `omega + e v`, `e² = 0` (transference), so the linear
    rows of `dexp` and `dexpinv` are directional derivatives of those of SO(3):

        dexp_(v, w) (a, b) = (d/de dexp_{w + e v} (b + e a),  dexp_w b),   exp = (dexp_w v, exp w)

    and no fifth-order polynomial in `ad` is needed. The Cayley map is that of the 4x4 matrices,

        cay = ((1 - w^/2)^-1 v, cay w),    dcayinv_x d = d - [x, d]/2 - x^ d^ x^/4

    (the Cayley map of dual quaternions is a different one). Orders and signs as in `AbstractGroup`.

    Reference: J. M. Selig, Geometric Fundamentals of Robotics (2005), doi:10.1007/b138859.
    """

    dim: ClassVar[int] = 6
    space = 3
    rotations = _ROTATIONS
    stored = "quaternion (4,)"

    def _turn(self, r: Config, x: Vector) -> Vector:
        return rotate(r, x)

    def _mean(self, x: Vector, v: Vector) -> Vector:
        return _ROTATIONS.dexp(x, v)

    def _mean_inverse(self, x: Vector, p: Vector) -> Vector:
        return _ROTATIONS.dexpinv(x, p)

    def _cay_mean(self, x: Vector, v: Vector) -> Vector:
        return (v + cross(x, v) / 2 + x * (dot(x, v) / 4)) / (1 + dot(x, x) / 4)

    def ad(self, xi: Vector) -> Square:
        spin, zero = skew(xi[3:]), jnp.zeros((3, 3), xi.dtype)
        top, bottom = jnp.concatenate([spin, skew(xi[:3])], 1), jnp.concatenate([zero, spin], 1)
        return jnp.concatenate([top, bottom])

    def Ad(self, g: Config) -> Square:
        turn = rotation_matrix(g[1])
        moved = jnp.stack([cross(g[0], turn[:, j]) for j in range(3)], axis=1)
        zero = jnp.zeros((3, 3), turn.dtype)
        top, bottom = jnp.concatenate([turn, moved], 1), jnp.concatenate([zero, turn], 1)
        return jnp.concatenate([top, bottom])

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        linear = cross(xi[3:], eta[:3]) + cross(xi[:3], eta[3:])
        return jnp.concatenate([linear, cross(xi[3:], eta[3:])])

    def coAd(self, g: Config, mu: Vector) -> Vector:
        back = _ROTATIONS.inverse(g[1])
        torque = mu[3:] - cross(g[0], mu[:3])
        return jnp.concatenate([rotate(back, mu[:3]), rotate(back, torque)])

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """`(|p|², p · pi)` of a momentum `(p, pi)`."""
        return jnp.stack([dot(mu[:3], mu[:3]), dot(mu[:3], mu[3:])])

    def _dual(self, function, xi: Vector, w: Vector) -> Vector:
        spin, linear = jax.jvp(function, (xi[3:], w[3:]), (xi[:3], w[:3]))
        return jnp.concatenate([linear, spin])

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        return self._dual(_ROTATIONS.dexp, xi, w)

    def dexpinv(self, xi: Vector, w: Vector) -> Vector:
        return self._dual(_ROTATIONS.dexpinv, xi, w)

    def exp_near(self, xi: Vector) -> Config:
        return _ROTATIONS.dexp_near(xi[3:], xi[:3]), _ROTATIONS.exp_near(xi[3:])

    def dexp_near(self, xi: Vector, w: Vector) -> Vector:
        return self._dual(_ROTATIONS.dexp_near, xi, w)

    def dexpinv_near(self, xi: Vector, w: Vector) -> Vector:
        return self._dual(_ROTATIONS.dexpinv_near, xi, w)

    def dcay(self, xi: Vector, w: Vector) -> Vector:
        v, x = xi[:3], xi[3:]
        spin = _ROTATIONS.dcay(x, w[3:])
        moved = cross(v, spin) / 2 + cross(x, cross(spin, v)) / 4
        return jnp.concatenate([self._cay_mean(x, w[:3] + moved), spin])

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        v, x = xi[:3], xi[3:]
        turned = (cross(x, w[:3]) + cross(v, w[3:])) / 2
        linear = w[:3] - turned - cross(x, cross(w[3:], v)) / 4
        return jnp.concatenate([linear, _ROTATIONS.dcayinv(x, w[3:])])
