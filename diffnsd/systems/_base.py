"""The interface of a system: `M(t, q) dv = f(t, q, v) dt + H^T dP` on a group."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp

from .._numerics import matvec
from .._types import Args, Config, Matrix, Scalar, State, Vector
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
    def check(self) -> str | None:
        """What is wrong with concrete parameters, in the user's terms, or `None`."""

    def momentum(self, t: Scalar, state: State) -> Vector:
        """Generalised momentum `M v`, shape `(n,)`."""
        return matvec(self.mass(t, state.q), state.v)

    def kinetic(self, t: Scalar, state: State) -> Scalar:
        """Kinetic energy `v^T M v / 2` [J]."""
        return jnp.sum(state.v * self.momentum(t, state)) / 2
