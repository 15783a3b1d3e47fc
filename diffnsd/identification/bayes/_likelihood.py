"""Likelihoods of residuals: how probable the measured motion is for given parameters."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..._arguments import AbstractChecked, Number, Numbers
from ..._expects import returned
from .._base import check_parameters
from ..residuals._linearise import Linearisation, runs_of, spread_mask

_TOO_LARGE, _CHANCE = 2.0, 4.0
"""Limits of chi²/n, and of its excess in standard deviations of what chance makes of it."""
_FAR, _MANY = 3.0, 0.2
"""So many of the residuals beyond so many scales are no exception: of four degrees of freedom 4 % are."""
_SEVERAL = 5
"""Least number of residuals that tell of a run."""


class AbstractNoise(AbstractChecked):
    """A log-likelihood of residuals that tells whether they look like its noise."""

    @abstractmethod
    def about_misfit(self, params: PyTree) -> list[str]:
        """Sentences if the residuals of `params`, in all or in one of their runs, are no such noise."""


class GaussianNoise(AbstractNoise):
    """Log-likelihood of residuals with normal errors of one standard deviation.

        log L = w (-|r|^2 / (2 s^2) - n log s),      s given
        log L = -w n / 2 log |r|^2,                  s unknown, integrated out with the density 1/s

    **Arguments:**

    - `residual`: pure function of the parameters that returns a pytree of floating arrays, the
      simulated minus the measured motion.
    - `deviation`: standard deviation `s` of the noise, in the unit of the residuals, one number, or
      `None` if it is unknown. Residuals of several units are divided by their deviations first.
    - `mask`: which residuals count, as in `linearise`.
    - `weight`: `w`, the share of the residuals that count as independent, 1 by default. Where the
      model, not the sensor, makes most of the error, the residuals along a run are alike, and 1
      makes the posterior too narrow. The ratio of the variances that `uncertainty` gives without
      and with `groups` is a good value.

    **Raises:** `ValueError` if `deviation` is not positive or `weight` not in (0, 1].
    """

    residual: Callable[[PyTree], PyTree[Array]]
    deviation: Number | None = None
    mask: PyTree | None = None
    weight: float = 1.0

    def __check_init__(self):
        if self.deviation is not None and not np.all(np.asarray(self.deviation) > 0):
            raise ValueError(f"the deviation must be positive, got {self.deviation}.")
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight must be in (0, 1], got {self.weight}.")

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        r, count = _residuals(self.residual, params, self.mask)
        if self.deviation is None:
            return -self.weight * count / 2 * jnp.log(jnp.sum(r**2))
        s = jnp.asarray(self.deviation, r.dtype)
        return -self.weight * (jnp.sum(r**2) / (2 * s**2) + count * jnp.log(s))

    def about_misfit(self, params):
        if self.deviation is None:
            return []  # then the residuals themselves tell the noise
        squares = _by_run(self, params, lambda r: (r / np.asarray(self.deviation)) ** 2)
        large = [
            (run, np.mean(x))
            for run, x in squares
            if np.mean(x) > _TOO_LARGE
            and np.mean(x) - 1 > _CHANCE * np.sqrt(2 / x.size / self.weight)
        ]
        return _misfit(
            [(run, f"chi²/n = {ratio:.3g}") for run, ratio in large],
            "are larger than `deviation` says",
            "StudentNoise or deviation=None",
        )


class StudentNoise(AbstractNoise):
    """Log-likelihood of residuals with Student's t distribution: outliers count little.

        log L = w sum_i (-(nu + 1)/2 log(1 + r_i^2 / (nu s^2)) - log s)

    **Arguments:** `residual`, `mask`, `weight`: as in `GaussianNoise`; `deviation`: the scale `s`;
    `freedom`: degrees of freedom `nu`, 4 by default; a smaller number makes heavier tails.

    **Raises:** `ValueError` if `deviation` or `freedom` is not positive, or `weight` not in (0, 1].

    Reference: K. L. Lange, R. J. A. Little, J. M. G. Taylor, "Robust statistical modeling using the
    t distribution" (1989), doi:10.1080/01621459.1989.10478852.
    """

    residual: Callable[[PyTree], PyTree[Array]]
    deviation: Numbers
    mask: PyTree | None = None
    weight: float = 1.0
    freedom: float = 4.0

    def __check_init__(self):
        if not (np.all(np.asarray(self.deviation) > 0) and self.freedom > 0):
            raise ValueError(
                f"deviation and freedom must be positive, got {self.deviation}, {self.freedom}."
            )
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight must be in (0, 1], got {self.weight}.")

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        # A masked residual is zero and adds nothing to the sum.
        r, count = _residuals(self.residual, params, self.mask)
        s, nu = jnp.asarray(self.deviation, r.dtype), self.freedom
        tails = (nu + 1) / 2 * jnp.sum(jnp.log1p(r**2 / (nu * s**2)))
        return -self.weight * (tails + count * jnp.log(s))

    def about_misfit(self, params):
        far = _by_run(self, params, lambda r: np.abs(r) > _FAR * np.asarray(self.deviation))
        return _misfit(
            [(run, f"{np.mean(x):.0%} of them") for run, x in far if np.mean(x) > _MANY],
            f"are outliers, beyond {_FAR:.0f} of its scales",
            "a larger deviation",
        )


class Guided(AbstractNoise):
    """A log-likelihood of rough simulations, with the derivatives of the same noise about their plane.

        log L = noise(residual),      ∂ log L = ∂ noise(r + J (p − p0)),   likewise of second derivatives

    Plain time stepping through impacts makes residuals that are rough: their derivatives are those of a
    tooth, which lead `NUTS` nowhere, and have no mode. The plane through residuals around an estimate does.
    The draws are those of the rough likelihood, since a sampler accepts by values: a guide that is off only
    costs acceptance. It costs least in the middle of the posterior: where that is not the estimate, take the
    plane at the mean of a short run. And no derivative of the simulation is compiled or computed.

        plane = identification.linearise(noise.residual, fit.params, jacobian=SecantJacobian(widths))
        found = identification.posterior(Guided(noise, plane, fit.params), fit.params, sampler=NUTS())

    **Arguments:** `noise`: `GaussianNoise` or `StudentNoise`; `plane`: the linearisation of its residual,
    with its mask, about an estimate `params`.

    **Raises:** `ValueError` if the plane has another number of parameters.
    """

    noise: GaussianNoise | StudentNoise
    plane: Linearisation
    params: PyTree[Array]

    def __check_init__(self):
        check_parameters(self.params)
        count, columns = sum(np.size(x) for x in jax.tree.leaves(self.params)), self.plane.jacobian
        if columns.shape[1] != count:
            raise ValueError(
                f"the plane has {columns.shape[1]} columns for {count} parameters: linearise the "
                "residual at the same `params`."
            )

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        moved = ravel_pytree(params)[0] - ravel_pytree(self.params)[0]
        residual = self.plane.residual + self.plane.jacobian @ moved
        smooth = dataclasses.replace(self.noise, residual=lambda _: residual, mask=self.plane.mask)(
            params
        )
        # Nothing of the simulation is differentiated, not even to be thrown away.
        rough = self.noise(jax.lax.stop_gradient(params))
        return smooth + jax.lax.stop_gradient(rough - smooth)

    def about_misfit(self, params):
        return self.noise.about_misfit(params)


@eqx.filter_jit
def _residual_at(residual: Callable, params: PyTree):
    return residual(params)


def _by_run(noise: Any, params: PyTree, of: Callable) -> list[tuple[str, np.ndarray]]:
    """`of` the residuals that count: of all, and of the runs along their leading axis, the worst first."""
    values = _residual_at(noise.residual, params)
    leaves, structure = jax.tree.flatten(values)
    shapes = [tuple(np.shape(leaf)) for leaf in leaves]
    masks = [np.asarray(keep).ravel() for keep in spread_mask(noise.mask, structure, shapes)]
    keep = np.concatenate(masks)
    found = of(np.concatenate([np.asarray(leaf, float).ravel() for leaf in leaves])[keep])
    if (labels := runs_of(shapes)) is None:
        return [("", found)]
    rows = labels[keep]
    runs = [(f"run {run}", found[rows == run]) for run in np.unique(rows)]
    runs = [(run, x) for run, x in runs if x.size >= _SEVERAL]
    return [("", found), *sorted(runs, key=lambda run: -np.mean(run[1]))]


def _misfit(bad: list[tuple[str, str]], what: str, remedy: str) -> list[str]:
    """One sentence about all residuals, or about those of bad runs."""
    if not bad:
        return []
    named = ", ".join(f"{run} ({much})" if run else f"in all {much}" for run, much in bad[:5])
    more = ", ..." * (len(bad) > 5)
    return [
        f"the residuals {what}: {named}{more}; the draws can then be too narrow and beside the truth: look "
        f"at the data, leave out what is wrong, look for what the model lacks, or take {remedy}."
    ]


def _residuals(residual, params, mask) -> tuple[Float[Array, " r"], Array]:
    """Flat residuals, zero where masked, and the number of those that count."""
    leaves, structure = jax.tree.flatten(residual(params))
    leaves = [returned("residual(params)", x, "floating-point arrays") for x in leaves]
    if not sum(leaf.size for leaf in leaves):
        raise ValueError(
            "residual(params) must return floating-point arrays; it returned no numbers."
        )
    masks = spread_mask(mask, structure, [tuple(jnp.shape(leaf)) for leaf in leaves])
    kept = [
        jnp.where(keep, leaf, jnp.zeros_like(leaf)).ravel()
        for leaf, keep in zip(leaves, masks, strict=True)
    ]
    r = jnp.concatenate(kept)
    return r, jnp.sum(jnp.stack([jnp.sum(keep) for keep in masks])).astype(r.dtype)


def log_density(function: Callable, params: PyTree) -> Float[Array, ""]:
    """`function(params)`, minus infinity where it is not finite. **Raises:** if it is no scalar."""
    value = returned("log_likelihood(params)", function(params), "one floating-point number")
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            "log_likelihood must return one floating point number; it returns an array of shape "
            f"{value.shape} and type {value.dtype}. For residuals: GaussianNoise(residual)."
        )
    return jax.lax.select(jnp.isfinite(value), value, jnp.full_like(value, -jnp.inf))
