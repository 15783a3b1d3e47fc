"""Mechanical systems in generalised coordinates."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import Numbers, checked_arguments
from .._expects import returned
from .._jax import concrete, eval_now, is_traced
from .._numerics import as_float, matvec
from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import AbstractGroup, Euclidean
from ._base import AbstractSystem, positive_definite, shaped
from ._euler_lagrange import EulerLagrangeSystem


class LagrangianSystem(AbstractSystem):
    """`M(q) v' + F_gyr(q, v) + F_int(t, q, v) = F_ext(t) + F(t, state, args) + p`,  `q' = v`.

    In `R^n` or on a group. The total force is `F_ext + F − F_int − F_gyr − dV/dq`; all Jacobians
    are derived. On a group the velocity is the body velocity, `q' = q v^`, forces are dual to it,
    `dV/dq` is taken along `q exp(eta)`, and the inertia terms (gyroscopic torques) are added:

        M v' = ad_v^T (M v) + F_ext(t) + F − F_int(t, q, v) − F_gyr(q, v) − dV/dq

    **Arguments:**

    - `mass_matrix`: array `(n, n)`, or a function `mass_matrix(q) -> (n, n)`, symmetric positive definite.
    - `f_int`: internal (spring- and damper-like) force `f_int(t, q, v) -> (n,)`, on the left.
    - `f_ext`: external force `f_ext(t) -> (n,)`, or an array `(n,)`.
    - `f_gyr`: inertia force `f_gyr(q, v) -> (n,)`, on the left.
    - `forcing`: force `F`, `forcing(t, state, args) -> (n,)`, on the right; `args` are the
      exogenous inputs passed to `simulate`.
    - `potential_energy`: `V(q) -> ()`; its force is `−dV/dq`.
    - `n`: dimension, at least 1, needed only if `mass_matrix` is a function.
    - `space`: configuration group in place of `R^n`, with a constant mass matrix.

    Functions may be `equinox.Module`s: their leaves are parameters.

    **Raises:** `ValueError` if a constant `mass_matrix` is not square, symmetric and positive definite,
    if `mass_matrix` is a function and `n` is missing, if `n` contradicts it or is less than 1, if a constant
    `f_ext` does not have the shape `(n,)`, or if the group has another dimension. In a simulation, before
    it is compiled, if a function returns another shape, or the mass matrix is not symmetric positive
    definite at the initial state.

    Reference: J. Marsden, T. Ratiu, Introduction to mechanics and symmetry (1999), chapter 13,
    doi:10.1007/978-0-387-21792-5.
    """

    mass_matrix: Float[Array, "n n"] | Annotated[Callable, "(q)"]
    f_int: Annotated[Callable, "(t, q, v)"] | None
    f_ext: Annotated[Callable, "(t)"] | Float[Array, " n"] | None
    f_gyr: Annotated[Callable, "(q, v)"] | None
    forcing: Annotated[Callable, "(t, state, args)"] | None
    potential_energy: Annotated[Callable, "(q)"] | None
    n: int = eqx.field(static=True)
    space: AbstractGroup

    def __init__(
        self,
        mass_matrix,
        f_int=None,
        f_ext=None,
        f_gyr=None,
        *,
        forcing=None,
        potential_energy=None,
        n: int | None = None,
        space: AbstractGroup | None = None,
    ):
        mass = mass_matrix
        if n is None and callable(mass):
            raise ValueError("mass_matrix is a function: give the dimension, for example n=2.")
        dtype = float
        if not callable(mass):
            mass = eval_now(as_float, mass)
            if mass.ndim != 2 or mass.shape[0] != mass.shape[1]:
                raise ValueError(f"mass_matrix must have shape (n, n), got {mass.shape}.")
            if n not in (None, mass.shape[0]):
                raise ValueError(f"n={n}, but mass_matrix has shape {mass.shape}: leave n out.")
            n, dtype = int(mass.shape[0]), mass.dtype
        assert n is not None
        if n < 1:
            raise ValueError(
                f"a system has a coordinate at least: n or mass_matrix is of size {n}."
            )
        if f_ext is not None and not callable(f_ext):
            f_ext = shaped("f_ext", f_ext, (n,), dtype)
        self.mass_matrix = mass
        self.f_int = f_int
        self.f_ext = f_ext
        self.f_gyr = f_gyr
        self.forcing = forcing
        self.potential_energy = potential_energy
        self.n = n
        self.space = Euclidean(n) if space is None else space
        if space is not None and (callable(mass) or space.dim != n):
            raise ValueError(
                f"on a group mass_matrix must be an array (n, n) with the group's dimension {space.dim}."
            )
        if problem := self.check():
            raise ValueError(f"{problem}.")

    @staticmethod
    def from_lagrangian(
        lagrangian: Callable, forcing: Callable | None = None, *, n: int
    ) -> EulerLagrangeSystem:
        """A system derived from its Lagrangian `L(q, v) -> ()`.

        `M = d²L/dv²`, `F = dL/dq − (d²L/dv dq) v + forcing(t, state, args)`.

        **Arguments:** `lagrangian`: kinetic minus potential energy [J]; `forcing`: generalised
        force `(t, state, args) -> (n,)`, `args` as given to `simulate`; `n`: dimension.
        """
        return EulerLagrangeSystem(lagrangian, forcing, n)

    @staticmethod
    @checked_arguments
    def linear(
        mass: Numbers, damping: Numbers = None, stiffness: Numbers = None, f_ext=None, **others
    ) -> "LagrangianSystem":
        """A linear time-invariant system `M v' + C v + K q = F_ext`.

        **Arguments:** `mass`, `damping`, `stiffness`: `M`, `C`, `K`, shape `(n, n)`, or `(n,)` for
        diagonal matrices (modal coordinates). `C` and `K` may be `None`; `K` must be symmetric, and
        the potential energy is `q · K q/2`. `f_ext` and `others` as in `LagrangianSystem`.

        **Raises:** `ValueError` if shapes do not match or `K` is not symmetric.
        """
        mass = eval_now(lambda m: _matrix(as_float(m)), mass)
        given = [None if x is None else as_float(x, mass.dtype) for x in (damping, stiffness)]
        for name, matrix in zip(("damping", "stiffness"), given, strict=True):
            if matrix is not None and matrix.shape not in (mass.shape, mass.shape[:1]):
                raise ValueError(
                    f"{name} must have shape {mass.shape} or {mass.shape[:1]}, as mass, "
                    f"got {matrix.shape}."
                )
        c, k = given
        known = concrete(k)
        if k is not None and not is_traced(known) and not np.allclose(known, np.transpose(known)):
            raise ValueError(
                "stiffness is not symmetric, so there is no potential energy; give the circulatory "
                "force as f_int of a LagrangianSystem."
            )
        damper = None if c is None else _LinearForce(c)
        energy = None if k is None else _QuadraticForm(k)
        return LagrangianSystem(mass, damper, f_ext, potential_energy=energy, **others)

    @property
    def group(self) -> AbstractGroup:
        return self.space

    def mass(self, t: Scalar, q: Config) -> Matrix:
        del t
        if callable(self.mass_matrix):
            return shaped("mass_matrix(q)", self.mass_matrix(q), (self.n, self.n), q.dtype)
        return self.mass_matrix

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        if callable(self.mass_matrix):
            return self._stated(t, state, args)
        return self._stated(t, state, args) + self.inertia_force(t, state)

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
        if callable(self.mass_matrix):
            return self._stated(t, state, args) - self.inertia_force(t, state)
        return self._stated(t, state, args)

    def _stated(self, t: Scalar, state: State, args: Args) -> Vector:
        """`F_ext + F − F_int − F_gyr − dV/dq`, as given by the user."""
        q, v = state.q, state.v
        total = jnp.zeros_like(v)

        def sized(name, value):
            return shaped(name, value, (self.n,), v.dtype)

        if self.f_ext is not None:
            total = total + sized("f_ext", self.f_ext(t) if callable(self.f_ext) else self.f_ext)
        if self.f_int is not None:
            total = total - sized("f_int(t, q, v)", self.f_int(t, q, v))
        if self.f_gyr is not None:
            total = total - sized("f_gyr(q, v)", self.f_gyr(q, v))
        if self.forcing is not None:
            total = total + sized("forcing(t, state, args)", self.forcing(t, state, args))
        if self.potential_energy is not None:
            total = total - self._slope(self.potential_energy, q, v)
        return total

    def _slope(self, potential: Callable, q: Config, v: Vector) -> Vector:
        """Derivative of the potential energy along the motions of the group."""
        group = self.space

        def along(eta):
            return _energy(potential, group.compose(q, group.exp(eta)))

        return jax.grad(along)(jnp.zeros_like(v))

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Potential energy: `V(q)`, and on `R^n` also `−F_ext · q` if `F_ext` is a constant."""
        del t
        total = jnp.zeros((), jax.tree.leaves(q)[0].dtype)
        if self.potential_energy is not None:
            total = total + _energy(self.potential_energy, q)
        if isinstance(self.space, Euclidean) and isinstance(self.f_ext, jax.Array):
            total = total - jnp.sum(self.f_ext * q)
        return total

    def check(self, q: Config | None = None) -> str | None:
        if not callable(self.mass_matrix):
            return positive_definite("the mass matrix", concrete(self.mass_matrix))
        if q is None or is_traced(q):
            return None
        mass = concrete(self.mass(jnp.zeros((), q.dtype), q))
        return positive_definite("the mass matrix at the initial configuration", mass)


def _energy(potential: Callable, q: Config) -> Scalar:
    return returned("potential_energy(q)", potential(q), "one real number", shape=(), smooth=True)


class _LinearForce(eqx.Module):
    """The force `C v`; a one-dimensional array stands for a diagonal matrix."""

    damping: Array

    def __call__(self, t: Scalar, q: Config, v: Vector) -> Vector:
        del t, q
        return _times(self.damping, v)


class _QuadraticForm(eqx.Module):
    """The energy `q · K q/2`, likewise."""

    stiffness: Array

    def __call__(self, q: Config) -> Scalar:
        return jnp.sum(q * _times(self.stiffness, q)) / 2


def _times(matrix: Array, x: Array) -> Array:
    return matrix * x if matrix.ndim == 1 else matvec(matrix, x)


MOST_DENSE = 20_000
"""Order of a matrix above which it is refused: 3 GB in double precision."""


def _matrix(x: Array) -> Array:
    if x.ndim == 1 and x.size > MOST_DENSE:
        raise ValueError(
            f"mass has {x.size} entries, and its matrix is stored: at most {MOST_DENSE}. Larger systems are "
            "SpringChain and Elastic."
        )
    return jnp.diag(x) if x.ndim == 1 else x
