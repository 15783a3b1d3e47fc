"""The shape vocabulary and the state of a system.

Letters used for axes throughout the package: `n` tangent dimension, `c` contacts of one interaction,
`k` rows per contact, `m` unknowns of a step, `t` times.
"""

from typing import Any

import equinox as eqx
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


def at_time(value, t: Scalar):
    """The value of a parameter that may be a function of time."""
    return value(t) if callable(value) else value
