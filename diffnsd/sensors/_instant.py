"""What sensors see: bodies at an instant, and what happened between two of them."""

from numbers import Integral
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AbstractChecked
from .._block_rows import gather
from .._jax import eval_now
from .._numerics import as_float, cross
from .._types import Scalar, State
from ..groups import Pose, PoseGroup, quaternion_product, rotation_matrix
from ..model import Interaction, Model
from ..relations import ContactPlaces


class Site(AbstractChecked):
    """A point and axes fixed to a body, or to the world: where a sensor is mounted.

    **Arguments:** `body`: index of the body, `None` for the world; `position` [m], `(3,)`, and
    `orientation`, unit quaternion, scalar first, `(4,)`: in the frame of the body. They are parameters.

    **Raises:** `ValueError` if `body` is no index, or shapes do not match.
    """

    body: int | None = eqx.field(static=True)
    position: Float[Array, "3"]
    orientation: Float[Array, "4"]

    def __init__(
        self,
        body: int | None = None,
        position=(0.0, 0.0, 0.0),
        orientation=(1.0, 0.0, 0.0, 0.0),
    ):
        if body is not None and (not isinstance(body, Integral) or body < 0):
            raise ValueError(f"Site.body must be one index, or None for the world, got {body}.")
        self.body = None if body is None else int(body)
        self.position = eval_now(as_float, position)
        self.orientation = eval_now(as_float, orientation)
        if self.position.shape != (3,) or self.orientation.shape != (4,):
            raise ValueError(
                f"position must have shape (3,) and orientation (4,), got {self.position.shape} and "
                f"{self.orientation.shape}."
            )


class Frame(NamedTuple):
    """The frame of a site: origin [m], axes (columns), quaternion, velocity [m/s], rate of turning [rad/s].

    All are in the world frame.
    """

    position: Float[Array, "3"]
    axes: Float[Array, "3 3"]
    quaternion: Float[Array, "4"]
    velocity: Float[Array, "3"]
    rate: Float[Array, "3"]


class Bodies(eqx.Module):
    """Frames of `b` bodies and, after them, of the world; velocities and rates in the world frame."""

    position: Float[Array, "a 3"]
    quaternion: Float[Array, "a 4"]
    axes: Float[Array, "a 3 3"]
    velocity: Float[Array, "a 3"]
    rate: Float[Array, "a 3"]

    @staticmethod
    def of(state: State) -> "Bodies":
        """From the `Pose` and the velocities of the bodies."""
        q, v = state.q, state.v.reshape(-1, 6)
        unit = jnp.asarray([[1.0, 0.0, 0.0, 0.0]], v.dtype)
        position, velocity, spin = (
            jnp.concatenate([x, jnp.zeros((1, 3), v.dtype)])
            for x in (q.position, v[:, :3], v[:, 3:])
        )
        quaternion = jnp.concatenate([q.orientation, unit])
        axes = jnp.moveaxis(rotation_matrix(quaternion.T), -1, 0)
        return Bodies(position, quaternion, axes, velocity, (axes @ spin[..., None])[..., 0])

    def frame(self, site: Site) -> Frame:
        """The frame of a site.

        **Raises:** `ValueError` if there is no such body.
        """
        count = len(self.position) - 1
        if site.body is not None and site.body >= count:
            raise ValueError(
                f"Site.body is {site.body}, but the system has the bodies 0 to {count - 1}."
            )
        own = jax.tree.map(lambda x: x[count if site.body is None else site.body], self)
        arm = own.axes @ site.position
        return Frame(
            own.position + arm,
            own.axes @ rotation_matrix(site.orientation),
            quaternion_product(own.quaternion, site.orientation),
            own.velocity + cross(own.rate, arm),
            own.rate,
        )


class Instant(eqx.Module):
    """A model at one time.

    **Arguments:** `t`, `state`; `whole`: the state of the product that the system is a part of, else the
    same; `moving`: the `Pose` and the velocities `(6 b,)` of the bodies, and `frames`: their `Bodies`, both
    `None` if the system has none.
    """

    t: Scalar
    state: State
    whole: State
    moving: State | None
    frames: Bodies | None

    @staticmethod
    def of(model: Model, t: Scalar, state: State, whole: State) -> "Instant":
        """The model in a state at time `t`."""
        moving = model.system.bodies(state)
        frames = None if moving is None else Bodies.of(moving)
        return Instant(jnp.asarray(t, state.v.dtype), state, whole, moving, frames)

    def needed(self) -> tuple[State, Bodies]:
        """The bodies; raises `ValueError` if the system has none."""
        if self.moving is None or self.frames is None:
            raise ValueError(
                "this sensor is mounted on a body: it needs rigid bodies (NewtonEulerSystem or "
                "Multibody); of other systems JointPosition and JointVelocity read entries of q and v. "
                "Sensors of one system of a product are read together: Sensors({...}, part=0)."
            )
        return self.moving, self.frames

    def frame(self, site: Site) -> Frame:
        """The frame of a site.

        **Raises:** `ValueError` if the system has no bodies, or not this one.
        """
        return self.needed()[1].frame(site)


class Interval(eqx.Module):
    """What happened between two saved times.

    **Arguments:**

    - `before`, `after`: its ends. `impulses`: of every interaction, `(c, k)` [N s].
    - `places`: where the contacts of every interaction are at its end, `None` without such.
    - `loads`: impulse [N s] and moment about the origin of the body [N m s] on every body, world frame, from
      every interaction, `(b, 6)`; `None` where an interaction does not act on bodies.

    Both are empty if no sensor `reads_contacts`.
    """

    before: Instant
    after: Instant
    impulses: tuple[Float[Array, "c k"], ...]
    places: tuple[ContactPlaces | None, ...]
    loads: tuple[Float[Array, "b 6"] | None, ...]

    @property
    def length(self) -> Scalar:
        """Its length [s]."""
        return self.after.t - self.before.t

    @staticmethod
    def of(
        acting: tuple[Interaction, ...], before: Instant, after: Instant, impulses: Any
    ) -> "Interval":
        """From its ends and the impulses between them; `acting`: all interactions, or none are looked for."""
        t, moving, frames = after.t, after.moving, after.frames

        def seen(i: Interaction, impulse: Array):
            if moving is None or frames is None or not i.relation.is_of_bodies:
                return None, None
            return i.relation.places(t, moving.q), _load(i, t, moving.q, frames, impulse)

        both = [seen(*pair) for pair in zip(acting, impulses if acting else (), strict=True)]
        places, loads = zip(*both, strict=True) if both else ((), ())
        return Interval(before, after, impulses, tuple(places), tuple(loads))


def _load(i: Interaction, t: Scalar, pose: Pose, frames: Bodies, impulse: Array) -> Array:
    """`H^T p` of bodies, with the moments turned to the world frame."""
    rows = i.relation.observe(PoseGroup(len(pose.position)), t, pose).first(impulse.shape[1])
    wrench = gather(rows.H, impulse.T).reshape(-1, 6)
    moment = (frames.axes[:-1] @ wrench[:, 3:, None])[..., 0]
    return jnp.concatenate([wrench[:, :3], moment], axis=1)
