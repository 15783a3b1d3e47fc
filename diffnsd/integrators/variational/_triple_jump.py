"""Composition of steps: two more orders from any self-adjoint method."""

import jax
import jax.numpy as jnp

from ..._result import RESULTS, first_error
from ..._types import Args, Scalar, State
from ...model import Model
from .._base import AbstractIntegrator, Carry, StepInfo


class TripleJump(AbstractIntegrator):
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

    @property
    def is_symplectic(self) -> bool:
        return self.inner.is_symplectic

    def supports(self, model: Model) -> str | None:
        if not all(i.law.holds_gap for i in model.interactions):
            return (
                "the middle step of TripleJump goes backwards in time, where only bilateral "
                "constraints make sense; use its inner method"
            )
        if self.inner.order % 2:
            return f"TripleJump needs a method of even order, the inner one has {self.inner.order}"
        return self.inner.supports(model)

    def init(self, model: Model, t0: Scalar, state: State, args: Args) -> Carry:
        return self.inner.init(model, t0, state, args)

    def step(
        self, model: Model, t0: Scalar, t1: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        outer = 1 / (2 - 2 ** (1 / (self.inner.order + 1)))
        starts = jnp.asarray([0.0, outer, 1 - outer], state.v.dtype)
        ends = jnp.asarray([outer, 1 - outer, 1.0], state.v.dtype)
        h = t1 - t0

        def jump(run, fractions):
            state, carry, result = run
            begin, end = fractions
            state, info, carry, new = self.inner.step(
                model, t0 + begin * h, t0 + end * h, state, carry, args
            )
            return (state, carry, first_error(result, new)), info

        start = state, carry, RESULTS.successful
        (state, carry, result), infos = jax.lax.scan(jump, start, (starts, ends))
        info = StepInfo(
            jax.tree.map(lambda x: jnp.sum(x, axis=0), infos.impulses),
            jnp.max(infos.residual),
            jnp.sum(infos.iterations),
            jnp.min(infos.margin),
            violation=jnp.max(infos.violation),
            solved_by=jnp.max(infos.solved_by),
        )
        return state, info, carry, result
