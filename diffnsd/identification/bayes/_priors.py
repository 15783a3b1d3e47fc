"""Prior distributions of physical values."""

from abc import abstractmethod

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._arguments import AbstractChecked, Numbers


class AbstractPrior(AbstractChecked):
    """What is known of a parameter before the data, as a density of its physical value."""

    @abstractmethod
    def log_density(self, value: Array) -> Float[Array, ""]:
        """Logarithm of the density at `value`, up to a constant."""

    def standard(self, value: Array) -> Array:
        """How far `value` is from the centre, in standard deviations of the prior; NaN if it has none."""
        return jnp.full_like(value, jnp.nan)


class Flat(AbstractPrior):
    """Every admissible value is equally probable.

    Between two bounds this is the uniform distribution. With an open side, or for matrices of
    inertia, it has no finite integral: the posterior then exists only if the data determine the
    parameter.
    """

    def log_density(self, value: Array) -> Float[Array, ""]:
        return jnp.zeros((), value.dtype)


class Normal(AbstractPrior):
    """The normal distribution, cut off at the bounds of the parameter if it has any.

    **Arguments:** `mean`, `deviation`: numbers, or arrays of the shape of the value, in its unit.

    **Raises:** `ValueError` if a number is not finite or a deviation not positive.
    """

    mean: Numbers
    deviation: Numbers

    def __check_init__(self):
        _check(self.mean, self.deviation)

    def log_density(self, value: Array) -> Float[Array, ""]:
        mean, deviation = jnp.asarray(self.mean), jnp.asarray(self.deviation)
        z = (value - mean.astype(value.dtype)) / deviation.astype(value.dtype)
        return -jnp.sum(z**2) / 2

    def standard(self, value: Array) -> Array:
        mean, deviation = (jnp.asarray(x, value.dtype) for x in (self.mean, self.deviation))
        return (value - mean) / deviation


class LogNormal(AbstractPrior):
    """The logarithm of the value is normal: for positive quantities known up to a factor.

    **Arguments:** `median`, in the unit of the value; `deviation`: of the natural logarithm, such as
    0.1 for about 10 %. Numbers, or arrays of the shape of the value.

    **Raises:** `ValueError` if a number is not finite, or median or deviation not positive.
    """

    median: Numbers
    deviation: Numbers

    def __check_init__(self):
        _check(self.median, self.deviation)
        if not np.all(np.asarray(self.median) > 0):
            raise ValueError(f"the median must be positive, got {self.median}.")

    def log_density(self, value: Array) -> Float[Array, ""]:
        median, deviation = jnp.asarray(self.median), jnp.asarray(self.deviation)
        positive = value > 0
        log = jnp.log(jnp.where(positive, value, 1.0))
        z = (log - jnp.log(median.astype(value.dtype))) / deviation.astype(value.dtype)
        return jnp.sum(jnp.where(positive, -(z**2) / 2 - log, -jnp.inf))

    def standard(self, value: Array) -> Array:
        median, deviation = (jnp.asarray(x, value.dtype) for x in (self.median, self.deviation))
        return jnp.log(jnp.maximum(value, jnp.finfo(value.dtype).tiny) / median) / deviation


def _check(centre: ArrayLike, deviation: ArrayLike) -> None:
    if not (np.all(np.isfinite(centre)) and np.all(np.isfinite(deviation))):
        raise ValueError(
            "mean (or median) and deviation of a prior must be finite numbers, got "
            f"{centre} and {deviation}."
        )
    if not np.all(np.asarray(deviation) > 0):
        raise ValueError(f"the deviation of a prior must be positive, got {deviation}.")
