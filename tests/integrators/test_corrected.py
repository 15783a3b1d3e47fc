"""The corrected adjoint: values of the plain scheme, sensitivities of the motion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from impacts import PROBLEMS, errors, final
from quick import quick_jit

from diffnsd import BackwardEuler, Corrected, MoreauJean
from diffnsd.laws import GapStabilized

SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("corner, slips", "corner, sticks")]
FAST = [n for n in PROBLEMS if not n.startswith("corner")]


@pytest.mark.parametrize("name", FAST + SLOW)
def test_sensitivities_converge(name):
    values, slopes = errors(PROBLEMS[name], Corrected(MoreauJean()), [1e-2, 1e-4])
    # Measured at h = 1e-4: 2.0e-3 (table) and 1.8e-3 (four impacts), whose values are off by 5e-3 and
    # 2e-3; 1.5e-3 (billiard); 3e-4 (corner that slips), 1.7e-4 (pendulum), below elsewhere.
    far = name in ("ball, four impacts", "oscillating table", "three-ball billiard")
    bound = 3e-3 if far else 1e-3
    assert slopes[1] < bound and slopes[1] < 0.15 * slopes[0]
    assert values[1] < 1e-2


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
    assert np.array_equal(quick_jit(plain)(x), quick_jit(corrected)(x))


def test_forward_and_reverse_mode(ball):
    x, _, corrected = ball
    forward, reverse = quick_jit(jax.jacfwd(corrected))(x), quick_jit(jax.jacrev(corrected))(x)
    np.testing.assert_allclose(forward, reverse, atol=1e-12)
    known = jax.jacfwd(PROBLEMS["ball, two impacts"].exact)(x)
    assert np.max(np.abs(forward - known)) < 0.05 * np.max(np.abs(known))  # h = 0.02


def test_second_derivatives_are_refused(ball):
    x, _, corrected = ball
    for second in (
        lambda x: jax.jacfwd(jax.jacfwd(corrected))(x),
        lambda x: jax.jvp(jax.grad(lambda x: jnp.sum(corrected(x) ** 2)), (x,), (x,)),
    ):
        with pytest.raises(ValueError, match="Located"):
            jax.eval_shape(second, x)
