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
from ._linearise import AbstractRobustLoss, Linearisation, directions


class ByRun(eqx.Module):
    """Flattened residuals of runs and their Jacobians.

    **Arguments:** `residual (n, r)`; `parameters (n, r, p)`: with respect to the raw parameters;
    `own (n, r, m)`: with respect to the unknowns of the run itself; `curvature (n, r)`: of a robust loss,
    as in `Linearisation`.
    """

    residual: Float[Array, "n r"]
    parameters: Float[Array, "n r p"]
    own: Float[Array, "n r m"]
    curvature: Float[Array, "n r"]

    def weighed(self, robust: AbstractRobustLoss | None) -> "ByRun":
        """Residuals and Jacobians of a robust loss."""
        if robust is None:
            return self
        value, slope = jax.jvp(robust.weigh, (self.residual,), (jnp.ones_like(self.residual),))
        # What does not count need not be finite.
        slope, counts = slope[:, :, None], (slope != 0)[:, :, None]
        shared, own = (jnp.where(counts, slope * x, 0.0) for x in (self.parameters, self.own))
        return ByRun(value, shared, own, robust.curvature(value))

    def eliminated(self) -> Linearisation:
        """The linearisation in the parameters alone, for `uncertainty`.

        With the curvatures `C_i = diag(c_i)` of the loss, rows are freed of what the unknowns of their run
        explain, `P_i - X_i (X_i^T C_i X_i)^-1 X_i^T C_i P_i`, so that `J^T C J` is the Schur complement and
        `J_i^T r_i` the score of a run. Without a robust loss they are `Q_i P_i` and `Q_i r_i`.
        """
        n, r, m = self.own.shape
        root = jnp.sqrt(self.curvature)[:, :, None]
        # A direction that no row sees explains nothing.
        inverse = jnp.linalg.pinv(root * self.own)
        score = jnp.swapaxes(self.own, 1, 2) @ self.residual[:, :, None]
        explained = inverse @ (root * self.parameters)
        moved = inverse @ (jnp.swapaxes(inverse, 1, 2) @ score)
        jacobian = (self.parameters - self.own @ explained).reshape(n * r, -1)
        residual = self.residual - (self.own @ moved)[:, :, 0]
        mask = jnp.ones(n * r, bool)
        curvature = self.curvature.reshape(-1)
        return Linearisation(residual.reshape(-1), jacobian, curvature, mask, ((n, r),), n * m)


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

    **Raises:** `ValueError` for more than 10,000 numbers in `params` and the unknowns of a run.
    """
    check_parameters(params)
    check_of_runs(unknowns=unknowns, runs=runs)
    shared, rebuild = ravel_pytree(params)

    def one(own, run):
        flat, unravel = ravel_pytree(own)
        both = jnp.concatenate([shared, flat])

        def rows(x):
            out = residual(rebuild(x[: shared.size]), unravel(x[shared.size :]), run)
            found = ravel_pytree(out)[0]
            if not jnp.issubdtype(found.dtype, jnp.floating):
                raise ValueError(
                    f"residual must return real numbers, got {found.dtype} with these params, unknowns "
                    "and runs."
                )
            return found

        push = jax.vmap(lambda t: jax.jvp(rows, (both,), (t,)), out_axes=(None, 1))
        remedy = "Free fewer of them, or descend by the gradient alone."
        of = "numbers in params and in the unknowns of a run"
        value, slopes = push(directions(both.size, both.dtype, of, remedy))
        parts = slopes[:, : shared.size], slopes[:, shared.size :]
        return ByRun(value, *parts, jnp.ones_like(value))

    return jax.vmap(one)(unknowns, runs)
