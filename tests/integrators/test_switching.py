"""Switches of relays located inside the step: their times have derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from impacts import errors, final
from marks import nightly, slow_but
from oracles import KNOWN_MOTIONS

from diffnsd import Corrected, EulerMoreau, Located, ThetaGamma, ZeroOrderHold, simulate

LOCATED = Located(EulerMoreau())
CORRECTED = Corrected(EulerMoreau())
CROSSED = "relay is crossed", "relay of degree two"


@pytest.mark.parametrize("name", slow_but(CROSSED[1:], CROSSED))
def test_located_switches_are_exact(name):
    """Where rates are constant between switches the trapezoidal rule is."""
    values, slopes = errors(KNOWN_MOTIONS[name], LOCATED, [1e-2])
    assert values[0] < 1e-11 and slopes[0] < 1e-10


@pytest.mark.parametrize("name", slow_but(CROSSED[1:], CROSSED))
def test_corrected_switches_are_exact(name):
    values, slopes = errors(KNOWN_MOTIONS[name], CORRECTED, [1e-2, 1e-3, 1e-4])
    plain, _ = errors(KNOWN_MOTIONS[name], EulerMoreau(), [1e-2, 1e-3, 1e-4])
    assert np.array_equal(values, plain)
    # Measured 2e-13; the plain scheme is off by 1, however short the steps.
    assert np.all(slopes < 1e-10)


@pytest.mark.parametrize(
    "name", ["relay switches", "conduction angle", nightly("resonator with diode")]
)
def test_what_does_not_cross_stays_true(name):
    values, slopes = errors(KNOWN_MOTIONS[name], LOCATED, [1e-2, 1e-3])
    assert slopes[-1] < 1e-2 and slopes[-1] < 0.2 * slopes[0] and values[-1] < 1e-2


@pytest.mark.nightly
def test_reverse_mode_second_derivatives_and_batches():
    motion = KNOWN_MOTIONS["relay of degree two"]
    run = final(motion, LOCATED, 0.05)
    x, d = jnp.asarray(motion.x), jnp.array([0.3, -0.2, 0.1])

    def product(run, x):
        return jax.jvp(lambda x: jax.jacrev(run)(x), (x,), (d,))

    found, known = eqx.filter_jit(lambda x: product(run, x))(x), product(motion.exact, x)
    np.testing.assert_allclose(found[0], known[0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found[1], known[1], rtol=1e-8, atol=1e-9)

    lanes = x[None] + jnp.linspace(-0.3, 0.3, 20)[:, None] * jnp.array([[1.0, 0.0, 0.0]])
    values = eqx.filter_jit(jax.vmap(run))(lanes)
    np.testing.assert_allclose(values, jax.vmap(motion.exact)(lanes), atol=1e-11)


def test_laws_inside_the_step_are_refused():
    model, state = KNOWN_MOTIONS[CROSSED[0]].build(jnp.array([-1.0, 2.3, 0.9]), lambda law: law)
    for scheme in (Located(ThetaGamma()), Corrected(ThetaGamma())):
        with pytest.raises(ValueError, match="use EulerMoreau"):
            simulate(model, scheme, 0.0, 0.1, 0.1, state)
    assert Located(ZeroOrderHold()).supports(model) is None
