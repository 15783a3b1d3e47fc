"""Which solver fits which matrix, and linear solves that are differentiated."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Bool

from .._arguments import checked_arguments
from .._expects import expects, of_shape
from .._jax import with_value
from .._numerics import max_abs
from ._base import AbstractSolver
from ._direct import BlockTridiagonalLU, Cholesky, Tridiagonal
from ._direct_sum import DirectSum, PartByPart
from ._iterative import MINRES, BiCGStab, ConjugateGradients
from ._node_blocks import NodeBlocks
from ._operators import Banded, BlockTridiagonal, ElementSum
from ._preconditioners import BlockJacobi
from ._sparse import SparseLU


class ByStructure(AbstractSolver):
    """The solver that fits the structure of a matrix, as the system declares it by its operator.

    **Arguments:** the solver for each structure: `diagonal`, `tridiagonal`, `banded` (and block
    tridiagonal), `positive` and `symmetric` sums of elements and blocks between nodes, `sparse` sums and
    `nodal` blocks that are not symmetric, `dense_positive` and `dense` matrices and all other operators.
    Each part of a `DirectSum` is solved by its own; where elements couple them it counts as blocks between
    nodes.
    """

    diagonal: lx.AbstractLinearSolver = lx.Diagonal()
    tridiagonal: lx.AbstractLinearSolver = Tridiagonal()
    banded: lx.AbstractLinearSolver = BlockTridiagonalLU()
    positive: lx.AbstractLinearSolver = ConjugateGradients(BlockJacobi(3))
    symmetric: lx.AbstractLinearSolver = MINRES()
    sparse: lx.AbstractLinearSolver = SparseLU()
    nodal: lx.AbstractLinearSolver = BiCGStab(BlockJacobi(3))
    dense_positive: lx.AbstractLinearSolver = Cholesky()
    dense: lx.AbstractLinearSolver = lx.LU()

    def __repr__(self) -> str:
        names = [f.name for f in dataclasses.fields(self)]
        return "ByStructure(" + ", ".join(f"{x}={getattr(self, x)!r}" for x in names) + ")"

    def choose(self, operator: lx.AbstractLinearOperator) -> lx.AbstractLinearSolver:
        """The solver for this operator."""
        if isinstance(operator, DirectSum) and operator.added is None:
            return PartByPart(self)
        return getattr(self, _structure(operator))

    def init(self, operator: lx.AbstractLinearOperator, options: dict[str, Any]):
        chosen = self.choose(operator)
        return Chosen(chosen, chosen.init(operator, options))

    def compute(self, state: "Chosen", vector: Array, options: dict[str, Any]):
        return state.solver.compute(state.state, vector, options)

    def transpose(self, state: "Chosen", options: dict[str, Any]):
        turned, options = state.solver.transpose(state.state, options)
        return Chosen(state.solver, turned), options


class Chosen(eqx.Module):
    """A solver with its state."""

    solver: lx.AbstractLinearSolver
    state: Any


@functools.singledispatch
def _structure(operator: lx.AbstractLinearOperator) -> str:
    """The field of `ByStructure` for an operator."""
    if lx.is_diagonal(operator):
        return "diagonal"
    if lx.is_tridiagonal(operator):
        return "tridiagonal"
    return "dense_positive" if lx.is_positive_semidefinite(operator) else "dense"


@_structure.register(Banded)
@_structure.register(BlockTridiagonal)
def _(operator) -> str:
    return "banded"


@_structure.register(ElementSum)
def _(operator) -> str:
    return (
        "positive" if operator.is_positive else "symmetric" if operator.is_symmetric else "sparse"
    )


@_structure.register(NodeBlocks)
@_structure.register(DirectSum)
def _(operator) -> str:
    return "positive" if operator.is_positive else "symmetric" if operator.is_symmetric else "nodal"


class Factored(eqx.Module):
    """A matrix with the state of its solver: factorised once, solved with as often as is needed.

    **Arguments:** `operator`; `solver`: in lineax's protocol.
    """

    operator: lx.AbstractLinearOperator
    solver: lx.AbstractLinearSolver
    state: Any

    def __init__(self, operator: lx.AbstractLinearOperator, solver: lx.AbstractLinearSolver):
        expects("operator", operator, lx.AbstractLinearOperator, "a linear operator of lineax")
        expects("solver", solver, lx.AbstractLinearSolver, "a linear solver, such as ByStructure()")
        self.operator = operator
        self.solver = solver
        arrays, rest = eqx.partition(operator, eqx.is_array)
        self.state = solver.init(eqx.combine(jax.lax.stop_gradient(arrays), rest), {})

    def values(self, right: Array, rtol: Array | float = 0.0) -> tuple[Array, lx.RESULTS]:
        """`A^-1 r`, `(n,)`, without a derivative, and how the solver ended.

        **Arguments:** `rtol`: relative residual that is enough, where the solver iterates.
        """
        x, result, _ = self.solver.compute(self.state, right, {"rtol": rtol})
        return x, result

    def left(self, right: Array, x: Array) -> Bool[Array, ""]:
        """Whether `x` leaves more than a tenth of `r`, or is not finite though `r` is.

        So does what a direct solver returns for a singular matrix, of which rounding keeps a pivot from
        zero: 0.2 to 300 of `r`, where stiff beams that are held leave 6e-5.
        """
        part = max_abs(self.operator.mv(x) - right)
        return ~(part <= 0.1 * max_abs(right)) & jnp.all(jnp.isfinite(right))

    def solve(
        self, right: Array, rtol: Array | float = 0.0, expected: Array | bool = True
    ) -> Array:
        """`A^-1 r`, `(n,)`, differentiable by `A` and `r`, forward and reverse; `rtol` as of `values`.

        A solve that fails raises an error, which names the remedy: a derivative has no other way to
        say so. It does not where success is not `expected`, as where a failure is known already.
        """
        solver: Any = self.solver
        state, operator = self.state, self.operator
        options: dict[str, Any] = {"rtol": rtol}

        def run(state):
            def solve(_: Callable, b: Array) -> Array:
                x, result, _ = solver.compute(state, b, options)
                # A solver that cannot fail needs no check, which would wait for the host in every step.
                if result is lx.RESULTS.successful:
                    return x
                return eqx.error_if(x, expected & (result != lx.RESULTS.successful), UNSOLVED)

            return solve

        turned, _ = solver.transpose(state, options)
        return jax.lax.custom_linear_solve(operator.mv, right, run(state), run(turned))

    def columns(self, right: Array) -> tuple[Array, Array]:
        """`A^-1 R` for `R (n, m)`, without a derivative, and whether all solves succeeded."""

        def one(r):
            x, result = self.values(r)
            return x, result == lx.RESULTS.successful

        x, done = jax.vmap(one, in_axes=1, out_axes=(1, 0))(right)
        return x, jnp.all(done)


UNSOLVED = (
    "a linear solve of a derivative failed: the matrix is singular, or the solver does not fit it; take "
    "linear_solver=SparseLU() for sparse matrices of any kind, MINRES() for symmetric indefinite ones, or "
    "raise max_steps of the solver"
)


@checked_arguments
def linear_solve(
    operator: lx.AbstractLinearOperator,
    right: Array,
    solver: lx.AbstractLinearSolver = ByStructure(),  # noqa: B008 (an immutable constant)
) -> Array:
    """Solves `A x = r`, for example for a static load, and is differentiable by both.

    **Arguments:** `operator`: `A`; `right`: `r`, shape `(n,)`; `solver`: by default the one that fits the
    structure of `A`.

    **Returns:** `x`, shape `(n,)`.

    **Raises:** `ValueError` if the solver does not take such an operator. `RuntimeError`, from the
    compiled program, if the solve fails, or if what it returns leaves more than a tenth of `r`: a matrix that
    is singular, as the stiffness of a body that nothing holds, or not definite where the solver needs it.
    """
    right = of_shape("right", right, operator.in_size())
    found = Factored(operator, solver)
    x, result = found.values(jax.lax.stop_gradient(right))
    x = eqx.error_if(x, result == lx.RESULTS.breakdown, INDEFINITE)
    failed = (result != lx.RESULTS.successful) & (result != lx.RESULTS.breakdown)
    x = eqx.error_if(x, failed | found.left(right, x), SINGULAR)
    return with_value(found.solve(right), x)


INDEFINITE = (
    "the matrix is not positive definite, which this solver needs; take MINRES() or SparseLU() for an "
    "indefinite matrix"
)
SINGULAR = (
    "the linear solver did not reach a solution: the matrix is singular, as the stiffness of a body that "
    "nothing holds (give boundary conditions), or the iterations ended at max_steps (raise it, or take a "
    "better preconditioner)"
)
