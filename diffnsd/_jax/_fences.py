"""Workarounds for the way the compiler, or LAPACK below it, handles a whole program."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array


def one_by_one(function: Callable, *operands):
    """`jax.vmap(function)(*operands)` for LAPACK functions, on a CPU one matrix after the other.

    The kernels of jaxlib 0.10 distribute a batch over the thread pool that they run in, and wait. Two
    of them at once, in independent parts of a program, can deadlock on machines with few cores.
    """
    return jax.lax.platform_dependent(
        *operands,
        cpu=lambda *batch: jax.lax.map(lambda single: function(*single), batch),
        default=jax.vmap(function),
    )


def always_staged(probe: Array, function: Callable, *operands):
    """`staged` with a predicate on `probe` that is true, but that the compiler cannot evaluate."""
    # Nothing is below -inf. Masks and indices are probed as well, hence the cast.
    return staged(~jnp.any(probe.astype(float) < -jnp.inf), function, *operands)


def staged(pending: Array, function: Callable, *operands):
    """Evaluates `function(*operands)` as a separate stage, or zeros if nothing is pending.

    XLA fuses chains of small elementwise operations by recomputing shared inputs in every consumer;
    on the dense algebra of a contact solve this costs up to eight times the arithmetic. A
    conditional is a boundary that fusion does not cross, and skips the work once it is not needed.

    **Arguments:** `pending`: scalar boolean, not batched; `function`, `operands`: the stage.
    """
    shapes = jax.eval_shape(function, *operands)
    return jax.lax.cond(
        pending,
        function,
        lambda *_: jax.tree.map(jnp.zeros_like, shapes),
        *operands,
    )
