"""Steps whose length is chosen by an estimate of their error."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._jax import bounded_while, where, with_value, without_derivative
from .._numerics import max_abs
from .._result import RESULTS, failed, first_error
from .._types import Args, Scalar, State
from ..model import Model
from ._base import AbstractIntegrator, Carry, StepInfo, first_times
from ._impact import normal_motion
from ._wrapped import AbstractWrappedIntegrator, difference, restart_problem

ROOM = 16
"""How many times more impacts than in a step of the inner method are kept of a grid step."""

UNSEEN = 64.0
"""Speeds below so many square roots of the rounding unit, relative to velocities, are rest."""


class Adaptive(AbstractWrappedIntegrator):
    """Steps of variable length inside every grid step, chosen by an estimate of their error.

    Between `t0` and `t0 + h` the method takes as many steps as the tolerance requires, at least one. A step
    is repeated with a shorter length where its error is too large, where it fails, and where `inner` did not
    locate impacts in it, so that under `Located` steps are short where impacts crowd. A rebound that
    `Located` takes for none, at the end of a bounce sequence, counts as an error in the velocity, and so
    does the speed at which a contact sinks in unseen, if they are above 1e-6 (0.02 in float32) of the
    velocities: such sequences are followed down to the tolerance, but never below that. Differentiable in
    forward and reverse mode (the chosen step lengths are held constant). Where contacts let go or begin to
    slip, derivatives have only first order: `Located` finds that from steps of equal length.

    The estimate is that of the embedded pair of an explicit tableau, if `inner` has one; of other methods
    two halves of a step are made besides it, and kept, and the estimate is

        |halves − whole| / (2^p − 1),     p the order of `inner`.

    `Solution.stats.iterations` counts the steps that were tried, and the iterations of solvers in those that
    were kept; of the times of impacts the first 16 times `max_impacts` of a grid step are kept.

    **Arguments:** `inner`: a method whose steps can be split and repeated, for example
    `RKMK(diffrax.Tsit5())`, `Located(MoreauJean())` or `Located(EulerMoreau())`; `tolerance`: largest error
    estimate of a step, in the algebra's coordinates [m, rad] and in velocities [m/s, rad/s]; `max_steps`:
    most steps, rejected ones included, in one grid step.

    **Raises:** `ValueError` if `max_steps` is less than 1; in a simulation, before it is compiled, if steps
    of `inner` cannot be repeated, or contacts of the model may strike and `inner` does not locate impacts,
    whose values then depend on where steps end.

    Reference: E. Hairer, S. Norsett, G. Wanner, Solving Ordinary Differential Equations I (1993),
    section II.4, doi:10.1007/978-3-540-78862-1.
    """

    inner: AbstractIntegrator
    tolerance: float = 1e-8
    max_steps: int = eqx.field(default=256, static=True)

    is_symplectic: ClassVar[bool] = False

    def __check_init__(self):
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}.")

    @property
    def off_centre(self) -> None:
        """`None`: what weights other than 1/2 lose is in the estimate of the error."""

    def supports(self, model: Model) -> str | None:
        if problem := restart_problem(self, self.inner) or self.inner.supports(model):
            return problem
        strikes = any(
            i.relation.needs_positions and not (i.law.never_opens or i.relation.is_compliant)
            for i in model.interactions
        )
        if strikes and not self.inner.keeps_impact_times:
            return (
                f"the impacts of {type(self.inner).__name__} happen at the ends of its steps, so that no "
                "length of them reaches a tolerance; use Adaptive(Located(...))"
            )
        return None

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        # Chosen once, see `bounded_while`, and made again for the derivative, where one is asked for. A force
        # may close over numbers of the derivative, which `without_derivative` does not see.
        given = model, t0, h, state, carry, args
        chosen = jax.lax.stop_gradient(self._chosen(*without_derivative(given)))
        ends = chosen.ends

        def made(run: _Run) -> _Run:
            before = jnp.where(run.count > 0, ends[run.count - 1], 0)
            begin, part = t0 + before * h, (ends[run.count] - before) * h
            return run.then(self.inner.step(model, begin, part, run.state, run.carry, args))

        start = self._start(*given)
        again = bounded_while(lambda run: run.count < chosen.run.count, made, start, len(ends))
        end = jax.tree.map(_attached, again, chosen.run)
        info = dataclasses.replace(end.info, iterations=end.info.iterations + chosen.tried)
        late = RESULTS.where(ends[-1] < 1, RESULTS.too_many_steps, RESULTS.successful)
        return end.state, info, end.carry, first_error(chosen.why, late)

    def _start(self, model, t0, h, state, carry, args) -> "_Run":
        step = jax.eval_shape(lambda: self.inner.step(model, t0, h, state, carry, args))
        info = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), step[1]).nothing()
        info = dataclasses.replace(info, impacts=jnp.tile(info.impacts, ROOM))
        return _Run(state, carry, info, RESULTS.successful, jnp.zeros((), jnp.int32))

    def _tried(self, model, t0, h, run: "_Run", args, least: Scalar) -> tuple["_Run", Scalar]:
        """After one more step, and the estimate of its error; `least`: a speed that is rest."""
        if self.inner.estimates_errors:
            outcome, error = self.inner.estimated(model, t0, h, run.state, run.carry, args)
            return run.then(outcome), error

        def part(k, pair):
            """The whole step, its first half, its second half: one program for the three."""
            latest, whole = pair
            source = where(k == 2, latest, run)
            begin = t0 + jnp.where(k == 2, h / 2, 0)
            length = jnp.where(k == 0, h, h / 2)
            given = model, begin, length, source.state, source.carry, args
            new = source.then(self.inner.step(*given))
            return new, where(k == 0, new.state, whole)

        halves, whole = jax.lax.fori_loop(0, 3, part, (run, run.state))
        error = max_abs(difference(model.system.group, whole, halves.state))
        sunk = jnp.zeros_like(h)
        if self.inner.keeps_impact_times:
            sunk = _sunk(model, (t0, run.state), (t0 + h, halves.state))
        now, before = halves.info.dropped, run.info.dropped
        unseen = jnp.maximum(jnp.where(now > before, now, 0), sunk)
        error = error / (2**self.inner.order - 1)
        return halves, jnp.maximum(error, jnp.where(unseen > least, unseen, 0))

    def _chosen(self, model: Model, t0: Scalar, h: Scalar, state: State, carry, args) -> "_Chosen":
        """The steps that the tolerance requires."""
        embedded = self.inner.estimates_errors
        least = UNSEEN * jnp.finfo(h.dtype).eps ** 0.5 * model.system.scales(state)[1]
        exponent = 1.0 / (self.inner.order if embedded else self.inner.order + 1)
        parts = 1 if embedded else 2  # of a step, each a step of `inner`

        def proceed(loop):
            _, fraction, _, tried, _, _ = loop
            return (fraction < 1) & (tried < self.max_steps)

        def body(loop):
            run, fraction, stride, tried, ends, _ = loop
            stop = jnp.where(fraction + stride >= 1, 1.0, fraction + stride)
            new, error = self._tried(
                model, t0 + fraction * h, (stop - fraction) * h, run, args, least
            )
            error = error / self.tolerance
            usable = ~failed(new.result) & jnp.isfinite(error)
            usable &= (new.info.missed == run.info.missed) & (new.info.crept <= least)
            error = jnp.where(usable, error, 1e10)
            accepted = error <= 1
            factor = 0.9 * jnp.maximum(error, 1e-10) ** -exponent
            stride = (stop - fraction) * jnp.clip(factor, 0.2, 5.0)
            for part in range(parts):
                place = jnp.where(accepted, run.count + part, len(ends))
                end = fraction + (stop - fraction) * (part + 1) / parts
                ends = ends.at[place].set(end, mode="drop")
            why = RESULTS.where(accepted, RESULTS.successful, new.result)
            run = where(accepted, new, run)
            return run, jnp.where(accepted, stop, fraction), stride, tried + 1, ends, why

        start = self._start(model, t0, h, state, carry, args)
        none, ends = jnp.zeros((), jnp.int32), jnp.zeros(parts * self.max_steps, h.dtype)
        begin = start, jnp.zeros_like(h), jnp.ones_like(h), none, ends, RESULTS.successful
        run, fraction, _, tried, ends, why = jax.lax.while_loop(proceed, body, begin)
        # In a batch, elements that are done go on in steps of length 0.
        idle = jnp.arange(len(ends), dtype=jnp.int32) >= run.count
        return _Chosen(run, jnp.where(idle, fraction, ends), tried, why)


class _Run(eqx.Module):
    """After some steps of the inner method within a grid step; `count`: their number."""

    state: State
    carry: Carry
    info: StepInfo
    result: RESULTS
    count: Int[Array, ""]

    def then(self, outcome: tuple[State, StepInfo, Carry, RESULTS]) -> "_Run":
        """After one more step."""
        state, later, carry, result = outcome
        impacts = first_times(self.info.impacts, later.impacts)
        info = self.info.then(dataclasses.replace(later, impacts=self.info.impacts))
        info = dataclasses.replace(info, impacts=impacts)
        return _Run(state, carry, info, first_error(self.result, result), self.count + 1)


class _Chosen(eqx.Module):
    """`ends`: where steps of the inner method end, in parts of the grid step, the last end repeated; `tried`:
    steps that were tried; `why`: the result of the last one, if it was rejected.
    """

    run: _Run
    ends: Array
    tried: Int[Array, ""]
    why: RESULTS


def _sunk(model: Model, start: tuple[Scalar, State], end: tuple[Scalar, State]) -> Scalar:
    """The speed at which a contact sinks in, as where an impact was not seen [m/s]."""
    if not (model.interactions and model.system.kind.has_positions):
        return jnp.zeros_like(start[0])
    (before, _), (after, rate) = (normal_motion(model, *point) for point in (start, end))
    sinks = jnp.isfinite(after) & (after < jnp.minimum(before, 0))
    return jnp.max(jnp.where(sinks, -rate, 0), initial=0)


def _attached(x: Array, value: Array) -> Array:
    return with_value(x, value) if jnp.issubdtype(value.dtype, jnp.inexact) else value
