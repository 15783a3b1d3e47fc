"""Derivatives of first-order systems: closed forms first, then both modes, batches, recovered parameters.

States do not jump here, and where a multiplier acts on its own output at once (relative degree 0 or 1)
derivatives of plain steps converge to those of the motion. A relay of higher degree switches at the
end of a step: the derivative of its switching time is lost, as that of impact times is.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffnsd import (
    EulerMoreau,
    Interaction,
    Model,
    MoreauJean,
    SaveAt,
    ThetaGamma,
    ZeroOrderHold,
    simulate,
)
from diffnsd.laws import Complementarity, Relay
from diffnsd.relations import FirstOrderLinear, FirstOrderType1, OnPart
from diffnsd.systems import FirstOrderSystem, LagrangianSystem, SystemProduct

METHODS = {
    "fully implicit": EulerMoreau(theta=1.0),
    "Euler-Moreau": EulerMoreau(),
    "remembered input": EulerMoreau(theta=0.5, gamma=0.5),
    "theta-gamma": ThetaGamma(),
    "hold": ZeroOrderHold(),
}


def rectifier(parameters):
    """A capacitor charged through a diode and a resistance: `C v' = (E − v)^+ / R − v / S`.

    Parameters `R`, `C`, the source `E` and the load `S`.
    """
    r, c, source, load = parameters
    one = jnp.ones((1, 1))
    relation = FirstOrderLinear(one, one / c, one * r, -source * jnp.ones(1))
    return Model(
        FirstOrderSystem.linear(-one / (load * c)), Interaction(relation, Complementarity())
    )


def charge(parameters, method, steps, end=1.0):
    """The voltage at the end, from zero."""
    model = rectifier(parameters)
    saved = SaveAt.end()
    return simulate(
        model, method, 0.0, end, end / steps, model.system.state([0.0]), saveat=saved
    ).states.v[0]


def charged(parameters, end=1.0):
    """The same in closed form."""
    r, c, source, load = parameters
    rate = (1 / r + 1 / load) / c
    return source / r / (c * rate) * (1 - jnp.exp(-rate * end))


AT = jnp.array([0.8, 0.5, 2.0, 3.0])


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_derivatives_converge_to_those_of_the_motion(name):
    """By resistance, capacitance, source and load."""
    method = METHODS[name]
    exact = jax.grad(charged)(AT)
    found = [eqx.filter_jit(jax.grad(charge))(AT, method, n) for n in (40, 160)]
    errors = [np.max(np.abs(x - exact)) for x in found]
    # Measured orders 1.0 and 2.0: a factor of 4 or 16.
    assert errors[1] < errors[0] / (3.6 if method.order == 1 else 14)
    assert errors[1] < (2e-2 if method.order == 1 else 1e-4)


@pytest.mark.slow
def test_derivatives_of_a_relay_before_and_after_it_slides():
    """`x' = −a Sgn(x) + b`: `x = x0 − (a − b) t` until it slides; then `x = 0` and `lam = −b / a`."""

    def run(parameters, end):
        x0, a, b = parameters
        relation = FirstOrderLinear(jnp.ones((1, 1)), a * jnp.ones((1, 1)))
        system = FirstOrderSystem.linear(jnp.zeros((1, 1)), b * jnp.ones(1))
        model = Model(system, Interaction(relation, Relay()))
        out = simulate(model, EulerMoreau(), 0.0, end, 0.0625, system.state(x0[None]))
        return jnp.stack([out.states.v[-1, 0], out.details.multipliers[0][-1, 0, 0]])

    at = jnp.array([1.0, 2.0, 0.5])
    for derivative in (jax.jacfwd, jax.jacrev):
        early, late = (eqx.filter_jit(derivative(run))(at, end) for end in (0.5, 1.0))
        np.testing.assert_allclose(early, [[1.0, -0.5, 0.5], [0.0, 0.0, 0.0]], atol=1e-14)
        np.testing.assert_allclose(late, [[0.0, 0.0, 0.0], [0.0, 0.125, -0.5]], atol=1e-12)


def gene(thresholds, rate=40.0, steps=40, method=EulerMoreau()):  # noqa: B008
    """Concentrations of a gene network that comes to slide along its upper thresholds."""

    def output(t, x):
        return thresholds - x[np.array([0, 1, 0, 1])]

    def production(t, lam):
        return rate * jnp.stack([(1 - lam[2]) * lam[1], lam[0] * (1 - lam[3])])

    def decay(t, x, args):
        return x * np.array([-4.5, -1.5])

    relation = FirstOrderType1(output, production, 4)
    system = FirstOrderSystem(decay, n=2)
    model = Model(system, Interaction(relation, Relay(0.0, 1.0)))
    return simulate(model, method, 0.0, steps * 5e-3, 5e-3, system.state([7.0, 7.2])).states.v


THRESHOLDS = jnp.array([4.0, 4.0, 8.0, 8.0]) * 0.99


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["theta-gamma", "Euler-Moreau", "remembered input"])
def test_both_modes_batches_and_differences_of_a_nonlinear_relation(name):
    """Bilinear input: events stay in their steps for such small changes of the thresholds."""

    def loss(thresholds):
        return jnp.sum(gene(thresholds, method=METHODS[name]) ** 2) / 100

    program = eqx.filter_jit(lambda x: (jax.grad(loss)(x), jax.jacfwd(loss)(x)))
    reverse, forward = program(THRESHOLDS)
    np.testing.assert_allclose(reverse, forward, rtol=1e-11, atol=1e-12)
    assert np.max(np.abs(forward)) > 0.1
    value, step = eqx.filter_jit(jax.vmap(loss)), 1e-5
    near = value(THRESHOLDS[None] + step * np.concatenate([np.eye(4), -np.eye(4)]))
    difference = (near[:4] - near[4:]) / (2 * step)
    np.testing.assert_allclose(forward, difference, rtol=1e-6, atol=1e-6)
    batched = eqx.filter_jit(jax.vmap(jax.grad(loss)))(jnp.stack([THRESHOLDS, 1.01 * THRESHOLDS]))
    np.testing.assert_allclose(batched[0], reverse, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_derivatives_of_derivatives():
    """Second derivatives, forward over reverse, against the closed form."""
    exact = jax.hessian(charged)(AT)
    found = eqx.filter_jit(
        jax.hessian(charge),
    )(AT, ThetaGamma(), 200)
    np.testing.assert_allclose(found, exact, atol=2e-4 * np.max(np.abs(exact)))


def recover(residual, start, passes=12):
    """Gauss-Newton, each pass a Jacobian through the simulation."""
    step = eqx.filter_jit(jax.jacfwd(lambda x: (r := residual(x), r), has_aux=True))
    for _ in range(passes):
        jacobian, r = step(start)
        start = start - jnp.linalg.lstsq(jacobian, r)[0]
    return start


def test_resistance_and_capacitance_from_a_waveform():
    def voltage(parameters):
        model = rectifier(jnp.stack([*parameters, jnp.array(2.0), jnp.array(3.0)]))
        return simulate(model, ThetaGamma(), 0.0, 1.0, 0.02, model.system.state([0.0])).states.v[
            :, 0
        ]

    truth = jnp.array([0.8, 0.5])
    data = voltage(truth)
    found = recover(lambda p: voltage(p) - data, jnp.array([1.1, 0.35]))
    np.testing.assert_allclose(found, truth, rtol=1e-9)


@pytest.mark.nightly
def test_thresholds_of_a_gene_network_from_its_motion():
    """Those along which it slides; the others are crossed, and not even that here."""
    data = gene(THRESHOLDS)

    def residual(upper):
        return (gene(jnp.concatenate([THRESHOLDS[:2], upper])) - data).reshape(-1)

    found = recover(residual, THRESHOLDS[2:] * jnp.array([1.01, 0.98]))
    np.testing.assert_allclose(found, THRESHOLDS[2:], rtol=1e-9)


def test_the_gain_of_a_relay_from_its_motion():
    """Until it sticks, the deceleration is the gain: the threshold of dry friction."""

    def motion(gain):
        system = FirstOrderSystem.linear([[0.0, 1.0], [-1.0, 0.0]])
        relation = FirstOrderLinear([[0.0, 1.0]], [[0.0], [1.0]])
        model = Model(system, Interaction(relation, Relay(-gain, gain)))
        return simulate(model, EulerMoreau(), 0.0, 12.0, 0.02, system.state([6.0, 1.0])).states.v

    data = motion(jnp.array(0.7))
    found = recover(lambda g: (motion(g[0]) - data).reshape(-1), jnp.array([0.9]))
    np.testing.assert_allclose(found, 0.7, rtol=1e-9)


@pytest.mark.nightly
def test_the_switching_time_of_a_relay_of_degree_two_is_lost():
    """`x1' = x2`, `x2' = lam`, `lam ∈ −Sgn(x1)`: known, so that nobody forgets it.

    From `(1, −1/2)` with `lam = −1` the first switch comes at `t1 = −1/2 + sqrt(1/4 + 2) = 1`; a
    step holds `lam` at one of its bounds, whatever part of it lies behind the switch.
    """

    def run(x0):
        system = FirstOrderSystem.linear([[0.0, 1.0], [0.0, 0.0]])
        relation = FirstOrderLinear([[1.0, 0.0]], [[0.0], [1.0]])
        model = Model(system, Interaction(relation, Relay()))
        state = system.state(jnp.stack([x0, -jnp.ones_like(x0) / 2]))
        out = simulate(model, EulerMoreau(), 0.0, 1.5, 0.01, state)
        return out.states.v[-1, 1], out

    def exact(x0):
        first = -0.5 + jnp.sqrt(0.25 + 2 * x0)
        return -0.5 - first + (1.5 - first)

    (value, out), slope = jax.value_and_grad(run, has_aux=True)(jnp.array(1.003))
    assert int(out.stats.turned.sum()) == 1
    np.testing.assert_allclose(value, exact(1.003), atol=2e-2)
    assert abs(jax.grad(exact)(1.003)) > 1.3
    assert abs(slope) < 1e-10


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("start", "drive", "bounds", "switches"),
    [(-1.0, 2.3, (-0.9, 0.9), 1), (-1.0, 2.3, (0.0, 1.5), 1), (-1.0, 0.5, (-0.9, 0.9), 0)],
    ids=["crossed", "crossed, on and off", "slides"],
)
def test_a_plain_scheme_says_that_a_relay_switched(name, start, drive, bounds, switches):
    """`x' = b + lam`, `lam` a relay of `x`: it is crossed where the drive is stronger.

    `ThetaGamma` with `gamma = 1/2` steps over a surface on which it then slides, and its derivative with it.
    """
    switches |= name == "theta-gamma"
    relation = FirstOrderLinear(jnp.ones((1, 1)), jnp.ones((1, 1)))
    system = FirstOrderSystem.linear(jnp.zeros((1, 1)), drive * jnp.ones(1))
    model = Model(system, Interaction(relation, Relay(*bounds)))
    out = simulate(model, METHODS[name], 0.0, 1.4, 0.02, system.state([start]))
    assert int(out.stats.turned.sum()) == switches
    assert ("a relay switched (1 times" in out.message) == (switches == 1)


def test_a_diode_that_opens_is_no_switch():
    """Its current goes continuously to zero, also where its law is written as a relay without upper bound."""

    def source(t):
        return jnp.sin(8.0 * t)[None]

    system = FirstOrderSystem(lambda t, x, args: source(t) - x, n=1)
    for law in (Complementarity(), Relay(0.0, jnp.inf)):
        relation = FirstOrderLinear(jnp.ones((1, 1)), jnp.ones((1, 1)))
        out = simulate(
            Model(system, Interaction(relation, law)),
            EulerMoreau(),
            0.0,
            2.0,
            0.01,
            system.state([0.0]),
        )
        assert np.ptp(out.details.multipliers[0]) > 0.5 and out.message == ""


def test_beside_a_mechanism_a_relay_switches_and_a_diode_does_not_strike():
    """In a product under a mechanical scheme; the voltage of the diode has a peak of a step."""
    block = LagrangianSystem(jnp.eye(1))
    driven = FirstOrderSystem.linear(jnp.zeros((1, 1)), 2.3 * jnp.ones(1))
    blocked = FirstOrderSystem(
        lambda t, x, args: jnp.where(abs(t - 0.52) > 0.01, -1.0, -50.0)[None] - x, n=1
    )
    own = FirstOrderLinear(jnp.ones((1, 1)), jnp.ones((1, 1)))
    system = SystemProduct((block, driven, blocked))
    switched = Interaction(OnPart(system, 1, own), Relay(-0.9, 0.9))
    model = Model(system, [switched, Interaction(OnPart(system, 2, own), Complementarity())])
    parts = block.state([0.0], [1.0]), driven.state([-1.0]), blocked.state([0.0])
    out = simulate(model, MoreauJean(theta=1.0), 0.0, 1.4, 0.02, system.state(*parts))
    assert np.max(out.impulses[1]) > 10 * np.median(out.impulses[1]) > 0
    assert int(out.stats.turned.sum()) == 1 and int(out.stats.struck.sum()) == 0
