"""Composition of steps: two more orders from any self-adjoint method."""

import jax
import jax.numpy as jnp

from ..._result import RESULTS, first_error
from ..._types import Args, Scalar, State
from ...model import Model
from .._base import AbstractIntegrator, Carry, StepInfo
from .._wrapped import AbstractWrappedIntegrator, restart_problem


class TripleJump(AbstractWrappedIntegrator):
    """Three steps of a self-adjoint method of even order `p` in place of one: order `p + 2`.

    Steps `γ h, (1 − 2 γ) h, γ h` with `γ = 1/(2 − 2^(1/(p+1)))`. The middle one goes backwards, so
    forces must make sense both ways and contacts must be bilateral. Symplectic if the inner method
    is. The error constant is large; `Galerkin` of the same order costs more and is more accurate.

    **Arguments:** `inner`: for example `LieVariational()`, or another `TripleJump`.

    Reference: H. Yoshida, Construction of higher order symplectic integrators (1990),
    doi:10.1016/0375-9601(90)90092-3.
    """

    inner: AbstractIntegrator

    @property
    def order(self) -> int:
        return self.inner.order + 2

    def supports(self, model: Model) -> str | None:
        if not all(i.law.holds_gap for i in model.interactions):
            return (
                "the middle step of TripleJump goes backwards in time, where only bilateral "
                "constraints make sense; use its inner method"
            )
        if problem := restart_problem(self, self.inner):
            return problem
        if self.inner.keeps_impact_times:
            return (
                f"{type(self.inner).__name__} looks for events forwards in time; use it without "
                "TripleJump"
            )
        if self.inner.order % 2:
            return (
                f"TripleJump needs a method of even order, the inner one has {self.inner.order}; use "
                "LieVariational()"
            )
        return self.inner.supports(model)

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        outer = 1 / (2 - 2 ** (1 / (self.inner.order + 1)))
        starts = jnp.asarray([0.0, outer, 1 - outer], state.v.dtype)
        parts = jnp.asarray([outer, 1 - 2 * outer, outer], state.v.dtype)

        def jump(run, fractions):
            state, carry, result = run
            begin, part = fractions
            state, info, carry, new = self.inner.step(
                model, t0 + begin * h, part * h, state, carry, args
            )
            return (state, carry, first_error(result, new)), info

        start = state, carry, RESULTS.successful
        (state, carry, result), infos = jax.lax.scan(jump, start, (starts, parts))
        first, second, third = (jax.tree.map(lambda x, i=i: x[i], infos) for i in range(3))
        info = first.then(second).then(third)
        return state, info, carry, result
