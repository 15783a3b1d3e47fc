"""The No-U-Turn sampler."""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..._optional import require
from ...rollout import rollout
from ._mode import SHARE
from ._samplers import AbstractChains, AbstractSampler, Draws, at_least, lenient


class NUTS(AbstractSampler):
    """The No-U-Turn sampler of `blackjax`, on the gradient of the log-likelihood.

    Chains start at draws of Laplace's approximation, whose covariance is their metric, so that only
    the step size needs to be adapted. The samples are right even if the gradient is not, as in a
    simulation by plain time stepping through impacts: a false gradient only costs acceptance.
    `Located`, `Corrected` and `EventDriven` have the true one.

    The mode is looked for from several starts, spread between the bounds or around the given one. Where there
    are several with more than 1 % of the posterior, the chains are given out by their shares, at least one to
    each as far as there are chains, and lie in the order of the modes: chains that never cross then disagree
    (R-hat), which a single mode would hide, and a warning names each mode, its share and its chains.

    **Arguments:**

    - `chains`: independent chains, 4 by default; they run on all cores.
    - `draws`: kept per chain, 500 by default.
    - `warmup`: steps before them in which the step size is adapted, 200 by default.
    - `target_acceptance`: 0.8 by default; larger values make smaller steps and fewer divergences.
    - `starts`: from how many starts the mode is looked for, 4 by default.
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
    starts: int = 4
    visits_modes: ClassVar[bool] = True
    least_acceptance: ClassVar[float] = 0.5

    def __check_init__(self):
        at_least(
            chains=(self.chains, 2),
            draws=(self.draws, 10),
            warmup=(self.warmup, 10),
            max_doublings=(self.max_doublings, 1),
            starts=(self.starts, 1),
        )
        if not 0 < self.target_acceptance < 1:
            raise ValueError(f"target_acceptance is in (0, 1), got {self.target_acceptance}.")

    @property
    def searches(self):
        return self.starts

    def chains_at(self, shares):
        if len(shares) == 1:
            return np.array([self.chains])
        # The largest first, and equal ones in their order.
        order = np.argsort(-shares, kind="stable")
        large = order[shares[order] > SHARE][: self.chains]
        counts = np.zeros(len(shares), int)
        counts[large] = 1
        while np.sum(counts) < self.chains:
            counts[large[np.argmax((self.chains * shares - counts)[large])]] += 1
        return counts

    def prepare(self, target, modes, roots, shares, key):
        starts, keys = jax.random.split(key)
        z = jax.random.normal(starts, (self.chains, modes.shape[1]), modes.dtype)
        counts = self.chains_at(shares)
        most = int(np.argmax(counts))
        chain = _Chain(target, modes[most], roots[most], self)
        if counts[most] < self.chains:
            at = np.repeat(np.arange(len(modes)), counts)
            x = modes[at] + jnp.einsum("cij,cj->ci", roots[at], z)
            z = jnp.linalg.solve(roots[most], (x - modes[most][None]).T).T
        return _Trajectories(chain, z, jax.random.split(keys, self.chains))


class _Trajectories(AbstractChains):
    """The chains of `NUTS`: where each starts and its random numbers."""

    chain: "_Chain"
    start: Float[Array, "c p"]
    keys: PRNGKeyArray

    @property
    def steps(self):
        return self.chain.plan.warmup + self.chain.plan.draws

    def begin(self):
        return rollout(self.chain.begin, self.start)

    def advance(self, carry, first, count):
        return rollout(_Steps(self.chain, first, count), (carry, self.keys))

    def finish(self, found):
        z, log, diverged, accepted, evaluated = found
        kept = slice(self.chain.plan.warmup, None)
        x = self.chain.mode[None, None] + z[:, kept] @ self.chain.root.T
        rate, count = jnp.mean(accepted[:, kept]), jnp.sum(evaluated)
        return Draws(x, log[:, kept], jnp.sum(diverged[:, kept]), rate, count)


class _Chain(eqx.Module):
    """One chain of `NUTS` in the coordinates `z`, `x = mode + root z`."""

    target: Callable
    mode: Float[Array, " p"]
    root: Float[Array, "p p"]
    plan: NUTS

    def density(self, z):
        return self.target(self.mode + self.root @ z)

    def tools(self):
        nuts = require("blackjax.mcmc.nuts", "sampling", "posterior")
        adaptation = require("blackjax.adaptation.step_size", "sampling", "posterior")
        return nuts, adaptation.dual_averaging_adaptation(self.plan.target_acceptance)

    def begin(self, z):
        """State and step size; strongly typed, as they come out of a step."""
        nuts, (begin, _, _) = self.tools()
        with lenient():  # here, since another thread may trace this
            first = nuts.init(z, self.density), begin(jnp.asarray(0.5, z.dtype))
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.asarray(x).dtype), first)

    def step(self, key, carry, i):
        nuts, (_, adapt, end) = self.tools()
        state, sizes = carry
        warming = i < self.plan.warmup
        size = jnp.where(warming, jnp.exp(sizes.log_step_size), end(sizes))
        size = size.astype(self.mode.dtype)
        here = jax.random.fold_in(key, i), state, self.density, size, jnp.ones_like(self.mode)
        new, info = nuts.build_kernel()(*here, self.plan.max_doublings)
        moved = adapt(sizes, info.acceptance_rate)
        sizes = jax.tree.map(lambda a, b: jnp.where(warming, a, b), moved, sizes)
        outcome = info.is_divergent, info.acceptance_rate, info.num_integration_steps
        return (new, sizes), (new.position, new.logdensity, *outcome)


class _Steps(eqx.Module):
    """`count` steps of a chain after the first `first`, in one loop, so that a step is compiled once."""

    chain: _Chain
    first: Array
    count: int = eqx.field(static=True)

    def __call__(self, start):
        carry, key = start
        steps = self.first + jnp.arange(self.count)
        with lenient():
            return jax.lax.scan(lambda carry, i: self.chain.step(key, carry, i), carry, steps)
