"""Ready circuits and relays against closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import EulerMoreau, SaveAt, ThetaGamma, simulate
from diffnsd.models import (
    buck_converter,
    diode_bridge,
    diode_bridge_state,
    gene_network,
    relay_oscillator,
    rlc_diode,
)


def test_the_closed_form_of_the_bridge_solves_its_equations():
    r, ind, c = 300.0, 2e-2, 3e-6
    for t in np.linspace(1e-4, 3e-3, 5):
        x, rate = jax.jvp(lambda t: diode_bridge_state(t, 7.0, r, ind, c).v, (t,), (1.0,))
        np.testing.assert_allclose(rate, [(-x[1] - x[0] / r) / c, x[0] / ind], rtol=1e-12)


def test_the_bridge_converges_to_its_closed_form():
    model, errors = diode_bridge(), []
    for steps in (1000, 2000):
        dt = 5e-3 / steps
        out = simulate(model, ThetaGamma(), 0.0, 5e-3, dt, model.system.state([10.0, 0.0]))
        exact = jax.vmap(lambda t: diode_bridge_state(t).v)(out.ts)
        errors.append(np.max(np.abs(out.states.v - exact)[:, 0]))
    assert errors[1] < 5e-3  # measured 3.8e-3 V of 10 V
    assert errors[1] < errors[0] / 3  # measured order 2


def test_derivatives_of_the_bridge_by_its_components():
    def end(components, steps):
        model = diode_bridge(*components)
        out = simulate(
            model,
            ThetaGamma(),
            0.0,
            1e-3,
            1e-3 / steps,
            model.system.state([10.0, 0.0]),
            saveat=SaveAt.end(),
        )
        return out.states.v[0]

    at = jnp.array([1e3, 1e-2, 1e-6])
    exact = jax.grad(lambda p: diode_bridge_state(1e-3, 10.0, *p).v[0])(at)
    found = eqx.filter_jit(jax.grad(end))(at, 1000)
    np.testing.assert_allclose(found, exact, rtol=2e-4)


def test_the_diode_damps_one_half_wave_only():
    """While it conducts `v` decays as a damped wave, while it blocks the energy is kept."""
    model = rlc_diode()
    out = simulate(model, ThetaGamma(), 0.0, 3e-4, 1e-7, model.system.state([10.0, 0.0]))
    conducts = np.asarray(out.details.multipliers[0][:, 0, 0]) > 0
    v = np.asarray(out.states.v[:, 0])
    exact = np.asarray(jax.vmap(lambda t: diode_bridge_state(t).v[0])(out.ts))
    first = np.flatnonzero(v < 0)[0]
    np.testing.assert_allclose(v[:first], exact[:first], atol=1e-4)
    assert conducts[1 : first - 1].all() and not conducts[first + 1 :].any()
    energy = np.asarray(out.energy.total)[first + 1 :]
    np.testing.assert_allclose(energy, energy[0], rtol=1e-12)


def test_the_buck_converter_lowers_the_voltage_by_its_duty():
    """Also its derivative by the duty: the mean voltage is `duty * source`."""

    def mean(duty):
        model = buck_converter(duty)
        start = model.system.state(jnp.stack([20.0 * duty, 2.0 * duty]))
        out = simulate(model, EulerMoreau(theta=1.0), 0.0, 2e-3, 2.5e-7, start)
        return jnp.mean(out.states.v[-4000:, 0]), jnp.min(out.states.v[:, 1])

    (voltage, current), (slope, _) = eqx.filter_jit(
        lambda d: jax.jvp(mean, (d,), (jnp.ones_like(d),))
    )(jnp.array(0.5))
    assert current > 0  # the current flows all the time
    np.testing.assert_allclose(voltage, 10.0, rtol=4e-2)  # measured 9.66: the switch has losses
    np.testing.assert_allclose(slope, 20.0, rtol=6e-2)


def test_the_relay_oscillator_settles_on_a_cycle():
    """Symmetric, with the period that its own half waves have."""
    model = relay_oscillator()
    start = model.system.state([0.0, 3 * np.sqrt(2) / (2 * np.pi), 0.0])
    out = simulate(model, EulerMoreau(), 0.0, 60.0, 1e-2, start)
    x = np.asarray(out.states.v[:, 0])
    crossings = np.flatnonzero((x[:-1] < 0) & (x[1:] >= 0))
    periods = np.diff(crossings[-6:]) * 1e-2
    assert np.ptp(periods) < 0.021
    np.testing.assert_allclose(np.max(x[-1000:]), -np.min(x[-1000:]), rtol=1e-2)


def test_the_gene_network_slides_along_a_threshold():
    model = gene_network()
    out = simulate(model, EulerMoreau(), 0.0, 1.0, 1e-3, model.system.state([1.0, 6.0]))
    np.testing.assert_allclose(out.states.v[-1], [8.0, 8.0], atol=1e-9)
    # Where x1 slides its production balances the decay: rate lam (1 − lam3) = decay x1.
    np.testing.assert_allclose(
        40 * (1 - out.details.multipliers[0][-1, 2:, 0]), [36.0, 12.0], rtol=1e-6
    )
