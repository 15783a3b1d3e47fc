"""Sampled controllers against their difference equations, closed forms, and derivatives by gains."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from diffnsd import EulerMoreau, Model, MoreauJean, SaveAt, State, ZeroOrderHold, simulate
from diffnsd.control import (
    PID,
    Delayed,
    ExplicitSlidingMode,
    ExplicitTwisting,
    ImplicitSlidingMode,
    ImprovedSlidingMode,
    Luenberger,
    Sampled,
    SlidingModeOT2,
    Twisting,
)
from diffnsd.systems import FirstOrderSystem, LagrangianSystem

A = np.array([[0.0, 1.0], [0.0, -1.0]])
B = np.array([[0.0], [1.0]])
MOTOR = FirstOrderSystem.linear(A, inputs=B)


def position(t, state):
    del t
    return state.v[:1]


def run(plant, loop, x0, end, dt):
    return simulate(Model(plant), loop, 0.0, end, dt, plant.state(x0))


def test_pid_against_its_difference_equation():
    """The plant by the matrix exponential, the controller in its positional form: sums of errors."""
    kp, ki, kd, dt, every, steps = 3.0, 1.0, 0.8, 0.01, 4, 80
    pid = PID(kp, ki, kd, reference=lambda t: jnp.cos(t)[None])
    out = run(MOTOR, Sampled(ZeroOrderHold(), pid, every, position), [0.2, 0.0], steps * dt, dt)
    big = np.zeros((3, 3))
    big[:2, :2], big[:2, 2:] = A, B
    flow, period = expm(dt * big), dt * every
    x, total, last = np.array([0.2, 0.0]), 0.0, 0.0
    for k in range(steps):
        if k % every == 0:
            error = np.cos(k * dt) - x[0]
            total += error * period
            u = kp * error + ki * total + kd * (error - last) / period
            last = error
        x = (flow @ [*x, u])[:2]
        np.testing.assert_allclose(out.details.control[k + 1], [u], atol=1e-11)
        np.testing.assert_allclose(out.states.v[k + 1], x, atol=1e-13)


def disturbance(t):
    return jnp.sin(20 * t) * np.array([0.0, 0.7])


def test_the_implicit_sliding_mode_does_not_chatter():
    """It rejects the disturbance but for one period; the explicit one stays at gain times period."""
    plant = FirstOrderSystem.linear(np.zeros((2, 2)), disturbance, inputs=[[0.0], [2.0]])
    surface = np.zeros((2, 2)), [[0.0], [2.0]], [[0.0, 1.0]]
    late = {}
    for kind in (ImplicitSlidingMode, ExplicitSlidingMode):
        out = run(plant, Sampled(ZeroOrderHold(), kind(*surface), 20), [0.0, 0.5], 1.0, 5e-4)
        late[kind] = np.max(np.abs(out.states.v[-1000:, 1]))
        assert np.max(np.abs(out.details.control)) <= 1
    assert late[ImplicitSlidingMode] < 0.01 * 0.7  # measured 0.0068
    assert late[ExplicitSlidingMode] > 0.015  # measured 0.02


DRIFT = np.array([[0.0, 1.0], [-2.0, 1.0]])


def layers(kind):
    """Largest sliding variable late in a run, for two sampling periods: the second is half the first."""
    plant = FirstOrderSystem.linear(DRIFT, disturbance, inputs=[[0.0], [2.0]])
    surface = DRIFT, [[0.0], [2.0]], [[1.0, 1.0]]
    loop, found = Sampled(ZeroOrderHold(), kind(*surface, 3.0), 4), []
    for dt in (2e-3, 1e-3):  # as many steps of half the length: one program
        out = run(plant, loop, [0.0, 0.3], 1000 * dt, dt)
        found.append(np.max(np.abs(out.states.v[-500::4] @ np.array([1.0, 1.0]))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "order"), [(ImplicitSlidingMode, 1), (ImprovedSlidingMode, 2), (SlidingModeOT2, 2)]
)
def test_the_boundary_layer(kind, order):
    """Of the order of the period, or of its square where the last disturbance is taken off."""
    coarse, fine = layers(kind)
    np.testing.assert_allclose(np.log2(coarse / fine), order, atol=0.25)


def test_deadbeat_without_disturbance():
    """Within reach the exactly sampled plant is on the surface after one period; Euler's is not."""
    period, x = 0.1, np.array([0.05, 0.02])
    b, c = np.array([[0.0], [2.0]]), np.array([[1.0, 1.0]])
    big = np.zeros((3, 3))
    big[:2, :2], big[:2, 2:] = DRIFT, b
    ends = {}
    for kind in (SlidingModeOT2, ImprovedSlidingMode):
        law = kind(DRIFT, b, c, 5.0)
        # The first sample expects what it measures: without a prediction there is no disturbance.
        u, _ = law(0.0, jnp.asarray(x), law.init(0.0, jnp.asarray(x)), jnp.array(period))
        ends[kind] = float((c @ (expm(period * big) @ [*x, float(u[0])])[:2])[0])
    assert abs(ends[SlidingModeOT2]) < 1e-13 < 1e-4 < abs(ends[ImprovedSlidingMode])


