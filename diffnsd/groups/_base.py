"""The interface of a Lie group.

Conventions. Tangent vectors are left-trivialised (body) coordinates of length `dim`:
`g(t) = g0 exp(t xi)` moves with body velocity `xi`. The tangents `dexp`, `dcay` and their inverses
are right-trivialised, `d/dt tau(x) = (dtau_x x') tau(x)`; the left-trivialised ones are the same
functions at `-x`.
"""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float

from .._types import Config, Vector


class AbstractGroup(eqx.Module):
    """A Lie group with elements stored as pytrees of arrays and tangent vectors as flat arrays."""

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
        """Cayley map `(1 - xi/2)^-1 (1 + xi/2)`."""

    @abstractmethod
    def cay_inv(self, g: Config) -> Vector:
        """Inverse of the Cayley map, away from rotations by pi."""

    @abstractmethod
    def hat(self, xi: Vector) -> Float[Array, "r r"]:
        """Matrix of the Lie algebra that belongs to `xi`."""

    @abstractmethod
    def vee(self, matrix: Float[Array, "r r"]) -> Vector:
        """Inverse of `hat`."""

    @abstractmethod
    def ad(self, xi: Vector) -> Float[Array, "n n"]:
        """Matrix of the bracket, `ad(xi) eta = [xi, eta]`."""

    @abstractmethod
    def Ad(self, g: Config) -> Float[Array, "n n"]:
        """Matrix of the adjoint action, `Ad(g) xi = vee(g hat(xi) g^-1)`."""

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
    def check(self, q: Config) -> str | None:
        """What is wrong with a concrete `q` as an element, in the user's terms, or `None`."""

    @abstractmethod
    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        """Body velocity of a motion through `q` with component-wise derivative `q_dot`."""
