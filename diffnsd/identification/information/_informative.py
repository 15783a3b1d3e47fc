"""Design of experiments: what another measurement would tell of the parameters."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..._arguments import Numbers, checked_arguments
from ..._expects import refuse_below
from ...rollout import rollout
from .._base import check_of_runs
from ._uncertainty import check_few, physical


class Informative(eqx.Module):
    """Standard errors that each of `d` designs is expected to give, in physical units.

    **Arguments:** `labels`, `units`: of `k` numbers, as in `uncertainty`; `standard_errors`:
    `(d, k)`, infinite for what a design and the data before it do not determine; `information`:
    `(d, p, p)`, Fisher information of the raw parameters.
    """

    labels: tuple[str, ...]
    units: tuple[str | None, ...]
    standard_errors: Float[np.ndarray, "d k"]
    information: Float[np.ndarray, "d p p"]

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each number that some design does not determine, with the data before it."""
        sentences, count = [], len(self.standard_errors)
        for label, errors in zip(self.labels, self.standard_errors.T, strict=True):
            lost = np.flatnonzero(~np.isfinite(errors))
            if lost.size:
                few = f"designs {', '.join(map(str, lost[:5]))}{', ...' * (lost.size > 5)}"
                some = (
                    f"{few} of {count} do" if lost.size > 1 else f"design {lost[0]} of {count} does"
                )
                whose = (
                    "none of the designs determines"
                    if lost.size == count
                    else f"{some} not determine"
                )
                sentences.append(
                    f"{whose} {label}, alone or apart from others: observe what it influences, fix it, "
                    "or give the information of earlier data by `given`."
                )
        return tuple(sentences)

    def best(self, label: str) -> int:
        """Index of the design with the least error. **Raises:** `KeyError` listing the labels."""
        if label not in self.labels:
            raise KeyError(f"no parameter {label!r}; there are: {', '.join(self.labels)}.")
        return int(np.argmin(self.standard_errors[:, self.labels.index(label)]))


@checked_arguments
def fisher_information(
    observe: Annotated[Callable[[PyTree, PyTree], PyTree[Array]], "(params, design)"],
    params: PyTree[Array],
    design: PyTree,
    deviation: Numbers = 1.0,
) -> Float[Array, "p p"]:
    """`J^T J / s^2` of one design, `J` the derivative of what is observed by the raw parameters.

    A pure function: its derivative by the design improves an experiment by gradients.

    **Arguments:** as in `informative`, for one design.
    """
    check_few(params)
    flat, unravel = ravel_pytree(params)

    def observed(x):
        return ravel_pytree(observe(unravel(x), design))[0]

    _check_deviation(deviation)
    jacobian = jax.jacfwd(observed)(flat) / jnp.asarray(deviation, flat.dtype)
    return jacobian.T @ jacobian


@checked_arguments
def informative(
    observe: Annotated[Callable[[PyTree, PyTree], PyTree[Array]], "(params, design)"],
    params: PyTree[Array],
    designs: PyTree[Array],
    *,
    deviation: Numbers = 1.0,
    given: Float[Array, "p p"] | None = None,
) -> Informative:
    """Expected standard errors of parameters for each of several experiments.

        designs = {"v": speeds, "w": spins}  # leading axis: one toss each
        found = identification.informative(observe, params, designs, deviation=1e-3)
        toss = found.best("e")

    **Arguments:**

    - `observe`: pure function `(params, design)` that returns what would be measured, as a pytree of
      floating arrays: frames of a simulation from a start state, under controls, by some sensors.
    - `params`: the values expected so far, from `parameters`.
    - `designs`: pytree of arrays with a leading axis, one entry per design.
    - `deviation`: standard deviation of the noise, in the unit of what is observed; divide what has
      several units by their deviations in `observe`.
    - `given`: Fisher information of the data before, `(p, p)`: `J.T @ J` of a linearisation divided
      by the variance of its residuals, or `fisher_information`. Without it an experiment counts
      alone.

    **Returns:** an `Informative`.

    **Raises:** `ValueError` if a derivative is not finite, or `given` does not fit.

    Reference: A. C. Atkinson, A. N. Donev, R. D. Tobias, Optimum Experimental Designs, with SAS
    (2007), doi:10.1093/oso/9780199296590.001.0001.
    """
    check_few(params)
    check_of_runs(designs=designs)
    _check_deviation(deviation)
    _, transfer, numbers, _ = physical(params)
    p = transfer.shape[1]
    before = np.zeros((p, p)) if given is None else np.asarray(given, float)
    if before.shape != (p, p):
        raise ValueError(f"given has shape {before.shape}, but there are {p} raw parameters.")
    found = rollout(_Information(observe, params, jnp.asarray(deviation)), designs)
    information = np.asarray(found, float)
    if not np.all(np.isfinite(information)):
        bad = np.flatnonzero(~np.isfinite(information).all(axis=(1, 2)))
        raise ValueError(f"what designs {bad[:5].tolist()} observe has no finite derivative.")
    return Informative(
        labels=tuple(number.label for number in numbers),
        units=tuple(number.unit for number in numbers),
        standard_errors=np.stack([_errors(before + one, transfer) for one in information]),
        information=information,
    )


def _check_deviation(deviation) -> None:
    if np.ndim(deviation):
        raise ValueError(
            f"deviation must be one number, got an array of shape {np.shape(deviation)}; divide what has "
            "several units by their deviations in observe."
        )
    refuse_below("deviation", deviation, 0, strictly=True)


class _Information(eqx.Module):
    observe: Callable
    params: PyTree
    deviation: Array

    def __call__(self, design):
        return fisher_information(self.observe, self.params, design, self.deviation)


def _errors(information, transfer) -> np.ndarray:
    """Standard errors of physical numbers; infinite along the null space of the information."""
    scale = np.sqrt(np.diag(information))
    safe = np.where(scale > 0, scale, 1.0)
    curvature, vectors = np.linalg.eigh(information / np.outer(safe, safe))
    known = curvature > 1e-14 * max(curvature[-1], 0.0)
    rows = (transfer / safe) @ vectors
    lost = np.abs(rows[:, ~known]).max(axis=1, initial=0.0) > 1e-6 * np.abs(rows).max(axis=1)
    squares = np.sum(rows[:, known] ** 2 / curvature[known], axis=1)
    return np.where(lost, np.inf, np.sqrt(squares))
