"""Mechanical systems defined by one function, their Lagrangian."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp

from .._expects import returned
from .._jax import concrete, is_traced
from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import AbstractGroup, Euclidean
from ._base import AbstractSystem, positive_definite, shaped


class EulerLagrangeSystem(AbstractSystem):
    """`d/dt ∂L/∂v − ∂L/∂q = F(t, state, args) + p`,  `q' = v`, in `R^n`, derived from `L`.

    **Arguments:** `lagrangian`: `L(q, v) -> ()`, kinetic minus potential energy [J]; `forcing`:
    generalised force `F`, `forcing(t, state, args) -> (n,)`, or `None`; `n`: dimension. Functions
    may be `equinox.Module`s: their leaves are parameters.

    **Raises:** `ValueError` in a simulation, before it is compiled, if `forcing` returns another
    shape, or if `d²L/dv²` is not positive definite at the initial state.
    """

    lagrangian: Annotated[Callable, "(q, v)"]
    forcing: Annotated[Callable, "(t, state, args)"] | None
    n: int = eqx.field(static=True)

    @property
    def group(self) -> AbstractGroup:
        return Euclidean(self.n)

    def _value(self, q: Config, v: Vector) -> Scalar:
        value, what = self.lagrangian(q, v), "one real number"
        return returned("lagrangian(q, v)", value, what, shape=(), smooth=True)

    def mass(self, t: Scalar, q: Config) -> Matrix:
        """`d²L/dv²` at `v = 0`, shape `(n, n)`."""
        del t
        return jax.hessian(self._value, argnums=1)(q, jnp.zeros_like(q))

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        """`∂L/∂q − (∂²L/∂v∂q) v + F`, shape `(n,)`."""
        q, v = state.q, state.v
        momentum = jax.grad(self._value, argnums=1)
        _, transport = jax.jvp(lambda x: momentum(x, v), (q,), (v,))
        total = jax.grad(self._value)(q, v) - transport
        if self.forcing is None:
            return total
        applied = self.forcing(t, state, args)
        return total + shaped("forcing(t, state, args)", applied, (self.n,), v.dtype)

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Potential energy `−L(q, 0)` [J]."""
        del t
        return -self._value(q, jnp.zeros_like(q))

    def check(self, q: Config | None = None) -> str | None:
        if q is None or is_traced(q):
            return None
        mass = concrete(self.mass(jnp.zeros((), q.dtype), q))
        return positive_definite("d²L/dv² at the initial configuration", mass)
