"""Variational integrators without contact: orders, invariants, symplecticity, gradients, refusals."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly, slow
from scipy.integrate import solve_ivp

from diffnsd import RESULTS, BackwardEuler, Model, MoreauJean, Newton, State, simulate
from diffnsd.groups import (
    SL,
    SO3,
    Cayley,
    Exponential,
    QuaternionVector,
    rotate,
    rotation_matrix,
)
from diffnsd.integrators import (
    Galerkin,
    LieVariational,
    Quadrature,
    TripleJump,
    gauss,
    lobatto,
    symplecticity_defect,
)
from diffnsd.integrators.variational._quadrature import basis
from diffnsd.models import double_pendulum, kepler, kepler_state
from diffnsd.simulation import SaveAt
from diffnsd.systems import LagrangianSystem

MOMENTS, MOMENTUM = np.array([1.0, 2.0, 3.0]), np.array([0.6, 1.8, 0.9])
BODY = Model(LagrangianSystem(np.diag(MOMENTS), space=SO3()))
SPINNING = State(SO3().identity(), jnp.asarray(MOMENTUM / MOMENTS))


@eqx.filter_jit
def integrate(model, integrator, state, end, steps):
    """Last state of steps of one length, whether all succeeded, and the largest energy error."""
    h = end / steps
    energy = model.energy(jnp.zeros(()), state).total

    def body(i, run):
        state, carry, ok, worst = run
        state, _, carry, result = integrator.step(model, i * h, h, state, carry, None)
        error = jnp.abs(model.energy((i + 1) * h, state).total / energy - 1)
        return state, carry, ok & (result == RESULTS.successful), jnp.maximum(worst, error)

    start = state, integrator.init(model, 0.0, state, None), jnp.array(True), jnp.zeros(())
    state, _, ok, worst = jax.lax.fori_loop(0, steps, body, start)
    return state, ok, worst


def orders(model, integrator, state, end, compare, counts):
    """Observed orders between consecutive numbers of steps, and the last error."""
    found = []
    for steps in counts:
        last, ok, _ = integrate(model, integrator, state, jnp.asarray(end), jnp.asarray(steps))
        assert ok
        found.append(max(float(np.max(np.abs(a - b))) for a, b in compare(last)))
    counts, found = np.array(counts), np.array(found)
    return np.log(found[:-1] / found[1:]) / np.log(counts[1:] / counts[:-1]), found[-1]


@pytest.mark.parametrize(
    ("integrator", "counts", "order", "error"),
    [
        # Measured orders and errors at the last count in the comments.
        (LieVariational(), [200, 400], 2, 2.1e-3),  # 2.000, 2.09e-3
        slow(Galerkin(1), [200, 400], 2, 3.4e-3),  # 2.001, 3.38e-3
        slow(Galerkin(1, lobatto(2)), [200, 400], 2, 2.1e-3),  # 2.000, 2.09e-3: Störmer, Verlet
        (Galerkin(2), [80, 160], 4, 1.3e-6),  # 3.998, 1.26e-6
        slow(Galerkin(2, lobatto(3)), [80, 160], 4, 1e-7),  # 3.996, 9.43e-8
        slow(Galerkin(3), [40, 80], 6, 6e-9),  # 6.002, 5.78e-9
        (Galerkin(3, lobatto(4)), [40, 80], 6, 1.7e-9),  # 6.020, 1.59e-9
        slow(Galerkin(3, lobatto(3)), [80, 160], 4, 1e-5),  # the order of the quadrature
        (TripleJump(LieVariational()), [400, 800], 4, 1e-5),
    ],
)
def test_orders_on_kepler(integrator, counts, order, error):
    end = 6.0
    exact = kepler_state(end, 0.25)
    found, last = orders(
        kepler(),
        integrator,
        kepler_state(0.0, 0.25),
        end,
        lambda s: [(s.q, exact.q), (s.v, exact.v)],
        counts,
    )
    assert integrator.order == order
    np.testing.assert_allclose(found, order, atol=0.1)
    assert last < error


def angular_momentum(state):
    return state.q[0] * state.v[1] - state.q[1] * state.v[0]


@pytest.mark.parametrize("integrator", [LieVariational(), Galerkin(2)])
def test_angular_momentum_of_an_orbit(integrator):
    start = kepler_state(0.0, 0.25)
    last, ok, worst = integrate(
        kepler(), integrator, start, jnp.asarray(500.0), jnp.asarray(10_000)
    )
    assert ok
    # Measured 1e-14; energy in a band, 9.5e-4 and 1.3e-7.
    np.testing.assert_allclose(angular_momentum(last), angular_momentum(start), atol=2e-13)
    assert worst < (1.4e-3 if integrator.order == 2 else 2e-7)


def torque(t, q, v):
    """Minus a torque that depends on time, attitude and speed."""
    push = jnp.stack([jnp.cos(2 * t), jnp.sin(t), 0.5 * jnp.cos(t)])
    field = jnp.cross(rotation_matrix(q)[2], jnp.array([0.3, 0.2, 0.9]))
    return 0.2 * v - push - field


FORCED = Model(LagrangianSystem(np.diag(MOMENTS), f_int=torque, space=SO3()))


@pytest.fixture(scope="module")
def forced_motion():
    """Attitude matrix and momentum at t = 2 by an explicit Runge-Kutta method of order 8."""

    def rate(t, y):
        r, pi = y[:9].reshape(3, 3), y[9:]
        w = pi / MOMENTS
        hat = np.array([[0, -w[2], w[1]], [w[2], 0, -w[0]], [-w[1], w[0], 0]])
        push = np.array([np.cos(2 * t), np.sin(t), 0.5 * np.cos(t)])
        total = push - 0.2 * w + np.cross(r[2], [0.3, 0.2, 0.9])
        return np.concatenate([(r @ hat).ravel(), np.cross(pi, w) + total])

    start = np.concatenate([np.eye(3).ravel(), MOMENTUM])
    end = solve_ivp(rate, (0, 2.0), start, method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]
    return end[:9].reshape(3, 3), end[9:]


@pytest.mark.parametrize(
    ("integrator", "counts"),
    [
        (LieVariational(Cayley()), [100, 200]),  # 1.999
        slow(LieVariational(Exponential()), [100, 200]),  # 2.000
        slow(LieVariational(QuaternionVector()), [100, 200]),  # 2.001
        slow(Galerkin(2), [20, 40]),  # 4.01
        slow(TripleJump(LieVariational()), [80, 160]),  # 4.00
    ],
    ids=["cayley", "exponential", "quaternion", "galerkin", "triple jump"],
)
def test_orders_on_a_forced_body(integrator, counts, forced_motion):
    """Not autonomous, not conservative: the free body alone can show orders that are not there."""
    attitude, momentum = forced_motion

    def compare(s):
        return [(rotation_matrix(s.q), attitude), (MOMENTS * s.v, momentum)]

    found, _ = orders(FORCED, integrator, SPINNING, 2.0, compare, counts)
    np.testing.assert_allclose(found, integrator.order, atol=0.1)


@pytest.mark.nightly
def test_order_with_a_mass_matrix_that_depends_on_the_configuration():
    model, start = double_pendulum(), State(jnp.array([1.5, 0.5]), jnp.zeros(2))
    exact, ok, _ = integrate(model, Galerkin(3), start, jnp.asarray(1.0), jnp.asarray(100))
    assert ok
    for integrator, counts in ((LieVariational(), [100, 200]), (Galerkin(2), [40, 80])):
        found, _ = orders(
            model, integrator, start, 1.0, lambda s: [(s.q, exact.q), (s.v, exact.v)], counts
        )
        np.testing.assert_allclose(found, integrator.order, atol=0.1)  # measured 1.999, 3.997


@pytest.mark.parametrize(
    ("integrator", "h", "steps", "energy"),
    [  # Table of long runs: energy error in 1e5 steps; measured the same to two digits.
        (LieVariational(Cayley()), 0.4, 100_000, 9.4e-3),
        slow(LieVariational(Exponential()), 0.4, 100_000, 3.6e-3),
        (LieVariational(QuaternionVector()), 0.1, 100_000, 1e-12 / 1.5),  # measured 8e-14
        nightly(Galerkin(4, retraction=Exponential()), 0.4, 2_000, 5.3e-12),  # also in 1e5 steps
    ],
    ids=["cayley", "exponential", "quaternion", "galerkin"],
)
def test_long_runs_of_a_free_body(integrator, h, steps, energy):
    last, ok, worst = integrate(
        BODY, integrator, SPINNING, jnp.asarray(h * steps), jnp.asarray(steps)
    )
    assert ok and worst < 1.5 * energy
    spatial = rotate(last.q, jnp.asarray(MOMENTS) * last.v)
    # Measured 2.5e-13 (Cayley), 5e-14 and 8e-14.
    np.testing.assert_allclose(spatial, MOMENTUM, rtol=0, atol=1e-12)
    np.testing.assert_allclose(jnp.sum(last.q**2), 1, rtol=0, atol=1e-12)


def test_momentum_is_exact_whatever_the_tolerance():
    rough = LieVariational(newton=Newton(max_iterations=2, tolerance=1.0))
    last, _, _ = integrate(BODY, rough, SPINNING, jnp.asarray(400.0), jnp.asarray(1000))
    spatial = rotate(last.q, jnp.asarray(MOMENTS) * last.v)
    np.testing.assert_allclose(spatial, MOMENTUM, rtol=0, atol=1e-13)


def well(q):
    return rotation_matrix(q)[2] @ jnp.array([0.1, 0.2, 1.0])


TOP = Model(LagrangianSystem(np.diag(MOMENTS), space=SO3(), potential_energy=well))
TILTED = State(SO3().exp(jnp.array([0.3, -0.2, 0.5])), jnp.array([0.6, 0.9, 0.3]))


@pytest.mark.parametrize(
    "integrator",
    [
        LieVariational(Cayley()),
        nightly(LieVariational(Exponential())),
        slow(LieVariational(QuaternionVector())),
        nightly(Galerkin(2)),
        slow(TripleJump(LieVariational())),
        MoreauJean(newton=Newton(20)),
        BackwardEuler(),
    ],
)
def test_symplecticity(integrator):
    defect = eqx.filter_jit(symplecticity_defect)(TOP, integrator, 0.0, 0.4, TILTED)
    # Measured 2e-16 to 9e-16, and 1e-2 (midpoint) and 0.3 (backward Euler).
    assert defect < 1e-9 if integrator.is_symplectic else defect > 1e-6


@pytest.mark.slow
def test_symplecticity_with_a_variable_mass_matrix():
    start = State(jnp.array([1.5, 0.5]), jnp.array([0.3, -0.4]))
    defect = eqx.filter_jit(symplecticity_defect)(
        double_pendulum(), LieVariational(), 0.0, 0.1, start
    )
    assert defect < 1e-9


def symmetric_top(moments, t):
    """Closed form of a free symmetric body (two equal moments) with a given momentum."""
    a, c = moments
    spin = MOMENTUM[2] / c * (1 - c / a)
    about = jnp.array([0.0, 0.0, 1.0])
    group = SO3()
    turned = group.exp(t * jnp.asarray(MOMENTUM) / a)
    return group.compose(turned, group.exp(t * spin * about))


@pytest.mark.slow
def test_gradient_through_ten_thousand_steps_on_a_group():
    end, steps = 0.5, 10_000
    weights = jnp.array([0.3, -1.0, 0.5, 0.8])

    def simulated(moments):
        inertia = jnp.diag(jnp.stack([moments[0], moments[0], moments[1]]))
        model = Model(LagrangianSystem(inertia, space=SO3()))
        start = State(SO3().identity(), jnp.asarray(MOMENTUM) / jnp.diag(inertia))
        run = simulate(model, LieVariational(), 0.0, end, end / steps, start, saveat=SaveAt.end())
        return run.states.q @ weights

    moments = jnp.array([1.5, 2.2])
    gradient = eqx.filter_jit(jax.grad(simulated))(moments)
    exact = jax.grad(lambda m: symmetric_top(m, end) @ weights)(moments)
    np.testing.assert_allclose(gradient, exact, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_gradient_through_ten_thousand_steps_of_an_orbit():
    end, steps = 20.0, 10_000

    def simulated(parameters):
        e, a, mu = parameters
        run = simulate(
            kepler(mu),
            Galerkin(2),
            0.0,
            end,
            end / steps,
            kepler_state(0.0, e, a, mu),
            saveat=SaveAt.end(),
        )
        return run.states.q @ jnp.array([1.0, -0.5]) + run.states.v[0]

    def exact(parameters):
        state = kepler_state(end, *parameters)
        return state.q @ jnp.array([1.0, -0.5]) + state.v[0]

    parameters = jnp.array([0.25, 1.1, 0.9])
    gradient = eqx.filter_jit(jax.grad(simulated))(parameters)
    expected = jax.grad(exact)(parameters)
    np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("retraction", "h"), [(Exponential(), 4.0), (QuaternionVector(), 2.5)], ids=["exp", "quat"]
)
def test_a_step_beyond_the_chart(retraction, h):
    start = State(SO3().identity(), jnp.array([0.1, 0.2, 1.2]))
    solution = simulate(BODY, LieVariational(retraction), 0.0, h, h, start, throw=False)
    assert solution.result == RESULTS.chart_exceeded
    assert "smaller step" in RESULTS[solution.result]
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(solution.states))


def test_groups_without_the_chart_are_refused():
    model = Model(LagrangianSystem(np.eye(8), space=SL(3)))
    start = State(SL(3).identity(), jnp.zeros(8))
    for integrator in (LieVariational(), Galerkin(2), LieVariational(QuaternionVector())):
        with pytest.raises(ValueError, match="cannot simulate: .*xponential"):
            simulate(model, integrator, 0.0, 1.0, 0.1, start)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Galerkin(0), "stages must be at least 1"),
        (lambda: Galerkin(3, gauss(2)), "2 quadrature nodes do not see 3 stages"),
        (lambda: gauss(0), "points must be from 1 to 100"),
        (lambda: lobatto(1), "points must be from 2 to 100"),
        (lambda: Quadrature((0.5,), (), 2), "as many weights as nodes"),
        (lambda: LagrangianSystem(np.eye(2), space=SO3()), "dimension 3"),
    ],
)
def test_settings_that_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("stages", [1, 2, 4, 6])
def test_polynomials_are_exact_to_rounding(stages):
    """Powers of t up to the degree, at the nodes: an error here is one of every step of a run."""
    nodes = gauss(stages).nodes
    points, values, slopes = basis(stages, nodes)
    for power in range(1, stages + 1):
        exact = np.array([[x**power, power * x ** (power - 1)] for x in nodes]).T
        found = [values @ points**power, slopes @ points**power]
        # Measured 2e-16 and 2e-15 (6 stages); polynomials by their coefficients had 1e-12.
        np.testing.assert_allclose(found, exact, rtol=0, atol=5e-15)


@pytest.mark.parametrize("rule", [gauss(1), gauss(4), lobatto(2), lobatto(5)])
def test_order_conditions_of_quadratures(rule):
    for power in range(rule.order + 1):
        value = np.sum(np.array(rule.weights) * np.array(rule.nodes) ** power)
        # Measured 2e-16 up to the order, then 2e-6 (gauss(4)) and more.
        assert (abs(value - 1 / (power + 1)) < 1e-14) == (power < rule.order)
