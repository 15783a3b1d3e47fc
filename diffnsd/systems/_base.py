"""The interface of a system: `M(t, q) dv = f(t, q, v) dt + H^T dP` on a group."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._numerics import as_float, matvec
from .._types import Args, Config, Matrix, Scalar, State, Vector, is_hidden
from ..groups import AbstractGroup


class AbstractSystem(eqx.Module):
    """A system without its contacts. Parameters are leaves of the module."""

    @property
    @abstractmethod
    def group(self) -> AbstractGroup:
        """The configuration group, of dimension `n`."""

    @abstractmethod
    def mass(self, t: Scalar, q: Config) -> Matrix:
        """Mass matrix `M(t, q)`, shape `(n, n)`."""

    @abstractmethod
    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        """Total smooth force, gyroscopic terms included, shape `(n,)`."""

    @abstractmethod
    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Potential energy [J] of the conservative part of the force."""

    @abstractmethod
    def check(self, q: Config | None = None) -> str | None:
        """What is wrong with the parameters whose values are known, in the user's terms.

        With a configuration `q` also what is wrong with the mass matrix there.
        """

    def momentum(self, t: Scalar, state: State) -> Vector:
        """Generalised momentum `M v`, shape `(n,)`."""
        return matvec(self.mass(t, state.q), state.v)

    def kinetic(self, t: Scalar, state: State) -> Scalar:
        """Kinetic energy `v^T M v / 2` [J]."""
        return jnp.sum(state.v * self.momentum(t, state)) / 2


def shaped(name: str, value, shape: tuple[int, ...], dtype) -> Array:
    """The value of a user's function as an array, refused if it would be broadcast."""
    array = as_float(value, dtype)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
    return array


def positive_definite(name: str, matrix) -> str | None:
    """A sentence if a known matrix is not symmetric positive definite, else `None`."""
    if is_hidden(matrix):
        return None
    matrix = np.asarray(matrix)
    if not np.all(np.isfinite(matrix)):
        return f"{name} has entries that are not finite"
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-12 * max(np.max(np.abs(matrix)), 1.0)):
        return f"{name} is not symmetric"
    smallest = float(np.min(np.linalg.eigvalsh(matrix))) if matrix.size else 1.0
    if smallest <= 0:
        return f"{name} is not positive definite (smallest eigenvalue {smallest:.3g})"
    return None
