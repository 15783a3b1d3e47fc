"""The corrected adjoint: values of the plain scheme, sensitivities of the motion."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from impacts import PROBLEMS, cases, errors, final
from oracles import unchanged

from diffnsd import BackwardEuler, Corrected, MoreauJean, SaveAt, State, simulate
from diffnsd.laws import GapStabilized
from diffnsd.models import bouncing_ball

# The derivatives are those of `Located`, whose tests have all the motions.
SOME = [n for n in PROBLEMS if n.startswith(("ball", "oblique", "pendulum")) and "thirty" not in n]


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(SOME, long=("oblique, s",)))
def test_sensitivities_converge(name):
    values, slopes = errors(PROBLEMS[name], Corrected(MoreauJean()), [1e-2, 1e-4])
    # Measured at h = 1e-4: 2.2e-8 (pendulum), below 1e-8 elsewhere.
    assert slopes[1] < 1e-7 and slopes[1] < max(1e-3 * slopes[0], 1e-8)
    assert values[1] < 1e-2


@pytest.mark.slow
def test_the_pendulum_at_many_lengths():
    """25 near 1e-2 s, since one length may be lucky, and five near 1e-4 s."""
    problem, method = PROBLEMS["pendulum at a wall"], Corrected(MoreauJean())
    _, coarse = errors(problem, method, [problem.end / n for n in range(100, 125)])
    _, fine = errors(problem, method, [problem.end / n for n in range(10_000, 10_500, 100)])
    # Measured: median and worst 2.3e-4 and 3.5e-4; over 25 lengths near 1e-4 s 2.2e-8 and 3.2e-8.
    assert np.median(coarse) < 5e-4 and np.max(coarse) < 1e-3
    assert np.max(fine) < 1e-7


@pytest.mark.nightly
def test_thirty_impacts():
    """The derivative is that of the motion; the values are far from it, which is said if far enough."""
    problem, method = PROBLEMS["ball, thirty impacts"], Corrected(MoreauJean())
    values, slopes = errors(problem, method, [1e-2, 1e-3, 1e-4])
    # Measured: 2e-14, 4e-13 and 6e-12; values 7, 3 and 0.2, relative to the 0.2 m/s at the end.
    assert np.max(slopes) < 1e-10 and values[-1] < 0.5
    model, start = problem.build(jnp.asarray(problem.x), unchanged)
    run = simulate(model, method, 0.0, problem.end, problem.end / 13920, start)
    assert "saved times the values of Corrected and the motion of its derivatives" in run.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "wrap"),
    [(BackwardEuler(), lambda law: law), (MoreauJean(theta=1.0), GapStabilized)],
    ids=["backward Euler", "theta = 1, gap-stabilised"],
)
def test_first_order_schemes_converge(inner, wrap):
    _, slopes = errors(PROBLEMS["ball, two impacts"], Corrected(inner), [1e-2, 1e-3, 1e-4], wrap)
    # Measured 1.2e-4 and 3.0e-4 at h = 1e-4.
    assert np.all(slopes[1:] < 0.2 * slopes[:-1]) and slopes[-1] < 1e-3


@pytest.fixture(scope="module")
def ball():
    problem = PROBLEMS["ball, two impacts"]
    plain, corrected = (
        final(problem, scheme, 0.02) for scheme in (MoreauJean(), Corrected(MoreauJean()))
    )
    return jnp.asarray(problem.x), plain, corrected


def test_values_are_those_of_the_plain_scheme(ball):
    x, plain, corrected = ball
    assert np.array_equal(eqx.filter_jit(plain)(x), eqx.filter_jit(corrected)(x))


@pytest.mark.slow
def test_forward_and_reverse_mode(ball):
    x, _, corrected = ball
    forward, reverse = (
        eqx.filter_jit(jax.jacfwd(corrected))(x),
        eqx.filter_jit(jax.jacrev(corrected))(x),
    )
    np.testing.assert_allclose(forward, reverse, atol=1e-12)
    known = jax.jacfwd(PROBLEMS["ball, two impacts"].exact)(x)
    assert np.max(np.abs(forward - known)) < 1e-9 * np.max(np.abs(known))  # h = 0.02


@pytest.mark.nightly
def test_second_derivatives(ball):
    x, _, corrected = ball
    d = jnp.array([0.3, -0.2, 0.1, 0.5])

    def product(run):
        return jax.jvp(jax.grad(lambda x: jnp.sum(run(x))), (x,), (d,))[1]

    known = product(PROBLEMS["ball, two impacts"].exact)
    np.testing.assert_allclose(eqx.filter_jit(lambda: product(corrected))(), known, rtol=1e-9)


@pytest.mark.nightly
def test_columns_of_a_batch():
    """What `least_squares` does: lanes inside, derivatives outside, columns around both."""
    heights = jnp.linspace(0.9, 1.1, 3)

    def end(x, height):
        start = State(height[None] * x[1], jnp.zeros(1))
        method = Corrected(MoreauJean())
        return simulate(bouncing_ball(x[0]), method, 0.0, 0.8, 1e-2, start).states.q[-1, 0]

    def lanes(x):
        return jax.vmap(lambda height: end(x, height))(heights)

    x = jnp.array([0.8, 1.0])
    found = eqx.filter_jit(jax.vmap(lambda t: jax.jvp(lanes, (x,), (t,))[1], out_axes=1))(
        jnp.eye(2)
    )
    alone = eqx.filter_jit(jax.grad(end))
    for height, row in zip(heights, found, strict=True):
        np.testing.assert_allclose(row, alone(x, height), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("end", "is_far"), [(0.8, False), (10.0, True)])
def test_a_drift_of_the_values_is_said(end, is_far):
    """After 12 rebounds the plain motion is 6.7 steps from the located one, after one 0.3."""
    model = bouncing_ball(e=0.98)
    start = model.system.state([1.0])
    method = Corrected(MoreauJean())
    solution = simulate(model, method, 0.0, end, 1e-2, start, saveat=SaveAt.end())
    assert ("Corrected and the motion of its derivatives" in solution.message) is is_far
    assert bool(solution.stats.drifted.sum()) is is_far


@pytest.mark.slow
@pytest.mark.parametrize(("end", "apart"), [(0.40, 0), (0.452, 1), (0.60, 0)])
def test_values_before_an_impact_and_a_motion_after_it_are_said(end, apart):
    """The ball strikes at 0.45152 s: the plain scheme one step later."""
    model = bouncing_ball(e=0.9)
    given = Corrected(MoreauJean()), 0.0, end, end / 50, model.system.state([1.0])
    solution = simulate(model, *given, saveat=SaveAt.end())
    assert int(solution.stats.drifted) == apart
    assert ("two sides of an impact" in solution.message) is bool(apart)
