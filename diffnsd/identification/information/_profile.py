"""Profile likelihoods: the loss as a function of one parameter, all others at their best."""

from collections.abc import Callable, Sequence
from typing import Annotated

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..._arguments import checked_arguments
from .._base import Parameters
from ..fitting._least_squares import least_squares
from ..fitting._outcome import FIT_RESULTS, FitResult
from ..fitting._programs import Programs
from ..residuals._linearise import AbstractRobustLoss
from ._uncertainty import student_quantile


class Profile(eqx.Module):
    """The least loss for each of some values of one parameter, sorted by value.

    **Arguments:**

    - `name`, `values` `(g,)`: the parameter and its values.
    - `losses` `(g,)`: the least loss with each of them.
    - `converged` `(g,)`: whether that fit ended at a minimum.
    - `others`: the values of the other parameters there, by name, `(g, ...)`.
    - `estimate`, `loss`: value and loss of the fit of all parameters.
    - `degrees_of_freedom`: residuals minus parameters of that fit.
    """

    name: str
    values: Float[np.ndarray, " g"]
    losses: Float[np.ndarray, " g"]
    converged: Bool[np.ndarray, " g"]
    others: dict[str, np.ndarray]
    estimate: float
    loss: float
    degrees_of_freedom: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The values that the data do not exclude: `loss <= best (1 + F / (n - p))`.

        `F` is the quantile of the F distribution with one and `n - p` degrees of freedom, for
        independent normal residuals of unknown deviation. The ends are interpolated between the
        values of the profile; infinite on a side where the profile does not rise so far. Between the
        ends there may be more than one valley: look at `losses`.

        **Raises:** `ValueError` if `level` is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level}.")
        n = self.degrees_of_freedom
        best = min(self.loss, float(np.min(self.losses)))
        limit = best * (1 + student_quantile(level, n) ** 2 / n)
        inside = np.flatnonzero(self.losses <= limit)
        if inside.size == 0:  # all values lie outside: the estimate is between two of them
            place = int(np.searchsorted(self.values, self.estimate))
            values = np.insert(self.values, place, self.estimate)
            losses = np.insert(self.losses, place, self.loss)
            first = last = place
        else:
            values, losses, first, last = self.values, self.losses, inside[0], inside[-1]
        lower = -np.inf if first == 0 else _crossing(values, losses, first - 1, first, limit)
        last_one = last == len(values) - 1
        upper = np.inf if last_one else _crossing(values, losses, last, last + 1, limit)
        return float(lower), float(upper)


class _Held(eqx.Module):
    """Residuals as a function of the other parameters, while one is held."""

    residual: Callable
    value: Array
    params: Parameters
    held: int = eqx.field(static=True)

    def __call__(self, others: Parameters) -> PyTree[Array]:
        raw = list(others.raw)
        raw.insert(self.held, self.value)
        return self.residual(eqx.tree_at(lambda p: p.raw, self.params, tuple(raw)))


@checked_arguments
def profile(
    residual: Annotated[Callable[[PyTree], PyTree[Array]], "(params)"],
    fit: FitResult,
    name: str,
    values: Sequence[float] | np.ndarray,
    *,
    mask: PyTree | None = None,
    robust: AbstractRobustLoss | None = None,
    max_steps: int = 30,
) -> Profile:
    """Holds one parameter at each of some values and fits the others.

    Shows what a standard error hides: a flat or bent valley, a second minimum, a side on which the
    data exclude nothing. The fits go outwards from the estimate, each from the result of the last.

    **Arguments:**

    - `residual`, `mask`, `robust`: as in `least_squares`.
    - `fit`: the result of `least_squares` for all parameters; its `params` come from `parameters`.
    - `name`: the parameter, one number.
    - `values`: where to hold it, in its unit.
    - `max_steps`: of each fit.

    **Returns:** a `Profile`.

    **Raises:** `KeyError` for an unknown name; `ValueError` for values outside the bounds, or a
    parameter that is not one number; `TypeError` if the fit has no `Parameters`.

    Reference: D. M. Bates, D. G. Watts, Nonlinear Regression Analysis and Its Applications (1988),
    doi:10.1002/9780470316757.
    """
    params = fit.params
    if not isinstance(params, Parameters):
        raise TypeError(
            "profile needs a fit of `parameters(model, where)`; the fit has "
            f"{type(params).__name__}."
        )
    held = params.index(name)
    if params[name].shape != ():
        raise ValueError(f"{name} has shape {params[name].shape}; a profile holds one number.")
    grid = np.sort(np.asarray(values, float).ravel())
    if not (grid.size and np.all(np.isfinite(grid))):
        raise ValueError(f"values must be finite numbers, at least one, got {values}.")
    points = [params.with_values({name: value}).raw[held] for value in grid]
    rest = Parameters(
        raw=params.raw[:held] + params.raw[held + 1 :],
        names=params.names[:held] + params.names[held + 1 :],
        transforms=params.transforms[:held] + params.transforms[held + 1 :],
        units=params.units[:held] + params.units[held + 1 :],
    )
    programs, estimate = Programs(), float(params[name])
    found: dict[int, FitResult] = {}
    above = int(np.searchsorted(grid, estimate))
    for side in (range(above, grid.size), range(above - 1, -1, -1)):
        start = rest
        for i in side:
            function = _Held(residual, points[i], params, held)
            found[i] = least_squares(
                function,
                start,
                mask=mask,
                robust=robust,
                max_steps=max_steps,
                programs=programs,
                throw=False,
            )
            start = found[i].params
    fits = [found[i] for i in range(grid.size)]
    found_rows = [f.linearisation for f in fits if f.linearisation is not None]
    if not found_rows:
        raise ValueError(f"the residuals are not finite at any of the values {grid}.")
    count = int(np.sum(np.asarray(found_rows[0].mask)))
    return Profile(
        name=name,
        values=grid,
        losses=np.array([f.loss for f in fits]),
        converged=np.array([bool(f.result == FIT_RESULTS.successful) for f in fits]),
        others={k: np.stack([np.asarray(f.values()[k]) for f in fits]) for k in rest.names},
        estimate=estimate,
        loss=float(fit.loss),
        degrees_of_freedom=count - sum(raw.size for raw in params.raw),
    )


def _crossing(values, losses, i: int, j: int, limit: float) -> float:
    """Where the loss crosses the limit between two values; parabolic in the root of its excess."""
    low, high = (np.sqrt(max(losses[k] - np.min(losses), 0.0)) for k in (i, j))
    share = (np.sqrt(limit - np.min(losses)) - low) / (high - low)
    return values[i] + share * (values[j] - values[i])
