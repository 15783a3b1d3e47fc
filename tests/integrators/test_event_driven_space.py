"""Coulomb friction in space under the reference: slips that turn, stop, begin and end in rolling."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly

from diffnsd import RESULTS, EventDriven, Interaction, Model, SaveAt, State, simulate
from diffnsd.groups import rotate
from diffnsd.laws import CoulombFriction
from diffnsd.relations import NodesHalfSpace, sphere_on_plane
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem

REFERENCE = EventDriven()
G = 9.81


def point(mu, force):
    """A point of 1 kg above the plane z = 0."""
    system = LagrangianSystem(jnp.eye(3), f_ext=force)
    plane = NodesHalfSpace([[0, 1, 2]], [0.0, 0.0, 1.0])
    return Model(system, Interaction(plane, CoulombFriction(mu)))


def last(model, start, until, steps=1):
    """The last state, and whether all went well."""
    dt = until / steps
    out = simulate(model, REFERENCE, 0.0, until, dt, start, saveat=SaveAt.end(), throw=False)
    return out.states, out.result == RESULTS.successful


def end(model, start, until):
    state, ok = last(model, start, until)
    return jnp.concatenate([state.q, state.v]), ok


def with_slopes(run, mode=jax.jacfwd):
    """`x -> (derivative, run(x))` of `run(x) -> (value, ok)`, in one program."""

    def twice(x):
        value, ok = run(x)
        return value, (value, ok)

    return eqx.filter_jit(mode(twice, has_aux=True))


# ---------------------------------------------------------------- a slope, down along x


def _weight(t, slope):
    del t
    return G * jnp.stack([jnp.sin(slope), 0 * slope, -jnp.cos(slope)])


def slides(x, until=3.0):
    mu, slope, along, across = x
    model = point(mu, jax.tree_util.Partial(_weight, slope=slope))
    start = State(jnp.zeros(3), jnp.stack([along, across, 0 * mu]))
    return end(model, start, until)


@pytest.fixture(scope="module")
def slope_program():
    return with_slopes(slides)


def _curve(x):
    """`u = tan(φ / 2)` of the angle φ between slip and descent at the start, and `C`, `k`, `g sin α`.

    From `v' = g sin α (cos φ − k)` and `v φ' = −g sin α sin φ`, with `k = mu / tan α`:

        v = C u^k / sin φ,     dt = −C / (2 g sin α) u^(k − 2) (1 + u²) du
    """
    mu, slope, along, across = x
    k, fast = mu / jnp.tan(slope), jnp.hypot(along, across)
    u = jnp.tan(jnp.arctan2(across, along) / 2)
    return u, 2 * fast / (u ** (k - 1) * (1 + u * u)), k, G * jnp.sin(slope)


def curve_exactly(x, stops, until=3.0):
    """It stops where `u = 0`."""
    u0, c, k, g = _curve(x)

    def between(u, power):
        return (u0**power - u**power) / power

    def late(u):
        return c / (2 * g) * (between(u, k - 1) + between(u, k + 1)) - until

    u, v = jnp.zeros(()), jnp.zeros(2)
    if not stops:
        low, high = u, jax.lax.stop_gradient(u0)
        for _ in range(60):
            middle = (low + high) / 2
            after = jax.lax.stop_gradient(late(middle)) > 0
            low, high = jnp.where(after, middle, low), jnp.where(after, high, middle)
        # One step of Newton's method gives the root its derivative.
        u = high + late(high) / (c / (2 * g) * high ** (k - 2) * (1 + high * high))
        v = c * jnp.stack([u ** (k - 1) * (1 - u * u) / 2, u**k])
    place = c * c / (4 * g) * (between(u, 2 * k - 2) - between(u, 2 * k + 2))
    aside = c * c / (2 * g) * (between(u, 2 * k - 1) + between(u, 2 * k + 1))
    zero = jnp.zeros(())
    return jnp.stack([place, aside, zero, *v, zero])


@pytest.mark.nightly
@pytest.mark.parametrize("k", [0.3, 0.7, 1.3, 2.5, 6.0])
def test_a_curve_on_a_slope(slope_program, k):
    """Thrown across and upwards; it curves downhill, and stops if `k > 1`."""
    slope = 0.2
    x = jnp.array([k * np.tan(slope), slope, -0.3, 0.9])
    found, (value, ok) = slope_program(x)
    assert ok
    # Measured: values at most 1.2e-13; slopes 5e-12 where it goes on, of 41, and 4e-10 where it stops.
    exact = functools.partial(curve_exactly, stops=k > 1)
    np.testing.assert_allclose(value, exact(x), rtol=0, atol=1e-12)
    known = eqx.filter_jit(jax.jacfwd(exact))(x)
    np.testing.assert_allclose(found, known, rtol=0, atol=1e-9)


@pytest.mark.nightly
def test_a_block_stops_on_the_level(slope_program):
    def exact(x):
        mu, along, across = x
        fast = jnp.hypot(along, across)
        way, zero = fast / (2 * mu * G), 0 * mu
        return jnp.stack([way * along, way * across, zero, zero, zero, zero])

    for along, across in ((1.2, -0.5), (-2.0, 0.0), (-0.1, 3.0)):
        found, (value, ok) = slope_program(jnp.array([0.3, 0.0, along, across]))
        x = jnp.array([0.3, along, across])
        assert ok
        # Measured: 6e-17 and 7e-16.
        np.testing.assert_allclose(value, exact(x), rtol=0, atol=1e-12)
        known = jax.jacfwd(exact)(x)
        np.testing.assert_allclose(found[:, np.array([0, 2, 3])], known, rtol=0, atol=1e-11)


@pytest.mark.nightly
@pytest.mark.parametrize("k", [1.5, 3.0, 8.0])
def test_variations_across_a_straight_way(slope_program, k):
    """Straight down until it stops: a variation across fades as `(t* − t)^(k / (k − 1))`."""
    slope, fast = 0.2, 1.0
    found, (_, ok) = slope_program(jnp.array([k * np.tan(slope), slope, fast, 0.0]))
    assert ok
    # Measured: 2e-15.
    known = fast / (G * np.sin(slope) * (2 * k - 1))
    np.testing.assert_allclose(found[1, 3], known, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("k", [0.6, 1.5])
def test_up_a_slope_and_down_again(slope_program, k):
    """Straight up, where it stays if `k > 1`."""
    slope, fast, until = 0.2, 1.0, 3.0
    found, (value, ok) = slope_program(jnp.array([k * np.tan(slope), slope, -fast, 0.0]))
    assert ok
    g = G * np.sin(slope)
    stops = fast / (g * (1 + k))
    back = max(0.0, g * (1 - k)) * (until - stops)
    known = [-fast * stops / 2 + back * (until - stops) / 2, 0, 0, back, 0, 0]
    np.testing.assert_allclose(value, known, rtol=0, atol=1e-11)
    # Measured: 5e-11 of 0.23, from below the speed at which the slip counts as ended.
    np.testing.assert_allclose(found[1, 3], fast / (g * (2 * k + 1)), rtol=1e-8)


@pytest.mark.nightly
def test_reverse_mode(slope_program):
    """Curves with 50 to 70 steps of the solver, stops, and a way up and down again."""
    reverse = with_slopes(slides, jax.jacrev)
    for k, along, across in (
        (0.3, -0.3, 0.9),
        (0.7, -0.3, 0.9),
        (1.3, -0.3, 0.9),
        (2.5, -0.3, 0.9),
        (6.0, -0.3, 0.9),
        (1.5, 1.0, 0.0),
        (0.6, -1.0, 0.0),
    ):
        x = jnp.array([k * np.tan(0.2), 0.2, along, across])
        found, (_, ok) = reverse(x)
        known = slope_program(x)[0]
        assert ok
        # Measured: 1.4e-14 of 41 (2e-2 and more while reverse mode chose the solver's steps anew); of the
        # closed form as forward mode, see above.
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-11)
        if across:
            exact = functools.partial(curve_exactly, stops=k > 1)
            np.testing.assert_allclose(found, jax.jacrev(exact)(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("first", [nightly(jax.grad), jax.jacfwd])
def test_second_derivatives_are_refused(first):
    x = jnp.array([0.3, 0.2, -0.3, 0.9])
    with pytest.raises(ValueError, match="no second derivatives"):
        jax.eval_shape(jax.jacfwd(first(lambda x: slides(x)[0].sum())), x)


# ---------------------------------------------------------------- sticking, then sliding in a direction


def _pull(t, begins, rate, angle, mu):
    s = t - begins
    a = angle + rate * s
    d = jnp.stack([jnp.cos(a), jnp.sin(a), 0 * a])
    n = jnp.stack([-jnp.sin(a), jnp.cos(a), 0 * a])
    return (mu * G + 2 * s) * d + s * s * rate * n - jnp.array([0, 0, G])


def breaks_loose(x, until=2.0):
    """A force that gives the slip `s² (cos(θ + ω s), sin(θ + ω s))`, `s = t − t1`, and is less before."""
    begins, rate, angle, mu = x
    pull = jax.tree_util.Partial(_pull, begins=begins, rate=rate, angle=angle, mu=mu)
    return end(point(mu, pull), State(jnp.zeros(3), jnp.zeros(3)), until)


def breaks_loose_exactly(x, until=2.0):
    begins, rate, angle, _ = x
    s, zero = until - begins, 0 * begins

    def turned(a, along, aside):
        cos, sin = jnp.cos(a), jnp.sin(a)
        return jnp.stack([along * cos - aside * sin, along * sin + aside * cos])

    # The integral of `s² exp(i (θ + ω s))`.
    last = angle + rate * s
    place = turned(last, 2 * s / rate**2, 2 / rate**3 - s * s / rate)
    place = place - turned(angle, zero, 2 / rate**3)
    return jnp.stack([*place, zero, *turned(last, s * s, zero), zero])


@pytest.mark.nightly
def test_a_slip_begins_and_turns():
    run, exact = with_slopes(breaks_loose), eqx.filter_jit(jax.jacfwd(breaks_loose_exactly))
    for x in (
        [0.6, 1.5, 0.7, 0.3],
        [0.6, 0.2, 0.7, 0.3],
        [0.6, 4.0, -2.7, 0.3],
        [0.3, 1.5, 2.0, 1.0],
    ):
        found, (value, ok) = run(jnp.array(x))
        assert ok
        # Measured: at most 2e-13 and 2e-12.
        known = breaks_loose_exactly(jnp.array(x))
        np.testing.assert_allclose(value, known, rtol=0, atol=1e-11)
        np.testing.assert_allclose(found, exact(jnp.array(x)), rtol=0, atol=1e-10)


# ---------------------------------------------------------------- a ball


def rolls(x, until=1.2):
    """A ball falls on a plane with spin, slides, and rolls."""
    mu, radius, height, *fast, w1, w2, w3 = x
    system = NewtonEulerSystem(1.0, 0.4 * radius**2, gravity=(0.0, 0.0, -G))
    model = Model(system, Interaction(sphere_on_plane(radius), CoulombFriction(mu)))
    q = system.group.identity()
    place = jnp.stack([0 * mu, 0 * mu, radius + height])[None]
    q = eqx.tree_at(lambda q: q.position, q, place)
    v = jnp.stack([*fast, 0 * mu, w1, w2, w3])
    # Rolling by more than half a turn in a step leaves the chart of rotations.
    state, ok = last(model, State(q, v), until, steps=3)
    spin = rotate(state.q.orientation[0], state.v[3:])
    return jnp.concatenate([state.q.position[0], state.v[:3], spin]), ok


def rolls_exactly(x, until=1.2):
    mu, radius, height, v1, v2, w1, w2, w3 = x
    v, w = jnp.stack([v1, v2]), jnp.stack([w1, w2])
    lands, strikes = jnp.sqrt(2 * height / G), jnp.sqrt(2 * G * height)
    # The slip is `v + r (−w2, w1)`; friction changes it 7/2 times as fast as v.
    slip = v + radius * jnp.stack([-w[1], w[0]])
    speed = jnp.linalg.norm(slip)
    d = slip / speed
    place, v = lands * v, v - mu * strikes * d
    slides = 2 * (speed - 3.5 * mu * strikes) / (7 * mu * G)
    place = place + slides * v - mu * G * slides**2 / 2 * d
    v = v - mu * G * slides * d
    place = place + (until - lands - slides) * v
    zero = 0 * mu
    return jnp.stack([*place, radius, *v, zero, -v[1] / radius, v[0] / radius, w3])


@pytest.mark.nightly
def test_a_ball_lands_slides_and_rolls():
    """The slip at the contact keeps its direction and stops after `2 |u| / (7 mu g)`."""
    x = jnp.array([0.2, 0.3, 0.05, 2.0, -0.7, 3.0, -4.0, 1.5])
    value, ok = eqx.filter_jit(rolls)(x)
    assert ok
    # Measured: 2e-13.
    np.testing.assert_allclose(value, rolls_exactly(x), rtol=0, atol=1e-11)


def test_what_is_refused():
    system = NewtonEulerSystem(1.0, 0.1)
    plain = Model(system, Interaction(sphere_on_plane(0.1), CoulombFriction(0.3)))
    assert REFERENCE.supports(plain) is None
    rolling = sphere_on_plane(0.1, rolling=True)
    model = Model(system, Interaction(rolling, CoulombFriction(0.3)))
    assert "not CoulombFriction with 5 rows" in str(REFERENCE.supports(model))
