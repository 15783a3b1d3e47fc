"""Sensors of a state against closed forms, with their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import sensors
from diffnsd.groups import quaternion_product, rotation_matrix
from diffnsd.relations import Coordinates, hinge
from diffnsd.systems import Body, Free, Hinge

ZERO = jnp.zeros(())
INERTIA = jnp.diag(jnp.array([0.1, 0.2, 0.25]))
POINT = np.array([0.3, -0.2, 0.5])


def turned(rng):
    q = rng.normal(size=4)
    return q / np.linalg.norm(q)


@pytest.fixture(scope="module")
def two_bodies():
    """The same two free bodies twice: by their poses, and as a tree of free joints."""
    rng = np.random.default_rng(1)
    free = nsd.NewtonEulerSystem(jnp.array([2.0, 3.0]), jnp.stack([INERTIA, 2 * INERTIA]))
    tree = nsd.Multibody([Body(2.0, INERTIA, Free()), Body(3.0, 2 * INERTIA, Free())])
    position, v = rng.normal(size=(2, 3)), jnp.asarray(rng.normal(size=12))
    turns = np.stack([turned(rng), turned(rng)])
    q = jnp.asarray(np.concatenate([position, turns], axis=1).reshape(-1))
    poses = nsd.Pose(jnp.asarray(position), jnp.asarray(turns))
    return nsd.Model(free), nsd.State(poses, v), nsd.Model(tree), nsd.State(q, v)


def every_sensor():
    rng = np.random.default_rng(2)
    one, two = (sensors.Site(i, rng.normal(size=3), turned(rng)) for i in (0, 1))
    found = {
        "position": sensors.FramePosition(one, two),
        "orientation": sensors.FrameOrientation(one, two),
        "axis": sensors.FrameAxis(one, 1, two),
        "velocity": sensors.FrameLinearVelocity(one, two),
        "rate": sensors.FrameAngularVelocity(one, two),
        "gyro": sensors.Gyro(two),
        "velocimeter": sensors.Velocimeter(one),
        "magnetometer": sensors.Magnetometer(one, (0.2, 0.0, -0.4)),
        "centre": sensors.CentreOfMass(),
        "centre_velocity": sensors.CentreOfMassVelocity([0, 1]),
        "momentum": sensors.AngularMomentum(),
    }
    return sensors.Sensors(found)


def test_free_bodies_and_trees_read_the_same(two_bodies):
    free, state, tree, joints = two_bodies
    read = jax.jit(lambda model, state: every_sensor().at(model, ZERO, state))
    one, two = read(free, state), read(tree, joints)
    assert set(one) == set(every_sensor()) and len(every_sensor()) == 11
    for name in one:
        np.testing.assert_allclose(one[name], two[name], atol=1e-14)  # 1e-15


def test_readings_are_those_of_rigid_body_kinematics(two_bodies):
    """Written out with matrices in NumPy, for two bodies and a moving reference."""
    free, state, _, _ = two_bodies
    found = every_sensor()
    got = found.at(free, ZERO, state)
    turns = [np.asarray(rotation_matrix(q)) for q in state.q.orientation]
    v = np.asarray(state.v).reshape(2, 6)
    sites = found["position"].site, found["position"].reference
    p, axes, speed, rate = [], [], [], []
    for i, (turn, site) in enumerate(zip(turns, sites, strict=True)):
        omega, arm = turn @ v[i, 3:], turn @ np.asarray(site.position)
        p.append(np.asarray(state.q.position[i]) + arm)
        axes.append(turn @ np.asarray(rotation_matrix(site.orientation)))
        speed.append(v[i, :3] + np.cross(omega, arm))
        rate.append(omega)
    inward = axes[1].T
    closed = {
        "position": inward @ (p[0] - p[1]),
        "axis": inward @ axes[0][:, 1],
        "velocity": inward @ (speed[0] - speed[1] - np.cross(rate[1], p[0] - p[1])),
        "rate": inward @ (rate[0] - rate[1]),
        "gyro": axes[1].T @ rate[1],
        "velocimeter": axes[0].T @ speed[0],
        "magnetometer": axes[0].T @ [0.2, 0.0, -0.4],
    }
    for name, expected in closed.items():
        np.testing.assert_allclose(got[name], expected, atol=1e-14)  # 1e-15
    np.testing.assert_allclose(
        rotation_matrix(got["orientation"]), inward @ axes[0], atol=1e-14
    )  # 1e-15
    mass, x = np.array([2.0, 3.0])[:, None], np.asarray(state.q.position)
    centre, drift = (mass * x).sum(0) / 5, (mass * v[:, :3]).sum(0) / 5
    spins = sum(
        turn @ (scale * np.asarray(INERTIA)) @ own
        for turn, scale, own in zip(turns, (1, 2), v[:, 3:], strict=True)
    )
    orbital = np.cross(x - centre, mass * (v[:, :3] - drift)).sum(0)
    np.testing.assert_allclose(got["centre"], centre, atol=1e-14)
    np.testing.assert_allclose(got["centre_velocity"], drift, atol=1e-14)
    np.testing.assert_allclose(got["momentum"], spins + orbital, atol=1e-14)  # 1e-15


def test_velocity_of_the_reference_frame_is_the_rate_of_the_position(two_bodies):
    """Along a motion with constant velocities, differentiated."""
    free, state, _, _ = two_bodies
    found = every_sensor()

    def position(s):
        turn = free.system.group.exp(s * state.v)
        moved = nsd.State(free.system.group.compose(state.q, turn), state.v)
        return found["position"].at(free, ZERO, moved)

    _, rate = jax.jvp(position, (ZERO,), (jnp.ones(()),))
    np.testing.assert_allclose(found["velocity"].at(free, ZERO, state), rate, atol=1e-13)  # 1e-15


def test_derivatives_by_the_place_of_a_site(two_bodies):
    """`d(R_s^T v)/dp = R_s^T [ω]_x R` and `d(p)/dp = R`, forward and reverse, by state and place."""
    free, state, _, _ = two_bodies
    turn = np.asarray(rotation_matrix(state.q.orientation[0]))
    own = np.asarray(state.v)[3:6]
    hat = np.array([[0, -own[2], own[1]], [own[2], 0, -own[0]], [-own[1], own[0], 0]])

    def velocity(place):
        return sensors.Velocimeter(sensors.Site(0, place)).at(free, ZERO, state)

    def position(place):
        return sensors.FramePosition(sensors.Site(0, place)).at(free, ZERO, state)

    for jacobian in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(jacobian(velocity)(jnp.asarray(POINT)), hat, atol=1e-14)
        np.testing.assert_allclose(jacobian(position)(jnp.asarray(POINT)), turn, atol=1e-14)

    def of_rates(v):
        return sensors.Velocimeter(sensors.Site(0, POINT)).at(free, ZERO, nsd.State(state.q, v))

    expected = np.zeros((3, 12))
    skew = np.cross(np.eye(3), POINT)  # rows e × p: ω × p = −[p]_x ω
    expected[:, :3], expected[:, 3:6] = turn.T, skew.T
    np.testing.assert_allclose(jax.jacrev(of_rates)(state.v), expected, atol=1e-14)  # 2e-16


ARM = nsd.Multibody(
    [
        Body(1.0, INERTIA, Hinge((0.0, 1.0, 0.0)), position=(0.0, 0.0, 1.0)),
        Body(0.5, INERTIA, Hinge((1.0, 0.0, 0.0)), 0, position=(0.4, 0.0, 0.0)),
    ]
)


def test_joints_and_functions_of_the_configuration():
    model = nsd.Model(ARM)
    state = ARM.state([0.3, -0.7], [1.5, 0.2])

    start = ARM.frames(jnp.zeros(2))
    joint = hinge(start, (0.4, 0.0, 1.0), (1.0, 0.0, 0.0), 1, 0)
    found = {
        "angle": (sensors.JointPosition(1), [-0.7]),
        "rates": (sensors.JointVelocity([1, 0]), [0.2, 1.5]),
        "entry": (sensors.Coordinate(Coordinates([1])), [-0.7]),
        "hinge": (sensors.Coordinate(joint.angle), [-0.7]),
        "hinge_rate": (sensors.CoordinateRate(joint.angle), [0.2]),
        "product_rate": (
            sensors.CoordinateRate(lambda t, q: q[:1] * q[1:]),
            [0.3 * 0.2 - 0.7 * 1.5],
        ),
        "force": (sensors.ActuatorForce(lambda t, state, args: args * state.v, 1), [0.6]),
    }
    together = sensors.Sensors({name: sensor for name, (sensor, _) in found.items()})
    got = together.at(model, ZERO, state, jnp.array([2.0, 3.0]))
    for name, (_, expected) in found.items():
        np.testing.assert_allclose(got[name], expected, atol=1e-14)  # 1e-16
    assert together.names() == tuple(sorted(found)) == tuple(sorted(together))


def test_ball_joint_is_the_product_of_frames():
    """The orientation that a frame reads relative to its parent is the quaternion of the joint."""
    from diffnsd.systems import Ball

    rng = np.random.default_rng(4)
    one, two = turned(rng), turned(rng)
    tree = nsd.Multibody([Body(1.0, INERTIA, Ball()), Body(1.0, INERTIA, Ball(), 0)])
    model, state = nsd.Model(tree), tree.state(jnp.asarray(np.concatenate([one, two])))
    relative = sensors.FrameOrientation(sensors.Site(1), sensors.Site(0)).at(model, ZERO, state)
    np.testing.assert_allclose(relative, two, atol=1e-15)
    alone = sensors.FrameOrientation(sensors.Site(1)).at(model, ZERO, state)
    np.testing.assert_allclose(alone, quaternion_product(one, two), atol=1e-15)
    np.testing.assert_array_equal(
        sensors.JointPosition([4, 5, 6, 7]).at(model, ZERO, state), state.q[4:]
    )


def test_single_precision_stays_single(two_bodies):
    free, state, _, _ = two_bodies
    low, at = jax.tree.map(lambda x: x.astype(jnp.float32), (free, state))
    exact = every_sensor().at(free, ZERO, state)
    for name, reading in every_sensor().at(low, ZERO, at).items():
        assert reading.dtype == jnp.float32
        np.testing.assert_allclose(reading, exact[name], atol=5e-6)  # 1e-6


@pytest.mark.parametrize(
    ("sensor", "sentence"),
    [
        (lambda: sensors.Gyro(sensors.Site(2)), "the system has the bodies 0 to 1"),
        (lambda: sensors.CentreOfMass([0, 5]), "the system has the bodies 0 to 1"),
        (lambda: sensors.JointPosition(40), "reads q\\[40\\]"),
        (lambda: sensors.JointVelocity(0.5), "must be an integer"),
        (lambda: sensors.CentreOfMass([]), "must be an integer or a list of integers"),
        (lambda: sensors.Site("arm"), "must be a whole number or None"),
        (lambda: sensors.Site(0, (1.0, 2.0)), "position must have shape"),
        (lambda: sensors.FrameAxis(sensors.Site(0), 3), "axis must be 0, 1 or 2"),
    ],
)
def test_what_is_wrong_is_said(two_bodies, sensor, sentence):
    _, _, tree, joints = two_bodies
    with pytest.raises((TypeError, ValueError), match=sentence):
        sensor().at(tree, ZERO, joints)


def test_systems_without_bodies_are_refused_in_words():
    ball = nsd.LagrangianSystem([[1.0]])
    model, state = nsd.Model(ball), ball.state(jnp.array([1.0]), jnp.array([2.0]))
    assert sensors.JointVelocity(0).at(model, ZERO, state) == 2.0
    with pytest.raises(ValueError, match="it needs rigid bodies"):
        sensors.Gyro(sensors.Site(0)).at(model, ZERO, state)
    with pytest.raises(TypeError, match="sensors\\['gyro'\\] must be a sensor"):
        sensors.Sensors({"gyro": 3})
