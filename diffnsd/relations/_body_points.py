"""Points of a body against a plane."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._jax import concrete as revealed, eval_now as eagerly, is_traced as is_hidden
from .._numerics import as_float, cross
from .._types import Config, Local, PerContact, Scalar, State
from ..groups import AbstractGroup, rotate, rotation_matrix
from ._base import AbstractRelation, check_body


def tangents(normal: Float[Array, "3 ..."]) -> tuple[Array, Array]:
    """Two unit tangents that make `(n, t1, t2)` right-handed, without branches.

    **Arguments:** `normal`: unit vectors, shape `(3, ...)`. **Returns:** `t1`, `t2`, same shape.

    Reference: T. Duff et al., Building an orthonormal basis, revisited (2017), JCGT 6(1), 1-8,
    jcgt.org/published/0006/01/01 (the journal gives no DOI).
    """
    x, y, z = normal[0], normal[1], normal[2]
    sign = jnp.where(z >= 0, 1.0, -1.0)
    a = -1 / (sign + z)
    b = x * y * a
    first = jnp.stack([1 + sign * x * x * a, sign * b, -sign * x])
    second = jnp.stack([b, sign + y * y * a, -y])
    return first, second


class BodyPointsPlane(AbstractRelation):
    """Points fixed to a rigid body against a fixed plane `{x : n · x = offset}`.

    The gap of a point is `n · x − offset`; the rows of a contact are (normal, tangent 1,
    tangent 2), and the local velocity is that of the material point of the body.

    **Arguments:**

    - `points`: body coordinates [m], shape `(c, 3)`.
    - `normal`: unit normal of the plane, world frame, shape `(3,)`, towards the body.
    - `offset`: distance of the plane from the origin [m], shape `()`.
    - `body`: index of the body.

    **Raises:** `ValueError` on shapes that do not fit and on a normal that is not of unit length;
    in a simulation, before it is compiled, if there is no such body.
    """

    points: Float[Array, "c 3"]
    normal: Float[Array, "3"]
    offset: Float[Array, ""]
    body: int = eqx.field(default=0, static=True)

    def __init__(self, points, normal=(0.0, 0.0, 1.0), offset=0.0, body: int = 0):
        self.points = as_float(points)
        self.normal = eagerly(lambda n: as_float(n, self.points.dtype), normal)
        self.offset = as_float(offset, self.points.dtype)
        self.body = body
        if self.points.ndim != 2 or self.points.shape[1] != 3 or self.normal.shape != (3,):
            raise ValueError(
                f"points must have shape (c, 3) and normal (3,), got {self.points.shape} and "
                f"{self.normal.shape}."
            )
        if problem := _not_unit(self.normal):
            raise ValueError(f"{problem}.")

    @property
    def rows(self) -> int:
        return 3

    def _arms(self, q: Config) -> Float[Array, "3 c"]:
        """Points relative to the centre of mass, world frame, components first."""
        rotation = rotation_matrix(q.orientation[self.body])
        p = self.points.T
        return jnp.stack(
            [
                rotation[i, 0] * p[0] + rotation[i, 1] * p[1] + rotation[i, 2] * p[2]
                for i in range(3)
            ]
        )

    def gap(self, t: Scalar, q: Config) -> PerContact:
        del t
        arms, centre, n = self._arms(q), q.position[self.body], self.normal
        height = n[0] * centre[0] + n[1] * centre[1] + n[2] * centre[2] - self.offset
        return height + n[0] * arms[0] + n[1] * arms[1] + n[2] * arms[2]

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        del group, t, lam
        twist = state.v.reshape(-1, 6)[self.body]
        spin = rotate(state.q.orientation[self.body], twist[3:])
        arms = self._arms(state.q)
        point = twist[:3, None] + cross(jnp.broadcast_to(spin[:, None], arms.shape), arms)
        frame = (self.normal, *tangents(self.normal))
        return jnp.stack([sum(e[i] * point[i] for i in range(3)) for e in frame], axis=-1)

    def linearised(
        self, group: AbstractGroup, t: Scalar, q: Config
    ) -> tuple[Float[Array, "k n c"], Float[Array, "k c"]]:
        """`H = e^T [1, −r^ R]`: `r × e` in body coordinates is the angular part of a row `e`."""
        del t
        rotation = rotation_matrix(q.orientation[self.body])
        p = self.points.T
        zero = jnp.zeros_like(p[0])
        rows = []
        for e in (self.normal, *tangents(self.normal)):
            # e · (R ω × R p) = ω · (p × R^T e)
            local = [sum(rotation[i, j] * e[i] for i in range(3)) for j in range(3)]
            angular = [
                p[1] * local[2] - p[2] * local[1],
                p[2] * local[0] - p[0] * local[2],
                p[0] * local[1] - p[1] * local[0],
            ]
            mine = [jnp.broadcast_to(e[i], zero.shape) for i in range(3)] + angular
            others = [zero] * 6
            bodies = group.dim // 6
            row = [x for b in range(bodies) for x in (mine if b == self.body else others)]
            rows.append(jnp.stack(row))
        return jnp.stack(rows), jnp.zeros((3, self.points.shape[0]), p.dtype)

    def check(self, group: AbstractGroup) -> str | None:
        return check_body("BodyPointsPlane.body", self.body, group) or _not_unit(self.normal)

    def take(self, pick: Callable[[Array], Array]) -> "BodyPointsPlane":
        return eqx.tree_at(lambda r: r.points, self, pick(self.points))


def _not_unit(normal) -> str | None:
    """A sentence if a known normal is not of unit length, else `None`.

    Refused and not normalised: with a normal of another length it is open what `offset` means.
    """
    normal = revealed(normal)
    if is_hidden(normal):
        return None
    length = float(np.sqrt(np.sum(np.square(np.asarray(normal, float)))))
    if abs(length - 1) <= 1e-5:
        return None
    return f"the normal {np.asarray(normal)} has length {length:g}; divide it by its length"
