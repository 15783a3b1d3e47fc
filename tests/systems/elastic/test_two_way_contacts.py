"""Soft bodies in contact with rigid bodies that move: momentum, weights, friction, derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffnsd as nsd
from diffnsd import State
from diffnsd.relations import GapRelation, Geom, NodesShapes
from diffnsd.shapes import Box, Capsule, Cylinder, HalfSpace, Sphere
from diffnsd.systems import NewtonEulerSystem, SystemProduct, elastic as el

G = 9.81
MESH = el.block((0.2, 0.2, 0.1), (2, 2, 1))
SURFACE = np.unique(MESH.boundary())
TOP, BOTTOM = (np.flatnonzero(MESH.points[:, 2] == z) for z in (0.1, 0.0))
SOLVER = nsd.complementarity.Auto(tolerance=1e-12)
METHOD = nsd.BackwardEuler(solver=SOLVER, newton=nsd.integrators.Newton(20, 1e-12))


def soft(gravity=None):
    solid = el.Tetrahedra(MESH.cells, el.NeoHookean(1e5, 0.4), 1000.0)
    return el.Elastic(MESH, solid, gravity=gravity)


MASSES = np.asarray(soft().mass_times(jnp.ones_like(soft().rest_nodes)))[:, 0]
BALL = NewtonEulerSystem([0.8], [[2e-3, 3e-3, 2.5e-3]], gravity=(0.0, 0.0, 0.0))
BOTH = SystemProduct((soft(), BALL))
SPHERE = Geom(Sphere(0.05), body=0, position=(0.0, 0.0, 0.01))


def moved(product, poses):
    """A state whose nodes are out of place and in which everything moves."""
    random = np.random.default_rng(3)
    q = soft().rest + 0.01 * random.normal(size=soft().rest.size)
    first = State(q, jnp.asarray(random.normal(size=q.size)))
    return product.state(
        first, State(poses, jnp.asarray(random.normal(size=product.velocities - q.size)))
    )


SHAPES = [
    Sphere(0.05),
    Capsule(0.03, 0.05),
    Box((0.05, 0.06, 0.03)),
    Cylinder(0.05, 0.04),
    HalfSpace(),
]
TURNED = np.array([0.8, 0.1, -0.5, 0.3]) / np.linalg.norm([0.8, 0.1, -0.5, 0.3])


@eqx.filter_jit
def observed(system, relation, state):
    """Rates of the gaps along the motion, local velocities, and a force of random multipliers."""
    placed, t = relation.on(system), jnp.zeros(())
    tangent = jnp.ones_like(t), system.group.rate(state.q, state.v)
    _, rates = jax.jvp(placed.gap, (t, state.q), tangent)
    seen = placed.observe(system.group, t, state.q)
    z = jnp.asarray(np.random.default_rng(4).normal(size=seen.drift.shape))
    return rates, seen.velocity(state.v), seen.H.gather(z)


def test_rows_of_all_shapes():
    """Normal velocities are the rates of the gaps, and any multipliers act on both bodies by forces that are
    in balance, about the origin too.

    Measured: rates 3e-14 m/s, forces 1e-14 N of 5, moments 1e-14 N m.
    """
    state = moved(BOTH, nsd.groups.Pose(jnp.array([[0.13, 0.11, 0.16]]), jnp.array([TURNED])))
    geoms = [Geom(x, body=0, position=(0.01, 0, -0.01), orientation=TURNED) for x in SHAPES]
    relation = NodesShapes(BOTH, SURFACE, geoms, radius=np.linspace(0, 1e-2, SURFACE.size))
    rates, u, force = observed(BOTH, relation, state)
    assert rates.shape == (len(SHAPES) * SURFACE.size,)
    np.testing.assert_allclose(u[0], rates, atol=1e-12)
    nodes, ball = np.asarray(force[:-6]).reshape(-1, 3), np.asarray(force[-6:])
    turn = np.asarray(nsd.groups.rotation_matrix(jnp.asarray(TURNED)))
    moment = np.cross([0.13, 0.11, 0.16], ball[:3]) + turn @ ball[3:]
    x = np.asarray(state.q[0]).reshape(-1, 3)
    assert np.abs(ball[:3]).max() > 1
    np.testing.assert_allclose(nodes.sum(0) + ball[:3], 0, atol=1e-12)
    np.testing.assert_allclose(np.cross(x, nodes).sum(0) + moment, 0, atol=1e-12)


def test_shapes_of_the_world_need_no_rigid_bodies():
    """Soft bodies alone in a product: gaps and rows are those of the body by itself."""
    ground, states = Geom(HalfSpace(), position=(0.0, 0.0, -0.01)), soft().state()
    two, given = SystemProduct((soft(), soft())), ((soft(), 0), (SystemProduct((soft(),)), 0))
    found = []
    for system, k in (*given, (two, 1)):
        placed = NodesShapes(system, BOTTOM, ground, soft=k, rigid=5).on(system)
        q = states.q if system is given[0][0] else (states.q,) * len(system.systems)
        observe = eqx.filter_jit(lambda q, p=placed, s=system: p.observe(s.group, 0.0, q))
        found.append(observe(q))
    alone, first, second = (x.H.dense() for x in found)
    for seen in found[1:]:
        np.testing.assert_array_equal(seen.gap, found[0].gap)
    np.testing.assert_array_equal(first, alone)
    np.testing.assert_array_equal(second[:, alone.shape[1] :], alone)
    assert np.count_nonzero(second) == np.count_nonzero(alone) > 0


def struck(speed, product=BOTH, save=None):
    start = product.state(
        soft().state(),
        BALL.state((0.13, 0.11, 0.138), velocity=speed, angular_velocity=(1, -2, 0.5)),
    )
    contact = nsd.Interaction(NodesShapes(product, SURFACE, SPHERE), nsd.CoulombFriction(0.4))
    model = nsd.Model(product, contact)
    save = nsd.SaveAt() if save is None else save
    return nsd.simulate(model, METHOD, 0.0, 0.02, 1e-3, start, saveat=save, throw=False)


def moments(states):
    """Momentum, moment of momentum about the origin, `(t, 3)` each, and energy of the block and the ball."""
    v = np.asarray(states.v)
    x, own = np.asarray(states.q[0]).reshape(len(v), -1, 3), v[:, :-6].reshape(len(v), -1, 3)
    pose, ball = states.q[1], v[:, -6:]
    turn = np.asarray(nsd.groups.rotation_matrix(pose.orientation[:, 0].T))
    linear = np.einsum("n,tni->ti", MASSES, own) + 0.8 * ball[:, :3]
    spin = np.einsum("ijt,tj->ti", turn, np.array([2e-3, 3e-3, 2.5e-3]) * ball[:, 3:])
    orbit = np.cross(np.asarray(pose.position)[:, 0], 0.8 * ball[:, :3])
    moment = np.einsum("n,tni->ti", MASSES, np.cross(x, own)) + orbit + spin
    energy = jax.vmap(lambda s: BOTH.kinetic(0.0, s) + BOTH.potential(0.0, s.q))(states)
    return linear, moment, np.asarray(energy)


SPEED = jnp.array([0.3, 0.0, -1.0])


@pytest.mark.slow
def test_a_ball_strikes_a_soft_block():
    """Momentum is kept, energy is not made, friction is within its cone. Rows of contacts keep the moment
    of momentum; backward Euler changes it by the error of its order.

    Measured: momentum 3e-16 N s of 0.8, moment 9e-6 of 0.16 N m s, energy never grows and loses 28 %.
    """
    run = eqx.filter_jit(struck)(SPEED)
    assert run.result == nsd.RESULTS.successful, run.message
    p = np.asarray(run.impulses[0])
    linear, moment, energy = moments(run.states)
    assert np.count_nonzero(p[..., 0]) == 4
    np.testing.assert_allclose(linear, linear[:1].repeat(len(linear), 0), atol=1e-12)
    np.testing.assert_allclose(moment, moment[:1].repeat(len(moment), 0), atol=1e-4)
    assert np.all(np.diff(energy) < 1e-12) and energy[-1] < 0.9 * energy[0]
    assert np.all(np.linalg.norm(p[..., 1:], axis=-1) <= 0.4 * p[..., 0] + 1e-14)


def nothing(t, states, args):
    return tuple(jnp.zeros_like(s.v) for s in states)


@pytest.mark.slow
def test_the_same_by_dense_matrices():
    """A coupling, here without force, makes the product one dense system. Measured 1.7e-12 m/s."""
    coupled = SystemProduct((soft(), BALL), [nothing])
    ends = [
        eqx.filter_jit(lambda v, b=both: struck(v, b, nsd.SaveAt.end()))(SPEED)
        for both in (BOTH, coupled)
    ]
    assert BOTH.is_large(0.0, ends[0].states, None) and not coupled.is_large(
        0.0, ends[0].states, None
    )
    assert np.sum(ends[0].impulses[0][:, 0]) > 0.2  # [N s]
    np.testing.assert_allclose(ends[0].states.v, ends[1].states.v, atol=1e-10)


@pytest.mark.nightly
def test_derivatives_through_a_collision():
    """By the velocity of the ball, against central differences through steps solved to 1e-12.

    Measured: differences 1.2e-9 off at a width of 1e-5, forward against reverse 1.6e-10, of 4.3.
    """
    weights = jnp.asarray(np.random.default_rng(1).normal(size=BOTH.velocities))

    def loss(speed):
        return jnp.sum(weights * struck(speed, save=nsd.SaveAt.end()).states.v)

    value, slope = eqx.filter_jit(loss), eqx.filter_jit(jax.grad(loss))(SPEED)
    ends = [[value(SPEED + e * d) for e in (1e-5, -1e-5)] for d in jnp.eye(3)]
    wide = -np.diff(np.array(ends), axis=1)[:, 0] / 2e-5
    np.testing.assert_allclose(slope, wide, atol=2e-8)
    np.testing.assert_allclose(eqx.filter_jit(jax.jacfwd(loss))(SPEED), slope, atol=2e-9)


CUBE = el.block((0.2, 0.2, 0.2), (1, 1, 1))


@pytest.mark.slow
def test_derivative_of_a_push():
    """A ball that slips on a corner of a cube of eight nodes for two steps, by its speed: `NodeBlocks`
    beside a matrix, with friction, against central differences.

    Measured: velocities 3.1e-10 off at a width of 1e-5, of 3.8, the impulse 2e-11.
    """
    solid = el.Tetrahedra(CUBE.cells, el.NeoHookean(1e5, 0.4), 1000.0)
    body = el.Elastic(CUBE, solid)
    product = SystemProduct((body, BALL))
    contact = NodesShapes(product, [7], Geom(Sphere(0.05), body=0))
    model = nsd.Model(product, nsd.Interaction(contact, nsd.CoulombFriction(0.2)))

    def end(speed):
        ball = BALL.state((0.19, 0.2, 0.2499), velocity=speed)
        start = product.state(body.state(), ball)
        save = nsd.SaveAt.end()
        run = nsd.simulate(model, METHOD, 0.0, 2e-3, 1e-3, start, saveat=save, throw=False)
        return run.states.v, run.impulses[0][0]

    speed, turn = jnp.array([0.8, 0.1, -1.0]), jnp.array([0.5, -0.7, 0.3])
    both = eqx.filter_jit(lambda x: jax.jvp(end, (x,), (turn,)))
    (_, impulse), slopes = both(speed)
    assert impulse[0] > 0.01 and jnp.hypot(*impulse[1:]) > 0.19 * impulse[0]
    ends = [both(speed + e * turn)[0] for e in (1e-5, -1e-5)]
    for slope, before, after in zip(slopes, *ends[::-1], strict=True):
        np.testing.assert_allclose(slope, (after - before) / 2e-5, atol=1e-8)


LID = NewtonEulerSystem([1.5], [[6e-3, 6e-3, 1e-2]], gravity=(0.0, 0.0, -G))


@eqx.filter_jit
def pressed():
    product = SystemProduct((soft((0.0, 0.0, -G)), LID))
    box = Geom(Box((0.12, 0.12, 0.02)), body=0)
    interactions = [
        nsd.Interaction(NodesShapes(product, TOP, box), nsd.CoulombFriction(0.5)),
        nsd.Interaction(NodesShapes(product, BOTTOM, Geom(HalfSpace())), nsd.CoulombFriction(0.5)),
    ]
    start = product.state(soft().state(), LID.state((0.1, 0.1, 0.12)))
    model = nsd.Model(product, interactions)
    run = nsd.simulate(model, METHOD, 0.0, 1.0, 2e-2, start, throw=False)
    before = jax.tree.map(lambda x: x[-2], run.states.q)
    seen = interactions[0].on(product).observe(product.group, 0.0, before)
    return run, seen.H.gather(run.impulses[0][-1].T)[-6:] / 2e-2


@pytest.mark.slow
def test_a_soft_block_carries_a_rigid_box():
    """At rest the floor carries both, and the block the box, which has sunk in aslant, as its mesh is not
    symmetric.

    Measured: vertical loads 6e-12 N from the weights, others 1.5e-10 N, speeds 3e-12 m/s.
    """
    run, load = pressed()
    assert run.result == nsd.RESULTS.successful, run.message
    floor = np.asarray(run.impulses[1])[-1].sum(0) / 2e-2
    np.testing.assert_allclose(floor, [(1.5 + MASSES.sum()) * G, 0, 0], atol=1e-9)
    np.testing.assert_allclose(load, [0, 0, 1.5 * G, 0, 0, 0], atol=1e-9)
    assert np.abs(run.states.v[-1]).max() < 1e-9


PLATE = nsd.systems.Multibody(
    [nsd.systems.Body(3.0, 0.01, nsd.systems.Slide((1.0, 0.0, 0.0)))], gravity=(0.0, 0.0, -G)
)


@eqx.filter_jit
def dragged():
    product = SystemProduct((soft((0.0, 0.0, -G)), PLATE))
    plate = Geom(Box((1.0, 1.0, 0.05)), body=0, position=(0.0, 0.0, -0.05))
    contact = NodesShapes(product, BOTTOM, plate)
    start = product.state(soft().state(), PLATE.state(jnp.zeros(1), jnp.ones(1)))
    model = nsd.Model(product, nsd.Interaction(contact, nsd.CoulombFriction(0.3)))
    return nsd.simulate(model, METHOD, 0.0, 0.3, 5e-3, start, throw=False)


@pytest.mark.slow
def test_a_moving_plate_drags_a_soft_block():
    """A plate on a slide, a link of a mechanism, slows by what the block gains, `mu P_N` while all nodes
    slip; at the end both move at the speed that momentum gives.

    Measured: momentum 1.3e-15 N s of 3, friction 3e-5 of the load from `mu P_N` (nodes slip aside a
    little), speeds 5e-4 m/s from each other.
    """
    run = dragged()
    assert run.result == nsd.RESULTS.successful, run.message
    v, p = np.asarray(run.states.v), np.asarray(run.impulses[0])
    mean, mass = v[:, :-1].reshape(len(v), -1, 3)[..., 0] @ MASSES / MASSES.sum(), MASSES.sum()
    np.testing.assert_allclose(mass * mean + 3 * v[:, -1], 3.0, atol=1e-12)
    load = p[1:21, :, 0].sum(1)
    assert load.min() > 0.1
    np.testing.assert_allclose(np.diff(mean)[:20] * mass, 0.3 * load, atol=1e-4)
    np.testing.assert_allclose(v[-1, -1], 3 / (3 + mass), atol=1e-3)


BAR = nsd.systems.SpringChain(jnp.full(30, 0.1), 200.0)
MASS = nsd.systems.LagrangianSystem(0.5 * np.eye(1))


def pushed(speed):
    """One step in which a mass on a line strikes the end of a chain."""
    product = SystemProduct((BAR, MASS))
    gap = GapRelation(lambda t, q: q[1] - q[0][-1:])
    model = nsd.Model(product, nsd.Interaction(gap, nsd.NewtonImpact(0.0)))
    start = product.state(State(jnp.zeros(30), jnp.zeros(30)), State(jnp.zeros(1), speed[None]))
    step = nsd.simulate(model, METHOD, 0.0, 1e-2, 1e-2, start, saveat=nsd.SaveAt.end())
    return step.states.v, step.impulses[0][0, 0]


def test_a_chain_that_is_struck_by_a_mass():
    """Each system by its own solver, the chain by its diagonals: one step against its matrices written out,
    with the derivative by the speed, which is linear. Measured 2e-16.
    """
    stiffness = 200.0 * (2 * np.eye(30) - np.eye(30, k=1) - np.eye(30, k=-1))
    stiffness[0, 0] = stiffness[-1, -1] = 200.0
    matrix = 0.5 * np.eye(31)
    matrix[:30, :30] = 0.1 * np.eye(30) + 1e-4 * stiffness
    row = np.eye(31)[30] - np.eye(31)[29]
    column = np.linalg.solve(matrix, row)
    impulse = 1 / (row @ column)
    v = column * impulse - np.eye(31)[30]
    found, load = eqx.filter_jit(pushed)(jnp.array(-1.0))
    np.testing.assert_allclose(found, v, atol=1e-13)
    np.testing.assert_allclose(load, impulse, rtol=1e-13)
    for jacobian in (jax.jacfwd, jax.jacrev):
        slope, force = eqx.filter_jit(jacobian(pushed))(jnp.array(-1.0))
        np.testing.assert_allclose(slope, -v, atol=1e-13)
        np.testing.assert_allclose(force, -impulse, rtol=1e-13)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(nodes=[99]), "nodes"),
        (dict(nodes=[]), "one node at least"),
        (dict(nodes=[3, 1, 3]), "node 3 is given more often"),
        (dict(geoms=Geom(Sphere(0.1), body=1)), "Geom.body"),
        (dict(geoms=Geom(Sphere(0.1), body=0), system=soft()), "SystemProduct"),
        (dict(soft=1), "Elastic"),
        (dict(rigid=2), "systems 0 to 1"),
        (dict(rigid=0), "NewtonEulerSystem"),
        (dict(radius=-0.1), "radius"),
        (dict(radius=[0.1, 0.2]), "radius"),
        (dict(geoms=3), "Geom"),
    ],
)
def test_what_is_refused(change, words):
    given = dict(system=BOTH, nodes=[0], geoms=SPHERE) | change
    with pytest.raises((ValueError, TypeError), match=words):
        NodesShapes(**given)
