"""Local velocities without a gap: rates of a function, and entries of the velocity itself."""

from collections.abc import Callable
from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AbstractChecked
from .._expects import returned
from .._numerics import as_float
from .._types import Local, Scalar, State
from ..groups import AbstractGroup
from ._base import AbstractRelation, along, body_indices, own_columns, reads_bodies


class RateRelation(AbstractRelation):
    """`u = d f(t, q)/dt` along the motion, without a gap: always in contact.

    For laws that need no gap: dry friction in a joint, a drive.

    **Arguments:** `function`: `f(t, q)` with shape `(c,)`, or `()` for one row; it may be an
    `equinox.Module`: its leaves are parameters.
    """

    function: Annotated[Callable, "(t, q)"]

    rows = 1

    @property
    def is_of_bodies(self) -> bool:
        return reads_bodies(self.function)

    def own_columns(self, group: AbstractGroup) -> tuple[int, ...] | None:
        return own_columns(self.function, group)

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:

        def value(t, q):
            what = "real numbers of shape (c,) or ()"
            name, value = "the function(t, q) of RateRelation", self.function(t, q)
            value = returned(name, value, what, smooth=True)
            if not value.size:
                raise ValueError(f"{name} must return {what}; it returned none.")
            return value

        return jnp.atleast_1d(along(value, group, t, state)[1])[:, None]


class PrescribedVelocity(AbstractRelation):
    """`u = v[index] − rate(t)`: with `Equality`, prescribed entries of the velocity.

    In a `Model` it is stated as `prescribed=PrescribedVelocity(...)`; the impulses of its rows are
    the reactions [N s].

    **Arguments:** `index`: which entries of `v`, an integer or a sequence; `rate`: `rate(t)` with
    shape `()` or `(len(index),)`, for example `Harmonic(...)`; or a number or an array, default 0:
    held fixed.

    **Raises:** `ValueError` in a simulation, before it is compiled, if there is no such entry.
    """

    index: tuple[int, ...] = eqx.field(static=True)
    rate: Annotated[Callable, "(t)"] | Array

    rows = 1

    def __init__(self, index, rate=0.0):
        found = body_indices("index", index)
        if found is None or isinstance(found, tuple) and None in found:
            raise ValueError(f"index must be an integer or a list of integers, got {index}.")
        self.index = (found,) if isinstance(found, int) else found  # pyright: ignore[reportAttributeAccessIssue]
        self.rate = rate if callable(rate) else as_float(rate)

    def own_columns(self, group: AbstractGroup) -> tuple[int, ...] | None:
        return self.index

    def _rates(self, t: Scalar, dtype) -> Float[Array, " c"]:
        rate, shape = self.rate(t) if callable(self.rate) else self.rate, (len(self.index),)
        what = f"one real number, or numbers of shape {shape}"
        returned("rate(t)", rate, what)
        rate = as_float(rate, dtype)
        if rate.shape not in ((), shape):
            raise ValueError(f"rate must be {what}, got shape {rate.shape}.")
        return jnp.broadcast_to(rate, shape)

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        v = jnp.stack([state.v[i] for i in self.index])
        return (v - self._rates(t, state.v.dtype))[:, None]

    def check(self, group: AbstractGroup) -> str | None:
        wrong = [i for i in self.index if not 0 <= i < group.dim]
        if not wrong:
            return None
        return (
            f"PrescribedVelocity.index has {wrong[0]}, but v has the entries 0 to {group.dim - 1}"
        )


class Harmonic(AbstractChecked):
    """`a + b cos(omega t + phi)`, a function of time.

    **Arguments:** `a`, `b`: mean and amplitude, shape `()` or `(c,)`; `omega` [rad/s]; `phi` [rad].
    """

    a: Array = eqx.field(converter=as_float)
    b: Array = eqx.field(converter=as_float)
    omega: Array = eqx.field(converter=as_float)
    phi: Array = eqx.field(converter=as_float, default=0.0)

    def __call__(self, t: Scalar) -> Array:
        return self.a + self.b * jnp.cos(self.omega * t + self.phi)
