"""What is identified from which measured motions, and how far a frame can be believed.

A motion with impacts amplifies its initial error, so late frames carry little information about the
parameters, and their derivatives are large and erratic. Each frame is therefore weighted by the error that
the measured start velocity alone would cause there:

    variance = tolerance^2 + sum_j (d error / d start_j)^2 deviation_j^2,    non-decreasing along the run,

the linearised marginalisation over the start velocity. Errors along one run are strongly correlated. Relative
to the priors a run therefore counts as `OBSERVATIONS` observations, whatever its number of frames.

If a step of a run fails at the start of a round, the run is left out of that round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..._arguments import checked_arguments

OBSERVATIONS = 20.0


@dataclass(frozen=True, eq=False)
class Quantity:
    """A named number, or array of numbers, of a model that may be identified.

    **Arguments:** `unit`; `bounds`: `(lo, hi)`, `None` for an open side; `deviation`: standard deviation of a
    prior about the start value, in the unit, `None` for no prior.
    """

    unit: str = ""
    bounds: tuple[float | None, float | None] = (None, None)
    deviation: float | None = None


class Simulated(eqx.Module):
    """A run that was simulated.

    **Arguments:** `errors`: of `k` parts of a frame, in units in which parts compare; `failed`: whether a
    step did; `shown`: what else predictions are written from, arrays.
    """

    errors: Float[Array, "f k d"]
    failed: Bool[Array, ""]
    shown: PyTree = None


class Job(eqx.Module):
    """Measured motions, the model that shall explain them, and what of it is free.

    **Arguments:**

    - `model`: the parameters at their start values, any pytree.
    - `motion`: `motion(model, run, velocity)` simulates a run from the start velocity `(m,)` and returns what
      it did, `Simulated`. A function of a module, or an `equinox.Module`, so that programs are shared.
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


@jax.jit
def weights(
    tangents: Float[Array, "m n f k d"],
    failed: Bool[Array, " n"],
    mask: Bool[Array, "n f k"],
    deviations: Float[Array, " m"],
    tolerances: Float[Array, " k"],
) -> Float[Array, "n f k"]:
    """The weights described above of all runs, 0 for those that failed.

    **Arguments:** `tangents`: the derivative of the errors by each start velocity; the others as in `Job`.
    """
    variance = jnp.sum((tangents * deviations[:, None, None, None, None]) ** 2, axis=(0, 4))
    variance = jax.lax.cummax(variance, axis=1) + tolerances[None, None] ** 2
    # Without a derivative there is no error either, which the fit must see.
    variance = jnp.where(jnp.isnan(variance), 1.0, variance)
    measured = mask.astype(variance.dtype)
    count = jnp.maximum(jnp.sum(measured, axis=(1, 2), keepdims=True), 1.0)
    scale = jnp.sqrt(OBSERVATIONS / count) * measured
    return jnp.where(failed[:, None, None], 0.0, scale / jnp.sqrt(variance))


@checked_arguments
def padded_frames(fitted: int, predicted: int) -> int:
    """To how many frames runs of a fit are padded, so that those to predict go through the same program.

    Only if these are not much longer: every evaluation of the fit simulates all frames.
    """
    return max(fitted, predicted) if predicted <= 1.25 * fitted else fitted
