"""Shapes that touch along a line: the places hold both of its ends, wherever the world is turned to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import slow_but
from scipy.spatial.transform import Rotation

from diffnsd.shapes import Box, Capsule, ConvexHull, Cylinder, Frame, closest

WIDTH, HALF = 0.1, 0.3
"""Radius or half width of a rod along y, and its half length [m]."""
TABLE = np.array((1.0, 1.0, 0.5))
"""Half sizes of what it lies on; the edge is the line x = z = 0."""


def hull(sizes):
    corners = np.stack(np.meshgrid(*[(-1.0, 1.0)] * 3), -1).reshape(-1, 3)
    return ConvexHull(corners * np.asarray(sizes))


ACROSS = Rotation.from_euler("x", 90, degrees=True)
RODS = {
    "capsule": (Capsule(WIDTH, HALF), ACROSS),
    "cylinder": (Cylinder(WIDTH, HALF), ACROSS),
    "box": (Box((WIDTH, HALF, WIDTH)), Rotation.identity()),
    "hull": (hull((WIDTH, HALF, WIDTH)), Rotation.identity()),
}
TABLES = {"box": Box(tuple(TABLE)), "hull": hull(TABLE)}


def touching(rod, table, centre, turn):
    """Places along y and gaps, in 20 frames of the world and two positions along the table."""
    shape, own = RODS[rod]
    worlds, shifts = Rotation.random(20, rng=0), (0.0, 0.9)
    rows = [(w, s) for w in worlds for s in shifts]
    one = (
        [w.apply(np.add(centre, (0, s, 0))) for w, s in rows],
        [(w * turn * own).as_matrix() for w, _ in rows],
    )
    two = [w.apply((-1, 0, -0.5)) for w, _ in rows], [w.as_matrix() for w, _ in rows]

    @jax.jit
    @jax.vmap
    def places(centre1, rotation1, centre2, rotation2):
        frames = Frame(centre1, rotation1), Frame(centre2, rotation2)
        found = closest(shape, frames[0], TABLES[table], frames[1])
        return found.point1 @ rotation2[:, 1], found.gap

    y, gap = map(np.asarray, places(*map(jnp.asarray, (*map(np.stack, (*one, *two)),))))
    ends = [(s - HALF, min(s + HALF, TABLE[1])) for _, s in rows]
    return y, gap, np.array(ends)


def check_ends(y, gap, ends):
    on = np.abs(gap) < 1e-12
    low, high = np.where(on, y, np.inf).min(axis=1), np.where(on, y, -np.inf).max(axis=1)
    # Measured: 3e-16.
    np.testing.assert_allclose(np.stack([low, high], -1), ends, rtol=0, atol=1e-12)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("rod", slow_but(["capsule"], list(RODS)))
@pytest.mark.parametrize("angle", [0.02, 0.4, np.pi / 4])
def test_a_rod_lies_on_an_edge(rod, table, angle):
    """Beside the top of the table, on its edge: as a rod that rolls over it does."""
    centre = WIDTH * np.array((np.sin(angle), 0, np.cos(angle)))
    check_ends(*touching(rod, table, centre, Rotation.from_euler("y", angle)))


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("rod", ["box", "hull"])
@pytest.mark.parametrize("angle", [0.02, 0.4, np.pi / 4])
def test_a_body_stands_on_its_own_edge(rod, table, angle):
    centre = (-0.5, 0, WIDTH * (np.sin(angle) + np.cos(angle)))
    check_ends(*touching(rod, table, centre, Rotation.from_euler("y", angle)))
