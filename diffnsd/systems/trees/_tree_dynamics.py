"""Kinematics and dynamics of a tree of joints, as sums over ancestors and subtrees.

Arrays have components first. Spatial vectors, angular before linear, are taken about the frame of the first
link of their tree, in the directions of the world.

Reference: R. Featherstone, Rigid Body Dynamics Algorithms (2008), doi:10.1007/978-1-4899-7560-7, chapters
5 and 6.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._block_rows import BlockRows, PickedRows, dense
from ..._jax import entries_at
from ..._joint_rows import JointRows
from ..._numerics import cross, dot, weighted_sum
from ..._types import Config, Matrix, Vector
from ...groups import quaternion_product, rotate, rotation_matrix


class Links(NamedTuple):
    """The frames of all links: `position (3, l)`, quaternions `turn (4, l)`, `rotation (3, 3, l)`."""

    position: Array
    turn: Array
    rotation: Array


class Placed(NamedTuple):
    """A `Multibody` at a configuration; positions are relative to the origin of the tree, world directions.

    **Arguments:** `position (3, b)`, `rotation (3, 3, b)`: frames of the bodies; `middle (3, b)`: their
    centres of mass; `origin (3, b)`: origin of their tree; `motion (6, n)`: angular and linear velocity, at
    the origin of the tree, for each entry of `v`.
    """

    position: Array
    rotation: Array
    middle: Array
    origin: Array
    motion: Array


def unit_vectors(axes: Array) -> Array:
    """Unit vectors `(3, j)`; zero for joints without an axis."""
    square = dot(axes, axes)[None]
    return jnp.where(square > 0, axes / jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def local_frames(system: Any, q: Config) -> tuple[Array, Array]:
    """Positions `(3, l)` and quaternions `(4, l)` of all links in the frames of their parents."""
    tables = system.tree.tables
    alone = np.array([k.coordinates == 1 for k in tables.kind])
    slides = np.array([k.slides for k in tables.kind])
    free = np.array([k.moves_freely for k in tables.kind])
    joint = np.maximum(tables.joint, 0)
    none, upright = np.zeros((3, 1), q.dtype), np.array([[1.0], [0], [0], [0]], q.dtype)
    begins = (tables.first & ~free)[None]
    position = jnp.where(begins, entries_at(system.positions.T, tables.body, 1), none)
    rotation = jnp.where(begins, entries_at(system.orientations.T, tables.body, 1), upright)
    if len(system.axes) == 0:
        return position, rotation

    where = np.where(alone, tables.q_start[joint], 0)
    amount = jnp.where(alone, entries_at(q, where) - entries_at(system.reference, joint), 0)
    axis = entries_at(unit_vectors(system.axes.T), joint, 1)
    point = entries_at(system.points.T, joint, 1)
    half = jnp.where(slides, 0, amount) / 2
    # The product with the unit matrix keeps XLA from computing both again for every entry of what follows.
    cos, sin = jnp.matmul(
        jnp.stack([jnp.cos(half), jnp.sin(half)]),
        np.eye(len(joint), dtype=q.dtype),
        precision="highest",
    )
    turn = jnp.concatenate([cos[None], sin[None] * axis])
    entries = np.array([k.coordinates for k in tables.kind])
    turn = _given(turn, q, entries >= 4, tables.q_start[joint] + entries - 4)
    shift = point - rotate(turn, point) + jnp.where(slides, amount, 0)[None] * axis
    shift = _given(shift, q, free, tables.q_start[joint])
    return position + rotate(rotation, shift), quaternion_product(rotation, turn)


FEW = 4
"""Most columns that are set one by one; more are read for all links at once."""


def _given(x: Array, q: Config, which: np.ndarray, begins: np.ndarray) -> Array:
    """`x (k, l)`, and in some columns the entries of `q` that begin at these places."""
    rows, columns = np.arange(len(x)), np.flatnonzero(which)
    if len(columns) > FEW:
        places = np.where(which, begins, 0) + rows[:, None]
        return jnp.where(which, entries_at(q, places), x)
    for i in columns:
        x = jnp.where(np.arange(len(which)) == i, entries_at(q, begins[i] + rows)[:, None], x)
    return x


@eqx.filter_jit
def tree_pass(system: Any, q: Config) -> tuple[Links, Placed]:
    """The frames of all links, and what follows from them: everything that depends on `q` alone."""
    links = _links(system, q)
    return links, _placed(system, links)


def _links(system: Any, q: Config) -> Links:
    """The frames of all links."""
    tables = system.tree.tables
    shift, turn = local_frames(system, q)
    for hop in tables.hops:
        turn = jnp.where(
            hop[None] >= 0, quaternion_product(entries_at(turn, np.maximum(hop, 0), 1), turn), turn
        )
    rotation = rotation_matrix(turn)
    if tables.hops:
        # Positions need no doubling: they are sums over ancestors, once these are turned.
        parent = tables.hops[0]
        moved = weighted_sum(entries_at(rotation, np.maximum(parent, 0), 2), shift, axis=1)
        shift = jnp.where(parent[None] >= 0, moved, shift)
    return Links(shift @ tables.above.T.astype(shift.dtype), turn, rotation)


def _placed(system: Any, links: Links) -> Placed:
    tables, position, rotation = system.tree.tables, links.position, links.rotation
    link, joint = tables.link, tables.joint[tables.link]
    unit = tables.unit.T.astype(position.dtype)
    axes = jnp.where(tables.by_axis[None], entries_at(unit_vectors(system.axes.T), joint, 1), unit)
    own = entries_at(rotation, link, 2)
    along = jnp.where(tables.in_world[None], unit, weighted_sum(own, axes, axis=1))
    points = entries_at(system.points.T, joint, 1)
    point = entries_at(position, link, 1) + weighted_sum(own, points, axis=1)
    origin = entries_at(position, tables.root, 1)
    linear = jnp.where(tables.turns[None], cross(point - entries_at(origin, link, 1), along), along)
    angular = jnp.where(tables.turns[None], along, 0)
    last = tables.last
    rotation, position = entries_at(rotation, last, 2), entries_at(position, last, 1)
    origin = entries_at(origin, last, 1)
    middle = position + weighted_sum(rotation, system.centres.T, axis=1)
    return Placed(
        position=position - origin,
        rotation=rotation,
        middle=middle - origin,
        origin=origin,
        motion=jnp.concatenate([angular, linear]),
    )


def body_jacobian(system: Any, at: Placed) -> Array:
    """The velocities of all bodies per rate of a joint, as `Multibody.jacobian`."""
    tables, angular, linear = system.tree.tables, at.motion[:3, None], at.motion[3:, None]
    moved = linear + cross(angular, at.position[:, :, None])
    turned = weighted_sum(jnp.swapaxes(at.rotation, 0, 1)[..., None], angular, axis=1)
    rows = jnp.where(tables.moves[tables.last][None], jnp.concatenate([moved, turned]), 0)
    return jnp.swapaxes(rows, 0, 1).reshape(-1, rows.shape[2])


def joint_rows(system: Any, at: Placed, rows: Any) -> Any:
    """Rows `(k, 6 b, c)` on the velocities of bodies as rows on `v`, by virtual power.

    Of contacts that touch few bodies without their Jacobian: every row is a wrench on its body.
    """
    if not isinstance(rows, BlockRows | PickedRows) or rows.world is None:
        return jnp.einsum("kmc,mn->knc", dense(rows), body_jacobian(system, at))
    tables = system.tree.tables
    moves = tables.moves[tables.last].astype(at.motion.dtype)
    arms = rows.of_sides(at.position.T)
    wrenches = tuple(x.moved(arm) for x, arm in zip(rows.world, arms, strict=True))
    return JointRows(wrenches, rows, jnp.asarray(moves), at.motion)


def generalised(system: Any, at: Placed, torque: Array, force: Array) -> Vector:
    """Generalised forces of torques about the origin of the tree and forces on bodies, `(3, b)`."""
    tables = system.tree.tables
    total = jnp.concatenate([torque, force]) @ tables.moves[tables.last].astype(force.dtype)
    return dot(at.motion, total)


def momenta(system: Any, at: Placed, twist: Array) -> tuple[Array, Array]:
    """Angular momenta about the origin of the tree and linear momenta, `(3, b)`, for velocities `(6, b)`."""
    omega, speed = twist[:3], twist[3:]
    momentum = system.masses[None] * (speed + cross(omega, at.middle))
    spin = weighted_sum(_inertia_in_world(system, at), omega, axis=1)
    return spin + cross(at.middle, momentum), momentum


def _inertia_in_world(system: Any, at: Placed) -> Array:
    """Inertias about the centres of mass, `(3, 3, b)`."""
    turn, inertia = at.rotation, jnp.moveaxis(system.inertia, 0, -1)
    half = weighted_sum(turn[:, :, None], inertia, axis=1)
    return weighted_sum(half[:, :, None], jnp.swapaxes(turn, 0, 1), axis=1)


def composite_mass(system: Any, at: Placed) -> Matrix:
    """`M_jk = s_j · I_j s_k`, with the inertia `I_j` of all that entry j moves, k on the way to the root."""
    tables, m, c = system.tree.tables, system.masses, at.middle
    unit = np.eye(3, dtype=m.dtype)[:, :, None]
    moved = dot(c, c)[None, None] * unit - c[:, None] * c[None]
    about = _inertia_in_world(system, at) + m[None, None] * moved
    parts = jnp.concatenate([m[None], m[None] * c, about.reshape(9, -1)])
    parts = parts @ tables.moves[tables.last].astype(m.dtype)
    mass, first, second = parts[0], parts[1:4], parts[4:].reshape(3, 3, -1)
    angular, linear = at.motion[:3], at.motion[3:]
    momentum = mass[None] * linear + cross(angular, first)
    spin = weighted_sum(second, angular, axis=1) + cross(first, linear)
    rows = weighted_sum(jnp.concatenate([spin, momentum])[:, :, None], at.motion[:, None])
    lower = tables.moves[tables.link] & np.tri(len(tables.link), dtype=bool)
    below = jnp.where(lower, rows, 0)
    return below + jnp.where(np.eye(len(tables.link), dtype=bool), 0, below).T


def bias(system: Any, at: Placed, v: Vector, gravity: Array) -> Vector:
    """The generalised force that keeps `v` constant, by the recursive Newton-Euler equations."""
    tables = system.tree.tables
    moves = tables.moves.T.astype(v.dtype)
    twist = (at.motion * v[None]) @ moves
    own = entries_at(twist, tables.link, 1)
    changing = jnp.concatenate(
        [
            cross(own[:3], at.motion[:3]),
            cross(own[:3], at.motion[3:]) + cross(own[3:], at.motion[:3]),
        ]
    )
    rates = jnp.where(tables.in_world[None], 0, changing * v[None]) @ moves
    last = tables.last
    twist, rates = entries_at(twist, last, 1), entries_at(rates, last, 1)
    omega, speed = twist[:3], twist[3:]
    alpha, acceleration = rates[:3], rates[3:] - gravity[:, None]
    spin, momentum = momenta(system, at, twist)
    torque, force = momenta(system, at, jnp.concatenate([alpha, acceleration]))
    torque = torque + cross(omega, spin) + cross(speed, momentum)
    return generalised(system, at, torque, force + cross(omega, momentum))
