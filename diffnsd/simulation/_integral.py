"""Integrals along a motion, computed as an additional first-order system driven by the motion."""

import math
from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arguments import AbstractChecked
from .._expects import returned
from .._types import Args, Scalar, State
from ..model import Interaction, Model
from ..relations import OnPart
from ..systems import AbstractSystem, FirstOrderSystem, Kind, SystemProduct


class Integral(AbstractChecked):
    """The integral of a function along the motion, from `t0`.

        z(t) = ∫ function(s, state(s), args) ds,      z(t0) = 0

    It is integrated with the motion, as the state of an additional system. So it includes velocity
    jumps inside a step where the integrator locates them. It has the order of the integrator, and its
    derivative is as accurate as that of the states. A sum over saved states has neither.

    **Arguments:** `function(t, state, args)`, which returns a value of any shape. It may be an
    `equinox.Module`, whose leaves are parameters.
    """

    function: Annotated[Callable, "(t, state, args)"]

    def value(self, t: Scalar, state: State, args: Args) -> Array:
        """The function's value; raises if that is not numbers, at least one."""
        name, what = "the function of an Integral", "one real number, or several"
        value = returned(name, self.function(t, state, args), what)
        if not value.size:
            raise ValueError(f"{name} must return {what}; it returned shape {value.shape}.")
        return value


class _Rates(eqx.Module):
    """Coupling of a motion with its integrals."""

    integrals: tuple[Integral, ...]

    def __call__(self, t: Scalar, states: tuple[State, ...], args: Args) -> tuple[Array, Array]:
        motion, z = states
        values = [jnp.ravel(i.value(t, motion, args)) for i in self.integrals]
        return jnp.zeros_like(motion.v), jnp.concatenate(values).astype(z.v.dtype)


def _nothing(t: Scalar, z: Array, args: Args) -> Array:
    del t, args
    return jnp.zeros_like(z)


def _no_energy(z: Array) -> Array:
    return jnp.zeros((), z.dtype)


class Augmented(eqx.Module):
    """A model combined with its integrals, and the inverse split of its states."""

    model: Model
    start: State
    system: SystemProduct
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @staticmethod
    def of(model: Model, integrals: tuple[Integral, ...], t0: Scalar, state0: State, args: Args):
        """The augmented model at the start.

        **Raises:** `ValueError` if an entry is not an `Integral`, or the system has no velocities.
        """
        wrong = next((i for i in integrals if not isinstance(i, Integral)), None)
        if wrong is not None:
            raise ValueError(
                f"integrals must be Integral(function), or a sequence of them, got {wrong!r}."
            )
        own: AbstractSystem = model.system
        if own.kind is Kind.FLOW:
            raise ValueError(
                f"a {type(own).__name__} has no integrals along its motion; add them to its states."
            )
        shapes = tuple(
            jax.eval_shape(lambda i=i: i.value(t0, state0, args)).shape for i in integrals
        )
        count = sum(map(math.prod, shapes))
        sums = FirstOrderSystem(_nothing, n=count, storage=_no_energy)
        system = SystemProduct((own, sums), _Rates(integrals))
        interactions = (
            Interaction(OnPart(system, 0, i.relation), i.law, i.max_active, i.mask)
            for i in model.interactions
        )
        start = system.state(state0, State(None, jnp.zeros(count, state0.v.dtype)))
        return Augmented(Model(system, interactions), start, system, shapes)

    def apart(self, state: State) -> tuple[State, tuple[Array, ...]]:
        """The state of the motion alone, and the integrals; keeps a leading time axis."""
        motion, sums = self.system.split(state)
        z, at, parts = sums.v, 0, []
        for shape in self.shapes:
            size = math.prod(shape)
            parts.append(z[..., at : at + size].reshape((*z.shape[:-1], *shape)))
            at += size
        return motion, tuple(parts)


class OfMotion(eqx.Module):
    """An event condition applied to the motion without its integrals."""

    condition: Callable
    system: SystemProduct

    def __call__(self, t: Scalar, state: State, args: Args) -> Array:
        return self.condition(t, self.system.split(state)[0], args)
