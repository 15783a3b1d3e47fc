"""Joints between rigid bodies: functions of the configuration that vanish.

A joint connects a frame fixed to body 1 with one fixed to body 2 or to the world. With the origins
`p1`, `p2` and axes `F1`, `F2` (columns, world frame) of the two, its rows are some of

    d = F2^T (p1 − p2)                       translations along the axes of frame 2
    (−C_23, C_13, (C_21 − C_12)/2)           rotations about them,  C = F2^T F1

If the first two rotations vanish, the third axes are parallel; if all three do, the frames are.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import AbstractChecked, Numbers, checked_arguments
from .._block_rows import Bodies, of_bodies
from .._jax import concrete, entries_at, is_traced
from .._numerics import as_float
from .._types import Config, Scalar
from ..groups import AbstractGroup, Pose, rotation_matrix
from ._base import (
    Indices,
    body_indices,
    check_lengths,
    out_of_range,
    own_columns,
    reads_bodies,
)
from .contacts._body_points import tangents


class Joint(eqx.Module):
    """The constraints of a joint, `joint(t, q) -> (c,)` [m, rad], zero where it holds.

    Made by `ball_joint`, `hinge`, `prismatic`, `cylindrical` and `fixed_joint`. It is used as

        Interaction(GapRelation(joint), Equality())
        Interaction(GapRelation(joint.limits(joint.angle, -0.5, 1.0)), NewtonImpact(0.2))
        Interaction(RateRelation(joint.angle), DryFriction(0.3))

    The impulses of the first are the reactions, along and about the axes of frame 2.

    **Arguments:** `origin1`, `axes1`: origin [m] and axes (columns) of frame 1 in coordinates of
    body 1; `origin2`, `axes2`: of frame 2; `translations`, `rotations`: which of the rows above are
    locked; `body1`, `body2`: indices, `None` for the world. Several joints of one kind form one `Joint`:
    its arrays have a leading joint axis, its indices one entry for each, and its rows are ordered joint
    by joint.
    """

    origin1: Float[Array, "*j 3"]
    axes1: Float[Array, "*j 3 3"]
    origin2: Float[Array, "*j 3"]
    axes2: Float[Array, "*j 3 3"]
    translations: tuple[int, ...] = eqx.field(static=True)
    rotations: tuple[int, ...] = eqx.field(static=True)
    body1: Bodies = eqx.field(default=0, static=True)
    body2: Bodies = eqx.field(default=None, static=True)

    is_of_bodies: ClassVar[bool] = True

    def _frames(self, q: Config) -> tuple[Array, Array]:
        """`d` and `C` of the module's docstring, components first."""
        first = world_frame(q, self.body1, self.origin1, self.axes1)
        second = world_frame(q, self.body2, self.origin2, self.axes2)
        if self.origin1.ndim == 1:
            return _seen(*first, *second)
        return jax.vmap(_seen, out_axes=-1)(*first, *second)

    def __call__(self, t: Scalar, q: Config) -> Float[Array, " c"]:
        d, c = self._frames(q)
        turns = (-c[1, 2], c[0, 2], (c[1, 0] - c[0, 1]) / 2)
        rows = [*(d[i] for i in self.translations), *(turns[i] for i in self.rotations)]
        return jnp.stack(rows, axis=-1).reshape(-1)

    def angle(self, t: Scalar, q: Config) -> Float[Array, "*j"]:
        """Angle [rad] of body 1 about the axis, in (−π, π], 0 at the pose in which the joint was made."""
        _, c = self._frames(q)
        return jnp.arctan2(c[1, 0], c[0, 0])

    def displacement(self, t: Scalar, q: Config) -> Float[Array, "*j"]:
        """Displacement [m] of body 1 along the axis, 0 at the pose in which the joint was made."""
        return self._frames(q)[0][2]

    def limits(self, coordinate: Callable, lower, upper) -> "JointLimits":
        """Gap functions that keep `joint.angle` or `joint.displacement` in `[lower, upper]`."""
        return JointLimits(coordinate, lower, upper)


