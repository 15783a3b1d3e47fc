"""What users pass, checked where it comes in."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ._jax import is_traced


def expects(name: str, value, kind, what: str) -> None:
    """Raises `TypeError` unless `value` is an instance of `kind`.

    **Arguments:** `kind`: as in `isinstance`; `what`: what is expected, in words, with an example.
    """
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(
            f"{name} is the class {value.__name__}; pass an instance: {value.__name__}(...)."
        )
    raise TypeError(f"{name} must be {what}; got {_shown(value)}.")


def _shown(value) -> str:
    """What an object is, in a few words."""
    of = value if isinstance(value, type) else type(value)
    package, *folders = of.__module__.split(".")
    own = [package, *folders[: 1 - folders[0].startswith("_")]] if package == "diffnsd" else []
    name = ".".join([*own, of.__name__])
    if isinstance(value, type):
        return f"the class {name}"
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of shape {value.shape}"
    return f"an object of type {name}"


def booleans(name: str, value) -> Bool[Array, "..."]:
    """Booleans as an array; known integers 0 and 1 are booleans too.

    **Raises:** `ValueError` for other numbers.
    """
    array = jnp.asarray(value)
    if array.dtype == bool or array.size == 0:
        return array.astype(bool)
    known = not is_traced(array)
    if jnp.issubdtype(array.dtype, jnp.integer) and not (known and np.any(np.asarray(array) // 2)):
        return array.astype(bool)
    raise ValueError(
        f"{name} must be booleans, or integers 0 and 1, got numbers of type {array.dtype}; write a "
        "comparison, such as x > 0.5."
    )
