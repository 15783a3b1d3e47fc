"""Places where two shapes touch: distances, derivatives, degenerate placements, and what rests on what."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from optimised import OPTIMISED
from scipy.spatial import ConvexHull
from scipy.spatial.transform import Rotation

from diffnsd.shapes import Box, Capsule, Cylinder, Ellipsoid, Frame, HalfSpace, Sphere, closest

COUNT = 1000
NAMES = {
    HalfSpace: "plane",
    Sphere: "sphere",
    Capsule: "capsule",
    Ellipsoid: "ellipsoid",
    Cylinder: "cylinder",
    Box: "box",
}
SIZES = {HalfSpace: 0, Sphere: 1, Capsule: 2, Ellipsoid: 3, Cylinder: 2, Box: 3}
PAIRS = [
    (Sphere, HalfSpace),
    (Capsule, HalfSpace),
    (Box, HalfSpace),
    (Cylinder, HalfSpace),
    (Ellipsoid, HalfSpace),
    (Sphere, Sphere),
    (Sphere, Capsule),
    (Sphere, Cylinder),
    (Sphere, Box),
    (Capsule, Capsule),
    (Capsule, Box),
    (Box, Box),
]
of_pairs = pytest.mark.parametrize("kinds", PAIRS, ids=lambda k: "-".join(NAMES[x] for x in k))


def shape(kind, sizes):
    if kind in (Box, Ellipsoid):
        return kind(sizes)
    return kind(*sizes)


@functools.cache
def functions(kinds):
    """Places, their derivative along a direction and the gradient of a weighted sum of everything."""

    def places(sizes1, centre1, rotation1, sizes2, centre2, rotation2):
        shapes = (shape(kind, s) for kind, s in zip(kinds, (sizes1, sizes2), strict=True))
        one, two = shapes
        found = closest(one, Frame(centre1, rotation1), two, Frame(centre2, rotation2))
        return found.point1, found.point2, found.normal, found.gap

    def total(*arguments):
        return sum(
            jnp.sum(jnp.cos(jnp.arange(1.0, x.size + 1)) * x.ravel()) for x in places(*arguments)
        )

    along = jax.vmap(lambda x, dx: jax.jvp(places, x, dx)[1])
    gradient = jax.vmap(jax.grad(total, argnums=tuple(range(6))))
    # Which of two equally near places counts is rounding; as users compile, the three programs round alike.
    compiled = functools.partial(jax.jit, compiler_options=OPTIMISED)
    return tuple(map(compiled, (jax.vmap(places), along, gradient)))


def evaluated(kinds, arguments):
    return [np.asarray(x) for x in functions(kinds)[0](*arguments)]


def random_sizes(rng, kind):
    # Mixed sizes, a decade apart.
    return rng.uniform(0.3, 1, (COUNT, SIZES[kind])) * 10 ** rng.uniform(-1, 0, (COUNT, 1))


def bound(sizes):
    return np.linalg.norm(sizes, axis=1) if sizes.shape[1] else np.ones(COUNT)


@functools.cache
def placements(kinds, seed=0):
    """Random placements: a third is apart, most of the others touch, near each other or deeply."""
    rng = np.random.default_rng(seed)
    sizes = [random_sizes(rng, kind) for kind in kinds]
    rotations = [Rotation.random(COUNT, rng=rng).as_matrix() for _ in kinds]
    towards = rng.normal(size=(COUNT, 3))
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)
    centre2 = rng.normal(size=(COUNT, 3))
    arguments = [sizes[0], centre2, rotations[0], sizes[1], centre2, rotations[1]]
    if kinds[1] is HalfSpace:
        towards = rotations[1][:, :, 2]
        arguments[1] = centre2 + np.cross(rng.normal(size=(COUNT, 3)), towards)
    reach = rng.uniform(0.1, 1, COUNT) * bound(sizes[0])
    reach += rng.uniform(0.1, 1, COUNT) * bound(sizes[1]) * (kinds[1] is not HalfSpace)
    arguments[1] = arguments[1] + towards * reach[:, None]
    # Half of them are moved along the normal to nearly touch, within a tenth of the smaller shape.
    point1, point2, normal, gap = evaluated(kinds, arguments)
    first = np.argmin(gap, axis=1)[:, None]
    moved = np.take_along_axis(normal, first[..., None], 1)[:, 0]
    small = 0.1 * np.minimum(bound(sizes[0]), bound(sizes[1])) * rng.uniform(-1, 1, COUNT)
    shift = (small - np.take_along_axis(gap, first, 1)[:, 0]) * (np.arange(COUNT) % 2)
    arguments[1] = arguments[1] + moved * shift[:, None]
    return tuple(arguments)


@functools.cache
def lying(kinds, seed=3):
    """Axes and faces that are parallel but for a tilt of 0 or 1e-10 to 0.1, near touching or penetrating."""
    rng = np.random.default_rng(seed)
    sizes = [random_sizes(rng, kind) for kind in kinds]
    frame = Rotation.random(COUNT, rng=rng)
    yaw = rng.uniform(0, 2 * np.pi, COUNT) * (np.arange(COUNT) % 3 > 0)
    tilt = 10 ** rng.uniform(-10, -1, COUNT) * (np.arange(COUNT) % 10 > 0)
    around = rng.uniform(0, 2 * np.pi, COUNT)
    turn = np.stack([np.cos(around), np.sin(around), 0 * tilt], -1) * tilt[:, None]
    up = Rotation.from_euler("x", np.pi / 2 if Capsule in kinds else 0)
    both = kinds == (Capsule, Capsule)
    if both:
        yaw = 10 ** rng.uniform(-10, -1, COUNT) * (np.arange(COUNT) % 3 > 0)
    first = Rotation.from_rotvec(turn) * Rotation.from_rotvec(yaw[:, None] * [0, 0, 1]) * up
    top = [s[:, 0] if kind is Capsule else s[:, -1] for kind, s in zip(kinds, sizes, strict=True)]
    reach = [s if kind is Box else s[:, [1, 1]] for kind, s in zip(kinds, sizes, strict=True)]
    local = rng.uniform(-1, 1, (COUNT, 3)) * (reach[0].max(-1) + reach[1].max(-1))[:, None]
    if both:
        local[:, 0] *= 1e-3
    local[:, 2] = sum(top) + 0.1 * np.minimum(*top) * rng.uniform(-1, 1, COUNT)
    centre2 = rng.normal(size=(COUNT, 3))
    rotation2 = (frame * up if both else frame).as_matrix()
    centre1 = centre2 + frame.apply(local)
    return sizes[0], centre1, (frame * first).as_matrix(), sizes[1], centre2, rotation2


def mujoco_distances(kinds, arguments):
    geoms = "".join(
        f'<body mocap="true"><geom type="{NAMES[kind]}" size="1 1 1"/></body>' for kind in kinds
    )
    option = '<option ccd_tolerance="1e-14" ccd_iterations="200"/>'
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco>{option}<worldbody>{geoms}</worldbody></mujoco>"
    )
    data, out = mujoco.MjData(model), np.empty(COUNT)
    mujoco.mj_forward(model, data)
    for i in range(COUNT):
        for k in range(2):
            sizes, centre, rotation = (x[i] for x in arguments[3 * k : 3 * k + 3])
            model.geom_size[k, : sizes.size] = sizes
            data.geom_xpos[k], data.geom_xmat[k] = centre, rotation.ravel()
        out[i] = mujoco.mj_geomDistance(model, data, 0, 1, 1e3, np.zeros(6))
    return out


def hull_distances(kinds, arguments, normal):
    """How far two shapes are apart along a normal, which bounds their distance from below; or their depth.

    The depth is that of the origin in the hull of all differences of points. The radius is taken off.
    """
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    ends = np.array([[0, 0, -1], [0, 0, 1]])
    out = np.empty(COUNT)
    for i in range(COUNT):
        clouds, radius = [], 0.0
        for k, kind in enumerate(kinds):
            sizes, centre, rotation = (x[i] for x in arguments[3 * k : 3 * k + 3])
            local = signs * sizes if kind is Box else ends * sizes[1]
            radius += 0 if kind is Box else sizes[0]
            clouds.append(centre + local @ rotation.T)
        depth = ConvexHull((clouds[0][:, None] - clouds[1]).reshape(-1, 3)).equations[:, -1].max()
        apart = np.min(clouds[0] @ normal[i]) - np.max(clouds[1] @ normal[i])
        out[i] = (depth if depth < 0 else apart) - radius
    return out


def outside(kind, sizes, x):
    """Signed distance of points in the frame of a shape, of an ellipsoid another measure of it."""
    sizes = sizes[:, None]
    if kind is HalfSpace:
        return x[..., 2]
    if kind is Sphere:
        return np.linalg.norm(x, axis=-1) - sizes[..., 0]
    if kind is Ellipsoid:
        return np.linalg.norm(x / sizes, axis=-1) - 1
    if kind is Capsule:
        on_axis = np.clip(x[..., 2], -sizes[..., 1], sizes[..., 1])
        return np.hypot(np.hypot(x[..., 0], x[..., 1]), x[..., 2] - on_axis) - sizes[..., 0]
    over = np.abs(x) - sizes if kind is Box else 0
    if kind is Cylinder:
        over = np.stack([np.hypot(x[..., 0], x[..., 1]), np.abs(x[..., 2])], -1) - sizes
    return np.linalg.norm(np.maximum(over, 0), axis=-1) + np.minimum(over.max(-1), 0)


# Random placements and those that lie on each other.
of_placements = pytest.mark.parametrize(
    ("kinds", "placed"),
    [
        pytest.param(kinds, placed, id="-".join([*(NAMES[x] for x in kinds), placed.__name__]))
        for placed in (placements, lying)
        for kinds in (PAIRS if placed is placements else PAIRS[-3:])
    ],
)


def check_places(kinds, arguments):
    """The identities of places, that they are on both shapes, and that the least gap is the distance.

    This is MuJoCo's, except for capsules and boxes against boxes. Its distances of these are up to 1.3e-8 too
    long where an axis lies along a face, wrong where boxes are parallel edge on edge (1 for two unit cubes
    side by side), and its depths are wrong by 0.4 where the axis of a capsule crosses a box.
    """
    point1, point2, normal, gap = evaluated(kinds, arguments)
    np.testing.assert_allclose(point1 - point2, gap[..., None] * normal, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(normal, axis=-1), 1, rtol=0, atol=1e-12)
    least = gap.min(axis=1)
    is_least = gap == least[:, None]
    if kinds in ((Capsule, Box), (Box, Box)):
        distance = hull_distances(kinds, arguments, normal[np.arange(COUNT), gap.argmin(axis=1)])
    else:
        distance = mujoco_distances(kinds, arguments)
    # Measured: 4e-15, and 1.6e-9 for boxes that lie on each other.
    np.testing.assert_allclose(least, distance, rtol=0, atol=1e-8)
    for kind, k, point in ((kinds[0], 0, point1), (kinds[1], 3, point2)):
        sizes, centre, rotation = arguments[k : k + 3]
        local = np.einsum("bij,bsi->bsj", rotation, point - centre[:, None])
        beyond = outside(kind, sizes, local)
        assert np.abs(beyond[is_least]).max() < 1e-8  # measured: 4e-15
        # Places beside the closest one may be inside a capsule, below an end that is turned away.
        assert beyond.max() < 1e-8
    return least


@of_placements
def test_distance_and_places(kinds, placed):
    least = check_places(kinds, placed(kinds))
    assert np.sum(least < 0) > 100 and np.sum(least > 0) > 100


def nudged(arguments, direction, step):
    sizes1, centre1, rotation1, sizes2, centre2, rotation2 = arguments
    ds1, dc1, w1, ds2, dc2, w2 = direction
    turned = [
        Rotation.from_rotvec(step * w).as_matrix() @ rotation
        for w, rotation in ((w1, rotation1), (w2, rotation2))
    ]
    return (
        *(sizes1 + step * ds1, centre1 + step * dc1, turned[0]),
        *(sizes2 + step * ds2, centre2 + step * dc2, turned[1]),
    )


def random_direction(arguments, rng, of_sizes):
    """Rates of sizes and centres, and angular velocities in the world."""
    shapes = [x.shape[:1] + (3,) if x.ndim == 3 else x.shape for x in arguments]
    scale = [of_sizes, 1, 1, of_sizes, 1, 1]
    return [s * rng.normal(size=x) for s, x in zip(scale, shapes, strict=True)]


def tangents(arguments, direction):
    out = list(direction)
    for k in (2, 5):
        out[k] = np.cross(direction[k][:, None], arguments[k], axisa=2, axisb=1, axisc=1)
    return tuple(out)


@of_placements
def test_gap_changes_with_the_velocities_of_the_points(kinds, placed):
    arguments = placed(kinds)
    direction = random_direction(arguments, np.random.default_rng(1), 0)
    point1, point2, normal, gap = evaluated(kinds, arguments)
    rate = np.asarray(functions(kinds)[1](arguments, tangents(arguments, direction))[3])
    velocities = [
        direction[k + 1][:, None]
        + np.cross(direction[k + 2][:, None], x - arguments[k + 1][:, None])
        for k, x in ((0, point1), (3, point2))
    ]
    expected = np.sum(normal * (velocities[0] - velocities[1]), axis=-1)
    is_least = gap == gap.min(axis=1, keepdims=True)
    # Measured: 4e-10 and 5e-7; least gaps within rounding of each other have normals that differ by tilts.
    np.testing.assert_allclose(
        rate[is_least], expected[is_least], rtol=0, atol=1e-9 if placed is placements else 1e-6
    )


@of_placements
def test_derivatives_are_those_of_differences(kinds, placed):
    arguments, step = placed(kinds), 1e-6
    direction = random_direction(arguments, np.random.default_rng(2), 0.3)
    along = functions(kinds)[1](arguments, tangents(arguments, direction))
    low, here, high = (evaluated(kinds, nudged(arguments, direction, s * step)) for s in (-1, 0, 1))
    smooth = np.ones(COUNT, bool)
    for x, y, z in zip(low, here, high, strict=True):
        smooth &= (np.abs(x + z - 2 * y) < 1e-3 * step).reshape(COUNT, -1).all(axis=1)
    # Smaller tilts than the step change which corner is the lowest.
    assert smooth.mean() > (0.97 if placed is placements else 0.4)
    for x, z, rate in zip(low, high, along, strict=True):
        error = np.abs((z - x) / (2 * step) - rate)[smooth]
        assert error.max() < 1e-6  # measured: 3e-8, the error of the difference


TURNS = Rotation.from_euler(
    "zyx",
    [
        [0, 0, 0],
        [90, 0, 0],
        [0, 90, 0],
        [0, 0, 90],
        [45, 0, 0],
        [0, 45, 0],
        [0, 0, 180],
        [0, 45, 90],
    ],
    degrees=True,
).as_matrix()


@functools.cache
def degenerate(kinds):
    """Equal and commensurate sizes, parallel axes and faces; centres that coincide, or on faces and edges."""
    steps = np.stack(np.meshgrid([0, 0.25, 1], [0, 0.5, 0.75], [0, 0.5, 0.75, 1]), -1).reshape(
        -1, 3
    )
    centre1, turn, small = (
        x.ravel() for x in np.meshgrid(np.arange(len(steps)), np.arange(8), [0, 1], indexing="ij")
    )
    extra = COUNT - centre1.size
    centre1, turn, small = (np.append(x, x[:extra]) for x in (centre1, turn, small))
    radii = np.where(small, 0.25, 0.5)[:, None]
    sizes1, sizes2 = radii * np.ones((1, SIZES[kinds[0]])), np.full((COUNT, SIZES[kinds[1]]), 0.5)
    same = np.broadcast_to(np.eye(3), (COUNT, 3, 3))
    return sizes1, steps[centre1], TURNS[turn], sizes2, np.zeros((COUNT, 3)), same


@of_pairs
def test_degenerate_placements(kinds):
    arguments = degenerate(kinds)
    check_places(kinds, arguments)
    direction = random_direction(arguments, np.random.default_rng(4), 0.3)
    rates = tangents(arguments, direction)
    along, gradient = functions(kinds)[1](arguments, rates), functions(kinds)[2](*arguments)
    assert all(np.all(np.isfinite(x)) for x in (*along, *gradient))
    flat = [np.asarray(x).reshape(COUNT, -1) for x in along]
    forward = sum(np.sum(np.cos(np.arange(1.0, x.shape[1] + 1)) * x, axis=1) for x in flat)
    reverse = sum(
        np.sum(np.asarray(x) * dx, axis=tuple(range(1, dx.ndim)))
        for x, dx in zip(gradient, rates, strict=True)
    )
    np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-9)  # measured: 3e-15


def batch(kinds, sizes1, centre1, rotation1, sizes2):
    """One placement or several on shape 2 at the origin, repeated to the length of the other batches."""
    rows = [np.asarray(sizes1), np.asarray(centre1), rotation1, np.asarray(sizes2)]
    ranks = [1, 1, 2, 1]
    count = max(len(x) if x.ndim > r else 1 for x, r in zip(rows, ranks, strict=True))
    full = [
        np.resize(np.broadcast_to(x, (count, *x.shape[-r:])), (COUNT, *x.shape[-r:]))
        for x, r in zip(rows, ranks, strict=True)
    ]
    origin = np.zeros((COUNT, 3)), np.broadcast_to(np.eye(3), (COUNT, 3, 3))
    return [x[:count] for x in evaluated(kinds, (*map(np.float64, full), *origin))]


def spread(points):
    return np.linalg.norm(points[:, None] - points[None], axis=-1)[~np.eye(len(points), dtype=bool)]


@pytest.mark.parametrize("angle", [0, 30, 45])
@pytest.mark.parametrize("lower", [[1, 1, 1], [0.5, 0.5, 0.5], [0.2, 2, 0.5]])
def test_boxes_rest_on_four_places(angle, lower):
    turn = Rotation.from_euler("z", angle, degrees=True).as_matrix()
    top = lower[2] + 0.5 + 1e-4
    point1, _, normal, gap = batch((Box, Box), [0.5, 0.5, 0.5], [0.1, 0.1, top], turn, lower)
    np.testing.assert_allclose(gap, 1e-4, rtol=0, atol=1e-14)  # measured: 2e-16
    np.testing.assert_allclose(normal[0], [[0, 0, 1]] * 4, rtol=0, atol=1e-14)
    assert spread(point1[0]).min() > 0.1


def test_places_of_resting_boxes_stay_where_they_are():
    # A plank that overhangs a ledge, rocked in all directions: no place jumps to another slot.
    around, yaw = np.linspace(0, 2 * np.pi, 400), Rotation.from_euler("z", 0.3)
    vectors = np.stack([np.cos(around), np.sin(around), 0 * around], -1)
    for tilt in (1e-10, 1e-6, 1e-3):
        turns = (Rotation.from_rotvec(tilt * vectors) * yaw).as_matrix()
        point1 = batch((Box, Box), [1, 0.1, 0.05], [0.5, 0, 0.55], turns, [0.5, 0.5, 0.5])[0]
        assert np.abs(point1 - point1[0]).max() < 4 * tilt + 1e-9
        assert spread(point1[0]).min() > 0.1


def test_capsules_rest_on_two_places():
    flat = Rotation.from_euler("y", 90, degrees=True).as_matrix()
    point1, _, _, gap = batch((Capsule, Box), [0.1, 0.4], [0.3, 0, 0.6], flat, [0.5, 0.5, 0.5])
    np.testing.assert_allclose(gap, 0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(point1[0, :, 0], [-0.1, 0.5], rtol=0, atol=1e-15)
    same = np.eye(3)
    point1, _, _, gap = batch((Capsule, Capsule), [0.1, 0.4], [0.2, 0, 0.5], same, [0.1, 0.7])
    np.testing.assert_allclose(gap, 0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(point1[0, :, 2], [0.1, 0.7], rtol=0, atol=1e-15)


def test_cylinders_rest_on_three_or_two_places():
    flat = Rotation.from_euler("y", 90, degrees=True).as_matrix()
    kinds, sizes = (Cylinder, HalfSpace), [0.3, 0.5]
    for up, turn in ((0.5, np.eye(3)), (0.5, np.diag([1.0, -1, -1]))):
        point1, _, _, gap = batch(kinds, sizes, [0, 0, up], turn, np.zeros(0))
        on = np.abs(gap[0]) < 1e-15
        assert np.sum(on) == 3
        np.testing.assert_allclose(spread(point1[0][on]), 0.3 * 3**0.5, rtol=1e-14)
    gap = batch(kinds, sizes, [0, 0, 0.3], flat, np.zeros(0))[3]
    np.testing.assert_allclose(gap[0], [0, 0, 0.45, 0.45], rtol=0, atol=1e-15)


@of_pairs
def test_either_order_and_precision(kinds):
    def made(dtype):
        return [
            (
                shape(kind, jnp.full(SIZES[kind], 0.5, dtype)),
                Frame(jnp.ones(3, dtype), jnp.eye(3, dtype=dtype)),
            )
            for kind in kinds
        ]

    for dtype in (jnp.float32, jnp.float64):
        (one, frame1), (two, frame2) = made(dtype)
        found = jax.eval_shape(closest, one, frame1, two, frame2)
        other = jax.eval_shape(closest, two, frame2, one, frame1)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(other), strict=True):
            assert x.dtype == y.dtype == dtype and x.shape == y.shape
