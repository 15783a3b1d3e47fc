"""Integrals along a motion, times of impacts and of events, against closed forms of a bouncing ball."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly

import diffnsd as nsd

G, END = 9.81, 0.8
PARAMETERS = jnp.array([1.0, 0.8])  # height and restitution: impacts at 0.4515 s and 1.1739 s


def height(t, q):
    return q


def ball(p):
    system = nsd.LagrangianSystem([[1.0]], f_ext=[-G])
    ground = nsd.Interaction(nsd.GapRelation(height), nsd.NewtonImpact(p[1]))
    return nsd.Model(system, ground), system.state(p[:1])


def squared_speed(t, state, args):
    return state.v[0] ** 2


def speed_and_time(t, state, args):
    return jnp.stack([state.v[0], t])


SQUARE, BOTH = nsd.Integral(squared_speed), nsd.Integral(speed_and_time)


def run(p, method, h, **options):
    model, start = ball(p)
    options = {"saveat": nsd.SaveAt.end()} | options
    return nsd.simulate(model, method, 0.0, END, h, start, **options)


def exact(p):
    """`∫ v² dt`, `∫ v dt` and `∫ t dt` up to `END`, in closed form."""
    q0, e = p
    fall = np.sqrt(2 * q0 / G)
    rest, up = END - fall, e * G * fall
    square = G**2 * fall**3 / 3 + up**2 * rest - up * G * rest**2 + G**2 * rest**3 / 3
    return np.array([square, up * rest - G * rest**2 / 2 - q0, END**2 / 2])


def slopes_of(function, p):
    """Derivatives of a closed form by complex steps."""
    p = np.asarray(p, complex)
    return np.stack(
        [function(p + 1e-30j * np.eye(len(p))[i]).imag / 1e-30 for i in range(len(p))], -1
    )


def with_slopes(function, p):
    """Values and their derivatives, from one program."""

    def twice(p):
        value = function(p)
        return value, value

    jacobian, value = jax.jacfwd(twice, has_aux=True)(p)
    return value, jacobian


def quickly_with_slopes(function, p):
    """The same, where nothing else shares the program."""
    return eqx.filter_jit(lambda p: with_slopes(function, p))(p)


LOCATED = nsd.Located(nsd.MoreauJean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "bounds"),
    [
        (LOCATED, (5e-6, 5e-6)),  # measured: 2.6e-5 in value
        nightly(nsd.EventDriven(), (1e-11, 1e-10)),
        (nsd.Corrected(nsd.MoreauJean()), (2e-2, 2e-2)),
    ],
    ids=["Located", "EventDriven", "Corrected"],
)
def test_integrals_see_the_jump_inside_a_step(method, bounds):
    def integrals(p):
        square, both = run(p, method, 1e-3, integrals=(SQUARE, BOTH)).integrals
        return jnp.concatenate([square[None], both])

    value, jacobian = quickly_with_slopes(integrals, PARAMETERS)
    truth, slopes = exact(np.asarray(PARAMETERS)), slopes_of(exact, PARAMETERS)
    np.testing.assert_allclose(value, truth, atol=bounds[0] * 10)
    np.testing.assert_allclose(jacobian, slopes, atol=bounds[1] * 10)
    if method is LOCATED:
        np.testing.assert_allclose(
            eqx.filter_jit(jax.jacrev(integrals))(PARAMETERS), jacobian, rtol=1e-9, atol=1e-9
        )


def large(t, state, args):
    return 1e9 * state.v[0] ** 2


@pytest.mark.slow
@pytest.mark.parametrize("integral", [SQUARE, nsd.Integral(large)], ids=["small", "large"])
def test_the_motion_is_the_same_with_and_without(integral):
    alone = run(PARAMETERS, LOCATED, 1e-2, saveat=nsd.SaveAt())
    both = run(PARAMETERS, LOCATED, 1e-2, saveat=nsd.SaveAt(), integrals=integral)
    np.testing.assert_allclose(both.states.q, alone.states.q, rtol=0, atol=1e-14)
    np.testing.assert_allclose(both.impulses[0], alone.impulses[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(both.energy.total, alone.energy.total, rtol=1e-14)
    assert both.integrals[0].shape == (81,)
    assert both.integrals[0][0] == 0


def test_integrals_of_a_circuit():
    """The charge through a resistor that discharges a capacitor."""
    circuit = nsd.FirstOrderSystem.linear([[-2.0]])
    solution = nsd.simulate(
        nsd.Model(circuit), nsd.EulerMoreau(), 0.0, 1.0, 1e-3, circuit.state([3.0]),
        integrals=nsd.Integral(lambda t, state, args: 2 * state.v[0]),
    )  # fmt: skip
    np.testing.assert_allclose(solution.integrals[0], 3 * (1 - np.exp(-2 * solution.ts)), atol=1e-6)
    assert solution.states.q is None
    assert solution.states.v.shape == (1001, 1)


@pytest.mark.slow
def test_integrals_beside_a_tossed_cube():
    """Many contacts, friction, `max_active`: ∫ v dt is the displacement."""
    model = nsd.models.tossed_cube()
    start = model.system.state((0.0, 0.0, 0.2), velocity=(1.0, 0.3, -1.0))

    def velocity(t, state, args):
        return state.v[:3]

    solution = nsd.simulate(
        model, nsd.MoreauJean(theta=1.0), 0.0, 0.3, 1e-2, start, integrals=nsd.Integral(velocity)
    )
    moved = solution.states.q.position[:, 0] - start.q.position
    assert solution.impulses[0][..., 0].max() > 0
    np.testing.assert_allclose(solution.integrals[0], moved, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [LOCATED, nsd.Corrected(nsd.MoreauJean())], ids=["Located", "Corrected"]
)
def test_impulses_have_the_derivative_of_the_motion(method):
    """So have gaps and energies. At fixed steps the impulse, for one, would have no part of `q0`."""

    def derived(p):
        end = run(p, method, 1e-2)
        return jnp.stack([end.impulses[0][0, 0], end.gaps[0][0], end.energy.kinetic])

    def closed_form(p):
        fall = np.sqrt(2 * p[0] / G)
        up, rest = p[1] * G * fall, END - fall
        return np.array(
            [(1 + p[1]) * G * fall, up * rest - G * rest**2 / 2, (up - G * rest) ** 2 / 2]
        )

    value, jacobian = quickly_with_slopes(derived, PARAMETERS)
    exact, truth = closed_form(np.asarray(PARAMETERS)), slopes_of(closed_form, PARAMETERS)
    np.testing.assert_allclose(jacobian, truth, rtol=1e-9)
    np.testing.assert_allclose(value, exact, atol=1e-10 if method is LOCATED else 0.1)


def switched(p, end=1.8):
    """Where `x'' = −sgn(x)` ends that starts at rest at `p`: it has crossed zero once."""
    crosses = np.sqrt(2 * p)
    rest = end - crosses
    return -crosses * rest + rest**2 / 2


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [nsd.Located, nightly(nsd.Corrected)])
def test_details_have_the_derivative_of_the_motion(wrap):
    """The output of a relay that has switched; at fixed steps the derivative of its time would be missing."""
    system = nsd.FirstOrderSystem.linear([[0.0, 1.0], [0.0, 0.0]])
    switch = nsd.Interaction(nsd.FirstOrderLinear([[1.0, 0.0]], [[0.0], [1.0]]), nsd.Relay())
    model, method = nsd.Model(system, switch), wrap(nsd.EulerMoreau())

    def output(p):
        start = nsd.State(None, jnp.stack([p, jnp.zeros_like(p)]))
        end = nsd.simulate(model, method, 0.0, 1.8, 1e-2, start, saveat=nsd.SaveAt.end())
        return end.details.outputs[0][0, 0]

    value, slope = quickly_with_slopes(output, jnp.array(0.52))
    np.testing.assert_allclose(value, switched(0.52), atol=3e-2)  # first order
    np.testing.assert_allclose(slope, switched(0.52 + 1e-30j).imag / 1e-30, rtol=1e-9)


def times_of(p):
    fall = np.sqrt(2 * p[0] / G)
    return np.array([fall, fall * (1 + 2 * p[1])])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [LOCATED, nightly(nsd.EventDriven())], ids=["Located", "EventDriven"]
)
def test_times_of_impacts(method):
    def times(p):
        model, start = ball(p)
        return nsd.simulate(
            model, method, 0.0, 1.2, 1e-2, start, saveat=nsd.SaveAt.end(impacts=3)
        ).impact_times

    value, jacobian = quickly_with_slopes(times, PARAMETERS)
    np.testing.assert_allclose(value[:2], times_of(PARAMETERS), rtol=1e-10)
    assert value[2] == np.inf
    np.testing.assert_allclose(jacobian[:2], slopes_of(times_of, PARAMETERS), atol=1e-9)
    if method is LOCATED:
        reverse = eqx.filter_jit(jax.jacrev(lambda p: times(p)[:2]))(PARAMETERS)
        np.testing.assert_allclose(reverse, jacobian[:2], atol=1e-9)


def above(t, state, args):
    return state.q[0] - args


def event_of(p):
    """When and how fast the ball comes back to half a metre... after the first impact, at `args`."""
    fall = np.sqrt(2 * p[0] / G)
    up = p[1] * G * fall
    late = (up - np.sqrt(up**2 - 2 * G * p[2])) / G
    return np.array([fall + late, up - G * late])


def point_of(h):
    """The second crossing of a height, in 20 steps."""

    def point(p):
        model, start = ball(p)
        begin = 0.4  # after the first crossing, before the impact
        start = nsd.State(start.q - G * begin**2 / 2, start.v - G * begin)
        event = nsd.Event(rising, locate=True)
        solution = nsd.simulate(model, LOCATED, begin, begin + 20 * h, h, start, p[2], event=event)
        return jnp.stack([solution.event.t, solution.event.state.v[0]])

    return point


AT = jnp.array([1.0, 0.8, 0.02])


@pytest.mark.nightly
def test_reverse_mode_of_an_event():
    jacobian = eqx.filter_jit(jax.jacrev(point_of(1e-2)))(AT)
    np.testing.assert_allclose(jacobian, slopes_of(event_of, AT), rtol=1e-8, atol=1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize("h", [1e-2, 8e-2])
def test_time_and_state_of_an_event(h):
    """At the larger step the impact is in the step of the event."""
    p = AT
    value, jacobian = with_slopes(point_of(h), p)
    np.testing.assert_allclose(value, event_of(p), rtol=1e-10)
    np.testing.assert_allclose(jacobian, slopes_of(event_of, p), rtol=1e-8, atol=1e-9)


def rising(t, state, args):
    """Negative while the ball falls, and below a height."""
    return jnp.where(state.v[0] < 0, -1.0, state.q[0] - args)


def falling(t, state, args):
    return state.v[0]


@pytest.mark.nightly
def test_an_event_at_an_impact():
    """The condition jumps with the velocity: there is no root, and the time is that of the impact."""

    def time(q0):
        event = nsd.Event(falling, locate=True)
        return run(jnp.stack([q0, jnp.array(0.8)]), LOCATED, 1e-2, event=event).event.t

    value, slope = quickly_with_slopes(time, jnp.array(1.0))
    np.testing.assert_allclose(value, np.sqrt(2 / G), rtol=1e-10)
    np.testing.assert_allclose(slope, 1 / np.sqrt(2 * G), rtol=1e-9)


def late(t, state, args):
    return t - args


@pytest.mark.nightly
def test_single_precision():
    model, start = ball(PARAMETERS)
    arrays, rest = eqx.partition((model, start), eqx.is_inexact_array)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), arrays)
    model, start = eqx.combine(single, rest)
    solution = nsd.simulate(
        model, LOCATED, 0.0, END, 1e-2, start, jnp.float32(0.595),
        integrals=SQUARE, saveat=nsd.SaveAt(impacts=1), event=nsd.Event(late, locate=True),
    )  # fmt: skip
    found = solution.integrals[0], solution.impact_times, solution.event.t, solution.states.v
    assert all(x.dtype == jnp.float32 for x in found)
    np.testing.assert_allclose(solution.impact_times, times_of(PARAMETERS)[:1], rtol=1e-5)
    np.testing.assert_allclose(solution.event.t, 0.595, rtol=1e-6)
    assert 0 < solution.event.integrals[0] < solution.integrals[0][-1]


@pytest.mark.nightly
def test_an_event_that_does_not_happen():
    event = nsd.Event(above, locate=True)
    solution = run(PARAMETERS, LOCATED, 1e-2, event=event, integrals=SQUARE, args=-1.0)
    assert solution.event.t == END
    np.testing.assert_array_equal(solution.event.state.v, solution.states.v)


@pytest.mark.slow
def test_what_is_refused():
    with pytest.raises(TypeError, match="integrals must be an Integral"):
        run(PARAMETERS, LOCATED, 1e-2, integrals=(squared_speed,))
    with pytest.raises(ValueError, match="boolean or integer condition has no time"):
        run(PARAMETERS, LOCATED, 1e-2, event=nsd.Event(lambda t, s, a: s.q[0] < 0, locate=True))
    with pytest.raises(ValueError, match="impacts"):
        nsd.SaveAt(impacts=-1)
    with pytest.raises(ValueError, match="MoreauJean does not locate impacts"):
        run(PARAMETERS, nsd.MoreauJean(), 1e-2, saveat=nsd.SaveAt.end(impacts=1))
    sampled = nsd.control.Sampled(nsd.MoreauJean(), nsd.control.PID(1.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="controller, which would see the integrals"):
        run(PARAMETERS, sampled, 1e-2, integrals=SQUARE)
    with pytest.raises(ValueError, match="a step is shortened, and SchatzmanPaoli"):
        run(PARAMETERS, nsd.SchatzmanPaoli(), 1e-2, event=nsd.Event(above, locate=True), args=0.0)
