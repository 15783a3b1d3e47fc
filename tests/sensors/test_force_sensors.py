"""Sensors of forces: closed forms at rest, in smooth motions and over impacts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import sensors
from diffnsd.groups import rotation_matrix
from diffnsd.relations import Geom, shape_contacts
from diffnsd.shapes import Box, HalfSpace, Sphere
from diffnsd.systems import Body, Hinge

H = 1e-3
MASS, G = 3.0, 9.81
TILT = np.array([0.9, 0.1, -0.2, 0.3]) / np.linalg.norm([0.9, 0.1, -0.2, 0.3])
IMU = sensors.Site(0, (0.1, 0.05, 0.02), TILT)
HALF = (0.2, 0.3, 0.1)
INERTIA = tuple(MASS / 3 * (np.sum(np.square(HALF)) - np.square(HALF)))


def block(mu=0.5, e=0.0):
    """A box on the floor; its corners are contacts of shapes."""
    system = nsd.NewtonEulerSystem(MASS, INERTIA)
    contacts = shape_contacts([(Geom(Box(HALF), 0), Geom(HalfSpace()))])
    return nsd.Model(system, nsd.Interaction(contacts, nsd.CoulombFriction(mu, e)))


def on_block():
    """Zones below the box: at the side of two corners, at all of them, and at one corner."""
    beside = sensors.Site(0, (-0.2, 0.0, -0.1))
    under = sensors.Site(0, (0.0, 0.0, -0.1))
    corner = sensors.Site(0, (0.2, 0.3, -0.1))
    found = {
        "imu": sensors.Accelerometer(IMU),
        "side": sensors.Touch(beside, Box((0.05, 0.4, 0.05))),
        "all": sensors.Touch(under, Sphere(1.0)),
        "corner": sensors.Touch(corner, Sphere(0.02)),
        "force": sensors.ContactForce(0),
        "nobody": sensors.Touch(sensors.Site(None, (0.0, 0.0, 0.0)), Sphere(0.01)),
        "floor": sensors.Touch(sensors.Site(None), Sphere(1.0)),
    }
    return sensors.Sensors(found)


@pytest.fixture(scope="module")
def at_rest():
    model = block()
    start = model.system.state((0.0, 0.0, 0.1))
    return model, nsd.simulate(model, nsd.MoreauJean(theta=1.0), 0.0, 0.01, H, start)


@pytest.mark.slow
def test_a_box_at_rest_reads_its_weight(at_rest):
    model, run = at_rest
    got = on_block()(model, run)
    up = rotation_matrix(jnp.asarray(TILT)).T @ np.array([0.0, 0.0, G])
    weight = MASS * G
    np.testing.assert_allclose(got["imu"][1:], np.tile(up, (10, 1)), atol=1e-9)  # 1e-12
    np.testing.assert_allclose(got["all"][1:, 0], weight, rtol=1e-9)  # 1e-12
    np.testing.assert_allclose(got["side"][1:, 0], weight / 2, rtol=1e-9)
    np.testing.assert_allclose(got["corner"][1:, 0], weight / 4, rtol=1e-9)
    np.testing.assert_allclose(got["force"][1:], [[0, 0, weight]] * 10, atol=1e-9)
    np.testing.assert_allclose(got["floor"][1:, 0], weight, rtol=1e-9)
    assert np.all(np.asarray(got["nobody"]) == 0)
    assert all(np.all(np.asarray(x[0]) == 0) and x.shape[0] == 11 for x in got.values())
    np.testing.assert_array_equal(on_block()["corner"](model, run), got["corner"])


@pytest.mark.nightly
def test_readings_of_a_batch_and_their_derivatives():
    """A ball at rest reads `m g`, so `d(reading)/dm = g`; its acceleration does not depend on the mass."""
    ball = nsd.NewtonEulerSystem(MASS, 0.1)
    ground = nsd.Interaction(nsd.sphere_on_plane(0.1), nsd.NewtonImpact(0.0))
    site = sensors.Site(0)
    found = sensors.Sensors(
        {"touch": sensors.Touch(site, Sphere(0.2)), "imu": sensors.Accelerometer(site)}
    )

    def read(mass):
        system = eqx.tree_at(lambda s: s.masses, ball, mass[None])
        model, start = nsd.Model(system, ground), ball.state((0.0, 0.0, 0.1))
        got = found(model, nsd.simulate(model, nsd.MoreauJean(), 0.0, 3 * H, H, start))
        return jnp.stack([got["touch"][-1, 0], got["imu"][-1, 2]])

    masses = jnp.array([2.0, MASS])
    expected = np.stack([masses * G, np.full(2, G)], axis=1)
    np.testing.assert_allclose(jax.jit(jax.vmap(read))(masses), expected, rtol=1e-9)
    for jacobian in (jax.jacfwd, jax.jacrev):
        slope = jax.jit(jacobian(read))(masses[1])
        np.testing.assert_allclose(slope, [G, 0.0], atol=1e-8)  # 1e-12


def test_points_of_a_body_touch_where_its_shape_does():
    """The corners of a box as points, or as a shape: the same places, above, on and below the floor."""
    rng = np.random.default_rng(0)
    signs = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)])
    corners = nsd.BodyPointsPlane(signs * np.array(HALF), offset=-0.2)
    floor = Geom(HalfSpace(), None, (0.0, 0.0, -0.2))
    shape = shape_contacts([(Geom(Box(HALF), 0), floor)])
    pose = nsd.Pose(jnp.asarray(rng.normal(size=(1, 3))), jnp.asarray(TILT)[None])
    one, two = (relation.places(jnp.zeros(()), pose) for relation in (corners, shape))
    assert one is not None and two is not None
    assert (one.body1, one.body2) == (two.body1, two.body2) == (0, None)
    listed = [np.asarray(x.point)[np.lexsort(np.round(x.point, 9).T)] for x in (one, two)]
    np.testing.assert_allclose(*listed, atol=1e-14)
    np.testing.assert_allclose(two.normal, one.normal, atol=1e-15)
    turn, centre = np.asarray(rotation_matrix(jnp.asarray(TILT))), np.asarray(pose.position[0])
    corner = np.asarray(signs * np.array(HALF)) @ turn.T + centre
    corner[:, 2] = (corner[:, 2] - 0.2) / 2
    np.testing.assert_allclose(one.point, corner, atol=1e-14)
    both = nsd.Pose(*(jnp.concatenate([0 * x, x]) for x in (pose.position, pose.orientation)))
    listed = nsd.BodyPointsPlane(corners.points, offset=-0.2, body=[1] * 8)
    again = listed.places(jnp.zeros(()), both)
    np.testing.assert_allclose(again.point, one.point, atol=1e-14)


@pytest.mark.slow
def test_free_fall_reads_nothing_and_an_impact_its_impulse():
    """A ball that falls, bounces and falls: means times lengths are impulses, whatever is saved."""
    ball = nsd.NewtonEulerSystem(MASS, 0.1)
    ground = nsd.Interaction(nsd.sphere_on_plane(0.1), nsd.NewtonImpact(0.6))
    model = nsd.Model(ball, ground)
    site = sensors.Site(0, (0.0, 0.0, -0.1))
    found = sensors.Sensors(
        {
            "imu": sensors.Accelerometer(site),
            "touch": sensors.Touch(site, Sphere(0.02)),
            "force": sensors.ContactForce(0, 0),
        }
    )
    start = ball.state((0.0, 0.0, 0.13))
    for every in (1, 7):
        saveat = nsd.SaveAt(steps=every)
        run = nsd.simulate(model, nsd.MoreauJean(), 0.0, 0.15, H, start, saveat=saveat)
        got = found(model, run)
        lengths = np.diff(run.ts)
        p = np.asarray(run.impulses[0])[:, 0, 0]
        struck = p > 0
        assert 0 < struck.sum() < len(p) / 2
        assert np.max(np.abs(np.asarray(got["imu"])[~struck])) < 1e-11  # 1e-13
        np.testing.assert_allclose(got["touch"][1:, 0] * lengths, p[1:], atol=1e-13)
        np.testing.assert_allclose(got["force"][1:, 2] * lengths, p[1:], atol=1e-13)
        np.testing.assert_allclose(got["imu"][1:, 2] * lengths, p[1:] / MASS, atol=1e-13)
        change = MASS * (run.states.v[-1, 2] - run.states.v[0, 2] + G * 0.15)
        np.testing.assert_allclose(np.sum(got["touch"][1:, 0] * lengths), change, rtol=1e-12)


@pytest.mark.slow
def test_the_reaction_of_a_joint_is_a_force_on_its_body():
    """A body that hangs on a ball joint at its centre: the weight, in spite of its rotation."""
    body = nsd.NewtonEulerSystem(MASS, 0.1)
    start = body.state((0.0, 0.0, 0.0), angular_velocity=(1.0, 2.0, 3.0))
    joint = nsd.GapRelation(nsd.ball_joint(start.q, (0.0, 0.0, 0.0)))
    model = nsd.Model(body, nsd.Interaction(joint, nsd.Equality()))
    run = nsd.simulate(model, nsd.MoreauJean(), 0.0, 3 * H, H, start)
    reading = sensors.ContactForce(0)(model, run)
    np.testing.assert_allclose(reading[1:], [[0, 0, MASS * G]] * 3, atol=1e-9)
    held = sensors.Force(sensors.Site(0))(model, run)
    np.testing.assert_allclose(held[1:], np.zeros((3, 3)), atol=1e-9)


def test_readings_after_an_event_are_zero_and_finite():
    ball = nsd.NewtonEulerSystem(MASS, 0.1)
    model = nsd.Model(ball)
    ends = nsd.Event(lambda t, state, args: state.q.position[0, 2] - 0.9)
    start = ball.state((0.0, 0.0, 1.0), velocity=(0.0, 0.0, -20.0))
    imu = sensors.Accelerometer(sensors.Site(0, (0.1, 0.0, 0.0)))

    def last(speed):
        moving = eqx.tree_at(lambda s: s.v, start, start.v.at[2].set(speed))
        run = nsd.simulate(model, nsd.MoreauJean(), 0.0, 0.01, H, moving, event=ends)
        return jnp.sum(imu(model, run))

    value, slope = jax.value_and_grad(last)(-20.0)
    assert abs(value) < 1e-9 and np.isfinite(slope)


LENGTH = 0.7


def pendulum(length):
    """A point mass at the end of a rod without mass, and the accelerometer there."""
    bob = Body(
        1.0, 1e-12 * jnp.eye(3), Hinge((0.0, 1.0, 0.0)), centre=jnp.array([0.0, 0.0, -1.0]) * length
    )
    site = sensors.Site(0, jnp.array([0.0, 0.0, -1.0]) * length)
    return nsd.Model(nsd.Multibody(bob)), sensors.Accelerometer(site)


def reading_of_a_pendulum(length, h):
    """After 0.01 s: angle, rate and reading."""
    model, imu = pendulum(length)
    start = model.system.state([0.8], [1.2])
    run = nsd.simulate(model, nsd.MoreauJean(), 0.0, 0.01, h, start)
    return run.states.q[-1, 0], run.states.v[-1, 0], imu(model, run)[-1]


@pytest.mark.slow
def test_a_pendulum_reads_the_force_in_its_rod():
    """`l θ'² + g cos θ` along the rod and nothing across, with an error of the first order."""
    errors = []
    for h in (1e-3, 5e-4):
        angle, rate, reading = reading_of_a_pendulum(LENGTH, h)
        expected = np.array([0.0, 0.0, LENGTH * rate**2 + G * np.cos(angle)])
        errors.append(np.asarray(reading) - expected)
    assert np.max(np.abs(errors[0])) < 2e-2  # 1.2e-2
    np.testing.assert_allclose(errors[0], 2 * errors[1], atol=1e-4)


@pytest.mark.slow
def test_derivative_of_a_reading_by_the_length_of_a_pendulum():
    """In the first step from rest at the angle a it reads `g cos a`, whatever the length."""

    def first(length, angle):
        model, imu = pendulum(length)
        start = model.system.state(angle[None], [0.0])
        run = nsd.simulate(model, nsd.MoreauJean(), 0.0, 1e-4, 1e-4, start)
        return imu(model, run)[-1]

    given = jnp.asarray(LENGTH), jnp.asarray(0.8)
    by_length, by_angle = jax.jit(jax.jacfwd(first, argnums=(0, 1)))(*given)
    np.testing.assert_allclose(by_length, np.zeros(3), atol=1e-3)
    np.testing.assert_allclose(by_angle, [0, 0, -G * np.sin(0.8)], atol=1e-2)


def test_a_spinning_body_reads_the_centripetal_acceleration():
    """`ω × (ω × p)` for a rotation about a principal axis, and its derivative by the place, `ω^²`."""
    body = nsd.NewtonEulerSystem(1.0, (0.1, 0.2, 0.3), gravity=(0.0, 0.0, 0.0))
    model, rate = nsd.Model(body), 4.0
    start = body.state((0.0, 0.0, 0.0), angular_velocity=(0.0, 0.0, rate))
    run = nsd.simulate(model, nsd.MoreauJean(), 0.0, 1e-4, 1e-4, start)

    def read(place):
        return sensors.Accelerometer(sensors.Site(0, place))(model, run)[-1]

    place = jnp.array([0.3, -0.2, 0.5])
    squared = -(rate**2) * np.diag([1.0, 1.0, 0.0])
    np.testing.assert_allclose(read(place), squared @ place, atol=2e-3)  # 1e-3, first order
    for jacobian in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(jax.jit(jacobian(read))(place), squared, atol=5e-3)  # 3e-3


@pytest.mark.slow
def test_single_precision_and_a_single_time(at_rest):
    model, run = at_rest
    low, short = jax.tree.map(
        lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, (model, run)
    )
    got = on_block()(low, short)
    assert all(x.dtype == jnp.float32 for x in got.values())
    np.testing.assert_allclose(got["all"][1:, 0], MASS * G, rtol=1e-3)
    start = jax.tree.map(lambda x: x[0], run.states)
    end = nsd.simulate(
        model, nsd.MoreauJean(theta=1.0), 0.0, 0.01, H, start, saveat=nsd.SaveAt.end()
    )
    assert sensors.Gyro(IMU)(model, end).shape == (3,)
    with pytest.raises(ValueError, match="imu: Accelerometer reads the mean"):
        on_block()(model, end)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sensor", "sentence"),
    [
        (sensors.ContactForce(1, 0), "body is 1, but the system has the bodies 0 to 0"),
        (sensors.ContactForce(0, 2), "the model has 1 interactions"),
    ],
)
def test_what_is_wrong_is_said(at_rest, sensor, sentence):
    with pytest.raises(ValueError, match=sentence):
        sensor(*at_rest)


@pytest.mark.slow
def test_forces_that_joints_transmit():
    """A hanging arm carries what is below it: its weight, and the moment of that about the site."""
    inertia, still = 0.1 * jnp.eye(3), Hinge((0.0, 1.0, 0.0), damping=1e9)
    arm = nsd.Multibody(
        [
            Body(1.0, inertia, still),
            Body(2.0, inertia, still, 0, position=(0.5, 0.0, 0.0)),
        ]
    )
    model = nsd.Model(arm)
    run = nsd.simulate(model, nsd.MoreauJean(theta=1.0), 0.0, 2 * H, H, arm.state())
    found = {
        "whole": sensors.Torque(sensors.Site(0), [0, 1]),
        "hand": sensors.Torque(sensors.Site(0), [1]),
        "force": sensors.Force(sensors.Site(0)),
    }
    got = sensors.Sensors(found)(model, run)
    np.testing.assert_allclose(got["force"][-1], [0, 0, 3 * G], atol=1e-6)
    # A weight at x pulls with −x m g about −y, so the arm is carried with the opposite.
    np.testing.assert_allclose(got["whole"][-1], [0, -0.5 * 2 * G, 0], atol=1e-6)
    np.testing.assert_allclose(got["hand"][-1], [0, -0.5 * 2 * G, 0], atol=1e-6)
