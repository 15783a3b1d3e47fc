"""Joints, rolling rows, contacts in the plane, and velocities that are given."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import Interaction, Model, MoreauJean, SaveAt, State, simulate
from diffnsd.groups import Euclidean, Pose, PoseGroup, rotate, rotation_matrix
from diffnsd.laws import Equality
from diffnsd.relations import (
    ContactFrame,
    GapRelation,
    Harmonic,
    JointCoupler,
    PlanarContact,
    PrescribedVelocity,
    RateRelation,
    ball_joint,
    cylindrical,
    fixed_joint,
    hinge,
    prismatic,
)
from diffnsd.systems import NewtonEulerSystem

RANDOM = np.random.default_rng(3)
AXIS = np.array([0.48, -0.6, 0.64])
POINT = np.array([0.2, 0.5, -0.3])


def two_bodies():
    q = RANDOM.normal(size=(2, 4))
    return Pose(
        jnp.asarray(RANDOM.normal(size=(2, 3))),
        jnp.asarray(q / np.linalg.norm(q, axis=1, keepdims=True)),
    )


Q = two_bodies()
JOINTS = {
    "ball": (lambda *b: ball_joint(Q, POINT, *b), 3),
    "hinge": (lambda *b: hinge(Q, POINT, AXIS, *b), 5),
    "prismatic": (lambda *b: prismatic(Q, AXIS, *b), 5),
    "cylindrical": (lambda *b: cylindrical(Q, POINT, AXIS, *b), 4),
    "fixed": (lambda *b: fixed_joint(Q, *b), 6),
}


def moved(turn, slide):
    """Body 0 after a turn about the axis through the point, and a slide along the axis."""
    half = turn / 2
    spin = jnp.asarray(np.concatenate([[np.cos(half)], np.sin(half) * AXIS]))
    # Turn in the world frame: from the left.
    w, x = spin[0], spin[1:]
    a, b = Q.orientation[0, 0], Q.orientation[0, 1:]
    orientation = jnp.concatenate([(w * a - x @ b)[None], w * b + a * x + jnp.cross(x, b)])
    position = POINT + rotate(spin, Q.position[0] - POINT) + slide * AXIS
    return Pose(Q.position.at[0].set(position), Q.orientation.at[0].set(orientation))


@pytest.mark.parametrize("bodies", [(0, None), (0, 1)], ids=["world", "two bodies"])
@pytest.mark.parametrize("name", JOINTS)
def test_joints_hold_where_they_were_made_and_lock_what_they_should(name, bodies):
    make, rows = JOINTS[name]
    joint = make(*bodies)
    start = np.asarray(joint(0.0, Q))
    assert start.shape == (rows,)
    np.testing.assert_allclose(start, 0, atol=2e-15)  # measured 1.01e-15
    relation, group = GapRelation(joint), PoseGroup(2)
    h = np.asarray(eqx.filter_jit(lambda q: relation.linearised(group, jnp.zeros(()), q)[0])(Q))[
        0
    ].T
    assert np.linalg.matrix_rank(h, tol=1e-10) == rows  # no row is redundant
    if bodies[1] is not None:
        # What both bodies do together is free.
        omega = RANDOM.normal(size=3)
        twist = [
            np.concatenate([np.cross(omega, x), rotation_matrix(p).T @ omega])
            for x, p in zip(np.asarray(Q.position), Q.orientation, strict=True)
        ]
        np.testing.assert_allclose(h @ np.concatenate(twist), 0, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "turn", "slide", "holds"),
    [
        ("ball", 0.7, 0.0, True),
        ("ball", 0.0, 0.1, False),
        ("hinge", 2.5, 0.0, True),
        ("hinge", 0.0, 0.1, False),
        ("prismatic", 0.0, 0.3, True),
        ("prismatic", 0.2, 0.0, False),
        ("cylindrical", -1.2, 0.3, True),
        ("fixed", 0.1, 0.0, False),
        ("fixed", 0.0, 0.1, False),
    ],
)
def test_what_is_free(name, turn, slide, holds):
    joint = JOINTS[name][0](0, 1)
    values = np.abs(joint(0.0, moved(turn, slide)))
    assert (np.max(values) < 1e-14) == holds


def test_coordinates_of_a_joint():
    joint = cylindrical(Q, POINT, AXIS, 0, 1)
    for turn, slide in ((0.4, -0.2), (-2.9, 0.0), (1.5, 3.0)):
        q = moved(turn, slide)
        np.testing.assert_allclose(joint.angle(0.0, q), turn, rtol=1e-13)
        np.testing.assert_allclose(joint.displacement(0.0, q), slide, rtol=0, atol=1e-14)
        gaps = joint.limits(joint.angle, -1.0, 2.0)(0.0, q)
        np.testing.assert_allclose(gaps, [turn + 1, 2 - turn], rtol=1e-13)
    # The rate of the angle is the relative spin about the axis.
    state = State(Q, jnp.asarray(RANDOM.normal(size=12)))
    spins = [rotate(p, state.v.reshape(2, 6)[i, 3:]) for i, p in enumerate(Q.orientation)]
    relation = RateRelation(joint.angle)
    rate = relation.output(PoseGroup(2), jnp.zeros(()), state, None)
    np.testing.assert_allclose(rate, [[(spins[0] - spins[1]) @ AXIS]], rtol=1e-13)
    assert relation.gap(jnp.zeros(()), Q) is None


def test_bad_joints():
    with pytest.raises(ValueError, match="body1 is 2, but the system has the bodies 0 to 1"):
        ball_joint(Q, POINT, 2)
    with pytest.raises(ValueError, match=r"must have shape \(3,\)"):
        hinge(Q, POINT, AXIS[:2])
    with pytest.raises(ValueError, match="the joint connects the world with itself"):
        hinge(Q, POINT, AXIS, None, None)
    with pytest.raises(ValueError, match="joint 1 connects body 1 with itself"):
        ball_joint(Q, POINT, [0, 1], 1)


@pytest.mark.parametrize("q", [State(Q, jnp.zeros(12)), jnp.zeros(3)], ids=["state", "tree"])
def test_joints_are_made_at_poses(q):
    for make in (lambda: ball_joint(q, POINT), lambda: fixed_joint(q)):
        with pytest.raises(TypeError, match=r"q must be the Pose .* state.q .* system.frames\(q\)"):
            make()


def two_spheres(t, pose):
    del t
    d = pose.position[0] - pose.position[1]
    n = d / jnp.sqrt(jnp.sum(d * d))
    return (pose.position[0] - 0.3 * n)[None], (pose.position[1] + 0.5 * n)[None], n[None]


def test_rolling_rows_are_the_relative_spin():
    group, state = PoseGroup(2), State(Q, jnp.asarray(RANDOM.normal(size=12)))
    plain, rolling = ContactFrame(two_spheres, 0, 1), ContactFrame(two_spheres, 0, 1, rolling=True)
    t = jnp.zeros(())
    u = np.asarray(rolling.output(group, t, state, None))
    assert u.shape == (1, 5)
    np.testing.assert_allclose(u[:, :3], plain.output(group, t, state, None), rtol=1e-14)
    spins = [
        np.asarray(rotate(p, state.v.reshape(2, 6)[i, 3:])) for i, p in enumerate(Q.orientation)
    ]
    normal = np.asarray(two_spheres(0.0, Q)[2])[0]
    turn = spins[0] - spins[1]
    # Of the relative spin only the drilling part is left out.
    np.testing.assert_allclose(
        np.sum(u[0, 3:] ** 2), turn @ turn - (turn @ normal) ** 2, rtol=1e-12
    )


def discs(t, q):
    del t
    d = q[:2] - q[3:5]
    n = d / jnp.sqrt(jnp.sum(d * d))
    return (q[:2] - 0.2 * n)[None], (q[3:5] + 0.4 * n)[None], n[None]


def test_contact_of_two_discs():
    """Slip of discs: the difference of the rim speeds, which the spins add to."""
    relation = PlanarContact(discs, 0, 1, rolling=True)
    q = jnp.array([0.0, 1.0, 0.3, 0.0, 0.2, -0.4])
    v = jnp.array([0.5, -0.7, 2.0, 0.1, 0.3, -1.0])
    t = jnp.zeros(())
    np.testing.assert_allclose(relation.gap(t, q), [0.2], rtol=1e-14)
    u = relation.output(Euclidean(6), t, State(q, v), None)
    # The normal is e_y, the tangent −e_x: u_T = −(v_x1 + ω1 0.2 − v_x2 + ω2 0.4).
    np.testing.assert_allclose(u, [[-1.0, -(0.5 + 0.4 - 0.1 - 0.4), 3.0]], rtol=1e-14)
    rate = jax.jvp(lambda s: relation.gap(t, q + s * v), (0.0,), (1.0,))[1]
    np.testing.assert_allclose(u[:, 0], rate, rtol=1e-14)
    assert "planar bodies" in (relation.check(Euclidean(4)) or "")
    assert "body2 is 1" in (relation.check(Euclidean(3)) or "")
    assert relation.check(Euclidean(6)) is None
    with pytest.raises(ValueError, match=r"each \(c, 2\)"):
        PlanarContact(lambda t, q: (q, q, q)).gap(t, q)


def test_prescribed_velocities():
    group = Euclidean(3)
    state = State(jnp.zeros(3), jnp.array([1.0, 2.0, 3.0]))
    drive = PrescribedVelocity((2, 0), Harmonic([2.0, 0.0], [1.0, 0.5], 3.0, 0.1))
    t = jnp.asarray(0.7)
    wanted = np.array([2 + np.cos(2.2), 0.5 * np.cos(2.2)])
    u = drive.output(group, t, state, None)
    np.testing.assert_allclose(u[:, 0], [3.0 - wanted[0], 1.0 - wanted[1]], rtol=1e-14)
    h, drift = drive.linearised(group, t, state.q)
    np.testing.assert_array_equal(h[0].T, [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(drift[0], -wanted, rtol=1e-14)
    np.testing.assert_array_equal(PrescribedVelocity(1).output(group, t, state, None), [[2.0]])
    assert "index has 3" in (PrescribedVelocity(3).check(group) or "")


@eqx.filter_jit
def reached(model, start, t1, dt):
    """The state at the end."""
    return simulate(model, MoreauJean(), 0.0, t1, dt, start, saveat=SaveAt.end()).states


def test_a_screw():
    """A nut that falls turns: `z = lead θ`, `(m + I/lead²) z'' = −m g`."""
    mass, inertia, lead, g = 2.0, 0.01, 0.05, 9.81
    q = Pose(jnp.zeros((1, 3)), jnp.array([[1.0, 0.0, 0.0, 0.0]]))
    guide = cylindrical(q, np.zeros(3), [0.0, 0.0, 1.0])
    thread = JointCoupler(guide.displacement, guide.angle, lead)
    model = Model(
        NewtonEulerSystem(mass, inertia, gravity=(0.0, 0.0, -g)),
        [
            Interaction(GapRelation(guide), Equality()),
            Interaction(RateRelation(thread), Equality()),
        ],
    )
    start = State(q, jnp.zeros(6))
    end = reached(model, start, 0.5, 1e-2)
    fall = -mass * g / (mass + inertia / lead**2) * 0.5
    np.testing.assert_allclose(end.v[jnp.array([2, 5])], [fall, fall / lead], rtol=1e-9)
    np.testing.assert_allclose(end.q.position[0, 2], fall * 0.25, rtol=1e-9)


def test_a_pair_of_gears():
    """Rates in the ratio of the gears, over several turns; the torque is shared by inertias."""
    inertia, ratio, torque = 0.3, -2.5, 4.0
    still = jnp.array([[1.0, 0.0, 0.0, 0.0]] * 2)
    q = Pose(jnp.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), still)
    axis = [0.0, 0.0, 1.0]
    hinges = [hinge(q, q.position[i], axis, i) for i in (0, 1)]
    teeth = JointCoupler(hinges[0].angle, hinges[1].angle, ratio)
    turning = lambda t, state, args: jnp.zeros((2, 6)).at[0, 5].set(torque)  # noqa: E731
    model = Model(
        NewtonEulerSystem([1.0, 1.0], [[inertia] * 3] * 2, gravity=(0.0, 0.0, 0.0), wrench=turning),
        # Without bearings: a couple about the axes of two free round bodies moves nothing else.
        Interaction(RateRelation(teeth), Equality()),
    )
    end = reached(model, State(q, jnp.zeros(12)), 3.0, 0.05)
    first = torque / (inertia + inertia / ratio**2) * 3.0
    assert first > 4 * np.pi  # it has turned round several times
    np.testing.assert_allclose(end.v[jnp.array([5, 11])], [first, first / ratio], rtol=1e-9)
