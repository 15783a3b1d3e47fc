"""Adaptive steps of methods without an embedded pair: impacts that crowd, smooth motion, switches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import KNOWN_MOTIONS, read, unchanged

from diffnsd import (
    RESULTS,
    RKMK,
    Adaptive,
    ButcherTableau,
    Corrected,
    EulerMoreau,
    Located,
    Model,
    MoreauJean,
    SaveAt,
    State,
    models,
    simulate,
)
from diffnsd.systems import FirstOrderSystem

G = 9.81


def bounce(e, end, method):
    """A ball from 1 m, in grid steps of 0.1 s."""
    start = State(jnp.array([1.0]), jnp.array([0.0]))
    kept = SaveAt(impacts=40)
    return simulate(models.bouncing_ball(e), method, 0.0, end, 0.1, start, saveat=kept, throw=False)


def impact_times(e, count):
    first = np.sqrt(2 / G)
    return first * (1 + 2 * np.cumsum(np.concatenate([[0.0], e ** np.arange(1.0, count)])))


def test_a_bounce_sequence_is_followed_to_the_tolerance():
    """Rebounds of 1e-6 m/s are located; `Located` alone calls that of 2.2 m/s none at this length."""
    method = Located(MoreauJean())
    out = eqx.filter_jit(lambda e: bounce(e, 1.4, Adaptive(method, 1e-6)))(0.5)
    times = np.asarray(out.impact_times)
    times = times[np.isfinite(times)]
    assert out.message == "" and len(times) > 15
    np.testing.assert_allclose(times, impact_times(0.5, len(times)), atol=1e-12)  # measured 5e-16
    assert abs(out.states.q[-1, 0]) < 1e-12 and abs(out.states.v[-1, 0]) < 1e-9
    assert np.sum(np.isfinite(bounce(0.5, 1.4, method).impact_times)) == 1


@pytest.mark.slow
def test_derivatives_through_impacts():
    """The height at 1.2 s, after two impacts, by the restitution; closed form of free flight."""

    def end(e):
        return bounce(e, 1.2, Adaptive(Located(MoreauJean()), 1e-6)).states.q[-1, 0]

    def exact(e):
        first = jnp.sqrt(2 / G)
        speed, t = G * first * e, 1.2 - first
        t, speed = t - 2 * speed / G, e * speed
        return speed * t - G * t**2 / 2

    second, third = impact_times(0.6, 3)[1:]
    assert second < 1.2 < third
    for derivative in (jax.jacfwd, jax.jacrev):
        both = jnp.array([0.6, 0.65])  # which take different numbers of steps
        found = eqx.filter_jit(jax.vmap(derivative(end)))(both)
        np.testing.assert_allclose(found, jax.vmap(derivative(exact))(both), rtol=1e-10)


@pytest.mark.slow
def test_a_pendulum_at_a_wall():
    """Errors fall with the tolerance; measured 6.8e-5 and 2.1e-4 at 1e-6 (value, derivative)."""
    motion = KNOWN_MOTIONS["pendulum at a wall"]
    value, known = motion.known()

    def end(x, tolerance):
        model, state = motion.build(x, unchanged)
        method = Adaptive(Located(MoreauJean()), tolerance)
        out = simulate(model, method, 0.0, motion.end, motion.end / 4, state, saveat=SaveAt.end())
        return read(out.states), read(out.states)

    for tolerance, bars in ((1e-4, (5e-3, 1e-2)), (1e-7, (5e-5, 2e-4))):
        run = eqx.filter_jit(jax.jacfwd(lambda x, tol=tolerance: end(x, tol), has_aux=True))
        slopes, found = run(jnp.asarray(motion.x))
        for got, wanted, bar in zip((found, slopes), (value, known), bars, strict=True):
            assert np.max(np.abs(got - wanted)) < bar * np.max(np.abs(wanted))


def test_smooth_first_order_systems():
    """An oscillator under backward Euler, whose errors of 1e-6 a step add up to about 1e-3."""
    system = FirstOrderSystem.linear([[0.0, 1.0], [-1.0, 0.0]])
    method = Adaptive(EulerMoreau(theta=1.0), 1e-6, max_steps=2000)
    out = simulate(Model(system), method, 0.0, 1.0, 1.0, system.state([1.0, 0.0]))
    np.testing.assert_allclose(out.states.v[-1], [np.cos(1.0), -np.sin(1.0)], atol=2e-3)
    assert int(out.stats.iterations[-1]) > 100
    out = simulate(Model(system), method, 0.0, 1.0, 0.1, system.state([1.0, 0.0]))
    assert out.message == ""  # what the weights lose is in the estimate


@pytest.mark.parametrize(
    "wrapped", [Located, Corrected, lambda inner: Adaptive(Located(inner), 1e-4)]
)
def test_float32_models_beside_float64(wrapped):
    model, start = models.bouncing_ball(0.5), State(jnp.array([1.0]), jnp.array([0.0]))
    model, start = jax.tree.map(
        lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, (model, start)
    )
    out = simulate(model, wrapped(MoreauJean()), 0.0, 1.0, 0.01, start, throw=False)
    assert out.result == RESULTS.successful and out.states.q.dtype == jnp.float32
    speed, t = 0.5 * np.sqrt(2 * G), 1.0 - impact_times(0.5, 2)[1]
    assert (
        abs(float(out.states.q[-1, 0]) - (speed / 2 * t - G * t**2 / 2)) < 0.02
    )  # plain values of `Corrected` 0.014, the others 1e-5


def test_what_cannot_be_adapted():
    start = State(jnp.array([1.0]), jnp.array([0.0]))
    for method, words in (
        (MoreauJean(), r"use Adaptive\(Located\(...\)\)"),
        (Corrected(MoreauJean()), "continues from the steps before"),
    ):
        with pytest.raises(ValueError, match=words):
            simulate(models.bouncing_ball(0.5), Adaptive(method), 0.0, 1.0, 0.1, start)
    few = bounce(0.5, 1.4, Adaptive(Located(MoreauJean()), 1e-6, max_steps=4))
    assert few.result == RESULTS.too_many_steps


def test_an_implicit_tableau_takes_halves():
    system = FirstOrderSystem.linear([[0.0, 1.0], [-1.0, 0.0]])
    method = Adaptive(RKMK(ButcherTableau.gauss(2)), 1e-10)
    out = simulate(Model(system), method, 0.0, 1.0, 1.0, system.state([1.0, 0.0]))
    np.testing.assert_allclose(out.states.v[-1], [np.cos(1.0), -np.sin(1.0)], atol=1e-8)
