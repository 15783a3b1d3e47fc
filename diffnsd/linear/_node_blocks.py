"""Sparse matrices with a dense block for every pair of nodes that are coupled."""

from collections.abc import Iterable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._jax import eval_now
from .._numerics import matrix_inverse
from ._operators import AbstractSparse, ElementSum, register, with_elements

FILLED = 0.25
"""Least part of the places of a pattern that is in use: rows are stored at one length."""


class NodePattern(eqx.Module):
    """Where the blocks of a matrix are.

    **Arguments:** `columns`: neighbours of every node, itself included, `(p, m)`, filled up with any node;
    `slots`: for groups of elements the place of node `j` in the row of node `i`, `(e, k, k)`; `colours`: the
    nodes in sets of which no two are neighbours, which sweeps take one after the other.
    """

    columns: Int[Array, "p m"]
    slots: tuple[Int[Array, "e k k"], ...]
    colours: tuple[Int[Array, " c"], ...]

    @staticmethod
    def of(groups: Sequence[np.ndarray], nodes: int) -> "NodePattern | None":
        """The pattern of elements with these nodes, `(e, k)`; `None` if rows differ too much in length."""
        i = [np.repeat(g, g.shape[1], axis=1).reshape(-1) for g in groups]
        j = [np.tile(g, (1, g.shape[1])).reshape(-1) for g in groups]
        keys, places = np.unique(
            np.concatenate(i).astype(np.int64) * nodes + np.concatenate(j), return_inverse=True
        )
        row, column = np.divmod(keys, nodes)
        start = np.searchsorted(row, np.arange(nodes + 1))
        m = int(np.max(np.diff(start), initial=1))
        if len(keys) < FILLED * m * nodes:
            return None
        slot = np.arange(len(keys)) - start[row]
        columns = np.zeros((nodes, m), np.int32)
        columns[row, slot] = column
        ends = np.cumsum([len(x) for x in i])[:-1]
        each = np.split(slot[places.reshape(-1)].astype(np.int32), ends)
        shaped = (s.reshape(*g.shape, g.shape[1]) for s, g in zip(each, groups, strict=True))
        colours = coloured(row, column, nodes)
        return NodePattern(*eval_now(_as_arrays, columns, tuple(shaped), colours))


def coloured(row: np.ndarray, column: np.ndarray, nodes: int) -> tuple[np.ndarray, ...]:
    """Nodes by colours that differ between neighbours, the pairs `row`, `column`.

    Jones and Plassmann's method: in every round the nodes whose random number is the largest among their
    neighbours without a colour take the first one that is free.
    """
    apart = row != column
    row, column = row[apart], column[apart]
    weight = np.random.default_rng(0).permutation(nodes)
    colour = np.full(nodes, -1)
    while np.any(colour < 0):
        open_pair = (colour[row] < 0) & (colour[column] < 0)
        beaten = np.zeros(nodes, bool)
        beaten[row[open_pair & (weight[row] < weight[column])]] = True
        chosen = (colour < 0) & ~beaten
        seen = chosen[row] & (colour[column] >= 0)
        taken = np.zeros((nodes, colour.max() + 2), bool)
        taken[row[seen], colour[column[seen]]] = True
        colour[chosen] = np.argmin(taken[chosen], axis=1)
    return tuple(np.flatnonzero(colour == c).astype(np.int32) for c in range(colour.max() + 1))


def _as_arrays(*known):
    return jax.tree.map(jnp.asarray, known)


