"""Relations of first-order systems: an output `y` of the state, and an input `r` from multipliers.

In users' functions, outputs and multipliers have the shape `(c, k)` with `k` rows per contact; with
one row, as almost always, `(c,)`.
"""

from collections.abc import Callable
from typing import Annotated, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import Numbers
from .._expects import returned
from .._jax import eval_now
from .._numerics import as_float, matvec
from .._types import Config, Local, Scalar, State, Vector, at_time
from ..groups import AbstractGroup
from ._base import AbstractRelation


class _Sized(Protocol):
    """Fields of the relations below; read-only, since modules are frozen."""

    @property
    def contacts(self) -> int: ...
    @property
    def rows_per_contact(self) -> int: ...


class AbstractCounted(AbstractRelation):
    """A relation with a given number of contacts, whose outputs depend on its multipliers."""

    has_feedthrough = True

    @property
    def rows(self: "_Sized") -> int:
        return self.rows_per_contact

    def count(self: "_Sized", group: AbstractGroup, t: Scalar, q: Config) -> int:
        return self.contacts


class AbstractFunctionRelation(AbstractCounted):
    """Common code of relations defined by two functions: `h` for the output, `g` for the input."""

    h: Annotated[Callable, "(t, x, lam)"]
    g: Annotated[Callable, "(t, lam)"]
    contacts: int = eqx.field(static=True)
    rows_per_contact: int = eqx.field(default=1, static=True)

    needs_positions = False

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        assert lam is not None
        return outputs("h(t, x, lam)", self.h(t, state.v, shown(lam)), lam)

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        return _inputs("g(t, lam)", self.g(t, shown(lam)), state)


class FirstOrderRelation(AbstractFunctionRelation):
    """`y = h(t, x, lam)`, `r = g(t, x, lam)`: the general relation of a first-order system.

    **Arguments:**

    - `h`: output `h(t, x, lam) -> (c,)`; `g`: input `g(t, x, lam) -> (n,)`, which is added to `f` in
      `E x' = f + r`. `x` has the shape `(n,)` and `lam` that of the output. They may be
      `equinox.Module`s: their leaves are parameters.
    - `contacts`: `c`, the number of outputs.
    - `rows_per_contact`: `k`; if it is not 1, outputs and multipliers have the shape `(c, k)`.

    **Raises:** `ValueError` in a simulation, before it is compiled, if `h` or `g` return another
    shape.

    Reference: V. Acary, B. Brogliato, Numerical methods for nonsmooth dynamical systems (2008),
    doi:10.1007/978-3-540-75392-6.
    """

    g: Annotated[Callable, "(t, x, lam)"]

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        return _inputs("g(t, x, lam)", self.g(t, state.v, shown(lam)), state)


class FirstOrderType2(AbstractFunctionRelation):
    """`y = h(t, x, lam)`, `r = g(t, lam)`: an input that does not depend on the state.

    **Arguments:** `h`, `contacts`, `rows_per_contact` as in `FirstOrderRelation`;
    `g`: `g(t, lam) -> (n,)`.

    **Raises:** as `FirstOrderRelation`.
    """


class FirstOrderType1(AbstractFunctionRelation):
    """`y = h(t, x)`, `r = g(t, lam)`: an output without feedthrough.

    **Arguments:** `h`: `h(t, x) -> (c,)`; `g`: `g(t, lam) -> (n,)`; `contacts`, `rows_per_contact`
    as in `FirstOrderRelation`.

    **Raises:** as `FirstOrderRelation`.
    """

    h: Annotated[Callable, "(t, x)"]

    has_feedthrough = False

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        assert lam is not None
        return outputs("h(t, x)", self.h(t, state.v), lam)


