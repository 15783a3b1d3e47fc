"""What a motion with known sensitivities is."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from diffnsd import State
from diffnsd.laws import AbstractLaw
from diffnsd.model import Model

G = 9.81


def unchanged(law: AbstractLaw) -> AbstractLaw:
    """The law itself."""
    return law


@dataclass(frozen=True)
class KnownMotion:
    """A motion whose state at its end is known in closed form as a function of its parameters.

    Times of impacts and switches are written out in `exact`, so that its derivative, by JAX, is that
    of the motion. Motions with the same `build` run in the same compiled program.

    **Arguments:**

    - `names`: of the parameters, with units. `x`: their values. `end`: how long it lasts [s].
    - `build(x, wrap) -> (model, state)`: the model and the start, with `wrap` around every law.
    - `exact(x)`: the state at `end` as a vector: all entries of `q`, then those of `v`.
    - `free`: how many of the parameters, the first ones, may be varied; `None` for all.
    - `jumps`: whether the velocity jumps on the way, so that plain time stepping loses derivatives.
    """

    names: tuple[str, ...]
    x: tuple[float, ...]
    end: float
    build: Callable[..., tuple[Model, State]]
    exact: Callable[[Array], Array]
    free: int | None = None
    jumps: bool = True

    def __post_init__(self):
        # One program, also in derivatives, and not one for every operation.
        object.__setattr__(self, "exact", jax.jit(self.exact))

    def known(self) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m p"]]:
        """The state at the end and its derivatives by the free parameters; needs float64."""
        value, slopes = _with_slopes(self.exact, self.x)
        return value, slopes[:, : self.free]

    def compare(self, found) -> tuple[float, float]:
        """Largest errors of values and of sensitivities, relative to the largest of each."""
        value, slopes = self.known()
        pairs = (found[0], value), (found[1][:, : self.free], slopes)
        return tuple(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)  # pyright: ignore[reportReturnType]


@functools.cache
def _with_slopes(exact: Callable[[Array], Array], x: tuple[float, ...]) -> tuple:
    """Values and derivatives, compiled and evaluated once for all step lengths and methods."""
    value, slopes = eqx.filter_jit(lambda x: (exact(x), jax.jacfwd(exact)(x)))(jnp.asarray(x))
    return np.asarray(value), np.asarray(slopes)


def read(state: State) -> Array:
    """A state as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(state)])


def solved(solve: Callable[[np.ndarray], tuple], size: int) -> Callable[[Array], Array]:
    """A function of JAX with `size` values and the derivatives that come with them.

    `solve(x)` returns both, `(m,)` and `(m, p)`, and is outside of JAX: for a motion without a closed form.
    """

    # Values and derivatives are taken at the same place, one after the other.
    @functools.lru_cache(maxsize=16)
    def once(x: bytes):
        return tuple(np.asarray(part, float) for part in solve(np.frombuffer(x)))

    def both(x: Array):
        shapes = (jax.ShapeDtypeStruct(s, x.dtype) for s in ((size,), (size, x.size)))
        return jax.pure_callback(lambda x: once(np.asarray(x).tobytes()), tuple(shapes), x)

    @jax.custom_jvp
    def exact(x):
        return both(x)[0]

    @exact.defjvp
    def _(primals, tangents):
        value, slopes = both(*primals)
        return value, slopes @ tangents[0]

    return exact


def root(function: Callable[[Array, Array], Array], guess: float, parameters: Array) -> Array:
    """The root of `function(s, parameters)` near a guess, with its derivative.

    Newton's method to rounding; two more passes, differentiated, have the derivatives of the
    implicit function to second order.
    """

    def visit(s, parameters):
        value, slope = jax.jvp(lambda s: function(s, parameters), (s,), (jnp.ones_like(s),))
        return s - value / slope

    s = jnp.asarray(guess, parameters.dtype)
    held = jax.lax.stop_gradient(parameters)
    s = jax.lax.stop_gradient(jax.lax.fori_loop(0, 30, lambda _, s: visit(s, held), s))
    return visit(visit(s, parameters), parameters)
