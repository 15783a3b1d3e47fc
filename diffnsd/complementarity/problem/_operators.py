"""Operators in place of matrices: factored and never multiplied out, or used only through products."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._arguments import AbstractChecked
from ..._jax import one_by_one
from ..._numerics import as_float
from ._dense import norm

DENSE_LIMIT = 4000
"""Largest number of unknowns for which an operator is converted to an array."""


class Delassus(AbstractChecked):
    """`W = H M^-1 H^T` with a block-diagonal mass: the Delassus operator of many bodies.

    **Arguments:** `H`: maps generalised to local velocities, shape `(m, n)`; `mass`: the diagonal blocks
    of M in order, shape `(b, s, s)` with `b s = n`: 1 x 1 for point masses, 6 x 6 for rigid bodies.

    **Raises:** `ValueError` if the blocks do not cover the columns of H.
    """

    H: Float[Array, "m n"] = eqx.field(converter=as_float)
    mass: Float[Array, "b s s"] = eqx.field(converter=as_float)

    def __check_init__(self):
        if (self.H.ndim, self.mass.ndim) != (2, 3):
            raise ValueError(
                "H must have shape (m, n) and mass (b, s, s), got "
                f"{self.H.shape} and {self.mass.shape}."
            )
        b, s, other = self.mass.shape
        if s != other or b * s != self.H.shape[1]:
            raise ValueError(
                f"mass has shape {self.mass.shape} and H has shape {self.H.shape}: give {b} blocks "
                "(b, s, s) with b * s as many as H has columns."
            )

    @property
    def shape(self) -> tuple[int, int]:
        """`(m, m)`."""
        return len(self.H), len(self.H)

    def mobility(self, force: Array) -> Array:
        """`M^-1 f` for `f` of shape `(n, ...)`."""
        b, s, _ = self.mass.shape
        blocks = force.reshape((b, s, -1))
        return one_by_one(jnp.linalg.solve, self.mass, blocks).reshape(force.shape)

    def mv(self, z: Array) -> Array:
        """`W z` without W."""
        return self.H @ self.mobility(self.H.T @ z)

    def as_matrix(self) -> Array:
        """W itself."""
        return self.H @ self.mobility(self.H.T)


class Products(eqx.Module):
    """A large operator used only through products, for one problem: `(m, 1)` to `(m, 1)`.

    **Arguments:** `operator`; `order`: the operator's index of each unknown of the problem.
    """

    operator: Any
    order: np.ndarray

    def __call__(self, z: Array) -> Array:
        multiply = getattr(self.operator, "mv", None)
        x = z[np.argsort(self.order), 0]
        return (self.operator @ x if multiply is None else multiply(x))[self.order, None]

    def frobenius(self) -> Array:
        """`|W|`: exact for a sparse matrix, else estimated from products with 16 fixed sign vectors."""
        data = getattr(self.operator, "data", None)
        if data is not None:
            return norm(data.reshape(-1))[None]
        m = self.operator.in_size() if hasattr(self.operator, "in_size") else self.operator.shape[1]
        signs = jax.random.rademacher(jax.random.key(0), (16, m), dtype=float)
        images = jax.lax.map(lambda x: self(x[:, None])[:, 0], signs)
        return norm(images.reshape(-1))[None] / math.sqrt(len(signs))

    def steps(self, shapes) -> Array:
        """The step of the natural map, equal for all rows: `sqrt(m) / |W|`, shape `(m, 1)`."""
        m = sum(c * k for c, k in shapes)
        size = self.frobenius()
        return jnp.broadcast_to(math.sqrt(m) / jnp.where(size > 0, size, 1), (m, 1))


def without_derivative(tree):
    """The same pytree, made impossible to differentiate.

    **Raises:** `ValueError` if a derivative with respect to it is computed.
    """
    floats, others = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(_undifferentiated(floats), others)


@jax.custom_jvp
def _undifferentiated(floats):
    return floats


@_undifferentiated.defjvp
def _refuse(primals, tangents):
    del primals, tangents
    raise ValueError(
        f"an operator of more than {DENSE_LIMIT} unknowns is only multiplied, so its solution has no "
        "derivative: give W as an array, or take W, q and the parameters of the laws out of the "
        "derivative with jax.lax.stop_gradient."
    )
