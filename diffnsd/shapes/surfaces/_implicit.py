"""Solids whose surface is where a function vanishes."""

from abc import abstractmethod
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base import AbstractShape


class AbstractSurface(AbstractShape):
    """A solid `f(x) <= 0` in its own frame, of a function that is differentiable twice near the surface."""

    @abstractmethod
    def value(self, x: Float[Array, "3"]) -> Float[Array, ""]:
        """`f(x)`: negative inside; it need not be a distance."""

    def bound(self) -> Float[Array, ""]:
        return jnp.array(jnp.inf)

    def clearance(self, x: Float[Array, "3"]) -> Float[Array, ""]:
        return jnp.zeros((), x.dtype)


class Implicit(AbstractSurface):
    """The solid `function(x) <= 0`, `x` [m] `(3,)` in its frame, closed or without bounds.

        bowl = Implicit(lambda x: 1 - jnp.sum(x**2))        # solid outside of a ball of radius 1 m

    The function need not be a distance; on the surface its gradient does not vanish and its second
    derivative exists. The arrays in it are parameters: `jax.tree_util.Partial(function, radii)`, an
    `equinox.Module`, or a neural network. Give geoms of several models the same function object, because
    another lambda is another program.

    A body touches the surface at the point that is found from the projection of its centre (of its ends or
    corners) along the gradient, a nearest point of the surface. Of a surface that is not convex there may
    be others: a ball that fits into a bowl touches it once.

    **Raises:** `ValueError` if the function does not return a number.
    """

    function: Callable

    def __init__(self, function: Callable):
        # A function without arrays is part of the program, not a leaf.
        leaves = jax.tree.leaves(function)
        is_plain = len(leaves) == 1 and leaves[0] is function
        self.function = jax.tree_util.Partial(function) if is_plain else function

    def value(self, x: Float[Array, "3"]) -> Float[Array, ""]:
        return self.function(x)

    def check(self) -> str | None:
        found = jax.eval_shape(lambda: self.function(jnp.zeros(3)))
        if getattr(found, "shape", None) != ():
            return f"the function of an Implicit must return a number, shape (), got {found}"
        return None
