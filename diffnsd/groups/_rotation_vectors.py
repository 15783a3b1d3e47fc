"""Rotations of space by their rotation vectors."""

from typing import ClassVar

import jax.numpy as jnp

from .._types import Config, Scalar, Vector
from ._base import AbstractGroup, Square, shape_problem
from ._so3 import SO3, quaternion_log


class RotationVectors(AbstractGroup):
    """SO(3), with elements stored as rotation vectors [rad], body to world, of shape `(3,)`.

    As many numbers as a tangent vector has, which is a body angular velocity as of `SO3`. Elements are not
    longer than `pi`: in a motion through a rotation by `pi`, which has two vectors, the stored numbers jump.
    Products are those of rotations, by way of quaternions.
    """

    dim: ClassVar[int] = 3
    skew_ad = True

    def identity(self) -> Config:
        return jnp.zeros(3)

    def compose(self, a: Config, b: Config) -> Config:
        whole = SO3()
        return quaternion_log(whole.compose(whole.exp(a), whole.exp(b)))

    def inverse(self, a: Config) -> Config:
        return -a

    def exp(self, xi: Vector) -> Config:
        return quaternion_log(SO3().exp(xi))

    def exp_near(self, xi: Vector) -> Config:
        return xi

    def log(self, g: Config) -> Vector:
        return g

    def cay(self, xi: Vector) -> Config:
        return quaternion_log(SO3().cay(xi))

    def cay_inv(self, g: Config) -> Vector:
        return SO3().cay_inv(SO3().exp(g))

    def hat(self, xi: Vector) -> Square:
        return SO3().hat(xi)

    def vee(self, matrix: Square) -> Vector:
        return SO3().vee(matrix)

    def ad(self, xi: Vector) -> Square:
        return SO3().ad(xi)

    def Ad(self, g: Config) -> Square:
        return SO3().Ad(SO3().exp(g))

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        return SO3().bracket(xi, eta)

    def coAd(self, g: Config, mu: Vector) -> Vector:
        return SO3().coAd(SO3().exp(g), mu)

    def casimirs(self, mu: Vector) -> Vector:
        """`|mu|²`."""
        return SO3().casimirs(mu)

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        return SO3().dexp(xi, w)

    def dexpinv(self, xi: Vector, w: Vector) -> Vector:
        return SO3().dexpinv(xi, w)

    def dexp_near(self, xi: Vector, w: Vector) -> Vector:
        return SO3().dexp_near(xi, w)

    def dexpinv_near(self, xi: Vector, w: Vector) -> Vector:
        return SO3().dexpinv_near(xi, w)

    def dcay(self, xi: Vector, w: Vector) -> Vector:
        return SO3().dcay(xi, w)

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        return SO3().dcayinv(xi, w)

    @property
    def quaternion_problem(self) -> str | None:
        return None

    def quat(self, xi: Vector) -> Config:
        return quaternion_log(SO3().quat(xi))

    def quat_inv(self, g: Config) -> Vector:
        return SO3().quat_inv(SO3().exp(g))

    def dquat(self, xi: Vector, w: Vector) -> Vector:
        return SO3().dquat(xi, w)

    def dquatinv(self, xi: Vector, w: Vector) -> Vector:
        return SO3().dquatinv(xi, w)

    def angle_squared(self, xi: Vector) -> Scalar:
        return SO3().angle_squared(xi)

    def defect(self, g: Config) -> Scalar:
        return jnp.zeros((), g.dtype)

    def check(self, q: Config) -> str | None:
        return shape_problem("a rotation vector", q, (3,))

    def rate(self, q: Config, xi: Vector) -> Config:
        return SO3().dexpinv(-q, xi)

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        return SO3().dexp(-q, q_dot)
