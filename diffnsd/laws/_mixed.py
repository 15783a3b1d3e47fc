"""Equalities and complementarity in one contact."""

import equinox as eqx

from ..sets import AbstractSet, Free, HalfLine, Product
from ._base import AbstractLaw


class Mixed(AbstractLaw):
    """The first rows of a contact are equalities, the others complementary.

        y_i = 0, lam_i free   for i < equalities,        0 <= y_i ⟂ lam_i >= 0   for the others

    For relations with several rows per contact: the mixed complementarity problem of a circuit's
    algebraic equations with its diodes is one contact.

    **Arguments:** `equalities`: number of rows, at least 0; the relation needs at least as many rows.

    Reference: V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical systems (2008),
    doi:10.1007/978-3-540-75392-6.
    """

    equalities: int = eqx.field(static=True)

    never_opens = True

    def __check_init__(self):
        if self.equalities < 0:
            raise ValueError(f"equalities must be at least 0, got {self.equalities}.")

    @property
    def least_rows(self) -> int:
        return max(self.equalities, 1)

    def set(self) -> AbstractSet:
        return Product(Free(), HalfLine(), self.equalities)
