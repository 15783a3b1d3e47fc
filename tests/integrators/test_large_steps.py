"""Steps of large systems: against dense algebra, closed forms, and a reference trajectory."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import diffnsd as nsd
from diffnsd import linear
from diffnsd.models import impacting_bar
from diffnsd.relations import NodesHalfSpace
from diffnsd.systems import SpringChain

N, H, STEPS = 12, 1e-2, 20
RANDOM = np.random.default_rng(1)
STIFFNESS = jnp.asarray(RANDOM.uniform(1e5, 2e5, N - 1))
START = nsd.State(jnp.asarray(RANDOM.normal(size=N)) / 100, jnp.asarray(RANDOM.normal(size=N)))


def chain(stiffness=STIFFNESS, **others) -> SpringChain:
    return SpringChain(jnp.linspace(1.0, 2.0, N), stiffness, ground=50.0, load=-3.0, **others)


def grounded(law=None) -> nsd.Interaction:
    """Three of the masses strike walls, each at its own place."""
    relation = NodesHalfSpace([[0], [5], [11]], [1.0], -0.03)
    return nsd.Interaction(relation, law or nsd.NewtonImpact(0.4))


def matrix(f, n=N) -> np.ndarray:
    return np.asarray(jax.jacfwd(f)(jnp.zeros(n)))


def test_the_operator_is_the_derivative_of_the_step():
    system = chain(damping=3.0, hardening=4.0, coupling=0.2)
    force = functools.partial(system.force, 0.0)
    dq, dv = (
        jax.jacfwd(lambda x: force(nsd.State(x, START.v), None))(START.q),
        jax.jacfwd(lambda x: force(nsd.State(START.q, x), None))(START.v),
    )
    expected = system.mass(0.0, START.q) - 0.3 * dv - 0.2 * dq
    found = system.step_operator(0.0, START, None, 0.3, 0.2).as_matrix()
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    slope = -jax.grad(lambda q: system.potential(0.0, q))(START.q)
    still = nsd.State(START.q, jnp.zeros(N))
    np.testing.assert_allclose(system.force(0.0, still, None), slope, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize(
    "method",
    [
        nsd.BackwardEuler(),
        pytest.param(nsd.MoreauJean(gamma=0.0), marks=pytest.mark.slow),
        nsd.BackwardEuler(linear_solver=linear.SparseLU()),
    ],
    ids=["backward_euler", "moreau_jean", "sparse"],
)
def test_the_bar_is_that_of_dense_matrices(method):
    """The same model, `impacting_bar`, with its matrices formed. Measured 1e-14, the speed being 1."""
    dense, n = impacting_bar(20), 21
    contact = nsd.Interaction(NodesHalfSpace([[0]], [1.0]), nsd.NewtonImpact(0.0))
    large = nsd.Model(SpringChain.bar(20), contact)
    start = nsd.State(jnp.full(n, 1e-4), jnp.full(n, -1.0))
    a, b = (nsd.simulate(m, method, 0.0, 4e-4, 4e-6, start) for m in (dense, large))
    assert np.max(np.asarray(a.impulses[0])) > 0.04
    np.testing.assert_allclose(b.states.v, a.states.v, atol=1e-12)
    np.testing.assert_allclose(b.impulses[0], a.impulses[0], atol=1e-13)
    np.testing.assert_allclose(b.energy.total, a.energy.total, atol=1e-13)


def test_the_reference_bar(data_dir):
    """`impacting_bar_fem` of the reference system."""
    stored = np.load(data_dir / "reference_trajectories" / "impacting_bar_fem" / "reference.npz")
    data, rows = stored["data"], stored["rows"]
    contact = nsd.Interaction(NodesHalfSpace([[0]], [1.0]), nsd.NewtonImpact(0.0))
    model = nsd.Model(SpringChain.bar(99, length=0.99), contact)
    start = nsd.State(jnp.full(100, 5e-5), jnp.full(100, -0.1))
    end = 1e-8 + 748 * 2e-6
    s = nsd.simulate(model, nsd.MoreauJean(gamma=0.0), 1e-8, end, 2e-6, start)
    q, v = np.asarray(s.states.q), np.asarray(s.states.v)
    force = np.asarray(s.impulses[0])[:, 0, 0] / 2e-6
    strain = 210e9 * 3.14e-4 * 100 * np.sum(np.diff(q, axis=1) ** 2, axis=1)
    columns = [q[:, 0], v[:, 0], force, strain, 2 * np.asarray(s.energy.kinetic), q[:, 99]]
    found = np.stack(columns, axis=1)[rows]
    np.testing.assert_allclose(found, data[:, [1, 2, 3, 5, 6, 7]], rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "order"),
    [
        (nsd.BackwardEuler(), 1),
        (nsd.MoreauJean(newton=nsd.Newton(20)), 2),
        (nsd.MoreauJean(), 2),
    ],
    ids=["backward_euler", "theta", "linearised"],
)
def test_orders_on_a_stiff_nonlinear_chain(method, order):
    """Against SciPy's Radau at 1e-11; the fast mode decays at 700/s. Measured 0.972, 2.000 and 2.000."""
    from scipy.integrate import solve_ivp

    k, b = np.array([1.0, 4e4, 1.0]), np.array([0.0, 400.0, 0.0])
    system = SpringChain(jnp.ones(4), k, damping=b, ground=1.0, hardening=0.5)
    # The stiff spring is relaxed, so that its fast mode is not started.
    start = nsd.State(jnp.array([0.3, 0.1, 0.1, -0.2]), jnp.zeros(4))

    def rate(t, x):
        d = np.diff(x[:4])
        tension = k * (d + 0.5 * d**3) + b * np.diff(x[4:])
        force = np.append(tension, 0.0) - np.append(0.0, tension) - x[:4]
        return np.concatenate([x[4:], force])

    first = np.concatenate([start.q, start.v])
    exact = solve_ivp(rate, (0.0, 1.0), first, method="Radau", rtol=1e-11, atol=1e-13).y[:4, -1]

    def error(steps):
        run = nsd.simulate(nsd.Model(system), method, 0.0, 1.0, 1.0 / steps, start)
        return np.abs(np.asarray(run.states.q[-1]) - exact).max()

    coarse, fine = error(100), error(200)
    assert abs(np.log2(coarse / fine) - order) < 0.1


