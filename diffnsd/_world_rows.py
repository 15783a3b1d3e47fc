"""Rows of contacts between bodies in space, in world axes."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._numerics import cross, dot


class WorldRows(eqx.Module):
    """Rows of one side of contacts as forces and couples in world axes, about a point of the body.

    Blocks `H` of free bodies have couples in body axes. To turn rows into these and back costs more than what
    is done with them in a tree of joints.
    """

    force: Float[Array, "k 3 c"]
    couple: Float[Array, "k 3 c"]

    def moved(self, arm: Float[Array, "3 c"]) -> "WorldRows":
        """The same rows about another point, from which `arm` leads to this one."""
        force = jnp.swapaxes(self.force, 0, 1)
        return WorldRows(self.force, self.couple + jnp.swapaxes(cross(arm[:, None], force), 0, 1))

    def apply(self, twist: Float[Array, "6 c"]) -> Float[Array, "k c"]:
        """Velocities along the rows; `twist` is the angular velocity, then the velocity of the point."""
        force, couple = jnp.swapaxes(self.force, 0, 1), jnp.swapaxes(self.couple, 0, 1)
        return dot(couple, twist[:3, None]) + dot(force, twist[3:, None])
