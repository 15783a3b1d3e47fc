"""Matrices of several systems side by side, and of what contacts couple between them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, Int

from ._base import AbstractSolver
from ._operators import AbstractLargeOperator, AbstractSparse, ElementSum, register, with_elements

ARRAYS = 200
"""Most unknowns of the parts that are stored as arrays and eliminated together: what is left of them is
inverted as one matrix, and takes a product with all elements for each unknown."""


class DirectSum(AbstractSparse):
    """Matrices along a diagonal, `diag(A_1, A_2, ...)`, and elements that couple their unknowns.

    Without elements it is solved part by part. With elements, preconditioners by blocks take the parts that
    are stored as small arrays, those of a few rigid bodies, together with all that couples them: they
    eliminate the blocks of the others and solve for what is left, `R − B D^-1 C`.

    **Arguments:** `parts`: square operators; `added`: the elements, `None` for none; `tags`: as of
    `ElementSum`.

    **Raises:** `ValueError` if there is no part, or one is not square.
    """

    parts: tuple[Any, ...]
    added: ElementSum | None
    tags: frozenset = eqx.field(static=True)

    def __init__(
        self,
        parts: Sequence[lx.AbstractLinearOperator],
        added: ElementSum | None = None,
        tags: object | Iterable = (),
    ):
        self.parts, self.added = tuple(parts), added
        self.tags = frozenset(tags) if isinstance(tags, Iterable) else frozenset([tags])
        if not self.parts:
            raise ValueError("parts must be one operator at least.")
        for part in self.parts:
            if part.in_size() != part.out_size():
                raise ValueError(
                    f"parts must be square, got one of {part.out_size()} × {part.in_size()}."
                )

    @property
    def size(self) -> int:
        """Order `n` of the matrix."""
        return sum(part.in_size() for part in self.parts)

    @property
    def dtype(self):
        return jnp.result_type(*(part.in_structure().dtype for part in self.parts))

    @property
    def takes_elements(self) -> bool:
        others = [part for part in self.parts if not _is_array(part)]
        arrays = sum(part.in_size() for part in self.parts if _is_array(part))
        sparse = all(isinstance(part, AbstractSparse) and part.takes_elements for part in others)
        return sparse and arrays <= ARRAYS

    def slices(self) -> list[slice]:
        """The unknowns of every part."""
        sizes = [part.in_size() for part in self.parts]
        return [slice(e - n, e) for n, e in zip(sizes, accumulate(sizes), strict=True)]

    def split(self, vector: Array) -> list[Array]:
        """The unknowns of every part, of a vector `(n,)`."""
        return [vector[where] for where in self.slices()]

    def mv(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        pairs = zip(self.parts, self.split(vector), strict=True)
        total = jnp.concatenate([part.mv(x) for part, x in pairs])
        return total if self.added is None else total + self.added.mv(vector)

    def transpose(self) -> "DirectSum":
        if self.is_symmetric:
            return self
        added = None if self.added is None else self.added.transpose()
        return DirectSum([part.transpose() for part in self.parts], added, self.tags)

    def plus(self, blocks: Float[Array, "c j j"], dofs: Int[Array, "c j"], *tags) -> "DirectSum":
        more = with_elements(self.added, blocks, dofs, self.size, tags)
        return DirectSum(self.parts, more, tags)

    def diagonal(self) -> Float[Array, " n"]:
        total = jnp.concatenate([lx.diagonal(part) for part in self.parts])
        return total if self.added is None else total + self.added.diagonal()

    def block_diagonal(self, size: int) -> Float[Array, "m s s"]:
        raise ValueError(
            f"the parts of a DirectSum have blocks of their own, not of {size} rows throughout; take a "
            "preconditioner that asks for their inverse, such as BlockJacobi()."
        )

    def block_inverse(self, size: int) -> Callable[[Array], Array]:
        return BorderedInverse.of(self, lambda part: _block_inverse(part, size))

    def coordinates(self) -> tuple[Array, Array, Array]:
        found = [] if self.added is None else [self.added.coordinates()]
        for part, where in zip(self.parts, self.slices(), strict=True):
            i, j, values = _coordinates(part)
            found.append((i + where.start, j + where.start, values))
        return tuple(jnp.concatenate(x) for x in zip(*found, strict=True))  # pyright: ignore[reportReturnType]

    def own(self, where: slice) -> tuple[Array, Array]:
        """Elements between the unknowns of a part: all blocks, with its numbers of their unknowns."""
        assert self.added is not None
        dofs, count = self.added.dofs, where.stop - where.start
        inside = (dofs >= where.start) & (dofs < where.stop)
        return self.added.blocks, jnp.where(inside, dofs - where.start, count)


def _is_array(part: lx.AbstractLinearOperator) -> bool:
    return isinstance(part, lx.MatrixLinearOperator)


def _block_inverse(part: Any, size: int) -> Callable[[Array], Array]:
    if not isinstance(part, AbstractLargeOperator):
        raise ValueError(
            f"a {type(part).__name__} in a DirectSum has no blocks to invert; take Jacobi() as "
            "preconditioner, SparseLU(), or ByStructure(), which solves each part by its own."
        )
    return part.block_inverse(size)


def _coordinates(part: Any) -> tuple[Array, Array, Array]:
    if isinstance(part, AbstractSparse):
        return part.coordinates()
    if lx.is_tridiagonal(part):
        i = jnp.arange(part.in_size(), dtype=jnp.int32)
        places = (i, i), (i[1:], i[:-1]), (i[:-1], i[1:])
        row, column = (jnp.concatenate(x) for x in zip(*places, strict=True))
        return row, column, jnp.concatenate(lx.tridiagonal(part))
    matrix = part.as_matrix()
    i, j = (jnp.asarray(x.reshape(-1), jnp.int32) for x in np.indices(matrix.shape))
    return i, j, matrix.reshape(-1)


class BorderedInverse(eqx.Module):
    """The inverse of `[[D, C], [B, R]]`: `D` the parts of nodes, or what approximates them, `R` small arrays.

    **Arguments:** `inner`: per part the product with its `D^-1`, `None` for arrays; `reduced`:
    `(R − B D^-1 C)^-1`, `(m, m)`; `matrix`: the whole one, of which `B` and `C` are products.
    """

    inner: tuple[Callable | None, ...]
    reduced: Float[Array, "m m"]
    matrix: DirectSum

    @staticmethod
    def of(matrix: DirectSum, inverse: Callable[[Any], Callable]) -> "BorderedInverse":
        """**Arguments:** `inverse`: of a part that is no array, with the elements between its own unknowns.

        **Raises:** `ValueError` if a part takes no elements, or arrays are larger than `ARRAYS`.
        """
        if matrix.added is not None and not matrix.takes_elements:
            raise ValueError(
                "the parts of a DirectSum with elements must be sums of elements, blocks between nodes, or "
                f"matrices of lineax of at most {ARRAYS} unknowns together, got "
                f"{[f'{type(p).__name__} of {p.in_size()}' for p in matrix.parts]}; use SparseLU()."
            )
        inner, arrays, rows = [], [], []
        for part, where in zip(matrix.parts, matrix.slices(), strict=True):
            if _is_array(part):
                inner.append(None)
                arrays.append(part.as_matrix())
                rows.append(np.arange(where.start, where.stop))
                continue
            whole = part if matrix.added is None else part.plus(*matrix.own(where), *matrix.tags)
            inner.append(inverse(whole))
        if not arrays:
            return BorderedInverse(tuple(inner), jnp.zeros((0, 0), matrix.dtype), matrix)
        left = jax.scipy.linalg.block_diag(*arrays)
        start = BorderedInverse(tuple(inner), left, matrix)
        if matrix.added is not None:
            place, added = np.concatenate(rows), matrix.added
            unit = jnp.zeros((len(place), matrix.size), left.dtype)
            unit = unit.at[np.arange(len(place)), place].set(1)
            columns = jax.vmap(added.mv)(unit)
            behind = jax.vmap(lambda x: added.mv(start.nodes(x)))(columns)
            left = left + (columns - behind)[:, place].T
        return BorderedInverse(tuple(inner), jnp.linalg.inv(left), matrix)

    def nodes(self, vector: Array) -> Array:
        """`D^-1` on the unknowns of the other parts, zero on those of arrays."""
        parts = zip(self.inner, self.matrix.split(vector), strict=True)
        return jnp.concatenate([jnp.zeros_like(x) if f is None else f(x) for f, x in parts])

    def _arrays(self, vector: Array) -> Array:
        parts = zip(self.inner, self.matrix.split(vector), strict=True)
        return jnp.concatenate([x for f, x in parts if f is None])

    def _placed(self, y: Array) -> Array:
        pieces, at = [], 0
        for f, where in zip(self.inner, self.matrix.slices(), strict=True):
            n = where.stop - where.start
            pieces.append(y[at : at + n] if f is None else jnp.zeros(n, y.dtype))
            at += n if f is None else 0
        return jnp.concatenate(pieces)

    def __call__(self, x: Array) -> Array:
        first, added = self.nodes(x), self.matrix.added
        if not self.reduced.size:
            return first
        if added is None:
            return first + self._placed(self.reduced @ self._arrays(x))
        y = self._placed(self.reduced @ self._arrays(x - added.mv(first)))
        return first + y - self.nodes(added.mv(y))


class PartByPart(AbstractSolver):
    """Solves with each part of a `DirectSum` that no elements couple.

    **Arguments:** `inner`: the solver of the parts.
    """

    inner: lx.AbstractLinearSolver

    def init(self, operator: lx.AbstractLinearOperator, options: dict[str, Any]):
        if not isinstance(operator, DirectSum) or operator.added is not None:
            raise ValueError(
                f"PartByPart solves with a DirectSum without elements, got {type(operator).__name__}; use "
                "BiCGStab() or SparseLU() where elements couple its parts."
            )
        states = tuple(self.inner.init(part, options) for part in operator.parts)
        return _States(states, tuple((s.start, s.stop) for s in operator.slices()))

    def compute(self, state: "_States", vector: Array, options: dict[str, Any]):
        found, result = [], lx.RESULTS.successful
        for own, (start, stop) in zip(state.each, state.places, strict=True):
            x, outcome, _ = self.inner.compute(own, vector[start:stop], options)
            if outcome is not lx.RESULTS.successful:
                bad = result != lx.RESULTS.successful
                result = lx.RESULTS.where(bad, result, outcome)
            found.append(x)
        return jnp.concatenate(found), result, {}

    def transpose(self, state: "_States", options: dict[str, Any]):
        turned = tuple(self.inner.transpose(own, options)[0] for own in state.each)
        return _States(turned, state.places), options


class _States(eqx.Module):
    each: tuple[Any, ...]
    places: tuple[tuple[int, int], ...] = eqx.field(static=True)


register(DirectSum)