def test_backward_euler_damps_as_the_theory_says():
    """Every mode loses the factor `1/(1 + h² w²)` of its energy in each step."""
    system = SpringChain(jnp.ones(N), STIFFNESS)
    stiffness = -matrix(lambda q: system.force(0.0, nsd.State(q, jnp.zeros(N)), None))
    squares, modes = scipy.linalg.eigh(stiffness)
    for i in (1, N // 2, N - 1):
        start = nsd.State(jnp.asarray(modes[:, i]) / 100, jnp.zeros(N))
        run = nsd.simulate(nsd.Model(system), nsd.BackwardEuler(), 0.0, 3 * H, H, start)
        loss = np.asarray(run.energy.total[1:]) / np.asarray(run.energy.total[:-1])
        np.testing.assert_allclose(loss, 1 / (1 + H * H * squares[i]), rtol=1e-9)


def final(stiffness, law=None, **others):
    model = nsd.Model(chain(stiffness, **others), () if law is None else grounded(law))
    run = nsd.simulate(model, nsd.BackwardEuler(), 0.0, STEPS * H, H, START, throw=False)
    return run.states


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "nonlinear", "contact"])
def test_gradients_by_stiffness(kind):
    """Forward = reverse = central differences."""
    law = nsd.NewtonImpact(0.4) if kind == "contact" else None
    others = {} if kind == "linear" else {"hardening": jnp.asarray(30.0)}
    weights = jnp.asarray(RANDOM.normal(size=N))

    def loss(k):
        states = final(k, law, **others)
        return jnp.sum(weights * states.q[-1]) + jnp.sum(states.v[-1] ** 2)

    value = eqx.filter_jit(loss)
    turn = jnp.asarray(RANDOM.normal(size=N - 1)) * STIFFNESS
    back = jnp.sum(eqx.filter_jit(jax.grad(loss))(STIFFNESS) * turn)
    _, forward = eqx.filter_jit(lambda k: jax.jvp(loss, (k,), (turn,)))(STIFFNESS)
    np.testing.assert_allclose(back, forward, rtol=1e-10)
    e = 1e-5
    wide = (value(STIFFNESS + e * turn) - value(STIFFNESS - e * turn)) / (2 * e)
    np.testing.assert_allclose(back, wide, rtol=2e-6)


def test_second_derivatives():
    """Of a nonlinear chain, against central differences of gradients."""
    turn = STIFFNESS / 3

    def slope(s):
        def value(s):
            return jnp.sum(final(STIFFNESS + s * turn, hardening=30.0).q[-1] ** 2)

        return jax.grad(value)(s)

    first = eqx.filter_jit(slope)
    second = eqx.filter_jit(jax.grad(slope))(0.0)
    wide = (first(1e-4) - first(-1e-4)) / 2e-4
    np.testing.assert_allclose(second, wide, rtol=1e-5)


@pytest.mark.slow
def test_friction_of_nodes_in_space():
    """A stack of nodes without springs between them slides as a block: `v0 − mu g t`, exactly."""
    masses = jnp.ones(6)
    load = jnp.tile(jnp.array([0.0, 0.0, -10.0]), 2)
    system = SpringChain(masses, 0.0, load=load)
    relation = NodesHalfSpace(np.arange(6).reshape(2, 3), [0.0, 0.0, 1.0])
    model = nsd.Model(system, nsd.Interaction(relation, nsd.CoulombFriction(0.3), max_active=2))
    start = nsd.State(jnp.zeros(6), jnp.array([2.0, 0.0, 0.0, 0.0, 1.0, 0.0]))
    run = nsd.simulate(model, nsd.BackwardEuler(), 0.0, 0.2, 0.01, start)
    np.testing.assert_allclose(run.states.v[-1], [1.4, 0, 0, 0, 0.4, 0], atol=1e-8)
    np.testing.assert_allclose(run.impulses[0][-1, :, 0], 0.1, atol=1e-9)


def test_what_does_not_fit_is_said():
    model = nsd.Model(chain(), grounded())
    implicit = nsd.BackwardEuler(contacts_at=nsd.integrators.AtIterate())
    with pytest.raises(ValueError, match=r"use AtStart\(\) or AtPrediction\(\)"):
        nsd.simulate(model, implicit, 0.0, H, H, START)
    with pytest.raises(ValueError, match="divide it by its length"):
        NodesHalfSpace([[0, 1]], [1.0, 1.0])
    # A chain that falls apart under negative stiffness: the equations have no solution to be found.
    hopeless = nsd.Model(SpringChain(jnp.ones(2), 1.0, hardening=-1e12))
    start = nsd.State(jnp.array([0.0, 1.0]), jnp.zeros(2))
    with pytest.raises(RuntimeError, match="Newton's iteration|linear solver"):
        nsd.simulate(hopeless, nsd.BackwardEuler(), 0.0, 1.0, 1.0, start)
