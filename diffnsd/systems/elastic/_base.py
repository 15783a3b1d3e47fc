"""Groups of elements: `E = Σ w_e ψ(F_e, θ_e)` with deformations that are linear in the coordinates.

Arrays of all elements have the element as last axis, so that every operation runs along long rows
and the program does not grow with the mesh.
"""

import functools
import operator
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._arguments import AbstractChecked
from ..._jax import concrete, eval_now, is_traced
from ..._types import Scalar
from ._materials import Shared

Nodal = Float[Array, "p w"]
"""Coordinates of all nodes; here and below only the first `w`, those that the elements use."""


class AbstractElements(AbstractChecked):
    """Elements of one kind: which nodes they connect, their energy and their inertia.

    Every other array among the fields has one value, `()`, or one per element, leading axis `e`;
    methods that are documented "for one element" see the values of that element.
    The deformation of an element with nodal coordinates `x (w, k)` is `F = x G`, shape `(w, m)`.
    A node's coordinates are its position, then angles, where elements have them: one in the plane, a rotation
    vector in space. Elements that turn in space have `G = 1` and define `placed`, `moved`, `carried`, `axes`.
    """

    dimensions: eqx.AbstractClassVar[tuple[int, ...]]

    nodes: eqx.AbstractVar[Int[Array, "e k"]]

    @abstractmethod
    def width(self, dimension: int) -> int:
        """How many coordinates of a node the elements use, in a space of that dimension."""

    @abstractmethod
    def gradient(self, X: Float[Array, "w k"]) -> Float[Array, "k m"]:
        """`G` of `F = x G`, from the coordinates at rest, for one element."""

    @abstractmethod
    def measure(self, X: Float[Array, "w k"]) -> Scalar:
        """The factor `w_e` of the energy density, a length, area or volume, for one element."""

    @abstractmethod
    def density_of_energy(self, X: Float[Array, "w k"], F: Float[Array, "w m"]) -> Scalar:
        """Energy per `measure` at the deformation `F`, for one element."""

    def inertia(self, X: Float[Array, "w k"]) -> Float[Array, "w k k"] | None:
        """Consistent mass of each coordinate between the nodes, for one element; `None`: no mass."""
        del X
        return None

    def axes(self, X: Float[Array, "w k"]) -> Float[Array, "w w"] | None:
        """Axes in which `inertia` is given, as columns, for one element; `None`: those of the coordinates."""
        del X
        return None

    def placed(self, F: Float[Array, "w m"]) -> Array:
        """The deformation as `density_of_energy` and `moved` take it, for one element."""
        return F

    def moved(self, F: Array, move: Float[Array, "w m"]) -> Array:
        """The deformation after a move along velocities, exact to second order, for one element."""
        return F + move

    def carried(
        self, increment: Float[Array, "w m"], move: Float[Array, "w m"]
    ) -> Float[Array, "w m"]:
        """The move after an `increment` that a change `move` of this increment causes, for one element."""
        del increment
        return move

    def volume_ratio(self, F: Float[Array, "w m"]) -> Scalar | None:
        """Volume over volume at rest, negative where inverted; `None` if it has no meaning."""
        del F
        return None

    def flaws(self, X: np.ndarray) -> tuple[str, np.ndarray] | None:
        """What may be wrong with the geometry at rest, `(e, k, w)`, in words, and of which elements."""
        del X
        return None

    def check(self) -> str | None:
        """Error message if a parameter with a known value is invalid, else `None`."""
        return None


def connectivity(name: str, nodes, sizes: tuple[int, ...]) -> Array:
    """Node numbers `(e, k)` as integers; raises `ValueError` if they have another shape or kind."""
    array = np.asarray(nodes)
    if array.ndim == 2 and array.shape[1] not in sizes and array.shape[0] in sizes:
        hint = "; did you pass the transpose?"
    else:
        hint = ""
    if array.ndim != 2 or array.shape[1] not in sizes:
        wanted = " or ".join(f"(e, {k})" for k in sizes)
        raise ValueError(f"nodes of {name} must have shape {wanted}, got {array.shape}{hint}.")
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"nodes of {name} must be whole numbers, got {array.dtype}.")
    return eval_now(jnp.asarray, array.astype(np.int32))


def negative(name: str, **values) -> str | None:
    """A message if one of the known values is negative or not finite, else `None`."""
    for field, value in concrete(values).items():
        if value is None or is_traced(value):
            continue
        known = np.asarray(value)
        if not np.all(np.isfinite(known) & (known >= 0)):
            return f"{field} of {name} must be finite and not negative, got {np.min(known):.6g}"
    return None


NO_LENGTH = "have no length at rest, and so no direction; remove them, or move one of their nodes"
"""What `AbstractElements.flaws` says of elements between two nodes at one place."""


def matmul(a: Array, b: Array) -> Array:
    """A product of two small matrices as a chain of additions, elementwise along batch axes."""
    columns, rows = jnp.unstack(a, axis=1), jnp.unstack(b)
    terms = (x[:, None] * y[None, :] for x, y in zip(columns, rows, strict=True))
    return functools.reduce(operator.add, terms)


