"""Surfaces given by functions: nearest points, derivatives, degenerate places, terrain against MuJoCo."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from marks import nightly
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation

from diffnsd.shapes import (
    Box,
    Capsule,
    ConvexHull,
    Cylinder,
    Ellipsoid,
    Frame,
    HalfSpace,
    HeightField,
    Implicit,
    Sphere,
    closest,
)

COUNT = 1000
AXES = np.array([1.0, 0.7, 0.5])
_TETRAHEDRON = ConvexHull([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
SHAPES = {
    "sphere": Sphere,
    "capsule": lambda s: Capsule(s, 2 * s),
    "cylinder": lambda s: Cylinder(s, 2 * s),
    "box": lambda s: Box(s * jnp.array([1.0, 2.0, 1.5])),
    "ellipsoid": lambda s: Ellipsoid(s * jnp.array([1.0, 2.0, 1.5])),
    "hull": lambda s: eqx.tree_at(lambda h: h.vertices, _TETRAHEDRON, s * _TETRAHEDRON.vertices),
}
# The places of a cylinder are found by three searches along curves, which compile for half a minute.
of_shapes = pytest.mark.parametrize(
    "name",
    [nightly(n) if n == "cylinder" else n for n in SHAPES],
)


def egg(x, axes):
    return jnp.sum((x / axes) ** 2) - 1


def places(name, size, centre, rotation, axes, centre2, rotation2):
    surface = Implicit(jax.tree_util.Partial(egg, axes=axes))
    frame2 = Frame(centre2, rotation2)
    found = closest(SHAPES[name](size), Frame(centre, rotation), surface, frame2)
    return found.point1, found.point2, found.normal, found.gap


@functools.cache
def functions(name):
    """Places, and their derivative along a direction."""
    of = functools.partial(places, name)
    both = jax.vmap(lambda x, dx: jax.jvp(of, x, dx))
    return jax.jit(jax.vmap(of)), jax.jit(both)


@functools.cache
def placements(seed=0):
    """Bodies outside of an egg, or less deep in it than its least radius of curvature, 0.25."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.02, 0.1, COUNT)
    turns = [Rotation.random(COUNT, rng=rng) for _ in range(2)]
    centre2 = rng.normal(size=(COUNT, 3))
    on = rng.normal(size=(COUNT, 3))
    on *= AXES / np.linalg.norm(on, axis=1, keepdims=True)
    out = on / AXES**2
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    centre = centre2 + turns[1].apply(on + out * rng.uniform(-0.03, 0.5, COUNT)[:, None])
    axes = np.broadcast_to(AXES, (COUNT, 3))
    return size, centre, turns[0].as_matrix(), axes, centre2, turns[1].as_matrix()


def local(points, arguments):
    return np.einsum("bij,bsi->bsj", arguments[5], points - arguments[4][:, None])


def deepest(x, rotation, half, centre2, rotation2):
    """The least signed distance of the axis of a capsule, by minimising over places on both."""
    arm, start = rotation2.T @ rotation[:, 2] * half, rotation2.T @ (x - centre2)

    def point(angles):
        a, b = angles
        return AXES * np.array([np.cos(a) * np.cos(b), np.sin(a) * np.cos(b), np.sin(b)])

    def distance(z):
        return np.sum((start + z[2] * arm - point(z[:2])) ** 2)

    unit = start / AXES / np.linalg.norm(start / AXES)
    guess = np.arctan2(unit[1], unit[0]), np.arcsin(unit[2]), 0.0
    bounds = [(None, None), (None, None), (-1, 1)]
    return np.sqrt(minimize(distance, guess, bounds=bounds, tol=1e-15).fun)


