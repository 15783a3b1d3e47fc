"""Positions and orientations of several rigid bodies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._block_rows import BlockDiagonal
from .._types import Config, Scalar, Vector
from ._base import AbstractGroup
from ._euclidean import Euclidean
from ._product import Product
from ._so3 import SO3


class Pose(eqx.Module):
    """Position and orientation of `b` rigid bodies.

    **Arguments:**

    - `position`: centres of mass [m], world frame, shape `(b, 3)`.
    - `orientation`: unit quaternions, scalar first, body to world, shape `(b, 4)`.
    """

    position: Float[Array, "b 3"]
    orientation: Float[Array, "b 4"]


class PoseGroup(AbstractGroup):
    """`(R^3 x SO(3))^b`: the direct product, not SE(3); translations stay in the world frame.

    Tangent vectors have shape `(6 b,)`: for each body the linear velocity of the centre of mass
    [m/s] in the world frame, then the angular velocity [rad/s] in the body frame.

    **Arguments:** `bodies`: number of bodies `b`.
    """

    bodies: int = 1

    @property
    def dim(self) -> int:
        return 6 * self.bodies

    @property
    def _one(self) -> Product:
        return Product((Euclidean(3), SO3()))

    def _each(self, name: str, *args):
        """Applies a method of the one-body group to every body; a single body is not batched."""
        method = getattr(self._one, name)
        if self.bodies == 1:
            out = method(*jax.tree.map(lambda x: x[0], args))
            return jax.tree.map(lambda x: x[None], out)
        return jax.vmap(method)(*args)

    def _rows(self, xi: Vector) -> Array:
        return xi.reshape(self.bodies, 6)

    def _block(self, blocks: Array) -> Float[Array, "n n"]:
        return BlockDiagonal(jnp.moveaxis(blocks, 0, -1)).dense()

    @property
    def skew_ad(self) -> bool:
        return True

    def identity(self) -> Config:
        rotation = jnp.tile(SO3().identity(), (self.bodies, 1))
        return Pose(jnp.zeros((self.bodies, 3)), rotation)

    def compose(self, a: Config, b: Config) -> Config:
        pairs = ((a.position, a.orientation), (b.position, b.orientation))
        return Pose(*self._each("compose", *pairs))

    def inverse(self, a: Config) -> Config:
        return Pose(*self._each("inverse", (a.position, a.orientation)))

    def exp(self, xi: Vector) -> Config:
        return Pose(*self._each("exp", self._rows(xi)))

    def log(self, g: Config) -> Vector:
        return self._each("log", (g.position, g.orientation)).reshape(-1)

    def cay(self, xi: Vector) -> Config:
        return Pose(*self._each("cay", self._rows(xi)))

    def cay_inv(self, g: Config) -> Vector:
        return self._each("cay_inv", (g.position, g.orientation)).reshape(-1)

    def hat(self, xi: Vector) -> Float[Array, "r r"]:
        return self._block(self._each("hat", self._rows(xi)))

    def vee(self, matrix: Float[Array, "r r"]) -> Vector:
        size = matrix.shape[0] // self.bodies
        rows = matrix.reshape(self.bodies, size, self.bodies, size)
        own = jnp.moveaxis(jnp.diagonal(rows, axis1=0, axis2=2), -1, 0)
        return self._each("vee", own).reshape(-1)

    def ad(self, xi: Vector) -> Float[Array, "n n"]:
        return self._block(self._each("ad", self._rows(xi)))

    def Ad(self, g: Config) -> Float[Array, "n n"]:
        return self._block(self._each("Ad", (g.position, g.orientation)))

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        return self._each("dexp", self._rows(xi), self._rows(w)).reshape(-1)

    def dexpinv(self, xi: Vector, w: Vector) -> Vector:
        return self._each("dexpinv", self._rows(xi), self._rows(w)).reshape(-1)

    def dcay(self, xi: Vector, w: Vector) -> Vector:
        return self._each("dcay", self._rows(xi), self._rows(w)).reshape(-1)

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        return self._each("dcayinv", self._rows(xi), self._rows(w)).reshape(-1)

    @property
    def quaternion_problem(self) -> str | None:
        return None

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        return self._each("bracket", self._rows(xi), self._rows(eta)).reshape(-1)

    def coAd(self, g: Config, mu: Vector) -> Vector:
        return self._each("coAd", (g.position, g.orientation), self._rows(mu)).reshape(-1)

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        """`(p, |pi|²)` of every body."""
        return self._each("casimirs", self._rows(mu)).reshape(-1)

    def exp_near(self, xi: Vector) -> Config:
        return Pose(*self._each("exp_near", self._rows(xi)))

    def dexp_near(self, xi: Vector, w: Vector) -> Vector:
        return self._each("dexp_near", self._rows(xi), self._rows(w)).reshape(-1)

    def dexpinv_near(self, xi: Vector, w: Vector) -> Vector:
        return self._each("dexpinv_near", self._rows(xi), self._rows(w)).reshape(-1)

    def quat(self, xi: Vector) -> Config:
        return Pose(*self._each("quat", self._rows(xi)))

    def quat_inv(self, g: Config) -> Vector:
        return self._each("quat_inv", (g.position, g.orientation)).reshape(-1)

    def dquat(self, xi: Vector, w: Vector) -> Vector:
        return self._each("dquat", self._rows(xi), self._rows(w)).reshape(-1)

    def dquatinv(self, xi: Vector, w: Vector) -> Vector:
        return self._each("dquatinv", self._rows(xi), self._rows(w)).reshape(-1)

    def angle_squared(self, xi: Vector) -> Scalar:
        return jnp.max(self._each("angle_squared", self._rows(xi)))

    def defect(self, g: Config) -> Scalar:
        return jnp.max(self._each("defect", (g.position, g.orientation)))

    def check(self, q: Config) -> str | None:
        if not isinstance(q, Pose):
            return "q must be a Pose(position, orientation)"
        expected = (self.bodies, 3), (self.bodies, 4)
        found = np.shape(q.position), np.shape(q.orientation)
        if found != expected:
            return f"the Pose has shapes {found}, expected {expected}"
        return next((m for m in map(SO3().check, np.asarray(q.orientation)) if m), None)

    def rate(self, q: Config, xi: Vector) -> Config:
        return Pose(*self._each("rate", (q.position, q.orientation), self._rows(xi)))

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        pairs = ((q.position, q.orientation), (q_dot.position, q_dot.orientation))
        return self._each("tangent_of", *pairs).reshape(-1)
