"""What holds and loads an elastic body: prescribed coordinates, nodal forces, pressure."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._arguments import AbstractChecked, Numbers
from ..._jax import eval_now
from ..._numerics import as_float, cross
from ..._types import Args, Scalar


def node_numbers(name: str, nodes) -> np.ndarray:
    """Node numbers `(m,)` from numbers or a mask; raises `ValueError` for anything else."""
    array = np.atleast_1d(np.asarray(nodes))
    if array.dtype == bool:
        array = np.flatnonzero(array)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"nodes of {name} must be whole numbers (m,) or a mask over the nodes, got {array.dtype} of "
            f"shape {array.shape}."
        )
    if array.size == 0:
        raise ValueError(
            f"nodes of {name} is empty: no node fulfils the condition it was made from."
        )
    return array.astype(np.int32)


class Prescribed(AbstractChecked):
    """Coordinates of nodes that move as given, and are no unknowns.

    **Arguments:** `nodes`: node numbers `(m,)` or a mask `(p,)`; `axes`: which coordinates, default all
    (angles too; the three of a rotation in space together); `displacement`: from rest, a function of time
    `displacement(t)` or an array, of a shape that broadcasts to `(m, axes)`; default none: they are held.
    Twice differentiable, because its acceleration moves neighbouring nodes under a consistent mass.
    """

    nodes: Int[Array, " m"]
    displacement: Callable | Float[Array, "..."] | None
    axes: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        nodes,
        axes: int | Sequence[int] | None = None,
        displacement: Annotated[Callable, "(t)"] | Numbers | None = None,
    ):
        self.nodes = eval_now(jnp.asarray, node_numbers("Prescribed", nodes))
        self.axes = None if axes is None else tuple(int(i) for i in np.atleast_1d(axes))
        if self.axes is not None and len(set(self.axes)) < len(self.axes):
            raise ValueError(f"axes of Prescribed are {self.axes}; name each one once.")
        given = displacement is None or callable(displacement)
        self.displacement = displacement if given else as_float(displacement)

    def moved(self, x: Float[Array, "p w"], t: Scalar) -> Float[Array, "p w"]:
        """All coordinates with the prescribed ones displaced."""
        if self.displacement is None:
            return x
        value = self.displacement(t) if callable(self.displacement) else self.displacement
        axes = range(x.shape[1]) if self.axes is None else self.axes
        value = as_float(value, x.dtype).astype(x.dtype)
        shape = (self.nodes.shape[0], len(axes))
        try:
            value = jnp.broadcast_to(value, shape)
        except ValueError as error:
            raise ValueError(
                f"displacement of Prescribed must broadcast to {shape}, nodes times axes, got "
                f"{value.shape}."
            ) from error
        return x.at[self.nodes[:, None], np.array(axes)].add(value)


class AbstractLoad(AbstractChecked):
    """Forces on nodes beside those of the elements and of gravity."""

    @abstractmethod
    def force(self, t: Scalar, x: Float[Array, "p w"], args: Args) -> Float[Array, "p w"]:
        """Force on every coordinate of every node."""

    def blocks(self, t: Scalar, x: Float[Array, "p w"], args: Args) -> tuple[Array, Array] | None:
        """Nodes `(e, k)` and `∂f/∂x (e, k w, k w)` of its parts; `None` if independent of `x`."""
        del t, x, args
        return None

    def potential(self, x: Float[Array, "p w"]) -> Scalar | None:
        """Potential energy of a load that has one, else `None`."""
        del x
        return None

    def misfit(self, dimension: int) -> str | None:
        """Why it does not act on bodies in a space of that dimension, or `None`."""
        del dimension
        return None

    @property
    @abstractmethod
    def nodes_used(self) -> Array:
        """Numbers of the nodes that it acts on, of any shape."""


class NodalForce(AbstractLoad):
    """Given forces on nodes.

    **Arguments:** `nodes`: node numbers `(m,)` or a mask `(p,)`; `force`: on each of them [N, N m], moments
    in space in the frame of the node, `(w,)` or `(m, w)`, fewer entries than a node has coordinates act on
    the first ones; or a function `force(t, args)` of the time and of the exogenous inputs.
    """

    nodes: Int[Array, " m"]
    value: Callable | Float[Array, "..."]

    def __init__(self, nodes, force: Annotated[Callable, "(t, args)"] | Numbers):
        self.nodes = eval_now(jnp.asarray, node_numbers("NodalForce", nodes))
        self.value = force if callable(force) else as_float(force)

    def force(self, t: Scalar, x: Array, args: Args) -> Array:
        given = self.value(t, args) if callable(self.value) else self.value
        given = as_float(given, x.dtype).astype(x.dtype)
        m = self.nodes.shape[0]
        if (
            given.ndim not in (1, 2)
            or given.shape[-1] > x.shape[1]
            or given.shape[:-1] not in ((), (m,))
        ):
            raise ValueError(
                f"force of NodalForce must have shape ({x.shape[1]},) or ({m}, {x.shape[1]}), got "
                f"{given.shape}."
            )
        given = jnp.broadcast_to(given, (m, given.shape[-1]))
        padded = jnp.pad(given, ((0, 0), (0, x.shape[1] - given.shape[1])))
        return jnp.zeros_like(x).at[self.nodes].add(padded)

    def potential(self, x: Array) -> Scalar | None:
        if callable(self.value) or (x.shape[1] == 6 and self.value.shape[-1] > 3):
            return None  # moments that follow the frame of a node have none
        return -jnp.sum(self.force(jnp.zeros((), x.dtype), x, None) * x)

    @property
    def nodes_used(self) -> Array:
        return self.nodes


class Pressure(AbstractLoad):
    """Pressure on facets, along their normals as they move: `f = −p n dA`, in equal parts on the nodes.

    **Arguments:** `facets`: node numbers, triangles `(f, 3)` in space or edges `(f, 2)` in the plane, as
    `mesh.boundary()` lists them: outward by the right-hand rule, or with the body on the left; `pressure`
    [Pa], in the plane per unit of depth [N/m]: `()` or `(f,)`, or a function `pressure(t, args)`.
    """

    facets: Int[Array, "f k"]
    value: Callable | Float[Array, "..."]

    def __init__(self, facets: Numbers, pressure: Annotated[Callable, "(t, args)"] | Numbers):
        array = np.asarray(facets)
        if array.ndim != 2 or array.shape[1] not in (2, 3) or not array.size:
            raise ValueError(f"facets must have shape (f, 3) or (f, 2), got {array.shape}.")
        self.facets = eval_now(jnp.asarray, array.astype(np.int32))
        self.value = pressure if callable(pressure) else as_float(pressure)

    def _pressure(self, t, x, args) -> Array:
        given = self.value(t, args) if callable(self.value) else self.value
        given, f = as_float(given, x.dtype).astype(x.dtype), self.facets.shape[0]
        if given.shape not in ((), (f,)):
            raise ValueError(
                f"pressure of Pressure must be one number or one for each of its {f} facets, shape ({f},), "
                f"got shape {given.shape}."
            )
        return jnp.broadcast_to(given, (f,))

    def misfit(self, dimension: int) -> str | None:
        k = self.facets.shape[1]
        if dimension == k:
            return None
        return (
            f"facets of Pressure have {k} nodes each, and a body in {dimension} dimensions has "
            + {2: "edges (f, 2)", 3: "triangles (f, 3)"}.get(dimension, "none")
            + ", as mesh.boundary() lists them; in one dimension give a NodalForce"
        )

    def force(self, t: Scalar, x: Array, args: Args) -> Array:
        at = x.T[:, self.facets.T]  # (w, k, f)
        each = -self._pressure(t, x, args)[None] * _area(at) / self.facets.shape[1]
        rows = jnp.broadcast_to(each.T[None], (self.facets.shape[1], *each.T.shape))
        return jnp.zeros_like(x).at[self.facets.T, : each.shape[0]].add(rows)

    def blocks(self, t: Scalar, x: Array, args: Args):
        (f, k), w = self.facets.shape, x.shape[1]
        at = x.T[:, self.facets.T]

        def one(at):
            each = -_area(at) / k
            each = jnp.pad(each, (0, w - each.shape[0]))
            return jnp.broadcast_to(each, (k, w)).reshape(-1)

        slope = jax.vmap(jax.jacfwd(one), in_axes=-1, out_axes=0)(at)  # (f, k w, w, k)
        slope = jnp.swapaxes(slope, 2, 3).reshape(f, k * w, k * w)
        return self.facets, self._pressure(t, x, args)[:, None, None] * slope

    @property
    def nodes_used(self) -> Array:
        return self.facets


def _area(at: Array) -> Array:
    """Area times normal of facets with corners `(w, k, ...)`."""
    if at.shape[1] == 3:
        return cross(at[:3, 1] - at[:3, 0], at[:3, 2] - at[:3, 0]) / 2
    along = at[:2, 1] - at[:2, 0]
    return jnp.stack([along[1], -along[0]])
