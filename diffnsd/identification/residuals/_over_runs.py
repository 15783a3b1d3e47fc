"""Losses and residuals of many runs, spread over devices."""

from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, PyTree

from ..._arguments import AbstractChecked
from ..._jax import is_traced
from ...rollout import rollout
from ...rollout._programs import with_automatic_axis
from .._base import check_of_runs
from ._linearise import AbstractJacobian, AbstractRobustLoss, Linearisation, linearise, spread_mask


class AbstractOverRuns(AbstractChecked):
    """A function `(params, run)` of each of many runs, as a function of the parameters alone.

    The runs are put on the devices of the mesh once, when this is made, an equal share on each: the last
    run is repeated where their number does not divide, and the copies do not count.
    """

    function: Callable
    runs: PyTree[Array]
    count: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)
    chunk: int | None = eqx.field(static=True)

    def __init__(
        self,
        function: Annotated[Callable, "(params, run)"],
        runs: PyTree[Array],
        mesh: Mesh,
        *,
        chunk: int | None = None,
    ):
        mesh = with_automatic_axis(mesh)
        check_of_runs(runs=runs)
        leaves = [np.shape(x) for x in jax.tree.leaves(runs)]
        counts = {shape[0] if shape else 0 for shape in leaves}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(
                f"runs must be arrays that share one leading axis, the runs, got shapes {leaves}."
            )
        (self.count,) = counts
        self.function, self.mesh, self.chunk = function, mesh, chunk
        self.runs = self._spread(runs)

    def _spread(self, tree: PyTree) -> PyTree[Array]:
        """Arrays with a leading axis of the runs, padded, each device with its share."""
        extra = -self.count % self.mesh.size
        share = NamedSharding(self.mesh, PartitionSpec(*self.mesh.axis_names))

        def put(x):
            # NumPy arrays, since those of one process are not those of all.
            xp: Any = jnp if is_traced(x) else np
            x = xp.asarray(x)
            return jax.device_put(xp.concatenate([x, xp.repeat(x[-1:], extra, axis=0)]), share)

        return jax.tree.map(put, tree)

    def _counts(self) -> Bool[np.ndarray, " n"]:
        """Which of the padded runs count."""
        return np.arange(self.count + -self.count % self.mesh.size) < self.count

    def _of_runs(self, params: PyTree, runs: PyTree) -> PyTree[Array]:
        return rollout(lambda run: self.function(params, run), runs, chunk=self.chunk)

    def _on_devices(self, function: Callable, over_runs: tuple, shared: Any, out_specs: Any) -> Any:
        """`function(shared, *shares)` on every device, with its share of the runs."""
        each, alike = PartitionSpec(*self.mesh.axis_names), PartitionSpec()
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(alike, *(each for _ in over_runs)),
            out_specs=out_specs,
            check_vma=False,
        )(shared, *over_runs)


class SumOverRuns(AbstractOverRuns):
    """The sum of a number over runs, on many devices: a loss for `fit`, or a log-likelihood for `posterior`.

        loss(params) = sum_i function(params, run_i)

        mesh = jax.sharding.Mesh(jax.devices(), ("run",))
        loss = identification.SumOverRuns(squared_error_of_toss, tosses, mesh)
        result = identification.fit(loss, params, optax.adam(0.05))

    Every device sums its own runs; value and gradient are then summed over the devices in one reduction.
    With `jax.distributed`, every process makes this with all runs and gets the same result.

    **Arguments:**

    - `function`: pure function `(params, run)` that returns a floating number.
    - `runs`: pytree of arrays with one leading axis, such as measured motions and start states.
    - `mesh`: a one-dimensional mesh of devices. `chunk`: runs per chunk on a device, as in `rollout`.

    **Raises:** `ValueError` if the runs have no common leading axis or the mesh more than one axis.
    """

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        flat, unravel = ravel_pytree(params)

        def own(flat, runs, counts):
            values = self._of_runs(unravel(flat), runs)
            if values.ndim != 1:
                raise ValueError(
                    f"the function of a run must return one number, got shape {values.shape[1:]}."
                )
            return jnp.sum(jnp.where(counts, values, 0.0), keepdims=True)

        each = PartitionSpec(*self.mesh.axis_names)
        return jnp.sum(self._on_devices(own, (self.runs, self._counts()), flat, each))


