"""Second derivatives of whole simulations, in every composition of the two modes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from impacts import final
from marks import slow_but
from oracles._bodies import pendulum_at_wall
from scipy.integrate import solve_ivp

from diffnsd import (
    BackwardEuler,
    Corrected,
    Equality,
    EventDriven,
    GapRelation,
    Interaction,
    Located,
    Model,
    MoreauJean,
    Newton,
    NewtonImpact,
    SaveAt,
    State,
    models,
    simulate,
)
from diffnsd.integrators import AtStart
from diffnsd.systems import LagrangianSystem

COMPOSITIONS = {
    "forward, forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "hessian": jax.hessian,
    "reverse, forward": lambda f: jax.jacrev(jax.jacfwd(f)),
    "reverse, reverse": lambda f: jax.jacrev(jax.jacrev(f)),
}


def slide(x):
    """Distance [m] of a block after 0.3 s, while it slides: `v t - mu g t^2 / 2`."""
    out = simulate(
        models.sliding_block(mu=x[0]),
        MoreauJean(),
        0.0,
        0.3,
        1e-2,
        models.block_state(0.0, speed=x[1] * x[1]),
        saveat=SaveAt.end(),
        throw=False,
    )
    return out.states.q[0]


def hardening(v):
    """Two steps of backward Euler on a stiffening spring with a cubic damper."""
    system = LagrangianSystem(jnp.eye(1), f_int=lambda t, q, v: 50 * q**3 + 5 * v**3)
    scheme = BackwardEuler(newton=Newton(max_iterations=50, tolerance=1e-14))
    start = State(jnp.ones(1), v[None])
    out = simulate(Model(system), scheme, 0.0, 0.2, 0.1, start, saveat=SaveAt.end(), throw=False)
    return out.states.q[0]


def exact_hardening(v):
    """The same two steps solved by scalar Newton iterations in long doubles."""
    h, q, v = np.longdouble(0.1), np.longdouble(1), np.longdouble(v)
    for _ in range(2):
        w = v
        for _ in range(60):
            p = q + h * w
            r = w - v + h * (50 * p**3 + 5 * w**3)
            w = w - r / (1 + h * (150 * p**2 * h + 15 * w**2))
        q, v = q + h * w, w
    return q


@pytest.mark.parametrize("name", slow_but(["hessian"], COMPOSITIONS))
def test_sliding_block(name):
    # d2/dv2 of v^2 t is 2 t, and nothing else is curved. Measured: 2e-16.
    expected = np.array([[0.0, 0.0], [0.0, 0.6]])
    actual = eqx.filter_jit(COMPOSITIONS[name](slide))(jnp.array([0.3, 1.4]))
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["hessian", "reverse, reverse"])
def test_step_with_several_newton_iterations(name):
    # The oracle is a central difference of an independent scalar solution in long doubles.
    d = 1e-4
    ends = [exact_hardening(1.0 + s * d) for s in (-1, 0, 1)]
    expected = float((ends[0] - 2 * ends[1] + ends[2]) / d**2)
    actual = eqx.filter_jit(COMPOSITIONS[name](hardening))(jnp.array(1.0))
    # Measured: 2e-7, the error of the difference.
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def along(function, x, d):
    """Value, first and second derivative of a function along a direction."""

    def once(x):
        return jax.jvp(function, (x,), (d,))

    (value, slope), (_, bend) = jax.jvp(once, (x,), (d,))
    return value, slope, bend


@pytest.mark.nightly
def test_event_driven_through_two_impacts():
    """A pendulum at a wall, against its elliptic integrals."""
    motion = pendulum_at_wall(2.0, impacts=2)
    x, d = jnp.asarray(motion.x), jnp.array([0.3, -0.2, 0.1, 0.05])
    run = final(motion, EventDriven(), motion.end)
    known = eqx.filter_jit(lambda: along(motion.exact, x, d))()
    # Measured: 2e-13 in value, 2e-12 in first and 6e-12 in second derivatives.
    for found, exact in zip(eqx.filter_jit(lambda: along(run, x, d))(), known, strict=True):
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-10)


def swinging_rod(angle):
    """A rod on a hinge, in maximal coordinates, whose stop has restitution 0.3."""
    system = LagrangianSystem(
        jnp.diag(jnp.array([1.0, 1.0, 1 / 12])), f_ext=np.array([0, -9.81, 0])
    )
    middle = jnp.stack([jnp.cos(angle), jnp.sin(angle)]) / 2

    def hinge(t, q):
        return q[:2] - jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])]) / 2

    joint = Interaction(GapRelation(hinge), Equality())
    stop = Interaction(GapRelation(lambda t, q: 1.0 + q[2:]), NewtonImpact(0.3))
    return Model(system, (joint, stop)), State(jnp.append(middle, angle), jnp.zeros(3))


def height_at_the_end(method, height):
    model, state = models.bouncing_ball(e=0.8), State(height[None], jnp.zeros(1))
    return simulate(model, method, 0.0, 0.8, 1e-2, state, saveat=SaveAt.end()).states.q[0]


def angle_at_the_end(method, angle):
    model, state = swinging_rod(angle)
    return simulate(model, method, 0.0, 0.8, 4e-3, state, saveat=SaveAt.end()).states.q[2]


@pytest.mark.parametrize("wrap", [Located, Corrected])
def test_what_would_not_be_true_is_refused(wrap):
    """Of first order in its velocities: the second derivative would be 140 % off at every step.

    Refused before anything is compiled. Other compositions of the modes: `tests/_jax/test_dependence.py`.
    """

    def twice(end, method, at):
        return jax.jacfwd(jax.jacfwd(lambda x: end(method, x)))(jnp.array(at))

    start = MoreauJean(joints_at=AtStart())
    with pytest.raises(
        ValueError, match="with joints MoreauJean has the first; use joints_at=Half"
    ):
        twice(angle_at_the_end, wrap(start), 0.1)
    with pytest.raises(ValueError, match=r"and BackwardEuler has the first; use MoreauJean\(\)"):
        twice(height_at_the_end, wrap(BackwardEuler()), 1.0)


def stopped_rod(angle):
    """Angle of the same rod after 0.8 s, by its equation: `angle'' = -3/2 g cos(angle)`."""

    def stop(t, y):
        return y[0] + 1.0

    stop.terminal, stop.direction = True, -1
    t, y = 0.0, np.array([angle, 0.0])
    while t < 0.8:
        out = solve_ivp(
            lambda t, y: [y[1], -1.5 * 9.81 * np.cos(y[0])], (t, 0.8), y, "DOP853", events=stop,
            rtol=1e-13, atol=1e-13,
        )  # fmt: skip
        t, y = out.t[-1], out.y[:, -1] * np.array([1.0, -0.3 if out.status == 1 else 1.0])
    return y[0]


@pytest.mark.nightly
def test_joint_and_impact():
    """`MoreauJean` is of second order with joints, so that second derivatives converge."""
    method, d = Located(MoreauJean()), 2e-3

    def end(angle, steps):
        model, state = swinging_rod(angle)
        carry, h = method.init(model, jnp.zeros(()), state, None), 0.8 / steps

        def body(i, run):
            state, carry = run
            state, _, carry, _ = method.step(model, i * h, h, state, carry, None)
            return state, carry

        return jax.lax.fori_loop(0, steps, body, (state, carry))[0].q[2]

    run = eqx.filter_jit(lambda x, steps: along(lambda x: end(x, steps), x, jnp.ones(())))
    near = [stopped_rod(0.1 + i * d) for i in (-2, -1, 0, 1, 2)]
    slope = np.dot([1, -8, 0, 8, -1], near) / (12 * d)
    bend = np.dot([-1, 16, -30, 16, -1], near) / (12 * d**2)
    errors = []
    for steps in (80, 800):
        found = run(jnp.array(0.1), jnp.array(steps))
        errors.append(np.abs(np.array(found) / [near[2], slope, bend] - 1))
    coarse, fine = errors
    # Measured: 1.1e-5, 1.7e-2 (of a slope of 0.017), 9e-3, and 1.1e-7, 1.4e-4, 7e-4; medians over five
    # lengths near each of angle and rate together: 4e-4, 7e-5, 5e-2, and 4e-6, 3e-6, 5e-3.
    assert np.all(coarse < [2e-3, 5e-2, 0.2]) and np.all(fine < [2e-5, 5e-4, 2e-2])
