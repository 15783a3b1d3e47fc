"""The elements of a file, and the model that they make."""

import difflib
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import shapes
from .._types import State
from ..groups import Euclidean, JointSpace, rotation_matrix
from ..laws import Complementarity, DryFriction, Equality, NewtonImpact
from ..model import Interaction, Model
from ..relations import (
    Coordinates as Entries,
    FirstOrderLinear,
    GapRelation,
    Geom,
    Joint,
    JointLimits,
    OnPart,
    PrescribedVelocity,
    RateRelation,
)
from ..sensors import Sensors
from ..systems import (
    Ball,
    Body,
    FirstOrderSystem,
    Free,
    Hinge,
    Multibody,
    Slide,
    SystemProduct,
)
from ._contacts import contacts
from ._forces import Activated, Actuators, Total
from ._lengths import (
    AbstractPath,
    BallLimit,
    Coordinates,
    Coupled,
    JointPath,
    SitePath,
    TendonLength,
    TendonSprings,
)
from ._passive import wrench_of
from ._plan import Plan
from ._read import (
    BALL,
    BOX,
    CAPSULE,
    CONNECT,
    CYLINDER,
    ELLIPSOID,
    FREE,
    INTEGRATOR,
    JOINT,
    PLANE,
    SLIDE,
    SPHERE,
    TENDON,
    WELD,
)
from ._sensors import sensors_of
from ._wrapping import WrappedPath

RATES = (6, 3, 1, 1)
KINDS = (Free, Ball, Slide, Hinge)
SHAPES: dict[int, Callable] = {
    PLANE: lambda size: shapes.HalfSpace(),
    SPHERE: lambda size: shapes.Sphere(size[0]),
    CAPSULE: lambda size: shapes.Capsule(size[0], size[1]),
    ELLIPSOID: shapes.Ellipsoid,
    CYLINDER: lambda size: shapes.Cylinder(size[0], size[1]),
    BOX: shapes.Box,
}


