"""Long simulations that survive the end of their process."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from .._checkpointing import Checkpointing, Parts
from .._jax import Direct, evaluated_again
from ._run import Grid, block_of, ended, remainder, started, stepper
from ._solution import Solution


def run_saved(
    save: Checkpointing, model, integrator, grid: Grid, state0, args, saveat, event
) -> Solution:
    """As `run`, with files; the loop over the files is on the host."""
    given = model, integrator, grid, state0, args, saveat, event
    if grid.is_open or saveat.steps is None:
        raise ValueError(
            "save=Checkpointing(...) needs SaveAt(steps=...), such as SaveAt(steps=1000), and no max_steps."
        )
    files = Parts(save, given)
    start = loop = _start(*given)
    blocks, rest = divmod(grid.capacity, saveat.steps)
    size = max(1, save.every // saveat.steps)
    parts = []
    for first in range(0, blocks, size):
        count = min(size, blocks - first)
        at = model, integrator, grid, args, saveat, event, loop, jnp.asarray(first), count
        loop, saved = files.next(
            lambda at=at: _advance(*at), lambda at=at: eqx.filter_eval_shape(_advance, *at)
        )
        parts.append(saved)
    if rest or not blocks:
        loop, last = _finish(model, integrator, grid, args, saveat, event, loop, rest)
        parts.append(last)
    saved = jax.tree.map(lambda *x: jnp.concatenate(x), *parts) if len(parts) > 1 else parts[0]
    return _end(model, integrator, grid, args, saveat, event, start, loop, saved)


_QUIET = diffrax.NoProgressMeter()


@eqx.filter_jit
def _start(model, integrator, grid, state0, args, saveat, event):
    return started(model, integrator, grid, state0, args, saveat, event, _QUIET)


@eqx.filter_jit
def _advance(model, integrator, grid, args, saveat, event, loop, first, count):
    step = stepper(model, integrator, grid, args, event, _QUIET)
    block = evaluated_again(block_of(model, integrator, step, grid, saveat.steps))
    return jax.lax.scan(block, loop, first + jnp.arange(count))


@eqx.filter_jit
def _finish(model, integrator, grid, args, saveat, event, loop, rest):
    step = stepper(model, integrator, grid, args, event, _QUIET)
    return remainder(model, integrator, step, loop, grid, rest, Direct())


@eqx.filter_jit
def _end(model, integrator, grid, args, saveat, event, start, loop, saved):
    return ended(model, integrator, grid, args, saveat, event, start, loop, saved)