class Coordinates(AbstractChecked):
    """Entries of `q`, a function `(t, q) -> (c,)` for the joints of a `Multibody`.

        GapRelation(JointLimits(Coordinates(1), -0.5, 1.0))
        RateRelation(Coordinates([0, 1]))

    **Arguments:** `index`: an entry of `q`, or several.

    **Raises:** `ValueError` where it is evaluated, before compiling, if `q` has no such entry.
    """

    index: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, index: Indices):
        found = body_indices("Coordinates.index", index)
        if found is None or (isinstance(found, tuple) and None in found):
            raise ValueError(
                f"Coordinates.index must be an integer or a list of them, got {index}."
            )
        self.index = found if isinstance(found, tuple) else (found,)  # pyright: ignore[reportAttributeAccessIssue]

    def __call__(self, t: Scalar, q: Config) -> Float[Array, " c"]:
        wrong = [i for i in self.index if not 0 <= i < len(q)]
        if wrong:
            raise ValueError(
                f"Coordinates.index has {wrong[0]}, but q has the entries 0 to {len(q) - 1}."
            )
        return entries_at(q, self.index)

    def own_columns(self, group: AbstractGroup) -> tuple[int, ...] | None:
        """The one entry of `v` that each of them depends on; `None` for others, as of quaternions."""
        columns = group.own_columns(np.array(self.index))
        return None if columns is None else tuple(int(i) for i in columns)


class JointLimits(AbstractChecked):
    """Two gaps, `(x − lower, upper − x)`, of a coordinate `x = coordinate(t, q)` of a joint.

    For several joints, all lower limits come first, then all upper limits.

    **Arguments:** `coordinate`: `joint.angle`, `joint.displacement` or `Coordinates`; `lower`, `upper`: [rad]
    or [m], `()` or one for each.
    """

    coordinate: Annotated[Callable, "(t, q)"]
    lower: Float[Array, "..."] = eqx.field(converter=as_float)
    upper: Float[Array, "..."] = eqx.field(converter=as_float)

    @property
    def is_of_bodies(self) -> bool:
        """Whether the coordinate is that of a joint between bodies."""
        return reads_bodies(self.coordinate)

    def own_columns(self, group: AbstractGroup) -> tuple[int, ...] | None:
        """The one entry of `v` that each gap depends on, `None` where there are several."""
        columns = own_columns(self.coordinate, group)
        return None if columns is None else (*columns, *columns)

    def __call__(self, t: Scalar, q: Config) -> Float[Array, " c"]:
        x = self.coordinate(t, q)
        return jnp.stack([x - self.lower, self.upper - x]).reshape(-1)


class JointCoupler(AbstractChecked):
    """`x1 − ratio x2 − offset` of two joint coordinates: gears, screws, belts.

    With `joint.angle` or `joint.displacement` for the coordinates,

        Interaction(RateRelation(JointCoupler(nut.displacement, nut.angle, lead)), Equality())

    is a screw whose lead is given in m/rad, and two angles make a pair of gears. `RateRelation`
    couples their rates, for any number of turns. `GapRelation` holds the coordinates themselves, also in
    projections; an angle must then stay within (−π, π).

    **Arguments:** `coordinate1`, `coordinate2`: functions `(t, q) -> ()`; `ratio`, `offset`: shape
    `()`. The impulse acts along `x1`, and `−ratio` times it along `x2`.
    """

    coordinate1: Annotated[Callable, "(t, q)"]
    coordinate2: Annotated[Callable, "(t, q)"]
    ratio: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    offset: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)

    @property
    def is_of_bodies(self) -> bool:
        """Whether a coordinate is that of a joint between bodies: both are then given their `Pose`."""
        return reads_bodies(self.coordinate1) or reads_bodies(self.coordinate2)

    def __call__(self, t: Scalar, q: Config) -> Float[Array, " c"]:
        coupled = self.coordinate1(t, q) - self.ratio * self.coordinate2(t, q) - self.offset
        return jnp.atleast_1d(coupled)


def _pose(q: Pose, bodies: int | tuple[int | None, ...]) -> tuple[Array, Array]:
    """Position and rotation matrix of a body, or of many, `(j, ...)`; the world is the origin, unrotated."""
    position, orientation = (of_bodies(x, bodies) for x in (q.position, q.orientation))
    rotation = rotation_matrix(orientation)
    if isinstance(bodies, int):
        return position, rotation
    there = np.array([i is not None for i in bodies])
    position = jnp.where(there, position, 0)
    rotation = jnp.where(there, rotation, np.eye(3)[:, :, None].astype(rotation.dtype))
    return position.T, jnp.moveaxis(rotation, -1, 0)


def world_frame(q: Config, bodies: Bodies, origin: Array, axes: Array) -> tuple[Array, Array]:
    """Origin and axes (columns) of a frame fixed to a body, world frame; `(j, ...)` for many."""
    if bodies is None:
        return origin, axes
    position, rotation = _pose(q, bodies)
    return position + (rotation @ origin[..., None])[..., 0], rotation @ axes


def _seen(p1: Array, f1: Array, p2: Array, f2: Array) -> tuple[Array, Array]:
    """Frame 1 as seen from frame 2."""
    return f2.T @ (p1 - p2), f2.T @ f1


