"""Gradients of a loss averaged over a neighbourhood of its argument."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .._arguments import AbstractChecked, checked_arguments
from .._expects import refuse_below, returned
from ._rollout import rollout


class AbstractEstimator(AbstractChecked):
    """How one random displacement contributes to a bundled gradient."""

    @abstractmethod
    def sample(self, function: Callable, x: Array, step: Array, direction: Array) -> Array:
        """The contribution of `x ± step * direction`, shape `(n,)`."""


class ZerothOrder(AbstractEstimator):
    """`w (f(x + σ w) − f(x − σ w)) / 2σ`: uses values only, so it captures every jump of `f`.

    Unbiased for the gradient of the average of `f`, with a variance of order `n |∇f|²`.
    """

    def sample(self, function: Callable, x: Array, step: Array, direction: Array) -> Array:
        change = function(x + step * direction) - function(x - step * direction)
        return change / 2 * direction / step


class FirstOrder(AbstractEstimator):
    """`∇f(x + σ w)`: has little variance, but misses whatever `∇f` misses.

    Through a plain time-stepping scheme it has the bias of that scheme's derivative, for any number of
    samples: the effect of impact times is in the jumps of `f` from step to step.
    """

    def sample(self, function: Callable, x: Array, step: Array, direction: Array) -> Array:
        return jax.grad(function)(x + step * direction)


class BundledGradient(eqx.Module):
    """**Arguments:** `gradient`: a pytree like `x`; `standard_error`: of each entry, like `x`."""

    gradient: PyTree[Array]
    standard_error: PyTree[Array]


class _Sample(eqx.Module):
    """Evaluates one displacement; calls with the same loss share one program."""

    function: Callable
    estimator: AbstractEstimator

    def __call__(self, sample: tuple[PyTree[Array], Array, Array]) -> Array:
        x, step, direction = sample
        flat, unravel = ravel_pytree(x)

        def value(y):
            found, what = self.function(unravel(y)), "one real number"
            return returned("function(x)", found, what, shape=(), smooth=True)

        return self.estimator.sample(value, flat, step, direction)


def _is_numbers(x: Any) -> bool:
    kind = getattr(x, "dtype", type(x))
    return eqx.is_array_like(x) and any(jnp.issubdtype(kind, k) for k in (np.integer, np.floating))


@checked_arguments
def bundled_gradient(
    function: Annotated[Callable, "(x)"],
    x: PyTree[Array],
    key: Any,
    *,
    scale: float | PyTree[Array],
    samples: int,
    estimator: AbstractEstimator = ZerothOrder(),  # noqa: B008 (an immutable constant)
    chunk: int | None = None,
) -> BundledGradient:
    """The gradient of `E f(x + σ w)` with `w` normal: a randomised smoothing of a loss.

    For comparison with derivatives: it does not rely on a correct derivative. But it needs many
    simulations, and it is the gradient of a different function. Where `f` is smooth its bias is of
    second order in `σ` (`σ²/2` times the gradient of the Laplacian of `f`). In a time-stepping scheme
    with step `h`, impacts move by whole steps, and `σ` must exceed the change that moves one by a step.

    **Arguments:**

    - `function`: a loss `f(x) -> ()`; `x`: pytree of floating arrays. `key`: from `jax.random`.
    - `scale`: standard deviation `σ`, a number or a pytree like `x`.
    - `samples`: number of displacements, at least 2. `estimator`: `ZerothOrder()` or `FirstOrder()`.
    - `chunk`: batch elements per chunk, as in `rollout`.

    **Returns:** a `BundledGradient`.

    **Raises:** `ValueError` if there are fewer than two samples, a known `scale` is not positive, or
    `function` returns something else than one number.

    Reference: H. J. T. Suh, T. Pang, R. Tedrake, Bundled gradients through contact via randomized
    smoothing (2022), doi:10.1109/LRA.2022.3146931.
    """
    if samples < 2:
        raise ValueError(f"samples must be at least 2, got {samples}.")
    leaves = jax.tree.leaves(x)
    if not all(eqx.is_inexact_array(a) and jnp.isrealobj(a) for a in leaves):
        raise TypeError("x must be a pytree of floating arrays, such as jnp.zeros(2).")
    like_x = jax.tree.structure(scale) == jax.tree.structure(x)
    scales = jax.tree.leaves(scale)
    numbers = bool(scales) and all(map(_is_numbers, scales))
    fits = numbers and (
        eqx.is_array_like(scale) and np.ndim(scale) == 0
        if not like_x
        else all(
            np.shape(s) in ((), np.shape(a))
            for s, a in zip(scales, jax.tree.leaves(x), strict=True)
        )
    )
    if not fits:
        raise TypeError("scale must be a number, or a pytree of numbers like x.")
    for s in scales:
        refuse_below("scale", s, 0, strictly=True)
    if not isinstance(key, jax.Array):
        raise TypeError("key must be a key of jax.random, such as jax.random.key(0).")
    flat, unravel = ravel_pytree(x)
    if like_x:
        step = ravel_pytree(jax.tree.map(lambda s, a: jnp.broadcast_to(s, a.shape), scale, x))[0]
    else:
        step = jnp.full_like(flat, jnp.asarray(scale))
    directions = jax.random.normal(key, (samples, flat.size), flat.dtype)
    centre = jax.tree.map(lambda a: jnp.broadcast_to(a, (samples, *jnp.shape(a))), x)
    steps = jnp.broadcast_to(step, directions.shape)
    found = rollout(_Sample(function, estimator), (centre, steps, directions), chunk=chunk)
    mean = jnp.mean(found, axis=0)
    error = jnp.std(found, axis=0, ddof=1) / jnp.sqrt(jnp.asarray(samples, flat.dtype))
    return BundledGradient(unravel(mean), unravel(error))
