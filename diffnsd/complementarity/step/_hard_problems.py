"""The unsolved problems of a batch, gathered so that the others do not wait for them."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp


def is_gathered(lanes: tuple[int, ...]) -> bool:
    """Whether the unsolved problems of a batch of this shape are gathered; small batches are not."""
    return len(lanes) == 1 and lanes[0] > 16


def capacity(lanes: int) -> int:
    """How many problems of a batch are gathered at a time."""
    return max(8, lanes // 8)


def on_hard_problems(function, task, iterate, rounds: int):
    """Applies `function(task, iterate, count)` to the unsolved problems of a batch only.

    An eighth of a batch is gathered (at least 8 problems), all of which were tried `count` times, the least
    of any. The caller repeats this until none is left that was tried less than `rounds` times.
    """
    lanes = iterate.best_residual.shape
    waiting = ~iterate.done & (iterate.tries < rounds)
    count = jnp.min(jnp.where(waiting, iterate.tries, rounds), initial=rounds)
    if not is_gathered(lanes):
        new = function(task, iterate, count)
        return eqx.tree_at(lambda i: i.tries, new, jnp.where(waiting, count + 1, iterate.tries))
    chosen, index = jax.lax.top_k(waiting & (iterate.tries == count), capacity(lanes[0]))
    hard_task, hard = on_last_axis(lambda x: x[:, index], (task, iterate))
    hard = eqx.tree_at(lambda i: i.done, hard, hard.done | ~chosen)
    hard = function(hard_task, hard, count)
    hard = eqx.tree_at(lambda i: i.tries, hard, hard.tries + 1)
    index = jnp.where(chosen, index, lanes[0])  # the others stay as they are
    return on_last_axis(lambda x, y: x.at[:, index].set(y, mode="drop"), iterate, hard)


def on_last_axis(function, *trees):
    """Applies `function` to the leaves of pytrees, packed by dtype into arrays `(rows, batch)`.

    One gather or scatter of a packed array instead of one for every leaf: dozens fewer to compile.
    """
    leaves, structures = zip(*map(jax.tree.flatten, trees), strict=True)
    out = [None] * len(leaves[0])
    for dtype in dict.fromkeys(x.dtype for x in leaves[0]):
        places = [i for i, x in enumerate(leaves[0]) if x.dtype == dtype]
        packed = [
            jnp.concatenate([part[i].reshape((-1, part[i].shape[-1])) for i in places])
            for part in leaves
        ]
        new, at = function(*packed), 0
        for i in places:
            shape = leaves[0][i].shape[:-1]
            rows = math.prod(shape)
            out[i] = new[at : at + rows].reshape((*shape, new.shape[-1]))
            at += rows
    return jax.tree.unflatten(structures[0], out)
