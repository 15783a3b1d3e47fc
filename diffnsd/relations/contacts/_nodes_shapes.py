"""Nodes of soft bodies against shapes on rigid bodies, on links of mechanisms, and in the world."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._arguments import Numbers
from ..._block_rows import EntryRows
from ..._expects import refuse_below, shown
from ..._jax import eval_now
from ..._numerics import as_float, cross, dot
from ..._types import Config, Local, PerContact, Scalar, State, Vector
from ...groups import AbstractGroup, PoseGroup, rotation_matrix
from ...shapes import Closest, Frame, Sphere, closest, is_supported
from .._base import (
    AbstractRelation,
    AbstractWrappedRelation,
    Contacts,
    body_indices,
    out_of_range,
)
from ._body_points import tangents
from ._shape_contacts import Geom, _Alike, _kind


class NodesShapes(AbstractRelation):
    """Chosen nodes of a soft body against shapes on rigid bodies, one contact for each pair of them.

        both = SystemProduct((body, ball))
        contacts = NodesShapes(both, surface, Geom(Sphere(0.1), body=0))
        Interaction(contacts, CoulombFriction(0.4))

    The gap is that of a ball of the given radius around the node, by the distance of `diffnsd.shapes`, and
    the local velocity that of the node against the material point of the rigid body where the node is,

        u = R_C^T [x' − v − ω × (x − x_b)],      R_C = [n t1 t2]

    with the normal towards the node: both bodies get opposite forces on one line, so that contacts change
    neither momentum nor moment of momentum. Contacts are ordered by kind of shape, then by shape, then by
    node. Nodes do not see what passes between them: the mesh must be finer than the shape.

    **Arguments:**

    - `system`: the `SystemProduct` of both, or the `Elastic` body alone, if the shapes stand still.
    - `nodes`: indices of nodes, `(m,)`, such as `np.unique(mesh.boundary())`; the body is one in space.
    - `geoms`: a `Geom` or several; their `body` is one of the system `rigid`, `None` for the world.
    - `soft`, `rigid`: which systems of the product; `rigid` is a `NewtonEulerSystem` or a `Multibody`.
    - `radius`: of the nodes [m], half the thickness of a shell or a rod, `()` or `(m,)`.

    **Raises:** `ValueError` if nodes or bodies do not exist, nodes are given twice, a shape is not supported,
    or radii are negative.
    """

    nodes: tuple[int, ...] = eqx.field(static=True)
    tables: tuple[_Alike, ...]
    radius: Float[Array, " m"]
    names: tuple[str, ...] = eqx.field(static=True)
    soft: int = eqx.field(static=True)
    rigid: int = eqx.field(static=True)

    rows = 3  # pyright: ignore[reportAssignmentType]

    def __init__(
        self,
        system: Any,
        nodes,
        geoms: Geom | Sequence[Geom],
        soft: int = 0,
        rigid: int = 1,
        radius: Numbers = 0.0,
    ):
        given = (geoms,) if isinstance(geoms, Geom) else tuple(geoms)
        if not given or not all(isinstance(g, Geom) for g in given):
            raise TypeError(f"geoms must be Geom(...), one or a sequence, got {shown(geoms)}.")
        if (len(nodes) if isinstance(nodes, Sequence) else np.size(nodes)) == 0:
            raise ValueError("nodes must be one node at least, such as np.unique(mesh.boundary()).")
        listed = body_indices("nodes", nodes)
        listed = listed if isinstance(listed, tuple) else (listed,)
        self.nodes = tuple(i for i in listed if i is not None)
        if len(self.nodes) < len(listed):
            raise ValueError(f"nodes must be whole numbers, got {shown(nodes)}.")
        several, times = np.unique(self.nodes, return_counts=True)
        if np.any(times > 1):
            raise ValueError(
                f"each node must be given once, node {several[times > 1][0]} is given more often; use "
                "np.unique(nodes)."
            )
        self.soft, self.rigid = soft, rigid
        kinds: dict = {}
        for geom in given:
            kinds.setdefault(_kind(geom.shape), []).append(geom)
        self.tables = tuple(map(_Alike, kinds.values()))
        self.names = tuple(g.name for members in kinds.values() for g in members)
        if problem := self._misfit(*self._parts(system)):
            raise ValueError(f"{problem}.")
        refuse_below("radius", size := eval_now(as_float, radius), 0)
        if size.shape not in ((), (len(self.nodes),)):
            raise ValueError(
                f"radius must be one number or one for each of {len(self.nodes)} nodes, got shape "
                f"{size.shape}."
            )
        self.radius = eval_now(lambda x: jnp.broadcast_to(x, len(self.nodes)), size)

    @property
    def contact_names(self) -> tuple[str, ...]:
        return tuple(f"node {i} with {name}" for name in self.names for i in self.nodes)

    @property
    def bodies(self) -> tuple[int | None, ...]:
        """The body of every shape, `None` for the world."""
        every: list[int | None] = []
        for table in self.tables:
            known = table.bodies
            every += known if isinstance(known, tuple) else [known] * len(table.positions)
        return tuple(every)

    @property
    def has_moving(self) -> bool:
        """Whether a shape belongs to a rigid body; the system of these is asked for only then."""
        return any(i is not None for i in self.bodies)

    def _parts(self, system: Any) -> tuple[Any, Any]:
        """The soft body and the system of rigid bodies, `None` where there is no product or no such shape."""
        systems = getattr(system, "systems", None)
        if systems is None:
            return system, None
        needed = {"soft": self.soft} | ({"rigid": self.rigid} if self.has_moving else {})
        for name, i in needed.items():
            if not 0 <= i < len(systems):
                raise ValueError(
                    f"the product has the systems 0 to {len(systems) - 1}, got {name}={i}."
                )
        return systems[self.soft], systems[self.rigid] if self.has_moving else None

    def _misfit(self, body: Any, others: Any) -> str | None:
        """Why the contacts do not fit a soft body and a system of rigid bodies, or `None`."""
        soft = hasattr(body, "unknowns_of") and not isinstance(body, type)
        if not soft or body.points.shape[1] != 3:
            return (
                "system must be the SystemProduct of an Elastic body in space, at the place `soft`, or that "
                f"body alone; found {shown(body)}"
            )
        if problem := out_of_range("nodes", self.nodes, body.points.shape[0]):
            return problem.replace("the system has the bodies", "the body has the nodes")
        for table in self.tables:
            if not is_supported(Sphere, kind := type(table.shapes)):
                return f"nodes do not touch a {kind.__name__}"
        moving = tuple(i for i in self.bodies if i is not None)
        if not moving:
            return None
        if others is None:
            return "shapes of bodies that move need the SystemProduct of these and the soft body as `system`"
        if not others.has_joints and not isinstance(others.group, PoseGroup):
            return (
                f"system {self.rigid} of the product has no rigid bodies: it is a {type(others).__name__}; "
                "give the place of a NewtonEulerSystem or a Multibody as `rigid`"
            )
        return out_of_range("Geom.body", moving, len(others.masses))

    def on(self, system: Any) -> "PlacedNodes":
        return PlacedNodes(self, system)

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        raise TypeError("NodesShapes needs its system: use relation.on(system).output(...).")


class PlacedNodes(AbstractWrappedRelation):
    """`NodesShapes` in the coordinates of its system, made by `on`.

    **Arguments:** `relation`; `system`: the product, or the soft body alone.
    """

    relation: NodesShapes
    system: Any

    def count(self, group: AbstractGroup, t: Scalar, q: Config) -> int:
        return len(self.relation.nodes) * len(self.relation.names)

    @property
    def _systems(self) -> tuple[Any, Any]:
        return self.relation._parts(self.system)

    def _own(self, q: Config) -> tuple[Config, Config]:
        """The configurations of the soft body and of the others, `None` if no shape is theirs."""
        if not hasattr(self.system, "systems"):
            return q, None
        relation = self.relation
        return q[relation.soft], q[relation.rigid] if relation.has_moving else None

    def _touching(self, t: Scalar, q: Config, poses) -> tuple[Array, Closest]:
        """Positions of the nodes of all contacts, `(3, c)`, and the closest points, `(c, 3)` each."""
        relation, (body, _) = self.relation, self._systems
        x = body.positions(t, self._own(q)[0])[np.array(relation.nodes), :3]

        def touch(x, radius, shape, frame):
            found = closest(Sphere(radius), Frame(x, jnp.eye(3, dtype=x.dtype)), shape, frame)
            return jax.tree.map(lambda y: y[0], found)

        of_nodes = jax.vmap(touch, in_axes=(0, 0, None, None))
        radius, found = relation.radius.astype(x.dtype), []
        for table in relation.tables:
            each = eqx.filter_vmap(lambda s, f: of_nodes(x, radius, s, f))
            found.append(each(table.shapes, table.frames(poses)))
        joined = [jax.tree.map(lambda y: y.reshape(-1, 3), c) for c in found]
        places = jax.tree.map(lambda *y: jnp.concatenate(y), *joined)
        return jnp.tile(x, (len(relation.names), 1)).T, places

    def _poses(self, q: Config) -> Any:
        _, others = self._systems
        own = self._own(q)[1]
        return others.frames(own) if others is not None and others.has_joints else own

    def gap(self, t: Scalar, q: Config) -> PerContact:
        return self._touching(t, q, self._poses(q))[1].gap

    def observe(self, group: AbstractGroup, t: Scalar, q: Config) -> Contacts:
        body, others = self._systems
        own, _ = self._own(q)
        poses = self._poses(q)
        x, places = self._touching(t, q, poses)
        normal = places.normal.T
        frame = jnp.stack([normal, *tangents(normal)])  # row, axis, contact
        copies = len(self.relation.names)
        nodes = np.array(self.relation.nodes)
        rows = EntryRows(frame, jnp.tile(body.unknowns_of(nodes, [0, 1, 2]), (copies, 1)), own.size)
        moved = body.nodal_velocities(t, State(own, jnp.zeros_like(own)))[nodes, :3]
        drift = dot(jnp.swapaxes(frame, 0, 1), jnp.tile(moved, (copies, 1)).T[:, None])
        if hasattr(self.system, "systems"):
            where, total = self.system.slices(), self.system.velocities
            rows = rows.placed(where[self.relation.soft].start, total)
            if others is not None:
                moving = self._rigid_rows(q, poses, x, frame)
                moving = moving.placed(where[self.relation.rigid].start, total)
                values = jnp.concatenate([rows.values, moving.values], axis=1)
                columns = jnp.concatenate([rows.columns, moving.columns], axis=1)
                rows = EntryRows(values, columns, total)
        return Contacts(places.gap, rows, drift)

    def _rigid_rows(self, q: Config, poses, x: Array, frame: Array) -> EntryRows:
        """Minus the rows of the rigid bodies, at the nodes; zero for shapes of the world."""
        _, others = self._systems
        bodies = np.array([-1 if i is None else i for i in self.relation.bodies])
        bodies = np.repeat(bodies, len(self.relation.nodes))
        held, at = bodies < 0, np.maximum(bodies, 0)
        arms = x - poses.position[at].T
        rotation = rotation_matrix(poses.orientation[at].T)
        turns = jnp.stack([dot(rotation, cross(arms, e)[:, None]) for e in jnp.unstack(frame)])
        values = -jnp.where(held, 0, jnp.concatenate([frame, turns], axis=1))
        if others.has_joints:
            _, jacobian = others.moving_frames(self._own(q)[1])
            n = jacobian.shape[1]
            own = jacobian.reshape(-1, 6, n)[at]
            columns = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (len(at), n))
            return EntryRows(jnp.einsum("ksc,csn->knc", values, own), columns, n)
        count = 6 * poses.position.shape[0]
        columns = 6 * at[:, None] + np.arange(6)
        columns = np.where(held[:, None], count, columns).astype(np.int32)
        return EntryRows(values, jnp.asarray(columns), count)

    def output(self, group: AbstractGroup, t: Scalar, state: State, lam: Local | None) -> Local:
        return self.observe(group, t, state.q).velocity(state.v).T

    def input(self, group: AbstractGroup, t: Scalar, state: State, lam: Local) -> Vector:
        return self.observe(group, t, state.q).H.gather(lam.T)  # pyright: ignore[reportAttributeAccessIssue]

    def check(self, group: AbstractGroup) -> str | None:
        return self.relation._misfit(*self._systems)
