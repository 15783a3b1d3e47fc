"""Mechanical systems in generalised coordinates."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import as_float, matvec
from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import AbstractGroup, Euclidean
from ._base import AbstractSystem


class LagrangianSystem(AbstractSystem):
    """`M(q) v' + F_gyr(q, v) + F_int(t, q, v) = F_ext(t) + p`,  `q' = v`, in `R^n` or on a group.

    The total force is `F_ext − F_int − F_gyr − dV/dq`; all Jacobians are derived. On a group the
    velocity is the body velocity, `q' = q v^`, forces are its dual, `dV/dq` is taken along
    `q exp(eta)`, and the inertia terms (gyroscopic torques, for one) are added:

        M v' = ad_v^T (M v) + F_ext(t) − F_int(t, q, v) − F_gyr(q, v) − dV/dq

    **Arguments:**

    - `mass`: array `(n, n)`, or a function `mass(q) -> (n, n)`, symmetric positive definite.
    - `f_int`: internal (spring and damper like) force `f_int(t, q, v) -> (n,)`, on the left.
    - `f_ext`: external force `f_ext(t) -> (n,)`, or an array `(n,)`.
    - `f_gyr`: inertia force `f_gyr(q, v) -> (n,)`, on the left.
    - `potential`: potential energy `V(q) -> ()`; its force is `−dV/dq`.
    - `n`: dimension, needed only if `mass` is a function.
    - `group`: configuration group in place of `R^n`, with a constant mass matrix.

    Functions may be `equinox.Module`s: their leaves are parameters.

    **Raises:** `ValueError` if `mass` is a constant that is not square, symmetric and positive
    definite, or a function without `n`, or a group of another dimension.

    Reference: J. Marsden, T. Ratiu, Introduction to mechanics and symmetry (1999), chapter 13,
    doi:10.1007/978-0-387-21792-5.
    """

    mass_matrix: Float[Array, "n n"] | Callable
    f_int: Callable | None
    f_ext: Callable | Float[Array, " n"] | None
    f_gyr: Callable | None
    potential_energy: Callable | None
    n: int = eqx.field(static=True)
    space: AbstractGroup

    def __init__(
        self,
        mass,
        f_int=None,
        f_ext=None,
        f_gyr=None,
        *,
        potential=None,
        n: int | None = None,
        group: AbstractGroup | None = None,
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
        self.space = Euclidean(n) if group is None else group
        if group is not None and (callable(mass) or group.dim != n):
            raise ValueError(
                f"on a group mass must be an array (n, n) with the group's dimension {group.dim}."
            )

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
        return self.space

    def mass(self, t: Scalar, q: Config) -> Matrix:
        del t
        return self.mass_matrix(q) if callable(self.mass_matrix) else self.mass_matrix

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        if callable(self.mass_matrix):
            return self._stated(t, state)
        return self._stated(t, state) + self.inertia_force(t, state)

    def inertia_force(self, t: Scalar, state: State) -> Vector:
        if callable(self.mass_matrix):
            return super().inertia_force(t, state)
        return matvec(self.space.ad(state.v).T, matvec(self.mass_matrix, state.v))

    def kinetic_slope(self, t: Scalar, state: State) -> Vector:
        return (
            super().kinetic_slope(t, state)
            if callable(self.mass_matrix)
            else jnp.zeros_like(state.v)
        )

    def applied(self, t: Scalar, state: State, args: Args) -> Vector:
        del args
        if callable(self.mass_matrix):
            return self._stated(t, state) - self.inertia_force(t, state)
        return self._stated(t, state)

    def _stated(self, t: Scalar, state: State) -> Vector:
        """`F_ext − F_int − F_gyr − dV/dq`, as the user states them."""
        q, v = state.q, state.v
        total = jnp.zeros_like(v)
        if self.f_ext is not None:
            total = total + (self.f_ext(t) if callable(self.f_ext) else self.f_ext)
        if self.f_int is not None:
            total = total - self.f_int(t, q, v)
        if self.f_gyr is not None:
            total = total - self.f_gyr(q, v)
        if self.potential_energy is not None:
            total = total - self._slope(self.potential_energy, q, v)
        return total

    def _slope(self, potential: Callable, q: Config, v: Vector) -> Vector:
        """Derivative of the potential energy along the motions of the group."""
        group = self.space
        return jax.grad(lambda eta: potential(group.compose(q, group.exp(eta))))(jnp.zeros_like(v))

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Potential energy: `V(q)`, and on `R^n` `−F_ext · q` where `F_ext` is a constant."""
        del t
        total = jnp.zeros((), jax.tree.leaves(q)[0].dtype)
        if self.potential_energy is not None:
            total = total + self.potential_energy(q)
        if isinstance(self.space, Euclidean) and isinstance(self.f_ext, jax.Array):
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
