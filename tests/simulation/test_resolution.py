"""Whether steps are too long for a method of first order: what is said against what is lost."""

import jax.numpy as jnp
import numpy as np
import pytest
from oracles import KNOWN_MOTIONS, unchanged

import diffnsd as nsd
from diffnsd.laws import Relay
from diffnsd.relations import FirstOrderLinear
from diffnsd.systems import FirstOrderSystem


def oscillator(method, h, end=10.0):
    """`x'' = −x` from (1, 0): the part of its range that it loses, and what the run says."""
    system = FirstOrderSystem.linear([[0.0, 1.0], [-1.0, 0.0]])
    out = nsd.simulate(nsd.Model(system), method, 0.0, end, h, system.state([1.0, 0.0]))
    exact = np.stack([np.cos(out.ts), -np.sin(out.ts)], 1)
    return np.max(np.abs(out.states.v - exact)) / np.ptp(exact[:, 0]), out


@pytest.mark.parametrize("h", [0.1, 0.02])
def test_the_estimate_is_near(h):
    """Backward Euler loses `h/2` of a radian in each; what an oscillation lost it does not forget."""
    lost, out = oscillator(nsd.EulerMoreau(theta=1.0), h)
    assert 0.5 * lost < float(out.stats.coarse) < 1.5 * lost  # measured 0.76 (h = 0.1), 0.70
    assert "first order" in out.message


def test_nothing_is_said_of_short_steps_and_of_second_order():
    for method, h in ((nsd.EulerMoreau(theta=1.0), 1e-3), (nsd.EulerMoreau(0.5, 0.5), 0.1)):
        lost, out = oscillator(method, h)
        assert lost < 5e-3 and out.message == ""


def test_a_diode_that_is_stepped_too_coarsely():
    """The resonator of the known motions: 9 % off at 1e-2 (relative to its end), 0.9 % at 1e-3."""
    motion = KNOWN_MOTIONS["resonator with diode"]
    model, state = motion.build(jnp.asarray(motion.x), unchanged)
    said = {}
    for h in (1e-2, 1e-3):
        for method in (nsd.EulerMoreau(), nsd.Located(nsd.EulerMoreau())):
            out = nsd.simulate(model, method, 0.0, motion.end, h, state, throw=False)
            said.setdefault(h, []).append(out.message)
    assert all("first order" in words for words in said[1e-2]) and said[1e-3] == ["", ""]


@pytest.mark.parametrize("h", [1e-2, 5e-2, 0.5])
@pytest.mark.parametrize("wrapped", [lambda inner: inner, nsd.Located], ids=["plain", "located"])
def test_a_relay_that_holds_its_state_is_not_coarse(h, wrapped):
    """`x' = 1/2 − sign x`: rates jump once, where the state is reached and held; nothing is lost."""
    system = FirstOrderSystem.linear(np.zeros((1, 1)), b=np.array([0.5]))
    contact = nsd.Interaction(FirstOrderLinear([[1.0]], [[1.0]]), Relay())
    model = nsd.Model(system, contact)
    out = nsd.simulate(
        model, wrapped(nsd.EulerMoreau()), 0.0, 2.0, h, system.state([-1.0]), throw=False
    )
    assert abs(float(out.states.v[-1, 0])) < 1e-9
    assert float(out.stats.coarse) == 0 and "first order" not in out.message


def test_nothing_is_added_after_an_event():
    system = FirstOrderSystem.linear([[0.0, 1.0], [-1.0, 0.0]])
    model, state = nsd.Model(system), system.state([1.0, 0.0])
    method = nsd.EulerMoreau(theta=1.0)
    event = nsd.Event(lambda t, state, args: state.v[0])
    whole = nsd.simulate(model, method, 0.0, 5.0, 0.1, state, event=event)
    part = nsd.simulate(model, method, 0.0, float(whole.stats.end_time), 0.1, state)
    np.testing.assert_allclose(whole.stats.coarse, part.stats.coarse, rtol=1e-12)