def _lanes(elements: AbstractElements) -> Any:
    """For every leaf whether it has a value per element: axes of `vmap`."""
    e = elements.nodes.shape[0]

    def axis(leaf):
        if isinstance(leaf, Shared) or not eqx.is_array(leaf) or leaf.ndim == 0:
            return None
        if leaf.shape[0] != e:
            raise ValueError(
                f"a parameter of {type(elements).__name__} has shape {leaf.shape}: give one value, (), or "
                f"one per element, ({e}, ...); what all elements share goes into Shared(...)."
            )
        return 0

    return jax.tree.map(axis, elements, is_leaf=lambda x: isinstance(x, Shared))


def check_lanes(elements: AbstractElements) -> None:
    """Raises `ValueError` if a parameter has neither one value nor one per element."""
    _lanes(elements)


def over_elements(function: Callable, elements: AbstractElements, *arrays, out: int = -1) -> Any:
    """`function(element, *arrays)` of every element; element last in `arrays`, at axis `out` after."""
    axes = (_lanes(elements), *(-1 for _ in arrays))
    return jax.vmap(function, in_axes=axes, out_axes=out)(elements, *arrays)


def gathered(elements: AbstractElements, x: Nodal) -> Float[Array, "w k e"]:
    """Coordinates of the nodes of every element."""
    return x.T[:, elements.nodes.T]


def scattered(elements: AbstractElements, parts: Float[Array, "w k e"], like: Nodal) -> Nodal:
    """The sum over elements of what each gives to its nodes."""
    rows = jnp.moveaxis(parts, 0, -1)
    return jnp.zeros_like(like).at[elements.nodes.T].add(rows)


def energy(elements: AbstractElements, X: Nodal, x: Nodal) -> Scalar:
    """`Σ w_e ψ(F_e)` [J]."""

    def one(element, X, x):
        F = element.placed(matmul(x, element.gradient(X)))
        return element.measure(X) * element.density_of_energy(X, F)

    return jnp.sum(over_elements(one, elements, gathered(elements, X), gathered(elements, x)))


def _stress(element, X, F, rate, viscosity):
    """`∂ψ/∂F + viscosity d/dt ∂ψ/∂F`, `(w, m)`, derivatives along moves."""
    none = jnp.zeros_like(rate)

    def slope(move):
        at = element.moved(F, move)
        return jax.grad(lambda m: element.density_of_energy(X, element.moved(at, m)))(none)

    if viscosity is None:
        return slope(none)
    value, change = jax.jvp(slope, (none,), (rate,))
    return value + viscosity * change


def internal_force(
    elements: AbstractElements, X: Nodal, x: Nodal, v: Nodal, viscosity: Scalar | None
) -> Nodal:
    """`−∂E/∂x − viscosity d/dt(∂E/∂x)` at every node."""

    def one(element, X, x, v):
        gradient = element.gradient(X)
        F = element.placed(matmul(x, gradient))
        stress = _stress(element, X, F, matmul(v, gradient), viscosity)
        return -element.measure(X) * matmul(stress, gradient.T)

    at = (gathered(elements, y) for y in (X, x, v))
    return scattered(elements, over_elements(one, elements, *at), x)


def stiffness_blocks(
    elements: AbstractElements, X: Nodal, x: Nodal, v: Nodal, viscosity: Scalar | None, a, b
) -> Float[Array, "e d d"]:
    """`−a ∂f/∂v − b ∂f/∂x` of the internal force of every element, `d = k w`, node by node.

    `x` is where an increment `a v` has led, and its derivative is that by this increment.
    """

    def one(element, X, x, v):
        gradient, measure = element.gradient(X), element.measure(X)
        F, rate = element.placed(matmul(x, gradient)), matmul(v, gradient)
        shape = rate.shape
        basis = jnp.eye(rate.size, dtype=rate.dtype).reshape(rate.size, *shape)

        def stress(move, rate):
            return _stress(element, X, element.moved(F, move), rate, viscosity)

        # One row of moduli per entry of F: the second derivative in that direction. What the rows share is
        # evaluated once, which is three times faster than one `jvp` for each.
        moduli = jax.linearize(stress, jnp.zeros_like(rate), rate)[1]

        def row(direction):
            return moduli(b * element.carried(a * rate, direction), a * direction)

        table = jax.vmap(row)(basis)
        table = table.reshape(*shape, *shape)  # (w, m, w, m)
        k = gradient.shape[0]
        half = _times_last(table, gradient)  # (w, m, w, k)
        both = _times_last(jnp.transpose(half, (2, 3, 0, 1)), gradient)  # (w, k, w, k)
        return measure * jnp.transpose(both, (1, 0, 3, 2)).reshape(k * shape[0], k * shape[0])

    at = (gathered(elements, y) for y in (X, x, v))
    return over_elements(one, elements, *at, out=0)


def _times_last(table: Array, gradient: Array) -> Array:
    """`Σ_n table[..., n] gradient[b, n]` as a chain of additions."""
    parts, columns = jnp.unstack(table, axis=-1), jnp.unstack(gradient, axis=1)
    spread = (column.reshape((1,) * (table.ndim - 1) + (-1,)) for column in columns)
    terms = (part[..., None] * column for part, column in zip(parts, spread, strict=True))
    return functools.reduce(operator.add, terms)


def volume_ratios(elements: AbstractElements, X: Nodal, x: Nodal) -> Float[Array, " e"] | None:
    """`det F` of every element, `None` for elements without a volume."""

    def one(element, X, x):
        return element.volume_ratio(element.placed(matmul(x, element.gradient(X))))

    return over_elements(one, elements, gathered(elements, X), gathered(elements, x))
