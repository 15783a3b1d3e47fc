"""Unilateral constraints without impact."""

from ..sets import AbstractSet, HalfLine
from ._base import AbstractLaw


class Complementarity(AbstractLaw):
    """Unilateral contact without restitution or friction: inelastic stops, ideal diodes.

        0 <= u_N ⟂ P_N >= 0    for closed contacts,    P_N = 0 for open ones

    It acts only on the normal row of each contact: velocities `u_N` [m/s] and impulses `P_N` [N s]
    of shape `(1, c)`. It has no parameters. `NewtonImpact` is the same law with restitution.

    Reference: V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical systems (2008),
    doi:10.1007/978-3-540-75392-6.
    """

    rows = 1
    is_unilateral = True

    def set(self) -> AbstractSet:
        return HalfLine()
