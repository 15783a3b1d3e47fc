"""Ready models of impact: what is known of their motions."""

import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import MoreauJean, SaveAt, State, simulate
from diffnsd.models import READY, column_of_beads, impacting_bar


def shown(name, every=10):
    ready = READY[name]()
    saved = SaveAt(every)
    return ready, simulate(
        ready.model, ready.integrator, 0.0, ready.t1, ready.dt, ready.state0, saveat=saved
    )


def test_the_woodpecker_climbs_down():
    """Knocks come with the period of the limit cycle that is known of it, 0.146 s."""
    _, s = shown("woodpecker")
    knocks = np.asarray(s.ts)[np.asarray(s.impulses[0])[:, 0, 0] > 1e-6]
    np.testing.assert_allclose(np.diff(knocks), 0.146, rtol=0, atol=2e-3)
    assert np.max(np.diff(s.energy.total)) < 1e-12  # measured 2e-14 J
    drops = np.interp(knocks, s.ts, s.states.q[:, 0])
    # The same each cycle, as far as a cycle has been reached: measured 4 %.
    np.testing.assert_allclose(np.diff(drops), np.diff(drops)[0], rtol=0.06)
    friction = np.asarray(s.impulses[0])
    assert np.all(np.abs(friction[..., 1]) <= 0.3 * friction[..., 0] + 1e-12)


def test_the_slider_stays_in_its_guide():
    _, s = shown("slider_crank")
    assert np.min(s.gaps[0]) > -2e-5 and np.max(s.gaps[0]) < 2.1e-3 + 2e-5
    total = np.asarray(s.energy.total)
    assert np.max(np.diff(total)) < 1e-5  # measured 7e-7 J of 7.5 J
    assert np.sum(np.asarray(s.impulses[0])[..., 0] > 0) > 10


def test_the_block_comes_to_rest():
    _, s = shown("rocking_block")
    assert np.max(np.diff(s.energy.total)) < 1e-7
    np.testing.assert_allclose(s.states.q[-1, 1:], [1.0, 0.0], rtol=0, atol=1e-4)
    assert np.sum(np.asarray(s.impulses[0])[:, 0, 0] > 0) and np.sum(s.impulses[0][:, 1, 0] > 0)


def test_beads_come_to_rest_on_each_other():
    _, s = shown("column_of_beads")
    np.testing.assert_allclose(s.states.q[-1], 0.1 + 0.2 * np.arange(5), rtol=0, atol=1e-3)
    assert np.max(np.diff(s.energy.total)) < 1e-6


def test_elastic_beads_pass_an_impact_on():
    """Equal beads with `e = 1` exchange velocities: the first arrives, the last one leaves."""
    model = column_of_beads(4, e=1.0, g=0.0)
    start = State(jnp.array([0.3, 0.6, 0.9, 1.2]), jnp.array([1.0, 0.0, 0.0, 0.0]))
    end = simulate(model, MoreauJean(), 0.0, 0.6, 1e-3, start, saveat=SaveAt.end()).states
    np.testing.assert_allclose(end.v, [0.0, 0.0, 0.0, 1.0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("elements", [40, 160])
def test_a_bar_rebounds_by_its_waves(elements):
    """A uniform bar leaves the wall with its own speed after `2 L sqrt(rho/E)`, if continuous."""
    model = impacting_bar(elements)
    n = elements + 1
    start = State(jnp.full(n, 1e-6), jnp.full(n, -0.1))
    s = simulate(model, MoreauJean(gamma=0.0), 0.0, 8e-4, 1e-6, start)
    held = np.asarray(s.ts)[np.asarray(s.impulses[0])[:, 0, 0] > 0]
    duration = 2 * np.sqrt(7800 / 210e9)
    # Elements disperse the waves: measured 1.2 % and 0.2 % in time, 2.4 % and 0.8 % in speed.
    coarse = 40 / elements
    np.testing.assert_allclose(held[-1] - held[0], duration, rtol=0.003 + 0.015 * coarse)
    masses = np.asarray(model.system.mass(jnp.zeros(()), start.q)).sum(axis=1)
    mean = masses @ np.asarray(s.states.v[-1]) / masses.sum()
    np.testing.assert_allclose(mean, 0.1, rtol=0.005 + 0.03 * coarse)
    assert np.max(np.diff(s.energy.total)) < 1e-12
