"""Positions and orientations of several rigid bodies."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._block_diagonal import BlockDiagonal
from .._types import Config, Scalar, Vector
from ._base import Square
from ._euclidean import Euclidean
from ._product import AbstractDirectProduct, Product
from ._so3 import SO3


class Pose(eqx.Module):
    """Position and orientation of `b` rigid bodies.

    **Arguments:**

    - `position`: centres of mass [m], world frame, shape `(b, 3)`.
    - `orientation`: unit quaternions, scalar first, body to world, shape `(b, 4)`.
    """

    position: Float[Array, "b 3"]
    orientation: Float[Array, "b 4"]


class PoseGroup(AbstractDirectProduct):
    """`(R^3 x SO(3))^b`: the direct product, not SE(3); translations stay in the world frame.

    Tangent vectors have shape `(6 b,)`: for each body the linear velocity of the centre of mass
    [m/s] in the world frame, then the angular velocity [rad/s] in the body frame. The Casimirs are
    `(p, |pi|²)` of every body.

    **Arguments:** `bodies`: number of bodies `b`.
    """

    bodies: int = 1

    skew_ad = True

    @property
    def dim(self) -> int:
        return 6 * self.bodies

    def _split(self, x: Config | Vector) -> Any:
        if isinstance(x, Pose):
            return x.position, x.orientation
        return x.reshape(self.bodies, 6)

    def _each(self, name: str, *shares) -> Any:
        """Applies the method of one body to all; a single body is not batched."""
        method = getattr(Product((Euclidean(3), SO3())), name)
        if self.bodies == 1:
            out = method(*jax.tree.map(lambda x: x[0], shares))
            return jax.tree.map(lambda x: x[None], out)
        return jax.vmap(method)(*shares)

    def _element(self, values) -> Config:
        return Pose(*values)

    def _vector(self, values) -> Vector:
        return values.reshape(-1)

    def _matrix(self, values) -> Square:
        return BlockDiagonal(jnp.moveaxis(values, 0, -1)).dense()

    def _largest(self, values) -> Scalar:
        return jnp.max(values)

    def identity(self) -> Config:
        rotation = jnp.tile(SO3().identity(), (self.bodies, 1))
        return Pose(jnp.zeros((self.bodies, 3)), rotation)

    def vee(self, matrix: Square) -> Vector:
        size = matrix.shape[0] // self.bodies
        rows = matrix.reshape(self.bodies, size, self.bodies, size)
        own = jnp.moveaxis(jnp.diagonal(rows, axis1=0, axis2=2), -1, 0)
        return self._vector(self._each("vee", own))

    @property
    def quaternion_problem(self) -> str | None:
        return None

    def check(self, q: Config) -> str | None:
        if not isinstance(q, Pose):
            return "q must be a Pose(position, orientation)"
        expected = (self.bodies, 3), (self.bodies, 4)
        found = np.shape(q.position), np.shape(q.orientation)
        if found != expected:
            return f"the Pose has shapes {found}, expected {expected}"
        return next((m for m in map(SO3().check, np.asarray(q.orientation)) if m), None)
