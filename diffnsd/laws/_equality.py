"""Bilateral constraints."""

from ..sets import AbstractSet, Free
from ._base import AbstractLaw


class Equality(AbstractLaw):
    """Bilateral constraints, as in joints: contacts that can neither part nor slip.

        u = 0,    P free    at every time, whatever the gap

    It acts on all `k` rows of a relation: velocities `u` [m/s] and impulses `P` [N s] of shape
    `(k, c)`. It has no parameters.

    Reference: V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical systems (2008),
    doi:10.1007/978-3-540-75392-6.
    """

    holds_gap = True
    never_opens = True

    def set(self) -> AbstractSet:
        return Free()
