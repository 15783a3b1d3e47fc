"""Samplers of posteriors, and Laplace's approximation."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..._arguments import AbstractChecked
from ..._checkpointing import Parts
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


class AbstractChains(eqx.Module):
    """Chains of draws, some of their steps at a time."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps of all chains together, warm-up and all."""

    @abstractmethod
    def begin(self) -> PyTree:
        """What the chains carry from step to step, before the first."""

    @abstractmethod
    def advance(self, carry: PyTree, first: Array, count: int) -> tuple[PyTree, PyTree]:
        """What they carry after `count` further steps, and what these gave, `(chains, count, ...)`.

        **Arguments:** `first`: number of steps made so far.
        """

    @abstractmethod
    def finish(self, found: PyTree) -> Draws:
        """The draws, from what all steps gave."""

    def drawn(self, files: Parts | None = None) -> Draws:
        """Makes all steps, at once, or from file to file."""
        if files is None:
            return self.finish(self.advance(self.begin(), jnp.asarray(0), self.steps)[1])
        carry, found = self.begin(), []
        for first in range(0, self.steps, files.every):
            at = carry, jnp.asarray(first), min(files.every, self.steps - first)
            carry, more = files.next(
                lambda at=at: self.advance(*at),
                lambda at=at: eqx.filter_eval_shape(self.advance, *at),
            )
            found.append(more)
        return self.finish(jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *found))


class AbstractSampler(AbstractChecked):
    """A way to draw from a posterior.

    `correlated`: whether its draws follow from each other; `uses_curvature`: whether it needs the
    mode and the Hessian there; `visits_modes`: whether its chains begin at several modes;
    `least_acceptance`: below it, moves are accepted too seldom.
    """

    correlated: ClassVar[bool] = True
    uses_curvature: ClassVar[bool] = True
    visits_modes: ClassVar[bool] = False
    least_acceptance: ClassVar[float] = 0.0

    @abstractmethod
    def prepare(
        self,
        target: Callable,
        modes: Float[Array, "m p"],
        roots: Float[Array, "m p p"],
        shares: np.ndarray,
        key: PRNGKeyArray,
    ) -> AbstractChains:
        """Chains that draw from `exp(target(x))`; near a mode its covariance is about `root root^T`.

        The first mode is the highest; `shares (m,)` are the parts of the posterior that the modes hold.
        """

    def chains_at(self, shares: np.ndarray) -> np.ndarray:
        """How many chains begin at each mode, `(m,)`; one at the highest, the first, by default."""
        return np.eye(1, len(shares), dtype=int)[0]

    @property
    def searches(self) -> int:
        """From how many starts the mode is looked for."""
        return 1

    def diagnose(self, samples: Float[np.ndarray, "c d k"]) -> tuple[np.ndarray, np.ndarray]:
        """Split R-hat and effective number of draws, `(k,)` each."""
        return diagnose(samples, samples)


class Laplace(AbstractSampler):
    """The normal distribution with mode and curvature of the posterior, in raw coordinates.

        x ~ N(x*, (-d^2 log p / dx^2)^-1)

    Exact for linear models with normal noise; the first choice where evaluations are dear. The
    log-density is evaluated at all draws, which tells how good the approximation is: the warnings
    of the posterior say so where it is not.

    **Arguments:** `draws`: number of independent draws, 200 by default; `starts`: from how many starts the
    mode is looked for, 1 by default, since each costs as much as the first; with several, other modes are
    reported.

    Reference: L. Tierney, J. B. Kadane (1986), doi:10.1080/01621459.1986.10478240.
    """

    draws: int = 200
    starts: int = 1
    correlated: ClassVar[bool] = False

    def __check_init__(self):
        at_least(draws=(self.draws, 10), starts=(self.starts, 1))

    @property
    def searches(self):
        return self.starts

    def prepare(self, target, modes, roots, shares, key):
        z = jax.random.normal(key, (self.draws, modes.shape[1]), modes.dtype)
        return _Independent(target, modes[:1] + z @ roots[0].T)

    def diagnose(self, samples):
        k = samples.shape[-1]
        return np.ones(k), np.full(k, float(self.draws))


class _Independent(AbstractChains):
    """Draws that are known, `x (n, p)`, of which the log-density is wanted."""

    target: Callable
    x: Float[Array, "n p"]

    @property
    def steps(self):
        return len(self.x)

    def begin(self):
        return None

    def advance(self, carry, first, count):
        x = jax.lax.dynamic_slice_in_dim(self.x, first, count)
        return carry, rollout(self.target, x)[None]

    def finish(self, found):
        one, zero = jnp.ones((), self.x.dtype), jnp.zeros((), int)
        return Draws(self.x[None], found, zero, one, jnp.asarray(self.steps))


@contextlib.contextmanager
def lenient():
    """JAX's defaults of promotion, for code of others while a user has stricter ones."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def diagnose(chains, walks) -> tuple[np.ndarray, np.ndarray]:
    """R-hat of `chains` and effective draws of `walks`, both `(c, d, k)`."""
    diagnostics = require("blackjax.diagnostics", "diagnostics of chains", "posterior")
    k = chains.shape[-1]
    with lenient():
        found = diagnostics.rhat(jnp.asarray(chains)), diagnostics.ess_bulk(jnp.asarray(walks))
    return np.asarray(found[0]).reshape(k), np.asarray(found[1]).reshape(k)


def at_least(**numbers: tuple[int, int]) -> None:
    for name, (number, least) in numbers.items():
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}.")
