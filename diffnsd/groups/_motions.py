"""Common code of planar and spatial rigid motions: semidirect products of rotations and translations."""

from abc import abstractmethod
from typing import ClassVar

import jax.numpy as jnp

from .._numerics import matvec
from .._types import Config, Scalar, Vector
from ._base import AbstractGroup, Square, shape_problem


class AbstractRigidMotions(AbstractGroup):
    """Rigid motions `x -> R x + p` of R^d as tuples `(p (d,), R)`.

    Tangent vectors are `(v, omega)`: velocity of the origin and angular velocity, both in the body frame.
    """

    space: ClassVar[int]
    """The dimension `d`."""
    rotations: ClassVar[AbstractGroup]
    """The group of `R`."""
    stored: ClassVar[str]
    """How users specify a rotation."""

    @abstractmethod
    def _turn(self, r: Config, x: Vector) -> Vector:
        """`R x`."""

    @abstractmethod
    def _mean(self, x: Vector, v: Vector) -> Vector:
        """The translation of `exp(v, x)`: `v` times the mean of the rotations `exp(s x)`, s in [0, 1]."""

    @abstractmethod
    def _mean_inverse(self, x: Vector, p: Vector) -> Vector:
        """The inverse of `_mean`."""

    @abstractmethod
    def _cay_mean(self, x: Vector, v: Vector) -> Vector:
        """The translation of `cay(v, x)`, `(1 - x^/2)^-1 v`."""

    def _split(self, xi: Vector) -> tuple[Vector, Vector]:
        """`(v, omega)`."""
        return xi[: self.space], xi[self.space :]

    def identity(self) -> Config:
        return jnp.zeros(self.space), self.rotations.identity()

    def compose(self, a: Config, b: Config) -> Config:
        return a[0] + self._turn(a[1], b[0]), self.rotations.compose(a[1], b[1])

    def inverse(self, a: Config) -> Config:
        back = self.rotations.inverse(a[1])
        return -self._turn(back, a[0]), back

    def exp(self, xi: Vector) -> Config:
        v, x = self._split(xi)
        return self._mean(x, v), self.rotations.exp(x)

    def log(self, g: Config) -> Vector:
        x = self.rotations.log(g[1])
        return jnp.concatenate([self._mean_inverse(x, g[0]), x])

    def cay(self, xi: Vector) -> Config:
        v, x = self._split(xi)
        return self._cay_mean(x, v), self.rotations.cay(x)

    def cay_inv(self, g: Config) -> Vector:
        x = self.rotations.cay_inv(g[1])
        return jnp.concatenate([g[0] - matvec(self.rotations.hat(x), g[0]) / 2, x])

    def hat(self, xi: Vector) -> Square:
        v, x = self._split(xi)
        top = jnp.concatenate([self.rotations.hat(x), v[:, None]], axis=1)
        return jnp.concatenate([top, jnp.zeros_like(top[:1])])

    def vee(self, matrix: Square) -> Vector:
        d = self.space
        return jnp.concatenate([matrix[:d, d], self.rotations.vee(matrix[:d, :d])])

    def angle_squared(self, xi: Vector) -> Scalar:
        return self.rotations.angle_squared(self._split(xi)[1])

    def defect(self, g: Config) -> Scalar:
        return self.rotations.defect(g[1])

    def check(self, q: Config) -> str | None:
        d = self.space
        if not isinstance(q, tuple) or len(q) != 2:
            return f"an element of SE({d}) is a tuple (position ({d},), {self.stored})"
        return shape_problem("the position", q[0], (d,)) or self.rotations.check(q[1])

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        back = self.rotations.inverse(q[1])
        spin = self.rotations.tangent_of(q[1], q_dot[1])
        return jnp.concatenate([self._turn(back, q_dot[0]), spin])
