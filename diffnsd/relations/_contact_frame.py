"""Contacts between two bodies, or a body and the world, from contact points and normals."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp

from .._numerics import cross
from .._types import Config, Local, PerContact, Scalar, State
from ..groups import AbstractGroup, rotate
from ._base import AbstractRelation
from ._body_points import tangents


class ContactFrame(AbstractRelation):
    """Contacts from a function that finds closest points and normals.

    `g = n · (p1 − p2)`, and with `R_C = [n t1 t2]` the local velocity is that of the material
    points, `u = R_C^T [v1 + ω1 × (p1 − x1) − v2 − ω2 × (p2 − x2)]`. The normal points from body 2
    to body 1; its own variation is ignored in `H`.

    **Arguments:**

    - `function`: `(t, pose) -> (p1, p2, n)`, world frame, each of shape `(c, 3)`.
    - `body1`: index of body 1. `body2`: index of body 2, `None` for the world.
    """

    function: Callable
    body1: int = eqx.field(default=0, static=True)
    body2: int | None = eqx.field(default=None, static=True)

    @property
    def rows(self) -> int:
        return 3

    def gap(self, t: Scalar, q: Config) -> PerContact:
        p1, p2, n = self.function(t, q)
        return jnp.sum(n * (p1 - p2), axis=-1)

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        del group, lam
        p1, p2, n = (x.T for x in self.function(t, state.q))
        u = _point_velocity(state, self.body1, p1)
        if self.body2 is not None:
            u = u - _point_velocity(state, self.body2, p2)
        frame = (n, *tangents(n))
        return jnp.stack([jnp.sum(e * u, axis=0) for e in frame], axis=-1)


def _point_velocity(state: State, body: int, points):
    """Velocity of the material points of a body at world points `(3, c)`."""
    twist = state.v.reshape(-1, 6)[body]
    spin = rotate(state.q.orientation[body], twist[3:])
    arms = points - state.q.position[body][:, None]
    return twist[:3, None] + cross(jnp.broadcast_to(spin[:, None], arms.shape), arms)
