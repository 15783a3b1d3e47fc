"""Relations: velocities from geometry, forces from virtual power."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import Interaction, State
from diffnsd.groups import SO3, Euclidean, Pose, PoseGroup, rotate, rotation_matrix
from diffnsd.laws import Equality
from diffnsd.relations import BodyPointsPlane, ContactFrame, GapRelation, tangents
from diffnsd.relations._base import AbstractRelation
from diffnsd.systems import LagrangianSystem

RANDOM = np.random.default_rng(0)


def pose_state(bodies, seed=0):
    random = np.random.default_rng(seed)
    q = random.normal(size=(bodies, 4))
    pose = Pose(
        jnp.asarray(random.normal(size=(bodies, 3))),
        jnp.asarray(q / np.linalg.norm(q, axis=1, keepdims=True)),
    )
    return State(pose, jnp.asarray(random.normal(size=6 * bodies)))


POINTS = RANDOM.normal(size=(5, 3))
NORMAL = np.array([0.48, -0.6, 0.64])


def sphere_on_ground(t, pose, radius=0.3):
    """Lowest points of the spheres against the plane z = 0."""
    del t
    x = pose.position[:1]
    up = jnp.broadcast_to(jnp.array([0.0, 0.0, 1.0]), x.shape)
    return x - radius * up, x * jnp.array([[1.0, 1.0, 0.0]]), up


def two_spheres(t, pose, radii=(0.3, 0.5)):
    del t
    x1, x2 = pose.position[0], pose.position[1]
    d = x1 - x2
    n = d / jnp.sqrt(jnp.sum(d * d))
    return (x1 - radii[0] * n)[None], (x2 + radii[1] * n)[None], n[None]


def pendulum_tip(t, q):
    """Height of a point of a body that turns about a fixed pivot, over a lift."""
    return rotate(q, jnp.array([0.3, -0.2, 0.7]))[2:] - 0.1 * jnp.sin(3 * t)


def slip_gap(t, q):
    return jnp.stack([q[:1] * q[1:2] - t**2, q[1:2] ** 3], axis=-1)


NETWORK = eqx.nn.MLP(2, 3, 8, 1, jnp.tanh, key=jax.random.key(1))


CASES = {
    "a neural network": (
        Euclidean(2),
        GapRelation(lambda t, q: NETWORK(q) - 0.1 * t),
        State(jnp.array([0.7, -1.2]), jnp.array([0.3, 2.0])),
    ),
    "points": (PoseGroup(1), BodyPointsPlane(POINTS, NORMAL, 0.2), pose_state(1)),
    "points of the second body": (
        PoseGroup(2),
        BodyPointsPlane(POINTS, NORMAL, 0.2, body=1),
        pose_state(2),
    ),
    "sphere on ground": (PoseGroup(1), ContactFrame(sphere_on_ground), pose_state(1)),
    "two spheres": (PoseGroup(2), ContactFrame(two_spheres, 0, 1), pose_state(2)),
    "rheonomous gap on rotations": (
        SO3(),
        GapRelation(pendulum_tip),
        State(SO3().exp(jnp.array([0.4, 1.0, -0.3])), jnp.array([1.0, 2.0, -0.5])),
    ),
    "gap and slip": (
        Euclidean(2),
        GapRelation(slip_gap, rows_per_contact=2),
        State(jnp.array([0.7, -1.2]), jnp.array([0.3, 2.0])),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_virtual_power(name):
    """`u = H v + drift`, the same H as `linearised`, and forces do the power of the multipliers."""
    group, relation, state = CASES[name]
    t = jnp.asarray(0.3)

    @eqx.filter_jit
    def evaluate(state, lam):
        h, drift = relation.linearised(group, t, state.q)
        force = relation.input(group, t, state, lam)
        u = relation.output(group, t, state, None)
        base = AbstractRelation.observe(relation, group, t, state.q)
        return h, drift, force, u, relation.gap(t, state.q), base

    contacts = relation.gap(t, state.q).shape[0]
    lam = jnp.asarray(RANDOM.normal(size=(contacts, relation.rows)))
    h, drift, force, u, gap, base = evaluate(state, lam)
    assert u.shape == (contacts, relation.rows) and gap.shape == (contacts,)
    np.testing.assert_allclose(
        u, np.einsum("knc,n->ck", h, state.v) + np.asarray(drift).T, rtol=0, atol=1e-14
    )
    np.testing.assert_allclose(
        np.dot(force, state.v), np.sum(np.asarray(lam) * (u - np.asarray(drift).T)), rtol=1e-12
    )
    # The written-out H equals the one by automatic differentiation.
    np.testing.assert_allclose(h, base.dense(), rtol=0, atol=1e-15 * 4)
    np.testing.assert_allclose(drift, base.drift, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", CASES)
def test_normal_velocity_is_the_rate_of_the_gap(name):
    """Also for contact points that move over the bodies: they do not change the gap."""
    group, relation, state = CASES[name]

    def gap(s):
        q = group.compose(state.q, group.exp(s * state.v))
        return relation.gap(0.3 + s, q)

    _, rate = eqx.filter_jit(lambda: jax.jvp(gap, (0.0,), (1.0,)))()
    u = relation.output(group, jnp.asarray(0.3), state, None)
    np.testing.assert_allclose(u[:, 0], rate, rtol=0, atol=1e-14)


def test_gap_on_rotations_has_the_closed_form():
    """For `g = e3 . R r` the derivative along a body rotation w is `w . (r x R^T e3)`."""
    group, relation, state = CASES["rheonomous gap on rotations"]
    t, r = 0.3, np.array([0.3, -0.2, 0.7])
    rotation = np.asarray(rotation_matrix(state.q))
    h, drift = relation.linearised(group, jnp.asarray(t), state.q)
    np.testing.assert_allclose(h[0, :, 0], np.cross(r, rotation[2]), rtol=0, atol=1e-15)
    np.testing.assert_allclose(drift[0, 0], -0.3 * np.cos(3 * t), rtol=1e-15)
    gap = relation.gap(jnp.asarray(t), state.q)
    np.testing.assert_allclose(gap[0], rotation[2] @ r - 0.1 * np.sin(3 * t), rtol=1e-14)


def test_parameters_of_a_gap_function_are_differentiable():
    class Wall(eqx.Module):
        position: jax.Array

        def __call__(self, t, q):
            return q - self.position

    gap = jax.grad(lambda x: GapRelation(Wall(x)).gap(0.0, jnp.ones(1))[0])(jnp.asarray(0.25))
    assert gap == -1


def test_gap_function_of_a_wrong_shape():
    relation = GapRelation(lambda t, q: jnp.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"shape \(2, 3\).*rows_per_contact=1"):
        relation.gap(jnp.asarray(0.0), jnp.zeros(1))
    with pytest.raises(ValueError, match=r"shape \(1,\).*\(c, 3\)"):
        GapRelation(lambda t, q: q, rows_per_contact=3).gap(jnp.asarray(0.0), jnp.zeros(1))


def test_points_against_a_plane():
    """The gap from scratch, and the velocity of a material point by moving it."""
    _, relation, state = CASES["points"]
    rotation = np.asarray(rotation_matrix(state.q.orientation[0]))
    world = np.asarray(state.q.position[0]) + POINTS @ rotation.T
    np.testing.assert_allclose(relation.gap(0.0, state.q), world @ NORMAL - 0.2, rtol=1e-13)

    velocity = np.asarray(state.v[:3]) + np.cross(rotation @ state.v[3:], POINTS @ rotation.T)
    frame = np.stack([NORMAL, *map(np.asarray, tangents(jnp.asarray(NORMAL)))])
    u = relation.output(PoseGroup(1), jnp.asarray(0.0), state, None)
    np.testing.assert_allclose(u, velocity @ frame.T, rtol=0, atol=1e-14)


def test_points_of_one_body_only():
    group, relation, state = CASES["points of the second body"]
    h, _ = relation.linearised(group, jnp.asarray(0.0), state.q)
    assert np.all(np.asarray(h)[:, :6] == 0)
    alone = State(Pose(state.q.position[1:], state.q.orientation[1:]), state.v[6:])
    first = BodyPointsPlane(POINTS, NORMAL, 0.2)
    np.testing.assert_allclose(relation.gap(0.0, state.q), first.gap(0.0, alone.q), rtol=1e-14)
    h1, _ = first.linearised(PoseGroup(1), jnp.asarray(0.0), alone.q)
    np.testing.assert_allclose(h[:, 6:], h1, rtol=1e-14)


def test_points_can_be_restricted():
    _, relation, state = CASES["points"]
    kept = relation.take(lambda x: x[jnp.array([3, 0])])
    full = relation.gap(0.0, state.q)
    np.testing.assert_array_equal(kept.gap(0.0, state.q), full[jnp.array([3, 0])])
    assert GapRelation(slip_gap).take(lambda x: x[:1]) is None


@pytest.mark.parametrize("normal", [(0.0, 0.0, 0.0), (0.0, 0.0, 2.0), (0.6, 0.6, 0.6)])
def test_normals_that_are_refused(normal):
    """Not normalised: with another length it is open what the offset means."""
    with pytest.raises(ValueError, match="has length .*; divide it by its length"):
        BodyPointsPlane(POINTS, normal)
    moved = eqx.tree_at(lambda r: r.normal, BodyPointsPlane(POINTS), jnp.asarray(normal))
    assert "divide it by its length" in moved.check(PoseGroup(1))
    # In single precision a unit vector is one to 1e-7.
    near = jnp.asarray(NORMAL, jnp.float32)
    assert BodyPointsPlane(jnp.asarray(POINTS, jnp.float32), near).check(PoseGroup(1)) is None


@pytest.mark.parametrize(
    ("relation", "group", "words"),
    [
        (BodyPointsPlane(POINTS, body=3), PoseGroup(1), "body is 3, .* the bodies 0 to 0"),
        (BodyPointsPlane(POINTS, body=-1), PoseGroup(2), "body is -1, .* the bodies 0 to 1"),
        (BodyPointsPlane(POINTS), Euclidean(6), "needs rigid bodies"),
        (ContactFrame(two_spheres, 1, 0), PoseGroup(1), "body1 is 1, "),
        (ContactFrame(two_spheres, 0, 2), PoseGroup(2), "body2 is 2, .* the bodies 0 to 1"),
    ],
)
def test_bodies_that_do_not_exist(relation, group, words):
    assert re.search(words, relation.check(group))


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_wrong_with_the_relations_of_these_tests(name):
    group, relation, _ = CASES[name]
    assert relation.check(group) is None


def test_contact_function_of_a_wrong_shape():
    relation = ContactFrame(lambda t, pose: (jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.zeros(3)))
    with pytest.raises(ValueError, match=r"expected \(p1, p2, n\), each \(c, 3\)"):
        relation.gap(jnp.asarray(0.0), None)


@pytest.mark.parametrize("points", [np.zeros(3), np.zeros((2, 2))])
def test_points_of_a_wrong_shape(points):
    with pytest.raises(ValueError, match=r"points must have shape \(c, 3\)"):
        BodyPointsPlane(points)


def test_rolling_sphere_does_not_slip():
    """`v = w x (r e3)`: the contact point is at rest, for any attitude of the sphere."""
    _, relation, state = CASES["sphere on ground"]
    spin = np.array([0.5, -1.5, 2.0])  # world frame
    rolling = np.cross(spin, [0, 0, 0.3])
    body = np.asarray(rotation_matrix(state.q.orientation[0])).T @ spin
    moving = State(state.q, jnp.asarray(np.concatenate([rolling, body])))
    u = relation.output(PoseGroup(1), jnp.asarray(0.0), moving, None)
    np.testing.assert_allclose(u, np.zeros((1, 3)), rtol=0, atol=1e-15)
    np.testing.assert_allclose(relation.gap(0.0, state.q), state.q.position[:, 2] - 0.3)

    sliding = State(state.q, jnp.asarray(np.concatenate([rolling + [0.1, 0.2, 0.7], body])))
    u = np.asarray(relation.output(PoseGroup(1), jnp.asarray(0.0), sliding, None))
    first, second = map(np.asarray, tangents(jnp.array([0.0, 0.0, 1.0])))
    np.testing.assert_allclose(u[0, 0], 0.7, rtol=1e-14)
    np.testing.assert_allclose(u[0, 1] * first + u[0, 2] * second, [0.1, 0.2, 0], atol=1e-15)


def test_action_is_reaction():
    """Two spheres: forces cancel, and so do the moments about the origin."""
    group, relation, state = CASES["two spheres"]
    lam = jnp.asarray(RANDOM.normal(size=(1, 3)))
    force = np.asarray(relation.input(group, jnp.asarray(0.0), state, lam)).reshape(2, 6)
    np.testing.assert_allclose(force[0, :3], -force[1, :3], rtol=1e-14)
    world = [
        np.asarray(rotation_matrix(q)) @ f[3:]
        for q, f in zip(state.q.orientation, force, strict=True)
    ]
    x = np.asarray(state.q.position)
    # The contact points coincide only in contact: the rest is the moment of the gap.
    p1, p2, n = (np.asarray(a)[0] for a in two_spheres(0.0, state.q))
    moment = sum(world) + np.cross(x[0], force[0, :3]) + np.cross(x[1], force[1, :3])
    np.testing.assert_allclose(moment, np.cross(p1 - p2, force[0, :3]), rtol=0, atol=1e-14)
    # A normal force pushes body 1 along the normal and turns nothing.
    push = relation.input(group, jnp.asarray(0.0), state, jnp.asarray([[2.0, 0.0, 0.0]]))
    np.testing.assert_allclose(push, [*(2 * n), 0, 0, 0, *(-2 * n), 0, 0, 0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", [(0, 0, 1), (0, 0, -1), (1, 0, 0), (0.6, -0.8, 0), (1e-9, 0, -1)])
def test_tangents_complete_a_right_handed_frame(n):
    n = np.array(n, float) / np.linalg.norm(n)
    frame = np.stack([n, *map(np.asarray, tangents(jnp.asarray(n)))])
    np.testing.assert_allclose(frame @ frame.T, np.eye(3), rtol=0, atol=1e-15)
    np.testing.assert_allclose(np.linalg.det(frame), 1, rtol=1e-14)


def test_a_relation_says_how_many_rows_it_has():
    class Forgetful(AbstractRelation):
        def output(self, group, t, state, lam):
            return state.v[None]

    with pytest.raises(TypeError, match=r"Forgetful does not say .*write `rows = 1`"):
        Forgetful()


def test_outputs_of_a_wrong_shape():
    class Flat(AbstractRelation):
        rows = 1

        def output(self, group, t, state, lam):
            return state.v

    with pytest.raises(
        ValueError, match=r"Flat.output must have shape \(c, k\), here \(c, 1\).* \(2,\)"
    ):
        Flat().observe(Euclidean(2), 0.0, jnp.zeros(2))
    first_order = Interaction(Flat(), Equality())
    with pytest.raises(ValueError, match=r"Flat.output must have shape \(c, k\)"):
        system = LagrangianSystem(np.eye(2))
        first_order.output(system, 0.0, system.state(jnp.zeros(2)), jnp.zeros((2, 1)))
