"""Sliding modes: relays in the loop, discretised with or without chattering."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import as_float, lu_solve, matvec
from .._types import Scalar, eagerly, is_hidden
from ..complementarity import ComplementarityProblem, solve_complementarity
from ..laws import Relay
from ._base import AbstractController, Memory


class _Surface(eqx.Module):
    """The nominal plant `x' = A x + B u` and the sliding variable `sigma = C x`."""

    a: Float[Array, "n n"]
    b: Float[Array, "n p"]
    c: Float[Array, "p n"]

    def __init__(self, A, B, C):
        self.a, self.b, self.c = (eagerly(as_float, x) for x in (A, B, C))
        n, p = self.b.shape if self.b.ndim == 2 else (-1, -1)
        if self.a.shape != (n, n) or self.c.shape != (p, n):
            raise ValueError(
                f"A, B and C must have shapes (n, n), (n, p) and (p, n), got {self.a.shape}, "
                f"{self.b.shape} and {self.c.shape}."
            )
        product = self.c @ self.b
        if is_hidden(product):
            return
        least = float(np.min(np.linalg.eigvalsh(np.asarray(product + product.T)))) / 2
        if least <= 0:
            raise ValueError(
                f"C B must be positive definite (smallest eigenvalue of its symmetric part "
                f"{least:.3g}): the control has to act on sigma = C x at once; change the sign of C, "
                "or use Twisting for relative degree 2."
            )

    def equivalent(self, x: Array) -> Array:
        """The control that keeps `sigma` without disturbance: `−(C B)^-1 C A x`."""
        return -lu_solve(self.c @ self.b, matvec(self.c, matvec(self.a, x)))


class ImplicitSlidingMode(AbstractController):
    """Sliding mode control by one implicit Euler step of the nominal plant: without chattering.

        u = u_eq + u_s,     sigma⁺ = sigma + T C B u_s,     u_s ∈ −gain Sgn(sigma⁺)

    with `sigma = C x`, the equivalent control `u_eq = −(C B)^-1 C A x` and the sampling period `T`.
    Within reach of the surface `u_s` brings `sigma⁺` to zero exactly.

    **Arguments:** `A`, `B`, `C`: `(n, n)`, `(n, p)`, `(p, n)`, `C B` positive definite; `gain`:
    bound of every `|u_s|`, shape `()` or `(p,)`. It measures the state `x`.

    **Raises:** `ValueError` on shapes that do not fit, and if `C B` is not positive definite.

    Reference: V. Acary, B. Brogliato, Y. Orlov, Chattering-free digital sliding-mode control with
    state observer and disturbance rejection (2012), doi:10.1109/TAC.2011.2174676.
    """

    surface: _Surface
    gain: Array

    def __init__(self, A, B, C, gain=1.0):
        self.surface = _Surface(A, B, C)
        self.gain = as_float(gain)

    def init(self, t: Scalar, y: Float[Array, " m"]) -> Memory:
        del t, y
        return ()

    def __call__(
        self, t: Scalar, y: Float[Array, " m"], memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        del t
        plant = self.surface
        laws = ((Relay(-self.gain, self.gain), (plant.c.shape[0], 1)),)
        problem = ComplementarityProblem(period * plant.c @ plant.b, matvec(plant.c, y), laws)
        return plant.equivalent(y) + solve_complementarity(problem, throw=False).z, memory


class ExplicitSlidingMode(AbstractController):
    """Sliding mode control by the sign of the measured sliding variable: it chatters.

        u = u_eq − gain sgn(sigma),     sigma = C x

    The textbook law, for comparison with `ImplicitSlidingMode`: its amplitude stays of the order of
    `gain T`, and its derivative by the state is that of `u_eq` alone.

    **Arguments:** and what is raised as in `ImplicitSlidingMode`.

    Reference: V. Utkin, Sliding modes in control and optimization (1992),
    doi:10.1007/978-3-642-84379-2.
    """

    surface: _Surface
    gain: Array

    def __init__(self, A, B, C, gain=1.0):
        self.surface = _Surface(A, B, C)
        self.gain = as_float(gain)

    def init(self, t: Scalar, y: Float[Array, " m"]) -> Memory:
        del t, y
        return ()

    def __call__(
        self, t: Scalar, y: Float[Array, " m"], memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        del t, period
        plant = self.surface
        return plant.equivalent(y) - self.gain * jnp.sign(matvec(plant.c, y)), memory


class Twisting(AbstractController):
    """The twisting algorithm for `sigma'' = u + disturbance`, discretised implicitly.

        u = −gain (s1 + ratio s2),     s1 ∈ Sgn(sigma⁺),   s2 ∈ Sgn(sigma'⁺)
        sigma⁺ = sigma + T sigma' + T² u / 2,     sigma'⁺ = sigma' + T u

    It measures `(sigma, sigma')`, shape `(2,)`, and gives `u`, shape `(1,)`.

    **Arguments:** `gain`: larger than any disturbance divided by `1 − ratio`; `ratio`: in (0, 1).

    Reference: O. Huber, V. Acary, B. Brogliato, F. Plestan, Implicit discrete-time twisting
    controller without numerical chattering (2016), doi:10.1016/j.conengprac.2015.10.013.
    """

    gain: Array = eqx.field(converter=as_float)
    ratio: Array = eqx.field(converter=as_float, default=0.5)

    def init(self, t: Scalar, y: Float[Array, " m"]) -> Memory:
        del t, y
        return ()

    def __call__(
        self, t: Scalar, y: Float[Array, " m"], memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        del t
        held = jnp.stack([period * period / 2, period])
        weights = self.gain * jnp.stack([jnp.ones_like(self.ratio), self.ratio])
        free = jnp.stack([y[0] + period * y[1], y[1]])
        problem = ComplementarityProblem(held[:, None] * weights[None], free, ((Relay(), (2, 1)),))
        z = solve_complementarity(problem, throw=False).z
        return jnp.sum(weights * z)[None], memory