@of_shapes
def test_places_are_nearest_points(name):
    """On both surfaces, with opposite normals, and no other point of the surface is nearer."""
    arguments = placements()
    size, centre, rotation = arguments[:3]
    point1, point2, normal, gap = map(np.asarray, functions(name)[0](*arguments))
    on = local(point2, arguments)
    # Measured: 4e-16 and below for all of these.
    np.testing.assert_allclose(np.sum((on / AXES) ** 2, axis=-1), 1, rtol=0, atol=1e-12)
    out = on / AXES**2
    out /= np.linalg.norm(out, axis=-1, keepdims=True)
    np.testing.assert_allclose(
        np.einsum("bij,bsi->bsj", arguments[5], normal), out, rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(point1 - point2, gap[..., None] * normal, rtol=0, atol=1e-12)
    own = np.einsum("bij,bsi->bsj", rotation, point1 - centre[:, None]) / size[:, None, None]
    inward = -np.einsum("bij,bsi->bsj", rotation, normal)
    rng = np.random.default_rng(5)
    other = rng.normal(size=(4000, 3))
    other *= AXES / np.linalg.norm(other, axis=1, keepdims=True)
    if name == "ellipsoid":
        radii = np.array([1.0, 2.0, 1.5])
        assert np.abs(np.sum((own / radii) ** 2, axis=-1) - 1).max() < 1e-11  # 4e-13
        same = own / radii**2
        same /= np.linalg.norm(same, axis=-1, keepdims=True)
        np.testing.assert_allclose(same, inward, rtol=0, atol=1e-11)  # 5e-13
        return
    skeleton = point1 + {"sphere": 1, "capsule": 1}.get(name, 0) * size[:, None, None] * normal
    apart = np.linalg.norm(local(skeleton, arguments)[:, :, None] - other, axis=-1).min(axis=-1)
    nearest = np.abs(np.sum(normal * (skeleton - point2), axis=-1))
    assert np.all(nearest <= apart + 1e-12)
    if name == "capsule":
        apart = gap[:, 2] + size > 0.01
        for i in np.flatnonzero(apart)[:200]:
            rest = (centre[i], rotation[i], 2 * size[i], *(x[i] for x in arguments[4:]))
            assert abs(deepest(*rest) - gap[i, 2] - size[i]) < 1e-7  # 2e-9
        assert np.all(gap[:, 2] <= gap[:, :2].min(axis=1) + 1e-9)


def directions(arguments, seed=1):
    rng = np.random.default_rng(seed)
    size, _, rotation, axes, _, rotation2 = arguments
    rates = [rng.normal(size=(COUNT, 3)) for _ in range(4)]
    turned = [
        np.cross(w[:, None], r, axisa=2, axisb=1, axisc=1)
        for w, r in zip(rates[2:], (rotation, rotation2), strict=True)
    ]
    growth = rng.normal(size=COUNT), 0.2 * rng.normal(size=(COUNT, 3))
    return rates, (growth[0] * size, rates[0], turned[0], growth[1] * axes, rates[1], turned[1])


def nudged(arguments, rates, tangent, step):
    size, centre, rotation, axes, centre2, rotation2 = arguments
    turns = [
        Rotation.from_rotvec(step * w).as_matrix() @ r
        for w, r in zip(rates[2:], (rotation, rotation2), strict=True)
    ]
    moved = [x + step * tangent[k] for k, x in ((0, size), (1, centre), (3, axes), (4, centre2))]
    return moved[0], moved[1], turns[0], moved[2], moved[3], turns[1]


@of_shapes
def test_derivatives_are_those_of_differences(name):
    arguments, step = placements(), 1e-6
    rates, tangent = directions(arguments)
    here, along = functions(name)[1](arguments, tangent)
    low, high = (functions(name)[0](*nudged(arguments, rates, tangent, s)) for s in (-step, step))
    smooth = np.ones(COUNT, bool)
    for x, y, z in zip(low, here, high, strict=True):
        smooth &= (np.abs(np.asarray(x + z - 2 * y)) < 1e-3 * step).reshape(COUNT, -1).all(axis=1)
    assert smooth.mean() > 0.95
    for x, z, rate in zip(low, high, along, strict=True):
        assert np.abs((z - x) / (2 * step) - rate)[smooth].max() < 1e-6  # 5e-8, of the difference


SPIKE = Implicit(lambda x: jnp.sum(x**2) - 1)
FIELD = HeightField(np.zeros((4, 5)), [1.0, 1.0, 0.3])


def mixed(x, weights):
    square = jnp.sum(x**2)
    return jnp.dot(weights, jnp.stack([x[2], 1 - square, square - 1]))


@of_shapes
def test_degenerate_placements(name):
    """Centres of curvature, centres on the surface, axes along it: finite, and both modes agree.

    The surfaces are a plane, a ball from inside and a ball from outside.
    """
    centres = np.array([[0.0, 0, 0], [0, 0, 1], [0.5, 0, 0], [0.25, 0.25, 0.1], [0, 0, -0.1]])
    turns = Rotation.from_euler("y", [[0], [90], [45]], degrees=True).as_matrix()
    index = np.stack(np.meshgrid(*map(np.arange, (5, 3, 3)), indexing="ij"), -1).reshape(-1, 3)

    def total(size, weights, centre, rotation):
        there = Frame(jnp.zeros(3), jnp.eye(3))
        surface = Implicit(jax.tree_util.Partial(mixed, weights=weights))
        found = closest(SHAPES[name](size), Frame(centre, rotation), surface, there)
        parts = found.point1, found.point2, found.normal, found.gap
        return sum(jnp.sum(jnp.cos(jnp.arange(1.0, x.size + 1)) * x.ravel()) for x in parts)

    rng = np.random.default_rng(2)
    arguments = np.full(45, 0.1), np.eye(3)[index[:, 2]], centres[index[:, 0]], turns[index[:, 1]]
    rates = tuple(rng.normal(size=x.shape) for x in arguments)
    both = jax.vmap(lambda x, dx: (jax.jvp(total, x, dx), jax.grad(total, (0, 1, 2, 3))(*x)))
    (value, forward), gradient = jax.jit(both)(arguments, rates)
    reverse = sum(
        np.sum(np.asarray(g) * dx, axis=tuple(range(1, dx.ndim)))
        for g, dx in zip(gradient, rates, strict=True)
    )
    assert np.all(np.isfinite(value)) and np.all(np.isfinite(forward))
    np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-9)


