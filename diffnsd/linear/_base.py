"""What the solvers of this folder have in common.

They follow the protocol of lineax, so that its own solvers (`lx.Cholesky`, `lx.LU`, `lx.CG`, ...) can take
their place: `init(operator, options)` factorises, `compute(state, vector, options)` solves, `transpose`
gives the state of the transposed matrix.
"""

from typing import Any

import lineax as lx

from .._arguments import AbstractChecked


class AbstractSolver(AbstractChecked, lx.AbstractLinearSolver):
    """A solver for square real matrices on vectors `(n,)`.

    A subclass defines `init` and `compute`, and `transpose` where a matrix need not be symmetric.
    """

    def transpose(self, state: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return state, options

    def conj(self, state: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return state, options

    def assume_full_rank(self) -> bool:
        return True


def square(name: str, operator: lx.AbstractLinearOperator) -> None:
    """Raises `ValueError` if an operator is not square."""
    rows, columns = operator.out_size(), operator.in_size()
    if rows != columns:
        raise ValueError(f"{name} solves with square matrices, got one of {rows} × {columns}.")


def symmetric(name: str, operator: lx.AbstractLinearOperator, structure: str = "symmetric") -> None:
    """Raises `ValueError` if an operator does not say that it is symmetric."""
    square(name, operator)
    if not (lx.is_symmetric(operator) or lx.is_positive_semidefinite(operator)):
        raise ValueError(
            f"{name} needs a symmetric matrix, and this {type(operator).__name__} does not say that it is "
            "one: give it the tag lineax.symmetric_tag, or take SparseLU() or another solver for "
            "unsymmetric matrices. Contacts and rigid bodies can make the matrices of a step unsymmetric: "
            f"take ByStructure({structure}={name}(...)) there, which uses {name} where it fits."
        )


def positive(name: str, operator: lx.AbstractLinearOperator) -> None:
    """Raises `ValueError` if an operator does not say that it is positive definite."""
    symmetric(name, operator, "positive")
    if not lx.is_positive_semidefinite(operator):
        raise ValueError(
            f"{name} needs a positive definite matrix, and this {type(operator).__name__} does not say that "
            "it is one: give it the tag lineax.positive_semidefinite_tag, or take MINRES() or SparseLU() "
            "for an indefinite one."
        )
