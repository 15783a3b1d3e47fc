"""Residuals and their Jacobian at given parameters, with masks and robust losses."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ..._arguments import AbstractChecked, checked_arguments
from ..._expects import returned
from ..._jax import is_traced
from .._base import check_parameters, with_axes


class AbstractJacobian(AbstractChecked):
    """How to compute the Jacobian of the residuals; the choice does not affect its value."""

    @abstractmethod
    def __call__(
        self, function: Callable[[Array], Array], x: Float[Array, " p"]
    ) -> tuple[Float[Array, " r"], Float[Array, "r p"]]:
        """`function(x)` and its derivative."""

    def evaluations(self, p: int) -> int:
        """How often the function is evaluated for `p` parameters, with or without derivatives."""
        return 1


class AbstractSampledJacobian(AbstractJacobian):
    """A Jacobian that follows from values and derivatives along one direction at each of several points.

    Who can simulate such points by a program of their own, for which `x` is data, needs no other.
    """

    @abstractmethod
    def samples(
        self, x: Float[Array, " p"]
    ) -> tuple[Float[Array, "k p"], Float[Array, "k p"] | None]:
        """The points, and the direction at each; `None` where no derivative is used."""

    @abstractmethod
    def combined(
        self, values: Float[Array, "k r"], tangents: Float[Array, "k r"] | None
    ) -> tuple[Float[Array, " r"], Float[Array, "r p"]]:
        """Residuals and Jacobian from what was found at the points."""


MOST_DIRECTIONS = 10_000
"""A square matrix of so many rows takes 0.8 GB."""


def directions(count: int, dtype, of: str, remedy: str) -> Float[Array, "n n"]:
    """The unit vectors along which a Jacobian is computed, one for each of `count` numbers `of` something."""
    if count > MOST_DIRECTIONS:
        raise ValueError(
            f"{count} {of} are too many for a Jacobian with a derivative along each: at most "
            f"{MOST_DIRECTIONS}. {remedy}"
        )
    return jnp.eye(count, dtype=dtype)


class ForwardJacobian(AbstractSampledJacobian):
    """Computes all columns in one evaluation. For few parameters; memory does not grow with time.

    **Raises:** `ValueError` for more than 10,000 parameters.
    """

    def __call__(self, function, x):
        remedy = "Take ReverseJacobian() where residuals are few, or descend by the gradient alone."
        columns = directions(x.size, x.dtype, "numbers in params", remedy)
        push = jax.vmap(lambda t: jax.jvp(function, (x,), (t,)), out_axes=(None, 1))
        return push(columns)

    def samples(self, x):
        return jnp.broadcast_to(x, (x.size, x.size)), jnp.eye(x.size, dtype=x.dtype)

    def combined(self, values, tangents: Any):
        return values[0], tangents.T


FORWARD = ForwardJacobian()


class ReverseJacobian(AbstractJacobian):
    """One backward pass per residual. For fewer residuals than parameters.

    **Raises:** `ValueError` for more than 10,000 residuals.
    """

    def __call__(self, function, x):
        residual, pull = jax.vjp(function, x)
        remedy = "Take ForwardJacobian() where parameters are few."
        rows = directions(residual.size, residual.dtype, "residuals", remedy)
        (jacobian,) = jax.vmap(pull)(rows)
        return residual, jacobian


class SecantJacobian(AbstractSampledJacobian):
    """The plane through the residuals at several points around `x`, by linear regression.

    For residuals that are rough: simulated motion jumps where an impact moves to the next time step,
    and the derivative of a tooth of a saw is not the slope of the saw. Value and slopes are those of
    the plane, so that both are averaged over the neighbourhood that `widths` spans; choose it about
    as wide as what the data do not distinguish, that is, a few standard errors. Needs no derivative.

    The points are `x +- r widths * d` along the `p` directions `d` of each of several rotated
    frames, with radii `r` of their own whose mean square is 1.

    **Arguments:** `widths`: shape `(p,)`, in the unit of the raw numbers, positive; `frames`: number
    of rotated frames, 2 by default: `4 p` evaluations.
    """

    widths: Float[Array, " p"]
    frames: int = eqx.field(default=2, static=True)

    def evaluations(self, p: int) -> int:
        return 2 * self.frames * p

    def __call__(self, function, x):
        return self.combined(jax.vmap(function)(self.samples(x)[0]), None)

    def samples(self, x):
        return x[None] + self._offsets(x.dtype) * self.widths[None].astype(x.dtype), None

    def combined(self, values, tangents):
        offsets = self._offsets(values.dtype)
        # The columns of the pattern are orthogonal: each frame's are.
        slopes = values.T @ offsets / (2 * self.frames)
        # A difference within rounding is none: what has no effect must not look like a small one.
        rounding = 8 * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values), axis=0)
        slopes = jnp.where(jnp.abs(slopes) > rounding[:, None], slopes, 0.0)
        return jnp.mean(values, axis=0), slopes / self.widths[None].astype(values.dtype)

    def _offsets(self, dtype) -> Float[Array, "k p"]:
        """The points in units of `widths`, around 0."""
        p, rng = self.widths.size, np.random.default_rng(0)
        radii = np.sqrt((2 * np.arange(self.frames) + 1) / self.frames)  # their mean square is 1
        turned = [r * np.linalg.qr(rng.normal(size=(p, p)))[0] for r in radii]
        return jnp.asarray(
            np.concatenate([side * frame for frame in turned for side in (1, -1)]), dtype
        )


class AbstractRobustLoss(AbstractChecked):
    """A loss `sum rho(r)` written as a sum of squares: `rho(r) = weigh(r)^2 / 2`."""

    @abstractmethod
    def weigh(self, residual: Array) -> Array:
        """`r sqrt(2 rho(r)) / |r|`, the residual to use in least squares."""

    @abstractmethod
    def missing_curvature(self, weighed: Array) -> Array:
        """`rho'(r) / (r weigh'(r)^2) - 1`, not negative, as a function of `weighed = weigh(r)`.

        Gauss-Newton on weighed residuals has the curvature `weigh'(r)^2`. For large residuals this
        is too small, and steps overshoot. Reweighted least squares has the curvature `rho'(r) / r`
        of a quadratic upper bound of `rho`. The result is their difference, relative to the first.
        """

    @abstractmethod
    def curvature(self, weighed: Array) -> Array:
        """`rho''(r) / weigh'(r)^2`, as a function of `weighed = weigh(r)`: what a residual adds to the second
        derivative of the loss, relative to Gauss-Newton on weighed residuals. Standard errors depend on it.
        """


class Huber(AbstractRobustLoss):
    """Huber's loss: `rho(r) = r^2 / 2` up to `|r| = delta`, then `delta (|r| - delta / 2)`.

    The slope is constant for outliers. The residual is reweighted to `r sqrt(2 rho(r)) / |r|`
    before it is linearised, so that accepted steps decrease Huber's loss itself.

    **Arguments:** `delta`: `|r|` at which it changes from quadratic to linear, in the unit of `r`; a number,
    or an array with one for each residual, of their shape.

    **Raises:** `ValueError` if `delta` is not positive.

    Reference: P. J. Huber, "Robust estimation of a location parameter" (1964),
    doi:10.1214/aoms/1177703732; the curvature: P. W. Holland, R. E. Welsch (1977),
    doi:10.1080/03610927708827533.
    """

    delta: float | Array

    def __check_init__(self):
        if not is_traced(self.delta) and not np.all(np.asarray(self.delta) > 0):
            raise ValueError(f"delta must be positive, got {self.delta}.")

    def weigh(self, residual: Array) -> Array:
        size = jnp.abs(residual)
        outside = size > self.delta
        safe = jnp.where(outside, size, self.delta)
        far = jnp.sign(residual) * jnp.sqrt(self.delta * (2 * safe - self.delta))
        return jnp.where(outside, far, residual)

    def missing_curvature(self, weighed: Array) -> Array:
        # rho' / r = delta / |r| and weigh'^2 = (delta / weighed)^2, with |r| from `weighed`.
        square = weighed**2
        return jnp.maximum((square - self.delta**2) / (square + self.delta**2), 0.0)

    def curvature(self, weighed: Array) -> Array:
        # The slope of an outlier's loss is constant.
        return jnp.where(jnp.abs(weighed) > self.delta, 0.0, 1.0)


class Linearisation(eqx.Module):
    """Flattened residuals and Jacobian at given parameters.

    **Arguments:**

    - `residual`: shape `(r,)`, after any robust loss; masked entries are zero.
    - `jacobian`: shape `(r, p)`, with respect to the raw parameters in the order of
      `jax.flatten_util.ravel_pytree`; masked rows are zero.
    - `curvature`: shape `(r,)`; second derivative of the robust loss, relative to Gauss-Newton on `residual`;
      1 without one. The second derivative of the whole loss is `J^T diag(curvature) J`.
    - `mask`: shape `(r,)`; which entries count.
    - `shapes`: shapes of the leaves of the residual pytree.
    - `eliminated`: number of further unknowns, onto whose complement residuals and Jacobian have been
      projected; they take as many degrees of freedom.
    """

    residual: Float[Array, " r"]
    jacobian: Float[Array, "r p"]
    curvature: Float[Array, " r"]
    mask: Bool[Array, " r"]
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    eliminated: int = eqx.field(static=True, default=0)

    def rows(self, labels) -> np.ndarray:
        """Expands labels, for example of trajectories, to the entries of the residual.

        **Arguments:** `labels`: shape `(r,)`, or a leading shape of all residual leaves.

        **Returns:** shape `(r,)`.
        """
        labels = np.asarray(labels)
        total = self.mask.shape[0]
        if all(shape[: labels.ndim] == labels.shape for shape in self.shapes):
            return _spread(labels, self.shapes)
        if labels.shape == (total,):
            return labels
        raise ValueError(
            f"groups has labels of shape {labels.shape}, which fit neither the {total} residuals nor the "
            f"leading axes of their shapes {self.shapes}."
        )


def runs_of(shapes) -> np.ndarray | None:
    """Indices along the leading axis of residuals, of each entry `(r,)`, if all leaves share one.

    A leaf with one axis alone has no runs.
    """
    lengths = {shape[0] if len(shape) > 1 else 0 for shape in shapes}
    if len(lengths) != 1 or max(lengths) < 2:
        return None
    return _spread(np.arange(max(lengths)), shapes)


def _spread(labels: np.ndarray, shapes) -> np.ndarray:
    """Labels of the leading axes of leaves, for each of their entries."""
    spread = [np.broadcast_to(with_axes(labels, len(s)), s) for s in shapes]
    return np.concatenate([x.ravel() for x in spread])


class AbstractLinearised(eqx.Module):
    """Residuals that `least_squares` does not compile: they linearise themselves, by programs of their own.

    For residuals whose cost is a simulation that other work needs too, of the same compiled program.
    """

    @abstractmethod
    def linearised(
        self,
        params: PyTree[Array],
        mask: PyTree | None,
        robust: AbstractRobustLoss | None,
        jacobian: AbstractJacobian,
    ) -> Linearisation:
        """As `linearise`."""

    def __call__(self, params: PyTree[Array]) -> Float[Array, " r"]:
        """The residuals, flattened."""
        return self.linearised(params, None, None, FORWARD).residual


@checked_arguments
def linearise(
    residual: Annotated[Callable[[PyTree], PyTree[Array]], "(params)"],
    params: PyTree[Array],
    *,
    mask: PyTree | None = None,
    robust: AbstractRobustLoss | None = None,
    jacobian: AbstractJacobian = FORWARD,
) -> Linearisation:
    """Computes residuals and their Jacobian with respect to the raw parameters.

    **Arguments:**

    - `residual`: function of the parameters that returns a pytree of floating arrays.
    - `params`: pytree of floating arrays.
    - `mask`: which residuals count: one boolean array for all leaves, or a pytree like the
      residuals. Each mask has a leading shape of its residual leaf. Masked residuals must be finite.
    - `robust`: a robust loss instead of the sum of squares.
    - `jacobian`: `ForwardJacobian()` or `ReverseJacobian()`.

    **Returns:** a `Linearisation`.

    **Raises:** `ValueError` for a mask that does not fit, or more parameters than `jacobian` can take.
    """
    check_parameters(params)
    flat, unravel = ravel_pytree(params)
    structures, shapes = [], []

    def function(x):
        out = residual(unravel(x))
        leaves, structure = jax.tree.flatten(out)
        structures[:], shapes[:] = [structure], [tuple(jnp.shape(leaf)) for leaf in leaves]
        parts = []
        for leaf, keep in zip(leaves, spread_mask(mask, structure, shapes), strict=True):
            leaf = returned("residual(params)", leaf, "floating-point arrays")
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(f"residuals must be floating point arrays, got {leaf.dtype}.")
            kept = jnp.where(keep, leaf, jnp.zeros_like(leaf)).ravel()
            parts.append(kept if robust is None else robust.weigh(kept))
        if not parts:
            raise ValueError(
                "residual(params) must return floating-point arrays; it returned none."
            )
        if not sum(part.size for part in parts):
            raise ValueError("residual(params) must return numbers; its arrays are empty.")
        return jnp.concatenate(parts)

    values, slopes = jacobian(function, flat)
    # `structures` and `shapes` are static, so the masks can be rebuilt outside the differentiation.
    masks = spread_mask(mask, structures[0], shapes)
    keep = jnp.concatenate([m.ravel() for m in masks])
    curvature = jnp.ones_like(values) if robust is None else robust.curvature(values)
    return Linearisation(values, slopes, curvature, keep, tuple(shapes))


def spread_mask(mask, structure, shapes) -> list[Array]:
    """The mask of every residual leaf, broadcast to the shape of that leaf."""
    if mask is None:
        return [jnp.ones(shape, bool) for shape in shapes]
    if eqx.is_array_like(mask):
        parts = [mask] * len(shapes)
    else:
        parts, mask_structure = jax.tree.flatten(mask)
        if mask_structure != structure:
            raise ValueError(
                f"the mask has structure {mask_structure}, the residuals have {structure}."
            )
    spread = []
    for part, shape in zip(parts, shapes, strict=True):
        part = jnp.asarray(part, bool)
        if shape[: part.ndim] != part.shape:
            raise ValueError(
                f"the mask of shape {part.shape} must be what the residual shape {shape} "
                "begins with."
            )
        spread.append(jnp.broadcast_to(with_axes(part, len(shape)), shape))
    return spread
