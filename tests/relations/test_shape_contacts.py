"""Contacts of shapes on bodies: against points on a plane, closed forms, and in trees of joints."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import models, shapes
from diffnsd._block_rows import gather
from diffnsd.groups import PoseGroup
from diffnsd.relations import BodyPointsPlane, ContactFrame, Geom, shape_contacts
from diffnsd.systems import Ball, Body, Free, Hinge, Slide

GROUND = Geom(shapes.HalfSpace())


def cube(relation=None):
    model = models.tossed_cube(mu=0.18, half_width=0.05, max_active=4)
    given = model.interactions[0]
    return nsd.Model(
        model.system, nsd.Interaction(relation or given.relation, given.law, given.max_active)
    )


def test_a_box_on_a_half_space_moves_as_eight_points_on_a_plane():
    """A toss that lands and tumbles, its value and its derivative."""
    turned = np.array([0.92338052, 0.30779351, -0.20519567, 0.10259784])
    turned /= np.linalg.norm(turned)

    def landing(model, velocity):
        start = model.system.state([0.0, 0.0, 0.2], turned, velocity, [3.0, -2.0, 4.0])
        run = nsd.simulate(model, nsd.MoreauJean(theta=1.0), 0.0, 45 / 148, 1 / 148, start)
        return run.states.q.position[-1, 0]

    box = shape_contacts([(Geom(shapes.Box([0.05] * 3), body=0), GROUND)])
    velocity = jnp.array([1.0, 0.5, -1.0])
    both = jax.jit(jax.jacfwd(lambda m, v: (landing(m, v),) * 2, argnums=1, has_aux=True))
    (points, at_points), (shape, at_shape) = both(cube(), velocity), both(cube(box), velocity)
    np.testing.assert_allclose(at_shape, at_points, atol=1e-10)  # 1e-13
    np.testing.assert_allclose(shape, points, atol=1e-8)  # 1e-12


def pile(max_active=None, mu=0.5):
    """Three boxes, each turned on the one below, a ball beside them that rolls against the pile."""
    system = nsd.NewtonEulerSystem(np.ones(4), np.full((4, 3), 4e-3))
    boxes = [Geom(shapes.Box([0.1, 0.1, 0.05]), body=i) for i in range(3)]
    ball = Geom(shapes.Sphere(0.05), body=3)
    pairs = [(boxes[0], GROUND), (ball, GROUND), (boxes[1], boxes[0]), (boxes[2], boxes[1])]
    relation = shape_contacts([*pairs, (ball, boxes[0])])
    law = nsd.GapStabilized(nsd.CoulombFriction(mu))
    turns = np.array([0.0, 0.3, 0.6, 0.0])
    z = np.zeros(4)
    start = system.state(
        np.array([[0, 0, 0.05], [0.01, 0, 0.15], [0, 0.01, 0.25], [0.2, 0.0, 0.05]]),
        np.stack([np.cos(turns / 2), z, z, np.sin(turns / 2)], axis=1),
        np.array([[0.0, 0, 0], [0, 0, 0], [0, 0, 0], [-0.5, 0, 0]]),
    )
    return nsd.Model(system, nsd.Interaction(relation, law, max_active)), start


@pytest.mark.slow
def test_a_pile_rests_and_its_contacts_do_not_depend_on_how_many_are_solved():
    ends = {}
    for limit in (None, 20):
        model, start = pile(limit)
        run = nsd.simulate(model, nsd.MoreauJean(theta=1.0), 0.0, 0.5, 5e-3, start)
        assert run.result == nsd.RESULTS.successful
        ends[limit] = run
    run = ends[None]
    relation = model.interactions[0].relation
    assert relation.function.pair == (0,) * 8 + (1,) + (2,) * 4 + (3,) * 4 + (4,)
    assert float(np.min(run.gaps[0])) > -1e-4  # -2e-5: the ball turns
    moved = run.states.q.position[-1, :3] - run.states.q.position[0, :3]
    assert float(np.max(np.abs(moved))) < 1e-3  # the pile stands, though the ball hits it: 3e-4
    lifted = run.impulses[0][-1, :, 0] / 5e-3  # of the ground on the pile and on the ball
    np.testing.assert_allclose(np.sum(lifted[:8]), 3 * 9.81, rtol=1e-3)
    np.testing.assert_allclose(lifted[8], 9.81, rtol=1e-3)
    q = (x.states.q.position for x in ends.values())
    np.testing.assert_allclose(*q, atol=1e-8)


@pytest.mark.nightly
def test_the_time_of_an_impact_between_shapes_has_its_derivative_by_the_sizes():
    """A ball falls on a box: its height after a rebound, by radius and by height of the box."""
    system = nsd.NewtonEulerSystem(1.0, np.full(3, 1e-3))
    start = system.state([0.0, 0.0, 1.0])
    fall = 0.5

    def height(radius, half):
        ball, box = (
            Geom(shapes.Sphere(radius), body=0),
            Geom(shapes.Box(jnp.stack([0.3, 0.3, half]))),
        )
        contact = nsd.Interaction(shape_contacts([(ball, box)]), nsd.NewtonImpact(0.6))
        model = nsd.Model(system, contact)
        run = nsd.simulate(model, nsd.Located(nsd.MoreauJean()), 0.0, fall, 1e-2, start)
        return run.states.q.position[-1, 0, 2]

    def exact(radius, half):
        drop = 1.0 - radius - half
        time, speed = jnp.sqrt(2 * drop / 9.81), jnp.sqrt(2 * drop * 9.81)
        rest = fall - time
        return radius + half + 0.6 * speed * rest - 9.81 * rest**2 / 2

    sizes = jnp.array(0.2), jnp.array(0.1)
    (value, slopes), (true, true_slopes) = (
        jax.value_and_grad(f, argnums=(0, 1))(*sizes) for f in (height, exact)
    )
    np.testing.assert_allclose(value, true, atol=1e-9)  # 1e-12
    np.testing.assert_allclose(jnp.stack(slopes), jnp.stack(true_slopes), rtol=1e-9)  # 1e-12


@pytest.mark.nightly
def test_geoms_of_a_tree_and_of_free_bodies_touch_alike():
    """A capsule on a hinge strikes a ball that lies on the ground; the other time both are free bodies."""
    bar = dict(mass=1.0, inertia=(1 / 12, 1 / 12, 1e-3))
    ball = dict(mass=0.5, inertia=(2e-3, 2e-3, 2e-3))
    pivot = Hinge((0, 1, 0), point=(0, 0, 0.5))
    tree = nsd.Multibody(
        [Body(joints=pivot, position=(0, 0, 0.7), **bar), Body(joints=Free(), **ball)]
    )
    geoms = Geom(shapes.Capsule(0.05, 0.5), body=0), Geom(shapes.Sphere(0.1), body=1)
    pairs = [(geoms[0], geoms[1]), (geoms[1], GROUND)]
    touching = nsd.Interaction(shape_contacts(pairs), nsd.CoulombFriction(0.3, 0.5))
    q = jnp.array([0.0, 0.2, 0.0, 0.1, 1.0, 0.0, 0.0, 0.0])
    start = tree.state(q).q, jnp.zeros(7).at[0].set(-3.0)
    hanging = nsd.simulate(
        nsd.Model(tree, touching), nsd.MoreauJean(), 0.0, 0.1, 2e-4, nsd.State(*start)
    )
    free = nsd.NewtonEulerSystem([1.0, 0.5], [bar["inertia"], ball["inertia"]])
    there = free.state(
        [[0.0, 0.0, 0.7], [0.2, 0.0, 0.1]],
        velocity=[[1.5, 0.0, 0.0], [0.0, 0.0, 0.0]],
        angular_velocity=[[0.0, -3.0, 0.0], [0.0, 0.0, 0.0]],
    )
    pin = nsd.GapRelation(nsd.hinge(there.q, [0.0, 0.0, 1.2], [0.0, 1.0, 0.0]))
    pinned = nsd.Model(free, (nsd.Interaction(pin, nsd.Equality()), touching))
    loose = nsd.simulate(pinned, nsd.Projected(nsd.MoreauJean()), 0.0, 0.1, 2e-4, there)
    ends = hanging.states.q[-1, 1:4], loose.states.q.position[-1, 1]
    np.testing.assert_allclose(*ends, atol=2e-4)  # the joint's scheme is of first order: 6e-5
    assert float(ends[0][0]) > 0.25


def touching(**rotation):
    """A rod with the ground and a ball, and the ball with the ground."""
    rod = Geom(shapes.Capsule(0.05, 0.5), 1, position=(0.1, 0.2, 0.3))
    ball = Geom(shapes.Sphere(0.1), 2, position=(0.0, 0.1, 0.0))
    found = shape_contacts([(rod, GROUND), (rod, ball), (ball, GROUND)])
    return eqx.tree_at(
        lambda r: [getattr(r, name) for name in rotation],
        found,
        list(rotation.values()),
        is_leaf=lambda x: x is None,
    )


def rolling():
    points = touching()
    return ContactFrame(points.function, points.body1, points.body2, rolling=True)


def points_of_several():
    return BodyPointsPlane(POINTS, body=(0, 1, 2, 1))


POINTS = np.array([[0.1, 0.2, 0.3], [-0.2, 0.1, 0.0], [0.3, 0.0, -0.1], [0.0, 0.2, 0.1]])


@pytest.mark.parametrize(
    "make",
    [
        touching,
        lambda: touching(spin=jnp.array(0.01), roll=jnp.array([0.1, 0.2, 0.3, 0.4])),
        rolling,
        lambda: BodyPointsPlane(POINTS, body=1),
        points_of_several,
    ],
)
def test_rows_on_the_rates_of_joints_are_those_on_bodies_times_their_jacobian(make):
    """Of all contacts of a tree, and of chosen ones: between two bodies, and with the world."""
    hanging = Body(1.0, 0.1, [Hinge((0, 1, 0), point=(0, 0, 0.5)), Slide((1, 0, 2))])
    bodies = [hanging, Body(2.0, 0.2, Ball(), parent=0), Body(0.5, 0.1, Free())]
    tree = nsd.Multibody(bodies)
    q = tree.group.exp(0.3 * jnp.arange(1.0, 12.0))
    free = make()
    v, z = jnp.linspace(-1.0, 2.0, 11), jnp.arange(4.0 * free.rows).reshape(free.rows, 4)
    of_bodies = free.observe(PoseGroup(3), 0.0, tree.frames(q)).dense()
    true = jnp.einsum("kmc,mn->knc", of_bodies, tree.jacobian(q))
    kept = np.array([3, 0, 2])
    relation = free.on(tree)
    chosen = relation.take(lambda x: x[kept])
    assert (chosen is None) == (make is points_of_several)  # they are always solved for all
    for placed, here in ((relation, np.arange(4)), (chosen, kept)):
        if placed is None:
            continue
        seen = placed.observe(tree.group, 0.0, q)
        np.testing.assert_allclose(seen.dense(), true[..., here], atol=1e-14)  # 2e-16
        np.testing.assert_allclose(seen.gap, relation.gap(0.0, q)[here], atol=1e-15)
        along = jnp.einsum("knc,n->kc", true[..., here], v)
        np.testing.assert_allclose(seen.velocity(v), along, atol=1e-14)  # 6e-16
        for k in range(1, free.rows + 1):
            np.testing.assert_allclose(seen.first(k).velocity(v), along[:k], atol=1e-14)
            np.testing.assert_allclose(seen.first(k).dense(), seen.dense()[:k], atol=0)
        pulled = jnp.einsum("knc,kc->n", true[..., here], z[:, : len(here)])
        np.testing.assert_allclose(gather(seen.H, z[:, : len(here)]), pulled, atol=1e-13)  # 3e-15


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: shape_contacts([]), "at least one pair"),
        (lambda: shape_contacts([(GROUND, Geom(shapes.Sphere(1.0)))]), "belong to the world"),
        (lambda: shape_contacts([(Geom(shapes.Sphere(1.0), 1),) * 2]), "belong to body 1"),
        (
            lambda: shape_contacts([(GROUND, Geom(shapes.HalfSpace(), 0))]),
            "HalfSpace and a HalfSpace",
        ),
        (lambda: Geom(shapes.Sphere(-1.0)), "radius of a Sphere must be positive"),
        (lambda: Geom(shapes.Box([0.1, jnp.nan, 0.1])), "half_sizes is not finite"),
        (lambda: Geom(1.0), "shape must be a shape"),
        (lambda: Geom(shapes.Sphere(1.0), orientation=np.zeros(4)), "orientation: .* norm 0"),
        (lambda: Geom(shapes.Sphere(1.0), 0.5), "body must be a whole number"),
        (lambda: shapes.Box([1.0, 2.0]), r"half_sizes must have shape \(3,\)"),
    ],
)
def test_pairs_and_geoms_that_are_refused(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_a_geom_on_a_body_that_does_not_exist():
    system = nsd.NewtonEulerSystem(1.0, np.ones(3))
    contact = nsd.Interaction(
        shape_contacts([(Geom(shapes.Sphere(0.1), body=2), GROUND)]), nsd.NewtonImpact(0.0)
    )
    with pytest.raises(ValueError, match="body1.*bodies 0 to 0"):
        nsd.simulate(
            nsd.Model(system, contact), nsd.MoreauJean(), 0.0, 0.1, 0.01, system.state([0.0, 0, 1])
        )


def test_a_geom_in_many_pairs_is_one_parameter():
    balls = [Geom(shapes.Sphere(0.1), body=i) for i in range(3)]
    relation = shape_contacts([(b, GROUND) for b in balls] + [(balls[0], balls[1])])
    leaves = jax.tree.leaves(eqx.filter(relation.function.tables, eqx.is_array))
    assert sorted(x.shape for x in leaves) == sorted([(3,), (3, 3), (3, 3, 3), (1, 3), (1, 3, 3)])


def test_a_hull_of_corners_is_a_box():
    """Gaps of a turned cube over the ground and over another one, stated as a box and as a hull."""
    corners = np.stack(np.meshgrid(*[[-0.1, 0.1]] * 3), axis=-1).reshape(-1, 3)
    system = nsd.NewtonEulerSystem(np.ones(2), np.ones((2, 3)))
    turn = np.array([[0.9, 0.3, -0.2, 0.1], [0.8, 0.1, 0.4, 0.2]])
    turn /= np.linalg.norm(turn, axis=1, keepdims=True)
    q = system.state([[0.0, 0.0, 0.3], [0.05, 0.0, 0.8]], turn).q
    least = []
    for shape in (shapes.Box([0.1] * 3), shapes.ConvexHull(corners)):
        one, two = Geom(shape, 0), Geom(shape, 1)
        gap = shape_contacts([(one, GROUND), (two, one)]).gap(jnp.zeros(()), q)
        least.append([np.sort(gap[:8]), [np.min(gap[8:])]])
    for box, hull in zip(*least, strict=True):
        np.testing.assert_allclose(hull, box, atol=1e-12)  # 1e-15
