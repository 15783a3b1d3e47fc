"""The interface of a convex set `K` of multipliers of one contact.

Multipliers `z` have shape `(k, ...)`. The first axis holds the `k` rows of a contact; the trailing
axes are contacts and batch elements, over which the parameters of the set broadcast. Matrices are
nested lists of arrays `(...)`, so that all operations are elementwise.
"""

import functools
from abc import abstractmethod
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AbstractChecked
from .._numerics import safe_norm

Rows = Float[Array, "k ..."]
Blocks = list[list[Array]]


class AbstractSet(AbstractChecked):
    """A closed convex set in `R^k` that is easy to project onto."""

    @abstractmethod
    def project(self, z: Rows) -> Rows:
        """Euclidean projection of `z` onto the set."""

    @abstractmethod
    def jacobian(self, z: Rows) -> Blocks:
        """One element of the B-subdifferential of the projection, `k x k` arrays `(...)`."""

    @abstractmethod
    def prox(self, z: Rows, kappa: Array) -> Rows:
        """Proximal map of `kappa` times the logarithmic barrier: tends to `project` as kappa -> 0.

        The point `p` of the central path: `p - z = kappa * (gradient of the barrier at p)`.
        """

    @abstractmethod
    def margin(self, z: Rows) -> Array:
        """Distance of `z` to the nearest change of mode of the projection, shape `(...)`."""

    def refuses(self, rows: int) -> str | None:
        """Error message if the set cannot have `rows` rows, else `None`."""
        return None

    def interval(self) -> tuple[Array | float, Array | float] | None:
        """The bounds `(lower, upper)` of every row if the set is a product of intervals, else `None`.

        Bounds that do not depend on the parameters are numbers, the others are arrays.
        """
        return None

    def unilateral(self) -> bool:
        """Whether the set is a cone that holds the first axis: velocities of its dual have `w_0 >= 0`."""
        return False

    def check(self) -> str | None:
        """Error message if a parameter with a known value is invalid, else `None`."""
        return None


def diagonal(entries: Rows) -> Blocks:
    """A diagonal matrix from its entries, `k x k` arrays."""
    k, zero = entries.shape[0], jnp.zeros_like(entries[0])
    return [[entries[i] if i == j else zero for j in range(k)] for i in range(k)]


def positive_root(a, b: Array, kappa) -> Array:
    """The positive root of `a x² − b x = kappa`, the equation of the central path of one row."""
    root = jnp.sqrt(b * b + 4 * a * kappa)
    positive = b > 0
    # For negative b the conjugate form avoids cancellation, and it does not need a > 0.
    conjugate = 2 * kappa / jnp.where(positive, 1, root - jnp.where(positive, 0, b))
    return jnp.where(positive, (b + root) / jnp.where(positive, 2 * a, 1), conjugate)


def lengths(x: Array) -> tuple[Array, Array, Array, Array]:
    """Euclidean norm over the first axis, as `unit |part|` with `x = unit part`; its derivatives are finite.

    In float32 `part` is `x` relative to its largest entry: the square of an impulse on a speck of dust
    (1e-19 kg) would vanish. In float64 it is `x`, from 1e-150 to 1e150.

    **Arguments:** `x`: shape `(k, ...)`. **Returns:** the norm `(...)`; `unit`, `(...)` or `()`; `part`,
    `(k, ...)`; its length, 1 where `x` is 0.
    """
    unit = jnp.ones((), x.dtype)
    if x.dtype == jnp.float32:
        largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, jnp.unstack(jnp.abs(x))))
        unit = jnp.where(largest > 0, largest, 1)
        x = x / unit[None]
    length = safe_norm(x)
    return unit * length, unit, x, jnp.where(length > 0, length, 1)


def bisect(excess: Callable[[Array], Array], low: Array, high: Array, steps: int) -> Array:
    """The root of an increasing function between two positive numbers, by bisection of the logarithm."""

    def halve(_, bracket):
        low, high = bracket
        middle = jnp.sqrt(low * high)
        below = excess(middle) < 0
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, steps, halve, (low, high))
    return jnp.sqrt(low * high)
