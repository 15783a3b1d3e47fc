"""Trees of bodies in joint coordinates."""

from collections.abc import Callable, Sequence
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._jax import concrete, entries_at, eval_now, is_traced
from ..._numerics import as_float, cross, dot
from ..._types import Args, Config, Matrix, Scalar, State, Vector
from ...groups import (
    AbstractGroup,
    Euclidean,
    JointSpace,
    Pose,
)
from .._base import AbstractSystem, positive_definite, shaped
from ._joints import Body
from ._tree import Topology, topology
from ._tree_dynamics import (
    Links,
    Placed,
    bias,
    body_jacobian,
    composite_mass,
    generalised,
    joint_rows,
    momenta,
    tree_pass,
)


class Multibody(AbstractSystem):
    """A tree of bodies with free, ball, hinge, slide and fixed joints, in joint coordinates:

        M(q) v' = −c(q, v) − D v − K log(q_rest^-1 q) + forcing + J^T wrench

    with the composite inertias `M`, and the Coriolis, gyroscopic and gravity forces `c`. `q (q,)` holds the
    coordinates of all joints in the order of the bodies: an angle, a displacement, a quaternion, or a
    position and a quaternion; `v (n,)` their rates, see the joints for their frames. Both are in the order
    of `qpos` and `qvel` of MuJoCo.

    Methods that linearise their step once (`MoreauJean()`) use `M`, springs, dampers and `forcing` for it
    and predict the velocity of the end, see `linear_step`: a step then costs a tenth, and keeps its order
    where no contact or friction acts. Where one does it has first order: two links with dry friction in their
    joints are off by 6e-4 after 100 steps of 0.5 ms. `newton=Newton(10)` solves the implicit equations, and
    keeps second order, 6e-5. With joints that close loops, and with `contacts_at=HalfExplicit()`, methods of
    second order take derivatives of the equations anyway.

    Contacts and joints (`BodyPointsPlane`, `sphere_on_plane`, `hinge`, ...) are stated as for free bodies,
    with the index of a body; points are given in the frame of the body, whose origin need not be the centre
    of mass: spheres have their centres there. A loop is closed by such a joint with the law `Equality`.
    Functions of one's own, in `GapRelation` and the like, read `q`; there a joint between bodies is
    `joint(t, system.frames(q))`.

    **Arguments:**

    - `bodies`: a sequence of `Body`, each after its parent.
    - `gravity`: [m/s²], world frame, `(3,)`.
    - `forcing`: `forcing(t, state, args) -> (n,)`: generalised force, or `None`. Where it has a method
      `potential(t, q)` [J], the potential energy contains that.
    - `wrench`: `wrench(t, state, args) -> (b, 6)`: force at the origin of the frame of every body [N], world
      frame, and torque [N m], frame of the body; `state` has the `Pose` of the bodies and their velocities,
      `(6 b,)`. Or `None`.

    The parameters are `masses (b,)`, `inertia (b, 3, 3)`, `centres (b, 3)`, `positions (b, 3)`,
    `orientations (b, 4)`; `axes (j, 3)`, `points (j, 3)`, `stiffness`, `damping`, `armature`,
    `reference (j,)`, `rest (q,)`; see `Body` and `AbstractTreeJoint`.

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
        bodies: Body | Sequence[Body],
        gravity=(0.0, 0.0, -9.81),
        forcing: Annotated[Callable, "(t, state, args)"] | None = None,
        wrench: Annotated[Callable, "(t, state, args)"] | None = None,
    ):
        bodies = (bodies,) if isinstance(bodies, Body) else tuple(bodies)
        if wrong := [b for b in bodies if not isinstance(b, Body)]:
            raise ValueError(f"bodies must be a sequence of Body, got {wrong[0]!r}.")
        if not any(joint.rates for body in bodies for joint in body.joints):
            raise ValueError(
                "bodies must be at least one Body with a joint that moves, such as "
                "Body(mass, inertia, Hinge(axis))."
            )
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
        free = [eval_now(lambda *x: jnp.concatenate(x), b.position, b.orientation) for b in bodies]
        rests = [
            free[i] if j.rest is None else j.rest for i, b in enumerate(bodies) for j in b.joints
        ]
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

    @property
    def has_joints(self) -> bool:
        return True

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

    def frames(self, q: Config) -> Pose:
        """The frames of all bodies: origins `(b, 3)` and quaternions `(b, 4)`.

        **Raises:** `ValueError` if `q` has another shape.
        """
        if np.shape(q) != self.rest.shape:
            raise ValueError(f"q must have shape {self.rest.shape}, got {np.shape(q)}.")
        return self._poses(self._pass(q)[0])

    def _poses(self, links: Links) -> Pose:
        last = self.tree.tables.last
        return Pose(entries_at(links.position, last, 1).T, entries_at(links.turn, last, 1).T)

    def placed(self, q: Config) -> Placed:
        """Frames and motion vectors at a configuration, from which everything else follows."""
        return self._pass(q)[1]

    def _pass(self, q: Config) -> tuple[Links, Placed]:
        """The pass over the tree; a step that needs it several times traces and differentiates it once."""
        own = eqx.tree_at(
            lambda s: (s.forcing, s.wrench), self, (None, None), is_leaf=lambda x: x is None
        )
        return tree_pass(own, q)

    def jacobian(self, q: Config) -> Float[Array, "6*b n"]:
        """Velocities of all bodies per rate of a joint, six rows each.

        They are the velocity of the origin of the frame, world frame, and the angular velocity, frame of
        the body, as `v` of `NewtonEulerSystem`.
        """
        return self.moving_frames(q)[1]

    def moving_frames(self, q: Config) -> tuple[Pose, Float[Array, "6*b n"]]:
        """`frames(q)` and `jacobian(q)` in one pass over the tree."""
        links, at = self._pass(q)
        return self._poses(links), body_jacobian(self, at)

    def moving_rows(self, q: Config) -> tuple[Pose, Callable]:
        """`frames(q)`, and the function from rows on the velocities of bodies to rows on `v`, `H J`."""
        links, at = self._pass(q)
        return self._poses(links), lambda rows: joint_rows(self, at, rows)

    def bodies(self, state: State) -> State:
        """The frames of all bodies and their velocities `(6 b,)`, as those of a `NewtonEulerSystem`."""
        poses, rows = self.moving_frames(state.q)
        return State(poses, rows @ state.v)

    # Dynamics.

    def mass(self, t: Scalar, q: Config) -> Matrix:
        del t
        return composite_mass(self, self.placed(q)) + jnp.diag(self._per_rate(self.armature))

    def momentum(self, t: Scalar, state: State) -> Vector:
        del t
        at = self.placed(state.q)
        twist = (at.motion * state.v[None]) @ self.tree.tables.moves[
            self.tree.tables.last
        ].T.astype(state.v.dtype)
        spin, momentum = momenta(self, at, twist)
        own = generalised(self, at, spin, momentum)
        return own + self._per_rate(self.armature) * state.v

    def inertia_force(self, t: Scalar, state: State) -> Vector:
        del t
        return -bias(self, self.placed(state.q), state.v, jnp.zeros_like(self.gravity))

    def force(self, t: Scalar, state: State, args: Args) -> Vector:
        inner = -bias(self, self.placed(state.q), state.v, self.gravity)
        return inner + self._passive(state) + self._driven(t, state, args)

    def applied(self, t: Scalar, state: State, args: Args) -> Vector:
        at = self.placed(state.q)
        weight = self.masses[None] * self.gravity[:, None]
        gravity = generalised(self, at, cross(at.middle, weight), weight)
        return gravity + self._passive(state) + self._driven(t, state, args)

    def _per_rate(self, x: Float[Array, " j"]) -> Vector:
        """A parameter of joints for each entry of `v`."""
        tables = self.tree.tables
        return entries_at(x, tables.joint[tables.link])

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
            poses, rows = self.moving_frames(state.q)
            bodies = State(poses, rows @ state.v)
            wrench = self.wrench(t, bodies, args)
            shape = (len(self.masses), 6)
            given = shaped("wrench(t, state, args)", wrench, shape, total.dtype)
            total = total + given.reshape(-1) @ rows
        return total

    def linear_step(
        self, t: Scalar, state: State, args: Args, h: Scalar
    ) -> tuple[Matrix, Vector] | None:
        """Inertia, springs and dampers, and `forcing` by its derivatives; without Coriolis forces."""
        if self.wrench is not None:
            return None
        at = self.placed(state.q)
        own = self._per_rate(self.armature + self.damping * h + self.stiffness * h * h)
        matrix = composite_mass(self, at) + jnp.diag(own)
        force = self._passive(state) - bias(self, at, state.v, self.gravity)
        if self.forcing is None:
            return matrix, force

        def driven(step):
            q = self.group.compose(state.q, self.group.exp(h * step))
            total = self._driven(t, State(q, state.v + step), args)
            return total, total

        slope, now = jax.jacfwd(driven, has_aux=True)(jnp.zeros_like(state.v))
        return matrix - h * slope, force + now

    def potential(self, t: Scalar, q: Config) -> Scalar:
        """Potential energy of gravity, of springs, and of `forcing` if it has a `potential(t, q)` [J]."""
        at = self.placed(q)
        height = dot(self.gravity[:, None], at.middle + at.origin)
        spring = self._per_rate(self.stiffness) * self._deflection(q) ** 2
        own = jnp.sum(spring) / 2 - jnp.sum(self.masses * height)
        further = getattr(self.forcing, "potential", None)
        return own if further is None else own + further(t, q)

    def check(self, q: Config | None = None) -> str | None:
        known = concrete(self)
        for name in NUMBERS:
            value = getattr(known, name)
            if is_traced(value):
                continue
            if not np.all(np.isfinite(value)):
                return f"{name} has entries that are not finite: {np.asarray(value).tolist()}"
            if name in POSITIVE and np.any(np.asarray(value) < 0):
                return f"{name} must not be negative, got {np.asarray(value).tolist()}"
        for i, matrix in enumerate(() if is_traced(known.inertia) else known.inertia):
            if problem := _not_of_a_body(np.asarray(matrix)):
                return f"the inertia of body {i} {problem}"
        for i, turn in enumerate(() if is_traced(known.orientations) else known.orientations):
            norm = np.linalg.norm(turn)
            if abs(norm - 1) > 1e-5:
                return f"the orientation of body {i} has the norm {norm:g}, not 1"
        if not is_traced(known.rest) and (problem := self.group.check(known.rest)):
            return f"rest: {problem}"
        if q is None or is_traced(q):
            return None
        mass = concrete(self.mass(jnp.zeros((), q.dtype), q))
        problem = positive_definite(
            "the mass matrix of the joints at the initial configuration", mass
        )
        if problem is None:
            return None
        return f"{problem}: a joint moves no mass; give its bodies mass and inertia, or an armature"


NUMBERS = (
    *("masses", "inertia", "centres", "positions", "orientations", "axes", "points"),
    *("stiffness", "damping", "armature", "reference", "rest", "gravity"),
)
POSITIVE = ("masses", "stiffness", "damping", "armature")


def _not_of_a_body(inertia: np.ndarray) -> str | None:
    """Why no body has this inertia, or `None`; thin rods and points have principal moments of zero."""
    eps = 64 * float(np.finfo(inertia.dtype).eps)
    inertia = inertia.astype(float)
    size = float(np.max(np.abs(inertia)))
    if not np.allclose(inertia, inertia.T, rtol=0, atol=max(eps, 1e-9) * size):
        return f"is not symmetric: {inertia.tolist()}"
    moments = np.linalg.eigvalsh(inertia)
    if moments[0] < -eps * size or moments[0] + moments[1] < moments[2] - max(eps, 1e-6) * size:
        return f"is not that of a body: principal moments {moments.tolist()}"
    return None
