"""The shape vocabulary and the state of a system.

Letters used for axes throughout the package: `n` tangent dimension, `c` contacts of one interaction,
`k` rows per contact, `m` unknowns of a step, `t` times.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PyTree

Config = PyTree[Array]
"""A point of the configuration group: an array, a `Pose`, or a tuple of configurations."""

Scalar = Float[Array, ""]
Vector = Float[Array, " n"]
Matrix = Float[Array, "n n"]
PerContact = Float[Array, " c"]
Local = Float[Array, "c k"]
Mask = Bool[Array, " c"]
Count = Int[Array, ""]
Args = Any


class State(eqx.Module):
    """State `(q, v)` of a system.

    **Arguments:**

    - `q`: configuration, a point of the system's group (`None` for a first-order system).
    - `v`: the variable that may jump, shape `(n,)`: generalised velocity, or the state `x` of a
      first-order system.
    """

    q: Config
    v: Vector


def is_hidden(x) -> bool:
    """Whether a transformation hides the value of `x`: then only its shape can be checked."""
    return isinstance(x, Tracer)


def eagerly(function: Callable, *args):
    """`function(*args)`, evaluated at once where all of `args` is known.

    Inside `jit` an operation on plain numbers is traced like any other, and its result is hidden.
    """
    if any(map(is_hidden, jax.tree.leaves(args))):
        return function(*args)
    with jax.ensure_compile_time_eval():
        return function(*args)


def revealed(tree: PyTree) -> PyTree:
    """The same pytree with the values that a derivative outside of `jit` wraps.

    What `jit` or `vmap` traces stays hidden.
    """
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if is_hidden(x) else x, tree)


def at_time(value, t: Scalar):
    """The value of a parameter that may be a function of time."""
    return value(t) if callable(value) else value
