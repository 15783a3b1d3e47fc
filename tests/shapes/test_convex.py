"""Convex shapes in general: distances, derivatives, degenerate placements, and what rests on what."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy.spatial import ConvexHull as QhullHull
from scipy.spatial.transform import Rotation

from diffnsd.shapes import (
    Box,
    Capsule,
    ConvexHull,
    Cylinder,
    Ellipsoid,
    Frame,
    HalfSpace,
    Sphere,
    closest,
)
from diffnsd.shapes._hull import fewer_corners

COUNT = 1000
TILTS = (1e-13, 1e-11, 1e-8, 1e-5, 1e-3, 0.1)
_POINTS = np.random.default_rng(5).normal(size=(24, 3))
_POINTS *= 0.5 / np.linalg.norm(_POINTS, axis=1, keepdims=True)
HULL = ConvexHull(_POINTS)
MAKE = {
    "sphere": lambda s: Sphere(s[0]),
    "capsule": lambda s: Capsule(s[0], s[1]),
    "cylinder": lambda s: Cylinder(s[0], s[1]),
    "box": Box,
    "ellipsoid": Ellipsoid,
    "mesh": lambda s: eqx.tree_at(lambda h: h.vertices, HULL, HULL.vertices * s[None]),
}
PAIRS = [
    ("ellipsoid", "sphere"),
    ("ellipsoid", "capsule"),
    ("ellipsoid", "cylinder"),
    ("ellipsoid", "box"),
    ("ellipsoid", "ellipsoid"),
    ("ellipsoid", "mesh"),
    ("cylinder", "capsule"),
    ("cylinder", "cylinder"),
    ("cylinder", "box"),
    ("cylinder", "mesh"),
    ("mesh", "sphere"),
    ("mesh", "capsule"),
    ("mesh", "box"),
    ("mesh", "mesh"),
]
of_pairs = pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
UPRIGHT, ON_X = np.eye(3), Rotation.from_euler("x", 90, degrees=True).as_matrix()
ON_Y = Rotation.from_euler("y", 90, degrees=True).as_matrix()


def places(kinds, sizes1, centre1, rotation1, sizes2, centre2, rotation2):
    one, two = (MAKE[kind](s) for kind, s in zip(kinds, (sizes1, sizes2), strict=True))
    found = closest(one, Frame(centre1, rotation1), two, Frame(centre2, rotation2))
    return found.point1, found.point2, found.normal, found.gap


@functools.cache
def program(kinds):
    """Places and their derivatives along a direction, of 1000 placements."""

    def both(x, dx):
        return jax.jvp(functools.partial(places, kinds), x, dx)

    return jax.jit(jax.vmap(both))


def sizes_of(rng, kind):
    return np.ones((COUNT, 3)) if kind == "mesh" else rng.uniform(0.2, 0.6, (COUNT, 3))


@functools.cache
def placements(kinds, seed=0):
    """Random placements: two thirds are apart or touch, the others penetrate, most of them not deeply."""
    rng = np.random.default_rng(seed)
    turns = [Rotation.random(COUNT, rng=rng).as_matrix() for _ in kinds]
    centres = rng.normal(size=(COUNT, 3)) * 0.6, rng.normal(size=(COUNT, 3)) * 0.1
    sizes = [sizes_of(rng, kind) for kind in kinds]
    return sizes[0], centres[0], turns[0], sizes[1], centres[1], turns[1]


@functools.cache
def direction(seed=1):
    """Rates of sizes and centres, and angular velocities in the world."""
    return [np.random.default_rng(seed + k).normal(size=(COUNT, 3)) for k in range(6)]


def tangents(arguments, rates):
    out = list(rates)
    for k in (2, 5):
        out[k] = np.cross(rates[k][:, None], arguments[k], axisa=2, axisb=1, axisc=1)
    return tuple(out)


@functools.cache
def evaluated(kinds):
    arguments = placements(kinds)
    values, rates = program(kinds)(arguments, tangents(arguments, direction()))
    return [np.asarray(x) for x in values], [np.asarray(x) for x in rates]


def support(kind, sizes, n):
    """Largest `n · x` of a shape in its own frame, for directions `(..., 3)`."""
    s = np.moveaxis(sizes, -1, 0).reshape(3, *sizes.shape[:-1], *[1] * (n.ndim - sizes.ndim))
    if kind == "sphere":
        return s[0] * np.ones(n.shape[:-1])
    if kind == "capsule":
        return s[0] + s[1] * np.abs(n[..., 2])
    if kind == "cylinder":
        return s[0] * np.hypot(n[..., 0], n[..., 1]) + s[1] * np.abs(n[..., 2])
    if kind == "mesh":
        return (n @ _POINTS.T).max(axis=-1)
    parts = np.moveaxis(s, 0, -1) * n
    return np.abs(parts).sum(-1) if kind == "box" else np.linalg.norm(parts, axis=-1)


def outside(kind, sizes, x):
    """How far points `(k, s, 3)` lie outside a shape in its own frame, nearly; negative inside."""
    s = sizes[:, None]
    if kind == "sphere":
        return np.linalg.norm(x, axis=-1) - s[..., 0]
    if kind == "ellipsoid":
        return (np.linalg.norm(x / s, axis=-1) - 1) * s.min(axis=-1)
    if kind == "box":
        return (np.abs(x) - s).max(axis=-1)
    if kind == "mesh":
        normals = [np.cross(*(corners_of(face)[1:3] - corners_of(face)[:1])) for face in HULL.faces]
        normals = np.array([n / np.linalg.norm(n) for n in normals])
        limits = np.array([corners_of(f)[0] @ n for f, n in zip(HULL.faces, normals, strict=True)])
        return (x @ normals.T - limits).max(axis=-1)
    around = np.hypot(x[..., 0], x[..., 1])
    above = np.abs(x[..., 2]) - s[..., 1]
    if kind == "cylinder":
        return np.maximum(around - s[..., 0], above)
    return np.hypot(around, np.maximum(above, 0)) - s[..., 0]


def corners_of(face):
    return np.asarray(HULL.vertices)[list(face)]


@functools.cache
def mujoco_distances(kinds):
    vertices = " ".join(map(str, _POINTS.ravel()))
    geom = {k: f'<geom type="{k}" size="1 1 1"/>' for k in MAKE}
    geom["mesh"] = '<geom type="mesh" mesh="m"/>'
    bodies = "".join(f'<body mocap="true">{geom[kind]}</body>' for kind in kinds)
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><option ccd_tolerance="1e-12" ccd_iterations="500"/><asset><mesh name="m" '
        f'vertex="{vertices}" inertia="convex"/></asset><worldbody>{bodies}</worldbody></mujoco>'
    )
    data, found, points = mujoco.MjData(model), [], np.zeros(6)
    arguments, turn = placements(kinds), np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.mesh_quat[0])
    for i in range(COUNT):
        for k, kind in enumerate(kinds):
            sizes, centre, rotation = (x[i] for x in arguments[3 * k : 3 * k + 3])
            if kind == "mesh":  # MuJoCo moves it to its centre of mass.
                centre, rotation = (
                    centre + rotation @ model.mesh_pos[0],
                    rotation @ turn.reshape(3, 3),
                )
            else:
                model.geom_size[k] = sizes
            data.geom_xpos[k], data.geom_xmat[k] = centre, rotation.ravel()
        found.append(mujoco.mj_geomDistance(model, data, 0, 1, 100.0, points))
    return np.array(found)


@of_pairs
def test_places_are_on_both_surfaces_and_nothing_is_between(kinds):
    arguments, (point1, point2, normal, gap) = placements(kinds), evaluated(kinds)[0]
    np.testing.assert_allclose(np.linalg.norm(normal, axis=-1), 1, rtol=0, atol=1e-14)
    apart = point1 - point2 - gap[..., None] * normal
    assert np.abs(apart).max() < 1e-14  # measured: 8e-16
    # The shapes are apart by the gap along the normal: with the points a proof that it is the distance.
    n = normal[:, :1]
    separation = np.sum(n[:, 0] * (arguments[1] - arguments[4]), axis=-1)
    for k, (kind, point) in enumerate(zip(kinds, (point1, point2), strict=True)):
        sizes, centre, rotation = arguments[3 * k : 3 * k + 3]
        here = np.einsum("kij,ksi->ksj", rotation, point - centre[:, None])
        assert np.abs(outside(kind, sizes, here)).max() < 1e-12  # measured: 3e-14
        towards = np.einsum("kij,ksi->ksj", rotation, -n if k == 0 else n)
        separation = separation - support(kind, sizes, towards)[:, 0]
    np.testing.assert_allclose(gap.min(axis=1), separation, rtol=0, atol=1e-12)  # measured: 2e-14


@of_pairs
def test_penetration_is_the_shortest_way_out(kinds):
    arguments, gap = placements(kinds), evaluated(kinds)[0][3].min(axis=1)
    n = np.random.default_rng(2).normal(size=(2000, 3))
    n /= np.linalg.norm(n, axis=1, keepdims=True)
    separation = (arguments[1] - arguments[4]) @ n.T
    for k, (kind, sign) in enumerate(zip(kinds, (-1, 1), strict=True)):
        sizes, _, rotation = arguments[3 * k : 3 * k + 3]
        separation -= support(kind, sizes, sign * np.einsum("kij,ni->knj", rotation, n))
    best = separation.max(axis=1)
    assert np.all(gap > best - 1e-12)
    assert np.all(gap < best + 0.15)  # measured: 0.08, the grid
    assert 200 < np.sum(gap < 0) < 800


@of_pairs
def test_distances_are_those_of_mujoco(kinds):
    distances = mujoco_distances(kinds)
    error = np.abs(evaluated(kinds)[0][3].min(axis=1) - distances)
    # MuJoCo does not converge for some round shapes that are apart: up to 3e-5 and, with ellipsoids, 2e-3.
    # Of these distances the first test is a proof. Its meshes are in single precision.
    assert error.max() < (1e-2 if "ellipsoid" in kinds else 1e-4)
    assert np.mean(error < 1e-6) > (0.9 if "ellipsoid" in kinds else 0.995)
    if "ellipsoid" not in kinds:
        # Measured: 4e-8. One in a thousand deep penetrations has a shorter way out, by 7e-6.
        assert error[(distances < 0) & (distances > -0.2)].max() < 1e-6


@of_pairs
def test_gap_changes_with_the_velocities_of_the_points(kinds):
    arguments, (point1, point2, normal, gap) = placements(kinds), evaluated(kinds)[0]
    rates = [0 * x if k in (0, 3) else x for k, x in enumerate(direction())]
    rate = np.asarray(program(kinds)(arguments, tangents(arguments, rates))[1][3])
    velocities = [
        rates[k + 1][:, None] + np.cross(rates[k + 2][:, None], x - arguments[k + 1][:, None])
        for k, x in ((0, point1), (3, point2))
    ]
    expected = np.sum(normal * (velocities[0] - velocities[1]), axis=-1)
    least = gap <= gap.min(axis=1, keepdims=True) + 1e-13
    np.testing.assert_allclose(rate[least], expected[least], rtol=0, atol=1e-10)  # measured: 1e-13


@of_pairs
def test_derivatives_are_those_of_differences(kinds):
    arguments, h = placements(kinds), 1e-6
    here, along = evaluated(kinds)

    def nudged(step):
        out = [x + step * dx for x, dx in zip(arguments, direction(), strict=True) if x.ndim == 2]
        turns = [
            (
                Rotation.from_rotvec(step * direction()[k]) * Rotation.from_matrix(arguments[k])
            ).as_matrix()
            for k in (2, 5)
        ]
        moved = (out[0], out[1], turns[0], out[2], out[3], turns[1])
        return [np.asarray(x) for x in program(kinds)(moved, tangents(moved, direction()))[0]]

    low, high = nudged(-h), nudged(h)
    smooth = np.ones(COUNT, bool)
    for x, y, z in zip(low, here, high, strict=True):
        smooth &= (np.abs(x + z - 2 * y) < 1e-3 * h).reshape(COUNT, -1).all(axis=1)
    assert smooth.mean() > 0.97
    for x, z, rate in zip(low, high, along, strict=True):
        error = np.abs((z - x) / (2 * h) - rate)[smooth] / (1 + np.abs(rate[smooth]))
        assert error.max() < 1e-6  # measured: 5e-8


def degenerate(kinds):
    """Coinciding centres, parallel axes, faces on faces, exactly and but for small tilts."""
    tops = {
        "sphere": 0.3,
        "capsule": 0.7,
        "cylinder": 0.4,
        "box": 0.5,
        "ellipsoid": 0.5,
        "mesh": 0.5,
    }
    sizes = {"box": (0.3, 0.4, 0.5), "ellipsoid": (0.3, 0.4, 0.5), "mesh": (1.0, 1.0, 1.0)}
    high = tops[kinds[0]] + tops[kinds[1]]
    turns = [
        UPRIGHT,
        ON_X,
        ON_Y,
        *(Rotation.from_rotvec((t, 0.3 * t, 0)).as_matrix() for t in TILTS),
    ]
    centres = [(0, 0, 0), (0, 0, high), (0, 0, high - 0.01), (0.1, 0, high + 0.01), (0.6, 0, 0)]
    centres += [(0.6, 0.8, 0), (0.6, 0.8, high), (1e-9, 0, 0), (0, 0, 1e-9)]
    rows = [(c, r1, r2) for c in centres for r1 in turns for r2 in turns[:3]]
    centre, first, second = (
        np.resize(np.array(x, float), (COUNT, *np.shape(x[0]))) for x in zip(*rows, strict=True)
    )
    one, two = (np.tile(sizes.get(kind, (0.3, 0.4, 0.0)), (COUNT, 1)) for kind in kinds)
    return one, centre, first, two, np.zeros((COUNT, 3)), second


@of_pairs
def test_degenerate_placements_are_finite(kinds):
    arguments = degenerate(kinds)
    values, rates = program(kinds)(arguments, tangents(arguments, direction()))
    assert all(np.isfinite(x).all() for x in (*values, *rates))
    np.testing.assert_allclose(np.linalg.norm(values[2], axis=-1), 1, rtol=0, atol=1e-14)
    assert np.abs(rates[3]).max() < 100  # gaps: of the order of the rates of the frames


@pytest.mark.parametrize("kinds", [("cylinder", "capsule"), ("mesh", "box")], ids="-".join)
def test_reverse_mode_is_forward_mode(kinds):
    def total(*arguments):
        return sum(jnp.sum(jnp.sin(x)) for x in places(kinds, *arguments))

    gradient = jax.jit(jax.vmap(jax.grad(total, argnums=tuple(range(6)))))
    assert all(np.isfinite(x).all() for x in gradient(*degenerate(kinds)))
    arguments, (values, rates) = placements(kinds), evaluated(kinds)
    slopes = gradient(*arguments)
    pairs = zip(slopes, tangents(arguments, direction()), strict=True)
    reverse = sum((np.asarray(x) * dx).reshape(COUNT, -1).sum(axis=1) for x, dx in pairs)
    pairs = zip(values, rates, strict=True)
    forward = sum((np.cos(x) * dx).reshape(COUNT, -1).sum(axis=1) for x, dx in pairs)
    error = np.abs(reverse - forward) / (1 + np.abs(forward))
    assert error.max() < 1e-9  # measured: 1e-12


@pytest.mark.parametrize("turn", [0.0, 0.3, np.pi / 4])
def test_a_cylinder_stands_on_four_places_and_lies_on_its_ends(turn):
    yaw = Rotation.from_euler("z", turn).as_matrix()
    sizes, box = np.array((0.3, 0.4, 0)), np.array((0.5, 0.5, 0.5))
    rows = [(yaw, (0, 0, 0.9)), (yaw @ ON_Y, (0, 0, 0.8))]
    arguments = [sizes, None, None, box, np.zeros(3), np.eye(3)]
    arguments = [x if x is None else np.tile(x, (COUNT, *[1] * x.ndim)) for x in arguments]
    arguments[1] = np.resize([c for _, c in rows], (COUNT, 3))
    arguments[2] = np.resize([r for r, _ in rows], (COUNT, 3, 3))
    still = tangents(arguments, direction())
    (point1, _, normal, gap), _ = program(("cylinder", "box"))(tuple(arguments), still)
    np.testing.assert_allclose(gap, 0, atol=1e-15)
    np.testing.assert_allclose(normal[..., 2], 1, atol=1e-15)
    standing, lying = np.asarray(point1[:2])
    assert np.linalg.matrix_rank(standing[1:] - standing[0], tol=0.1) == 2
    np.testing.assert_allclose(standing[:, :2].mean(axis=0), 0, atol=1e-12)
    ends = lying[:, :2] @ yaw[:2, 0]
    np.testing.assert_allclose(sorted(ends), (-0.4, -0.4, 0.4, 0.4), atol=1e-12)


def test_hull_keeps_corners_and_joins_triangles():
    cube = [(x, y, z) for x in (-1, 1) for y in (-2, 2) for z in (-3, 3)]
    hull = ConvexHull([(0, 0, 0), *cube, (0.5, 0, 1)])
    assert hull.vertices.shape == (8, 3)
    assert len(hull.edges) == 12 and sorted(map(len, hull.faces)) == [4] * 6
    np.testing.assert_allclose(hull.bound(), 14**0.5)
    for face in hull.faces:
        a, b, c = np.asarray(hull.vertices)[list(face[:3])]
        assert np.dot(np.cross(b - a, c - b), a + c) > 0
    assert hull.check() is None


@pytest.mark.parametrize(
    "points, message",
    [
        (np.eye(3), "needs a volume"),
        (np.c_[_POINTS[:, :2], np.zeros(24)], "needs a volume"),
        (np.ones((4, 2)), "shape"),
        (np.full((5, 3), np.nan), "finite"),
        (np.random.default_rng(0).normal(size=(2000, 3)), "max_vertices"),
    ],
)
def test_hull_says_what_is_wrong(points, message):
    if message == "max_vertices":
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
    with pytest.raises(ValueError, match=message):
        ConvexHull(points)


def test_hull_is_not_made_under_jit():
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(lambda x: ConvexHull(x).vertices)(_POINTS)


def test_hull_on_a_half_space():
    ground = Frame(
        jnp.array([0.1, 0.2, -0.3]), jnp.asarray(Rotation.from_rotvec((0.3, 0.2, 0)).as_matrix())
    )
    turns = jnp.asarray(Rotation.random(200, rng=np.random.default_rng(4)).as_matrix())

    def found(turn):
        return closest(HULL, Frame(jnp.zeros(3), turn), HalfSpace(), ground)

    places = jax.jit(jax.vmap(found))(turns)
    assert places.point1.shape == (200, 8, 3)
    points = jax.vmap(lambda turn: ground.to_shape(HULL.vertices @ turn.T))(turns)
    np.testing.assert_allclose(places.gap.min(axis=1), points[..., 2].min(axis=1), atol=1e-14)
    apart = places.point1 - places.point2 - places.gap[..., None] * places.normal
    assert np.abs(apart).max() < 1e-14  # measured: 2e-16
    cube = ConvexHull([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    flat = Frame(jnp.array([0.0, 0, 1]), jnp.eye(3))
    gap = closest(cube, flat, HalfSpace(), Frame(jnp.zeros(3), jnp.eye(3))).gap
    np.testing.assert_allclose(sorted(gap), [0] * 4 + [2] * 4, atol=1e-15)


def test_a_flat_face_of_a_large_hull_rests_on_its_corners():
    angles = 2 * np.pi * np.arange(12) / 12
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    prism = ConvexHull([(x, y, z) for x, y in ring for z in (0.0, 0.5)])
    assert sorted(map(len, prism.faces)) == [4] * 12 + [12] * 2
    flat = Frame(jnp.zeros(3), jnp.eye(3))
    found = closest(prism, flat, HalfSpace(), flat)
    np.testing.assert_allclose(found.gap, 0, atol=1e-15)
    assert len(np.unique(np.round(found.point1, 6), axis=0)) == 8


def test_a_hull_of_fewer_corners_leaves_little_outside():
    """300 points on a sphere of 100 mm, of which 64 are kept; Qhull's own `TAn` leaves 30 mm outside."""
    rng = np.random.default_rng(3)
    points = rng.normal(size=(300, 3))
    points *= 0.1 / np.linalg.norm(points, axis=1, keepdims=True)
    corners, short = fewer_corners(points, 64)
    faces = QhullHull(corners).equations
    outside = np.max(points @ faces[:, :3].T + faces[:, 3])
    assert len(corners) == 64 and outside == pytest.approx(short, abs=1e-15)
    assert short < 7e-3  # 5.9e-3


def test_a_hull_of_few_corners_keeps_all_of_them():
    """Corners that are repeated within single precision are one."""
    box = np.array([(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)
    noisy = np.repeat(box, 20, axis=0) + 1e-9 * np.random.default_rng(0).normal(size=(160, 3))
    corners, short = fewer_corners(noisy, 64)
    assert len(corners) == 8 and short == 0
    with pytest.raises(ValueError, match="in a plane"):
        fewer_corners(noisy * np.array([1, 1, 0]), 64)
