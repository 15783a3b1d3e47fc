"""Common code of contacts between closest points, in space and in the plane."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._block_rows import BlockRows, Bodies
from ..._expects import returned, shown
from ..._numerics import dot
from ..._types import Config, PerContact, Scalar
from ..._world_rows import WorldRows
from ...groups import AbstractGroup
from .._base import AbstractBodyRelation, Contacts, body_indices, check_lengths


class AbstractContactPoints(AbstractBodyRelation):
    """Contacts from a function that finds closest points and normals, `g = n · (p1 − p2)`."""

    function: Annotated[Callable, "(t, q)"]
    body1: Bodies = eqx.field(default=0, static=True)
    body2: Bodies = eqx.field(default=None, static=True)
    rolling: bool = eqx.field(default=False, static=True)

    dimension: ClassVar[int]
    """Number of coordinates of a point."""

    def __post_init__(self):
        name = type(self).__name__
        self.body1 = body_indices(f"{name}.body1", self.body1)
        self.body2 = body_indices(f"{name}.body2", self.body2)
        check_lengths(self.body1, self.body2)

    @abstractmethod
    def frame(self, normal: Float[Array, "d c"]) -> tuple[Array, ...]:
        """The unit vectors `(d, c)` along which local velocities are measured, the normal first."""

    @abstractmethod
    def rows_of(
        self, q: Config, bodies: Bodies, points: Float[Array, "d c"], frame: tuple[Array, ...]
    ) -> tuple[Float[Array, "k s c"], WorldRows | None]:
        """The rows that map body velocities of one side to the local velocity of its material points.

        Of bodies in space also the same rows in world axes, about the positions of the bodies.
        """

    @property
    def is_scleronomic(self) -> bool:
        return getattr(self.function, "is_scleronomic", False)

    @property
    def most_known(self) -> int | None:
        return getattr(self.function, "most_known", None)

    @property
    def contact_names(self) -> tuple[str, ...] | None:
        return getattr(self.function, "contact_names", None)

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        # Not the method itself: JAX would compare it and its traced parameters with earlier calls.
        return jax.eval_shape(lambda t, q: self._points(t, q), t, q)[0].shape[0]

    def _points(self, t: Scalar, q: Config) -> tuple[Array, Array, Array]:
        given, name = self.function(t, q), "the contact function(t, q)"
        what = f"(p1, p2, n), three arrays of real numbers, each (c, {self.dimension})"
        if not isinstance(given, tuple | list):
            raise TypeError(f"{name} must return {what}; it returned {shown(given)}.")
        points = tuple(returned(name, x, what) for x in given)
        shapes, d = [x.shape for x in points], self.dimension
        if len(points) != 3 or len(set(shapes)) > 1 or shapes[0][1:] != (d,):
            raise ValueError(
                f"the contact function returned shapes {shapes}; expected (p1, p2, n), each "
                f"(c, {d})."
            )
        for name, bodies in (("body1", self.body1), ("body2", self.body2)):
            if isinstance(bodies, tuple) and len(bodies) != shapes[0][0]:
                raise ValueError(
                    f"{name} has {len(bodies)} entries for {shapes[0][0]} contacts; give one index "
                    "for all contacts or one for each."
                )
        return points

    def gap(self, t: Scalar, q: Config) -> PerContact:
        p1, p2, n = (x.T for x in self._points(t, q))
        return dot(n, p1 - p2)

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        points = self._points(t, q)
        p1, p2, n = (x.T for x in points)
        gap = dot(n, p1 - p2)
        frame = self.frame(n)
        sides = [(self.body1, p1, 1), (self.body2, p2, -1)]
        sides = [side for side in sides if side[0] is not None]
        found = []
        for bodies, p, sign in sides:
            own = self.rows_of(q, bodies, p, frame)
            found.append(jax.tree.map(lambda x, sign=sign: sign * x, own))
        values, world = zip(*found, strict=True)
        k, s, c = values[0].shape
        world = None if any(x is None for x in world) else world
        rows = BlockRows(values, [bodies for bodies, _, _ in sides], group.dim // s, world)
        known = None if self.most_known is None else self.function.known(q)
        return Contacts(gap, rows, jnp.zeros((k, c), values[0].dtype), known)
