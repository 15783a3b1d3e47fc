"""Laplace's approximation, the No-U-Turn sampler and an ensemble of walkers."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..._arguments import AbstractChecked
from ..._optional import require
from ...rollout import rollout


class Draws(eqx.Module):
    """What a sampler returns.

    **Arguments:**

    - `x`: raw numbers, `(chains, draws, p)`.
    - `log_density`: of the target at each of them, up to a constant, `(chains, draws)`.
    - `divergences`: number of trajectories that left the region where their step is accurate.
    - `acceptance`: mean probability of acceptance, 1 for independent draws.
    - `evaluations`: number of evaluations of the log-density, with or without its gradient.
    """

    x: Float[Array, "c d p"]
    log_density: Float[Array, "c d"]
    divergences: Array
    acceptance: Array
    evaluations: Array


class AbstractSampler(AbstractChecked):
    """A way to draw from a posterior.

    `correlated`: whether its draws follow from each other; `uses_curvature`: whether it needs the
    mode and the Hessian there; `least_acceptance`: below it, moves are accepted too seldom.
    """

    correlated: ClassVar[bool] = True
    uses_curvature: ClassVar[bool] = True
    least_acceptance: ClassVar[float] = 0.0

    @abstractmethod
    def __call__(
        self,
        target: Callable,
        mode: Float[Array, " p"],
        root: Float[Array, "p p"],
        key: PRNGKeyArray,
    ) -> Draws:
        """Draws from `exp(target(x))`; near `mode` its covariance is about `root root^T`."""

    def diagnose(self, samples: Float[np.ndarray, "c d k"]) -> tuple[np.ndarray, np.ndarray]:
        """Split R-hat and effective number of draws, `(k,)` each."""
        return _diagnose(samples, samples)


class Laplace(AbstractSampler):
    """The normal distribution with mode and curvature of the posterior, in raw coordinates.

        x ~ N(x*, (-d^2 log p / dx^2)^-1)

    Exact for linear models with normal noise; the first choice where evaluations are dear. The
    log-density is evaluated at all draws, which tells how good the approximation is: the warnings
    of the posterior say so where it is not.

    **Arguments:** `draws`: number of independent draws, 200 by default.

    Reference: L. Tierney, J. B. Kadane (1986), doi:10.1080/01621459.1986.10478240.
    """

    draws: int = 200
    correlated: ClassVar[bool] = False

    def __check_init__(self):
        _at_least(draws=(self.draws, 10))

    def __call__(self, target, mode, root, key):
        z = jax.random.normal(key, (self.draws, mode.size), mode.dtype)
        x = mode[None] + z @ root.T
        one, zero = jnp.ones((), mode.dtype), jnp.zeros((), int)
        count = jnp.asarray(self.draws)
        return Draws(x[None], rollout(target, x)[None], zero, one, count)

    def diagnose(self, samples):
        k = samples.shape[-1]
        return np.ones(k), np.full(k, float(self.draws))


class NUTS(AbstractSampler):
    """The No-U-Turn sampler of `blackjax`, on the gradient of the log-likelihood.

    Chains start at draws of Laplace's approximation, whose covariance is their metric, so that only
    the step size needs to be adapted. The samples are right even if the gradient is not, as in a
    simulation by plain time stepping through impacts: a false gradient only costs acceptance.
    `Located`, `Corrected` and `EventDriven` have the true one.

    **Arguments:**

    - `chains`: independent chains, 4 by default; they run on all cores.
    - `draws`: kept per chain, 500 by default.
    - `warmup`: steps before them in which the step size is adapted, 200 by default.
    - `target_acceptance`: 0.8 by default; larger values make smaller steps and fewer divergences.
    - `max_doublings`: a trajectory has at most `2**max_doublings` steps; 8 by default.

    **Raises:** `ValueError` for numbers out of range; `ImportError` without `blackjax`
    (`pip install "diffnsd[posterior]"`).

    Reference: M. D. Hoffman, A. Gelman, "The No-U-Turn Sampler", JMLR 15 (2014).
    """

    chains: int = 4
    draws: int = 500
    warmup: int = 200
    target_acceptance: float = 0.8
    max_doublings: int = 8
    least_acceptance: ClassVar[float] = 0.5

    def __check_init__(self):
        _at_least(
            chains=(self.chains, 2),
            draws=(self.draws, 10),
            warmup=(self.warmup, 10),
            max_doublings=(self.max_doublings, 1),
        )
        if not 0 < self.target_acceptance < 1:
            raise ValueError(f"target_acceptance is in (0, 1), got {self.target_acceptance}.")

    def __call__(self, target, mode, root, key):
        starts, keys = jax.random.split(key)
        z = jax.random.normal(starts, (self.chains, mode.size), mode.dtype)
        chain = _Chain(target, mode, root, self)
        with lenient():
            z, log, *info = rollout(chain, (z, jax.random.split(keys, self.chains)))
        diverged, accepted, evaluated = info
        x = mode[None, None] + z @ root.T
        return Draws(x, log, jnp.sum(diverged), jnp.mean(accepted), jnp.sum(evaluated))


class _Chain(eqx.Module):
    """One chain of `NUTS` in the coordinates `z`, `x = mode + root z`."""

    target: Callable
    mode: Float[Array, " p"]
    root: Float[Array, "p p"]
    plan: NUTS

    def density(self, z):
        return self.target(self.mode + self.root @ z)

    def __call__(self, start):
        nuts = require("blackjax.mcmc.nuts", "sampling", "posterior")
        adaptation = require("blackjax.adaptation.step_size", "sampling", "posterior")
        begin, adapt, end = adaptation.dual_averaging_adaptation(self.plan.target_acceptance)
        (z, key), kernel, unit = start, nuts.build_kernel(), jnp.ones_like(self.mode)

        # One loop for warm-up and draws, so that the trajectory is compiled once.
        def step(carry, i):
            state, sizes = carry
            warming = i < self.plan.warmup
            size = jnp.where(warming, jnp.exp(sizes.log_step_size), end(sizes)).astype(z.dtype)
            here = jax.random.fold_in(key, i), state, self.density, size, unit
            new, info = kernel(*here, self.plan.max_doublings)
            moved = adapt(sizes, info.acceptance_rate)
            sizes = jax.tree.map(lambda a, b: jnp.where(warming, a, b), moved, sizes)
            outcome = info.is_divergent, info.acceptance_rate, info.num_integration_steps
            return (new, sizes), (new.position, new.logdensity, *outcome)

        steps = jnp.arange(self.plan.warmup + self.plan.draws)
        first = nuts.init(z, self.density), begin(jnp.asarray(0.5, z.dtype))
        _, (*kept, evaluated) = jax.lax.scan(step, first, steps)
        return *(a[self.plan.warmup :] for a in kept), jnp.sum(evaluated)


@contextlib.contextmanager
def lenient():
    """JAX's defaults of promotion, for code of others while a user has stricter ones."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Ensemble(AbstractSampler):
    """Walkers that stretch towards and away from each other: no derivatives.

    A walker `x` moves to `y + s (x - y)` with another walker `y` and a random factor `s`, and is
    accepted with the probability `min(1, s^(p-1) exp(log p' - log p))`. The method does not depend
    on a linear change of coordinates. For likelihoods that are rough, as where impacts come in
    another order, and for at most about ten parameters.

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
        _at_least(
            ensembles=(self.ensembles, 2),
            walkers=(self.walkers, 4),
            draws=(self.draws, 10),
            warmup=(self.warmup, 0),
        )
        if self.walkers % 2:
            raise ValueError(f"the number of walkers must be even, got {self.walkers}.")
        if not self.stretch > 1:
            raise ValueError(f"stretch must be above 1, got {self.stretch}.")

    def __call__(self, target, mode, root, key):
        p = mode.size
        if self.walkers < 2 * p + 2:
            raise ValueError(
                f"{self.walkers} walkers are too few for {p} numbers: Ensemble(walkers={2 * p + 2})."
            )
        keys = jax.random.split(key, self.ensembles)
        x, log, rates = rollout(_Walkers(target, mode, root, self), keys)
        # Of an ensemble each walker is a chain.
        x = jnp.moveaxis(x, 2, 1).reshape(-1, self.draws, p)
        log = jnp.moveaxis(log, 2, 1).reshape(-1, self.draws)
        count = self.ensembles * self.walkers * (self.warmup + self.draws + 1)
        return Draws(x, log, jnp.zeros((), int), jnp.nanmean(rates), jnp.asarray(count))

    def diagnose(self, samples):
        # Walkers wander slowly, an ensemble as a whole does not: R-hat compares the ensembles.
        together = samples.reshape(self.ensembles, self.walkers, self.draws, -1)
        together = np.moveaxis(together, 2, 1).reshape(self.ensembles, -1, samples.shape[-1])
        return _diagnose(together, samples)


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

    def __call__(self, key):
        half = self.plan.walkers // 2
        begin, key = jax.random.split(key)
        z = jax.random.normal(begin, (2, half, self.mode.size), self.mode.dtype)
        x = self.mode[None, None] + z @ self.root.T

        # A half of a sweep, so that the density is compiled once: then the halves change places.
        def turn(carry, key):
            (moving, others), (log, other_log) = carry
            moving, log, rate = self.move(moving, log, others, key)
            return ((others, moving), (other_log, log)), (moving, log, rate)

        steps = 2 * (self.plan.warmup + self.plan.draws)
        logs = jax.lax.map(jax.vmap(self.target), x)
        keys = jax.random.split(key, steps)
        _, kept = jax.lax.scan(turn, ((x[0], x[1]), (logs[0], logs[1])), keys)
        x, log, rates = (a[2 * self.plan.warmup :] for a in kept)
        shape = self.plan.draws, self.plan.walkers
        return x.reshape(*shape, -1), log.reshape(shape), rates


def _diagnose(chains, walks) -> tuple[np.ndarray, np.ndarray]:
    """R-hat of `chains` and effective draws of `walks`, both `(c, d, k)`."""
    diagnostics = require("blackjax.diagnostics", "diagnostics of chains", "posterior")
    k = chains.shape[-1]
    with lenient():
        found = diagnostics.rhat(jnp.asarray(chains)), diagnostics.ess_bulk(jnp.asarray(walks))
    return np.asarray(found[0]).reshape(k), np.asarray(found[1]).reshape(k)


def _at_least(**numbers: tuple[int, int]) -> None:
    for name, (number, least) in numbers.items():
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}.")
