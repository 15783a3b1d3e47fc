"""Multipliers in a polytope."""

import equinox as eqx
import numpy as np
from jaxtyping import Array

from .._arguments import Numbers
from .._jax import is_traced
from ..sets import AbstractSet, Polytope
from ._base import AbstractLaw, parameter


class NormalCone(AbstractLaw):
    """`−y ∈ N_P(lam)` with a polytope `P = {lam : H lam >= b}`: relays with coupled bounds.

    The multiplier lies in `P`. In the interior `y = 0`; on the boundary `−y` points out of the faces
    on which the multiplier lies. `Relay` is the case of a box. The law acts on all `k` rows of a
    contact: the relation needs `rows_per_contact=k`.

    **Arguments:** `H`: `(p, k)`, one row per face; `b`: `(p,)`. `P` must not be empty.

    **Raises:** `ValueError` if shapes do not match.

    Reference: V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical systems (2008),
    doi:10.1007/978-3-540-75392-6.
    """

    H: tuple[tuple[Array, ...], ...]
    b: tuple[Array, ...]
    k: int = eqx.field(static=True)

    never_opens = True

    def __init__(self, H: Numbers, b: Numbers):
        H, b = parameter(H), parameter(b)
        if H.ndim != 2 or b.shape != H.shape[:1] or 0 in H.shape:
            raise ValueError(f"H must have shape (p, k) and b (p,), got {H.shape} and {b.shape}.")
        # Entry by entry, since every parameter of a law may have its own value for every contact.
        self.H = tuple(tuple(parameter(x) for x in row) for row in H)
        self.b = tuple(parameter(x) for x in b)
        self.k = H.shape[1]

    @property
    def rows(self) -> int | None:
        """All `k` rows of a contact."""
        return self.k

    def set(self) -> AbstractSet:
        return Polytope(self.H, self.b)

    def check(self) -> str | None:
        rows = self.H
        if any(is_traced(x) for row in rows for x in row):
            return None
        sizes = [float(np.max([np.max(np.abs(x)) for x in row])) for row in rows]
        if all(0 < size < np.inf for size in sizes):
            return None
        return f"row {int(np.argmin(sizes))} of H is no normal of a face: it is zero or not finite"