@pytest.mark.slow
def test_explicit_twisting_chatters():
    plant = FirstOrderSystem.linear([[0.0, 1.0], [0.0, 0.0]], disturbance, inputs=B)
    late = []
    for kind in (Twisting, ExplicitTwisting):
        out = run(plant, Sampled(ZeroOrderHold(), kind(4.0, 0.5), 10), [1.0, 0.0], 6.0, 1e-3)
        late.append(np.max(np.abs(out.states.v[-1000:, 1])))
    assert late[1] > 2 * late[0]
    u, _ = ExplicitTwisting(4.0, 0.5)(0.0, jnp.array([0.3, -2.0]), (), jnp.array(0.1))
    assert u[0] == -4 * (1 - 0.5)


def test_a_late_sensor():
    """The difference equation with the measurement of two samples ago."""
    kp, dt, every, late = 1.5, 0.02, 3, 2
    loop = Sampled(ZeroOrderHold(), Delayed(PID(kp, reference=1.0), late), every, position)
    out = run(MOTOR, loop, [0.2, 0.0], 60 * dt, dt)
    y = np.asarray(out.states.v)[:-1:every, 0]
    shown = np.concatenate([np.full(late, y[0]), y[:-late]])
    np.testing.assert_allclose(out.details.control[1::every, 0], kp * (1 - shown), rtol=1e-12)


@pytest.mark.slow
def test_a_failure_of_the_controller_is_told():
    """A sensor that breaks: the relay problem of the controller has no numbers to solve."""
    plant = FirstOrderSystem.linear(np.zeros((1, 1)), inputs=[[2.0]])
    broken = lambda t, state: jnp.where(t > 0.05, jnp.nan, state.v)  # noqa: E731
    law = ImplicitSlidingMode(np.zeros((1, 1)), [[2.0]], [[1.0]], 1.0)
    for controller in (law, Delayed(law, 0)):
        loop = Sampled(ZeroOrderHold(), controller, 2, broken)
        out = simulate(Model(plant), loop, 0.0, 0.2, 0.01, plant.state([3.0]), throw=False)
        assert (
            "step 6 failed" in out.message
            and "entries in W or q that are not finite" in out.message
        )


@pytest.mark.nightly
def test_the_equivalent_control_keeps_the_surface():
    """Without disturbance, on the surface, several controls."""
    random = np.random.default_rng(1)
    a, b = random.normal(size=(3, 3)), random.normal(size=(3, 2))
    c = np.linalg.pinv(b)
    x = jnp.asarray((np.eye(3) - b @ c) @ random.normal(size=3))
    u, _ = ImplicitSlidingMode(a, b, c, 5.0)(0.0, x, (), jnp.array(0.01))
    np.testing.assert_allclose(c @ (a @ x + b @ u), 0, atol=1e-12)


@pytest.mark.nightly
def test_several_relays_solve_their_own_step():
    random = np.random.default_rng(2)
    b, x, period = np.eye(3) + 0.2 * random.normal(size=(3, 3)), random.normal(size=3), 0.4
    law = ImplicitSlidingMode(np.zeros((3, 3)), b, np.eye(3), jnp.array([1.0, 2.0, 0.5]))
    u = np.asarray(law(0.0, jnp.asarray(x), (), jnp.array(period))[0])
    after = x + period * b @ u
    bound = np.array([1.0, 2.0, 0.5])
    np.testing.assert_allclose(u, np.clip(u - after, -bound, bound), atol=1e-9)
    assert np.all(np.abs(u) <= bound)


@pytest.mark.slow
def test_twisting_reaches_the_origin_and_stays():
    """A double integrator with a disturbance smaller than `gain (1 − ratio)`."""
    plant = FirstOrderSystem.linear([[0.0, 1.0], [0.0, 0.0]], disturbance, inputs=B)
    out = run(plant, Sampled(ZeroOrderHold(), Twisting(4.0, 0.5), 10), [1.0, 0.0], 6.0, 1e-3)
    late = np.max(np.abs(out.states.v[-1000:]), axis=0)
    assert late[0] < 1e-3 and late[1] < 0.02
    assert np.max(np.abs(out.details.control)) <= 6


@pytest.mark.slow
def test_the_estimate_of_the_observer_converges():
    """Its error follows `(A − L C)` held over the periods, whatever the control is."""
    c, gain, x0 = np.array([[1.0, 0.0]]), np.array([[4.0], [3.0]]), np.array([1.0, -0.5])
    period, samples = 0.02, 200
    big = np.zeros((4, 4))
    big[:2, :2], big[:2, 2:] = A, np.eye(2)
    hold = lambda a: expm(period * np.block([[a, np.eye(2)], [np.zeros((2, 4))]]))[:2, 2:]  # noqa: E731
    plant_flow = expm(period * A)
    closed = A - gain @ c
    observer = Luenberger(PID(jnp.zeros(2), reference=jnp.zeros(2)), A, np.eye(2), c, gain)
    x, memory = x0, observer.init(0.0, jnp.zeros(1))
    estimate = np.zeros(2)
    for _ in range(samples):
        _, memory = observer(0.0, jnp.asarray(c @ x), memory, jnp.array(period))
        estimate = estimate + hold(closed) @ (A @ estimate + gain @ (c @ x - c @ estimate))
        np.testing.assert_allclose(memory[0], estimate, atol=1e-13)
        x = plant_flow @ x
    assert np.max(np.abs(memory[0] - x)) < 0.1 * np.max(np.abs(x0))


