"""The runs of a job, simulated by one compiled program whatever they are simulated for.

A simulation takes seconds to half a minute to compile. Weights need derivatives by start velocities, descents
by parameters, the refinement and predictions none, in batches of other sizes: all are lists of (parameters,
run, start velocity, direction), which go through one program of so many of them. Where so much is measured
that running costs more than compiling, what needs no derivative has a program without one.

If a step fails only in a trial, `UNSOLVED` is added to the residuals, which makes the trial worse than any
that can be simulated.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ... import identification
from ._job import Job, Simulated, weights

LANES = 16, 64
"""Runs that are simulated together, in small and in large jobs: small ones would wait for padding."""
LARGE = 2000
"""Measured frames above which a job is large. A program without derivatives saves about 10 s of compiling
for 600,000 steps; the refinement looks at 80 points, with 4 steps for a frame."""
UNSOLVED = 100.0

PROGRAMS = identification.Programs()
"""Compiled programs of this process; everything that varies is an argument of them."""


class Motions(eqx.Module):
    """What simulates runs with parameters of their own, and derives their errors along one direction.

    **Arguments:** `rebuild`: the model of parameters; `motion`: that of a `Job`; `unravel`: parameters from
    their raw numbers `(p,)`; `is_large`: whether what needs no derivative has a program of its own.
    """

    rebuild: Callable
    motion: Callable
    unravel: Callable = eqx.field(static=True)
    is_large: bool = eqx.field(static=True)

    def __call__(
        self,
        runs: PyTree,
        raw: Any,
        velocities: Any,
        along: Any = None,
        along_velocities: Any = None,
    ) -> tuple[Simulated, Float[np.ndarray, "l f k d"]]:
        """The runs, and the derivatives of their errors along these directions, 0 where none are given.

        **Arguments:** arrays with a leading axis of `l` simulations: `runs`; `raw`, `along (l, p)`: raw
        numbers of the parameters and a direction; `velocities`, `along_velocities (l, m)`: start velocities
        and a direction. **Returns:** NumPy arrays.
        """
        chunks = self._chunks(runs, raw, velocities, along, along_velocities)
        program = PROGRAMS.compiled(_simulated, self, chunks[0])
        with ThreadPoolExecutor(os.cpu_count() or 1) as cores:
            found = list(cores.map(lambda chunk: jax.device_get(program(self, chunk)), chunks))
        return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(velocities)], *found)

    def sampled(
        self,
        runs: PyTree,
        velocities: Any,
        points: Any,
        along: Any = None,
        along_velocities: Any = None,
    ) -> tuple[Simulated, Float[np.ndarray, "s n f k d"]]:
        """All `n` runs with the raw numbers and the directions of each of `s` points, `(s, p)`, `(s, m)`."""
        k, n = len(points), len(velocities)
        every = np.tile(np.arange(n), k)
        given = jax.tree.map(lambda x: np.asarray(x)[every], (runs, velocities))
        rows = [
            None if x is None else np.repeat(np.asarray(x), n, axis=0)
            for x in (points, along, along_velocities)
        ]
        found = self(given[0], rows[0], given[1], *rows[1:])
        return jax.tree.map(lambda x: x.reshape(k, n, *x.shape[1:]), found)

    def weights(self, job: Job, raw: Any) -> tuple[Array, Array]:
        """The weights of a job at the raw numbers `(p,)`, and which runs failed there."""
        raw = np.asarray(raw)
        ways = np.eye(job.velocities.shape[1], dtype=raw.dtype)
        same = np.broadcast_to(raw, (len(ways), raw.size))
        found, tangents = self.sampled(job.runs, job.velocities, same, along_velocities=ways)
        failed = jnp.asarray(found.failed[0])
        return weights(tangents, failed, job.mask, job.deviations, job.tolerances), failed

    def prepare(
        self, runs: PyTree, raw: Float[Array, " p"], velocities: Float[Array, "n m"]
    ) -> None:
        """Compiles the programs for runs like these."""
        many = np.broadcast_to(raw, (len(velocities), len(raw)))
        for still in (np.zeros_like(velocities), None):
            chunks = self._chunks(runs, many, velocities, None, still)
            PROGRAMS.compiled(_simulated, self, chunks[0])

    def _chunks(self, runs, raw, velocities, along, along_velocities) -> list:
        """Simulations in groups; the last row fills up the last group."""
        ways, size = (along, along_velocities), LANES[self.is_large]
        if not self.is_large or any(x is not None for x in ways):
            given = zip(ways, (raw, velocities), strict=True)
            ways = tuple(np.zeros_like(x) if way is None else way for way, x in given)
        rows = jax.tree.map(np.asarray, (runs, raw, velocities, *ways))

        def cut(x, start):
            part = x[start : start + size]
            filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            return jnp.asarray(filled)

        starts = range(0, len(velocities), size)
        return [jax.tree.map(lambda x, start=start: cut(x, start), rows) for start in starts]


def _simulated(motions: Motions, lanes: Any) -> tuple[Simulated, Array]:
    def one(run, raw, velocity, along, along_velocity):
        def errors(raw, velocity):
            found = motions.motion(motions.rebuild(motions.unravel(raw)), run, velocity)
            return found.errors, found

        if along is None:
            found = errors(raw, velocity)[1]
            return found, jnp.zeros_like(found.errors)
        ways = (along, along_velocity)
        _, tangent, found = jax.jvp(errors, (raw, velocity), ways, has_aux=True)
        return found, tangent

    return jax.vmap(one)(*lanes)


class Residual(identification.AbstractLinearised):
    """Weighted errors of all runs `(n, f, k, d)`, `UNSOLVED` for failed ones `(n,)`, and the priors `(p,)`.

    `centres` and `deviations` are those of the quantities with a prior.
    """

    motions: Motions
    runs: PyTree
    velocities: Float[Array, "n m"]
    weights: Float[Array, "n f k"]
    centres: tuple[Array, ...]
    deviations: tuple[Array, ...]
    select: Callable = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    def linearised(self, params, mask, robust, jacobian: Any):
        points, along = jacobian.samples(ravel_pytree(params)[0])
        found, tangents = self.motions.sampled(self.runs, self.velocities, points, along)
        runs = found.errors, found.failed.astype(found.errors.dtype)
        return _linearised(self, params, (points, *runs), (along, tangents), mask, robust, jacobian)

    def rows(self, given):
        """The residuals of parameters, errors of the runs, and which failed."""
        params, errors, failed = given
        model = self.motions.rebuild(params)
        priors = [
            ((self.select(model, name) - centre) / deviation).reshape(-1)
            for name, centre, deviation in zip(
                self.names, self.centres, self.deviations, strict=True
            )
        ]
        simulated = errors * self.weights[..., None], UNSOLVED * failed
        return simulated, jnp.concatenate([*priors, jnp.zeros(0)])


class _Sampled(identification.AbstractJacobian):
    """The Jacobian `of` another, from its points and directions that are known with what was simulated."""

    of: identification.AbstractSampledJacobian
    points: Float[Array, "k s"]
    along: Float[Array, "k s"]

    def __call__(self, function, x):
        each = jax.vmap(lambda point, way: jax.jvp(function, (point,), (way,)))
        return self.of.combined(*each(self.points, self.along))


@eqx.filter_jit
def _linearised(residual: Residual, params, simulated, tangents, mask, robust, jacobian):
    """The linearisation of residuals whose runs are simulated, with the errors among the unknowns."""
    (points, errors, failed), (along, slopes) = simulated, tangents
    along = jnp.zeros_like(points) if along is None else along
    rows = jax.vmap(lambda *parts: jnp.concatenate([x.ravel() for x in parts]))
    sampled = _Sampled(
        jacobian, rows(points, errors, failed), rows(along, slopes, jnp.zeros_like(failed))
    )
    given = params, errors[0], failed[0]
    return identification.linearise(
        residual.rows, given, mask=mask, robust=robust, jacobian=sampled
    )
