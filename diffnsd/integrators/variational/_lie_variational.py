"""The discrete Euler-Poincaré equations, which on `R^n` are the Störmer-Verlet method."""

from typing import ClassVar

import jax.numpy as jnp

from ..._types import Args, Scalar, State
from ...complementarity import AbstractSolver, Auto
from ...groups import AbstractRetraction, Cayley
from ...systems import AbstractSystem
from .._step import Newton
from ._variational import AbstractVariational, Discretisation, acceleration, displaced


class LieVariational(AbstractVariational):
    """The variational integrator of second order on a group, with forces, joints and contacts.

        L_d(q0, q1) = h/2 (K(q0, x/h) + K(q1, x/h)) − h/2 (V(q0) + V(q1)),    q1 = q0 τ(x)

    With a constant mass matrix these are the discrete Euler-Poincaré equations

        (dτ_x^-1)^T M x/h = μ0 + h/2 F0,    q1 = q0 τ(x),    μ1 = Ad_τ(x)^T (μ0 + h/2 F0) + h/2 F1

    and on `R^n` the Störmer-Verlet method. The momentum is `μ = M v`: the velocity of a state is
    that of the discrete Legendre transform, and the energy is that at the node. Symplectic if the
    forces have a potential; momenta of symmetries are conserved to rounding; the energy stays in a
    band of order `h²` (for a free body and `QuaternionVector` it is conserved to rounding).
    Forces that depend on the velocity enter by the principle of d'Alembert, explicit at the start
    and implicit at the end of a step. Contacts and constraints: RATTLE for `laws.Equality`; any
    other law is first order through impacts.

    **Arguments:**

    - `retraction`: `groups.Cayley()` (cheap, no limit), `groups.Exponential()` (smaller errors,
      rotations below pi in a step) or `groups.QuaternionVector()` (`h |ω| < 2`).
    - `newton`: for the implicit equations; the two passes after the last iteration each square its
      change, so 1e-5 ends at rounding. `solver`: of the laws.

    A step that leaves the chart ends with the result `chart_exceeded`.

    Reference: N. Bou-Rabee, J. Marsden, Hamilton-Pontryagin integrators on Lie groups (2009),
    doi:10.1007/s10208-008-9030-4; J. Marsden, M. West (2001), doi:10.1017/S096249290100006X.
    """

    retraction: AbstractRetraction = Cayley()
    newton: Newton = Newton(max_iterations=20, tolerance=1e-5)
    solver: AbstractSolver = Auto()

    order: ClassVar[int] = 2

    def discretise(
        self, system: AbstractSystem, t0: Scalar, h: Scalar, state: State, args: Args
    ) -> Discretisation:
        group, t1 = system.group, t0 + h
        force0 = system.applied(t0, state, args)

        def pushed(xi):
            q1 = displaced(self, system, state.q, h * xi)
            first = system.momentum(t0, State(state.q, xi))
            last = system.momentum(t1, State(q1, xi))
            return self.retraction.cotangent_inverse(group, h * xi, (first + last) / 2)

        def impulse(t, q, xi, applied):
            return h / 2 * (applied + system.kinetic_slope(t, State(q, xi)))

        def start(xi):
            return impulse(t0, state.q, xi, force0)

        def end(xi, state1):
            return impulse(t1, state1.q, xi, system.applied(t1, state1, args))

        guess = state.v + h / 2 * acceleration(system, t0, state, args)
        return Discretisation(lambda xi: jnp.zeros_like(xi[:0]), pushed, start, end, guess)
