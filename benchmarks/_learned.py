"""Friction and restitution as functions of a speed, inside a contact law, and their training."""

import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

import diffnsd as nsd
from diffnsd import identification

KNOTS = 0.05, 0.15, 0.4, 0.8, 1.4
"""Speeds about which a curve may change at the start of the training [m/s]."""
WIDTH = 0.5
"""Standard deviation of the change of a curve where nothing is known, on the logistic scale."""
GRID = np.linspace(0.0, 3.0, 61)
"""Speeds at which curves are drawn to their constants, and shown [m/s]."""


class Unit(eqx.Module):
    """`height tanh(slope x + place)`; its numbers are scalars, as parameters of a law are."""

    height: Array
    slope: Array
    place: Array

    def __call__(self, x: Array) -> Array:
        return self.height * jnp.tanh(self.slope * x + self.place)


class Curve(eqx.Module):
    """A function of a speed [m/s] between 0 and 1: a constant, and a network of one hidden layer beside it.

    Both on the logistic scale. The network is zero at the start of a training.
    """

    level: Array
    units: tuple[Unit, ...]

    @staticmethod
    def constant(value) -> "Curve":
        level = np.clip(float(value), 1e-3, 1 - 1e-3)
        numbers = [(0.0, 1 / knot, -1.0) for knot in KNOTS]
        units = tuple(Unit(*(jnp.asarray(x, float) for x in row)) for row in numbers)
        return Curve(jnp.asarray(np.log(level / (1 - level))), units)

    def change(self, speed: Array) -> Array:
        return sum((unit(speed) for unit in self.units), jnp.zeros_like(speed))

    def __call__(self, speed: Array) -> Array:
        return jax.nn.sigmoid(self.level + self.change(speed))

    def unlikely(self) -> Array:
        """Minus the logarithm of the prior of the network: a change by `WIDTH` everywhere costs a half."""
        return jnp.mean((self.change(jnp.asarray(GRID)) / WIDTH) ** 2) / 2


class LawOfSpeed(nsd.laws.AbstractLaw):
    """Coulomb's law whose friction depends on the slip speed and whose restitution on the approach speed.

    Both are speeds at the start of a step. `mu` is the friction of a step, set by `in_step`.
    """

    friction: Curve
    restitution: Curve
    e_t: Array
    mu: Array

    least_rows = 2
    is_unilateral = True
    slides = True

    def _coulomb(self):
        return nsd.CoulombFriction(self.mu)

    def in_step(self, context):
        slip = jnp.sqrt(jnp.sum(context.u_minus[1:] ** 2, axis=0) + 1e-12)
        return eqx.tree_at(lambda law: law.mu, self, self.friction(slip))

    def set(self):
        return self._coulomb().set()

    def shift(self, context):
        before = context.u_minus
        e = self.restitution(jnp.maximum(-before[0], 0.0))
        return jnp.stack([e * before[0], *(self.e_t * row for row in before[1:])])

    def lift(self, w):
        return self._coulomb().lift(w)

    def lift_gradient(self, w):
        return self._coulomb().lift_gradient(w)


def law_of_speed(friction: Curve, restitution: Curve, e_t=0.0) -> LawOfSpeed:
    """The law; the friction of a step is set in the step."""
    return LawOfSpeed(friction, restitution, jnp.asarray(e_t, float), jnp.zeros(()))


def trained(
    loss: Callable[[PyTree], Array], start: PyTree, steps: int, rate: float
) -> tuple[PyTree, identification.FitResult, float]:
    """The best iterate of Adam with a falling rate, the fit, and processor seconds."""
    begin = time.process_time()
    optimizer = optax.adam(optax.exponential_decay(rate, steps, 0.05))
    fit = identification.fit(loss, start, optimizer, max_steps=steps, patience=steps, throw=False)
    return fit.params, fit, time.process_time() - begin
