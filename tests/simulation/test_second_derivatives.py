"""Second derivatives of whole simulations, in every composition of the two modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import quick_jit, slow_but

from diffnsd import BackwardEuler, Model, MoreauJean, Newton, SaveAt, State, models, simulate
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
    actual = quick_jit(COMPOSITIONS[name](slide))(jnp.array([0.3, 1.4]))
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["hessian", "reverse, reverse"])
def test_step_with_several_newton_iterations(name):
    # The oracle is a central difference of an independent scalar solution in long doubles.
    d = 1e-4
    ends = [exact_hardening(1.0 + s * d) for s in (-1, 0, 1)]
    expected = float((ends[0] - 2 * ends[1] + ends[2]) / d**2)
    actual = quick_jit(COMPOSITIONS[name](hardening))(jnp.array(1.0))
    # Measured: 2e-7, the error of the difference.
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
