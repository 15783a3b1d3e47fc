"""The bodies and joints that a `Multibody` is made of."""

import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._arguments import AbstractChecked
from ..._jax import concrete, eval_now, is_traced
from ..._numerics import as_float


class AbstractTreeJoint(AbstractChecked):
    """A joint between a body and its parent.

    **Arguments:**

    - `axis`: of a hinge or a slide, in the frame of the body, `(3,)`, of any length.
    - `point`: the point of the body about which it turns, in its frame [m], `(3,)`.
    - `stiffness`: of a spring, `damping`: viscous, `armature`: inertia added to that of the bodies, such as
      that of a rotor: one number for all entries of `v` of the joint, [N m/rad, N m s/rad, kg m²] for
      rotations and [N/m, N s/m, kg] for displacements.
    - `rest`: the coordinates at which the spring is relaxed, `(coordinates,)`; by default 0 for a hinge or a
      slide, whatever its `reference`, no rotation for a ball joint, and the pose of the body for a free one.
    - `reference`: the angle or displacement at which the body is where it was defined.
    """

    axis: Float[Array, "3"]
    point: Float[Array, "3"]
    stiffness: Float[Array, ""]
    damping: Float[Array, ""]
    armature: Float[Array, ""]
    rest: Float[Array, " q"] | None
    reference: Float[Array, ""]

    coordinates: ClassVar[int]
    """Entries of `q`."""
    rates: ClassVar[int]
    """Entries of `v`."""
    slides: ClassVar[bool] = False
    """Whether its coordinate is a displacement along the axis."""
    moves_freely: ClassVar[bool] = False
    """Whether its coordinates are a pose in the world."""

    def __init__(
        self,
        *,
        axis=None,
        point=(0.0, 0.0, 0.0),
        stiffness=0.0,
        damping=0.0,
        armature=0.0,
        rest=None,
        reference=0.0,
    ):
        name, count = type(self).__name__, self.coordinates
        self.axis = jnp.zeros(3) if axis is None else _sized("axis", axis, (3,))
        self.point = _sized("point", point, (3,))
        self.stiffness = _sized("stiffness", stiffness, ())
        self.damping = _sized("damping", damping, ())
        self.armature = _sized("armature", armature, ())
        self.reference = _sized("reference", reference, ())
        unmoved = np.eye(1, 4)[0] if count == 4 else None if count == 7 else np.zeros(count)
        given = unmoved if rest is None else np.reshape(rest, -1) if np.ndim(rest) == 0 else rest
        self.rest = None if given is None else _sized("rest", given, (count,))
        if (axis is not None or self.rates == 1) and not _is_direction(self.axis):
            raise ValueError(
                f"the axis of a {name} must be finite and not zero, such as (0, 1, 0), got {axis}."
            )


def _sized(name: str, value, shape: tuple[int, ...]) -> Array:
    array = eval_now(as_float, value)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}.")
    return array


def _is_direction(axis: Array) -> bool:
    known = concrete(axis)
    return is_traced(known) or bool(np.all(np.isfinite(known)) and np.any(np.asarray(known)))


def _options(joint: AbstractTreeJoint, options: dict, *absent: str) -> dict:
    """The options of a joint, which must be among those of all joints without the absent ones."""
    every = ("axis", "point", "stiffness", "damping", "armature", "rest", "reference")
    known = [name for name in every if name not in absent]
    if wrong := [name for name in options if name not in known]:
        raise TypeError(
            f"a {type(joint).__name__} joint has no {wrong[0]}; its options are {', '.join(known)}."
        )
    return options


class Hinge(AbstractTreeJoint):
    """A hinge (revolute joint): one angle [rad] about `axis` through `point`.

    **Arguments:** `axis`, then by name `point`, `stiffness` [N m/rad], `damping` [N m s/rad], `armature`
    [kg m²], `rest` [rad], `reference` [rad]; see `AbstractTreeJoint`.

    **Raises:** `ValueError` if the axis is zero or a shape does not match.
    """

    coordinates = rates = 1

    def __init__(self, axis, **options):
        super().__init__(axis=axis, **_options(self, options))


class Slide(AbstractTreeJoint):
    """A slide (prismatic joint): one displacement [m] along `axis`.

    **Arguments:** `axis`, then by name `stiffness` [N/m], `damping` [N s/m], `armature` [kg], `rest` [m],
    `reference` [m]; see `AbstractTreeJoint`.

    **Raises:** as `Hinge`.
    """

    coordinates = rates = 1
    slides = True

    def __init__(self, axis, **options):
        super().__init__(axis=axis, **_options(self, options, "point"))