class Elements(eqx.Module):
    """The numbers of a file by the names of its elements, `elements["geom/floor/friction"]`.

    They are leaves, so that parameters of a file are identified by its own words:

        params, rebuild = identification.parameters(
            elements, lambda e: {"mu": e["geom/floor/friction"]}, {"mu": (0, None)}
        )
        model = rebuild(params).model()

    Names are those of MJCF: `body/NAME/mass`, `inertia`, `ipos`, `iquat`, `pos`, `quat`;
    `joint/NAME/damping`, `stiffness`, `armature`, `frictionloss`, `range`, `axis`, `pos`, ...;
    `geom/NAME/size`, `pos`, `quat`, `friction` (of sliding), and with condim 4 or 6 in the file `spin` and
    `roll` (its second and third coefficients [m]); `site/NAME/pos`, `quat`, `size`; `tendon/...`;
    `actuator/NAME/gear`, `gainprm`, `dynprm` (the time constant), ...; `option/gravity`; and
    `contact/restitution`, which MJCF does not have. An element without a name has its number. Masses,
    inertias and the lengths of relaxed springs are numbers of their own: they do not follow the sizes of
    geoms or the places of sites.

    **Arguments:**

    - `values`: the numbers. `law`, `max_active`, `near`: of the contacts between geoms, see `load_mjcf`.
    - `plan`: the elements, by name, and how they are connected. `report`: what in the file has no
      counterpart, a sentence each. `timestep`: of the file [s].
    - `hulls`: of meshes, and terrain, by the names of their geoms. `keyframes`: `(q, v, activations,
      controls)` by name.
    """

    values: dict[str, Array]
    hulls: dict[str, shapes.AbstractShape]
    keyframes: dict[str, tuple[Array, Array, Array, Array]]
    plan: Plan = eqx.field(static=True)
    law: Callable = eqx.field(static=True)
    max_active: int | None = eqx.field(static=True)
    near: int | None = eqx.field(static=True)
    report: tuple[str, ...] = eqx.field(static=True)
    timestep: float = eqx.field(static=True)

    def __getitem__(self, name: str) -> Array:
        if name in self.values:
            return self.values[name]
        near = difflib.get_close_matches(name, self.values, n=8, cutoff=0.0)
        more = f" and {len(self.values) - len(near)} more" * (len(self.values) > len(near))
        raise KeyError(f"the file has no {name}; it has {', '.join(near)}{more}.")

    def _stack(self, names: list[str], key: str) -> Array:
        return jnp.stack([self[f"{name}/{key}"] for name in names])

    def model(self) -> Model:
        """The model with these numbers."""
        tree = self.tree()
        system, interactions = self._system(tree), tuple(self._interactions(tree))
        if not self.plan.activations:
            return Model(system, interactions)
        placed = (
            eqx.tree_at(lambda i: i.relation, i, OnPart(system, 0, i.relation))
            for i in interactions
        )
        return Model(system, (*placed, *self._activation_limits(system)))

    def system(self) -> Multibody | SystemProduct:
        """The tree of bodies with its actuators, tendons and drag; a product with activations, if any."""
        return self._system(self.tree())

    def state(self, q=None, v=None, activations=None) -> State:
        """A state of the model, by default at the reference, at rest, with activations 0.

        **Arguments:** `q (q,)`, `v (n,)`: of the joints; `activations (na,)`: in the order of the actuators.
        """
        tree, count = self.tree(), len(self.plan.activations)
        if not count:
            return tree.state(q, v)
        filters = self._filters()
        activations = jnp.zeros(count) if activations is None else activations
        return SystemProduct((tree, filters)).state(tree.state(q, v), filters.state(activations))

    def split(self, state: State) -> tuple[State, Array]:
        """The state of the bodies, and the activations `(na,)`; a leading time axis is kept."""
        if not self.plan.activations:
            return state, state.v[..., :0]
        bodies, filters = SystemProduct((self.tree(), self._filters())).split(state)
        return bodies, filters.v

    def sensors(self) -> Sensors:
        """The sensors of the file, `elements.sensors()["gyro"]`; those without a name have numbers.

        `report` lists those that are not read. Delays, noise and cutoffs are not part of them.
        """
        return sensors_of(self, SHAPES)

    # The tree of bodies and the forces on it.

    def tree(self, forcing: Callable | None = None, wrench: Callable | None = None) -> Multibody:
        """The tree of bodies alone, without actuators, tendons and drag."""
        bodies = [self._body(i) for i in range(len(self.plan.bodies))]
        return Multibody(bodies, self["option/gravity"], forcing, wrench)

    def _system(self, tree: Multibody) -> Multibody | SystemProduct:
        activated, parts = self.plan.activations, []
        if self.plan.actuators and not activated:
            parts.append(self.actuation(tree))
        if self.plan.tendons:
            parts.append(self._tendon_springs(tree))
        forcing = None if not parts else parts[0] if len(parts) == 1 else Total(tuple(parts))
        bodies = self.tree(forcing, wrench_of(self))
        if not activated:
            return bodies
        return SystemProduct((bodies, self._filters()), self.actuation(tree))

    def _body(self, index: int) -> Body:
        name, parent = self.plan.bodies[index]
        joints = [self._joint(j) for j in self.plan.joints if j[1] == index]
        turn = rotation_matrix(self[f"{name}/iquat"])
        return Body(
            self[f"{name}/mass"],
            (turn * self[f"{name}/inertia"][None]) @ turn.T,
            joints,
            parent,
            position=self[f"{name}/pos"],
            orientation=self[f"{name}/quat"],
            centre=self[f"{name}/ipos"],
        )

    def _joint(self, joint: tuple):
        name, _, kind, _, _ = joint
        options = {key: self[f"{name}/{key}"] for key in ("stiffness", "damping", "armature")}
        if kind not in (FREE, SLIDE):
            options["point"] = self[f"{name}/pos"]
        if kind not in (FREE, BALL):
            options |= {"axis": self[f"{name}/axis"], "reference": self[f"{name}/ref"]}
            options["rest"] = self[f"{name}/springref"]
        return KINDS[kind](**options)

    @property
    def _places(self) -> tuple[int, ...]:
        """Where the angle or displacement of each entry of `v` is in `q`, −1 for other entries."""
        joints = ((-1 if k in (FREE, BALL) else q, RATES[k]) for _, _, k, q, _ in self.plan.joints)
        return tuple(place for place, count in joints for _ in range(count))

    def _coordinates(self) -> Coordinates:
        free, turning = [], []
        for _, _, kind, _, at in self.plan.joints:
            free += [kind == FREE] * RATES[kind]
            turning += [at + 3] if kind == FREE else [at] if kind == BALL else []
        n = len(free)
        group = JointSpace(n, tuple(turning)) if turning else Euclidean(n)
        return Coordinates(group, tuple(free), self._places)

    def _along_joint(self, joint: int, gear: Array) -> Array:
        """A row of a transmission: the first entries of `gear` at the place of a joint."""
        _, _, kind, _, at = self.plan.joints[joint]
        n = sum(RATES[kind] for _, _, kind, _, _ in self.plan.joints)
        return jnp.zeros(n).at[at : at + RATES[kind]].set(gear[: RATES[kind]])

    def _actuators(self, tree: Multibody) -> Actuators:
        names = [name for name, _, _ in self.plan.actuators]
        used = sorted({which for _, kind, which in self.plan.actuators if kind == TENDON})
        n, k = tree.velocities, len(used)
        direct, along = [], []
        for name, kind, which in self.plan.actuators:
            gear, of_tendon = self[f"{name}/gear"], kind == TENDON
            row = jnp.zeros(k).at[used.index(which)].set(gear[0]) if of_tendon else jnp.zeros(k)
            along.append(row)
            direct.append(jnp.zeros(n) if of_tendon else self._along_joint(which, gear))
        totals = [
            self[f"{name}/actuatorfrcrange"]
            for name, _, kind, _, _ in self.plan.joints
            for _ in range(RATES[kind])
        ]
        return Actuators(
            self._coordinates(),
            jnp.stack(direct),
            self.tendon_length(tree, used),
            jnp.stack(along),
            gain=self._stack(names, "gainprm"),
            bias=self._stack(names, "biasprm"),
            controls=self._stack(names, "ctrlrange"),
            forces=self._stack(names, "forcerange"),
            totals=jnp.stack(totals),
        )

    def actuation(self, tree: Multibody) -> Actuators | Activated:
        """The actuators of the file: a generalised force, or the coupling with their activations."""
        actuators, names = self._actuators(tree), [name for name, _, _ in self.plan.actuators]
        which = tuple(names.index(name) for name, *_ in self.plan.activations)
        return Activated(actuators, which) if which else actuators

    def _filters(self) -> FirstOrderSystem:
        """`tau act' = −act`, or `act' = 0`, to which the controls are added."""
        rows = self.plan.activations
        one = jnp.ones(())
        times = [one if kind == INTEGRATOR else self[f"{name}/dynprm"] for name, kind, *_ in rows]
        decays = jnp.array([0.0 if kind == INTEGRATOR else -1.0 for _, kind, *_ in rows])
        return FirstOrderSystem.linear(jnp.diag(decays), E=jnp.diag(jnp.stack(times)))

    def _activation_limits(self, system: Multibody | SystemProduct):
        """Activations stop at their limits, the states of first order that a stop holds."""
        rows = [i for i, (*_, limited) in enumerate(self.plan.activations) if limited]
        if rows:
            ranges = self._stack([self.plan.activations[i][0] for i in rows], "actrange")
            own = jnp.eye(len(self.plan.activations))[np.array(rows)]
            signs = jnp.concatenate([own, -own])
            beyond = jnp.concatenate([-ranges[:, 0], ranges[:, 1]])
            relation = FirstOrderLinear(signs, signs.T, e=beyond)
            yield Interaction(OnPart(system, 1, relation), Complementarity())

    def tendon_length(self, tree: Multibody, which: list[int]) -> TendonLength:
        """The lengths of some of the tendons."""
        rows, count = jnp.zeros((len(which), tree.velocities)), len(which)
        segments, wrapped = list[tuple](), list[tuple]()
        for row, k in enumerate(which):
            _, joints, straight, around = self.plan.tendons[k]
            for j, c in joints:
                rows = rows.at[row, self.plan.joints[j][4]].add(c)
            segments += [(row, *piece) for piece in straight]
            wrapped += [(row, *piece) for piece in around]
        paths: list[AbstractPath] = [JointPath(rows, self._places)]
        if segments:
            ends, points, body = self._sites({i for s in segments for i in s[1:3]})
            listed = tuple((k, ends[a], ends[b], d) for k, a, b, d in segments)
            paths.append(SitePath(tree, points, body, listed, count))
        if wrapped:
            needed = {i for s in wrapped for i in (*s[1:3], s[5]) if i >= 0}
            ends, points, body = self._sites(needed)
            listed = tuple(
                (k, ends[a], ends[b], d, ends.get(s, -1)) for k, a, b, d, _, s in wrapped
            )
            names, kinds, holders = zip(*(self.plan.geoms[s[4]] for s in wrapped), strict=True)
            sizes = jnp.stack([self[f"{name}/size"][0] for name in names])
            places = self._stack(list(names), "pos"), self._stack(list(names), "quat"), sizes
            balls = tuple(kind == SPHERE for kind in kinds)
            paths.append(WrappedPath(tree, points, *places, body, holders, balls, listed, count))
        return TendonLength(tuple(paths), tree.group, count)

    def _sites(self, which: set[int]) -> tuple[dict[int, int], Array, tuple[int | None, ...]]:
        """Of some sites: their places in the list, their points, and their bodies."""
        listed = sorted(which)
        points = self._stack([self.plan.sites[i][0] for i in listed], "pos")
        return (
            dict(zip(listed, range(len(listed)), strict=True)),
            points,
            tuple(self.plan.sites[i][1] for i in listed),
        )

    def _tendon_springs(self, tree: Multibody) -> TendonSprings:
        names = [name for name, *_ in self.plan.tendons]
        relaxed = self._stack(names, "springlength")
        resistance = self._stack(names, "stiffness"), self._stack(names, "damping")
        lengths = self.tendon_length(tree, list(range(len(names))))
        return TendonSprings(lengths, *resistance, relaxed)

    # What acts between bodies, and in joints.

    def _interactions(self, tree: Multibody):
        yield from contacts(self)
        yield from self._limits(tree)
        yield from self._dry_friction(tree)
        yield from (self._equality(tree, *equality) for equality in self.plan.equalities)

    def geom(self, index: int) -> Geom:
        """A geom of the file, placed on its body."""
        name, kind, body = self.plan.geoms[index]
        shape = self.hulls[name] if name in self.hulls else SHAPES[kind](self[f"{name}/size"])
        return Geom(shape, body, self[f"{name}/pos"], self[f"{name}/quat"], name)

    def _limits(self, tree: Multibody):
        law = NewtonImpact(self["contact/restitution"])
        limited = [j for j in self.plan.joints if j[0] in self.plan.limited]
        scalar = [j for j in limited if j[2] not in (FREE, BALL)]
        if scalar:
            ranges = self._stack([j[0] for j in scalar], "range")
            where = Entries([j[3] for j in scalar])
            yield Interaction(GapRelation(JointLimits(where, ranges[:, 0], ranges[:, 1])), law)
        for name, _, _, at, _ in (j for j in limited if j[2] == BALL):
            yield Interaction(GapRelation(BallLimit(self[f"{name}/range"][1], at)), law)
        tendons = [k for k, (name, *_) in enumerate(self.plan.tendons) if name in self.plan.limited]
        if tendons:
            ranges = self._stack([self.plan.tendons[k][0] for k in tendons], "range")
            limits = JointLimits(self.tendon_length(tree, tendons), ranges[:, 0], ranges[:, 1])
            yield Interaction(GapRelation(limits), law)

    def _dry_friction(self, tree: Multibody):
        joints = [j for j in self.plan.joints if j[0] in self.plan.rubbing]
        if joints:
            rows = [(j[0], j[4] + i) for j in joints for i in range(RATES[j[2]])]
            limit = self._stack([name for name, _ in rows], "frictionloss")
            yield Interaction(PrescribedVelocity([at for _, at in rows]), DryFriction(limit))
        tendons = [k for k, (name, *_) in enumerate(self.plan.tendons) if name in self.plan.rubbing]
        if tendons:
            limit = self._stack([self.plan.tendons[k][0] for k in tendons], "frictionloss")
            yield Interaction(RateRelation(self.tendon_length(tree, tendons)), DryFriction(limit))

    def _equality(self, tree: Multibody, name: str, kind: int, one: int, two: int) -> Interaction:
        data = self[f"{name}/data"]
        if kind in (CONNECT, WELD):
            # MuJoCo numbers the world as body 0.
            bodies = tuple(None if b == 0 else b - 1 for b in (one, two))
            eye = jnp.eye(3)
            if kind == CONNECT:
                ends = data[0:3], eye, data[3:6], eye
            else:
                turn = rotation_matrix(data[6:10])
                ends = data[3:6], turn, data[0:3], eye
            turns = () if kind == CONNECT else (0, 1, 2)
            if bodies[0] is None:
                bodies, ends = bodies[::-1], (*ends[2:], *ends[:2])
            return Interaction(GapRelation(Joint(*ends, (0, 1, 2), turns, *bodies)), Equality())
        coordinates = [self._coordinate(tree, k, kind != JOINT) for k in (one, two) if k >= 0]
        reference = tree.state().q
        starts = jnp.concatenate([x(jnp.zeros(()), reference) for x in coordinates])
        coupled = Coupled(data, starts, tuple(coordinates))
        return Interaction(GapRelation(coupled), Equality())

    def _coordinate(self, tree: Multibody, which: int, is_tendon: bool) -> Callable:
        """The coordinate of a joint, or the length of a tendon, as a function of `(t, q)`."""
        if is_tendon:
            return self.tendon_length(tree, [which])
        return Entries(self.plan.joints[which][3])