class ResidualOverRuns(AbstractOverRuns):
    """Residuals of runs on many devices, for `least_squares`.

        residual(params) = stack of function(params, run_i)

        mesh = jax.sharding.Mesh(jax.devices(), ("run",))
        residual = identification.ResidualOverRuns(error_of_toss, tosses, mesh)
        result = identification.least_squares(residual, params)

    Every device computes residuals and Jacobian of its own runs and factorises them, `J = Q R`. What a step
    of the fit needs of them, `R` and `Q^T r`, is gathered from all devices at once: nothing else is
    communicated, and no device sees all rows.

    Called with parameters it returns the residuals, `(n, ...)` for each leaf.

    **Arguments:**

    - `function`: pure function `(params, run)` that returns a pytree of floating arrays.
    - `runs`, `mesh`, `chunk`: as in `SumOverRuns`.

    **Raises:** as `SumOverRuns`.

    Reference: J. Demmel, L. Grigori, M. Hoemmen, J. Langou, "Communication-optimal parallel and sequential QR
    and LU factorizations" (2012), doi:10.1137/080731992.
    """

    def __call__(self, params: PyTree) -> PyTree[Array]:
        flat, unravel = ravel_pytree(params)

        def own(flat, runs):
            return self._of_runs(unravel(flat), runs)

        each = PartitionSpec(*self.mesh.axis_names)
        found = self._on_devices(own, (self.runs,), flat, each)
        return jax.tree.map(lambda x: x[: self.count], found)

    def rows(
        self,
        params: PyTree,
        mask: PyTree | None,
        robust: AbstractRobustLoss | None,
        jacobian: AbstractJacobian,
    ) -> tuple["Shares", tuple[Array, Array, Array | None]]:
        """As `rows_of`, factorised."""
        if any(np.ndim(x) for x in jax.tree.leaves(robust)):
            raise ValueError(
                "robust must have one number for all residuals where runs are spread over devices."
            )
        flat, unravel = ravel_pytree(params)
        given = () if mask is None else (self._spread_mask(mask),)

        def own(flat, runs, counts, *mask):
            def stacked(params):
                return self._of_runs(params, runs)

            out = jax.eval_shape(stacked, unravel(flat))
            leaves, structure = jax.tree.flatten(out)
            keep = spread_mask(mask[0] if mask else None, structure, [x.shape for x in leaves])
            keep = [m & counts.reshape(-1, *[1] * (m.ndim - 1)) for m in keep]
            keep = jax.tree.unflatten(structure, keep)
            here = linearise(stacked, unravel(flat), mask=keep, robust=robust, jacobian=jacobian)
            both = jnp.concatenate([here.jacobian, here.residual[:, None]], axis=1)
            parts = [both]
            if robust is not None:
                missing = jnp.sqrt(robust.missing_curvature(here.residual))
                parts.append(missing[:, None] * here.jacobian)
                parts[1] = jnp.pad(parts[1], ((0, 0), (0, 1)))
            small = jnp.stack([_triangle(part) for part in parts])
            gathered = jax.lax.all_gather(small, self.mesh.axis_names, axis=1, tiled=True)
            ends = np.cumsum([int(np.prod(x.shape)) for x in leaves])[:-1]
            flat = here.residual, here.jacobian, here.curvature, here.mask
            split = [jnp.split(x, ends) for x in flat]
            shares = [
                [x.reshape(*leaf.shape, *x.shape[1:]) for x, leaf in zip(xs, leaves, strict=True)]
                for xs in split
            ]
            return gathered, shares

        each = PartitionSpec(*self.mesh.axis_names)
        over = (self.runs, self._counts(), *given)
        gathered, shares = self._on_devices(own, over, flat, (PartitionSpec(), each))
        extra = gathered[1][:, :-1] if len(gathered) > 1 else None
        residual, slopes, curvature, keep = shares
        return Shares(residual, slopes, curvature, keep, self.count), (
            gathered[0][:, -1],
            gathered[0][:, :-1],
            extra,
        )

    def _spread_mask(self, mask: PyTree) -> PyTree[Array]:
        extra = -self.count % self.mesh.size
        return jax.tree.map(
            lambda m: jnp.concatenate(
                [jnp.asarray(m, bool), jnp.zeros((extra, *m.shape[1:]), bool)]
            ),
            mask,
        )


class Shares(eqx.Module):
    """Residuals, Jacobians, curvatures, masks by leaf, `(n, ...)`, still spread over devices and padded."""

    residual: list[Array]
    jacobian: list[Array]
    curvature: list[Array]
    mask: list[Array]
    count: int = eqx.field(static=True)

    def gathered(self) -> Linearisation:
        """On the host, in the order of `linearise`; of other processes too."""
        shapes = tuple((self.count, *x.shape[1:]) for x in self.residual)
        residual, curvature, mask = (
            _rows(x, self.count, 0) for x in (self.residual, self.curvature, self.mask)
        )
        jacobian = _rows(self.jacobian, self.count, 1)
        return Linearisation(residual, jacobian, curvature, mask, shapes)


def _rows(leaves: list[Array], count: int, keep: int) -> Array:
    """Leaves as rows, with the last `keep` axes."""
    from jax.experimental.multihost_utils import process_allgather

    local = [
        np.asarray(x if x.is_fully_addressable else process_allgather(x, tiled=True))[:count]
        for x in leaves
    ]
    return jnp.asarray(np.concatenate([x.reshape(-1, *x.shape[x.ndim - keep :]) for x in local]))


def _triangle(rows: Array) -> Array:
    """`R (p, p)` with `R^T R = rows^T rows`, padded with zeros where there are fewer rows."""
    p = rows.shape[1]
    padded = jnp.pad(rows, ((0, max(0, p - rows.shape[0])), (0, 0)))
    return jnp.linalg.qr(padded, mode="r")
