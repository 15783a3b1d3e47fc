"""Contacts of round bodies, whose closest points are known in closed form."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import as_float, safe_norm
from .._types import Config, Scalar
from ..groups import rotate
from ._contact_frame import ContactFrame
from ._planar_contact import PlanarContact

Points = tuple[Array, Array, Array]


class _Centre(eqx.Module):
    """Where the centre of a round body is: shape `(1, 3)`, or `(1, 2)` in the plane."""

    body: int = eqx.field(static=True)
    planar: bool = eqx.field(static=True)

    def __call__(self, q: Config) -> Array:
        if self.planar:
            return q[3 * self.body : 3 * self.body + 2][None]
        return q.position[self.body][None]


class _OnPlane(eqx.Module):
    """Round bodies of a radius around points, on a plane `{x : n · x = offset}`."""

    centres: Callable[[Config], Array]
    radius: Float[Array, ""]
    normal: Float[Array, " d"]
    offset: Float[Array, ""]

    def __call__(self, t: Scalar, q: Config) -> Points:
        del t
        centres = self.centres(q)
        n = jnp.broadcast_to(self.normal, centres.shape)
        height = jnp.sum(n * centres, axis=1, keepdims=True) - self.offset
        return centres - self.radius * n, centres - height * n, n


class _BetweenTwo(eqx.Module):
    """Two round bodies; where their centres meet the normal is the first axis."""

    centre1: _Centre
    centre2: _Centre
    radius1: Float[Array, ""]
    radius2: Float[Array, ""]

    def __call__(self, t: Scalar, q: Config) -> Points:
        del t
        x1, x2 = self.centre1(q), self.centre2(q)
        length = safe_norm((x1 - x2).T)[:, None]
        first = jnp.zeros_like(x1).at[:, 0].set(1)
        n = jnp.where(length > 0, (x1 - x2) / jnp.where(length > 0, length, 1), first)
        return x1 - self.radius1 * n, x2 + self.radius2 * n, n


class _OnSurface(eqx.Module):
    """A sphere on a surface `z = height(x, y)`, whose curvature is small against `1/radius`."""

    centre: _Centre
    radius: Float[Array, ""]
    height: Callable

    def __call__(self, t: Scalar, q: Config) -> Points:
        del t
        x = self.centre(q)[0]
        z, slope = jax.value_and_grad(lambda p: jnp.asarray(self.height(p[0], p[1])))(x[:2])
        up = jnp.concatenate([-slope, jnp.ones_like(slope[:1])])
        n = up / jnp.sqrt(jnp.sum(up * up))
        foot = x - (x[2] - z) * n[2] * n
        return (x - self.radius * n)[None], foot[None], n[None]


class _Ends(eqx.Module):
    """The centres of the two ends of a capsule, world frame."""

    body: int = eqx.field(static=True)
    half_axis: Float[Array, "3"]

    def __call__(self, q: Config) -> Array:
        along = rotate(q.orientation[self.body], self.half_axis)
        return q.position[self.body][None] + jnp.stack([along, -along])


def sphere_on_plane(
    radius, normal=(0.0, 0.0, 1.0), offset=0.0, body: int = 0, rolling: bool = False
) -> ContactFrame:
    """A sphere on the plane `{x : n · x = offset}`, one contact.

    **Arguments:** `radius` [m]; `normal`: unit normal, towards the sphere, `(3,)`; `offset` [m];
    `body`: the index of the sphere, whose centre is its centre of mass; `rolling`: as in
    `ContactFrame`.
    """
    parts = as_float(radius), as_float(normal), as_float(offset)
    return ContactFrame(_OnPlane(_Centre(body, False), *parts), body, rolling=rolling)


def sphere_on_sphere(
    radius1, radius2, body1: int = 0, body2: int = 1, rolling: bool = False
) -> ContactFrame:
    """Two spheres, one contact.

    **Arguments:** `radius1`, `radius2` [m]; `body1`, `body2`: their indices; `rolling`.
    """
    centres = _Centre(body1, False), _Centre(body2, False)
    function = _BetweenTwo(*centres, as_float(radius1), as_float(radius2))
    return ContactFrame(function, body1, body2, rolling)


def sphere_on_surface(
    radius, height: Callable, body: int = 0, rolling: bool = False
) -> ContactFrame:
    """A sphere on a surface `z = height(x, y)`, such as an interpolated height map.

    The surface is taken to be its tangent plane below the centre: exact for planes, and otherwise
    to first order in `radius` times its curvature.

    **Arguments:** `radius` [m]; `height(x, y) -> ()` [m], differentiable; `body`; `rolling`.
    """
    return ContactFrame(
        _OnSurface(_Centre(body, False), as_float(radius), height), body, None, rolling
    )


def capsule_on_plane(
    radius, half_axis, normal=(0.0, 0.0, 1.0), offset=0.0, body: int = 0
) -> ContactFrame:
    """A capsule on the plane `{x : n · x = offset}`: two contacts, of the spheres at its ends.

    **Arguments:** `radius` [m]; `half_axis`: from its middle to the centre of one end, in coordinates
    of the body [m], `(3,)`; the others as in `sphere_on_plane`.
    """
    parts = as_float(radius), as_float(normal), as_float(offset)
    return ContactFrame(_OnPlane(_Ends(body, as_float(half_axis)), *parts), body)


def disk_on_line(
    radius, normal=(0.0, 1.0), offset=0.0, body: int = 0, rolling: bool = False
) -> PlanarContact:
    """A disk on the line `{x : n · x = offset}` of the plane, one contact.

    **Arguments:** `radius` [m]; `normal`: unit normal, towards the disk, `(2,)`; `offset` [m];
    `body`; `rolling`: as in `PlanarContact`.
    """
    parts = as_float(radius), as_float(normal), as_float(offset)
    return PlanarContact(_OnPlane(_Centre(body, True), *parts), body, None, rolling)


def disk_on_disk(
    radius1, radius2, body1: int = 0, body2: int = 1, rolling: bool = False
) -> PlanarContact:
    """Two disks in the plane, one contact.

    **Arguments:** `radius1`, `radius2` [m]; `body1`, `body2`: their indices; `rolling`.
    """
    centres = _Centre(body1, True), _Centre(body2, True)
    function = _BetweenTwo(*centres, as_float(radius1), as_float(radius2))
    return PlanarContact(function, body1, body2, rolling)
