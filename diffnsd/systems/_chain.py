"""Masses in a line, with springs between neighbours."""

import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from .._arguments import Numbers
from .._numerics import as_float
from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import Euclidean
from ._base import AbstractSystem


class SpringChain(AbstractSystem):
    """`n` masses on a line, each connected to its neighbours and to the ground.

        m_i v_i' + c_i v_(i+1)' + c_(i−1) v_(i−1)' = f_i + N_i − N_(i−1) − g_i q_i
        N_i = k_i (d + a d³) + b_i d',      d = q_(i+1) − q_i

    Displacements `q` [m]; any number of masses: matrices are tridiagonal and never formed. With the coupled
    masses of linear finite elements it is an elastic bar, see `bar`.

    **Arguments:**

    - `masses`: `m` [kg], shape `(n,)`. `coupling`: `c` [kg], `(n − 1,)`, default zero.
    - `stiffness`: `k` [N/m], `(n − 1,)`. `damping`: `b` [N s/m], likewise, default zero.
    - `ground`: `g` [N/m], `(n,)`, default zero. `load`: `f` [N], `(n,)`, default zero.
    - `hardening`: `a` [1/m²]; `None`, the default, for a linear chain.

    **Raises:** `ValueError` if shapes do not match.
    """

    masses: Float[Array, " n"]
    stiffness: Float[Array, " s"]
    coupling: Float[Array, " s"]
    damping: Float[Array, " s"]
    ground: Float[Array, " n"]
    load: Float[Array, " n"]
    hardening: Float[Array, ""] | None

    def __init__(
        self,
        masses,
        stiffness,
        *,
        coupling: Numbers = 0.0,
        damping: Numbers = 0.0,
        ground: Numbers = 0.0,
        load: Numbers = 0.0,
        hardening=None,
    ):
        self.masses = as_float(masses)
        if self.masses.ndim != 1 or len(self.masses) < 2:
            raise ValueError(
                f"masses must have shape (n,) with at least two of them, got {self.masses.shape}."
            )
        n, dtype = len(self.masses), self.masses.dtype

        def each(name, value, count) -> Array:
            value = as_float(value, dtype)
            if value.shape not in ((), (count,)):
                raise ValueError(f"{name} must have shape ({count},), got {value.shape}.")
            return jnp.broadcast_to(value, (count,))

        self.stiffness = each("stiffness", stiffness, n - 1)
        self.coupling = each("coupling", coupling, n - 1)
        self.damping = each("damping", damping, n - 1)
        self.ground = each("ground", ground, n)
        self.load = each("load", load, n)
        self.hardening = None if hardening is None else as_float(hardening, dtype)

    @staticmethod
    def bar(elements: int, length=1.0, young=210e9, section=3.14e-4, density=7800.0):
        """A bar of equal linear finite elements with consistent masses.

        **Arguments:** `elements`: their number; `length` [m]; `young` [Pa]; `section` [m²]; `density`
        [kg/m³].
        """
        length, young, section, density = map(as_float, (length, young, section, density))
        each = length / elements
        mass = density * section * each
        inner = jnp.ones(elements + 1, mass.dtype).at[jnp.array([0, -1])].set(0.5)
        stiffness = jnp.full(elements, young * section / each)
        return SpringChain(2 * mass / 3 * inner, stiffness, coupling=mass / 6)

    @property
    def group(self) -> Euclidean:
        return Euclidean(self.masses.shape[0])

    def mass(self, t: Scalar, q: Config) -> Matrix:
        return self._inertia().as_matrix()

    def _inertia(self) -> lx.TridiagonalLinearOperator:
        return lx.TridiagonalLinearOperator(self.masses, self.coupling, self.coupling)

    def momentum(self, t: Scalar, state: State) -> Vector:
        return _product(self.masses, self.coupling, state.v)

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        d, rate = state.q[1:] - state.q[:-1], state.v[1:] - state.v[:-1]
        tension = self.stiffness * self._strained(d) + self.damping * rate
        return (
            self.load - self.ground * state.q + jnp.pad(tension, (0, 1)) - jnp.pad(tension, (1, 0))
        )

    def _strained(self, d: Array) -> Array:
        return d if self.hardening is None else d + self.hardening * d**3

    def inertia_force(self, t: Scalar, state: State) -> Vector:
        return jnp.zeros_like(state.v)

    def kinetic_slope(self, t: Scalar, state: State) -> Vector:
        return jnp.zeros_like(state.v)

    def potential(self, t: Scalar, q: Config) -> Scalar:
        d = q[1:] - q[:-1]
        quartic = 0 if self.hardening is None else self.hardening * d**4 / 4
        springs = self.stiffness * (d**2 / 2 + quartic)
        return jnp.sum(springs) + jnp.sum(self.ground * q**2 / 2 - self.load * q)

    def step_operator(
        self, t: Scalar, state: State, args: Args, a: Scalar, b: Scalar
    ) -> lx.TridiagonalLinearOperator:
        d = state.q[1:] - state.q[:-1]
        tangent = 1 if self.hardening is None else 1 + 3 * self.hardening * d**2
        slope = b * self.stiffness * tangent + a * self.damping
        beside = self.coupling - slope
        own = self.masses + b * self.ground + jnp.pad(slope, (0, 1)) + jnp.pad(slope, (1, 0))
        return lx.TridiagonalLinearOperator(own, beside, beside)

    def check(self, q: Config | None = None) -> str | None:
        return None


def _product(own: Array, beside: Array, x: Array) -> Array:
    """The product with a symmetric tridiagonal matrix."""
    return own * x + jnp.pad(beside * x[1:], (0, 1)) + jnp.pad(beside * x[:-1], (1, 0))