class NodeBlocks(AbstractSparse):
    """A matrix by its blocks between nodes, each row of them at one length: no sum over elements is left.

    **Arguments:**

    - `blocks`: of a symmetric matrix, the coupling of the coordinates of node `i` with those of its
      neighbours, `(p, w, m, w)`.
    - `columns`: these neighbours, `(p, m)`; unused places have zero blocks.
    - `free`: place of every unknown among the coordinates of all nodes, `(n,)`; the rows and columns of
      other coordinates are ignored.
    - `tags`: as of `ElementSum`.
    - `added`: further elements, symmetric or not, `None` for none.
    - `colours`: as of `NodePattern`, for preconditioners that need an order.
    """

    blocks: Float[Array, "p w m w"]
    columns: Int[Array, "p m"]
    free: Int[Array, " n"]
    added: ElementSum | None
    colours: tuple[Int[Array, " c"], ...]
    tags: frozenset = eqx.field(static=True)

    def __init__(
        self,
        blocks,
        columns,
        free,
        tags: Iterable = (),
        added: ElementSum | None = None,
        colours: Iterable = (),
    ):
        self.blocks, self.columns, self.free = blocks, columns, free
        self.added, self.colours = added, tuple(colours)
        self.tags = frozenset(tags)

    @property
    def size(self) -> int:
        """Order `n` of the matrix."""
        return self.free.shape[0]

    @property
    def dtype(self):
        return self.blocks.dtype

    def _nodal(self, vector: Array) -> Float[Array, "p w"]:
        p, w = self.blocks.shape[:2]
        if self.size == p * w:
            return vector.reshape(p, w)
        return (
            jnp.zeros(p * w, vector.dtype)
            .at[self.free]
            .set(vector, unique_indices=True)
            .reshape(p, w)
        )

    def _of_unknowns(self, nodal: Array) -> Array:
        flat = nodal.reshape(-1)
        return flat if self.size == flat.shape[0] else flat[self.free]

    def mv(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        p, w, m, _ = self.blocks.shape
        near = self._nodal(vector)[self.columns].reshape(p, m * w)
        # One long row per coordinate: 15 times faster than a sum over elements.
        product = jnp.einsum("pik,pk->pi", self.blocks.reshape(p, w, m * w), near)
        total = self._of_unknowns(product)
        return total if self.added is None else total + self.added.mv(vector)

    def plus(self, blocks: Float[Array, "c j j"], dofs: Int[Array, "c j"], *tags) -> "NodeBlocks":
        more = with_elements(self.added, blocks, dofs, self.size, tags)
        return NodeBlocks(self.blocks, self.columns, self.free, tags, more, self.colours)

    def transpose(self) -> "NodeBlocks":
        if self.is_symmetric:
            return self
        added = None if self.added is None else self.added.transpose()
        return NodeBlocks(self.blocks, self.columns, self.free, self.tags, added, self.colours)

    def _diagonal_blocks(self) -> Float[Array, "p w w"]:
        """Blocks of the nodes, a unit matrix for coordinates that are no unknowns."""
        p, w, m, _ = self.blocks.shape
        own = self.columns == np.arange(p, dtype=np.int32)[:, None]
        # Unused places may name the node itself, and are zero.
        blocks = jnp.sum(jnp.where(own[:, None, :, None], self.blocks, 0), axis=2)
        if self.added is not None:
            at = jnp.append(self.free, p * w)[jnp.minimum(self.added.dofs, self.size)]
            i, j = at[:, :, None], at[:, None, :]
            node = jnp.where(i // w == j // w, i // w, p)
            blocks = blocks.at[node, i % w, j % w].add(self.added.blocks, mode="drop")
        if self.size == p * w:
            return blocks
        known = self.known()
        both = known[:, :, None] & known[:, None, :]
        return jnp.where(both, blocks, jnp.eye(w, dtype=self.dtype))

    def known(self) -> Bool[Array, "p w"]:
        """Which coordinates of the nodes are unknowns."""
        p, w = self.blocks.shape[:2]
        return jnp.zeros(p * w, bool).at[self.free].set(True).reshape(p, w)

    def diagonal(self) -> Float[Array, " n"]:
        return self._of_unknowns(jnp.diagonal(self._diagonal_blocks(), axis1=1, axis2=2))

    def block_diagonal(self, size: int) -> Float[Array, "m s s"]:
        del size
        return self._diagonal_blocks()

    def block_inverse(self, size: int) -> "NodalInverse":
        del size
        blocks = jnp.moveaxis(self._diagonal_blocks(), 0, 2)
        return NodalInverse(jnp.moveaxis(matrix_inverse(blocks), 2, 0), self)

    def coordinates(self) -> tuple[Array, Array, Array]:
        p, w, m, _ = self.blocks.shape
        number = jnp.full(p * w, self.size, jnp.int32)
        number = number.at[self.free].set(jnp.arange(self.size, dtype=jnp.int32)).reshape(p, w)
        i = jnp.broadcast_to(number[:, :, None, None], (p, w, m, w)).reshape(-1)
        j = jnp.broadcast_to(number[self.columns][:, None], (p, w, m, w)).reshape(-1)
        inside = (i < self.size) & (j < self.size)
        i, j = (jnp.where(inside, x, 0) for x in (i, j))
        values = jnp.where(inside, self.blocks.reshape(-1), 0)
        if self.added is None:
            return i, j, values
        more = self.added.coordinates()
        return tuple(jnp.concatenate(x) for x in zip((i, j, values), more, strict=True))  # pyright: ignore[reportReturnType]


class NodalInverse(eqx.Module):
    """The inverse of the blocks of the nodes."""

    inverses: Float[Array, "p w w"]
    operator: NodeBlocks

    def __call__(self, x: Array) -> Array:
        nodal = self.operator._nodal(x)
        return self.operator._of_unknowns(jnp.einsum("pij,pj->pi", self.inverses, nodal))


class NodalSweeps(eqx.Module):
    """The inverse of `(D + L) D^-1 (D + L^T)`, `L` the blocks before the diagonal in an order by colours."""

    rows: tuple[Float[Array, "c w k"], ...]
    inverse: NodalInverse
    own: Float[Array, "p w w"]
    operator: NodeBlocks

    @staticmethod
    def of(operator: NodeBlocks) -> "NodalSweeps":
        _, w, m, _ = operator.blocks.shape
        rows = tuple(operator.blocks[nodes].reshape(-1, w, m * w) for nodes in operator.colours)
        inverse, own = operator.block_inverse(w), operator._diagonal_blocks()
        return NodalSweeps(rows, inverse, own, operator)

    def __call__(self, x: Array) -> Array:
        operator = self.operator
        known, columns = operator.known(), operator.columns
        parts = list(zip(operator.colours, self.rows, strict=True))

        def swept(right, parts):
            y = jnp.zeros_like(right)
            for nodes, rows in parts:  # of the others, later ones are still zero
                near = y[columns[nodes]].reshape(rows.shape[0], -1)
                left = right[nodes] - jnp.einsum("cik,ck->ci", rows, near)
                new = jnp.einsum("cij,cj->ci", self.inverse.inverses[nodes], left)
                y = y.at[nodes].set(jnp.where(known[nodes], new, 0), unique_indices=True)
            return y

        middle = jnp.einsum("pij,pj->pi", self.own, swept(operator._nodal(x), parts))
        return operator._of_unknowns(swept(middle, parts[::-1]))


register(NodeBlocks)
