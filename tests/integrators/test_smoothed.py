"""Derivatives on the central path: what they are worth, in figures."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import (
    ComplementarityProblem,
    MoreauJean,
    SaveAt,
    SmoothedAdjoint,
    simulate,
    solve_complementarity,
)
from diffnsd.laws import Complementarity, CoulombFriction
from diffnsd.models import block_state, block_stop_distance, sliding_block


def test_one_contact_in_closed_form():
    """`w = a z + q` with `w z = kappa`: `z = (−q + sqrt(q² + 4 a kappa)) / 2a`."""
    a, kappa = 2.0, 1e-2

    def solve(q):
        W = a * jnp.eye(3)
        problem = ComplementarityProblem(W, q, ((Complementarity(), (3, 1)),))
        return solve_complementarity(problem, adjoint=SmoothedAdjoint(kappa)).z

    q = jnp.array([-1.0, 0.02, 1.0])  # loaded, nearly open, open
    value, slope = eqx.filter_jit(lambda q: (solve(q), jax.jacrev(solve)(q)))(q)
    exact = jnp.maximum(-q / a, 0)
    np.testing.assert_allclose(value, exact, atol=1e-9)  # the value is the exact solution
    known = (-1 + q / jnp.sqrt(q * q + 4 * a * kappa)) / (2 * a)
    np.testing.assert_allclose(slope, jnp.diag(known), atol=1e-9)


@pytest.mark.slow
def test_a_sticking_contact_has_a_derivative_of_slip():
    """Exact: none. On the central path some, which is the point of it, and vanishes with kappa."""

    def slip(q, kappa):
        problem = ComplementarityProblem(jnp.eye(3), q, ((CoulombFriction(0.5), (1, 3)),))
        return solve_complementarity(problem, adjoint=SmoothedAdjoint(kappa)).w[1]

    q = jnp.array([-1.0, 0.1, 0.05])
    slopes = [
        float(eqx.filter_jit(jax.grad(slip))(q, k)[1]) for k in map(jnp.asarray, (1e-6, 1e-2))
    ]
    assert 0 < slopes[0] < 1e-4 < 1e-2 < slopes[1] < 1


@pytest.fixture(scope="module")
def slope():
    def distance(mu, kappa):
        method = MoreauJean(adjoint=SmoothedAdjoint(kappa))
        start = block_state(0.0, 2.0)
        run = simulate(sliding_block(mu), method, 0.0, 0.9, 1e-2, start, saveat=SaveAt.end())
        return run.states.q[0]

    return eqx.filter_jit(jax.value_and_grad(distance))


@pytest.mark.slow
def test_the_bias_through_a_trajectory(slope):
    """Distance of a sliding block by friction; implicit derivative at this step: 1.3 % off."""
    exact = jax.grad(block_stop_distance, argnums=1)(2.0, 0.3)
    bias = []
    for kappa in (1e-6, 1e-4, 1e-3, 1e-2):
        value, found = slope(jnp.asarray(0.3), jnp.asarray(kappa))
        np.testing.assert_allclose(value, block_stop_distance(2.0, 0.3), rtol=1e-3)
        bias.append(abs(float(found / exact) - 1))
    # Measured 0.6 %, 0.13 %, 3.8 %, 27.9 %.
    assert bias[0] < 0.02 and bias[1] < 0.02 and 0.01 < bias[2] < 0.06 and bias[3] > 0.1


def test_settings_that_are_refused():
    with pytest.raises(ValueError, match="kappa must be positive"):
        SmoothedAdjoint(0.0)
