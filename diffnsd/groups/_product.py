"""Direct products of groups."""

from functools import reduce
from itertools import accumulate

import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jaxtyping import Array, Float

from .._types import Config, Scalar, Vector
from ._base import AbstractGroup


class Product(AbstractGroup):
    """The direct product of groups: elements are tuples, tangent vectors are concatenated.

    **Arguments:** `factors`: the groups, in the order of the tuple.
    """

    factors: tuple[AbstractGroup, ...]

    @property
    def dim(self) -> int:
        return sum(f.dim for f in self.factors)

    def _split(self, xi: Vector) -> list[Vector]:
        ends = list(accumulate(f.dim for f in self.factors))
        return [xi[e - f.dim : e] for f, e in zip(self.factors, ends, strict=True)]

    def _map(self, name: str, *args) -> tuple:
        return tuple(getattr(f, name)(*part) for f, *part in zip(self.factors, *args, strict=True))

    @property
    def skew_ad(self) -> bool:
        return all(f.skew_ad for f in self.factors)

    def identity(self) -> Config:
        return self._map("identity")

    def compose(self, a: Config, b: Config) -> Config:
        return self._map("compose", a, b)

    def inverse(self, a: Config) -> Config:
        return self._map("inverse", a)

    def casimirs(self, mu: Vector) -> Float[Array, " k"]:
        return jnp.concatenate(self._map("casimirs", self._split(mu)))

    def exp(self, xi: Vector) -> Config:
        return self._map("exp", self._split(xi))

    def log(self, g: Config) -> Vector:
        return jnp.concatenate(self._map("log", g))

    def cay(self, xi: Vector) -> Config:
        return self._map("cay", self._split(xi))

    def cay_inv(self, g: Config) -> Vector:
        return jnp.concatenate(self._map("cay_inv", g))

    def hat(self, xi: Vector) -> Float[Array, "r r"]:
        return jax.scipy.linalg.block_diag(*self._map("hat", self._split(xi)))

    def vee(self, matrix: Float[Array, "r r"]) -> Vector:
        sizes = [jax.eval_shape(f.hat, jnp.zeros(f.dim)).shape[0] for f in self.factors]
        ends = list(accumulate(sizes))
        blocks = [matrix[e - s : e, e - s : e] for s, e in zip(sizes, ends, strict=True)]
        return jnp.concatenate(self._map("vee", blocks))

    def ad(self, xi: Vector) -> Float[Array, "n n"]:
        return jax.scipy.linalg.block_diag(*self._map("ad", self._split(xi)))

    def Ad(self, g: Config) -> Float[Array, "n n"]:
        return jax.scipy.linalg.block_diag(*self._map("Ad", g))

    def dexp(self, xi: Vector, w: Vector) -> Vector:
        return jnp.concatenate(self._map("dexp", self._split(xi), self._split(w)))

    def dexpinv(self, xi: Vector, w: Vector) -> Vector:
        return jnp.concatenate(self._map("dexpinv", self._split(xi), self._split(w)))

    def dcay(self, xi: Vector, w: Vector) -> Vector:
        return jnp.concatenate(self._map("dcay", self._split(xi), self._split(w)))

    def dcayinv(self, xi: Vector, w: Vector) -> Vector:
        return jnp.concatenate(self._map("dcayinv", self._split(xi), self._split(w)))

    @property
    def cayley_problem(self) -> str | None:
        return next((p for f in self.factors if (p := f.cayley_problem)), None)

    @property
    def quaternion_problem(self) -> str | None:
        return next((p for f in self.factors if (p := f.quaternion_problem)), None)

    def bracket(self, xi: Vector, eta: Vector) -> Vector:
        return jnp.concatenate(self._map("bracket", self._split(xi), self._split(eta)))

    def coAd(self, g: Config, mu: Vector) -> Vector:
        return jnp.concatenate(self._map("coAd", g, self._split(mu)))

    def exp_near(self, xi: Vector) -> Config:
        return self._map("exp_near", self._split(xi))

    def dexp_near(self, xi: Vector, w: Vector) -> Vector:
        return jnp.concatenate(self._map("dexp_near", self._split(xi), self._split(w)))

    def dexpinv_near(self, xi: Vector, w: Vector) -> Vector:
        return jnp.concatenate(self._map("dexpinv_near", self._split(xi), self._split(w)))

    def quat(self, xi: Vector) -> Config:
        return self._map("quat", self._split(xi))

    def quat_inv(self, g: Config) -> Vector:
        return jnp.concatenate(self._map("quat_inv", g))

    def dquat(self, xi: Vector, w: Vector) -> Vector:
        return jnp.concatenate(self._map("dquat", self._split(xi), self._split(w)))

    def dquatinv(self, xi: Vector, w: Vector) -> Vector:
        return jnp.concatenate(self._map("dquatinv", self._split(xi), self._split(w)))

    def angle_squared(self, xi: Vector) -> Scalar:
        return reduce(jnp.maximum, self._map("angle_squared", self._split(xi)))

    def defect(self, g: Config) -> Scalar:
        return reduce(jnp.maximum, self._map("defect", g))

    def check(self, q: Config) -> str | None:
        if not isinstance(q, tuple) or len(q) != len(self.factors):
            return f"q must be a tuple of {len(self.factors)} configurations"
        return next((m for m in self._map("check", q) if m is not None), None)

    def rate(self, q: Config, xi: Vector) -> Config:
        return self._map("rate", q, self._split(xi))

    def tangent_of(self, q: Config, q_dot: Config) -> Vector:
        return jnp.concatenate(self._map("tangent_of", q, q_dot))