class Ball(AbstractTreeJoint):
    """A ball joint: a rotation about `point`, a unit quaternion from the body to where it was defined.

    **Arguments:** `point`, `stiffness` [N m/rad], `damping`, `armature`, `rest` `(4,)`, by name; see
    `AbstractTreeJoint`.

    **Raises:** `ValueError` if a shape does not match.
    """

    coordinates, rates = 4, 3

    def __init__(self, *, point=(0.0, 0.0, 0.0), **options):
        super().__init__(point=point, **_options(self, options, "axis", "reference"))


class Free(AbstractTreeJoint):
    """No joint: the position [m] of the frame of the body, then its quaternion, in the world.

    Its velocity is that of the origin of the frame in the world frame, then the angular velocity in the
    frame of the body. Only a body without parent is free.

    **Arguments:** `stiffness`, `damping`, `armature`, `rest` `(7,)`, by name; see `AbstractTreeJoint`.

    **Raises:** as `Ball`.
    """

    coordinates, rates = 7, 6
    moves_freely = True

    def __init__(self, **options):
        super().__init__(**_options(self, options, "axis", "point", "reference"))


class Fixed(AbstractTreeJoint):
    """A weld: the body does not move with respect to its parent."""

    coordinates = rates = 0

    def __init__(self):
        super().__init__()


class Body(AbstractChecked):
    """A body of a `Multibody` and the joints to its parent.

    **Arguments:**

    - `mass` [kg], `()`, and `inertia` [kg m²] about the centre of mass along the axes of the frame of the
      body: `(3, 3)`, three principal moments `(3,)`, or a number.
    - `joints`: a joint or a sequence of them, the one next to the parent first. The axes and points of all
      are given where the body was defined, in its frame.
    - `parent`: index of the parent among the bodies, which comes before the body; `None` for the world.
    - `position` [m], `(3,)`, and `orientation`, unit quaternion, scalar first, `(4,)`: the frame of the body
      in that of its parent, where all coordinates have their `reference`.
    - `centre`: the centre of mass in the frame of the body [m], `(3,)`.

    **Raises:** `ValueError` if shapes do not match.
    """

    mass: Float[Array, ""]
    inertia: Float[Array, "3 3"]
    joints: tuple[AbstractTreeJoint, ...]
    parent: int | None = eqx.field(static=True)
    position: Float[Array, "3"]
    orientation: Float[Array, "4"]
    centre: Float[Array, "3"]

    def __init__(
        self,
        mass,
        inertia,
        joints: AbstractTreeJoint | Sequence[AbstractTreeJoint],
        parent: int | None = None,
        *,
        position=(0.0, 0.0, 0.0),
        orientation=(1.0, 0.0, 0.0, 0.0),
        centre=(0.0, 0.0, 0.0),
    ):
        self.mass = _sized("mass", mass, ())
        moments = eval_now(as_float, inertia)
        if moments.ndim < 2:
            if moments.shape not in ((), (3,)):
                raise ValueError(
                    f"inertia must have shape (), (3,) or (3, 3), got {moments.shape}."
                )
            moments = eval_now(lambda x: jnp.diag(jnp.broadcast_to(x, (3,))), moments)
        self.inertia = _sized("inertia", moments, (3, 3))
        given: list[Any] = list(joints) if isinstance(joints, (list, tuple)) else [joints]
        wrong = [j for j in given if not isinstance(j, AbstractTreeJoint)]
        if wrong:
            raise ValueError(
                f"joints must be Hinge, Slide, Ball, Free or Fixed, got {wrong[0]!r}; "
                "for a joint without arguments write Ball() or Free()."
            )
        self.joints = tuple(given)
        self.parent = _index_of(parent)
        self.position = _sized("position", position, (3,))
        self.orientation = _sized("orientation", orientation, (4,))
        self.centre = _sized("centre", centre, (3,))


def _index_of(parent) -> int | None:
    if parent is None:
        return None
    try:
        if not isinstance(parent, (bool, np.bool_)):
            return operator.index(parent)
    except TypeError:
        pass
    raise ValueError(f"parent must be the index of a body, or None for the world, got {parent!r}.")
