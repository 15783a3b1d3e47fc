"""Rows of contacts between bodies in space, in world axes."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._numerics import cross, dot


class WorldRows(eqx.Module):
    """Rows of one side of contacts as forces and couples in world axes, about a point of the body.

    Blocks `H` of free bodies have couples in body axes. To turn rows into these and back costs more than what
    is done with them in a tree of joints. Of many contacts only the first row may be used, so that rows are
    arrays of their own: what is not used is then not computed.
    """

    force: tuple[Float[Array, "3 c"], ...]
    couple: tuple[Float[Array, "3 c"], ...]

    def first(self, k: int) -> "WorldRows":
        """The first `k` rows."""
        return WorldRows(self.force[:k], self.couple[:k])

    def moved(self, arm: Float[Array, "3 c"]) -> "WorldRows":
        """The same rows about another point, from which `arm` leads to this one."""
        pairs = zip(self.force, self.couple, strict=True)
        return WorldRows(self.force, tuple(couple + cross(arm, force) for force, couple in pairs))

    def apply(self, twist: Float[Array, "6 c"]) -> Float[Array, "k c"]:
        """Velocities along the rows; `twist` is the angular velocity, then the velocity of the point."""
        pairs = zip(self.force, self.couple, strict=True)
        return jnp.stack(
            [dot(couple, twist[:3]) + dot(force, twist[3:]) for force, couple in pairs]
        )
