"""Impacts located inside the step: sensitivities in closed form, order, and what happens beside."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from impacts import PROBLEMS, cases, errors, final, program
from marks import nightly, slow_but
from oracles import KnownMotion, ball, pair, read, rod, unchanged
from oracles._bodies import pendulum, pendulum_at_wall
from scipy.integrate import solve_ivp

from diffnsd import (
    BackwardEuler,
    Corrected,
    Equality,
    GapRelation,
    Interaction,
    LagrangianSystem,
    Located,
    Model,
    MoreauJean,
    NewtonImpact,
    State,
    simulate,
)
from diffnsd.laws import GapStabilized
from diffnsd.models import ball_state, bouncing_ball, pendulum_wall

MIDPOINT = Located(MoreauJean())
# Elsewhere forces vary, or impacts have no end; joints have their own tests.
OTHERS = "corner, no friction", "pendulum at a wall", "slider", "four-bar", "bounces"
EXACT = [n for n in PROBLEMS if not n.startswith(OTHERS)]
# Each repeats in kind what a shorter row proves.
LONG = (
    "oblique, slips",
    "oblique, sticks",
    "three in 1.2 ms",
    "column",
    "two at once",
    "rod",
    "corner, sticks",
    "corner, slips",
    "three-ball billiard",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [nightly(n) if n in LONG else n for n in EXACT])
def test_constant_forces_are_exact(name):
    """The midpoint rule is exact between impacts: so are values and sensitivities through them."""
    values, slopes = errors(PROBLEMS[name], MIDPOINT, [1e-3])
    # Measured at most 1e-12 and 3e-11 (the residual of the laws); without friction 5e-14.
    assert values[0] < 1e-10 and slopes[0] < 1e-9


@pytest.mark.parametrize(
    "name", cases(["ball, one impact", "slope", "three-ball billiard"], long=("three-ball",))
)
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="plain Moreau-Jean through an impact: the derivative of the impact time is lost",
)
def test_plain_moreau_jean_through_an_impact(name):
    _, slopes = errors(PROBLEMS[name], MoreauJean(), [1e-2, 1e-3, 1e-4])
    assert slopes[-1] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "wrap"),
    [(BackwardEuler(), lambda law: law), (MoreauJean(theta=1.0), GapStabilized)],
    ids=["backward Euler", "theta = 1, gap-stabilised"],
)
def test_first_order_schemes_converge(inner, wrap):
    values, slopes = errors(PROBLEMS["ball, two impacts"], Located(inner), [1e-2, 1e-3, 1e-4], wrap)
    assert np.all(values[1:] < 0.2 * values[:-1]) and np.all(slopes[1:] < 0.2 * slopes[:-1])
    assert slopes[-1] < 1e-3


def test_the_figures_of_the_design():
    """Height 1: one impact with e = 0.9 until 0.8 s, and two with e = 0.8 until 1.2 s."""
    run = program(ball, MIDPOINT)
    one = run(jnp.array([1.0, 0.0, 0.9, 9.81]), jnp.asarray(0.8), jnp.asarray(800))[1]
    np.testing.assert_allclose(one[:, :2].T, [[0.5664, 4.2080], [-0.0579, 1.0]], atol=5e-5)
    two = run(jnp.array([1.0, 0.0, 0.8, 9.81]), jnp.asarray(1.2), jnp.asarray(1200))[1]
    np.testing.assert_allclose([two[1, 2], *two[:, 0]], [15.946, -1.477, 7.176], atol=5e-4)


def swing(angle, e, end):
    """A pendulum at a wall by a solver of ordinary differential equations with events."""

    def field(t, y):
        return y[1], -9.81 * np.sin(y[0])

    def wall(t, y):
        return np.sin(y[0]) + 0.2

    wall.terminal, wall.direction = True, -1
    t, y = 0.0, np.array([angle, 0.0])
    while t < end:
        out = solve_ivp(field, (t, end), y, "DOP853", events=wall, rtol=1e-13, atol=1e-13)
        t, y = out.t[-1], out.y[:, -1].copy()
        if out.status == 1:
            y[1] *= -e
    return y


def swinging(x, wrap):
    return pendulum_wall(x[1], distance=0.2), State(x[:1], jnp.zeros(1))


@pytest.mark.slow
def test_order_two_on_the_pendulum():
    """Through one impact; plain time stepping has order one."""
    x, end, steps = np.array([1.1, 0.8]), 1.0, [50, 100, 200, 400]
    exact = swing(*x, end)
    width = 1e-4
    slopes = np.stack(
        [(swing(*(x + d), end) - swing(*(x - d), end)) / (2 * width) for d in width * np.eye(2)], 1
    )
    found = []
    for method in (MIDPOINT, MoreauJean()):
        run = program(swinging, method)
        out = [run(jnp.asarray(x), jnp.asarray(end), jnp.asarray(n)) for n in steps]
        found.append([np.max(np.abs(value - exact)) for value, *_ in out])
        if method is MIDPOINT:
            errors_of_slopes = [np.max(np.abs(s - slopes)) for _, s, _ in out]
    order = np.log2(found[0][0] / found[0][-1]) / 3
    assert 1.8 < order < 2.3
    assert found[1][-1] > 20 * found[0][-1]
    assert errors_of_slopes[-1] < 5e-4 * np.max(np.abs(slopes))


@pytest.mark.slow
def test_rest_beside_an_impact():
    """One ball lies on the ground while the other one bounces."""

    def exact(x):
        fallen = ball_state(0.7, x[0], 0.0, x[2])
        zero = jnp.zeros(1)
        return jnp.concatenate([fallen.q, zero, fallen.v, zero])

    problem = KnownMotion(("a", "b", "e"), (1.0, 0.0, 0.7), 0.7, pair, exact)
    value, slopes, ok = program(pair, MIDPOINT)(
        jnp.asarray(problem.x), jnp.asarray(0.7), jnp.asarray(70)
    )
    known = jax.jacfwd(exact)(jnp.asarray(problem.x))
    assert ok
    # The one at rest loses and finds its contact within g h²/2, as under the plain scheme.
    known_value = exact(jnp.asarray(problem.x))
    np.testing.assert_allclose(value[jnp.array([0, 2])], known_value[jnp.array([0, 2])], atol=1e-8)
    np.testing.assert_allclose(value, known_value, atol=1e-3)
    np.testing.assert_allclose(slopes[:, [0, 2]], known[:, [0, 2]], atol=5e-3)  # 1.7e-3 measured


@pytest.mark.nightly
def test_both_ends_at_once():
    """A rod that lands flat strikes with both ends: it bounces like a ball, and stays level."""
    value, slopes, ok = program(rod, MIDPOINT)(
        jnp.array([0.5, 0.0, 0.5, 0.3]), jnp.asarray(0.5), jnp.asarray(50)
    )
    known = jax.jacfwd(lambda height: read(ball_state(0.5, height, 0.0, 0.5)))(jnp.asarray(0.5))
    assert ok
    np.testing.assert_allclose(value[2], 0, atol=1e-12)
    np.testing.assert_allclose(slopes[[1, 4], 0], known, atol=1e-9)
    assert np.all(np.isfinite(slopes))


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but([Located], [Located, Corrected]))
def test_three_impacts_in_one_step(method):
    """The balls of a stack strike within 1.2 ms: all in one step of 1e-2, and two or three in others."""
    motion, h = PROBLEMS["three in 1.2 ms"], [0.36 / 35, 1e-2, 1e-3, 1e-4]
    values, slopes = errors(motion, method(MoreauJean(), max_impacts=3), h)
    # Measured 2e-12; values 4e-12, under `Corrected` 3e-2, 4e-2, 3e-3 and 3e-4.
    assert np.max(slopes) < 1e-9
    assert np.max(values) < (1e-9 if method is Located else 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("method", [Located(MoreauJean()), Corrected(MoreauJean())])
def test_an_impact_too_many_is_said(method):
    """The third one of a step, of which two are located: the derivative is off by 13 %."""
    motion = PROBLEMS["three in 1.2 ms"]
    model, start = motion.build(jnp.asarray(motion.x), unchanged)
    run = simulate(model, method, 0.0, motion.end, motion.end / 35, start)
    assert run.stats.missed.sum() == 1 and "raise max_impacts" in run.message


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [MIDPOINT, nightly(Corrected(MoreauJean()))], ids=["located", "corrected"]
)
def test_bounces_to_rest_have_the_derivative_of_their_limit(method):
    """Where a sliding block ends depends on when it rests, after infinitely many rebounds."""
    lengths = [1e-2, 0.97e-2, 0.93e-2, 1e-3, 1e-4]
    values, slopes = errors(PROBLEMS["bounces to rest"], method, lengths)
    # Measured 1e-9, under `Corrected` 2e-4, and 2e-9 to 1.1e-7; 5e-2 in the derivative where the last
    # rebounds are left to the scheme.
    assert np.max(values) < (1e-7 if method is MIDPOINT else 1e-3) and np.max(slopes) < 1e-6


def test_the_end_of_a_bounce_sequence_and_grazing_are_finite():
    run = program(ball, MIDPOINT)
    # e = 0.5: all bounces are over after 1.36 s.
    value, slopes, ok = run(jnp.array([1.0, 0.0, 0.5, 9.81]), jnp.asarray(2.0), jnp.asarray(200))
    assert ok and np.all(np.isfinite(slopes))
    np.testing.assert_allclose(value, 0, atol=1e-2)  # the height of a bounce that is too slow
    # Thrown up from the ground's other side of nothing: it touches with speed 0 at its lowest point.
    value, slopes, ok = run(jnp.array([0.0, 0.0, 0.5, 9.81]), jnp.asarray(0.1), jnp.asarray(10))
    assert ok and np.all(np.isfinite(slopes))
    np.testing.assert_allclose(value, 0, atol=1e-12)


@pytest.fixture(scope="module")
def derivatives():
    """Everything that reverse mode and batches give, in one program."""
    problem = PROBLEMS["ball, two impacts"]
    run = final(problem, MIDPOINT, 0.02)

    def loss(x):
        return jnp.sum(jnp.sin(run(x)))

    def hessian_product(x, d):
        return jax.jvp(jax.grad(loss), (x,), (d,))[1]

    return problem, eqx.filter_jit(jax.jacrev(run)), eqx.filter_jit(hessian_product), run


@pytest.mark.slow
def test_reverse_mode(derivatives):
    problem, reverse, _, _ = derivatives
    found = reverse(jnp.asarray(problem.x))
    np.testing.assert_allclose(found, jax.jacfwd(problem.exact)(jnp.asarray(problem.x)), rtol=1e-10)


@pytest.mark.nightly
def test_hessian_vector_products(derivatives):
    """Second derivatives of a rollout through two impacts, against those of the closed form."""
    problem, _, product, _ = derivatives
    x, d = jnp.asarray(problem.x), jnp.array([0.3, -0.2, 0.1, 0.5])

    def loss(x):
        return jnp.sum(jnp.sin(problem.exact(x)))

    known = jax.jvp(jax.grad(loss), (x,), (d,))[1]
    np.testing.assert_allclose(product(x, d), known, rtol=1e-9)  # 1e-12 measured


@pytest.mark.slow
def test_derivatives_where_forces_are_not_constant():
    """A pendulum at a wall, which it strikes once, and twice: values, first and second derivatives along
    one direction, second order.
    """
    d = jnp.array([1.0, 0.5, -0.3, 0.2])

    def run(x, end, steps):
        model, state = pendulum(x, lambda law: law)
        h, carry = end / steps, MIDPOINT.init(model, jnp.zeros(()), state, None)

        def body(i, run):
            state, carry = run
            state, _, carry, _ = MIDPOINT.step(model, i * h, h, state, carry, None)
            return state, carry

        return read(jax.lax.fori_loop(0, steps, body, (state, carry))[0])

    def twice(function):
        def once(x):
            return jax.jvp(function, (x,), (d,))

        def both(x):
            (value, slope), (_, bend) = jax.jvp(once, (x,), (d,))
            return value, slope, bend

        return both

    found = eqx.filter_jit(lambda x, end, steps: twice(lambda x: run(x, end, steps))(x))
    # Measured over nine lengths near each, medians, with one impact 3e-4, 4e-4, 3e-4; 3e-6, 4e-6, 8e-6;
    # 3e-8, 4e-8, 4e-7 (worst 7e-7). With two 1e-4, 2e-4, 2e-4; 1e-6, 2e-6, 3e-6; 1e-8, 2e-8, 1e-7.
    for problem in (pendulum_at_wall(), pendulum_at_wall(2.0, impacts=2)):
        x, errors = jnp.asarray(problem.x), []
        known = eqx.filter_jit(twice(problem.exact))(x)
        for steps in (100, 1000, 10_000):
            end = jnp.asarray(problem.end)
            pairs = zip(found(x, end, jnp.asarray(round(steps * problem.end))), known, strict=True)
            errors.append([float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in pairs])
        coarse, fine, finest = np.array(errors)
        assert np.all(coarse < 1e-3) and np.all(fine < 2e-5) and np.all(finest < 2e-6)
        assert np.all(fine < 0.05 * coarse)


@pytest.mark.slow
def test_gauss_newton_products(derivatives):
    """`J^T J d` of a rollout through two impacts: forward, then backward, no matrix in between."""
    problem, _, _, run = derivatives
    x, d = jnp.asarray(problem.x), jnp.array([0.3, -0.2, 0.1, 0.5])

    def product(run):
        _, pushed = jax.jvp(run, (x,), (d,))
        return jax.vjp(run, x)[1](pushed)[0]

    found = eqx.filter_jit(lambda: product(run))()
    np.testing.assert_allclose(found, product(problem.exact), rtol=1e-9)


@pytest.mark.slow
def test_batches(derivatives):
    """Lanes with and without an impact, more than are gathered at a time."""
    problem, *_, run = derivatives
    heights = jnp.linspace(0.2, 3.0, 40)
    x = jnp.stack([jnp.append(h, jnp.asarray(problem.x[1:])) for h in heights])
    found = eqx.filter_jit(jax.vmap(run))(x)
    known = jax.vmap(lambda x: read(ball_state(problem.end, *x)))(x)
    np.testing.assert_allclose(found, known, atol=1e-11)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(max_impacts=0), "max_impacts must be at least 1"),
        (dict(slow=0.5), "slow must be at least 2"),
        (dict(simultaneous=2.0), r"simultaneous must lie in \[0, 1\)"),
    ],
)
def test_settings_that_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Located(MoreauJean(), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "height", "end", "counts", "words"),
    [
        (MIDPOINT, 1.0, 0.5, (1, 0, 0, 0, 0), ""),
        (MIDPOINT, 1.0, 2.0, (5, 0, 0, 0, 0), ""),
        (MIDPOINT, 0.0, 0.5, (0, 0, 0, 0, 0), ""),
        (MoreauJean(), 1.0, 0.5, (0, 0, 0, 0, 1), "1 impacts were stepped over"),
        (MoreauJean(), 1.0, 2.0, (0, 0, 0, 0, 5), "5 impacts were stepped over"),
        (MoreauJean(), 0.0, 0.5, (0, 0, 0, 0, 0), ""),
    ],
    ids=[
        *("bounces", "comes to rest", "rests"),
        *("plain, bounces", "plain, comes to rest", "plain, rests"),
    ],
)
def test_what_was_not_located_is_counted(method, height, end, counts, words):
    model = bouncing_ball(e=0.5)
    solution = simulate(model, method, 0.0, end, 1e-2, model.system.state([height]))
    stats = solution.stats
    found = (stats.located, stats.missed, stats.slow, stats.merged, stats.struck)
    assert tuple(int(x.sum()) for x in found) == counts
    assert solution.message.startswith(words) and bool(solution.message) == bool(words)


@pytest.mark.slow
def test_a_bounce_sequence_that_is_ended_long_before_its_end_is_counted():
    """At e = 0.9 it lasts ten times as long as its first flight, at e = 0.5 (above) twice as long."""
    model = bouncing_ball(e=0.9)
    start = model.system.state([0.05])
    runs = [simulate(model, Located(MoreauJean()), 0.0, 1.5, h, start) for h in (1e-2, 7.5e-3)]
    # The motion is at -0.2015 m/s: the first run has stopped long before.
    assert [float(run.states.v[-1, 0]) for run in runs] == pytest.approx([0, -0.20147], abs=1e-4)
    assert [int(run.stats.slow.sum()) for run in runs] == [1, 0]
    assert runs[0].message.startswith("1 slow impacts") and not runs[1].message


@pytest.mark.slow
@pytest.mark.parametrize(("height", "steps"), [(3e-3, 2), (4.9e-3, 4), (1.49e-2, 2)])
def test_an_impact_in_the_first_or_the_last_step_is_counted(height, steps):
    model, start = bouncing_ball(e=0.9), State(jnp.array([height]), jnp.array([-1.0]))
    solution = simulate(model, MoreauJean(), 0.0, 1e-2 * steps, 1e-2, start)
    assert int(solution.stats.struck.sum()) == 1


@pytest.mark.nightly
def test_a_joint_that_is_switched_off_does_not_hold():
    """A ball whose force grows with height, thrown against its floor beside a joint that is off."""

    def end(height, joints):
        floor = Interaction(GapRelation(lambda t, q: q), NewtonImpact(0.8))
        held = Interaction(GapRelation(lambda t, q: q - 3.0), Equality(), mask=[False])
        system = LagrangianSystem(jnp.eye(1), f_int=lambda t, q, v: 9.81 + 4 * q)
        model = Model(system, (floor, held)[: 1 + joints])
        out = simulate(model, MIDPOINT, 0.0, 0.6, 0.02, ball_state(0.0, height), throw=False)
        return out.states.q[-1, 0]

    # The joint makes nothing but a program of its own: measured 1e-16.
    one = jnp.ones(())
    free, beside = (
        eqx.filter_jit(lambda x, n=n: jax.jvp(lambda x: end(x, n), (x,), (jnp.ones_like(x),)))(one)
        for n in (0, 1)
    )
    np.testing.assert_allclose(beside, free, rtol=1e-10)
