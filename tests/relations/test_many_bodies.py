"""Relations of many bodies: the same numbers as one relation each, and one program for any number."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import Interaction, Model, MoreauJean, SaveAt, State, simulate
from diffnsd._block_diagonal import BlockDiagonal, block_jacobian
from diffnsd._block_rows import BlockRows
from diffnsd.groups import Euclidean, Pose, PoseGroup, rotation_matrix
from diffnsd.laws import NewtonImpact
from diffnsd.relations import (
    BodyPointsPlane,
    ContactFrame,
    GapRelation,
    PlanarContact,
    ball_joint,
    capsule_on_plane,
    cylindrical,
    disk_on_disk,
    disk_on_line,
    fixed_joint,
    hinge,
    prismatic,
    sphere_on_plane,
    sphere_on_sphere,
    sphere_on_surface,
    tangents,
)
from diffnsd.systems import NewtonEulerSystem

RANDOM = np.random.default_rng(11)
NORMAL = np.array([0.48, -0.6, 0.64])
SPIN = RANDOM.normal(size=(4, 4))
POSE = Pose(
    jnp.asarray(RANDOM.normal(size=(4, 3))),
    jnp.asarray(SPIN / np.linalg.norm(SPIN, axis=1, keepdims=True)),
)
PLANAR = jnp.asarray(RANDOM.normal(size=12))
POINTS = RANDOM.normal(size=(3, 3))
AXIS = (0.3, -0.1, 0.2)


def waves(x, y):
    return 0.3 * jnp.sin(x) * y


# Of pairs (i, j): all of them in one relation, and one of each.
PAIRS = ((3, 1), (0, 2), (1, 0))
FIRST, SECOND = zip(*PAIRS, strict=True)
MANY = {
    "points on a plane": (
        BodyPointsPlane(POINTS, NORMAL, 0.2, FIRST),
        [BodyPointsPlane(POINTS[i : i + 1], NORMAL, 0.2, b) for i, b in enumerate(FIRST)],
    ),
    "spheres on a plane": (
        sphere_on_plane([0.1, 0.2, 0.3], NORMAL, 0.2, np.array(FIRST), rolling=True),
        [
            sphere_on_plane(r, NORMAL, 0.2, b, rolling=True)
            for r, b in zip((0.1, 0.2, 0.3), FIRST, strict=True)
        ],
    ),
    "spheres that follow each other": (
        sphere_on_sphere(0.1, [0.2, 0.3, 0.4], np.arange(1, 4), np.arange(3)),
        [sphere_on_sphere(0.1, r, i + 1, i) for i, r in enumerate((0.2, 0.3, 0.4))],
    ),
    "spheres in any order": (
        sphere_on_sphere(0.1, 0.2, FIRST, SECOND),
        [sphere_on_sphere(0.1, 0.2, *pair) for pair in PAIRS],
    ),
    "spheres around one": (
        sphere_on_sphere(0.1, 0.2, (1, 2, 3), 0),
        [sphere_on_sphere(0.1, 0.2, i, 0) for i in (1, 2, 3)],
    ),
    "spheres on a surface": (
        sphere_on_surface(0.1, waves, FIRST),
        [sphere_on_surface(0.1, waves, b) for b in FIRST],
    ),
    "capsules on a plane": (
        capsule_on_plane(0.1, AXIS, NORMAL, 0.2, FIRST),
        [
            capsule_on_plane(0.1, sign * np.array(AXIS), NORMAL, 0.2, b)
            for sign in (1, -1)
            for b in FIRST
        ],
    ),
    "disks on a line": (
        disk_on_line(0.1, (0.6, 0.8), 0.1, FIRST, rolling=True),
        [disk_on_line(0.1, (0.6, 0.8), 0.1, b, rolling=True) for b in FIRST],
    ),
    "disks in any order": (
        disk_on_disk(0.1, 0.2, FIRST, SECOND),
        [disk_on_disk(0.1, 0.2, *pair) for pair in PAIRS],
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_one_relation_of_many_bodies_is_many_relations_of_one(name):
    many, single = MANY[name]
    planar = "disk" in name
    group, q = (Euclidean(12), PLANAR) if planar else (PoseGroup(4), POSE)
    v = jnp.asarray(RANDOM.normal(size=group.dim))

    @eqx.filter_jit
    def seen(v):
        def one(relation):
            lam = jnp.ones((relation.count(group, 0.0, q), relation.rows))
            contacts, state = relation.observe(group, jnp.zeros(()), q), State(q, v)
            rows, drift = relation.linearised(group, jnp.zeros(()), q)
            force = relation.input(group, jnp.zeros(()), state, lam)
            u = relation.output(group, jnp.zeros(()), state, None)
            return contacts.gap, relation.gap(jnp.zeros(()), q), u, rows, drift, force

        return one(many), [one(r) for r in single]

    (gap, again, u, rows, drift, force), each = seen(v)
    if "capsule" in name:  # the other end is in the other half of the list
        each = [[*(x[:1] for x in parts[:3]), parts[3][:, :, :1]] for parts in each]
    np.testing.assert_array_equal(gap, again)
    for found, place in ((gap, 0), (u, 2)):
        wanted = np.concatenate([parts[place] for parts in each])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)
    wanted = np.concatenate([parts[3] for parts in each], axis=2)
    np.testing.assert_allclose(rows, wanted, rtol=0, atol=1e-14)
    np.testing.assert_allclose(force, np.einsum("knc->n", rows), rtol=0, atol=1e-13)
    assert not np.any(drift)


def test_local_velocities_are_those_of_the_material_points():
    """`u = R_C^T [v1 + ω1 × (p1 − x1) − v2 − ω2 × (p2 − x2)]` by vectors; one contact is with the world."""
    p1, p2 = RANDOM.normal(size=(2, 3, 3))
    first, second = (2, 0, 3), (1, None, 0)
    relation = ContactFrame(lambda t, q: (p1, p2, np.tile(NORMAL, (3, 1))), first, second, True)
    v = RANDOM.normal(size=(4, 6))
    state = State(POSE, jnp.asarray(v.reshape(-1)))
    u = eqx.filter_jit(lambda s: relation.output(PoseGroup(4), jnp.zeros(()), s, None))(state)
    frame = np.stack([NORMAL, *map(np.asarray, tangents(jnp.asarray(NORMAL)))])

    def moves(body, point):
        if body is None:
            return np.zeros(3), np.zeros(3)
        spin = np.asarray(rotation_matrix(POSE.orientation[body])) @ v[body, 3:]
        return v[body, :3] + np.cross(spin, point - np.asarray(POSE.position[body])), spin

    for i in range(3):
        (u1, w1), (u2, w2) = moves(first[i], p1[i]), moves(second[i], p2[i])
        wanted = np.concatenate([frame @ (u1 - u2), frame[1:] @ (w1 - w2)])
        np.testing.assert_allclose(u[i], wanted, rtol=0, atol=1e-14)


JOINTS = {
    "ball": lambda *b: ball_joint(POSE, POINTS[0], *b),
    "hinge": lambda *b: hinge(POSE, POINTS[0], NORMAL, *b),
    "prismatic": lambda *b: prismatic(POSE, NORMAL, *b),
    "cylindrical": lambda *b: cylindrical(POSE, POINTS[0], NORMAL, *b),
    "fixed": lambda *b: fixed_joint(POSE, *b),
}


@pytest.mark.parametrize("second", [(1, 2, 0), (1, None, 0), None], ids=str)
@pytest.mark.parametrize("name", JOINTS)
def test_many_joints_are_joints_one_by_one(name, second):
    make, first = JOINTS[name], (3, 0, 1)
    many = make(first, second)
    each = [make(a, b) for a, b in zip(first, second or (None,) * 3, strict=True)]
    moved = PoseGroup(4).compose(POSE, PoseGroup(4).exp(jnp.asarray(0.3 * RANDOM.normal(size=24))))

    def values(joints):
        return [np.asarray(f(0.0, moved)) for j in joints for f in (j, j.angle, j.displacement)]

    rows, angle, displacement = values([many])
    single = values(each)
    np.testing.assert_allclose(rows, np.concatenate(single[::3]), rtol=0, atol=1e-14)
    np.testing.assert_allclose(angle, np.stack(single[1::3]), rtol=0, atol=1e-14)
    np.testing.assert_allclose(displacement, np.stack(single[2::3]), rtol=0, atol=1e-14)
    limits = GapRelation(many.limits(many.angle, -1.0, 1.0)).gap(jnp.zeros(()), moved)
    np.testing.assert_allclose(limits, np.concatenate([angle + 1, 1 - angle]), rtol=0, atol=1e-14)


def test_products_with_blocks_are_those_of_the_matrix():
    rows = BlockRows(RANDOM.normal(size=(2, 3, 2, 4)), ((0, 3, None, 3), (2, 1, 0, 3)), 5)
    other = BlockRows(RANDOM.normal(size=(2, 1, 2, 3)), ((1, 2, 3), 3), 5)
    blocks = RANDOM.normal(size=(2, 2, 5)) + 4 * np.eye(2)[:, :, None]
    matrix = BlockDiagonal(jnp.asarray(blocks))
    h, g, a = (np.asarray(x.dense()) for x in (rows, other, matrix))
    assert h.shape == rows.shape == (3, 10, 4) and not np.any(h[:, :2, 2] - rows.values[1][:, :, 2])
    v, z = RANDOM.normal(size=10), RANDOM.normal(size=(3, 4))
    np.testing.assert_allclose(rows.apply(v), np.einsum("knc,n->kc", h, v), atol=1e-14)
    np.testing.assert_allclose(
        rows.gather(jnp.asarray(z)), np.einsum("knc,kc->n", h, z), atol=1e-14
    )
    np.testing.assert_allclose(rows.times(other), np.einsum("knc,lnd->kcld", h, g), atol=1e-14)
    np.testing.assert_allclose(matrix.solve(jnp.asarray(v)), np.linalg.solve(a, v), atol=1e-14)
    moved = np.asarray(matrix.solve_rows(rows).dense())
    wanted = np.linalg.solve(a, h.transpose(1, 0, 2).reshape(10, -1)).reshape(10, 3, 4)
    np.testing.assert_allclose(moved, wanted.transpose(1, 0, 2), atol=1e-14)

    def field(v):
        x = v.reshape(5, 2)
        return jnp.stack([x[:, 0] * x[:, 1], jnp.sin(x[:, 0])], axis=1).reshape(-1)

    slope = block_jacobian(field, jnp.asarray(v), 2).dense()
    np.testing.assert_allclose(slope, jax.jacfwd(field)(jnp.asarray(v)), atol=1e-15)


def column(n: int, law, radius: float = 0.1):
    """Spheres on a plane, one on the other."""
    height = radius * (1 + 2 * np.arange(n))
    position = np.stack([0 * height, 0 * height, height], axis=1)
    pose = Pose(jnp.asarray(position), jnp.tile(jnp.array([1.0, 0.0, 0.0, 0.0]), (n, 1)))
    system = NewtonEulerSystem(jnp.ones(n), jnp.full((n, 3), 0.4 * radius**2))
    contacts = (
        sphere_on_plane(radius),
        sphere_on_sphere(radius, radius, np.arange(1, n), np.arange(n - 1)),
    )
    return Model(system, [Interaction(c, law) for c in contacts]), State(pose, jnp.zeros(6 * n))


def test_every_contact_of_a_column_carries_what_is_above():
    """At rest the impulse below sphere i is the weight of n − i spheres times the step."""
    n, h = 5, 1e-2
    model, start = column(n, NewtonImpact(0.5))
    end = simulate(model, MoreauJean(), 0.0, 3 * h, h, start)
    plane, between = (np.asarray(p)[1:, :, 0] for p in end.impulses)
    found = np.concatenate([plane, between], axis=1)
    wanted = np.broadcast_to(9.81 * h * np.arange(n, 0, -1), found.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-7)  # 3e-8 measured, the solver's tolerance
    np.testing.assert_allclose(end.states.v, 0, atol=1e-8)  # 2e-9 measured


def test_two_collisions_at_once_and_their_derivatives():
    """Spheres of masses m and M meet at rates a, b: closed forms, and d/de, d/dm of them."""

    def after(e, m):
        position = np.array([[0.0, 0, 0], [0.199, 0, 0], [5.0, 1, 0], [5.0, 1.199, 0]])
        pose = Pose(jnp.asarray(position), jnp.tile(jnp.array([1.0, 0.0, 0.0, 0.0]), (4, 1)))
        masses = jnp.stack([m, 1.0, m, 1.0])
        system = NewtonEulerSystem(masses, jnp.full((4, 3), 0.01), gravity=(0.0, 0.0, 0.0))
        pairs = sphere_on_sphere(0.1, 0.1, (0, 2), (1, 3))
        model = Model(system, Interaction(pairs, NewtonImpact(e)))
        v = jnp.zeros((4, 6)).at[0, 0].set(2.0).at[2, 1].set(1.0).at[3, 1].set(-0.5)
        state = State(pose, v.reshape(-1))
        end = simulate(
            model, MoreauJean(), 0.0, 1e-3, 1e-3, state, saveat=SaveAt.end(), start_tolerance=0.01
        )
        v = end.states.v.reshape(4, 6)
        return jnp.stack([v[0, 0], v[1, 0], v[2, 1], v[3, 1]])

    def exact(e, m):
        def pair(a, b):
            mean = (m * a + b) / (m + 1)
            return mean - e * (a - b) / (m + 1), mean + e * m * (a - b) / (m + 1)

        return jnp.stack([*pair(2.0, 0.0), *pair(1.0, -0.5)])

    at = jnp.asarray(0.6), jnp.asarray(3.0)
    np.testing.assert_allclose(jax.jit(after)(*at), exact(*at), rtol=1e-9)
    for found, wanted in zip(
        jax.jit(jax.jacrev(after, (0, 1)))(*at), jax.jacfwd(exact, (0, 1))(*at), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-10)


def test_the_program_does_not_grow_with_the_bodies():
    """The lowered step of 80 spheres has as many lines as that of 40: what grows are the arrays.

    Of up to 24 contacts sums are chains of additions, and matrices of so many rows are eliminated in a loop.
    """

    def lines(n):
        model, start = column(n, NewtonImpact(0.5))
        method = MoreauJean()
        warm = method.init(model, jnp.zeros(()), start, None)
        step = jax.jit(
            lambda s: method.step(model, jnp.zeros(()), jnp.array(1e-3), s, warm, None)[0]
        )
        return len(step.lower(start).as_text().splitlines())

    assert lines(40) == lines(80)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: BodyPointsPlane(POINTS, body=(0, 4, -1)),
            r"body\[1\] = 4, .*body\[2\] = -1: the system has the bodies 0 to 3",
        ),
        (lambda: sphere_on_plane(0.1, body=np.arange(2, 6)), r"body1\[2\] = 4, .*body1\[3\] = 5:"),
        (
            lambda: sphere_on_sphere(0.1, 0.1, np.arange(20), np.arange(1, 21)),
            r"body1\[4\] = 4, .* and 8 more: the system",
        ),
        (lambda: sphere_on_sphere(0.1, 0.1, 0, (1, 7)), r"body2\[1\] = 7: the system"),
    ],
)
def test_indices_of_bodies_that_are_not_there_are_named(make, message):
    system = NewtonEulerSystem(jnp.ones(4), jnp.ones((4, 3)))
    state = State(POSE, jnp.zeros(24))
    with pytest.raises(ValueError, match=message):
        simulate(
            Model(system, Interaction(make(), NewtonImpact())), MoreauJean(), 0.0, 0.1, 0.1, state
        )


def test_indices_that_are_refused_where_a_relation_is_made():
    with pytest.raises(ValueError, match=r"body1\[1\] = 9: the system has the bodies 0 to 3"):
        ball_joint(POSE, POINTS[0], (0, 9), None)
    with pytest.raises(ValueError, match="as long as each other"):
        fixed_joint(POSE, (0, 1), (2, 3, 1))
    with pytest.raises(ValueError, match="2 entries for 3 points"):
        BodyPointsPlane(POINTS, body=(0, 1))
    with pytest.raises(ValueError, match="must be an integer or a list of integers"):
        sphere_on_plane(0.1, body=0.5)
    with pytest.raises(ValueError, match=r"shape \(c,\)"):
        sphere_on_plane(0.1, body=np.zeros((2, 2), int))
    with pytest.raises(ValueError, match="part of the program"):
        jax.jit(lambda i: sphere_on_plane(0.1, body=i).gap(0.0, POSE))(1)
    three = PlanarContact(lambda t, q: (jnp.ones((3, 2)),) * 3, (0, 1))
    with pytest.raises(ValueError, match="body1 has 2 entries for 3 contacts"):
        three.gap(0.0, PLANAR)
