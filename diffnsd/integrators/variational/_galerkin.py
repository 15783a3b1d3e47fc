"""Galerkin variational integrators of any order, on `R^n` and on groups."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._types import Args, Scalar, State
from ...complementarity import AbstractSolver, Auto
from ...groups import AbstractRetraction, Cayley
from ...systems import AbstractSystem
from .._step import Newton
from ._quadrature import Quadrature, basis, gauss
from ._variational import AbstractVariational, Discretisation, acceleration


class Galerkin(AbstractVariational):
    """The variational integrator of order `2 s` with polynomials of degree `s`.

    Curves `q(t) = q0 τ(x(t))` with `x(t) = sum_μ φ_μ(t/h) X^μ` and `X^0 = 0` make the action

        A(X) = h sum_i w_i L(q(c_i h), v_i),      v_i = dτ_{−x_i} x'_i

    stationary; forces without a potential enter by the principle of d'Alembert at the same nodes.
    With `X^s` the displacement of the step, `Θ^μ = ∂A/∂X^μ` and `ν` the derivative of `A` with
    respect to the start (zero without forces), both with the work of the forces,

        Θ^μ = 0 (μ < s),    (dτ_{X^s}^-1)^T Θ^s = μ0 + ν,    μ1 = Ad_τ(X^s)^T (μ0 + ν)

    On `R^n`, `s = 1` is the implicit midpoint rule, Gauss quadrature with `s` points is Gauss
    collocation, Lobatto quadrature with `s + 1` points the pair Lobatto IIIA-IIIB, which for `s = 1`
    is the Störmer-Verlet method. State, momentum, symmetries, contacts and constraints are as in
    `LieVariational`.

    **Arguments:**

    - `stages`: degree `s`. `quadrature`: default `gauss(stages)`; the order is the smaller of
      `2 s` and the quadrature's.
    - `retraction`: the chart of a step, default `groups.Cayley()`; the order does not depend on it.
      With `groups.Exponential()` a step costs several times as much and compiles more slowly; errors
      of long steps are smaller (energy of a free body, `s = 4`, `h |ω| = 0.45`: 5e-12 and 6e-11).
    - `newton`, `solver`: as in `LieVariational`.

    Reference: J. Hall, M. Leok, Lie group spectral variational integrators (2017),
    doi:10.1007/s10208-015-9287-3; E. Hairer, C. Lubich, G. Wanner, Geometric numerical integration
    (2006), VI.6, doi:10.1007/3-540-30666-8.
    """

    stages: int = eqx.field(static=True)
    quadrature: Quadrature = None  # pyright: ignore[reportAssignmentType]
    retraction: AbstractRetraction = Cayley()
    newton: Newton = Newton(max_iterations=20, tolerance=1e-5)
    solver: AbstractSolver = Auto()

    def __post_init__(self):
        if self.stages < 1:
            raise ValueError(f"stages must be at least 1, got {self.stages}.")
        if self.quadrature is None:
            self.quadrature = gauss(self.stages)
        if len(self.quadrature.nodes) < self.stages:
            raise ValueError(
                f"{len(self.quadrature.nodes)} quadrature nodes do not see {self.stages} stages: give at "
                f"least {self.stages}, for example gauss({self.stages})."
            )

    @property
    def order(self) -> int:
        return min(2 * self.stages, self.quadrature.order)

    def discretise(
        self, system: AbstractSystem, t0: Scalar, h: Scalar, state: State, args: Args
    ) -> Discretisation:
        n, group, tau = state.v.shape[0], system.group, self.retraction
        dtype = state.v.dtype
        points, values, slopes = basis(self.stages, self.quadrature.nodes)
        nodes = t0 + h * jnp.asarray(self.quadrature.nodes, dtype)
        weights = jnp.asarray(self.quadrature.weights, dtype)[:, None]
        values, slopes = jnp.asarray(values, dtype), jnp.asarray(slopes, dtype)

        def node(t, x, rate):
            """Derivatives of `L` with respect to `rate`, `x` and the start, forces included."""
            q = group.compose(state.q, tau.map(group, x))
            v, pull = jax.vjp(lambda x, rate: tau.left_tangent(group, x, rate), x, rate)
            at = State(q, v)
            force = system.applied(t, at, args) + system.kinetic_slope(t, at)
            from_x, from_rate = pull(system.momentum(t, at))
            _, from_force = pull(force)
            return from_rate, from_x + from_force, group.coAd(tau.map(group, -x), force)

        def at_nodes(z):
            z = z.reshape(self.stages, n)
            return jax.vmap(node)(nodes, h * (values @ z), slopes @ z)

        def covectors(z) -> Float[Array, "s n"]:
            """`Θ^μ`."""
            from_rate, from_x, _ = at_nodes(z)
            return slopes.T @ (weights * from_rate) + h * (values.T @ (weights * from_x))

        def inner(z):
            return covectors(z)[:-1].reshape(-1)

        def pushed(z):
            return tau.cotangent_inverse(group, h * z[-n:], covectors(z)[-1])

        def start(z):
            return h * jnp.sum(weights * at_nodes(z)[2], axis=0)

        def end(z, state1):
            return jnp.zeros_like(state1.v)

        fractions = jnp.asarray(points, dtype)[:, None]
        change = h / 2 * acceleration(system, t0, state, args)
        mean = state.v[None] + fractions * change[None]
        return Discretisation(inner, pushed, start, end, (fractions * mean).reshape(-1))
