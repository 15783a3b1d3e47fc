"""What is identified from which measured motions, and how far a frame can be believed.

A motion with impacts amplifies its initial error, so late frames carry little information about the
parameters, and their derivatives are large and erratic. Each frame is therefore weighted by the error that
the measured start velocity alone would cause there:

    variance = tolerance^2 + sum_j (d error / d start_j)^2 deviation_j^2,    non-decreasing along the run,

the linearised marginalisation over the start velocity. Errors along one run are strongly correlated. Relative
to the priors a run therefore counts as `OBSERVATIONS` observations, whatever its number of frames.

If a step of a run fails at the start of a round, the run is left out of that round. If a step fails only in
a trial, `UNSOLVED` is added to the residuals, which makes the trial worse than any that can be simulated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

OBSERVATIONS = 20.0
UNSOLVED = 100.0


@dataclass(frozen=True, eq=False)
class Quantity:
    """A named number, or array of numbers, of a model that may be identified.

    **Arguments:** `unit`; `bounds`: `(lo, hi)`, `None` for an open side; `deviation`: standard deviation of a
    prior about the start value, in the unit, `None` for no prior.
    """

    unit: str = ""
    bounds: tuple[float | None, float | None] = (None, None)
    deviation: float | None = None


class Job(eqx.Module):
    """Measured motions, the model that shall explain them, and what of it is free.

    **Arguments:**

    - `model`: the parameters at their start values, any pytree.
    - `motion`: `motion(model, run, velocity)` simulates a run from the start velocity `(m,)` and returns its
      errors `(f, k, d)`, of `k` parts of a frame in units in which parts compare, and whether a step failed.
      A function of a module, or an `equinox.Module`, so that programs are shared.
    - `runs`: what `motion` needs of the runs; arrays with a leading axis of `n` runs.
    - `mask (n, f, k)`: what of the frames was measured.
    - `velocities (n, m)`: measured start velocities; `deviations (m,)`: their standard deviations.
    - `tolerances (k,)`: standard deviations of the parts of a frame, those of the model included.
    - `select`: `select(model, name)` is the leaf of a quantity.
    - `quantities`: the quantities by name, in the order of tables. `free`: names of those that are fitted.
    """

    model: PyTree
    motion: Callable
    runs: PyTree
    mask: Bool[Array, "n f k"]
    velocities: Float[Array, "n m"]
    deviations: Float[Array, " m"]
    tolerances: Float[Array, " k"]
    select: Callable[[Any, str], Any] = eqx.field(static=True)
    quantities: Mapping[str, Quantity] = eqx.field(static=True)
    free: tuple[str, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        return self.mask.shape[0]

    def value(self, model: PyTree, name: str) -> np.ndarray:
        """The value of a quantity of a model."""
        return np.asarray(self.select(model, name))


class Lane(eqx.Module):
    """One run of a job, or all of them with a leading axis: the arrays that programs take."""

    run: PyTree
    mask: Bool[Array, "f k"]
    velocity: Float[Array, " m"]


def lanes(job: Job) -> Lane:
    """The runs of a job as one batch."""
    return Lane(job.runs, job.mask, job.velocities)


def weights(
    motion: Callable, model: PyTree, lane: Lane, deviations: Array, tolerances: Array
) -> tuple[Float[Array, "f k"], Bool[Array, ""]]:
    """The weights described above of one run, and whether it failed; if so, all weights are 0."""

    def errors(velocity):
        return motion(model, lane.run, velocity)

    tangent, failed = jax.jacfwd(errors, has_aux=True)(lane.velocity)
    variance = jnp.sum((tangent * deviations[None, None, None]) ** 2, axis=(2, 3))
    variance = jax.lax.cummax(variance, axis=0) + tolerances[None] ** 2
    measured = lane.mask.astype(variance.dtype)
    scale = jnp.sqrt(OBSERVATIONS / jnp.maximum(jnp.sum(measured), 1.0)) * measured
    value = jnp.where(failed, 0.0, scale / jnp.sqrt(variance))
    return jax.lax.stop_gradient(value), failed


class Residual(eqx.Module):
    """Weighted errors of all runs `(n, f, k, d)`, `UNSOLVED` for failed ones `(n,)`, and the priors `(p,)`.

    `centres` and `deviations` are those of the quantities with a prior.
    """

    rebuild: Callable
    motion: Callable
    lanes: Lane
    weights: Float[Array, "n f k"]
    centres: tuple[Array, ...]
    deviations: tuple[Array, ...]
    select: Callable = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, params):
        model = self.rebuild(params)

        def one(lane, weight):
            errors, failed = self.motion(model, lane.run, lane.velocity)
            return errors * weight[:, :, None], UNSOLVED * failed.astype(errors.dtype)

        rows = [
            ((self.select(model, name) - centre) / deviation).reshape(-1)
            for name, centre, deviation in zip(
                self.names, self.centres, self.deviations, strict=True
            )
        ]
        return jax.vmap(one)(self.lanes, self.weights), jnp.concatenate([*rows, jnp.zeros(0)])
