"""Rows of contacts between bodies that joints move."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._block_rows import AbstractRows, BlockRows, PickedRows
from ._numerics import short_product, weighted_sum
from ._world_rows import WorldRows


class JointRows(AbstractRows):
    """`H` of contacts between bodies that joints move, `H_jn = w_j · s_n` where entry n moves the body.

    **Arguments:** `wrenches`: for each side the rows about one origin; `of`: all the rows on the velocities
    of bodies, which know what bodies these are; `moves`: which entries of `v` move a body, 1 or 0, `(b, n)`;
    `motion`: angular and linear velocity at that origin for each entry of `v`, `(6, n)`.
    """

    wrenches: tuple[WorldRows, ...]
    of: BlockRows | PickedRows
    moves: Float[Array, "b n"]
    motion: Float[Array, "6 n"]

    def first(self, k: int) -> "JointRows":
        wrenches = tuple(x.first(k) for x in self.wrenches)
        return JointRows(wrenches, self.of, self.moves, self.motion)

    def dense(self) -> Float[Array, "k n c"]:
        angular, linear = jnp.split(self.motion[:, :, None], 2)
        total = 0.0
        for x, moved in zip(self.wrenches, self.of.of_sides(self.moves), strict=True):
            force, couple = jnp.stack(x.force)[:, :, None], jnp.stack(x.couple)[:, :, None]
            along = weighted_sum(force, linear, axis=1) + weighted_sum(couple, angular, axis=1)
            total = total + along * moved[None]
        return total  # pyright: ignore[reportReturnType]

    def apply(self, v: Float[Array, " n"]) -> Float[Array, "k c"]:
        # By the velocities of bodies, of which there are usually fewer than contacts.
        twists = short_product(self.motion * v[None], self.moves.T)
        pairs = zip(self.wrenches, self.of.of_sides(twists.T), strict=True)
        return sum(x.apply(twist) for x, twist in pairs)  # pyright: ignore[reportReturnType]
