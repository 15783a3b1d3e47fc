"""Approximate inverses for iterative solvers, which are positive definite where the matrix is."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from .._arguments import AbstractChecked
from ._direct_sum import BorderedInverse, DirectSum
from ._node_blocks import NodalSweeps, NodeBlocks
from ._operators import AbstractLargeOperator


class AbstractPreconditioner(AbstractChecked):
    """How an iterative solver is preconditioned."""

    @abstractmethod
    def inverse(self, operator: lx.AbstractLinearOperator) -> Callable[[Array], Array]:
        """The product with an approximate inverse of a matrix: a pytree that is a function."""


class NoPreconditioner(AbstractPreconditioner):
    """The unit matrix."""

    def inverse(self, operator: lx.AbstractLinearOperator) -> Callable[[Array], Array]:
        return _Scaled(jnp.ones((), operator.in_structure().dtype))


class Jacobi(AbstractPreconditioner):
    """The inverse of the diagonal."""

    def inverse(self, operator: lx.AbstractLinearOperator) -> Callable[[Array], Array]:
        diagonal = jnp.abs(lx.diagonal(operator))
        return _Scaled(1 / jnp.where(diagonal > 0, diagonal, 1))


class BlockJacobi(AbstractPreconditioner):
    """The inverses of blocks on the diagonal, such as those of the coordinates of a node.

    **Arguments:** `size`: rows of a block, 3 for nodes in space.
    """

    size: int = eqx.field(default=3, static=True)

    def inverse(self, operator: lx.AbstractLinearOperator) -> Callable[[Array], Array]:
        return _large("BlockJacobi", operator).block_inverse(self.size)


class SSOR(AbstractPreconditioner):
    """A symmetric Gauss–Seidel sweep, `(D + L) D^-1 (D + L^T)`, `D` the blocks of the nodes.

    Nodes are taken in an order by colours, of which a mesh has about ten: nodes of one colour are no
    neighbours, and are swept at once. It halves the iterations that block-Jacobi needs; as an application
    costs two products with the matrix, it does not save time on a CPU.

    Of a `DirectSum` each part is swept by its own, and those that are small arrays are eliminated.

    **Raises:** `ValueError` for matrices that are no `NodeBlocks` with colours, as those of elastic bodies.

    Reference: Y. Saad (2003), sections 4.1 and 12.4, doi:10.1137/1.9780898718003.
    """

    def inverse(self, operator: lx.AbstractLinearOperator) -> Callable[[Array], Array]:
        if isinstance(operator, DirectSum):
            return BorderedInverse.of(operator, self.inverse)
        if not isinstance(operator, NodeBlocks) or not operator.colours:
            raise ValueError(
                "SSOR sweeps over the nodes of a NodeBlocks matrix with colours, as of an elastic body, and "
                f"{type(operator).__name__} has none; use BlockJacobi() or Jacobi()."
            )
        return NodalSweeps.of(operator)


class Chebyshev(AbstractPreconditioner):
    """A polynomial in the matrix, preconditioned by block-Jacobi: the role of an incomplete factorisation,
    without its sequential solves.

    Chebyshev's semi-iteration of a fixed number of products for the eigenvalues between `upper / ratio`
    and `upper`, where `upper` is estimated by a few iterations of the power method. Each application costs
    `degree` products; it saves inner products, not products.

    **Arguments:** `degree`: products per application; `size`: as in `BlockJacobi`; `ratio`: of the largest
    to the smallest eigenvalue that is aimed at.

    Reference: Y. Saad, Iterative methods for sparse linear systems (2003), section 12.3,
    doi:10.1137/1.9780898718003.
    """

    degree: int = eqx.field(default=4, static=True)
    size: int = eqx.field(default=3, static=True)
    ratio: float = eqx.field(default=30.0, static=True)

    def inverse(self, operator: lx.AbstractLinearOperator) -> Callable[[Array], Array]:
        inner = BlockJacobi(self.size).inverse(operator)
        # The power method from a vector without symmetries; a tenth is added, as it converges from below.
        x = jnp.cos(1.0 + jnp.arange(operator.in_size(), dtype=operator.in_structure().dtype) ** 2)
        upper = jnp.ones((), x.dtype)
        for _ in range(12):
            y = inner(operator.mv(x))
            upper = jnp.sqrt(jnp.sum(y * y) / jnp.sum(x * x))
            x = y / jnp.sqrt(jnp.sum(y * y))
        return _Polynomial(operator, inner, 1.1 * upper, self.ratio, self.degree)


def _large(name: str, operator) -> AbstractLargeOperator:
    if not isinstance(operator, AbstractLargeOperator):
        raise ValueError(
            f"{name} takes blocks from an operator of diffnsd.linear, not from {type(operator).__name__}; "
            "use Jacobi()."
        )
    return operator


class _Scaled(eqx.Module):
    scale: Array

    def __call__(self, x: Array) -> Array:
        return self.scale * x


class _Polynomial(eqx.Module):
    operator: lx.AbstractLinearOperator
    inner: Callable
    upper: Array
    ratio: float = eqx.field(static=True)
    degree: int = eqx.field(static=True)

    def __call__(self, r: Array) -> Array:
        lower = self.upper / self.ratio
        middle, half = (self.upper + lower) / 2, (self.upper - lower) / 2
        sigma = middle / half
        rho = 1 / sigma
        step = self.inner(r) / middle
        x = step
        for _ in range(self.degree):
            left = self.inner(r - self.operator.mv(x))
            after = 1 / (2 * sigma - rho)
            step = after * rho * step + 2 * after / half * left
            x, rho = x + step, after
        return x
