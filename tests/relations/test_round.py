"""Round bodies: gaps in closed form, velocities as their rates, and a ball that rolls down a slope."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import Interaction, Model, MoreauJean, SaveAt, State, simulate
from diffnsd.groups import Euclidean, Pose, PoseGroup
from diffnsd.laws import CoulombFriction
from diffnsd.relations import (
    capsule_on_plane,
    disk_on_disk,
    disk_on_line,
    sphere_on_plane,
    sphere_on_sphere,
    sphere_on_surface,
)
from diffnsd.systems import NewtonEulerSystem

RANDOM = np.random.default_rng(5)
NORMAL = np.array([0.48, -0.6, 0.64])
SPIN = RANDOM.normal(size=(2, 4))
POSE = Pose(
    jnp.asarray(RANDOM.normal(size=(2, 3))),
    jnp.asarray(SPIN / np.linalg.norm(SPIN, axis=1, keepdims=True)),
)
X1, X2 = np.asarray(POSE.position)
PLANAR = jnp.asarray(RANDOM.normal(size=6))
C1, C2 = np.asarray(PLANAR[:2]), np.asarray(PLANAR[3:5])


def slope(x, y):
    return 0.75 * x - 0.5 * y + 0.1


UP = np.array([-0.75, 0.5, 1.0]) / np.sqrt(0.75**2 + 0.5**2 + 1)
CASES = {
    "sphere on plane": (sphere_on_plane(0.3, NORMAL, 0.2, 1), [NORMAL @ X2 - 0.2 - 0.3]),
    "sphere on sphere": (
        sphere_on_sphere(0.3, 0.5),
        [np.linalg.norm(X1 - X2) - 0.8],
    ),
    "sphere on a slope": (
        sphere_on_surface(0.3, slope),
        [(X1[2] - slope(X1[0], X1[1])) * UP[2] - 0.3],
    ),
    "disk on line": (disk_on_line(0.3, (0.6, 0.8), 0.1, 1), [0.6 * C2[0] + 0.8 * C2[1] - 0.4]),
    "disk on disk": (disk_on_disk(0.2, 0.4), [np.linalg.norm(C1 - C2) - 0.6]),
}


@pytest.mark.parametrize("name", CASES)
def test_gaps_and_their_rates(name):
    relation, expected = CASES[name]
    planar = "disk" in name
    group, q = (Euclidean(6), PLANAR) if planar else (PoseGroup(2), POSE)
    v = jnp.asarray(RANDOM.normal(size=group.dim))

    @eqx.filter_jit
    def evaluate(v):
        def gap(s):
            return relation.gap(0.0, group.compose(q, group.exp(s * v)))

        rate = jax.jvp(gap, (jnp.zeros(()),), (jnp.ones(()),))
        return *rate, relation.output(group, jnp.zeros(()), State(q, v), None)

    gap, rate, u = evaluate(v)
    np.testing.assert_allclose(gap, expected, rtol=1e-13)
    np.testing.assert_allclose(u[:, 0], rate, rtol=1e-12)


def test_the_ends_of_a_capsule():
    """Lying along x a quarter turn about y stands it up: one end is up, the other down."""
    upright = Pose(jnp.array([[0.0, 0.0, 1.0]]), jnp.array([[1.0, 0.0, -1.0, 0.0]]) / np.sqrt(2))
    relation = capsule_on_plane(0.1, (0.4, 0.0, 0.0))
    np.testing.assert_allclose(relation.gap(0.0, upright), [1.3, 0.5], rtol=1e-14)


def test_spheres_that_share_their_centre_have_a_finite_derivative():
    relation = sphere_on_sphere(0.1, 0.2)
    same = Pose(jnp.zeros((2, 3)), POSE.orientation)
    slopes = jax.jacrev(lambda x: relation.gap(0.0, Pose(x, same.orientation)))(same.position)
    assert np.all(np.isfinite(slopes))
    np.testing.assert_allclose(relation.gap(0.0, same), [-0.3], rtol=1e-14)


def test_a_ball_rolls_down_a_slope():
    """Without slip a homogeneous ball has 5/7 of the acceleration of one that slides."""
    steepness = 0.2
    normal = (-np.sin(steepness), 0.0, np.cos(steepness))
    contact = Interaction(sphere_on_plane(0.1, normal), CoulombFriction(0.5))
    model = Model(NewtonEulerSystem(1.0, 0.4 * 0.1**2), contact)
    pose = Pose(0.1 * jnp.asarray(normal)[None], jnp.array([[1.0, 0.0, 0.0, 0.0]]))
    start = State(pose, jnp.zeros(6))
    end = simulate(model, MoreauJean(), 0.0, 0.5, 1e-2, start, saveat=SaveAt.end()).states
    speed = np.linalg.norm(end.v[:3])
    np.testing.assert_allclose(speed, 5 / 7 * 9.81 * np.sin(steepness) * 0.5, rtol=1e-10)


def test_radii_of_another_number_than_the_contacts_are_refused():
    for radii in (np.ones(3), np.ones((2, 1))):
        with pytest.raises(ValueError, match=r"one for each contact, shape \(2,\)"):
            sphere_on_plane(radii, body=[0, 1])
        with pytest.raises(ValueError, match=r"radius2 must be one number, or one for each"):
            sphere_on_sphere(0.1, radii, [0, 1], 2)
    with pytest.raises(ValueError, match=r"shape \(1,\), got \(3,\)"):
        sphere_on_plane(np.ones(3))
