"""Compliant relations of mechanical systems: positions that yield to multipliers."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._jax import eval_now
from .._numerics import as_float, matvec
from .._types import Config, Local, Scalar, State, Vector
from ..groups import AbstractGroup
from ._base import Contacts
from ._first_order import AbstractCounted, outputs, shown
from ._gap import GapRelation


class CompliantRelation(AbstractCounted):
    """`y = h(t, q, lam)` with forces `lam`, whose generalised force is `(∂h/∂q)^T lam`.

    A compliant contact or joint: `h = g(q) + C lam` with `Complementarity` is a stop of stiffness
    `1/C`, `lam = max(0, −g/C)`, and with `Equality` a spring. `C` may be arbitrarily small, and motions
    then tend to those of the rigid contact. There is no impact and so no restitution. Derivatives are
    correct without `Located`, since forces do not jump. The stored energy `C lam²/2` is not part of
    `Model.energy`.

    The law holds between `y` [m] and `lam` [N] at the point `theta` of a step, with its mean force:
    `MoreauJean(theta=0.5)` is the midpoint rule, which conserves the energy of a linear contact, and
    `BackwardEuler` is dissipative. `Solution.impulses` are `h lam`.

    **Arguments:**

    - `h`: `h(t, q, lam)` with `lam` and the value of shape `(c,)`; it may be an `equinox.Module`: its
      leaves are parameters.
    - `contacts`: `c`. `rows_per_contact`: `k`; if it is not 1 the shapes are `(c, k)`.

    **Raises:** `ValueError` in a simulation, before it is compiled, if `h` returns another shape, or
    the law depends on velocities (restitution, friction).

    Reference: V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical systems (2008),
    doi:10.1007/978-3-540-75392-6.
    """

    h: Annotated[Callable, "(t, q, lam)"]
    contacts: int = eqx.field(static=True)
    rows_per_contact: int = eqx.field(default=1, static=True)

    @staticmethod
    def linear(C, D, e=None) -> "CompliantRelation":
        """`y = C q + D lam + e` of a system on R^n.

        **Arguments:** `C`: `(m, n)`; `D`: compliance, `(m, m)` [m/N]; `e`: `(m,)`, `None` for zero.

        **Raises:** `ValueError` if shapes do not match.
        """
        C, D = eval_now(as_float, C), eval_now(as_float, D)
        m = C.shape[0] if C.ndim == 2 else 0
        e = jnp.zeros(m, C.dtype) if e is None else eval_now(as_float, e)
        if m < 1 or D.shape != (m, m) or e.shape != (m,):
            raise ValueError(
                "C, D and e must have shapes (m, n), (m, m) and (m,), got "
                f"{C.shape}, {D.shape} and {e.shape}."
            )
        return CompliantRelation(_Linear(C, D, e), m)

    def _at(self, lam: Local) -> GapRelation:
        """The relation for given forces."""

        def value(t, q):
            y = self.h(t, q, shown(lam))
            return outputs("h(t, q, lam)", y, lam, "force")

        return GapRelation(value, self.rows)

    def _unloaded(self, dtype) -> GapRelation:
        return self._at(jnp.zeros((self.contacts, self.rows), dtype))

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        """`y (c, k)` [m]; if `lam` is `None`, without forces."""
        relation = self._unloaded(state.v.dtype) if lam is None else self._at(lam)
        return relation.function(t, state.q)

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        return self._at(lam).input(group, t, state, lam)

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        """`∂h/∂q` and `∂h/∂t` without forces; no gap, since an apparent penetration is the deformation."""
        seen = self._unloaded(jax.tree.leaves(q)[0].dtype).observe(group, t, q)
        return Contacts(None, seen.H, seen.drift)


class _Linear(eqx.Module):
    """`C q + D lam + e`."""

    c_matrix: Array
    d_matrix: Array
    e_vector: Array

    def __call__(self, t, q, lam):
        if q.shape != self.c_matrix.shape[1:]:
            raise ValueError(f"C has shape {self.c_matrix.shape}, but q has shape {q.shape}.")
        return matvec(self.c_matrix, q) + matvec(self.d_matrix, lam) + self.e_vector
