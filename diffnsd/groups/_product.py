"""Direct products of groups."""

from abc import abstractmethod
from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg

from .._types import Config, Scalar, Vector
from ._base import AbstractGroup, Square


def _of_parts(put_together: str) -> Callable[[str], Any]:
    """Makes methods that act on each part and combine the results with the named method."""

    def method_named(name: str):
        def method(self, *args):
            return getattr(self, put_together)(self._each(name, *map(self._split, args)))

        method.__name__ = name
        return method

    return method_named


class AbstractDirectProduct(AbstractGroup):
    """A group whose maps act part by part, each on its own share of the arguments."""

    @abstractmethod
    def _split(self, x: Config | Vector) -> Any:
        """Splits an element or a tangent vector into the shares of the parts."""

    @abstractmethod
    def _each(self, name: str, *shares) -> Any:
        """The results of a method of every part."""

    @abstractmethod
    def _element(self, values) -> Config:
        """An element composed of elements of the parts."""

    @abstractmethod
    def _vector(self, values) -> Vector:
        """A tangent vector composed of tangent vectors of the parts."""

    @abstractmethod
    def _matrix(self, values) -> Square:
        """The block-diagonal matrix of those of the parts."""

    @abstractmethod
    def _largest(self, values) -> Scalar:
        """The largest of several numbers."""

    compose, inverse, rate = map(_of_parts("_element"), ("compose", "inverse", "rate"))
    exp, exp_near, cay, quat = map(_of_parts("_element"), ("exp", "exp_near", "cay", "quat"))
    log, cay_inv, quat_inv = map(_of_parts("_vector"), ("log", "cay_inv", "quat_inv"))
    dexp, dexp_near, dcay, dquat = map(_of_parts("_vector"), ("dexp", "dexp_near", "dcay", "dquat"))
    dexpinv, dexpinv_near = map(_of_parts("_vector"), ("dexpinv", "dexpinv_near"))
    dcayinv, dquatinv = map(_of_parts("_vector"), ("dcayinv", "dquatinv"))
    bracket, coAd, casimirs = map(_of_parts("_vector"), ("bracket", "coAd", "casimirs"))
    tangent_of = _of_parts("_vector")("tangent_of")
    hat, ad, Ad = map(_of_parts("_matrix"), ("hat", "ad", "Ad"))
    angle_squared, defect = map(_of_parts("_largest"), ("angle_squared", "defect"))


class Product(AbstractDirectProduct):
    """The direct product of groups: elements are tuples, tangent vectors are concatenated.

    **Arguments:** `factors`: the groups, in the order of the tuple.
    """

    factors: tuple[AbstractGroup, ...]

    @property
    def dim(self) -> int:
        return sum(f.dim for f in self.factors)

    @property
    def skew_ad(self) -> bool:
        return all(f.skew_ad for f in self.factors)

    def _split(self, x: Config | Vector) -> Any:
        if isinstance(x, tuple):
            return x
        ends = list(accumulate(f.dim for f in self.factors))
        return [x[e - f.dim : e] for f, e in zip(self.factors, ends, strict=True)]

    def _each(self, name: str, *shares) -> tuple:
        parts = zip(self.factors, *shares, strict=True)
        return tuple(getattr(f, name)(*share) for f, *share in parts)

    def _element(self, values) -> Config:
        return values

    def _vector(self, values) -> Vector:
        return jnp.concatenate(values)

    def _matrix(self, values) -> Square:
        return jax.scipy.linalg.block_diag(*values)

    def _largest(self, values) -> Scalar:
        return reduce(jnp.maximum, values)

    def identity(self) -> Config:
        return self._each("identity")

    def vee(self, matrix: Square) -> Vector:
        sizes = [jax.eval_shape(f.hat, jnp.zeros(f.dim)).shape[0] for f in self.factors]
        ends = list(accumulate(sizes))
        blocks = [matrix[e - s : e, e - s : e] for s, e in zip(sizes, ends, strict=True)]
        return self._vector(self._each("vee", blocks))

    @property
    def cayley_problem(self) -> str | None:
        return next((p for f in self.factors if (p := f.cayley_problem)), None)

    @property
    def quaternion_problem(self) -> str | None:
        return next((p for f in self.factors if (p := f.quaternion_problem)), None)

    def check(self, q: Config) -> str | None:
        if not isinstance(q, tuple) or len(q) != len(self.factors):
            return f"q must be a tuple of {len(self.factors)} configurations"
        return next((m for m in self._each("check", q) if m is not None), None)
