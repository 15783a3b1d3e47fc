"""Runs of the motions with known sensitivities, shared by several tests."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from marks import nightly, slow_but
from oracles import KNOWN_MOTIONS, KnownMotion, read, unchanged

from diffnsd import RESULTS, SaveAt, simulate

PROBLEMS = {name: motion for name, motion in KNOWN_MOTIONS.items() if motion.jumps}
QUICK = "ball", "oblique"
"""How the names begin of the motions that share two programs: impacts without and with friction."""


def cases(names, long: tuple[str, ...] = ()) -> list:
    """Parameters of a test: those that are not `QUICK` compile a program each, and are slow.

    **Arguments:** `long`: how the names begin of those that take minutes.
    """
    names = list(names)
    others = [n for n in names if not n.startswith(long or "-")]
    short = slow_but((n for n in others if n.startswith(QUICK)), others)
    return short + [nightly(n) for n in names if n not in others]


@functools.cache
def program(build: Callable, integrator, wrap: Callable = unchanged) -> Callable:
    """`(x, end, steps) -> (state, sensitivities, success)`, one program for every step length."""

    def run(x, end, steps):
        model, state = build(x, wrap)
        h = end / steps
        carry = integrator.init(model, jnp.zeros(()), state, None)

        def body(i, run):
            state, carry, ok = run
            t = i * h
            state, _, carry, result = integrator.step(model, t, h, state, carry, None)
            return state, carry, ok & (result == RESULTS.successful)

        state, _, ok = jax.lax.fori_loop(0, steps, body, (state, carry, jnp.array(True)))
        return read(state), ok

    @eqx.filter_jit
    def column(direction, x, end, steps):
        return jax.jvp(lambda x: run(x, end, steps), (x,), (direction,), has_aux=True)

    def both(x, end, steps):
        # One direction after the other compiles a fifth faster than all at once.
        columns = [column(jnp.asarray(d), x, end, steps) for d in np.eye(x.size)]
        value, _, ok = columns[0]
        return value, jnp.stack([slope for _, slope, _ in columns], axis=-1), ok

    return both


def final(problem: KnownMotion, integrator, h: float, wrap: Callable = unchanged) -> Callable:
    """The end of a simulation as a function of the parameters, for reverse mode and batches."""

    def run(x):
        model, state = problem.build(x, wrap)
        out = simulate(
            model, integrator, 0.0, problem.end, h, state, saveat=SaveAt.end(), throw=False
        )
        return read(out.states)

    return run


def errors(problem: KnownMotion, integrator, lengths, wrap: Callable = unchanged):
    """Errors of values and sensitivities for step lengths, two arrays."""
    run, out = program(problem.build, integrator, wrap), []
    for h in lengths:
        steps = round(problem.end / h)
        value, slopes, ok = run(
            jnp.asarray(problem.x), jnp.asarray(problem.end), jnp.asarray(steps)
        )
        assert ok
        out.append(problem.compare((value, slopes)))
    return np.array(out).T
