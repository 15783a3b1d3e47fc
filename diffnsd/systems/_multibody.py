"""Trees of bodies in joint coordinates."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._jax import concrete, eval_now, is_traced
from .._numerics import as_float, cross, dot, weighted_sum
from .._types import Args, Config, Matrix, Scalar, State, Vector
from ..groups import (
    AbstractGroup,
    Euclidean,
    JointSpace,
    Pose,
    quaternion_product,
    rotate,
    rotation_matrix,
)
from ._base import AbstractSystem, positive_definite, shaped
from ._joints import Body
from ._tree import Topology, topology


class Multibody(AbstractSystem):
    """A tree of bodies with free, ball, hinge, slide and fixed joints, in joint coordinates:

        M(q) v' = −c(q, v) − D v − K log(q_rest^-1 q) + forcing + J^T wrench

    with the composite inertias `M`, and the Coriolis, gyroscopic and gravity forces `c`. `q (q,)` holds the
    coordinates of all joints in the order of the bodies: an angle, a displacement, a quaternion, or a
    position and a quaternion; `v (n,)` their rates, see the joints for their frames. Both are in the order
    of `qpos` and `qvel` of MuJoCo.

    Contacts and joints (`BodyPointsPlane`, `sphere_on_plane`, `hinge`, ...) are stated as for free bodies,
    with the index of a body; points are given in the frame of the body, whose origin need not be the centre
    of mass. A loop is closed by such a joint with the law `Equality`.

    **Arguments:**

    - `bodies`: a sequence of `Body`, each after its parent.
    - `gravity`: [m/s²], world frame, `(3,)`.
    - `forcing`: `forcing(t, state, args) -> (n,)`: generalised force, or `None`.
    - `wrench`: `wrench(t, state, args) -> (b, 6)`: force at the origin of the frame of every body [N], world
      frame, and torque [N m], frame of the body; `state` has the `Pose` of the bodies and their velocities,
      `(6 b,)`. Or `None`.

    The parameters are `masses (b,)`, `inertia (b, 3, 3)`, `centres (b, 3)`, `positions (b, 3)`,
    `orientations (b, 4)`; `axes (j, 3)`, `points (j, 3)`, `stiffness`, `damping`, `armature`, `reference (j,)`,
    `rest (q,)`; see `Body` and `AbstractTreeJoint`.

    **Raises:** `ValueError` if the bodies are no tree; in a simulation, before it is compiled, if a mass
    or an inertia is not that of a body, or nothing resists a joint.

    Reference: R. Featherstone, Rigid Body Dynamics Algorithms (2008), doi:10.1007/978-1-4899-7560-7.
    """

    masses: Float[Array, " b"]
    inertia: Float[Array, "b 3 3"]
    centres: Float[Array, "b 3"]
    positions: Float[Array, "b 3"]
    orientations: Float[Array, "b 4"]
    axes: Float[Array, "j 3"]
    points: Float[Array, "j 3"]
    stiffness: Float[Array, " j"]
    damping: Float[Array, " j"]
    armature: Float[Array, " j"]
    reference: Float[Array, " j"]
    rest: Float[Array, " q"]
    gravity: Float[Array, "3"]
    forcing: Callable | None
    wrench: Callable | None
    tree: Topology = eqx.field(static=True)

    def __init__(
        self,
        bodies: Sequence[Body],
        gravity=(0.0, 0.0, -9.81),
        forcing: Callable | None = None,
        wrench: Callable | None = None,
    ):
        bodies = tuple(bodies)
        if not bodies:
            raise ValueError("a Multibody needs at least one Body.")
        self.tree = topology(bodies)
        joints = [joint for body in bodies for joint in body.joints]

        def stack(parts, shape=()):
            return eval_now(lambda *x: jnp.stack(x), *parts) if parts else jnp.zeros((0, *shape))

        self.masses = stack([b.mass for b in bodies])
        self.inertia = stack([b.inertia for b in bodies])
        self.centres = stack([b.centre for b in bodies])
        self.positions = stack([b.position for b in bodies])
        self.orientations = stack([b.orientation for b in bodies])
        self.axes = stack([j.axis for j in joints], (3,))
        self.points = stack([j.point for j in joints], (3,))
        self.stiffness = stack([j.stiffness for j in joints])
        self.damping = stack([j.damping for j in joints])
        self.armature = stack([j.armature for j in joints])
        self.reference = stack([j.reference for j in joints])
        rests = [j.rest for j in joints]
        self.rest = eval_now(lambda *x: jnp.concatenate(x), *rests) if rests else jnp.zeros(0)
        self.gravity = as_float(gravity)
        self.forcing, self.wrench = forcing, wrench
        if self.gravity.shape != (3,):
            raise ValueError(f"gravity must have shape (3,), got {self.gravity.shape}.")

    @property
    def group(self) -> AbstractGroup:
        tables = self.tree.tables
        n, rotations = len(tables.link), tables.rotations
        return JointSpace(n, rotations) if rotations else Euclidean(n)

    def state(self, q=None, v=None) -> State:
        """The state with coordinates `q (q,)` and rates `v (n,)`.

        By default all joints are at their `reference`, free bodies where they were defined, at rest.

        **Raises:** `ValueError` if shapes do not match.
        """
        tables, kinds = self.tree.tables, self.tree.joints
        if q is None:
            parts, joint = [], 0
            for i, k in ((i, k) for i, own in enumerate(kinds) for k in own):
                unmoved = [self.reference[joint][None]] if k.coordinates == 1 else []
                unmoved = [jnp.array([1.0, 0.0, 0.0, 0.0])] if k.coordinates == 4 else unmoved
                whole = [self.positions[i], self.orientations[i]] if k.moves_freely else unmoved
                parts, joint = parts + whole, joint + 1
            q = jnp.concatenate(parts) if parts else jnp.zeros(0)
        size = len(self.rest)
        if np.shape(q) != (size,):
            raise ValueError(
                f"q must have shape ({size},), the coordinates of {len(tables.q_start)} joints, got "
                f"{np.shape(q)}."
            )
        return super().state(q, v)

    # Kinematics. Arrays have components first; spatial vectors are taken about the frame of the first link of
    # their tree, in the directions of the world.

    def _links(self, q: Config) -> tuple[Array, Array]:
        """Positions `(3, l)` and quaternions `(4, l)` of the frames of all links."""
        tables = self.tree.tables
        position, turn = _local(self, q)
        for hop in tables.hops:
            there = position[:, hop], turn[:, hop]
            moved = there[0] + rotate(there[1], position), quaternion_product(there[1], turn)
            position, turn = (
                jnp.where(hop >= 0, new, old)
                for new, old in zip(moved, (position, turn), strict=True)
            )
        return position, turn

    def frames(self, q: Config) -> Pose:
        """The frames of all bodies: origins `(b, 3)` and quaternions `(b, 4)`."""
        last = self.tree.tables.last
        position, turn = self._links(q)
        return Pose(position[:, last].T, turn[:, last].T)

    def placed(self, q: Config) -> "Placed":
        """Frames and motion vectors at a configuration, from which everything else follows."""
        tables = self.tree.tables
        position, turn = self._links(q)
        rotation = rotation_matrix(turn)
        link, joint = tables.link, tables.joint[tables.link]
        axes = jnp.where(tables.by_axis, _unit(self.axes.T)[:, joint], tables.unit.T)
        own = rotation[:, :, link]
        along = jnp.where(tables.in_world, tables.unit.T, weighted_sum(own, axes, axis=1))
        point = position[:, link] + weighted_sum(own, self.points.T[:, joint], axis=1)
        origin = position[:, tables.root]
        linear = jnp.where(tables.turns, cross(point - origin[:, link], along), along)
        angular = jnp.where(tables.turns, along, 0)
        last = tables.last
        rotation = rotation[:, :, last]
        middle = position[:, last] + weighted_sum(rotation, self.centres.T, axis=1)
        return Placed(
            position=position[:, last] - origin[:, last],
            rotation=rotation,
            middle=middle - origin[:, last],
            origin=origin[:, last],
            motion=jnp.concatenate([angular, linear]),
        )

    def jacobian(self, q: Config) -> Float[Array, "6*b n"]:
        """Velocities of all bodies per rate of a joint, six rows each.

        They are the velocity of the origin of the frame, world frame, and the angular velocity, frame of
        the body, as `v` of `NewtonEulerSystem`.
        """
        at, tables = self.placed(q), self.tree.tables
        angular, linear = at.motion[:3, None], at.motion[3:, None]
        moved = linear + cross(angular, at.position[:, :, None])
        turned = weighted_sum(jnp.swapaxes(at.rotation, 0, 1)[..., None], angular, axis=1)
        rows = jnp.where(tables.moves[tables.last], jnp.concatenate([moved, turned]), 0)
        return jnp.swapaxes(rows, 0, 1).reshape(-1, rows.shape[2])

    # Dynamics.

    def mass(self, t: Scalar, q: Config) -> Matrix:
        del t
        return _composite_mass(self, self.placed(q)) + jnp.diag(self._per_rate(self.armature))

    def inertia_force(self, t: Scalar, state: State) -> Vector:
        del t
        return -_bias(self, self.placed(state.q), state.v, jnp.zeros_like(self.gravity))

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        inner = -_bias(self, self.placed(state.q), state.v, self.gravity)
        return inner + self._passive(state) + self._driven(t, state, args)

    def applied(self, t: Scalar, state: State, args: Args) -> Vector:
        at = self.placed(state.q)
        weight = self.masses * self.gravity[:, None]
        gravity = _generalised(self, at, cross(at.middle, weight), weight)
        return gravity + self._passive(state) + self._driven(t, state, args)

    def _per_rate(self, x: Float[Array, " j"]) -> Vector:
        """A parameter of joints for each entry of `v`."""
        tables = self.tree.tables
        return x[tables.joint[tables.link]]

    def _deflection(self, q: Config) -> Vector:
        return self.group.log(self.group.compose(self.group.inverse(self.rest), q))

    def _passive(self, state: State) -> Vector:
        spring = self._per_rate(self.stiffness) * self._deflection(state.q)
        return -spring - self._per_rate(self.damping) * state.v

    def _driven(self, t: Scalar, state: State, args: Args) -> Vector:
        total = jnp.zeros_like(state.v)
        if self.forcing is not None:
            given = self.forcing(t, state, args)
            total = shaped("forcing(t, state, args)", given, total.shape, total.dtype)
        if self.wrench is not None:
            rows = self.jacobian(state.q)
            bodies = State(self.frames(state.q), rows @ state.v)
            wrench = self.wrench(t, bodies, args)
            shape = (len(self.masses), 6)
            given = shaped("wrench(t, state, args)", wrench, shape, total.dtype)
            total = total + given.reshape(-1) @ rows
        return total

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Potential energy of gravity and of the springs [J]."""
        del t
        at = self.placed(q)
        height = dot(self.gravity[:, None], at.middle + at.origin)
        spring = self._per_rate(self.stiffness) * self._deflection(q) ** 2
        return jnp.sum(spring) / 2 - jnp.sum(self.masses * height)

    def check(self, q: Config | None = None) -> str | None:
        masses, inertia, orientations = concrete((self.masses, self.inertia, self.orientations))
        if not is_traced(masses) and not np.all(np.isfinite(masses) & (np.asarray(masses) >= 0)):
            return f"masses must not be negative, got {np.asarray(masses).tolist()}"
        for i, matrix in enumerate(() if is_traced(inertia) else np.asarray(inertia)):
            if not np.all(np.isfinite(matrix)) or not np.allclose(matrix, matrix.T):
                return f"the inertia of body {i} is not finite and symmetric: {matrix.tolist()}"
            moments = np.linalg.eigvalsh(matrix)
            if moments[0] < -1e-9 * moments[2] or moments[0] + moments[1] < moments[2] * (1 - 1e-6):
                return f"the inertia of body {i} is not that of a body: principal moments {moments.tolist()}"
        for i, turn in enumerate(() if is_traced(orientations) else np.asarray(orientations)):
            if abs(np.linalg.norm(turn) - 1) > 1e-5:
                return f"the orientation of body {i} has the norm {np.linalg.norm(turn):g}, not 1"
        if q is None or is_traced(q):
            return None
        mass = concrete(self.mass(jnp.zeros((), q.dtype), q))
        problem = positive_definite("the mass matrix of the joints at the initial configuration", mass)
        if problem is None:
            return None
        return f"{problem}: a joint moves no mass; give its bodies mass and inertia, or an armature"


