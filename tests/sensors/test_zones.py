"""Rays against the zones of touch sensors: MuJoCo's answers."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from diffnsd import sensors
from diffnsd.sensors._zones import is_hit
from diffnsd.shapes import Box, Capsule, Cylinder, Ellipsoid, HalfSpace, Sphere

KINDS = mujoco.mjtGeom
SHAPES = {
    "sphere": (KINDS.mjGEOM_SPHERE, [0.6, 0, 0], Sphere(0.6)),
    "capsule": (KINDS.mjGEOM_CAPSULE, [0.3, 0.5, 0], Capsule(0.3, 0.5)),
    "ellipsoid": (KINDS.mjGEOM_ELLIPSOID, [0.3, 0.5, 0.8], Ellipsoid((0.3, 0.5, 0.8))),
    "cylinder": (KINDS.mjGEOM_CYLINDER, [0.3, 0.5, 0], Cylinder(0.3, 0.5)),
    "box": (KINDS.mjGEOM_BOX, [0.3, 0.5, 0.2], Box((0.3, 0.5, 0.2))),
}


@pytest.mark.parametrize("name", SHAPES)
def test_rays_meet_what_those_of_mujoco_meet(name):
    kind, size, shape = SHAPES[name]
    rng = np.random.default_rng(0)
    starts, ways = rng.uniform(-0.7, 0.7, size=(2, 600, 3))
    ways[:150] = np.eye(3)[rng.integers(0, 3, size=150)] * rng.choice([-1.0, 1.0], size=(150, 1))
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    frame = np.zeros(3), np.eye(3).reshape(-1), np.array(size, float)
    expected = [
        mujoco.mju_rayGeom(*frame, p, w, kind) >= 0 for p, w in zip(starts, ways, strict=True)
    ]
    found = jax.jit(jax.vmap(is_hit, (None, 0, 0)))(shape, jnp.asarray(starts), jnp.asarray(ways))
    assert 50 < sum(expected) < 550
    np.testing.assert_array_equal(found, expected)


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="must be one of Sphere, Capsule"):
        sensors.Touch(sensors.Site(0), HalfSpace())
