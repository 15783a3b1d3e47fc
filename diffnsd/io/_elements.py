"""The elements of a file, and the model that they make."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import shapes
from .._jax import eval_now
from .._numerics import safe_norm
from ..groups import Euclidean, JointSpace, rotation_matrix
from ..laws import DryFriction, Equality, NewtonImpact
from ..model import Interaction, Model
from ..relations import (
    Coordinates as Entries,
    GapRelation,
    Geom,
    Joint,
    JointLimits,
    PrescribedVelocity,
    RateRelation,
    shape_contacts,
)
from ..systems import Ball, Body, Free, Hinge, Multibody, Slide
from ._forces import Actuators, Coordinates, Fluid, TendonLength, TendonSprings, Total, equal_box
from ._plan import Plan
from ._read import (
    BALL,
    BOX,
    CAPSULE,
    CONNECT,
    CYLINDER,
    ELLIPSOID,
    FREE,
    JOINT,
    PLANE,
    SLIDE,
    SPHERE,
    WELD,
)

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
    `geom/NAME/size`, `pos`, `quat`, `friction` (of sliding); `tendon/...`; `actuator/NAME/gear`,
    `gainprm`, ...; `option/gravity`; and `contact/restitution`, which MJCF does not have. An element without
    a name has its number. Masses and inertias are numbers of their own: they do not follow the sizes of
    geoms.

    **Arguments:**

    - `values`: the numbers. `law`, `max_active`: of the contacts between geoms, see `load_mjcf`.
    - `plan`: the elements, by name, and how they are connected. `report`: what in the file has no
      counterpart, a sentence each. `timestep`: of the file [s].
    - `hulls`: of meshes, and terrain, by the names of their geoms. `keyframes`: `(q, v, controls)` by name.
    """

    values: dict[str, Array]
    hulls: dict[str, shapes.AbstractShape]
    keyframes: dict[str, tuple[Array, Array, Array]]
    plan: Plan = eqx.field(static=True)
    law: Callable = eqx.field(static=True)
    max_active: int | None = eqx.field(static=True)
    report: tuple[str, ...] = eqx.field(static=True)
    timestep: float = eqx.field(static=True)

    def __getitem__(self, name: str) -> Array:
        if name in self.values:
            return self.values[name]
        kind, _, rest = name.partition("/")
        near = [
            n for n in self.values if n.startswith(f"{kind}/") and n.endswith(rest.split("/")[-1])
        ]
        near = near or [n for n in self.values if n.startswith(f"{kind}/")] or sorted(self.values)
        raise KeyError(f"the file has no {name}; it has {', '.join(near[:20])}.")

    def _stack(self, names: list[str], key: str) -> Array:
        return jnp.stack([self[f"{name}/{key}"] for name in names])

    def model(self) -> Model:
        """The model with these numbers."""
        return Model(self.system(), tuple(self._interactions()))

    # The tree of bodies and the forces on it.

    def system(self) -> Multibody:
        """The tree of bodies with its actuators, tendons and drag."""
        bodies = [self._body(i) for i in range(len(self.plan.bodies))]
        parts = []
        if self.plan.actuators:
            parts.append(self._actuators())
        if self.plan.tendons:
            parts.append(self._tendon_springs())
        forcing = None if not parts else parts[0] if len(parts) == 1 else Total(tuple(parts))
        wrench = self._fluid() if self.plan.is_in_fluid else None
        return Multibody(bodies, self["option/gravity"], forcing, wrench)

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
        spring = self[f"{name}/springref"]
        options["rest"] = spring if spring.shape[0] > 1 else spring[0]
        if kind not in (FREE, SLIDE):
            options["point"] = self[f"{name}/pos"]
        if kind not in (FREE, BALL):
            options |= {"axis": self[f"{name}/axis"], "reference": self[f"{name}/ref"]}
        return KINDS[kind](**options)

    def _coordinates(self) -> Coordinates:
        free, turning = [], []
        for _, _, kind, _, at in self.plan.joints:
            free += [kind == FREE] * RATES[kind]
            turning += [at + 3] if kind == FREE else [at] if kind == BALL else []
        n = len(free)
        return Coordinates(JointSpace(n, tuple(turning)) if turning else Euclidean(n), tuple(free))

    def _along_joint(self, joint: int, gear: Array) -> Array:
        """A row of a transmission: the first entries of `gear` at the place of a joint."""
        n = sum(RATES[kind] for _, _, kind, _, _ in self.plan.joints)
        _, _, kind, _, at = self.plan.joints[joint]
        return jnp.zeros(n).at[at : at + RATES[kind]].set(gear[: RATES[kind]])

    def _coefficients(self) -> Array:
        one = jnp.ones(1)
        return jnp.stack(
            [sum(c * self._along_joint(j, one) for j, c in rows) for _, rows in self.plan.tendons]
        )

    def _actuators(self) -> Actuators:
        names = [name for name, _, _ in self.plan.actuators]
        tendons = self._coefficients() if self.plan.tendons else jnp.zeros((0, 0))
        rows = [
            self[f"{name}/gear"][0] * tendons[which]
            if kind == TENDON
            else self._along_joint(which, self[f"{name}/gear"])
            for name, kind, which in self.plan.actuators
        ]
        totals = [
            self[f"{name}/actuatorfrcrange"]
            for name, _, kind, _, _ in self.plan.joints
            for _ in range(RATES[kind])
        ]
        return Actuators(
            self._coordinates(),
            jnp.stack(rows),
            gain=self._stack(names, "gainprm"),
            bias=self._stack(names, "biasprm"),
            controls=self._stack(names, "ctrlrange"),
            forces=self._stack(names, "forcerange"),
            totals=jnp.stack(totals),
        )

    def _tendon_length(self, which: list[int] | None = None) -> TendonLength:
        rows = self._coefficients()
        return TendonLength(self._coordinates(), rows if which is None else rows[np.array(which)])

    def _tendon_springs(self) -> TendonSprings:
        names = [name for name, _ in self.plan.tendons]
        relaxed = self._stack(names, "springlength")
        resistance = self._stack(names, "stiffness"), self._stack(names, "damping")
        return TendonSprings(self._tendon_length(), *resistance, relaxed)

    def _fluid(self) -> Fluid:
        names = [name for name, _ in self.plan.bodies]
        box = equal_box(self._stack(names, "mass"), self._stack(names, "inertia"))
        axes = jnp.stack([rotation_matrix(self[f"{name}/iquat"]) for name in names])
        medium = self["option/density"], self["option/viscosity"], self["option/wind"]
        return Fluid(*medium, box, self._stack(names, "ipos"), axes)

    # What acts between bodies, and in joints.

    def _interactions(self):
        if self.plan.pairs:
            yield self._contacts()
        yield from self._limits()
        yield from self._dry_friction()
        yield from map(self._equality, self.plan.equalities)

    def geom(self, index: int) -> Geom:
        """A geom of the file, placed on its body."""
        name, kind, body = self.plan.geoms[index]
        shape = self.hulls[name] if name in self.hulls else SHAPES[kind](self[f"{name}/size"])
        return Geom(shape, body, self[f"{name}/pos"], self[f"{name}/quat"])

    def _contacts(self) -> Interaction:
        used = {i: self.geom(i) for pair in self.plan.pairs for i in pair[:2]}
        relation = shape_contacts([(used[one], used[two]) for one, two, _, _ in self.plan.pairs])
        mu = jnp.stack([self._friction(*pair) for pair in self.plan.pairs])
        of_contact = mu[np.array(relation.function.pair)]
        return Interaction(
            relation, self.law(of_contact, self["contact/restitution"]), self.max_active
        )

    def _friction(self, one: int, two: int, dimensions: int, name: str | None) -> Array:
        """Of the two geoms the larger friction counts; of equal ones each has half of the derivative."""
        if dimensions == 1:
            return jnp.zeros(())
        if name is not None:
            return self[f"{name}/friction"]
        return jnp.maximum(*(self[f"{self.plan.geoms[i][0]}/friction"] for i in (one, two)))

    def _limits(self):
        law = NewtonImpact(self["contact/restitution"])
        limited = [j for j in self.plan.joints if j[0] in self.plan.limited]
        scalar = [j for j in limited if j[2] not in (FREE, BALL)]
        if scalar:
            ranges = self._stack([j[0] for j in scalar], "range")
            where = Entries([j[3] for j in scalar])
            yield Interaction(GapRelation(JointLimits(where, ranges[:, 0], ranges[:, 1])), law)
        for name, _, _, at, _ in (j for j in limited if j[2] == BALL):
            yield Interaction(GapRelation(BallLimit(self[f"{name}/range"][1], at)), law)
        tendons = [k for k, (name, _) in enumerate(self.plan.tendons) if name in self.plan.limited]
        if tendons:
            ranges = self._stack([self.plan.tendons[k][0] for k in tendons], "range")
            limits = JointLimits(self._tendon_length(tendons), ranges[:, 0], ranges[:, 1])
            yield Interaction(GapRelation(limits), law)

    def _dry_friction(self):
        joints = [j for j in self.plan.joints if j[0] in self.plan.rubbing]
        if joints:
            rows = [(j[0], j[4] + i) for j in joints for i in range(RATES[j[2]])]
            limit = self._stack([name for name, _ in rows], "frictionloss")
            yield Interaction(PrescribedVelocity([at for _, at in rows]), DryFriction(limit))
        tendons = [k for k, (name, _) in enumerate(self.plan.tendons) if name in self.plan.rubbing]
        if tendons:
            limit = self._stack([self.plan.tendons[k][0] for k in tendons], "frictionloss")
            yield Interaction(RateRelation(self._tendon_length(tendons)), DryFriction(limit))

    def _equality(self, equality: tuple) -> Interaction:
        name, kind, one, two = equality
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
        tendons = kind != JOINT
        starts = [self._start(which, tendons) for which in (one, two)]
        second = None if two < 0 else self._length(two, tendons)
        coupled = Coupled(data[:5], jnp.stack(starts), self._length(one, tendons), second)
        return Interaction(GapRelation(coupled), Equality())

    def _length(self, which: int, is_tendon: bool) -> Callable:
        """The coordinate of a joint, or the length of a tendon, as a function of `(t, q)`."""
        return self._tendon_length([which]) if is_tendon else Entries(self.plan.joints[which][3])

    def _start(self, which: int, is_tendon: bool) -> Array:
        """The same in the reference configuration."""
        if which < 0:
            return jnp.zeros(())
        if not is_tendon:
            return self[f"{self.plan.joints[which][0]}/ref"]
        rows = self.plan.tendons[which][1]
        return sum((c * self[f"{self.plan.joints[j][0]}/ref"] for j, c in rows), jnp.zeros(()))


TENDON = 3


class BallLimit(eqx.Module):
    """`largest − angle` of a ball joint with the quaternion at `q[at : at + 4]`."""

    largest: Array
    at: int = eqx.field(static=True)

    def __call__(self, t, q):
        turned = 2 * jnp.arctan2(safe_norm(q[self.at + 1 : self.at + 4]), jnp.abs(q[self.at]))
        return (self.largest - turned)[None]


class Coupled(eqx.Module):
    """`x1 − Σ c_k x2^k` of two coordinates, counted from `start`; without `second`, `x1 − c_0`."""

    coefficients: Array
    start: Array
    first: Callable
    second: Callable | None

    def __call__(self, t, q):
        x = self.first(t, q) - self.start[0]
        y = jnp.zeros_like(x) if self.second is None else self.second(t, q) - self.start[1]
        return x - jnp.polyval(self.coefficients[::-1], y)


def as_values(numbers: dict[str, np.ndarray]) -> dict[str, Array]:
    """The numbers of a file as arrays."""
    return eval_now(lambda: {name: jnp.asarray(x, float) for name, x in numbers.items()})
