"""Sliding mode control: relays in the loop, discretised with or without chattering."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import Numbers
from .._jax import eval_now, is_traced
from .._numerics import as_float, hold, lu_solve, matvec
from .._result import RESULTS
from .._types import Scalar, Vector
from ..complementarity import ComplementarityProblem, solve_complementarity
from ..laws import Relay
from ._base import AbstractController, Memory


def _relays(held: Array, free: Array, bound: Array) -> tuple[Array, RESULTS]:
    """Solves `z ∈ −bound Sgn(held z + free)`, elementwise in `Sgn`; also returns the solver result."""
    if free.shape[0] == 1:
        # A single relay is a projection and needs no iterations to compile.
        z = jnp.clip(-free / held[0], -bound, bound)
        fine = jnp.all(jnp.isfinite(z))
        return z, RESULTS.where(fine, RESULTS.successful, RESULTS.nonfinite_problem)
    laws = ((Relay(-bound, bound), (free.shape[0], 1)),)
    problem = ComplementarityProblem(held, free, laws)
    solution = solve_complementarity(problem, throw=False)
    return solution.z, solution.result


class _AbstractSurfaceMode(AbstractController):
    """A controller for the nominal plant `x' = a x + b u` with the sliding variable `sigma = c x`.

    `gain`: the bound of its action.
    """

    a: Float[Array, "n n"]
    b: Float[Array, "n p"]
    c: Float[Array, "p n"]
    gain: Array

    def __init__(self, A: Numbers, B: Numbers, C: Numbers, gain: Numbers = 1.0):
        self.a, self.b, self.c = (eval_now(as_float, x) for x in (A, B, C))
        self.gain = as_float(gain)
        n, p = self.b.shape if self.b.ndim == 2 else (-1, -1)
        if self.a.shape != (n, n) or self.c.shape != (p, n):
            raise ValueError(
                f"A, B and C must have shapes (n, n), (n, p) and (p, n), got {self.a.shape}, "
                f"{self.b.shape} and {self.c.shape}."
            )
        product = self.c @ self.b
        if is_traced(product):
            return
        least = float(np.min(np.linalg.eigvalsh(np.asarray(product + product.T)))) / 2
        if least <= 0:
            raise ValueError(
                f"C B must be positive definite (smallest eigenvalue of its symmetric part "
                f"{least:.3g}): the control has to act on sigma = C x at once; change the sign of C, "
                "or use Twisting for relative degree 2."
            )

    def equivalent(self, x: Array) -> Array:
        """The control that keeps `sigma` constant without disturbance: `−(C B)^-1 C A x`."""
        return -lu_solve(self.c @ self.b, matvec(self.c, matvec(self.a, x)))

    def sigma(self, x: Array) -> Array:
        """The sliding variable `C x`."""
        return matvec(self.c, x)


class ImplicitSlidingMode(_AbstractSurfaceMode):
    """Sliding mode control by one implicit Euler step of the nominal plant, without chattering.

        u = u_eq + u_s,     sigma⁺ = sigma + T C B u_s,     u_s ∈ −gain Sgn(sigma⁺)

    with `sigma = C x`, the equivalent control `u_eq = −(C B)^-1 C A x` and the sampling period `T`.
    If the surface is within reach, `u_s` brings `sigma⁺` exactly to zero.

    **Arguments:** `A`, `B`, `C`: `(n, n)`, `(n, p)`, `(p, n)`, `C B` positive definite; `gain`:
    bound of every `|u_s|`, shape `()` or `(p,)`. The measurement is the state `x`.

    **Raises:** `ValueError` for shapes that do not match, and if `C B` is not positive definite.

    Reference: V. Acary, B. Brogliato, Y. Orlov, Chattering-free digital sliding-mode control with
    state observer and disturbance rejection (2012), doi:10.1109/TAC.2011.2174676.
    """

    def init(self, t: Scalar, y: Vector) -> Memory:
        del t, y
        return RESULTS.successful

    def result(self, memory: Memory) -> RESULTS:
        return memory

    def __call__(
        self, t: Scalar, y: Vector, memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        del t, memory
        moved, result = _relays(period * self.c @ self.b, self.sigma(y), self.gain)
        return self.equivalent(y) + moved, result


class _Prediction(eqx.Module):
    """The predicted `sigma` at the next sample, and the result of the last solve."""

    sigma: Vector
    result: RESULTS


class _AbstractPredictingMode(_AbstractSurfaceMode):
    """A controller that compares each sample with its prediction."""

    def init(self, t: Scalar, y: Vector) -> Memory:
        del t
        return _Prediction(self.sigma(y), RESULTS.successful)

    def result(self, memory: Memory) -> RESULTS:
        return memory.result


class ImprovedSlidingMode(_AbstractPredictingMode):
    """`ImplicitSlidingMode` that compensates the disturbance of the last sampling period.

        d = sigma − (what the nominal plant was to reach),     u_p = −(T C B)^-1 d
        u = u_eq + u_s + u_p,     sigma⁺ = sigma + T C B u_s,     u_s ∈ −gain Sgn(sigma⁺)

    A smooth disturbance is rejected to second order in `T`, without `u_p` only to first order.
    `gain` bounds `u_s` alone: it must cover the change of the disturbance within a period.

    **Arguments:** and **Raises:** as in `ImplicitSlidingMode`.

    Reference: V. Acary, B. Brogliato, Y. Orlov, Chattering-free digital sliding-mode control with
    state observer and disturbance rejection (2012), doi:10.1109/TAC.2011.2174676.
    """

    def __call__(
        self, t: Scalar, y: Vector, memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        del t
        sigma, held = self.sigma(y), period * self.c @ self.b
        against = -lu_solve(held, sigma - memory.sigma)
        moved, result = _relays(held, sigma, self.gain)
        expected = sigma + matvec(held, moved + against)
        return self.equivalent(y) + moved + against, _Prediction(expected, result)


class SlidingModeOT2(_AbstractPredictingMode):
    """Sliding mode control of the exactly sampled plant, with a boundary layer of order `T²`.

        x⁺ = Phi x + Gamma u + d,     sigma⁺ = C x⁺,     u ∈ −gain Sgn(sigma⁺)

    with `Phi = exp(T A)`, `Gamma = ∫_0^T exp(s A) ds B`, and the disturbance `d` of the last sampling
    period. If the surface is within reach, `u` is the deadbeat control, without discretisation error
    in `T A`; `gain` bounds the whole of `u`.

    **Arguments:** and **Raises:** as in `ImplicitSlidingMode`; `gain` bounds every `|u|`.

    Reference: W.-C. Su, S. Drakunov, Ü. Özgüner, An O(T²) boundary layer in sliding mode for
    sampled-data systems (2000), doi:10.1109/9.847728.
    """

    def __call__(
        self, t: Scalar, y: Vector, memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        del t
        held = hold(self.a, period)
        gained = self.c @ held @ self.b
        free = self.sigma(y + matvec(held, matvec(self.a, y)))
        u, result = _relays(gained, free + self.sigma(y) - memory.sigma, self.gain)
        return u, _Prediction(free + matvec(gained, u), result)


class ExplicitSlidingMode(_AbstractSurfaceMode):
    """Sliding mode control by the sign of the measured sliding variable; it chatters.

        u = u_eq − gain sgn(sigma),     sigma = C x

    The textbook law, for comparison with `ImplicitSlidingMode`. Its chattering amplitude stays of
    order `gain T`, and its derivative with respect to the state is that of `u_eq` alone.

    **Arguments:** and **Raises:** as in `ImplicitSlidingMode`.

    Reference: V. Utkin, Sliding modes in control and optimization (1992),
    doi:10.1007/978-3-642-84379-2.
    """

    def __call__(
        self, t: Scalar, y: Vector, memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        del t, period
        return self.equivalent(y) - self.gain * jnp.sign(self.sigma(y)), memory


class _AbstractTwisting(AbstractController):
    gain: Array = eqx.field(converter=as_float)
    ratio: Array = eqx.field(converter=as_float, default=0.5)


class Twisting(_AbstractTwisting):
    """The twisting algorithm for `sigma'' = u + disturbance`, discretised implicitly.

        u = −gain (s1 + ratio s2),     s1 ∈ Sgn(sigma⁺),   s2 ∈ Sgn(sigma'⁺)
        sigma⁺ = sigma + T sigma' + T² u / 2,     sigma'⁺ = sigma' + T u

    The measurement is `(sigma, sigma')`, shape `(2,)`; the control is `u`, shape `(1,)`.

    **Arguments:** `gain`: larger than any disturbance divided by `1 − ratio`; `ratio`: in (0, 1).

    Reference: O. Huber, V. Acary, B. Brogliato, F. Plestan, Implicit discrete-time twisting
    controller without numerical chattering (2016), doi:10.1016/j.conengprac.2015.10.013.
    """

    def init(self, t: Scalar, y: Vector) -> Memory:
        del t, y
        return RESULTS.successful

    def result(self, memory: Memory) -> RESULTS:
        return memory

    def __call__(
        self, t: Scalar, y: Vector, memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        del t, memory
        held = jnp.stack([period * period / 2, period])
        weights = self.gain * jnp.stack([jnp.ones_like(self.ratio), self.ratio])
        free = jnp.stack([y[0] + period * y[1], y[1]])
        z, result = _relays(held[:, None] * weights[None], free, jnp.ones_like(free))
        return jnp.sum(weights * z)[None], result


class ExplicitTwisting(_AbstractTwisting):
    """The twisting algorithm by the signs of the measurements; it chatters.

        u = −gain (sgn(sigma) + ratio sgn(sigma'))

    For comparison with `Twisting`. Its only nonzero derivative is with respect to the gain.

    **Arguments:** as in `Twisting`.

    Reference: A. Levant, Sliding order and sliding accuracy in sliding mode control (1993),
    doi:10.1080/00207179308923053.
    """

    def __call__(
        self, t: Scalar, y: Vector, memory: Memory, period: Scalar
    ) -> tuple[Array, Memory]:
        del t, period
        return (-self.gain * (jnp.sign(y[0]) + self.ratio * jnp.sign(y[1])))[None], memory
