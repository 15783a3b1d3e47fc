"""Rotations of space by their rotation vectors."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp

from .._types import Config, Scalar, Vector
from ._base import AbstractGroup, shape_problem
from ._so3 import SO3, quaternion_log


def _named(name: str, method: Callable) -> Any:
    method.__name__, method.__doc__ = name, getattr(AbstractGroup, name).__doc__
    return method


def _of_so3(name: str) -> Any:
    """A method of `SO3` that takes no element and returns none."""
    return _named(name, lambda self, *vectors: getattr(SO3(), name)(*vectors))


def _stored(name: str) -> Any:
    """A method of `SO3` that returns an element."""
    return _named(name, lambda self, xi: quaternion_log(getattr(SO3(), name)(xi)))


def _of_quaternion(name: str) -> Any:
    """A method of `SO3` whose first argument is an element."""
    return _named(name, lambda self, g, *vectors: getattr(SO3(), name)(SO3().exp(g), *vectors))


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

    exp, cay, quat = map(_stored, ("exp", "cay", "quat"))
    cay_inv, quat_inv, Ad, coAd = map(_of_quaternion, ("cay_inv", "quat_inv", "Ad", "coAd"))
    hat, vee, ad, bracket, casimirs = map(_of_so3, ("hat", "vee", "ad", "bracket", "casimirs"))
    dexp, dexp_near, dcay, dquat = map(_of_so3, ("dexp", "dexp_near", "dcay", "dquat"))
    dexpinv, dexpinv_near = map(_of_so3, ("dexpinv", "dexpinv_near"))
    dcayinv, dquatinv = map(_of_so3, ("dcayinv", "dquatinv"))
    angle_squared = _of_so3("angle_squared")

    def exp_near(self, xi: Vector) -> Config:
        return xi

    def log(self, g: Config) -> Vector:
        return g

    @property
    def quaternion_problem(self) -> str | None:
        return None

    def defect(self, g: Config) -> Scalar:
        return jnp.zeros((), g.dtype)

    def check(self, q: Config) -> str | None:
        return shape_problem("a rotation vector", q, (3,))

    def rate(self, q: Config, xi: Vector) -> Config:
        return SO3().dexpinv(-q, xi)

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        return SO3().dexp(-q, q_dot)