class Placed(NamedTuple):
    """A `Multibody` at a configuration; positions are relative to the origin of the tree, world directions.

    **Arguments:** `position (3, b)`, `rotation (3, 3, b)`: frames of the bodies; `middle (3, b)`: their centres
    of mass; `origin (3, b)`: origin of their tree; `motion (6, n)`: angular and linear velocity, at the
    origin of the tree, for each entry of `v`.
    """

    position: Array
    rotation: Array
    middle: Array
    origin: Array
    motion: Array


def _unit(axes: Array) -> Array:
    """Unit vectors `(3, j)`; zero for joints without an axis."""
    square = dot(axes, axes)
    return jnp.where(square > 0, axes / jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def _local(system: Multibody, q: Config) -> tuple[Array, Array]:
    """Positions `(3, l)` and quaternions `(4, l)` of all links in the frames of their parents."""
    tables = system.tree.tables
    alone = np.array([k.coordinates == 1 for k in tables.kind])
    slides = np.array([k.slides for k in tables.kind])
    free = np.array([k.moves_freely for k in tables.kind])
    joint = np.maximum(tables.joint, 0)
    none, upright = np.zeros((3, 1), q.dtype), np.array([[1.0], [0], [0], [0]], q.dtype)
    begins = tables.first & ~free
    position = jnp.where(begins, system.positions.T[:, tables.body], none)
    rotation = jnp.where(begins, system.orientations.T[:, tables.body], upright)
    if len(system.axes) == 0:
        return position, rotation

    where = np.where(alone, tables.q_start[joint], 0)
    amount = jnp.where(alone, q[where] - system.reference[joint], 0)
    axis, point = _unit(system.axes.T)[:, joint], system.points.T[:, joint]
    half = jnp.where(slides, 0, amount) / 2
    turn = jnp.concatenate([jnp.cos(half)[None], jnp.sin(half)[None] * axis])
    turning = np.array([i for i, k in enumerate(tables.kind) if k.coordinates >= 4], np.int32)
    if len(turning):
        ends = tables.q_start[joint[turning]] + [tables.kind[i].coordinates for i in turning]
        given = q[(ends[:, None] + np.arange(-4, 0)).astype(np.int32)].T
        turn = turn.at[:, turning].set(given)
    shift = point - rotate(turn, point) + jnp.where(slides, amount, 0) * axis
    if np.any(free):
        starts = tables.q_start[joint[free]]
        shift = shift.at[:, np.flatnonzero(free)].set(q[starts[:, None] + np.arange(3)].T)
    return position + rotate(rotation, shift), quaternion_product(rotation, turn)


def _generalised(system: Multibody, at: Placed, torque: Array, force: Array) -> Vector:
    """Generalised forces of torques about the origin of the tree and forces on bodies, `(3, b)`."""
    tables = system.tree.tables
    total = jnp.concatenate([torque, force]) @ tables.moves[tables.last].astype(force.dtype)
    return dot(at.motion, total)


def _inertia_in_world(system: Multibody, at: Placed) -> Array:
    """Inertias about the centres of mass, `(3, 3, b)`."""
    half = jnp.einsum("ijb,bjk->ikb", at.rotation, system.inertia)
    return jnp.einsum("ikb,jkb->ijb", half, at.rotation)


def _composite_mass(system: Multibody, at: Placed) -> Matrix:
    """`M_jk = s_j · I_j s_k`, with the inertia `I_j` of all that entry j moves, for k on the way to the root."""
    tables, m, c = system.tree.tables, system.masses, at.middle
    unit = np.eye(3, dtype=m.dtype)[:, :, None]
    about = _inertia_in_world(system, at) + m * (dot(c, c) * unit - c[:, None] * c[None])
    parts = jnp.concatenate([m[None], m * c, about.reshape(9, -1)])
    parts = parts @ tables.moves[tables.last].astype(m.dtype)
    mass, first, second = parts[0], parts[1:4], parts[4:].reshape(3, 3, -1)
    angular, linear = at.motion[:3], at.motion[3:]
    momentum = mass * linear + cross(angular, first)
    spin = weighted_sum(second, angular, axis=1) + cross(first, linear)
    rows = jnp.concatenate([spin, momentum]).T @ at.motion
    lower = tables.moves[tables.link] & np.tri(len(tables.link), dtype=bool)
    below = jnp.where(lower, rows, 0)
    return below + jnp.where(np.eye(len(tables.link), dtype=bool), 0, below).T


def _bias(system: Multibody, at: Placed, v: Vector, gravity: Array) -> Vector:
    """The generalised force that keeps `v` constant, by the recursive Newton-Euler equations."""
    tables, m, c = system.tree.tables, system.masses, at.middle
    moves = tables.moves.T.astype(v.dtype)
    twist = (at.motion * v) @ moves
    own = twist[:, tables.link]
    changing = jnp.concatenate(
        [
            cross(own[:3], at.motion[:3]),
            cross(own[:3], at.motion[3:]) + cross(own[3:], at.motion[:3]),
        ]
    )
    rates = jnp.where(tables.in_world, 0, changing * v) @ moves
    last = tables.last
    omega, speed = twist[:3, last], twist[3:, last]
    alpha, acceleration = rates[:3, last], rates[3:, last] - gravity[:, None]
    inertia = _inertia_in_world(system, at)
    momentum = m * (speed + cross(omega, c))
    spin = weighted_sum(inertia, omega, axis=1) + cross(c, momentum)
    push = m * (acceleration + cross(alpha, c))
    force = push + cross(omega, momentum)
    torque = weighted_sum(inertia, alpha, axis=1) + cross(c, push)
    torque = torque + cross(omega, spin) + cross(speed, momentum)
    return _generalised(system, at, torque, force)
