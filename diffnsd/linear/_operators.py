"""Large matrices by their structure, as operators of lineax.

Diagonal, tridiagonal and dense matrices are lineax's own `DiagonalLinearOperator`,
`TridiagonalLinearOperator` and `MatrixLinearOperator`; here are those that it does not have.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import AbstractChecked
from .._numerics import as_float, matrix_inverse, matvec


class AbstractLargeOperator(lx.AbstractLinearOperator, AbstractChecked):
    """A square matrix of order `size` that is not stored as one array.

    **Arguments:** `size`: order `n` of the matrix; `tags`: what is known of it, of lineax's tags:
    `lx.symmetric_tag`, `lx.positive_semidefinite_tag`, which says that it is symmetric too.
    """

    size: eqx.AbstractVar[int]
    tags: eqx.AbstractVar[frozenset]

    @property
    @abstractmethod
    def dtype(self):
        """Type of its entries."""

    @abstractmethod
    def diagonal(self) -> Float[Array, " n"]:
        """Its diagonal."""

    @abstractmethod
    def block_diagonal(self, size: int) -> Float[Array, "m s s"]:
        """Blocks on its diagonal, of `s` rows each; the last one is filled up with a unit matrix."""

    def block_inverse(self, size: int) -> Callable[[Array], Array]:
        """The product with the inverses of `block_diagonal(size)`: a pytree that is a function."""
        return BlockInverse(matrix_inverse(jnp.moveaxis(self.block_diagonal(size), 0, 2)))

    @property
    def is_positive(self) -> bool:
        """Whether it is known to be symmetric and positive (semi)definite."""
        return lx.positive_semidefinite_tag in self.tags

    @property
    def is_symmetric(self) -> bool:
        """Whether it is known to be symmetric."""
        return self.is_positive or lx.symmetric_tag in self.tags

    def as_matrix(self) -> Float[Array, "n n"]:
        return jax.vmap(self.mv, out_axes=1)(jnp.eye(self.size, dtype=self.dtype))

    def in_structure(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.size,), self.dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        return self.in_structure()


class BlockInverse(eqx.Module):
    """The inverses of blocks on a diagonal, `(s, s, m)`; the last block may be larger than what is left."""

    inverses: Float[Array, "s s m"]

    def __call__(self, x: Array) -> Array:
        s, _, m = self.inverses.shape
        padded = jnp.pad(x, (0, m * s - x.shape[0])).reshape(m, s).T
        return matvec(self.inverses, padded).T.reshape(-1)[: x.shape[0]]


class AbstractSparse(AbstractLargeOperator):
    """An operator with few entries in a row, in any places."""

    @property
    def takes_elements(self) -> bool:
        """Whether iterative solvers with blocks of nodes fit it, also with more elements; by default yes."""
        return True

    @abstractmethod
    def coordinates(self) -> tuple[Array, Array, Array]:
        """Row, column and value of its entries; those of equal place are to be added."""

    @abstractmethod
    def plus(
        self, blocks: Float[Array, "c j j"], dofs: Int[Array, "c j"], *tags
    ) -> "AbstractSparse":
        """The matrix with more elements; the arguments are those of `ElementSum`."""


class ElementSum(AbstractSparse):
    """The sum of the matrices of elements, `A = diag(d) + Σ_e P_e^T B_e P_e`, by gather and scatter.

    `P_e` picks the unknowns of element `e`. Storage and work grow with the number of elements; the
    matrix is never assembled.

    **Arguments:**

    - `blocks`: `B_e`, shape `(e, k, k)`.
    - `dofs`: indices of the unknowns of every element, `(e, k)`. An index that is not below `size` is
      no unknown: its rows and columns are left out, as of a prescribed motion.
    - `size`: number `n` of unknowns.
    - `added`: `d`, shape `(n,)`, for example a lumped mass; default zero.
    - `tags`: `lx.symmetric_tag`, `lx.positive_semidefinite_tag`; default none.

    **Raises:** `ValueError` if shapes do not match.
    """

    blocks: Float[Array, "e k k"]
    dofs: Int[Array, "e k"]
    added: Float[Array, " n"] | None
    size: int = eqx.field(static=True)
    tags: frozenset = eqx.field(static=True)

    def __init__(self, blocks, dofs, size: int, added=None, tags: object | Iterable = ()):
        self.blocks = as_float(blocks)
        self.dofs = jnp.asarray(dofs)
        self.size = size
        self.added = None if added is None else as_float(added, self.blocks.dtype)
        self.tags = frozenset(tags) if isinstance(tags, Iterable) else frozenset([tags])
        if self.dofs.ndim != 2:
            raise ValueError(f"dofs must have shape (e, k), got {self.dofs.shape}.")
        e, k = self.dofs.shape
        if self.blocks.shape != (e, k, k):
            raise ValueError(
                f"the blocks of elements with {k} unknowns must have shape ({e}, {k}, {k}), one matrix "
                f"for each row of dofs, got {self.blocks.shape}."
            )
        if self.added is not None and self.added.shape != (size,):
            raise ValueError(
                f"added must have shape ({size},), one entry for every unknown, got {self.added.shape}."
            )

    @property
    def dtype(self):
        return self.blocks.dtype

    def mv(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        own = vector.at[self.dofs].get(mode="fill", fill_value=0)
        total = self._start(vector)
        return total.at[self.dofs].add(jnp.einsum("eij,ej->ei", self.blocks, own), mode="drop")

    def _start(self, vector) -> Array:
        return jnp.zeros_like(vector) if self.added is None else self.added * vector

    def transpose(self) -> "ElementSum":
        if self.is_symmetric:
            return self
        turned = jnp.swapaxes(self.blocks, 1, 2)
        return ElementSum(turned, self.dofs, self.size, self.added, self.tags)

    def diagonal(self) -> Float[Array, " n"]:
        total = self._start(jnp.ones(self.size, self.dtype))
        return total.at[self.dofs].add(jnp.diagonal(self.blocks, axis1=1, axis2=2), mode="drop")

    def block_diagonal(self, size: int) -> Float[Array, "m s s"]:
        """As of the base class, but an element adds only entries between `s` consecutive unknowns of its
        own, those of one node; each block is positive definite where the matrix is.
        """
        count = -(-self.size // size)
        total = _unit_padding(count, size, self.size, self.dtype)
        if self.added is not None:
            at = np.arange(self.size)
            total = total.at[at // size, at % size, at % size].add(self.added)
        _, k = self.dofs.shape
        rows, columns = (x.reshape(-1) for x in np.indices((k, k)))
        near = rows // size == columns // size
        rows, columns = rows[near], columns[near]
        i, j = self.dofs[:, rows], self.dofs[:, columns]
        inside = (i < self.size) & (j < self.size) & (i // size == j // size)
        block = jnp.where(inside, i // size, count)
        return total.at[block, i % size, j % size].add(self.blocks[:, rows, columns], mode="drop")

    def plus(self, blocks: Float[Array, "c j j"], dofs: Int[Array, "c j"], *tags) -> "ElementSum":
        widest = max(self.dofs.shape[1], dofs.shape[1])
        every = [widened(*x, widest, self.size) for x in ((self.blocks, self.dofs), (blocks, dofs))]
        blocks, dofs = (jnp.concatenate(x) for x in zip(*every, strict=True))
        return ElementSum(blocks, dofs, self.size, self.added, tags)

    def coordinates(self) -> tuple[Array, Array, Array]:
        if self.dofs.ndim != 2:
            raise ValueError(f"dofs must have shape (e, k), got {self.dofs.shape}.")
        e, k = self.dofs.shape
        i = jnp.broadcast_to(self.dofs[:, :, None], (e, k, k)).reshape(-1)
        j = jnp.broadcast_to(self.dofs[:, None, :], (e, k, k)).reshape(-1)
        inside = (i < self.size) & (j < self.size)
        values = jnp.where(inside, self.blocks.reshape(-1), 0)
        i, j = (jnp.where(inside, x, 0) for x in (i, j))
        if self.added is not None:
            every = jnp.arange(self.size, dtype=i.dtype)
            i, j = jnp.concatenate([i, every]), jnp.concatenate([j, every])
            values = jnp.concatenate([values, self.added])
        return i, j, values


def with_elements(
    added: ElementSum | None, blocks: Array, dofs: Array, size: int, tags: Iterable
) -> ElementSum:
    """The elements beside a matrix of order `size`, and more of them."""
    dofs = jnp.asarray(dofs, jnp.int32)
    if added is None:
        return ElementSum(blocks, dofs, size, tags=tags)
    return added.plus(blocks, dofs, *tags)


def widened(blocks: Array, dofs: Array, k: int, n: int) -> tuple[Array, Array]:
    """Elements filled up to `k` unknowns with `n`, which is none."""
    more = k - dofs.shape[1]
    blocks = jnp.pad(blocks, ((0, 0), (0, more), (0, more)))
    dofs = jnp.pad(jnp.asarray(dofs, jnp.int32), ((0, 0), (0, more)), constant_values=n)
    return blocks, dofs


class BlockTridiagonal(AbstractLargeOperator):
    """A matrix of `m × m` blocks, zero beside its diagonal and the blocks next to it.

    **Arguments:** `middle`: blocks on the diagonal, `(m, s, s)`; `lower`, `upper`: those below and above
    it, `(m − 1, s, s)`; `tags`: as of `ElementSum`.

    **Raises:** `ValueError` if shapes do not match.
    """

    middle: Float[Array, "m s s"]
    lower: Float[Array, "l s s"]
    upper: Float[Array, "l s s"]
    tags: frozenset = eqx.field(static=True)

    def __init__(self, middle, lower, upper, tags: object | Iterable = ()):
        self.middle = as_float(middle)
        self.lower, self.upper = (as_float(x, self.middle.dtype) for x in (lower, upper))
        self.tags = frozenset(tags) if isinstance(tags, Iterable) else frozenset([tags])
        if self.middle.ndim != 3:
            raise ValueError(f"middle must have shape (m, s, s), got {self.middle.shape}.")
        m, s, _ = self.middle.shape
        for name, x in (("lower", self.lower), ("upper", self.upper)):
            if x.shape != (m - 1, s, s):
                raise ValueError(
                    f"{name} must have shape ({m - 1}, {s}, {s}), for middle {self.middle.shape}, got "
                    f"{x.shape}."
                )

    @property
    def size(self) -> int:
        """Order `n` of the matrix."""
        return self.middle.shape[0] * self.middle.shape[1]

    @property
    def dtype(self):
        return self.middle.dtype

    def mv(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        x = vector.reshape(self.middle.shape[:2])
        total = jnp.einsum("mij,mj->mi", self.middle, x)
        total = total.at[1:].add(jnp.einsum("mij,mj->mi", self.lower, x[:-1]))
        return total.at[:-1].add(jnp.einsum("mij,mj->mi", self.upper, x[1:])).reshape(-1)

    def transpose(self) -> "BlockTridiagonal":
        middle, lower, upper = (
            jnp.swapaxes(x, 1, 2) for x in (self.middle, self.lower, self.upper)
        )
        return BlockTridiagonal(middle, upper, lower, self.tags)

    def diagonal(self) -> Float[Array, " n"]:
        return jnp.diagonal(self.middle, axis1=1, axis2=2).reshape(-1)

    def blocks(self) -> "BlockTridiagonal":
        """The matrix itself, see `Banded.blocks`."""
        return self

    def block_diagonal(self, size: int) -> Float[Array, "m s s"]:
        if size != self.middle.shape[1]:
            raise ValueError(
                f"the matrix has blocks of {self.middle.shape[1]} rows, not of {size}; take a "
                f"preconditioner with blocks of that size."
            )
        return self.middle


class Banded(AbstractLargeOperator):
    """A matrix with `w` diagonals below and above its own: `A[i, i + j − w] = bands[i, j]`.

    **Arguments:** `bands`: its rows, `(n, 2 w + 1)`; entries outside of the matrix are ignored; `tags`:
    as of `ElementSum`.

    **Raises:** `ValueError` if the number of diagonals is even.
    """

    bands: Float[Array, "n b"]
    tags: frozenset = eqx.field(static=True)

    def __init__(self, bands, tags: object | Iterable = ()):
        self.bands = as_float(bands)
        self.tags = frozenset(tags) if isinstance(tags, Iterable) else frozenset([tags])
        if self.bands.ndim != 2 or self.bands.shape[1] % 2 == 0:
            raise ValueError(
                "bands must have shape (n, 2 w + 1), as many diagonals below as above, got "
                f"{self.bands.shape}."
            )

    @property
    def width(self) -> int:
        """Diagonals on either side, `w`."""
        return self.bands.shape[1] // 2

    @property
    def size(self) -> int:
        """Order `n` of the matrix."""
        return self.bands.shape[0]

    @property
    def dtype(self):
        return self.bands.dtype

    def _inside(self) -> np.ndarray:
        column = np.arange(self.size)[:, None] + np.arange(2 * self.width + 1) - self.width
        return (column >= 0) & (column < self.size)

    def mv(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        w, n = self.width, self.size
        padded = jnp.pad(vector, w)
        return sum(self.bands[:, j] * padded[j : j + n] for j in range(2 * w + 1))  # pyright: ignore[reportReturnType]

    def transpose(self) -> "Banded":
        w, n = self.width, self.size
        padded = jnp.pad(self.bands, ((w, w), (0, 0)))
        columns = [padded[j : j + n, 2 * w - j] for j in range(2 * w + 1)]
        return Banded(jnp.stack(columns, axis=1), self.tags)

    def diagonal(self) -> Float[Array, " n"]:
        return self.bands[:, self.width]

    def block_diagonal(self, size: int) -> Float[Array, "m s s"]:
        return self._block(size, 0)

    def _block(self, size: int, shift: int) -> Float[Array, "m s s"]:
        """The blocks `shift` places to the right of the diagonal ones."""
        w, count = self.width, -(-self.size // size)
        kept = jnp.where(self._inside(), self.bands, 0)
        kept = jnp.pad(kept, ((0, count * size - self.size), (0, 0)))
        kept = kept.reshape(count, size, 2 * w + 1)
        out = jnp.zeros((count, size, size), self.dtype)
        for j in range(2 * w + 1):
            row = np.arange(size)
            column = row + j - w - shift * size
            row, column = (x[(column >= 0) & (column < size)] for x in (row, column))
            out = out.at[:, row, column].set(kept[:, row, j])
        return out + (_unit_padding(count, size, self.size, self.dtype) if shift == 0 else 0)

    def blocks(self) -> BlockTridiagonal:
        """The same matrix in blocks of `w` rows, filled up with a unit matrix."""
        s = max(self.width, 1)
        return BlockTridiagonal(
            self._block(s, 0), self._block(s, -1)[1:], self._block(s, 1)[:-1], self.tags
        )


def _unit_padding(count: int, size: int, n: int, dtype) -> Array:
    """Blocks `(count, size, size)`, zero, but a unit matrix in the places after the first `n` rows."""
    after = np.arange(count * size) >= n
    return jnp.asarray(after.reshape(count, size, 1) * np.eye(size), dtype)


# What lineax asks of an operator.


def _no(operator) -> bool:
    del operator
    return False


def register(cls: type) -> None:
    """Tells lineax what it asks of an operator of this folder."""
    lx.is_symmetric.register(cls, lambda a: a.is_symmetric)
    lx.is_positive_semidefinite.register(cls, lambda a: a.is_positive)
    for check in (
        lx.is_negative_semidefinite,
        lx.is_diagonal,
        lx.is_tridiagonal,
        lx.has_unit_diagonal,
        lx.is_lower_triangular,
        lx.is_upper_triangular,
    ):
        check.register(cls, _no)
    lx.linearise.register(cls, lambda a: a)
    lx.conj.register(cls, lambda a: a)
    lx.diagonal.register(cls, lambda a: a.diagonal())
    lx.materialise.register(cls, lambda a: lx.MatrixLinearOperator(a.as_matrix(), a.tags))


for _cls in (ElementSum, BlockTridiagonal, Banded):
    register(_cls)
