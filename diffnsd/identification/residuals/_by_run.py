"""Residuals of runs that each have unknowns of their own, and their elimination.

A run `i` has residuals `r_i(p, x_i)`: `p` are the parameters that all runs share, `x_i` what belongs to it
alone, such as its start state. The Jacobian of all runs is a block arrow: a full column for `p`, one block
on the diagonal per run. Where the loss is stationary in every `x_i`, the normal equations reduce to

    S dp = −sum_i P_i^T Q_i r_i,    S = sum_i P_i^T Q_i P_i,    Q_i = 1 − X_i (X_i^T X_i)^-1 X_i^T

with `P_i = dr_i/dp`, `X_i = dr_i/dx_i`: the Schur complement. Its cost grows linearly with the runs.

Reference: B. Triggs, P. McLauchlan, R. Hartley, A. Fitzgibbon, "Bundle adjustment: a modern synthesis"
(2000), doi:10.1007/3-540-44480-7_21; W. A. Fuller, "Measurement error models" (1987),
doi:10.1002/9780470316665.
"""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..._arguments import checked_arguments
from .._base import check_of_runs, check_parameters
from ._linearise import AbstractRobustLoss, Linearisation


class ByRun(eqx.Module):
    """Flattened residuals of runs and their Jacobians.

    **Arguments:** `residual (n, r)`; `parameters (n, r, p)`: with respect to the raw parameters;
    `own (n, r, m)`: with respect to the unknowns of the run itself.
    """

    residual: Float[Array, "n r"]
    parameters: Float[Array, "n r p"]
    own: Float[Array, "n r m"]

    def weighed(self, robust: AbstractRobustLoss | None) -> "ByRun":
        """Residuals and Jacobians of a robust loss."""
        if robust is None:
            return self
        value, slope = jax.jvp(robust.weigh, (self.residual,), (jnp.ones_like(self.residual),))
        # What does not count need not be finite.
        slope, counts = slope[:, :, None], (slope != 0)[:, :, None]
        scaled = (jnp.where(counts, slope * x, 0.0) for x in (self.parameters, self.own))
        return ByRun(value, *scaled)

    def eliminated(self) -> Linearisation:
        """The linearisation in the parameters alone, `Q_i P_i` and `Q_i r_i`, for `uncertainty`.

        Rows are projected on what the unknowns of their run cannot explain, so that `J^T J` is the Schur
        complement and `J_i^T r_i` the score of a run.
        """
        n, r, m = self.own.shape
        basis, triangle = jnp.linalg.qr(self.own)
        # A direction that no row sees is not a direction of the projection.
        size = jnp.abs(jnp.diagonal(triangle, axis1=1, axis2=2))
        tiny = jnp.finfo(size.dtype).eps * r * jnp.max(size, axis=1, keepdims=True)
        basis = jnp.where((size > tiny)[:, None, :], basis, 0.0)
        both = jnp.concatenate([self.parameters, self.residual[:, :, None]], axis=2)
        both = both - basis @ (jnp.swapaxes(basis, 1, 2) @ both)
        rows = both.reshape(n * r, -1)
        mask = jnp.ones(n * r, bool)
        return Linearisation(rows[:, -1], rows[:, :-1], mask, ((n, r),), n * m)


@checked_arguments
def linearise_by_run(
    residual: Annotated[
        Callable[[PyTree, PyTree, PyTree], PyTree[Array]], "(params, unknowns, run)"
    ],
    params: PyTree[Array],
    unknowns: PyTree[Array],
    runs: PyTree,
) -> ByRun:
    """Residuals of all runs and their Jacobians, in one forward pass per run.

    **Arguments:**

    - `residual`: `residual(params, unknowns_i, run_i)`, a pytree of floating arrays.
    - `params`: pytree of floating arrays, shared by all runs.
    - `unknowns`: pytree of floating arrays with a leading axis of `n` runs: those of each run.
    - `runs`: pytree of arrays with a leading axis of `n` runs: data of each run.

    **Returns:** a `ByRun`.
    """
    check_parameters(params)
    check_of_runs(unknowns=unknowns, runs=runs)
    shared, rebuild = ravel_pytree(params)

    def one(own, run):
        flat, unravel = ravel_pytree(own)
        both = jnp.concatenate([shared, flat])

        def rows(x):
            out = residual(rebuild(x[: shared.size]), unravel(x[shared.size :]), run)
            return ravel_pytree(out)[0]

        push = jax.vmap(lambda t: jax.jvp(rows, (both,), (t,)), out_axes=(None, 1))
        value, slopes = push(jnp.eye(both.size, dtype=both.dtype))
        return ByRun(value, slopes[:, : shared.size], slopes[:, shared.size :])

    return jax.vmap(one)(unknowns, runs)