class FirstOrderLinear(AbstractCounted):
    """`y = C x + D lam + e`, `r = B lam`.

    **Arguments:** each an array or a function of `t`, `m` the number of outputs:

    - `C`: `(m, n)`. `B`: `(n, m)`. `D`: `(m, m)`, `None` for zero. `e`: `(m,)`, `None` for zero.
    - `rows_per_contact`: `k`; outputs and multipliers are grouped, `k` at a time, into `m / k` contacts.

    **Raises:** `ValueError` on shapes that do not fit: with each other at once, with the system in a
    simulation, before it is compiled.

    Reference: V. Acary, O. Bonnefon, B. Brogliato, Nonsmooth modeling and simulation for switched
    circuits (2011), doi:10.1007/978-90-481-9681-4.
    """

    C: Float[Array, "m n"] | Callable
    B: Float[Array, "n m"] | Callable
    D: Float[Array, "m m"] | Callable | None
    e: Float[Array, " m"] | Callable | None
    m: int = eqx.field(static=True)
    rows_per_contact: int = eqx.field(static=True)

    needs_positions = False

    def __init__(
        self,
        C: Numbers | Annotated[Callable, "(t)"],
        B: Numbers | Annotated[Callable, "(t)"],
        D: Numbers | Annotated[Callable, "(t)"] | None = None,
        e: Numbers | Annotated[Callable, "(t)"] | None = None,
        *,
        rows_per_contact: int = 1,
    ):
        self.C, self.B = _operator_of(C), _operator_of(B)
        self.D = None if D is None else _operator_of(D)
        self.e = None if e is None else _operator_of(e)
        shape = _shape_of(self.C)
        m, n = shape if len(shape) == 2 else (0, 0)
        if m < 1:
            raise ValueError(f"C must have shape (m, n), got {shape}.")
        rest = (("B", self.B, (n, m)), ("D", self.D, (m, m)), ("e", self.e, (m,)))
        for name, operator, expected in rest:
            if operator is not None and _shape_of(operator) != expected:
                raise ValueError(
                    f"{name} must have shape {expected}, since C has {shape}, got {_shape_of(operator)}."
                )
        if m % rows_per_contact:
            raise ValueError(f"{m} outputs are no whole number of contacts of {rows_per_contact}.")
        self.m = m
        self.rows_per_contact = rows_per_contact

    @property
    def has_feedthrough(self) -> bool:
        return self.D is not None

    @property
    def contacts(self) -> int:
        """`c`, the number of outputs divided by the rows of a contact."""
        return self.m // self.rows_per_contact

    def _operator(self, name: str, value, t: Scalar, shape: tuple[int, ...], dtype) -> Array:
        array = as_float(at_time(value, t), dtype)
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
        return array

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        assert lam is not None
        x, m = state.v, self.m
        y = matvec(self._operator("C", self.C, t, (m, x.shape[0]), x.dtype), x)
        if self.D is not None:
            y = y + matvec(self._operator("D", self.D, t, (m, m), x.dtype), lam.reshape(m))
        if self.e is not None:
            y = y + self._operator("e", self.e, t, (m,), x.dtype)
        return y.reshape(lam.shape)

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        x, m = state.v, self.m
        b = self._operator("B", self.B, t, (x.shape[0], m), x.dtype)
        return matvec(b, lam.reshape(m))


def _operator_of(value) -> Array | Callable:
    return value if callable(value) else eval_now(as_float, value)


def _shape_of(operator) -> tuple[int, ...]:
    return jnp.shape(operator) if not callable(operator) else jax.eval_shape(operator, 0.0).shape


def shown(lam: Local) -> Array:
    """Multipliers as passed to users' functions: `(c,)` if a contact has one row."""
    return lam[:, 0] if lam.shape[1] == 1 else lam


def outputs(name: str, value, lam: Local, multiplier: str = "multiplier") -> Local:
    """Outputs of a user's function, one for each multiplier, `(c, k)`."""
    what = f"real numbers of shape {shown(lam).shape}, one output for every {multiplier}"
    return as_float(returned(name, value, what, shape=shown(lam).shape), lam.dtype).reshape(
        lam.shape
    )


def _inputs(name: str, value, state: State) -> Vector:
    what = f"real numbers of shape {state.v.shape}, that of x"
    return as_float(returned(name, value, what, shape=state.v.shape), state.v.dtype)