def test_the_gap_in_the_centre_of_a_round_bowl_has_its_derivative():
    def gap(radius, bowl):
        surface = Implicit(jax.tree_util.Partial(lambda x, a: a**2 - jnp.sum(x**2), a=bowl))
        here = Frame(jnp.zeros(3), jnp.eye(3))
        return closest(Sphere(radius), here, surface, here).gap[0]

    value, slopes = jax.jit(jax.value_and_grad(gap, (0, 1)))(jnp.array(0.2), jnp.array(1.0))
    np.testing.assert_allclose([value, *slopes], [0.8, -1, 1], atol=1e-12)


def test_second_derivatives():
    """The distance of a point from a ball, stated by a function that is no distance."""

    def gap(x):
        here = Frame(jnp.zeros(3), jnp.eye(3))
        return closest(Sphere(0.1), Frame(x, jnp.eye(3)), SPIKE, here).gap[0]

    x = jnp.array([0.3, 1.2, -0.4])
    exact = jax.hessian(lambda x: jnp.sqrt(jnp.sum(x**2)))(x)
    np.testing.assert_allclose(jax.jit(jax.hessian(gap))(x), exact, atol=1e-11)  # 1e-15


def test_a_learned_surface_has_derivatives_by_its_weights():
    net = eqx.nn.MLP(3, "scalar", 8, 2, jnp.tanh, key=jax.random.key(0))

    def surface(weights):
        return Implicit(lambda x: x[2] + 0.3 * weights(x))

    @eqx.filter_jit
    def gap(net):
        turn = Frame(jnp.array([0.1, 0.2, 0.8]), jnp.eye(3))
        return closest(Sphere(0.1), turn, surface(net), Frame(jnp.zeros(3), jnp.eye(3))).gap[0]

    gradient = eqx.filter_grad(gap)(net)
    rng = np.random.default_rng(0)
    arrays, rest = eqx.partition(net, eqx.is_array)
    way = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), arrays)

    def moved(s):
        return gap(eqx.combine(jax.tree.map(lambda x, dx: x + s * dx, arrays, way), rest))

    rate = sum(map(jnp.vdot, *map(jax.tree.leaves, (eqx.filter(gradient, eqx.is_array), way))))
    np.testing.assert_allclose(rate, (moved(1e-5) - moved(-1e-5)) / 2e-5, rtol=1e-7)