def test_a_mechanical_plant():
    """The force of a Lagrangian system takes the control: an oscillator brought to rest."""
    system = LagrangianSystem(np.eye(1), forcing=lambda t, state, u: u - state.q)
    loop = Sampled(MoreauJean(), PID(4.0, 1.0, 3.0, reference=0.5), 5, lambda t, state: state.q)
    start = State(jnp.zeros(1), jnp.zeros(1))
    out = simulate(Model(system), loop, 0.0, 20.0, 0.01, start)
    np.testing.assert_allclose(out.states.q[-1], 0.5, atol=1e-2)


def cost(gains, plant=MOTOR, end=1.0):
    pid = PID(*gains, reference=1.0)
    loop = Sampled(ZeroOrderHold(), pid, 5, position)
    out = simulate(Model(plant), loop, 0.0, end, 0.02, plant.state([0.0, 0.0]))
    return jnp.mean((out.states.v[:, 0] - 1.0) ** 2)


@pytest.mark.slow
def test_derivatives_by_gains():
    gains = jnp.array([2.0, 0.5, 0.7])
    reverse, forward = eqx.filter_jit(lambda g: (jax.grad(cost)(g), jax.jacfwd(cost)(g)))(gains)
    np.testing.assert_allclose(reverse, forward, rtol=1e-12)
    near = eqx.filter_jit(jax.vmap(cost))(
        gains[None] + 1e-5 * np.concatenate([np.eye(3), -np.eye(3)])
    )
    np.testing.assert_allclose(forward, (near[:3] - near[3:]) / 2e-5, rtol=1e-6)


@pytest.mark.slow
def test_gains_from_a_recorded_motion():
    def motion(gains):
        loop = Sampled(ZeroOrderHold(), PID(*gains, reference=1.0), 5, position)
        return simulate(Model(MOTOR), loop, 0.0, 2.0, 0.02, MOTOR.state([0.0, 0.0])).states.v[:, 0]

    truth = jnp.array([2.0, 0.5, 0.7])
    data, found = motion(truth), jnp.array([1.5, 0.3, 0.4])
    step = eqx.filter_jit(lambda g: (motion(g) - data, jax.jacfwd(motion)(g)))
    for _ in range(10):
        residual, jacobian = step(found)
        found = found - jnp.linalg.lstsq(jacobian, residual)[0]
    np.testing.assert_allclose(found, truth, rtol=1e-8)


@pytest.mark.slow
def test_the_gain_of_a_sliding_mode_is_differentiable():
    """Far from the surface `u = −gain`: the position moves by `−2 gain t`."""

    def end(gain):
        plant = FirstOrderSystem.linear(np.zeros((1, 1)), inputs=[[2.0]])
        law = ImplicitSlidingMode(np.zeros((1, 1)), [[2.0]], [[1.0]], gain)
        out = simulate(
            Model(plant),
            Sampled(ZeroOrderHold(), law, 10),
            0.0,
            0.2,
            0.01,
            plant.state([3.0]),
            saveat=SaveAt.end(),
        )
        return out.states.v[0]

    value, slope = jax.value_and_grad(end)(jnp.array(1.5))
    np.testing.assert_allclose([value, slope], [3.0 - 0.6, -0.4], rtol=1e-13)


@pytest.mark.slow
def test_what_is_refused():
    with pytest.raises(ValueError, match="every must be at least 1 step, got 0"):
        Sampled(ZeroOrderHold(), PID(1.0), every=0)
    with pytest.raises(ValueError, match="at least 0 samples, got -1"):
        Delayed(PID(1.0), -1)
    with pytest.raises(ValueError, match="C B must be positive definite"):
        ImplicitSlidingMode(np.zeros((1, 1)), [[1.0]], [[-1.0]])
    with pytest.raises(ValueError, match="A, B and C must have shapes"):
        ExplicitSlidingMode(np.zeros((2, 2)), [[1.0]], [[1.0]])
    with pytest.raises(ValueError, match="A, B, C, L and x0 must have shapes"):
        Luenberger(PID(1.0), A, B, np.ones((1, 2)), np.ones((1, 2)))
    with pytest.raises(ValueError, match="the control takes their place"):
        simulate(
            Model(MOTOR),
            Sampled(EulerMoreau(), PID(1.0), 5, position),
            0.0,
            0.1,
            0.02,
            MOTOR.state([0.0, 0.0]),
            jnp.ones(1),
        )
    with pytest.raises(ValueError, match="use EulerMoreau, ThetaGamma or ZeroOrderHold"):
        run(MOTOR, Sampled(MoreauJean(), PID(1.0), 5, position), [0.0, 0.0], 0.1, 0.02)
