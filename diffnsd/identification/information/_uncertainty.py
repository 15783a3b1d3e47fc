"""How well the data determine the parameters: standard errors, correlations, warnings.

At the optimum, with residuals `r`, their Jacobian `J` (Gauss-Newton) and the second derivative
`H = J^T C J` of the loss, the covariance of the raw parameters is

    s^2 (J^T J)^-1,  s^2 = |r|^2 / (n - p)                       independent residuals
    (G-1)/G sum_g d_g d_g^T,                                     residuals in groups g = 1 ... G
    d_g = (H - H_g)^-1 J_g^T r_g

`C` is 1 but for a robust loss: outliers pull with a force that does not grow, and add nothing to `H`
(Huber 1964). The first line is then `H^-1 J^T V J H^-1`, with `V_i = C_i s^2 + (1 - C_i) r_i^2` and
`s^2` of what is no outlier. `d_g` is what leaving out group `g` changes (the jackknife, CR3). The errors
along one simulated trajectory are far from independent. For trajectories use the second, cluster-robust
form, which allows any dependence inside a group, and groups that say much more than others.
The covariance of the physical values is `T C T^T`, with `T` the derivative of the transforms.

References: P. J. Huber (1964), doi:10.1214/aoms/1177703732; K.-Y. Liang, S. L. Zeger (1986),
doi:10.1093/biomet/73.1.13; A. C. Cameron, D. L. Miller, "A practitioner's guide to cluster-robust
inference" (2015), doi:10.3368/jhr.50.2.317; J. G. MacKinnon, M. O. Nielsen, M. D. Webb (2023),
doi:10.1016/j.jeconom.2022.04.001.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import betainc
from jaxtyping import Array, Bool, Float, PyTree

from ..._arguments import checked_arguments
from .._base import check_parameters, parameter_nodes
from ..residuals._linearise import Linearisation
from ._contradictions import about_bounds
from ._judgement import PhysicalNumber, about_outliers, judge, pairs

_REDUNDANT = 1e-7
"""With columns of unit length, singular values below this fraction of the largest count as zero."""

_PARTNER = 0.1
"""A parameter is part of a null vector if its entry exceeds this fraction of the largest one."""

_FEW_GROUPS = 10


class Uncertainty(eqx.Module):
    """Standard errors and correlations of an estimate, in physical units.

    The parameters are flattened to `k` numbers with `labels` such as `mu` or `inertia[0,1]`.

    **Arguments:**

    - `labels`, `units`: of each number.
    - `values`, `standard_errors`: shape `(k,)`; an error is infinite if the data give no information.
    - `independent_errors`: shape `(k,)`: what the standard errors would be if all residuals were independent
      (classical); the same as `standard_errors` without groups.
    - `correlations`, `covariance`: shape `(k, k)`; where an error is infinite, NaN off the diagonal.
    - `determined`: shape `(k,)`; whether the data determine the number.
    - `warnings`: sentences, each with its remedy.
    - `residual_deviation`: standard deviation of the residuals, in their unit.
    - `degrees_of_freedom`: of Student's t for confidence intervals: `n - p`, or number of groups
      minus one.
    """

    labels: tuple[str, ...]
    units: tuple[str | None, ...]
    values: Float[np.ndarray, " k"]
    standard_errors: Float[np.ndarray, " k"]
    independent_errors: Float[np.ndarray, " k"]
    correlations: Float[np.ndarray, "k k"]
    covariance: Float[np.ndarray, "k k"]
    determined: Bool[np.ndarray, " k"]
    warnings: tuple[str, ...]
    residual_deviation: float
    degrees_of_freedom: int

    def __getitem__(self, label: str) -> tuple[float, float]:
        """Value and standard error. **Raises:** `KeyError` listing the existing labels."""
        if label not in self.labels:
            raise KeyError(f"no parameter {label!r}; there are: {', '.join(self.labels)}.")
        i = self.labels.index(label)
        return float(self.values[i]), float(self.standard_errors[i])

    def interval(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Confidence intervals by label: the value and Student's quantile times its standard error.

        **Raises:** `ValueError` if `level` is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level}.")
        half = student_quantile(level, self.degrees_of_freedom) * self.standard_errors
        ends = zip(self.labels, self.values - half, self.values + half, strict=True)
        return {label: (float(lo), float(hi)) for label, lo, hi in ends}


@checked_arguments
def uncertainty(
    params: PyTree[Array],
    linearisation: Linearisation,
    *,
    groups: Array | np.ndarray | None = None,
    value_limit: float = 0.5,
    interval_limit: float = 0.25,
    correlation_limit: float = 0.99,
) -> Uncertainty:
    """Standard errors of least-squares estimates, with warnings where the data are not informative.

    **Arguments:**

    - `params`: the estimate, at the optimum.
    - `linearisation`: residuals and Jacobian there: `result.linearisation` of `least_squares`, or
      `linearise(residual, params)` after another fit.
    - `groups`: labels of groups of dependent residuals (trajectories): shape `(r,)`, or a leading
      shape of all residual leaves, such as `(trajectories,)`. By default all residuals count as
      independent, which understates the errors for trajectories.
    - `value_limit`: a parameter without an interval counts as determined if its standard error is
      below this fraction of its value.
    - `interval_limit`: a parameter with an interval counts as determined if its standard error is
      below this fraction of the interval's width. Knowing only the interval corresponds to a
      standard deviation of 0.29 widths.
    - `correlation_limit`: correlation above which a warning says that two parameters are hard to
      tell apart.

    **Returns:** an `Uncertainty`.

    **Raises:** `ValueError` if there are not more residuals than parameters, or fewer than two
    groups, or if residuals or Jacobian are not finite or do not belong to `params`.
    """
    check_few(params)
    values, transfer, numbers, raw_labels = physical(params)
    raw = raw_covariance(linearisation, groups, raw_labels)
    lost, freedom, deviation = raw.lost, raw.freedom, raw.deviation
    sentences = list(raw.sentences)
    unknown = (np.abs(transfer) > 0) @ lost > 0

    def errors_of(matrix: np.ndarray) -> np.ndarray:
        return np.where(unknown, np.inf, np.sqrt(np.maximum(np.diag(matrix), 0)))

    covariance, independent = (transfer @ m @ transfer.T for m in (raw.matrix, raw.independent))
    errors = errors_of(covariance)
    covariance[unknown, :] = covariance[:, unknown] = np.nan
    covariance[unknown, unknown] = np.inf
    correlations = _correlations(covariance, errors)
    known, more = judge(numbers, values, errors, value_limit, interval_limit)
    remark = "; the standard errors do not hold there"
    more += about_bounds(numbers, values + transfer @ raw.step, errors, remark)
    more += pairs(numbers, correlations, correlation_limit)
    return Uncertainty(
        labels=tuple(number.label for number in numbers),
        units=tuple(number.unit for number in numbers),
        values=values,
        standard_errors=errors,
        independent_errors=errors_of(independent),
        correlations=correlations,
        covariance=covariance,
        determined=np.asarray(known),
        warnings=tuple(sentences + more),
        residual_deviation=deviation,
        degrees_of_freedom=freedom,
    )


class RawCovariance(NamedTuple):
    """Covariance `(p, p)` of raw parameters; what the data do not determine is `lost` and counts zero.

    `independent` is the covariance if all residuals were independent; `step` the Gauss-Newton step that is
    left, which bounds may forbid.
    """

    matrix: np.ndarray
    step: np.ndarray
    independent: np.ndarray
    lost: np.ndarray
    freedom: int
    deviation: float
    sentences: list[str]


def raw_covariance(linearisation: Linearisation, groups, labels: list[str]) -> RawCovariance:
    """The covariance of the raw parameters by the formulas above; `labels` are their names."""
    keep = np.asarray(linearisation.mask)
    residual = np.asarray(linearisation.residual, float)[keep]
    jacobian = np.asarray(linearisation.jacobian, float)[keep]
    _check(residual, jacobian, len(labels), linearisation.eliminated)
    bent = np.asarray(linearisation.curvature, float)[keep]
    curved = np.sqrt(bent)[:, None] * jacobian
    bread, lost, sentences = _bread(curved, jacobian, np.asarray(labels))
    # Eliminated unknowns cost degrees of freedom, as if their rows had been removed.
    n, p = jacobian.shape[0] - linearisation.eliminated, jacobian.shape[1]
    deviation = float(np.sqrt(residual @ residual / (n - p)))
    common = bent @ residual**2 / max(np.sum(bent) - linearisation.eliminated - p, 1.0)
    variances = bent * common + (1 - bent) * residual**2
    step = -bread @ (jacobian.T @ residual)
    independent = bread @ (jacobian.T * variances @ jacobian) @ bread
    labelled = None if groups is None else linearisation.rows(groups)[keep]
    sentences += about_outliers(bent, labelled)
    if labelled is None:
        return RawCovariance(independent, step, independent, lost, n - p, deviation, sentences)
    changes = _left_out(residual, jacobian, curved, labelled, bread)
    count = len(changes)
    if count <= max(_FEW_GROUPS, p):
        sentences.append(
            f"there are only {count} groups for {p} parameters: cluster-robust standard errors "
            "are then too small; use more trajectories."
        )
    covariance = (count - 1) / count * changes.T @ changes
    return RawCovariance(covariance, step, independent, lost, count - 1, deviation, sentences)


MOST_PARAMETERS = 5000
"""A matrix of so many rows, of which several are needed, takes 0.2 GB."""


def check_few(params: PyTree) -> None:
    """**Raises:** `ValueError` if matrices between all parameters would be too large."""
    check_parameters(params)
    count = sum(map(np.size, jax.tree.leaves(params)))
    if count > MOST_PARAMETERS:
        raise ValueError(
            f"params has {count} numbers, and a matrix of so many rows is too large: at most "
            f"{MOST_PARAMETERS} can be free."
        )


def physical(params: PyTree) -> tuple[np.ndarray, np.ndarray, list[PhysicalNumber], list[str]]:
    """Physical values `(k,)`, their derivative with respect to the raw ones `(k, p)`, labels of both."""
    raw, unravel = ravel_pytree(params)

    def physical(x):
        parts = [t.forward(leaf).ravel() for _, leaf, t, _ in parameter_nodes(unravel(x))]
        return jnp.concatenate(parts)

    both = jax.jit(lambda x: (physical(x), jax.jacfwd(physical)(x)))(raw)
    values, transfer = (np.asarray(array, float) for array in both)
    numbers, raw_labels = [], []
    for name, leaf, transform, unit in parameter_nodes(params):
        shape = jax.eval_shape(transform.forward, leaf).shape
        lo, hi = (np.broadcast_to(side, shape) for side in transform.limits())
        indices = list(np.ndindex(*shape))
        labels = [name + (f"[{','.join(map(str, i))}]" if i else "") for i in indices]
        numbers += [
            PhysicalNumber(label, name, unit, float(lo[i]), float(hi[i]))
            for label, i in zip(labels, indices, strict=True)
        ]
        raw_labels += labels if leaf.shape == shape else [name] * leaf.size
    return values, transfer, numbers, raw_labels


def _check(residual: np.ndarray, jacobian: np.ndarray, p: int, eliminated: int) -> None:
    n = residual.size - eliminated
    if jacobian.shape != (residual.size, p):
        raise ValueError(
            f"the Jacobian has {jacobian.shape[-1]} columns, but there are {p} raw parameters."
        )
    if n <= p:
        raise ValueError(f"{n} residuals cannot determine {p} parameters and their errors.")
    if not (np.all(np.isfinite(residual)) and np.all(np.isfinite(jacobian))):
        raise ValueError("residuals or Jacobian are not finite; mask the entries that are missing.")


def _bread(curved: np.ndarray, jacobian: np.ndarray, labels: np.ndarray):
    """`H^+` of `curved = C^1/2 J`, the mask of raw parameters in its null space, and warnings about them.

    The columns are first scaled to unit length, so that units do not matter.
    """
    norms = np.linalg.norm(curved, axis=0)
    silent = norms == 0
    outlying = silent & np.any(jacobian != 0, axis=0)
    safe = np.where(silent, 1.0, norms)
    _, singular, vectors = np.linalg.svd(curved / safe, full_matrices=False)
    dropped = singular <= _REDUNDANT * singular[0]
    inverse = np.where(dropped, 0.0, 1 / np.where(dropped, 1.0, singular))
    bread = (vectors.T * inverse**2) @ vectors / np.outer(safe, safe)

    lost = silent.copy()
    sentences = [
        f"the residuals do not depend on {label} at all: fix it, or add data that it influences."
        for label in dict.fromkeys(labels[silent & ~outlying])
    ] + [
        f"all residuals that depend on {label} are outliers: look at the data, or let the robust loss begin "
        "further out."
        for label in dict.fromkeys(labels[outlying])
    ]
    for vector in vectors[dropped]:
        involved = (np.abs(vector) > _PARTNER * np.max(np.abs(vector))) & ~silent
        if involved.any():
            lost |= involved
            together = ", ".join(dict.fromkeys(labels[involved]))
            sentences.append(
                f"the data determine only a combination of {together}: fix one of them, or add "
                "data that tell them apart."
            )
    return bread, lost, sentences


def _left_out(residual, jacobian, curved, labels, bread) -> np.ndarray:
    """How far leaving out each group moves the raw parameters, to first order: `(groups, p)`.

    With `B = H^-1` and `A = H_g`: `(B^-1 - A)^-1 J_g^T r_g = B (1 - A B)^-1 J_g^T r_g`. If a
    group alone determines something, `1 - A B` is singular, and the change is that of least norm.
    """
    names, index = np.unique(labels, return_inverse=True)
    if names.size < 2:
        raise ValueError("cluster-robust errors need at least two groups; leave `groups` out.")
    changes = []
    for g in range(names.size):
        rows = curved[index == g]
        rest = np.eye(len(bread)) - rows.T @ rows @ bread
        score = jacobian[index == g].T @ residual[index == g]
        changes.append(bread @ np.linalg.lstsq(rest, score, rcond=1e-9)[0])
    return np.array(changes)


def _correlations(covariance: np.ndarray, errors: np.ndarray) -> np.ndarray:
    usable = np.isfinite(errors) & (errors > 0)
    safe = np.where(usable, errors, 1.0)
    correlations = covariance / np.outer(safe, safe)
    correlations[~usable, :] = correlations[:, ~usable] = np.nan
    np.fill_diagonal(correlations, 1.0)
    return correlations


def student_quantile(level: float, n: int) -> float:
    """`t` with `P(|T| <= t) = level` for Student's distribution with `n` degrees of freedom."""
    lo, hi = 0.0, 1e8

    def inside(t):
        return 1 - float(betainc(jnp.asarray(n / 2), jnp.asarray(0.5), jnp.asarray(n / (n + t**2))))

    for _ in range(200):
        middle = (lo + hi) / 2
        lo, hi = (middle, hi) if inside(middle) < level else (lo, middle)
    return (lo + hi) / 2