def hills(x, y):
    return 0.5 + 0.3 * np.sin(1.5 * x) * np.cos(1.1 * y) + 0.1 * x


SIZE = np.array([2.0, 1.5, 0.4])


def grid(rows, columns):
    x, y = np.linspace(-2, 2, columns), np.linspace(-1.5, 1.5, rows)
    return hills(x[None], y[:, None])


def mujoco_gaps(rows, columns, centres, radius):
    xml = f"""<mujoco><asset><hfield name="h" nrow="{rows}" ncol="{columns}" size="2 1.5 0.4 0.1"/></asset>
    <worldbody><geom type="hfield" hfield="h" margin="0.2" solref="-1 -1"/><body><freejoint/>
    <geom type="sphere" size="{radius}" mass="1"/></body></worldbody></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    model.hfield_data[:] = grid(rows, columns).ravel()
    data, out = mujoco.MjData(model), []
    for centre in centres:
        data.qpos[:3] = centre
        mujoco.mj_forward(model, data)
        near = np.argmin(data.contact.dist)
        out.append([data.contact.dist[near], *data.contact.frame[near, :3]])
    return np.array(out)


@functools.partial(jax.jit, static_argnums=0)
def gaps_on_hills(radius, centres, heights):
    field, here = HeightField(heights, SIZE), Frame(jnp.zeros(3), jnp.eye(3))

    def gap(centre):
        found = closest(Sphere(radius), Frame(centre, jnp.eye(3)), field, here)
        return found.gap[0], found.normal[0]

    return jax.vmap(gap)(centres)


def test_a_ball_on_hills_touches_as_in_mujoco():
    """Whose triangles approach the hills with the square of the width of a cell."""
    rng = np.random.default_rng(3)
    xy = rng.uniform(-1, 1, (300, 2)) * [1.7, 1.2]
    z = 0.4 * hills(*xy.T) + 0.1 * rng.uniform(0.8, 1.8, 300)
    centres = np.column_stack([xy, z])
    errors = []
    for rows, columns in ((16, 21), (31, 41)):
        theirs = mujoco_gaps(rows, columns, centres, 0.1)
        gap, normal = gaps_on_hills(0.1, centres, grid(rows, columns))
        errors.append((np.abs(gap - theirs[:, 0]).max(), np.abs(normal - theirs[:, 1:]).max()))
    assert np.sum(np.asarray(gap) < 0) > 30
    # Measured: gaps 1.9e-3 and 4.9e-4 m; normals of triangles differ with the width of a cell.
    assert errors[0][0] < 3e-3 and errors[1][0] < 0.35 * errors[0][0]
    assert errors[1][1] < 0.6 * errors[0][1]


def test_heights_have_their_derivatives():
    """Each height moves the ground by the weight that it has at the place of contact."""
    heights, centre = jnp.asarray(grid(13, 17)), np.array([[0.3, -0.2, 0.4]])

    def gap(heights):
        return gaps_on_hills(0.1, centre, heights)[0][0]

    gradient = np.asarray(jax.jit(jax.grad(gap))(heights))
    assert np.sum(gradient != 0) == 16
    way = np.random.default_rng(0).normal(size=heights.shape)
    difference = (gap(heights + 1e-6 * way) - gap(heights - 1e-6 * way)) / 2e-6
    np.testing.assert_allclose(np.sum(gradient * way), difference, rtol=1e-7)


def test_flat_ground_is_a_half_space():
    """Also beyond the edge of the grid."""
    centres = np.array([[0.1, 0.2, 0.5], [5.0, -3.0, 0.3], [-1.0, 7.0, 0.1]])
    here = Frame(jnp.zeros(3), jnp.eye(3))
    field = HeightField(np.full((3, 4), 0.5), [1.0, 2.0, 0.2])
    plane = HalfSpace(), Frame(jnp.array([0.0, 0, 0.1]), jnp.eye(3))
    for shape in (Sphere(0.1), Box([0.1, 0.2, 0.3])):

        def both(centre, shape=shape):
            frame = Frame(centre, jnp.eye(3))
            return closest(shape, frame, field, here), closest(shape, frame, *plane)

        found, known = jax.jit(jax.vmap(both))(centres)
        np.testing.assert_allclose(found.gap, known.gap, atol=1e-14)
        np.testing.assert_allclose(found.point1, known.point1, atol=1e-14)


@pytest.mark.slow
def test_a_cylinder_on_flat_ground_is_one_on_a_half_space():
    """With a fifth place on the line between its rims, which adds nothing there."""
    rng, here = np.random.default_rng(0), Frame(jnp.zeros(3), jnp.eye(3))
    field = HeightField(np.full((3, 4), 0.5), [1.0, 2.0, 0.2])
    plane = HalfSpace(), Frame(jnp.array([0.0, 0, 0.1]), jnp.eye(3))
    turns = Rotation.random(200, rng=rng).as_matrix()
    turns[0], turns[1] = np.eye(3), Rotation.from_euler("x", 90, degrees=True).as_matrix()

    def both(centre, turn):
        shape, frame = Cylinder(0.1, 0.2), Frame(centre, turn)
        return closest(shape, frame, field, here), closest(shape, frame, *plane)

    found, known = jax.jit(jax.vmap(both))(rng.normal(size=(200, 3)), turns)
    # Measured: 5e-16.
    np.testing.assert_allclose(found.gap[:, :4], known.gap, atol=1e-13)
    np.testing.assert_allclose(found.point1[:, :4], known.point1, atol=1e-13)
    np.testing.assert_allclose(found.gap[:, 4], known.gap.min(axis=1), atol=1e-13)


@pytest.mark.slow
def test_a_cylinder_lies_across_a_ball():
    """Touched by its side: the distance of the axes less both radii, and its derivatives by these."""
    rng, here = np.random.default_rng(1), Frame(jnp.zeros(3), jnp.eye(3))
    turns = Rotation.random(200, rng=rng).as_matrix()
    axes = turns[:, :, 2]
    out = np.cross(axes, rng.normal(size=(200, 3)))
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    centres = 1.15 * out + axes * rng.uniform(-0.4, 0.4, 200)[:, None]

    def gap(radius, ball, centre, turn):
        surface = Implicit(jax.tree_util.Partial(lambda x, a: jnp.sum(x**2) - a**2, a=ball))
        return closest(Cylinder(radius, 0.5), Frame(centre, turn), surface, here).gap[4]

    both = jax.jit(jax.vmap(lambda *x: jax.value_and_grad(gap, (0, 1))(0.1, 1.0, *x)))
    value, slopes = both(centres, turns)
    np.testing.assert_allclose(value, 0.05, atol=1e-13)  # 5e-16
    np.testing.assert_allclose(slopes, -1, atol=1e-12)  # 1e-15


def _cast(shape, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), shape)


@of_shapes
def test_precision_is_kept(name):
    for dtype in (jnp.float32, jnp.float64):
        here = Frame(jnp.zeros(3, dtype), jnp.eye(3, dtype=dtype))
        shape, field = (_cast(x, dtype) for x in (SHAPES[name](0.1), FIELD))
        for surface in (SPIKE, field):
            found = eqx.filter_eval_shape(closest, surface, here, shape, here)
            assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: HeightField(np.zeros(3), [1.0, 1, 1]),
            r"heights must have shape \(rows, columns\)",
        ),
        (lambda: HeightField(np.zeros((3, 3)), [1.0, 1, 1, 1]), r"size must have shape \(3,\)"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_what_check_says():
    assert "must return a number" in (Implicit(lambda x: x).check() or "")
    assert "size of a HeightField must be positive" in (
        HeightField(np.zeros((3, 3)), [1.0, -1, 1]).check() or ""
    )
