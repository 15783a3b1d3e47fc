"""The interface of a shape, and what is known of two shapes that are near each other."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import AbstractChecked
from .._jax import concrete, eval_now, is_traced
from .._numerics import as_float, safe_norm


class Frame(eqx.Module):
    """Where a shape is: its point `x` has the world coordinates `centre + rotation @ x`.

    **Arguments:** `centre` [m], `(3,)`; `rotation`: the axes of the shape in the world as columns, `(3, 3)`.
    """

    centre: Float[Array, "3"]
    rotation: Float[Array, "3 3"]

    def to_world(self, x: Float[Array, "... 3"]) -> Float[Array, "... 3"]:
        """World coordinates of points."""
        return self.centre[(None,) * (x.ndim - 1)] + x @ self.rotation.T

    def to_shape(self, x: Float[Array, "... 3"]) -> Float[Array, "... 3"]:
        """Coordinates of points of the world in the frame of the shape."""
        return (x - self.centre[(None,) * (x.ndim - 1)]) @ self.rotation


class Closest(eqx.Module):
    """The places `s` where two shapes touch or would touch first, world frame.

    **Arguments:** `point1`, `point2`: points of the two surfaces [m], `(s, 3)`; `normal`: unit vectors from
    shape 2 to shape 1, `(s, 3)`. The gap is `normal · (point1 − point2)`, negative in penetration. Every
    place is a true one: where shapes touch in fewer places than there is room for, one is repeated.
    """

    point1: Float[Array, "s 3"]
    point2: Float[Array, "s 3"]
    normal: Float[Array, "s 3"]

    @property
    def gap(self) -> Float[Array, " s"]:
        """The gaps [m]."""
        return jnp.sum(self.normal * (self.point1 - self.point2), axis=-1)

    def swapped(self) -> "Closest":
        """The same places with shape 2 as the first one."""
        return Closest(self.point2, self.point1, -self.normal)


class AbstractShape(AbstractChecked):
    """A shape in its own frame. Its sizes are leaves: differentiable, and they can be stacked for `vmap`."""

    @abstractmethod
    def bound(self) -> Float[Array, ""]:
        """Radius of a ball around the origin that holds the shape [m]; infinite for a half space."""

    def clearance(self, x: Float[Array, "3"]) -> Float[Array, ""]:
        """A distance of a point of its frame from the shape [m] that is never too long, of little cost."""
        return safe_norm(x) - self.bound()

    def check(self) -> str | None:
        """What is wrong with the sizes, in a sentence, or `None`."""
        for name, value in vars(self).items():
            known = concrete(value)
            if not eqx.is_array(value) or is_traced(known):
                continue
            if not np.all(np.isfinite(known)):
                return f"{name} of a {type(self).__name__} must be finite, got {np.asarray(known).tolist()}"
        return None


def positive(shape: AbstractShape, *names: str) -> str | None:
    """An error message if one of these sizes is known and not positive, else `None`."""
    for name in names:
        known = concrete(getattr(shape, name))
        if not is_traced(known) and not np.all(np.asarray(known) > 0):
            size = np.asarray(known).tolist()
            return f"{name} of a {type(shape).__name__} must be positive, got {size}"
    return None


def sized(name: str, value, shape: tuple[int, ...]) -> Array:
    """A size as an array of this shape.

    **Raises:** `ValueError` if it has another one.
    """
    array = eval_now(as_float, value)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
    return array
