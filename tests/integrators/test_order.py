"""Orders of convergence without contact, against closed forms in elliptic functions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ellipj, ellipk

from diffnsd import (
    RESULTS,
    BackwardEuler,
    ButcherTableau,
    Corrected,
    Model,
    MoreauJean,
    Newton,
    Pose,
    State,
)
from diffnsd.groups import rotation_matrix
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem

SOLVED = Newton(max_iterations=15)
INTEGRATORS = {
    "midpoint": MoreauJean(theta=0.5, newton=SOLVED),
    "theta = 0.7": MoreauJean(theta=0.7, newton=SOLVED),
    "theta = 1": MoreauJean(theta=1.0, newton=SOLVED),
    "explicit": MoreauJean(theta=0.0),
    "linearised": MoreauJean(theta=1.0),
    "backward Euler": BackwardEuler(),
}


@eqx.filter_jit
def integrate(model, integrator, state, end, steps):
    """The last state of steps of one length, all values traced: one program for every length."""
    h = end / steps
    carry = integrator.init(model, jnp.zeros(()), state, None)

    def body(i, run):
        state, carry, ok = run
        t = i * h
        state, _, carry, result = integrator.step(model, t, h, state, carry, None)
        return state, carry, ok & (result == RESULTS.successful)

    state, _, ok = jax.lax.fori_loop(0, steps, body, (state, carry, jnp.array(True)))
    return state, ok


def errors(model, integrator, state, end, exact, counts):
    """Largest error of the velocity (and of what else `exact` compares) for numbers of steps."""
    found = []
    for steps in counts:
        last, ok = integrate(model, integrator, state, jnp.asarray(end), jnp.asarray(steps))
        assert ok
        found.append(max(np.max(np.abs(a - b)) for a, b in exact(last)))
    return np.array(found)


def slopes(error, counts):
    return np.log(error[:-1] / error[1:]) / np.log(np.array(counts[1:]) / np.array(counts[:-1]))


FREQUENCY, START = 2.0, 2.5


def pendulum_torque(t, q, v):
    return FREQUENCY**2 * jnp.sin(q)


PENDULUM = Model(LagrangianSystem(np.eye(1), f_int=pendulum_torque))


def pendulum(t):
    """Angle and speed of a pendulum let go at rest at the angle `START`."""
    k = np.sin(START / 2)
    sn, cn, dn, _ = ellipj(FREQUENCY * t, k**2)
    speed = -2 * k * FREQUENCY * np.sqrt(1 - k**2) * sn / dn
    return 2 * np.arcsin(k * cn / dn), speed


def test_the_oracle_of_the_pendulum():
    """Its period, and its energy."""
    k = np.sin(START / 2)
    np.testing.assert_allclose(pendulum(4 * ellipk(k**2) / FREQUENCY), [START, 0], atol=1e-12)
    for t in np.linspace(0.1, 3, 7):
        q, v = pendulum(t)
        energy = v**2 / 2 - FREQUENCY**2 * np.cos(q)
        np.testing.assert_allclose(energy, -(FREQUENCY**2) * np.cos(START), atol=1e-12)


@pytest.mark.parametrize("name", INTEGRATORS)
def test_order_on_a_pendulum(name):
    integrator, end = INTEGRATORS[name], 1.7
    exact = pendulum(end)
    counts = [100, 200, 400] if integrator.order == 2 else [800, 1600, 3200]
    start = State(jnp.array([START]), jnp.zeros(1))
    error = errors(
        PENDULUM, integrator, start, end, lambda s: [(s.q, exact[0]), (s.v, exact[1])], counts
    )
    # Measured 2.000 (midpoint) and 0.999 to 1.001; last errors 1.4e-5 and 1.5e-3 to 3.7e-3.
    np.testing.assert_allclose(slopes(error, counts), integrator.order, atol=0.05)
    assert error[-1] < (2e-5 if integrator.order == 2 else 5e-3)


MOMENTS = np.array([1.0, 2.0, 3.0])
SPIN = np.array([0.8, 0.0, 1.5])  # angular momentum beyond that of the middle axis: L^2 > 2 E I2
BODY = Model(NewtonEulerSystem(1.0, MOMENTS, gravity=(0.0, 0.0, 0.0)))


def free_spin(t):
    """Euler's equations in Jacobi's elliptic functions (Landau, Lifshitz, Mechanics, 37)."""
    a, b, c = MOMENTS
    energy2, momentum2 = np.sum(MOMENTS * SPIN**2), np.sum((MOMENTS * SPIN) ** 2)
    rate = np.sqrt((c - b) * (momentum2 - a * energy2) / (a * b * c))
    m = (b - a) * (energy2 * c - momentum2) / ((c - b) * (momentum2 - a * energy2))
    sn, cn, dn, _ = ellipj(rate * t, m)
    return np.array(
        [
            np.sqrt((energy2 * c - momentum2) / (a * (c - a))) * cn,
            np.sqrt((energy2 * c - momentum2) / (b * (c - b))) * sn,
            np.sqrt((momentum2 - energy2 * a) / (c * (c - a))) * dn,
        ]
    )


@pytest.mark.parametrize("name", ["midpoint", "backward Euler"])
def test_order_on_a_free_rigid_body(name):
    """Spin in the body frame, and angular momentum in the world frame, which tests the attitude."""
    integrator, end = INTEGRATORS[name], 2.3
    spin = free_spin(end)
    np.testing.assert_allclose(free_spin(0.0), SPIN, rtol=0, atol=1e-15)
    attitude = np.array([0.5, -0.1, 0.7, 0.5])
    pose = Pose(jnp.zeros((1, 3)), jnp.asarray(attitude / np.linalg.norm(attitude))[None])
    momentum = rotation_matrix(pose.orientation[0]) @ (MOMENTS * SPIN)

    def exact(state):
        turned = rotation_matrix(state.q.orientation[0]) @ (MOMENTS * state.v[3:])
        return [(state.v[3:], spin), (turned, momentum)]

    counts = [100, 200, 400] if integrator.order == 2 else [800, 1600, 3200]
    start = State(pose, jnp.asarray([0, 0, 0, *SPIN]))
    error = errors(BODY, integrator, start, end, exact, counts)
    # Measured 2.000 and 0.997; last errors 1.5e-5 and 1.4e-3.
    np.testing.assert_allclose(slopes(error, counts), integrator.order, atol=0.05)
    assert error[-1] < (2e-5 if integrator.order == 2 else 2e-3)


def test_attitudes_stay_unit_quaternions():
    start = State(BODY.system.group.identity(), jnp.asarray([0, 0, 0, *SPIN]))
    last, _ = integrate(
        BODY, INTEGRATORS["midpoint"], start, jnp.asarray(100.0), jnp.asarray(10_000)
    )
    # Measured 1e-13.
    np.testing.assert_allclose(jnp.sum(last.q.orientation**2), 1, rtol=0, atol=1e-12)


def test_translation_under_gravity_is_exact():
    """The midpoint rule is exact for a constant force, whatever the step."""
    model = Model(LagrangianSystem(np.diag([1.0, 3.0]), f_ext=np.array([0.0, -29.43])))
    start = State(jnp.array([0.0, 1.0]), jnp.array([2.0, 0.5]))
    last, _ = integrate(model, MoreauJean(), start, jnp.asarray(1.5), jnp.asarray(3))
    np.testing.assert_allclose(last.q, [3.0, 1 + 0.75 - 9.81 * 1.125], rtol=0, atol=1e-13)
    np.testing.assert_allclose(last.v, [2.0, 0.5 - 9.81 * 1.5], rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MoreauJean(theta=1.2), r"theta must lie in \[0, 1\], got 1.2"),
        (lambda: MoreauJean(theta=float("nan")), "theta must lie in"),
        (lambda: MoreauJean(gamma=-0.1), r"gamma must lie in \[0, 1\], got -0.1"),
        (lambda: Newton(max_iterations=0), "max_iterations must be at least 1, got 0"),
        (lambda: Newton(tolerance=-1.0), "tolerance must be finite and at least 0, got -1"),
        (
            lambda: ButcherTableau([[0.0]], [0.5], [0.0], 1),
            "weights b must sum to 1; they sum to 0.5",
        ),
        (lambda: Corrected(MoreauJean(), max_impacts=0), "max_impacts must be at least 1"),
    ],
)
def test_settings_that_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
