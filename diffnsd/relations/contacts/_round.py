"""Contacts of round bodies, whose closest points are known in closed form."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments import Numbers, checked_arguments
from ..._block_rows import in_lanes
from ..._expects import not_unit, refuse_below
from ..._jax import eval_now
from ..._numerics import as_float, safe_norm, weighted_sum
from ..._types import Config, Scalar
from ...groups import rotation_matrix
from .._base import Indices, body_indices
from ._contact_frame import ContactFrame
from ._planar_contact import PlanarContact

Points = tuple[Array, Array, Array]


def _column(x: Array) -> Array:
    """A number, or one for each contact, shaped to broadcast with points `(c, d)`."""
    return jnp.reshape(x, (-1, 1))


class _Centre(eqx.Module):
    """The centres of round bodies: shape `(c, 3)`, or `(c, 2)` in the plane."""

    body: Any = eqx.field(static=True)
    planar: bool = eqx.field(static=True)

    def __call__(self, q: Config) -> Array:
        centres = q.reshape(-1, 3)[:, :2] if self.planar else q.position
        return in_lanes(centres, self.body).T


class _OnPlane(eqx.Module):
    """Round bodies with given centres and radius, on a plane `{x : n · x = offset}`."""

    centres: Callable[[Config], Array]
    radius: Float[Array, "..."]
    normal: Float[Array, " d"]
    offset: Float[Array, ""]

    is_scleronomic = True

    def __call__(self, t: Scalar, q: Config) -> Points:
        centres = self.centres(q)
        n = jnp.broadcast_to(self.normal, centres.shape)
        height = jnp.sum(n * centres, axis=1, keepdims=True) - self.offset
        return centres - _column(self.radius) * n, centres - height * n, n


class _BetweenTwo(eqx.Module):
    """Pairs of round bodies; where their centres coincide, the normal is the first axis."""

    centre1: _Centre
    centre2: _Centre
    radius1: Float[Array, "..."]
    radius2: Float[Array, "..."]

    is_scleronomic = True

    def __call__(self, t: Scalar, q: Config) -> Points:
        x1, x2 = self.centre1(q), self.centre2(q)
        between = x1 - x2
        length = safe_norm(between.T)[:, None]
        first = jnp.zeros_like(between).at[:, 0].set(1)
        n = jnp.where(length > 0, between / jnp.where(length > 0, length, 1), first)
        return x1 - _column(self.radius1) * n, x2 + _column(self.radius2) * n, n


class _OnSurface(eqx.Module):
    """Spheres on a surface `z = height(x, y)`, whose curvature is small compared with `1/radius`."""

    centre: _Centre
    radius: Float[Array, "..."]
    height: Callable

    is_scleronomic = True

    def __call__(self, t: Scalar, q: Config) -> Points:

        def below(x):
            z, slope = jax.value_and_grad(lambda p: jnp.asarray(self.height(p[0], p[1])))(x[:2])
            up = jnp.concatenate([-slope, jnp.ones_like(slope[:1])])
            n = up / jnp.sqrt(jnp.sum(up * up))
            return x - (x[2] - z) * n[2] * n, n

        centres = self.centre(q)
        foot, n = jax.vmap(below)(centres)
        return centres - _column(self.radius) * n, foot, n


class _Ends(eqx.Module):
    """The centres of the two ends of capsules, world frame: all of one end come first."""

    body: Any = eqx.field(static=True)
    half_axis: Float[Array, "3"]

    def __call__(self, q: Config) -> Array:
        turned = rotation_matrix(in_lanes(q.orientation, self.body))
        along = weighted_sum(turned, self.half_axis, axis=1).T
        centre = in_lanes(q.position, self.body).T
        return jnp.concatenate([centre + along, centre - along])


def _round_on_plane(contact: Any, name: str, radius, normal, offset, body, rolling: bool) -> Any:
    """Spheres or disks on a plane or line; `name`: of their bodies, in error messages."""
    body = body_indices(name, body)
    centre = _Centre(body, contact.dimension == 2)
    normal, offset = _plane(contact.dimension, normal, offset)
    function = _OnPlane(centre, _radius("radius", radius, body), normal, offset)
    return contact(function, body, None, rolling)


def _radius(name: str, value, *bodies) -> Array:
    """Radii as an array, refused if they are negative or others than the contacts are many."""
    refuse_below(name, radius := eval_now(as_float, value), 0)
    count = max([len(body) for body in bodies if isinstance(body, tuple)], default=1)
    if radius.shape not in ((), (count,)):
        raise ValueError(
            f"{name} must be one number, or one for each contact, shape ({count},), got {radius.shape}."
        )
    return radius


def _plane(dimension: int, normal, offset) -> tuple[Array, Array]:
    """Normal and offset as arrays, refused where they make no sense."""
    normal = eval_now(as_float, normal)
    if normal.shape != (dimension,):
        raise ValueError(f"normal must have shape ({dimension},), got {normal.shape}.")
    if problem := not_unit(normal):
        raise ValueError(f"{problem}.")
    return normal, as_float(offset)


def _round_pairs(contact: Any, name: str, radii, bodies, rolling: bool) -> Any:
    """Pairs of spheres or disks."""
    bodies = [body_indices(f"{name}.body{i}", body) for i, body in enumerate(bodies, start=1)]
    centre1, centre2 = (_Centre(body, contact.dimension == 2) for body in bodies)
    radii = [_radius(f"radius{i}", radius, *bodies) for i, radius in enumerate(radii, start=1)]
    return contact(_BetweenTwo(centre1, centre2, *radii), *bodies, rolling)


@checked_arguments
def sphere_on_plane(
    radius: Numbers, normal=(0.0, 0.0, 1.0), offset=0.0, body: Indices = 0, rolling: bool = False
) -> ContactFrame:
    """Spheres on the plane `{x : n · x = offset}`, one contact each.

    **Arguments:** `radius` [m], `()` or one for each sphere; `normal`: unit normal, towards the
    spheres, `(3,)`; `offset` [m]; `body`: index of the sphere, or of many, `(c,)`, whose centres
    are the origins of their frames (of free bodies the centres of mass); `rolling`: as in `ContactFrame`.

    **Raises:** `ValueError` if indices are not known integers, as for the other contacts.
    """
    name = "sphere_on_plane.body"
    return _round_on_plane(ContactFrame, name, radius, normal, offset, body, rolling)


@checked_arguments
def sphere_on_sphere(
    radius1: Numbers,
    radius2: Numbers,
    body1: Indices = 0,
    body2: Indices = 1,
    rolling: bool = False,
) -> ContactFrame:
    """Pairs of spheres, one contact each.

    The 99 contacts of a column of 100 spheres are
    `sphere_on_sphere(0.1, 0.1, np.arange(1, 100), np.arange(99))`.

    **Arguments:** `radius1`, `radius2` [m], `()` or one for each pair; `body1`, `body2`: indices of
    one pair, or of many, `(c,)`; `rolling`: as in `ContactFrame`.
    """
    radii, bodies = (radius1, radius2), (body1, body2)
    return _round_pairs(ContactFrame, "sphere_on_sphere", radii, bodies, rolling)


@checked_arguments
def sphere_on_surface(
    radius: Numbers, height: Callable, body: Indices = 0, rolling: bool = False
) -> ContactFrame:
    """Spheres on a surface `z = height(x, y)`, such as an interpolated height map.

    The surface is replaced by its tangent plane below the centre: exact for planes, and otherwise
    to first order in `radius` times its curvature.

    **Arguments:** `radius` [m]; `height(x, y) -> ()` [m], differentiable; `body`, `rolling`: as in
    `sphere_on_plane`.
    """
    body = body_indices("sphere_on_surface.body", body)
    return ContactFrame(
        _OnSurface(_Centre(body, False), _radius("radius", radius, body), height),
        body,
        None,
        rolling,
    )


@checked_arguments
def capsule_on_plane(
    radius: Numbers, half_axis: Numbers, normal=(0.0, 0.0, 1.0), offset=0.0, body: Indices = 0
) -> ContactFrame:
    """Capsules on the plane `{x : n · x = offset}`: two contacts each, of the spheres at their ends.

    The contacts of the ends at `half_axis` come first, then those of the other ends.

    **Arguments:** `radius` [m]; `half_axis`: from the middle to the centre of one end, in body
    coordinates [m], `(3,)`; the others as in `sphere_on_plane`, `radius` a number.
    """
    body = body_indices("capsule_on_plane.body", body)
    ends = _Ends(body, as_float(half_axis))
    if ends.half_axis.shape != (3,):
        raise ValueError(f"half_axis must have shape (3,), got {ends.half_axis.shape}.")
    plane = _OnPlane(ends, _radius("radius", radius), *_plane(3, normal, offset))
    return ContactFrame(plane, 2 * body if isinstance(body, tuple) else body)


@checked_arguments
def disk_on_line(
    radius: Numbers, normal=(0.0, 1.0), offset=0.0, body: Indices = 0, rolling: bool = False
) -> PlanarContact:
    """Disks on the line `{x : n · x = offset}` of the plane, one contact each.

    **Arguments:** `radius` [m], `()` or one for each disk; `normal`: unit normal, towards the disks,
    `(2,)`; `offset` [m]; `body`: index of a disk, or of many, `(c,)`; `rolling`: as in
    `PlanarContact`.
    """
    name = "disk_on_line.body"
    return _round_on_plane(PlanarContact, name, radius, normal, offset, body, rolling)


@checked_arguments
def disk_on_disk(
    radius1: Numbers,
    radius2: Numbers,
    body1: Indices = 0,
    body2: Indices = 1,
    rolling: bool = False,
) -> PlanarContact:
    """Pairs of disks in the plane, one contact each.

    **Arguments:** `radius1`, `radius2` [m], `()` or one for each pair; `body1`, `body2`: indices of
    one pair, or of many, `(c,)`; `rolling`: as in `PlanarContact`.
    """
    radii, bodies = (radius1, radius2), (body1, body2)
    return _round_pairs(PlanarContact, "disk_on_disk", radii, bodies, rolling)
