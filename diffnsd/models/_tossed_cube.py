"""A cube tossed on a plane."""

import jax.numpy as jnp
import numpy as np

from .._arguments import Number, Numbers, checked_arguments
from .._expects import of_shape
from .._jax import is_traced
from .._types import State
from ..groups import Pose
from ..laws import AbstractLaw, CoulombFriction, GapStabilized
from ..model import Interaction, Model
from ..relations import BodyPointsPlane
from ..systems import NewtonEulerSystem

CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)


@checked_arguments
def tossed_cube(
    mu: Number = 0.18,
    e: Number = 0.0,
    mass: Number = 0.37,
    inertia: Number = 8.1e-4,
    half_width: Number = 0.0524,
    gravity: Number = 9.81,
    *,
    law: AbstractLaw | None = None,
    max_active: int | None = 4,
) -> Model:
    """A rigid cube with eight corner contacts on the plane z = 0.

    Its state is made by `cube_state`: one body, `q` a `Pose` with `position (1, 3)` and
    `orientation (1, 4)`, and `v (6,)`.

    **Arguments:** numbers of shape `()`:

    - `mu`: friction, nonnegative. `e`: restitution in [0, 1].
    - `mass` [kg]; `inertia` [kg m²], the same about all axes; `half_width` [m].
    - `gravity` [m/s²], along −z.
    - `law`: in place of `GapStabilized(CoulombFriction(mu, e))`.
    - `max_active`: number of corners solved at a time, the lowest ones.

    **Raises:** `ValueError` if `half_width` is not positive, and when simulated with other
    parameters out of range.
    """
    if not is_traced(half_width) and not np.all(np.asarray(half_width) > 0):
        raise ValueError(f"half_width must be positive [m], got {half_width}.")
    corners = jnp.asarray(half_width) * CORNERS
    down = -jnp.asarray(gravity) * jnp.array([0.0, 0.0, 1.0])
    system = NewtonEulerSystem(jnp.asarray(mass), jnp.asarray(inertia), gravity=down)
    chosen = GapStabilized(CoulombFriction(jnp.asarray(mu), jnp.asarray(e))) if law is None else law
    return Model(system, Interaction(BodyPointsPlane(corners), chosen, max_active))


@checked_arguments
def cube_state(
    position: Numbers, quaternion_wxyz: Numbers, velocity: Numbers, angular_velocity: Numbers
) -> State:
    """The state of one body, with `q` a `Pose` and `v (6,)`.

    **Arguments:**

    - `position`: of the centre of mass [m], world frame, shape `(3,)`.
    - `quaternion_wxyz`: unit quaternion, scalar first, body to world, shape `(4,)`.
    - `velocity`: of the centre of mass [m/s], world frame, shape `(3,)`.
    - `angular_velocity` [rad/s], body frame, shape `(3,)`.

    **Raises:** `ValueError` for other shapes; when simulated, for a quaternion that is not of unit length.
    """
    place = of_shape("position", position, 3), of_shape("quaternion_wxyz", quaternion_wxyz, 4)
    moves = of_shape("velocity", velocity, 3), of_shape("angular_velocity", angular_velocity, 3)
    return State(Pose(*(x[None] for x in place)), jnp.concatenate(moves))