def _joint(q: Pose, point, axis, body1, body2, translations, rotations) -> Joint:
    bodies = body_indices("body1", body1), body_indices("body2", body2)
    for name, body in zip(("body1", "body2"), bodies, strict=True):
        if problem := out_of_range(name, body, q.position.shape[0]):
            raise ValueError(f"{problem}.")
    many = check_lengths(*bodies)
    ends = (body if isinstance(body, tuple) else (body,) * (*many, 1)[0] for body in bodies)
    for number, (one, two) in enumerate(zip(*ends, strict=True)):
        if one == two:
            where = "the world" if one is None else f"body {one}"
            which = f"joint {number}" if many else "the joint"
            raise ValueError(
                f"{which} connects {where} with itself: give another body1 or body2, None for the world."
            )
    dtype = q.position.dtype
    given = as_float(point, dtype), as_float(axis, dtype)
    if any(x.shape not in ((3,), (*many, 3)) for x in given):
        raise ValueError(
            f"point and axis must have shape (3,), or one row for each joint, got {given[0].shape}, "
            f"{given[1].shape}."
        )
    point, axis = (jnp.broadcast_to(x, (*many, 3)) for x in given)
    known = concrete(axis)
    if not is_traced(known) and not np.all(
        np.isfinite(known) & np.any(known, axis=-1, keepdims=True)
    ):
        raise ValueError(
            f"the axis of a joint must be finite and not zero, such as (0, 0, 1), got {np.asarray(known)}."
        )
    axis = (axis / jnp.sqrt(jnp.sum(axis * axis, axis=-1, keepdims=True))).T
    axes = jnp.moveaxis(jnp.stack([*tangents(axis), axis], axis=1), (0, 1), (-2, -1))

    def local(body):
        if body is None:
            return point, axes
        position, rotation = _pose(q, body)
        inverse = jnp.swapaxes(rotation, -1, -2)
        return (inverse @ (point - position)[..., None])[..., 0], inverse @ axes

    return Joint(*local(bodies[0]), *local(bodies[1]), translations, rotations, *bodies)


def _centres(q: Pose, bodies) -> Array:
    """Points of joints that are given none: the centres of their first bodies."""
    of = body_indices("body1", bodies)
    if of is None or isinstance(of, tuple) and None in of:
        raise ValueError(
            "body1 is the world, which has no centre: give the body of the joint first."
        )
    return of_bodies(q.position, of).T


@checked_arguments
def ball_joint(q: Pose, point: Numbers, body1: Indices = 0, body2: Indices = None) -> Joint:
    """A ball joint, 3 rows, along the axes of the world frame if body 2 is the world.

    **Arguments:** `q`: a configuration in which the joint holds; `point`: its centre [m], world
    frame, shape `(3,)`; `body1`, `body2`: the two bodies, `None` for the world. With arrays of
    indices `(j,)`, these are `j` joints, whose points (and axes) may be `(j, 3)`.

    **Raises:** `TypeError` if `q` is no `Pose`, `ValueError` if shapes do not match, bodies do not exist, or
    the two of a joint are the same, as for the other joints.
    """
    return _joint(q, point, (0.0, 0.0, 1.0), body1, body2, (0, 1, 2), ())


@checked_arguments
def hinge(
    q: Pose, point: Numbers, axis: Numbers, body1: Indices = 0, body2: Indices = None
) -> Joint:
    """A hinge (revolute joint, pivot), 5 rows: `angle` about the axis is free.

    **Arguments:** `q`, `point`, `body1`, `body2`: as in `ball_joint`; `axis`: world frame, shape
    `(3,)`, of any length.
    """
    return _joint(q, point, axis, body1, body2, (0, 1, 2), (0, 1))


@checked_arguments
def prismatic(q: Pose, axis: Numbers, body1: Indices = 0, body2: Indices = None) -> Joint:
    """A prismatic joint (slider), 5 rows: `displacement` along the axis is free.

    **Arguments:** as in `hinge`.
    """
    return _joint(q, _centres(q, body1), axis, body1, body2, (0, 1), (0, 1, 2))


@checked_arguments
def cylindrical(
    q: Pose, point: Numbers, axis: Numbers, body1: Indices = 0, body2: Indices = None
) -> Joint:
    """A cylindrical joint, 4 rows: `angle` and `displacement` are free.

    **Arguments:** as in `hinge`.
    """
    return _joint(q, point, axis, body1, body2, (0, 1), (0, 1))


@checked_arguments
def fixed_joint(q: Pose, body1: Indices = 0, body2: Indices = None) -> Joint:
    """A weld, 6 rows: nothing is free.

    **Arguments:** as in `ball_joint`.
    """
    axis = (0.0, 0.0, 1.0)
    return _joint(q, _centres(q, body1), axis, body1, body2, (0, 1, 2), (0, 1, 2))
