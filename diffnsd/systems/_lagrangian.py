"""Mechanical systems in generalised coordinates."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import as_float
from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import AbstractGroup, Euclidean
from ._base import AbstractSystem


class LagrangianSystem(AbstractSystem):
    """`M(q) v' + F_gyr(q, v) + F_int(t, q, v) = F_ext(t) + p`,  `q' = v`, in `R^n`.

    The total force is `F_ext − F_int − F_gyr − dV/dq`; all Jacobians are derived.

    **Arguments:**

    - `mass`: array `(n, n)`, or a function `mass(q) -> (n, n)`, symmetric positive definite.
    - `f_int`: internal (spring and damper like) force `f_int(t, q, v) -> (n,)`, on the left.
    - `f_ext`: external force `f_ext(t) -> (n,)`, or an array `(n,)`.
    - `f_gyr`: inertia force `f_gyr(q, v) -> (n,)`, on the left.
    - `potential`: potential energy `V(q) -> ()`; its force is `−dV/dq`.
    - `n`: dimension, needed only if `mass` is a function.

    Functions may be `equinox.Module`s: their leaves are parameters.

    **Raises:** `ValueError` if `mass` is a constant that is not square, symmetric and positive
    definite, or a function without `n`.
    """

    mass_matrix: Float[Array, "n n"] | Callable
    f_int: Callable | None
    f_ext: Callable | Float[Array, " n"] | None
    f_gyr: Callable | None
    potential_energy: Callable | None
    n: int = eqx.field(static=True)

    def __init__(
        self, mass, f_int=None, f_ext=None, f_gyr=None, *, potential=None, n: int | None = None
    ):
        if callable(mass):
            if n is None:
                raise ValueError("mass is a function: give the dimension, for example n=2.")
        else:
            mass = as_float(mass)
            if mass.ndim != 2 or mass.shape[0] != mass.shape[1]:
                raise ValueError(f"mass must have shape (n, n), got {mass.shape}.")
            n = mass.shape[0]
        self.mass_matrix = mass
        self.f_int = f_int
        precision = float if callable(mass) else mass.dtype
        constant = f_ext is not None and not callable(f_ext)
        self.f_ext = as_float(f_ext, precision) if constant else f_ext
        self.f_gyr = f_gyr
        self.potential_energy = potential
        self.n = n

    @staticmethod
    def from_lagrangian(lagrangian: Callable, n: int, forcing: Callable | None = None):
        """A system from its Lagrangian `L(q, v) -> ()`; everything is derived.

        `M = d²L/dv²`, `F = dL/dq − (d²L/dv dq) v + forcing(t, q, v)`.

        **Arguments:** `lagrangian`: kinetic minus potential energy [J]; `n`: dimension;
        `forcing`: generalised force `(t, q, v) -> (n,)`.
        """
        return LagrangianSystem(
            _LagrangianMass(lagrangian),
            f_int=None if forcing is None else _Negated(forcing),
            f_gyr=_LagrangianGyroscopic(lagrangian),
            potential=_LagrangianPotential(lagrangian),
            n=n,
        )

    @property
    def group(self) -> AbstractGroup:
        return Euclidean(self.n)

    def mass(self, t: Scalar, q: Config) -> Matrix:
        del t
        return self.mass_matrix(q) if callable(self.mass_matrix) else self.mass_matrix

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        del args
        q, v = state.q, state.v
        total = jnp.zeros_like(v)
        if self.f_ext is not None:
            total = total + (self.f_ext(t) if callable(self.f_ext) else self.f_ext)
        if self.f_int is not None:
            total = total - self.f_int(t, q, v)
        if self.f_gyr is not None:
            total = total - self.f_gyr(q, v)
        if self.potential_energy is not None:
            total = total - jax.grad(self.potential_energy)(q)
        return total

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Potential energy: `V(q)`, and `−F_ext · q` where `F_ext` is a constant."""
        del t
        total = jnp.zeros_like(q[0])
        if self.potential_energy is not None:
            total = total + self.potential_energy(q)
        if self.f_ext is not None and not callable(self.f_ext):
            total = total - jnp.sum(self.f_ext * q)
        return total

    def check(self) -> str | None:
        if callable(self.mass_matrix):
            return None
        mass = np.asarray(self.mass_matrix)
        return positive_definite("the mass matrix", mass)


def positive_definite(name: str, matrix: np.ndarray) -> str | None:
    """A sentence if a concrete matrix is not symmetric positive definite, else `None`."""
    if not np.all(np.isfinite(matrix)):
        return f"{name} has entries that are not finite"
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-12 * max(np.max(np.abs(matrix)), 1.0)):
        return f"{name} is not symmetric"
    smallest = float(np.min(np.linalg.eigvalsh(matrix))) if matrix.size else 1.0
    if smallest <= 0:
        return f"{name} is not positive definite (smallest eigenvalue {smallest:.3g})"
    return None


class _Negated(eqx.Module):
    function: Callable

    def __call__(self, t, q, v):
        return -self.function(t, q, v)


class _LagrangianMass(eqx.Module):
    lagrangian: Callable

    def __call__(self, q):
        return jax.hessian(self.lagrangian, argnums=1)(q, jnp.zeros_like(q))


class _LagrangianGyroscopic(eqx.Module):
    """`(d²L/dv dq) v − d(L − L(q, 0))/dq`: what is left of the inertia terms."""

    lagrangian: Callable

    def __call__(self, q, v):
        momentum = jax.grad(self.lagrangian, argnums=1)
        _, transport = jax.jvp(lambda x: momentum(x, v), (q,), (v,))
        kinetic = jax.grad(lambda x: self.lagrangian(x, v) - self.lagrangian(x, jnp.zeros_like(v)))
        return transport - kinetic(q)


class _LagrangianPotential(eqx.Module):
    lagrangian: Callable

    def __call__(self, q):
        return -self.lagrangian(q, jnp.zeros_like(q))
