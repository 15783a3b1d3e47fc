"""Elastic impacts inside a variational step."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax import is_traced, without_derivative
from ..._numerics import dot, implicit_root, lu_solve
from ..._result import RESULTS, first_error
from ..._types import Args, Config, Scalar, State
from ...laws import NewtonImpact
from ...model import Model
from ...systems import AbstractSystem
from .._base import Carry, StepInfo
from .._wrapped import AbstractWrappedIntegrator
from ._lie_variational import LieVariational

BISECTIONS = 60
NEWTON_STEPS = 8


class ElasticImpact(AbstractWrappedIntegrator):
    """Frictionless elastic impacts that follow from the discrete action, collision time included.

    A step that would end with a negative gap is cut at the fraction `α` where the gap vanishes, at
    the configuration `q~`. There the momentum jumps along the normal, `p⁺ = p⁻ + λ ∇g`, such that
    the discrete energies of the two parts agree,

        E_d(q0, q~, α h) = E_d(q~, q1, (1 − α) h),      E_d = −∂L_d/∂h

    Second order and slightly better on average, with an error that depends on where in its step
    an impact falls. The energy shows no drift for quadratic potentials; for others it wanders by
    about one collision error per impact, since the argument for a modified energy fails for cut
    steps. At most one impact per step: a second one ends with `nonlinear_not_converged`.

    **Arguments:** `inner`: the variational step. All laws of the model must be `NewtonImpact(1.0)`;
    for restitution and friction use `inner` itself, or locate impacts.

    Reference: R. Fetecau, J. Marsden, M. Ortiz, M. West, Nonsmooth Lagrangian mechanics and
    variational collision integrators (2003), doi:10.1137/S1111111102406038.
    """

    inner: LieVariational = LieVariational()

    order: ClassVar[int] = 2
    is_symplectic: ClassVar[bool] = True
    keeps_impact_times: ClassVar[bool] = True

    def supports(self, model: Model) -> str | None:
        laws = [i.law for i in model.interactions]
        elastic = all(isinstance(x, NewtonImpact) and _is_one(x.e) for x in laws)
        if not laws or not elastic:
            return (
                "ElasticImpact is for contacts with the law NewtonImpact(e=1.0); use its inner "
                "method for restitution, friction and constraints"
            )
        return self.inner.supports(model)

    def step(
        self, model: Model, t0: Scalar, h: Scalar, state: State, carry: Carry, args: Args
    ) -> tuple[State, StepInfo, Carry, RESULTS]:
        free = Model(model.system, ())
        plain, info, _, result = self.inner.step(free, t0, h, state, (), args)
        none = tuple(jnp.zeros_like(x) for x in carry)
        hit = jnp.min(_gaps(model, t0 + h, plain.q)) < 0

        def collide(_):
            return self._collide(model, free, t0, h, state, none, args)

        def go_on(_):
            return plain, none, jnp.full_like(h, jnp.inf), result

        state1, impulses, time, outcome = jax.lax.cond(hit, collide, go_on, None)
        found = {"located": hit.astype(jnp.int32), "impacts": time[None]}
        info = dataclasses.replace(info, impulses=impulses, **found)
        return state1, info, jax.lax.stop_gradient(impulses), outcome

    def _collide(self, model: Model, free: Model, t0, h, state: State, none, args):
        system = model.system

        def until(fraction, start):
            return self.inner.step(free, t0, fraction * h, start, (), args)

        fraction = _first_root(model, t0, h, until, state)
        touching, _, _, result0 = until(fraction, state)
        s = fraction * h
        time = t0 + s
        gaps = _gaps(model, time, touching.q)
        nearest = jnp.arange(gaps.shape[0]) == jnp.argmin(gaps)
        normals = jnp.concatenate(
            [
                i.on(system).linearised(system.group, time, touching.q)[0][0]
                for i in model.interactions
            ],
            axis=1,
        )
        normal = jnp.sum(jnp.where(nearest[None], normals, 0), axis=1)
        compliance = lu_solve(system.mass(time, touching.q), normal)
        before = self._discrete_energy(system, t0, s, state.q, touching.q)

        def after(jump):
            start = State(touching.q, touching.v + jump * compliance)
            end, _, _, result = self.inner.step(free, time, h - s, start, (), args)
            energy = self._discrete_energy(system, time, h - s, touching.q, end.q)
            return energy - before, (end, result)

        def newton(_, jump):
            value, slope, _ = jax.jvp(after, (jump,), (jnp.ones_like(jump),), has_aux=True)
            return jump - value / jnp.where(slope != 0, slope, 1)

        guess = -2 * dot(normal, touching.v) / dot(normal, compliance)
        solved = jax.lax.stop_gradient(jax.lax.fori_loop(0, NEWTON_STEPS, newton, guess))
        jump = implicit_root(lambda jump: after(jump)[0], solved)
        defect, (end, result1) = after(jump)
        second = jnp.min(_gaps(model, t0 + h, end.q)) < 0
        unsolved = jnp.abs(defect) > 1e-3 * jnp.finfo(defect.dtype).eps ** 0.5 * (
            1 + jnp.abs(before)
        )
        failure = RESULTS.where(
            second | unsolved, RESULTS.nonlinear_not_converged, RESULTS.successful
        )
        impulses, first = [], 0
        for part in none:
            chosen = nearest[first : first + part.shape[0]]
            impulses.append(part.at[:, 0].set(jnp.where(chosen, jump, 0)))
            first += part.shape[0]
        return end, tuple(impulses), time, first_error(first_error(result0, result1), failure)

    def _discrete_energy(self, system: AbstractSystem, t0, h, q0: Config, q1: Config) -> Scalar:
        """`−∂L_d/∂h` of the step between two configurations."""
        group = system.group
        x = self.inner.retraction.inverse(group, group.compose(group.inverse(q0), q1))
        xi = x / jnp.where(h != 0, h, 1)
        ends = [
            system.kinetic(t, State(q, xi)) + system.potential(t, q)
            for t, q in ((t0, q0), (t0 + h, q1))
        ]
        return (ends[0] + ends[1]) / 2


def _is_one(e) -> bool:
    return is_traced(e) or bool(np.all(np.asarray(e) == 1))


def _gaps(model: Model, t: Scalar, q: Config):
    gaps = [i.reachable(i.on(model.system).gap(t, q)) for i in model.interactions]
    return jnp.concatenate([gap for gap in gaps if gap is not None])


def _first_root(model: Model, t0, h, until, state: State) -> Scalar:
    """The fraction of the step at which the smallest gap vanishes, with its implicit derivative."""

    def smallest(fraction, start):
        return jnp.min(_gaps(model, t0 + fraction * h, until(fraction, start)[0].q))

    frozen = without_derivative(state)

    def bisect(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        open_still = smallest(middle, frozen) > 0
        return jnp.where(open_still, middle, low), jnp.where(open_still, high, middle)

    one = jnp.ones_like(state.v[0])
    low, high = jax.lax.fori_loop(0, BISECTIONS, bisect, (jnp.zeros_like(one), one))
    return implicit_root(lambda f: smallest(f, state), (low + high) / 2)
