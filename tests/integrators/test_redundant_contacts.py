"""A face on four corners: impulses are not unique, and under sliding friction neither is the motion.

The choice is the limit of a small compliance that is equal in all corners: least norm. For the
corners of a rectangle that all slide it says that the normal impulses of the two diagonals have the
same sum. A corner that gives by `c z` in the law of De Saxcé goes down by `c (1 + mu²) z_N` where it slides
and by `c (z_N + mu |z_T|)` where it sticks, and four corners stay in a plane: so these have the same sum.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly, slow

from diffnsd import MoreauJean, State, simulate
from diffnsd.complementarity.solvers import Chain, Newton, SemismoothNewton, Splitting
from diffnsd.groups import Pose
from diffnsd.integrators._warm_start import Recent
from diffnsd.models import tossed_cube

MASS, INERTIA, HALF, GRAVITY, H = 0.37, 8.1e-4, 0.0524, 9.81, 1 / 148
LOW = np.array([[x, y, -1.0] for x in (-1, 1) for y in (-1, 1)]) * HALF
DIAGONALS = np.array([1.0, -1.0, -1.0, 1.0])
SPIN = np.array([0.7, -0.4, 0.0, 0.0, 0.0, 6.0])  # slides and spins on its face


TURN = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 3.0])  # about a corner, and pushed a little
TURN[:3] = -np.cross(TURN[3:], LOW[2]) + [0.01, 0.004, 0.0]


def by_hand(mu, v0, stuck=None):
    """The step of a cube that lies, slides and spins, in complex arithmetic: `v`, normal impulses.

    `stuck` is the corner that sticks, if one does.
    """
    v0 = np.asarray(v0, complex)
    sticks = np.arange(4) == stuck

    def residual(x):
        v, p, held = x[:6], x[6:10], x[10:]
        points = v[:3] + np.cross(v[3:], LOW)
        slip = points[:, :2]
        size = np.where(sticks, 1.0, np.sqrt(np.sum(slip * slip, axis=1)))
        along = -mu * p[:, None] * slip / size[:, None]
        down = (1 + mu**2) * p
        if stuck is not None:
            along[stuck], down[stuck] = held, p[stuck] + mu * np.sqrt(np.sum(held * held))
        impulses = np.concatenate([along, p[:, None]], axis=1)
        force = MASS * (v[:3] - v0[:3]) + np.array([0, 0, MASS * GRAVITY * H]) - impulses.sum(0)
        couple = INERTIA * (v[3:] - v0[3:]) - np.cross(LOW, impulses).sum(0)
        # Three corners stay on the plane, and with them the fourth.
        rest = [points[:3, 2], [DIAGONALS @ down], slip[sticks].ravel()]
        return np.concatenate([force, couple, *rest])

    held = np.full(2 * np.sum(sticks), 1e-3)
    x = np.concatenate([v0, np.full(4, MASS * GRAVITY * H / 4), held])
    for _ in range(30):
        columns = [(residual(x + 1e-30j * e) - residual(x)) / 1e-30j for e in np.eye(len(x))]
        x = x - np.linalg.solve(np.stack(columns, axis=1), residual(x))
    return x[:6], x[6:10]


def step(mu, v0, warm=None, max_active=4, solver=None, tilt=(1.0, 0.0, 0.0, 0.0)):
    """One step from the face; impulses `(8, 3)`."""
    model = tossed_cube(mu, 0.0, MASS, INERTIA, HALF, GRAVITY, max_active=max_active)
    method = MoreauJean(theta=1.0) if solver is None else MoreauJean(theta=1.0, solver=solver)
    pose = Pose(jnp.array([[0.0, 0.0, HALF]]), jnp.asarray(tilt)[None])
    warm = jnp.zeros((8, 3)) if warm is None else warm
    zero, args = jnp.zeros(()), (State(pose, v0), (Recent(warm, warm),), None)
    state, info, _, _ = method.step(model, zero, jnp.asarray(H), *args)
    return state.v, info.impulses[0], info


run = eqx.filter_jit(step)
WARM = np.random.default_rng(0).uniform(0, 0.02, (8, 3))
SOLVERS = SemismoothNewton(), Chain((Splitting(400), Newton(40)))


def test_the_share_of_every_corner():
    v, p = by_hand(0.18, SPIN)
    got_v, impulses, _ = run(0.18, SPIN)
    lower = np.asarray(impulses)[[0, 2, 4, 6], 0]
    # Measured 1e-16 (velocities, of 6 rad/s: 9e-16) and 5e-10 (impulses, of 8e-3 N s).
    np.testing.assert_allclose(got_v, v.real, rtol=0, atol=1e-8)
    np.testing.assert_allclose(lower, p.real, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("max_active", [6, None])
@pytest.mark.parametrize("warm", [None, WARM], ids=["cold", "warm"])
def test_candidates_and_warm_starts_make_no_difference(max_active, warm):
    v, _, _ = run(0.18, SPIN)
    other, _, _ = run(0.18, SPIN, warm, max_active=max_active)
    np.testing.assert_allclose(other, v, rtol=0, atol=1e-8)  # measured below 2e-9


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_solvers_make_no_difference(solver):
    v, _, _ = run(0.18, SPIN)
    other, _, info = run(0.18, SPIN, WARM, solver=solver)
    assert info.residual <= 1e-8
    np.testing.assert_allclose(other, v, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_a_batch_makes_no_difference():
    speeds = SPIN * np.linspace(0.2, 1.5, 20)[:, None]
    together = eqx.filter_jit(jax.vmap(lambda v: step(0.18, v, WARM)[0]))(speeds)
    alone = [run(0.18, v)[0] for v in speeds]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "max_active"),
    [(jax.jacfwd, 4), nightly(jax.jacfwd, None), nightly(jax.jacrev, 4), nightly(jax.jacrev, None)],
)
def test_the_derivative_is_that_of_the_motion(mode, max_active):
    derivative = eqx.filter_jit(mode(lambda *x: step(*x, max_active)[0], argnums=(0, 1)))
    itself = run(0.18, SPIN)[1], run(0.5, TURN)[1]  # the solution is recognised, not searched for
    for mu, v, stuck, warm in (
        (0.18, SPIN, None, WARM),
        (0.5, TURN, 2, WARM),
        (0.18, SPIN, None, itself[0]),
        (0.5, TURN, 2, itself[1]),
    ):
        by_mu, by_v = derivative(mu, v, warm)
        exact = by_hand(mu + 1e-30j, v, stuck)[0].imag / 1e-30
        # Measured 4e-10 where all slide and 4e-7 where one sticks, of the largest entry: the part along
        # which impulses are redundant is that of the tilted problem, whose tilt is 1e-6. At a start that is
        # recognised that problem is known to first order: 6e-8 to 1.1e-6, by how the compiler rounds.
        bound = 1e-6 if warm is WARM else 3e-6
        np.testing.assert_allclose(by_mu, exact, rtol=0, atol=bound * np.abs(exact).max())
        # Motions in the plane: others lift corners.
        for i in (0, 1, 5):
            exact = by_hand(mu, v + 1e-30j * np.eye(6)[i], stuck)[0].imag / 1e-30
            np.testing.assert_allclose(by_v[:, i], exact, rtol=0, atol=bound * np.abs(exact).max())


@pytest.mark.parametrize(("mu", "v"), [(0.18, SPIN), slow(0.5, TURN)], ids=["slides", "sticks"])
def test_a_start_that_is_the_solution_is_recognised(mu, v):
    expected, impulses, cold = run(mu, v)
    other, kept, info = run(mu, v, impulses)
    assert cold.iterations > 2 and info.iterations == 1
    np.testing.assert_array_equal(kept, impulses)
    np.testing.assert_allclose(other, expected, rtol=0, atol=1e-15)
    # Any other share of the same load solves the equations as well where corners stick, and is not the limit.
    moved = impulses.at[np.array([0, 2, 4, 6]), 0].add(1e-4 * DIAGONALS)
    _, again, info = run(mu, v, moved)
    assert info.iterations > 1
    np.testing.assert_allclose(again, impulses, rtol=0, atol=1e-8)


def test_a_corner_that_sticks():
    v, p = by_hand(0.5, TURN, stuck=2)
    got_v, impulses, _ = run(0.5, TURN)
    lower = np.asarray(impulses)[[0, 2, 4, 6]]
    sticking = np.sqrt(np.sum(lower[:, 1:] ** 2, axis=1)) < 0.9 * 0.5 * lower[:, 0]
    assert np.array_equal(sticking, [False, False, True, False])  # at 0.63 of the cone
    np.testing.assert_allclose(got_v, v.real, rtol=0, atol=1e-8)  # measured 2e-11
    np.testing.assert_allclose(lower[:, 0], p.real, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_a_cube_at_rest_is_far_from_every_edge():
    """Four corners that stick, on a slope below the angle of friction, and their derivatives."""

    def pushed(push):
        model = tossed_cube(0.4, 0.3, MASS, INERTIA, HALF, GRAVITY)
        gravity = jnp.array([0.2 * GRAVITY, 0.0, -GRAVITY])
        model = eqx.tree_at(lambda m: m.system.gravity, model, gravity)
        pose = Pose(jnp.array([[0.0, 0.0, HALF]]), jnp.array([[1.0, 0.0, 0.0, 0.0]]))
        start = State(pose, jnp.zeros(6).at[0].set(push))
        out = simulate(model, MoreauJean(theta=1.0), 0.0, 60 * H, H, start)
        return out.states.q.position[-1, 0, 0], out

    (x, out), slope = eqx.filter_jit(jax.value_and_grad(pushed, has_aux=True))(0.1)
    # Sliding stops under (mu − 0.2) g, in whole steps: the recursion of the step.
    v, reached, slopes = 0.1, 0.0, 0.0
    while (v := v - 0.2 * GRAVITY * H) > 0:
        reached, slopes = reached + H * v, slopes + H
    np.testing.assert_allclose([x, slope], [reached, slopes], rtol=1e-8)
    assert np.min(out.stats.margin[20:]) > 0.04  # measured 0.048 where it rests


@pytest.mark.parametrize(("e", "jumps"), [(0.3, True), (0.0, False)])
def test_a_face_of_which_one_edge_rebounds_is_at_an_edge(e, jumps):
    """One edge rests, the other one strikes. If it rebounds, a corner a hair higher has no load."""

    def struck(v):
        model = tossed_cube(0.18, e, MASS, INERTIA, HALF, GRAVITY)
        pose = Pose(jnp.array([[0.0, 0.0, HALF]]), jnp.array([[1.0, 0.0, 0.0, 0.0]]))
        state, zero = State(pose, v), jnp.zeros(())
        method = MoreauJean(theta=1.0)
        memory = method.init(model, zero, state, None)
        _, info, _, _ = method.step(model, zero, jnp.asarray(H), state, memory, None)
        return info.impulses[0][:, 0], info.margin

    turn = np.array([0.0, 2.0, 0.0])  # about the edge x < 0, which stays where it is
    load, margin = eqx.filter_jit(struck)(np.concatenate([-np.cross(turn, LOW[0]), turn]))
    assert np.sum(np.asarray(load) > 1e-4) == 4
    assert (margin == 0) == jumps
