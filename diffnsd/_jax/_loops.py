"""Loops over time steps: direct, or checkpointed for reverse mode over long runs."""

import math
from abc import abstractmethod
from collections.abc import Callable
from numbers import Integral

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_policies

from ._repetition import without_repetition

SAVED_NAME = "diffnsd_solution"
"""Name under which a step's solved unknowns are kept for the backward pass."""


class AbstractLoopAdjoint(eqx.Module):
    """How a loop over steps is differentiated in reverse mode. Values never depend on it."""

    @abstractmethod
    def segment(self, steps: int) -> int:
        """Number of consecutive steps per stored state, for a loop of `steps` steps."""


class Direct(AbstractLoopAdjoint):
    """Stores what every step needs; fastest, but memory grows like the number of steps.

    The iterations of the complementarity solver are not stored: a step keeps its state and its
    solved unknowns, and its smooth part is evaluated again in the backward pass.
    """

    def segment(self, steps: int) -> int:
        return steps


class Checkpointed(AbstractLoopAdjoint):
    """Stores one state per segment and recomputes the steps between; memory grows like `sqrt(steps)`.

    **Arguments:**

    - `segment_steps`: steps per segment. By default loops up to `threshold` steps are stored
      directly and longer ones use `sqrt(steps)`. A gradient costs one more forward pass.
    - `threshold`: number of steps up to which nothing is recomputed.

    Reference: A. Griewank, A. Walther, Algorithm 799 (2000), doi:10.1145/347837.347846 (here with
    one level of checkpoints, which also works in forward mode).
    """

    segment_steps: int | None = None
    threshold: int = 1000

    def __check_init__(self):
        for name, least in (("segment_steps", 1), ("threshold", 0)):
            count = getattr(self, name)
            if count is None and name == "segment_steps":
                continue
            if not isinstance(count, Integral) or isinstance(count, bool):
                raise TypeError(f"{name} must be a whole number of steps, got {count!r}.")
            if count < least:
                raise ValueError(f"{name} must be at least {least}, got {count}.")

    def segment(self, steps: int) -> int:
        if self.segment_steps is not None:
            return min(self.segment_steps, max(steps, 1))
        if steps <= self.threshold:
            return steps
        return math.isqrt(steps - 1) + 1


def evaluated_again(body: Callable) -> Callable:
    """A loop body for which reverse mode keeps only its arguments and the solvers' results.

    Every value that a loop keeps costs two kernels, which take longer to compile than its re-evaluation.
    """
    policy = checkpoint_policies.save_only_these_names(SAVED_NAME)
    return jax.checkpoint(without_repetition(body), policy=policy, prevent_cse=False)


def scan(body: Callable, carry, length: int, adjoint: AbstractLoopAdjoint):
    """`carry, out = body(carry, i)` for `i = 0 ... length - 1`, outputs stacked over `i`.

    **Arguments:** `body`: pure function; `carry`: pytree of arrays; `length`: static number of
    iterations; `adjoint`: how reverse mode stores the loop.

    **Returns:** the last carry and the stacked outputs.
    """
    step = evaluated_again(body)
    segment = adjoint.segment(length)
    if segment >= length:
        return jax.lax.scan(step, carry, jnp.arange(length))

    full, rest = divmod(length, segment)

    def run(carry, first):
        return jax.lax.scan(step, carry, first + jnp.arange(segment))

    starts = jnp.arange(full) * segment
    carry, outs = jax.lax.scan(jax.checkpoint(run, prevent_cse=False), carry, starts)
    outs = jax.tree.map(lambda x: x.reshape((full * segment, *x.shape[2:])), outs)
    if rest == 0:
        return carry, outs
    carry, tail = jax.lax.scan(step, carry, full * segment + jnp.arange(rest))
    return carry, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), outs, tail)


def bounded_while(proceed: Callable, body: Callable, start, max_steps: int):
    """`while proceed(x): x = body(x)` for at most `max_steps` iterations, in forward and reverse mode.

    Reverse mode computes the iterations again, in groups of 16 that start from stored values, and compiled
    code rounds differently there. So iterations must not decide anything by rounding: steps of a length that
    each group chose anew would end before or after the time at which the next group begins, and the
    derivative of what is between them be missing, or be there twice.
    """
    return eqxi.while_loop(proceed, body, start, max_steps=max_steps, kind="bounded")
