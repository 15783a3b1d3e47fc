"""Soft bodies on a plane: the laws of their nodes, closed forms, derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

import diffnsd as nsd
from diffnsd import State, linear
from diffnsd.relations import NodesHalfSpace
from diffnsd.systems import elastic as el

MU, H, G, STEPS = 0.4, 2e-3, 9.81, 12
MESH = el.block((0.2, 0.2, 0.1), (3, 2, 2))
BOTTOM = np.flatnonzero(MESH.points[:, 2] == 0)
E = MESH.cells.shape[0]

SOLVER = nsd.complementarity.Auto(tolerance=1e-12)
METHOD = nsd.BackwardEuler(solver=SOLVER, newton=nsd.integrators.Newton(20, 1e-11))
BASE = jnp.concatenate([jnp.full(E, 1e5), jnp.array([MU, 0.8, -0.3, 3.0])])


def model_of(young, mu, law=None):
    body = el.Elastic(
        MESH, el.Tetrahedra(MESH.cells, el.NeoHookean(young, 0.4), 1000.0), gravity=[0, 0, -G]
    )
    plane = NodesHalfSpace(body.unknowns_of(BOTTOM), [0.0, 0.0, 1.0])
    return body, nsd.Model(body, nsd.Interaction(plane, law or nsd.CoulombFriction(mu)))


def start_of(body, speed, fall, spin):
    x = body.rest.reshape(-1, 3)
    v = jnp.stack([speed - spin * x[:, 1], spin * x[:, 0], jnp.full(len(x), fall)], axis=1)
    return State(body.rest.at[2].add(1e-4), v.reshape(-1))


def motion(parameters, save):
    body, model = model_of(parameters[:-4], parameters[-4])
    start = start_of(body, *parameters[-3:])
    return nsd.simulate(model, METHOD, 0.0, H * STEPS, H, start, saveat=save, throw=False)


@eqx.filter_jit
def steps(parameters):
    return motion(parameters, nsd.SaveAt())


def loss(parameters):
    end = motion(parameters, nsd.SaveAt.end()).states
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(2, end.q.size)))
    return jnp.sum(weights[0] * end.q) + 0.1 * jnp.sum(weights[1] * end.v)


@pytest.mark.slow
def test_a_soft_block_lands_and_slides():
    """The equations of every step and Coulomb's law of every node, written out.

    Measured: equations 2.4e-14 of the impulses, laws 3e-13, speeds 1e-12 m/s.
    """
    run = steps(BASE)
    assert bool(run.result == nsd.RESULTS.successful)
    body, _ = model_of(BASE[:E], MU)
    q, v, P = run.states.q, run.states.v, np.asarray(run.impulses[0])[1:]
    force = eqx.filter_jit(jax.vmap(lambda q, v: body.force(0.0, State(q, v), None)))(q[1:], v[1:])
    gained = eqx.filter_jit(jax.vmap(lambda q, v: body.momentum(0.0, State(q, v))))(
        q[1:], v[1:] - v[:-1]
    )
    left = np.asarray(gained - H * force).reshape(STEPS, -1, 3)
    # Rows of a contact: normal, then the two tangents of the frame.
    frame = np.asarray(
        NodesHalfSpace([[0, 1, 2]], [0.0, 0.0, 1.0]).observe(body.group, 0.0, q[0]).H.values
    )[..., 0]
    applied = np.zeros_like(left)
    applied[:, BOTTOM] = P @ frame
    size = np.abs(P).max()
    assert np.max(np.abs(left - applied)) < 1e-11 * size

    u = np.asarray(v[1:]).reshape(STEPS, -1, 3)[:, BOTTOM] @ frame.T
    gap = np.asarray(q[:-1]).reshape(STEPS, -1, 3)[:, BOTTOM, 2]
    before = np.asarray(v[:-1]).reshape(STEPS, -1, 3)[:, BOTTOM, 2]
    on = gap + H / 2 * before <= 1e-14
    assert np.all(P[~on] == 0) and 0.2 < on.mean() < 1
    normal, slip = P[..., 0], np.linalg.norm(u[..., 1:], axis=-1)
    assert normal.min() > -1e-10 * size and u[..., 0][on].min() > -1e-10
    assert np.max(np.abs(normal * u[..., 0])[on]) < 1e-10 * size
    friction = np.linalg.norm(P[..., 1:], axis=-1)
    assert np.all(friction <= MU * normal + 1e-10 * size)
    # Friction of a node that slips is at its limit and opposes the slip: it takes all the power it can.
    power = np.sum(P[..., 1:] * u[..., 1:], axis=-1)
    np.testing.assert_allclose(power, -MU * normal * slip, atol=1e-10 * size)
    stuck, slipping = on & (normal > 0) & (slip < 1e-9), on & (normal > 0) & (slip > 1e-6)
    assert stuck.any() and slipping.any()


@pytest.mark.slow
def test_a_block_slides_as_a_rigid_one():
    """The mean speed falls by `mu P_N / m`, but for the little by which nodes slip aside as the block
    settles: measured 2.7e-4 of it.
    """
    run = steps(BASE.at[E:].set(jnp.array([0.2, 1.0, 0.0, 0.0])))
    body, _ = model_of(BASE[:E], 0.2)
    ones = State(body.rest, jnp.ones_like(body.rest))
    masses = np.asarray(body.momentum(0.0, ones)).reshape(-1, 3)[:, 0]
    mean = np.asarray(run.states.v).reshape(STEPS + 1, -1, 3)[..., 0] @ masses / masses.sum()
    load = np.asarray(run.impulses[0])[1:, :, 0].sum(1)
    np.testing.assert_allclose(np.diff(mean), -0.2 * load / masses.sum(), rtol=2e-3)
    assert load.min() > 0 and mean[-1] > 0.9


@pytest.mark.nightly
def test_derivatives_through_contacts():
    """By all moduli at once, by friction and by the start, against central differences of wide and narrow
    steps. Measured 1.3e-7 (errors of the differences), forward against reverse 1.1e-8.
    """
    value, slope = eqx.filter_jit(loss), eqx.filter_jit(jax.grad(loss))(BASE)
    forward = eqx.filter_jit(lambda d: jax.jvp(loss, (BASE,), (d,))[1])
    random = np.random.default_rng(2)
    directions = [np.append(1e5 * random.normal(size=E), np.zeros(4)), *np.eye(E + 4)[-4:]]
    for direction, e in zip(map(jnp.asarray, directions), (1e-5, *[1e-6] * 4), strict=True):
        wide = (value(BASE + e * direction) - value(BASE - e * direction)) / (2 * e)
        found = jnp.sum(slope * direction)
        np.testing.assert_allclose(found, wide, rtol=1e-6)
    np.testing.assert_allclose(forward(direction), found, rtol=1e-7)


@pytest.mark.nightly
def test_the_same_by_columns_of_the_compliance():
    """A solver that needs the matrix of the contacts has one column for each row of theirs, and a direct
    solver of the steps; the same motion. Measured 2.7e-13.
    """
    body, model = model_of(1e5, MU, nsd.NewtonImpact(0.5))
    start = start_of(body, 0.1, -0.3, 0.0)
    splitting = nsd.complementarity.solvers.Splitting()
    assert splitting.by_products() is None
    other = nsd.BackwardEuler(solver=splitting, linear_solver=linear.SparseLU())
    ends = [
        eqx.filter_jit(
            lambda s, m=m: nsd.simulate(model, m, 0.0, 2 * H, H, s, saveat=nsd.SaveAt.end())
        )(start)
        for m in (METHOD, other)
    ]
    np.testing.assert_allclose(ends[0].states.v, ends[1].states.v, atol=1e-10)


SMALL = el.block((0.2, 0.2, 0.1), (1, 1, 1))
SOFT = el.Elastic(
    SMALL, el.Tetrahedra(SMALL.cells, el.NeoHookean(1e5, 0.3), 1000.0), gravity=[0, 0, -G]
)
FEET = SOFT.unknowns_of(np.flatnonzero(SMALL.points[:, 2] == 0))


class Bowl(eqx.Module):
    """Gaps of the lowest nodes above a paraboloid; two are 0.1 mm above it at rest."""

    curvature: jax.Array

    def __call__(self, t, q):
        x, y, z = q[FEET].T
        return z + 1e-4 + self.curvature / 2 * ((x - 0.05) ** 2 + (y - 0.1) ** 2 - 0.0125)


@eqx.filter_jit
def landing(relation):
    model = nsd.Model(SOFT, nsd.Interaction(relation, nsd.NewtonImpact(0.0)))
    return nsd.simulate(model, nsd.BackwardEuler(), 0.0, 0.045, 3e-3, SOFT.state(), throw=False)


@pytest.mark.parametrize("curvature", [slow(0.0), 4.0])
def test_contacts_of_a_gap_function(curvature):
    """Columns of the compliance with the default methods, which iterate for their linear solves: Newton's
    law and the balance of momentum of every step, on a plane and on a paraboloid. The step did not converge
    where the linear solve had the error of what the contacts carry.

    Measured: momentum 6e-11 N s of 0.12, speeds 1e-13 m/s where there is an impulse, gaps above -1.6e-4 m.
    """
    run = landing(nsd.relations.GapRelation(Bowl(jnp.array(curvature))))
    assert bool(run.result == nsd.RESULTS.successful), run.message
    p, v, gap = (np.asarray(x) for x in (run.impulses[0][1:, :, 0], run.states.v, run.gaps[0]))
    mass = np.asarray(SOFT.mass_times(jnp.ones_like(SOFT.rest_nodes)))
    upward = np.sum(mass[:, 2] * v.reshape(len(v), -1, 3)[:, :, 2], axis=1)
    weight = G * np.sum(mass[:, 2]) * 3e-3
    assert np.count_nonzero(p) > 10 and p.min() >= 0
    np.testing.assert_allclose(np.diff(upward), np.sum(p, axis=1) - weight, atol=1e-9)
    # The law holds with the slopes at the start of a step.
    slope = jax.vmap(jax.jacfwd(lambda q: Bowl(curvature)(0.0, q)))(run.states.q[:-1])
    speed = np.einsum("tcn,tn->tc", slope, v[1:])
    np.testing.assert_allclose(speed[p > 0], 0, atol=1e-9)
    assert gap.min() > -3e-4


@pytest.mark.nightly
def test_a_plane_as_a_gap_function():
    """The same motion as by the nodal solver. Measured 8e-11 m/s of 0.08."""
    relations = (
        nsd.relations.GapRelation(Bowl(jnp.array(0.0))),
        NodesHalfSpace(FEET[:, 2:], [1.0], -1e-4),
    )
    v, other = (np.asarray(landing(relation).states.v) for relation in relations)
    np.testing.assert_allclose(v, other, atol=1e-8)


LINE = el.bar(1.0, 2, 3)
ROD = el.Elastic(LINE, el.Beams(LINE.cells, 1e7, 4e6, 1e-4, 1e-9, density=1e3), gravity=[0, 0, -G])


def below(axes):
    return NodesHalfSpace(ROD.unknowns_of(range(3), axes), [0.0, 0.0, 1.0], -1e-4)


@eqx.filter_jit
def dropped(speed):
    model = nsd.Model(ROD, nsd.Interaction(below([0, 1, 2]), nsd.CoulombFriction(0.5)))
    v = jnp.zeros(18).at[ROD.unknowns_of(range(3), 0)[:, 0]].set(speed)
    return nsd.simulate(model, nsd.BackwardEuler(), 0.0, 0.02, 2e-3, ROD.state(v=v), throw=False)


def test_nodes_that_turn_give_their_positions_alone():
    assert below([0, 1, 2]).check(ROD.group) is None
    assert "give the positions alone" in str(below([0, 1, 3]).check(ROD.group))


@pytest.mark.nightly
def test_nodes_that_turn_touch_with_their_positions():
    """A rod falls flat and slides along itself: momentum in each step, and the speed that friction leaves.

    Measured: momentum 1e-18 N s of 2e-3, speed 2e-13 m/s, gaps above -1.8e-5 m.
    """
    run = dropped(0.1)
    assert run.result == nsd.RESULTS.successful, run.message
    p, m = np.asarray(run.impulses[0])[1:], np.array([0.025, 0.05, 0.025])
    v = np.asarray(run.states.v).reshape(-1, 3, 6)[:, :, :3]
    gained = np.diff(np.einsum("n,tni->ti", m, v), axis=0)
    np.testing.assert_allclose(
        gained[:, 2], np.sum(p[:, :, 0], axis=1) - 0.1 * G * 2e-3, atol=1e-12
    )
    assert np.all(p[4:, :, 0] > 0) and np.min(np.asarray(run.gaps[0])) > -1e-4
    sliding = v[-1, :, 0]
    expected = 0.1 - 0.5 * np.sum(p[:, :, 0]) / 0.1
    np.testing.assert_allclose(sliding, expected, atol=1e-10)


def falling_chain(n):
    system = nsd.systems.SpringChain(jnp.ones(n), 1e3)
    model = nsd.Model(system, nsd.Interaction(NodesHalfSpace([[0]], [1.0]), nsd.NewtonImpact(0.5)))
    return model, State(jnp.linspace(2e-3, 1, n), jnp.full(n, -1.0))


@pytest.mark.parametrize("wrapper", [nsd.Located, nsd.Corrected])
def test_impacts_of_many_unknowns_are_refused(wrapper):
    model, start = falling_chain(600)
    with pytest.raises(ValueError, match="use its inner method without"):
        nsd.simulate(model, wrapper(nsd.MoreauJean()), 0.0, 1e-3, 1e-3, start)


@pytest.mark.parametrize(
    ("n", "advice"),
    [(20, "use Located(...), Corrected(...) or"), (600, "form the mass matrix, of up")],
)
def test_the_advice_is_one_that_can_be_followed(n, advice):
    model, start = falling_chain(n)
    run = nsd.simulate(model, nsd.BackwardEuler(), 0.0, 6e-3, 1e-3, start)
    assert "1 impacts were stepped over" in run.message and advice in run.message
