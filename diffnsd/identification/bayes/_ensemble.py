"""Walkers that need no derivatives."""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...rollout import rollout
from ._samplers import AbstractChains, AbstractSampler, Draws, at_least, diagnose


class Ensemble(AbstractSampler):
    """Walkers that stretch towards and away from each other: no derivatives.

    A walker `x` moves to `y + s (x - y)` with another walker `y` and a random factor `s`, and is
    accepted with the probability `min(1, s^(p-1) exp(log p' - log p))`. The method does not depend
    on a linear change of coordinates. For likelihoods that are rough, as where impacts come in
    another order, and for at most about ten parameters. All walkers begin close around the start and hardly
    ever cross into another valley: look for those by `several_starts`.

    **Arguments:**

    - `ensembles`: independent groups of walkers, 2 by default; they run on all cores.
    - `walkers`: of each, an even number, at least `2 p + 2`; 24 by default. Half of them move
      together.
    - `draws`: kept sweeps, 300 by default.
    - `warmup`: sweeps before, 200 by default.
    - `stretch`: the factors lie between `1/stretch` and `stretch`; 2 by default.

    **Raises:** `ValueError` for numbers out of range.

    Reference: J. Goodman, J. Weare, "Ensemble samplers with affine invariance" (2010),
    doi:10.2140/camcos.2010.5.65.
    """

    ensembles: int = 2
    walkers: int = 24
    draws: int = 300
    warmup: int = 200
    stretch: float = 2.0
    uses_curvature: ClassVar[bool] = False
    least_acceptance: ClassVar[float] = 0.15

    def __check_init__(self):
        at_least(
            ensembles=(self.ensembles, 2),
            walkers=(self.walkers, 4),
            draws=(self.draws, 10),
            warmup=(self.warmup, 0),
        )
        if self.walkers % 2:
            raise ValueError(f"the number of walkers must be even, got {self.walkers}.")
        if not self.stretch > 1:
            raise ValueError(f"stretch must be above 1, got {self.stretch}.")

    def prepare(self, target, modes, roots, shares, key):
        mode, root = modes[0], roots[0]
        p = mode.size
        if self.walkers < 2 * p + 2:
            raise ValueError(
                f"{self.walkers} walkers are too few for {p} numbers: Ensemble(walkers={2 * p + 2})."
            )
        walkers = _Walkers(target, mode, root, self)
        return _Ensembles(walkers, jax.random.split(key, self.ensembles))

    def diagnose(self, samples):
        # Walkers wander slowly, an ensemble as a whole does not: R-hat compares the ensembles.
        together = samples.reshape(self.ensembles, self.walkers, self.draws, -1)
        together = np.moveaxis(together, 2, 1).reshape(self.ensembles, -1, samples.shape[-1])
        return diagnose(together, samples)


class _Walkers(eqx.Module):
    """One ensemble: two halves that move in turn, each with partners in the other."""

    target: Callable
    mode: Float[Array, " p"]
    root: Float[Array, "p p"]
    plan: Ensemble

    def move(self, moving, log, others, key):
        half, p = moving.shape
        pick, factor, accept = jax.random.split(key, 3)
        partner = others[jax.random.randint(pick, (half,), 0, half)]
        a = self.plan.stretch
        s = ((a - 1) * jax.random.uniform(factor, (half,), moving.dtype) + 1) ** 2 / a
        proposed = partner + s[:, None] * (moving - partner)
        new = jax.vmap(self.target)(proposed)
        gain = (p - 1) * jnp.log(s) + new - log
        # Between two points of density zero the gain is no number, and the walker stays.
        taken = jnp.log(jax.random.uniform(accept, (half,), moving.dtype)) < gain
        x = jnp.where(taken[:, None], proposed, moving)
        return x, jnp.where(taken, new, log), jnp.mean(jnp.minimum(1.0, jnp.exp(gain)))

    def begin(self, key):
        half = self.plan.walkers // 2
        z = jax.random.normal(jax.random.split(key)[0], (2, half, self.mode.size), self.mode.dtype)
        x = self.mode[None, None] + z @ self.root.T
        logs = jax.lax.map(jax.vmap(self.target), x)
        return (x[0], x[1]), (logs[0], logs[1])

    # A half of a sweep, so that the density is compiled once: then the halves change places.
    def turn(self, carry, key):
        (moving, others), (log, other_log) = carry
        moving, log, rate = self.move(moving, log, others, key)
        return ((others, moving), (other_log, log)), (moving, log, rate)


class _Sweeps(eqx.Module):
    """`count` sweeps of an ensemble after the first `first`."""

    walkers: _Walkers
    first: Array
    count: int = eqx.field(static=True)

    def __call__(self, start):
        carry, key = start
        plan = self.walkers.plan
        keys = jax.random.split(jax.random.split(key)[1], 2 * (plan.warmup + plan.draws))
        turns = keys[2 * self.first + jnp.arange(2 * self.count)]
        return jax.lax.scan(lambda carry, key: self.walkers.turn(carry, key), carry, turns)


class _Ensembles(AbstractChains):
    """Independent ensembles, each with its random numbers."""

    walkers: _Walkers
    keys: PRNGKeyArray

    @property
    def steps(self):
        return self.walkers.plan.warmup + self.walkers.plan.draws

    def begin(self):
        return rollout(self.walkers.begin, self.keys)

    def advance(self, carry, first, count):
        return rollout(_Sweeps(self.walkers, first, count), (carry, self.keys))

    def finish(self, found):
        plan, p = self.walkers.plan, self.walkers.mode.size
        x, log, rates = (a[:, 2 * plan.warmup :] for a in found)
        shape = len(x), plan.draws, plan.walkers
        # Of an ensemble each walker is a chain.
        x = jnp.moveaxis(x.reshape(*shape, p), 2, 1).reshape(-1, plan.draws, p)
        log = jnp.moveaxis(log.reshape(shape), 2, 1).reshape(-1, plan.draws)
        count = len(self.keys) * plan.walkers * (self.steps + 1)
        return Draws(x, log, jnp.zeros((), int), jnp.nanmean(rates), jnp.asarray(count))
