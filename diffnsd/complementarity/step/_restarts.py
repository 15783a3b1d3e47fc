"""Where the rounds of Newton's method start that follow a failed one."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._jax import where
from ..problem._natural_map import projected
from ._point import Iterate, StepOptions, Task, by_block, is_redundant
from ._splitting import split


def softest(task: Task, it: Iterate) -> Iterate:
    """The start of the path of tilted solutions: zero impulses, and a tilt that makes the solution unique."""
    tilt = jnp.full_like(it.tilt, SOFTEST if is_redundant(task.problem) else 0.0)
    z, tilt = where(it.done, (it.z, it.tilt), (by_block(jnp.zeros_like, it.z), tilt))
    return dataclasses.replace(it, z=z, tilt=tilt, follows=~it.done)


def after_splitting(task: Task, it: Iterate, options: StepOptions, lifts: Array) -> Iterate:
    """The start of a round: the result of operator splitting from the best point.

    Without lift it is near the solution of a convex problem. Where friction jams a sliding contact, as in
    Painlevé's example, that is the solution itself, far from every other start.
    """
    best, steps = (it.best_v, it.best_z), options.splitting_steps
    pending, lifts = jnp.any(~it.done), lifts.astype(task.size.dtype)
    given = best, steps, options.penalty, options.relaxation, pending, lifts
    passes = it.passes + jnp.where(it.done, 0, steps)
    return dataclasses.replace(it, z=split(task.problem, task.rho, *given), passes=passes)


def scattered(task: Task, it: Iterate, turn: Array) -> Iterate:
    """The start of a round: the best impulses, each changed at random by about its own size.

    Where contacts stick or slide in another way, Newton's method may end in the solution in place of the
    minimum of the residual that caught it. Contacts without impulse stay so. `turn` numbers the changes,
    which are the same in every run and for every problem.
    """
    random = np.random.default_rng(0)

    def each(z, block):
        noise = random.normal(size=(SCATTERS, *z.shape[:2])).astype(z.dtype)
        size = jnp.sqrt(jnp.sum(z**2, axis=0))
        noise = jnp.asarray(noise)[turn % SCATTERS].reshape(z.shape[:2] + (1,) * (z.ndim - 2))
        return projected(block, z + noise * size[None])

    z = by_block(each, it.best_z, task.problem.blocks)
    return dataclasses.replace(it, z=where(it.done, it.z, z))


SOFTEST = 1.0
"""The tilt at which a path of tilted solutions begins."""

SCATTERS = 16
"""Different random changes of impulses."""
