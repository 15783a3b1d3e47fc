"""Rigid bodies."""

from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._block_diagonal import BlockDiagonal
from .._jax import concrete, eval_now, is_traced
from .._numerics import as_float, cross, lu_solve
from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import AbstractGroup, Pose, PoseGroup
from ._base import AbstractSystem, shaped


class NewtonEulerSystem(AbstractSystem):
    """`b` rigid bodies:  `m v' = f`,  `I ω' + ω × I ω = τ`,  `R' = R ω^`.

    States are `State(Pose(position (b, 3), orientation (b, 4)), v (6 b,))`, where `v` holds, for each
    body, the linear velocity in the world frame and the angular velocity in the body frame.

    **Arguments:**

    - `masses`: [kg], shape `(b,)` or a number for one body.
    - `inertia`: about the centre of mass, body frame [kg m²]: `(b, 3)` principal moments or
      `(b, 3, 3)`; for one body also a number (isotropic), `(3,)` or `(3, 3)`.
    - `wrench`: `wrench(t, state, args) -> (b, 6)`: force [N] in the world frame and torque [N m]
      in the body frame of every body, in addition to gravity.
    - `gravity`: acceleration [m/s²], world frame, shape `(3,)`.

    **Raises:** `ValueError` if shapes do not match or there is no body; in a simulation, before it is
    compiled, if masses or moments of inertia are not those of a body.
    """

    masses: Float[Array, " b"]
    inertia: Float[Array, "b 3"] | Float[Array, "b 3 3"]
    gravity: Float[Array, "3"]
    wrench: Annotated[Callable, "(t, state, args)"] | None

    def __init__(self, masses, inertia, wrench=None, gravity=(0.0, 0.0, -9.81)):
        mass = eval_now(as_float, masses)
        inertia = eval_now(lambda x: as_float(x, mass.dtype), inertia)
        if mass.ndim == 0:
            mass, inertia = eval_now(jnp.atleast_1d, mass), eval_now(_of_one_body, inertia)
        b = mass.shape[0]
        if mass.ndim != 1 or inertia.shape not in ((b, 3), (b, 3, 3)):
            raise ValueError(
                f"masses has shape {mass.shape} and inertia {inertia.shape}; expected (b,) and "
                "(b, 3) principal moments or (b, 3, 3) matrices."
            )
        if not b:
            raise ValueError("masses must be those of one body at least, got none.")
        self.masses = mass
        self.inertia = inertia
        self.gravity = as_float(gravity, mass.dtype)
        self.wrench = wrench
        if self.gravity.shape != (3,):
            raise ValueError(f"gravity must have shape (3,), got {self.gravity.shape}.")

    @property
    def group(self) -> AbstractGroup:
        return PoseGroup(self.masses.shape[0])

    def state(
        self, position, orientation=(1.0, 0.0, 0.0, 0.0), velocity=0.0, angular_velocity=0.0
    ) -> State:
        """The state of all bodies; values without a body axis apply to every body.

        **Arguments:** `position`: of the centres of mass [m], world frame, `(b, 3)` or `(3,)`;
        `orientation`: quaternions, scalar first, body to world, `(b, 4)` or `(4,)`; `velocity`: [m/s],
        world frame, and `angular_velocity`: [rad/s], body frame, `(b, 3)`, `(3,)` or a number.

        **Raises:** `ValueError` if shapes do not match.
        """
        b, dtype = self.masses.shape[0], self.masses.dtype
        given = {
            "position": (position, 3),
            "orientation": (orientation, 4),
            "velocity": (velocity, 3),
            "angular_velocity": (angular_velocity, 3),
        }
        arrays = []
        for name, (value, width) in given.items():
            array = as_float(value, dtype)
            number = array.ndim == 0 and name.endswith("velocity")
            if not number and array.shape not in ((width,), (b, width)):
                raise ValueError(
                    f"{name} must have shape ({b}, {width}) or ({width},), got {array.shape}."
                )
            arrays.append(jnp.broadcast_to(array, (b, width)))
        position, orientation, *rates = arrays
        return State(Pose(position, orientation), jnp.concatenate(rates, axis=1).reshape(-1))

    @property
    def centres(self) -> Float[Array, "b 3"]:
        """Centres of mass in the frames of the bodies [m]: their origins."""
        return jnp.zeros((*self.masses.shape, 3), self.masses.dtype)

    def bodies(self, state: State) -> State:
        return state

    def _spin_momentum(self, omega: Float[Array, "b 3"]) -> Float[Array, "b 3"]:
        if self.inertia.ndim == 2:
            return self.inertia * omega
        return jnp.sum(self.inertia * omega[:, None, :], axis=-1)

    def momentum(self, t: Scalar, state: State) -> Vector:
        """Linear momentum (world frame) and spin (body frame) of every body, shape `(6 b,)`."""
        del t
        v = state.v.reshape(-1, 6)
        parts = [self.masses[:, None] * v[:, :3], self._spin_momentum(v[:, 3:])]
        return jnp.concatenate(parts, axis=1).reshape(-1)

    def mass(self, t: Scalar, q: Config) -> Matrix:
        del t, q
        unit = np.eye(3, dtype=self.masses.dtype)[:, :, None]
        inertia = jnp.moveaxis(self.inertia, 0, -1)
        spin = unit * inertia[None] if self.inertia.ndim == 2 else inertia
        none = jnp.zeros_like(spin)
        rows = [[unit * self.masses[None, None], none], [none, spin]]
        blocks = jnp.concatenate([jnp.concatenate(row, axis=1) for row in rows])
        return BlockDiagonal(blocks).dense()

    @property
    def block_size(self) -> int | None:
        # A wrench may couple bodies, as springs do.
        return 6 if self.wrench is None else None

    def inertia_force(self, t: Scalar, state: State) -> Vector:
        """The gyroscopic torques `−ω × I ω`."""
        del t
        omega = state.v.reshape(-1, 6)[:, 3:]
        gyroscopic = -cross(omega.T, self._spin_momentum(omega).T).T
        return jnp.concatenate([jnp.zeros_like(gyroscopic), gyroscopic], axis=1).reshape(-1)

    def kinetic_slope(self, t: Scalar, state: State) -> Vector:
        del t
        return jnp.zeros_like(state.v)

    def applied(self, t: Scalar, state: State, args: Args) -> Vector:
        weight = self.masses[:, None] * self.gravity[None]
        total = jnp.concatenate([weight, jnp.zeros_like(weight)], axis=1)
        if self.wrench is not None:
            wrench = self.wrench(t, state, args)
            total = total + shaped("wrench(t, state, args)", wrench, total.shape, total.dtype)
        return total.reshape(-1)

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        return self.applied(t, state, args) + self.inertia_force(t, state)

    def flow_rate(self, t: Scalar, state: State, args: Args) -> Vector:
        """As in `AbstractSystem`, with the block structure of the mass matrix."""
        force = self.force(t, state, args).reshape(-1, 6)
        torque = force[:, 3:].T
        if self.inertia.ndim == 2:
            spin = torque * (1 / self.inertia.T)
        else:
            spin = lu_solve(jnp.moveaxis(self.inertia, 0, -1), torque)
        rate = jnp.concatenate([force[:, :3] * (1 / self.masses[:, None]), spin.T], axis=1)
        return jnp.concatenate([-state.v, rate.reshape(-1)])

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Potential energy of gravity, `−Σ m g · x` [J]; that of the wrench is not known."""
        del t
        return -jnp.sum(self.masses[:, None] * self.gravity[None] * q.position)

    def check(self, q: Config | None = None) -> str | None:
        del q
        masses, inertia = concrete((self.masses, self.inertia))
        if not is_traced(masses) and not np.all(np.isfinite(masses) & (np.asarray(masses) > 0)):
            return f"masses must be positive, got {np.asarray(masses)}"
        for matrix in () if is_traced(inertia) else np.asarray(inertia):
            full = np.diag(matrix) if matrix.ndim == 1 else matrix
            if not np.all(np.isfinite(full)) or not np.allclose(full, full.T):
                return f"an inertia matrix is not finite and symmetric: {full.tolist()}"
            moments = np.linalg.eigvalsh(full)
            if moments[0] <= 0:
                return f"an inertia matrix is not positive definite: moments {moments}"
            if moments[0] + moments[1] < moments[2] * (1 - 1e-9):
                return f"principal moments {moments} violate the triangle inequality of a body"
        return None


def _of_one_body(inertia: Array) -> Array:
    """The inertia of a single body, with a body axis added."""
    inertia = jnp.broadcast_to(inertia, (3,)) if inertia.ndim == 0 else inertia
    return inertia[None] if inertia.shape in ((3,), (3, 3)) else inertia
