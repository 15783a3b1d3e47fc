"""Groups acting on homogeneous spaces: spheres, coadjoint orbits, isospectral sets, frames.

Actions are left actions, `(a b) . y = a . (b . y)`. A motion on the space is then

    y' = d/ds exp(s A(t, y)) . y  at s = 0,

with `A` in the Lie algebra; a `systems.LieFlow` is defined by its coordinates. Adding to `A` an
element that leaves `y` fixed changes the error of a method, not its order.
"""

from abc import abstractmethod
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import AbstractChecked
from .._types import Config, Scalar, Vector
from ._base import AbstractGroup, orthogonality_defect, shape_problem, unit_problem
from ._matrix import SO
from ._product import Product
from ._so3 import SO3, rotate


class AbstractAction(AbstractChecked):
    """A left action of a group on the points of a space."""

    @property
    @abstractmethod
    def group(self) -> AbstractGroup:
        """The group that acts."""

    @abstractmethod
    def apply(self, g: Config, y: Config) -> Config:
        """`g . y`."""

    @abstractmethod
    def check(self, y: Config) -> str | None:
        """Error message if a concrete `y` is not a point of the space, else `None`."""

    @abstractmethod
    def defect(self, y: Config) -> Scalar:
        """How far `y` is from the space: the largest violation of its equations."""

    def velocity(self, xi: Vector, y: Config) -> Config:
        """`d/ds exp(s xi) . y` at `s = 0`: the velocity of the point `y` under `xi`."""
        zero = jnp.zeros_like(xi)
        return jax.jvp(lambda x: self.apply(self.group.exp(x), y), (zero,), (xi,))[1]


class _AbstractOfAGroup(AbstractAction):
    """An action of any group, by default on itself."""

    on: AbstractGroup

    @property
    def group(self) -> AbstractGroup:
        return self.on

    def check(self, y: Config) -> str | None:
        return self.on.check(y)

    def defect(self, y: Config) -> Scalar:
        return self.on.defect(y)


class LeftTranslation(_AbstractOfAGroup):
    """The group on itself, `g . y = g y`; `A` is the spatial velocity, `y' = A^ y`."""

    def apply(self, g: Config, y: Config) -> Config:
        return self.on.compose(g, y)


class RightTranslation(_AbstractOfAGroup):
    """The group on itself from the right, `g . y = y g^-1`; `y' = y xi^` (body) has `A = -xi`."""

    def apply(self, g: Config, y: Config) -> Config:
        return self.on.compose(y, self.on.inverse(g))


class SphereAction(AbstractAction):
    """SO(3) on the unit sphere in R^3: `y' = A x y`, points of shape `(3,)`."""

    @property
    def group(self) -> AbstractGroup:
        return SO3()

    def apply(self, g: Config, y: Config) -> Config:
        return rotate(g, y)

    def check(self, y: Config) -> str | None:
        return unit_problem("a point of the sphere", y, 3)

    def defect(self, y: Config) -> Scalar:
        return jnp.abs(jnp.sum(y * y) - 1)


class CoadjointAction(_AbstractOfAGroup):
    """A group on momenta, `g . mu = Ad(g^-1)^T mu`; its orbits carry the Lie-Poisson equations.

    `mu' = ad(xi)^T mu` has `A = -xi`. Casimirs are conserved exactly. Momenta have shape `(n,)`.
    """

    def apply(self, g: Config, y: Config) -> Config:
        return self.on.coAd(self.on.inverse(g), y)

    def check(self, y: Config) -> str | None:
        return shape_problem("a momentum", y, (self.on.dim,))

    def defect(self, y: Config) -> Scalar:
        return jnp.zeros((), y.dtype)


class StiefelAction(AbstractAction):
    """SO(n) on frames of `k` orthonormal columns, `g . y = g y`, points `(n, k)`; `y' = A^ y`.

    **Arguments:** `n`, `k`: rows and columns, `k <= n`; `k = 1` is the sphere in R^n.
    """

    n: int
    k: int

    def __check_init__(self):
        if not 1 <= self.k <= self.n:
            raise ValueError(f"a frame needs 1 <= k <= n columns, got n={self.n}, k={self.k}.")

    @property
    def group(self) -> AbstractGroup:
        return SO(self.n)

    def apply(self, g: Config, y: Config) -> Config:
        return g @ y

    def check(self, y: Config) -> str | None:
        problem = shape_problem("a frame", y, (self.n, self.k))
        if problem is not None:
            return problem
        y = np.asarray(y)
        error = float(np.max(np.abs(y.T @ y - np.eye(self.k))))
        if not error < 1e-3:
            return (
                f"the columns of a frame are not orthonormal (y^T y differs from 1 by {error:.3g}); "
                "orthonormalise them, for example by numpy.linalg.qr"
            )
        return None

    def defect(self, y: Config) -> Scalar:
        return orthogonality_defect(y)


class IsospectralAction(AbstractAction):
    """SO(n) on symmetric matrices, `g . y = g y g^T`: keeps the spectrum; `y' = [A^, y]`.

    **Arguments:** `n`: rows.
    """

    n: int

    @property
    def group(self) -> AbstractGroup:
        return SO(self.n)

    def apply(self, g: Config, y: Config) -> Config:
        return g @ y @ g.T

    def check(self, y: Config) -> str | None:
        problem = shape_problem("a symmetric matrix", y, (self.n, self.n))
        if problem is None and not np.allclose(y, np.asarray(y).T, rtol=0, atol=1e-6):
            return "a matrix of an isospectral flow is not symmetric; use (y + y^T)/2"
        return problem

    def defect(self, y: Config) -> Scalar:
        """Largest entry of `y - y^T`."""
        return jnp.max(jnp.abs(y - y.T))


class _AbstractOnParts(AbstractAction):
    """An action on points that are tuples of several parts."""

    parts: tuple[AbstractAction, ...]

    def __check_init__(self):
        if len(self.parts) == 0:
            raise ValueError("parts must hold at least one action.")

    def check(self, y: Config) -> str | None:
        if not isinstance(y, tuple) or len(y) != len(self.parts):
            return f"a point must be a tuple of {len(self.parts)} points"
        return next((m for p, x in zip(self.parts, y, strict=True) if (m := p.check(x))), None)

    def defect(self, y: Config) -> Scalar:
        return reduce(jnp.maximum, [p.defect(x) for p, x in zip(self.parts, y, strict=True)])


class Diagonal(_AbstractOnParts):
    """One group on several spaces at once, `g . (y1, y2, ...) = (g . y1, g . y2, ...)`.

    With `Diagonal((CoadjointAction(G), RightTranslation(G)))` a momentum and its attitude move by
    the same group element, so the spatial momentum is constant to round-off.
    """

    def __check_init__(self):
        if len({(type(p.group), p.group.dim) for p in self.parts}) > 1:
            raise ValueError(
                "all parts of a Diagonal action must be of one group; use ProductAction for "
                f"different groups, got {[type(p.group).__name__ for p in self.parts]}."
            )

    @property
    def group(self) -> AbstractGroup:
        return self.parts[0].group

    def apply(self, g: Config, y: Config) -> Config:
        return tuple(p.apply(g, x) for p, x in zip(self.parts, y, strict=True))


class ProductAction(_AbstractOnParts):
    """A product of groups, each on its own space: `(g1, g2) . (y1, y2) = (g1 . y1, g2 . y2)`."""

    @property
    def group(self) -> AbstractGroup:
        return Product(tuple(p.group for p in self.parts))

    def apply(self, g: Config, y: Config) -> Config:
        return tuple(p.apply(a, x) for p, a, x in zip(self.parts, g, y, strict=True))
