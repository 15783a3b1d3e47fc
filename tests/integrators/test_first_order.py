"""Schemes of first-order systems against closed forms and against their own equations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly
from scipy.linalg import expm

from diffnsd import (
    RKMK,
    Auto,
    EulerMoreau,
    Interaction,
    Model,
    MoreauJean,
    Newton,
    SaveAt,
    ThetaGamma,
    ZeroOrderHold,
    simulate,
)
from diffnsd.diagnostics import first_order_residuals
from diffnsd.integrators import ButcherTableau
from diffnsd.laws import Complementarity, Equality, Mixed, Relay
from diffnsd.relations import (
    FirstOrderLinear,
    FirstOrderRelation,
    FirstOrderType1,
    FirstOrderType2,
    GapRelation,
)
from diffnsd.systems import FirstOrderSystem, LagrangianSystem

PRECISE = Newton(max_iterations=30, tolerance=1e-14)


def free(a, b=None, E=None):
    return Model(FirstOrderSystem.linear(a, b, E))


def conducting():
    """`x' = −x − lam`, `y = −x + lam / 2` with a diode that conducts: `lam = 2 x`, `x' = −3 x`."""
    relation = FirstOrderLinear([[-1.0]], [[-1.0]], [[0.5]])
    return Model(FirstOrderSystem.linear([[-1.0]]), Interaction(relation, Complementarity()))


def last(model, method, steps, x0, end=1.0, args=None):
    out = simulate(
        model, method, 0.0, end, end / steps, model.system.state(x0), args, saveat=SaveAt.end()
    )
    return np.asarray(out.states.v)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "order"),
    [
        (EulerMoreau(theta=1.0), 1),
        (EulerMoreau(theta=0.5), 1),
        (EulerMoreau(theta=0.5, gamma=0.5), 2),
        nightly(EulerMoreau(theta=0.7, gamma=0.5), 1),
        (ThetaGamma(theta=0.5, gamma=0.5), 2),
        (ThetaGamma(theta=1.0, gamma=1.0), 1),
        nightly(ZeroOrderHold(), 1),
    ],
    ids=str,
)
def test_order_with_a_conducting_diode(method, order):
    assert method.order == order
    errors = [abs(last(conducting(), method, n, [1.0])[0] - np.exp(-3.0)) for n in (80, 160, 320)]
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    # Measured 0.966 to 1.03 for order one and 2.000 for order two.
    np.testing.assert_allclose(slopes, order, atol=0.06)


def test_the_zero_order_hold_is_exact():
    """A linear system with constant input, singular `A` included: the exponential of Van Loan."""
    a = np.array([[0.0, 1.0, 0.0], [-4.0, -0.3, 0.0], [1.0, 0.0, 0.0]])
    b = np.array([0.5, 1.0, -2.0])
    big = np.zeros((4, 4))
    big[:3, :3], big[:3, 3] = a, b
    exact = (expm(1.7 * big) @ [1.0, 2.0, 3.0, 1.0])[:3]
    found = last(free(a, b), ZeroOrderHold(), 4, [1.0, 2.0, 3.0], 1.7)
    np.testing.assert_allclose(found, exact, atol=1e-13)  # measured 9e-16


def test_a_singular_e_is_an_algebraic_equation():
    """`x' = −z`, `0 = z − 2 x`: backward Euler of `x' = −2 x`."""
    model = free([[0.0, -1.0], [-2.0, 1.0]], None, [[1.0, 0.0], [0.0, 0.0]])
    x, z = last(model, EulerMoreau(theta=1.0), 50, [1.0, 2.0])
    np.testing.assert_allclose([x, z], (1 + 2 / 50) ** -50.0 * np.array([1, 2]), rtol=1e-13)


def test_e_and_inputs_of_time():
    """`(1 + t) x' = −x + u`: `x = u + (x0 − u) / (1 + t)`."""
    system = FirstOrderSystem.linear(
        [[-1.0]], E=lambda t: (1 + t) * jnp.ones((1, 1)), inputs=[[1.0]]
    )
    found = last(Model(system), EulerMoreau(theta=0.5), 400, [3.0], args=jnp.array([1.0]))
    np.testing.assert_allclose(found, [2.0], atol=3e-6)  # measured 6e-7, of second order


def test_runge_kutta_steps_a_system_without_interactions():
    model = free([[0.0, 1.0], [-1.0, 0.0]])
    found = last(model, RKMK(ButcherTableau.rk4()), 50, [1.0, 0.0])
    np.testing.assert_allclose(found, [np.cos(1.0), -np.sin(1.0)], atol=1e-8)


# The nonlinear problem of one step, with a relation whose input depends on the state.


def field(t, x, args):
    del args
    return jnp.stack([-x[0] + x[1] ** 2 / 4, jnp.sin(x[0]) - x[1] + t, -2 * x[2] + x[0] * x[1]])


def h(t, x, lam):
    return jnp.stack(
        [x[0] - x[1] + 0.8 * lam[0] + 0.1 * lam[1] ** 2 - t, x[2] + 0.3 * x[0] ** 2 + 0.7 * lam[1]]
    )


def g(t, x, lam):
    del t
    return jnp.stack([lam[0] * (1 + 0.2 * x[1]), lam[1], lam[0] * lam[1] + 0.4 * lam[0]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "law",
    [nightly(Relay(-0.4, 0.6)), Complementarity(), Equality()],
    ids=["relay", "diode", "equality"],
)
def test_the_equations_of_a_nonlinear_step(law):
    """The residuals of the dynamics, of the output and of the law, written out."""
    theta, gamma, dt = 0.6, 0.7, 0.1
    system = FirstOrderSystem(field, n=3)
    model = Model(system, Interaction(FirstOrderRelation(h, g, contacts=2), law))
    method = EulerMoreau(theta, gamma, newton=PRECISE)
    out = simulate(model, method, 0.0, 10 * dt, dt, system.state([0.3, -0.5, -0.2]))
    x, lam = np.asarray(out.states.v), np.asarray(out.details.multipliers[0][:, :, 0])
    y = np.asarray(out.details.outputs[0][:, :, 0])
    for k in range(1, 10):
        t0, t1 = k * dt, (k + 1) * dt
        smooth = theta * field(t1, x[k + 1], None) + (1 - theta) * field(t0, x[k], None)
        r = gamma * g(t1, x[k + 1], lam[k + 1]) + (1 - gamma) * g(t0, x[k], lam[k])
        np.testing.assert_allclose(x[k + 1] - x[k] - dt * (smooth + r), 0, atol=1e-14)
        np.testing.assert_allclose(y[k + 1], h(t1, x[k + 1], lam[k + 1]), atol=1e-15)
        projected = law.set().project(lam[k + 1] - y[k + 1])
        np.testing.assert_allclose(projected, lam[k + 1], atol=1e-12)
    dynamics, (distance,) = first_order_residuals(model, method, out)
    np.testing.assert_allclose(dynamics, 0, atol=1e-14)
    np.testing.assert_allclose(distance, 0, atol=1e-12)
    spoilt = eqx.tree_at(lambda s: s.states.v, out, out.states.v.at[5, 1].add(1e-3))
    dynamics, _ = first_order_residuals(model, method, spoilt)
    assert np.argmax(np.max(np.abs(dynamics), axis=1)) in (3, 4) and np.max(np.abs(dynamics)) > 5e-4
    charge = dt * (gamma * lam[2:] + (1 - gamma) * lam[1:-1])
    np.testing.assert_allclose(out.impulses[0][2:, :, 0], charge, atol=1e-16)


@pytest.mark.nightly
def test_relations_of_all_types_agree():
    """The same linear relation, stated in four ways."""
    c, b = np.array([[1.0, -0.5], [0.2, 1.0]]), np.array([[1.0, 0.3], [0.0, 2.0]])
    d = np.array([[0.5, 0.1], [-0.1, 0.4]])
    feedthrough = [
        FirstOrderLinear(c, b, d),
        FirstOrderRelation(lambda t, x, z: c @ x + d @ z, lambda t, x, z: b @ z, 2),
        FirstOrderType2(lambda t, x, z: c @ x + d @ z, lambda t, z: b @ z, 2),
    ]
    without = [
        FirstOrderLinear(c, b),
        FirstOrderLinear(lambda t: jnp.asarray(c), lambda t: jnp.asarray(b)),
        FirstOrderType1(lambda t, x: c @ x, lambda t, z: b @ z, 2),
    ]
    a = np.array([[0.0, 1.0], [-1.0, 0.0]])
    for family in (feedthrough, without):
        ends = []
        for relation in family:
            model = Model(FirstOrderSystem.linear(a), Interaction(relation, Relay()))
            ends.append(last(model, EulerMoreau(), 20, [1.0, 0.4]))
        np.testing.assert_allclose(ends, np.broadcast_to(ends[0], (len(ends), 2)), atol=1e-13)


@pytest.mark.slow
def test_several_interactions_are_one_with_all_outputs():
    """One with feedthrough and one without, beside both in one relation."""
    a = np.array([[-1.0, 0.5, 0.2], [0.0, -2.0, 1.0], [0.3, 0.0, -1.5]])
    c, b = (
        np.array([[1.0, 0.2, 0.0], [0.0, -0.4, 1.0]]),
        np.array([[1.0, 0.0], [0.5, 0.1], [0.0, 2]]),
    )
    system = FirstOrderSystem.linear(a)
    joint = Interaction(FirstOrderLinear(c, b, np.diag([0.0, 0.5])), Relay())
    apart = [
        Interaction(FirstOrderLinear(c[:1], b[:, :1]), Relay()),
        Interaction(FirstOrderLinear(c[1:], b[:, 1:], [[0.5]]), Relay()),
    ]
    ends = [last(Model(system, i), EulerMoreau(), 30, [1.0, 2.0, -1.0]) for i in (joint, apart)]
    np.testing.assert_allclose(*ends, atol=1e-13)  # measured 4e-15


def test_a_mixed_law_is_equalities_beside_complementarity():
    """`x1' = −lam2`, with `y1 = x2 − x1 + lam1 = 0` as an algebraic equation, in one contact."""
    a = np.zeros((2, 2))
    c, b = [[-1.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]
    d = [[1.0, 0.0], [0.0, 0.5]]
    joint = FirstOrderLinear(c, b, d, e=[0.0, -2.0], rows_per_contact=2)
    one = Model(FirstOrderSystem.linear(a), Interaction(joint, Mixed(1)))
    parts = FirstOrderLinear(c, b, d, e=[0.0, -2.0])
    bounds = Relay([-np.inf, 0.0], [np.inf, np.inf])
    two = Model(FirstOrderSystem.linear(a), Interaction(parts, bounds))
    method = EulerMoreau(theta=1.0)
    np.testing.assert_allclose(
        last(one, method, 20, [1.0, 0.0]), last(two, method, 20, [1.0, 0.0]), atol=1e-14
    )
    x = last(one, method, 20, [1.0, 0.0])
    assert x[0] > 1.5  # the diode charges x1 towards 2


def test_the_energy_balance_of_a_passive_circuit_is_exact():
    """Energy lost in a step is `h y^T lam` of the port, to rounding, for theta = gamma = 1/2."""
    stored = lambda x: (2.0 * x[0] ** 2 + 0.5 * x[1] ** 2) / 2  # noqa: E731
    system = FirstOrderSystem.linear(
        [[0.0, -1.0], [1.0, 0.0]], E=np.diag([2.0, 0.5]), storage=stored
    )
    relation = FirstOrderLinear([[-1.0, 0.0]], [[-1.0], [0.0]], [[3.0]])
    model = Model(system, Interaction(relation, Complementarity()))
    out = simulate(model, ThetaGamma(), 0.0, 10.0, 0.05, system.state([1.0, 0.5]))
    lam = np.asarray(out.details.multipliers[0][1:, 0, 0])
    assert out.energy is not None
    lost = -np.diff(np.asarray(out.energy.total))
    np.testing.assert_allclose(lost, 0.05 * 3.0 * lam**2, atol=1e-15)  # measured 2e-16
    assert lost.max() > 1e-3


def test_without_storage_the_energy_is_not_known():
    out = simulate(conducting(), EulerMoreau(), 0.0, 0.1, 0.1, conducting().system.state([1.0]))
    assert out.energy is None


def test_single_precision():
    model = jax.tree.map(
        lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, conducting()
    )
    state = model.system.state(jnp.array([1.0], jnp.float32))
    for method in (EulerMoreau(theta=0.5, gamma=0.5), ThetaGamma(), ZeroOrderHold()):
        out = simulate(model, method, 0.0, 1.0, 0.01, state)
        assert out.states.v.dtype == jnp.float32
        np.testing.assert_allclose(out.states.v[-1], np.exp(-3.0), atol=3e-3)


# What cannot be simulated is said before anything is compiled.


def attempt(model, method, x0=(1.0,), dt=0.1, args=None):
    simulate(model, method, 0.0, dt, dt, model.system.state(list(x0)), args)


@pytest.mark.parametrize("name", ["theta", "gamma"])
@pytest.mark.parametrize("method", [EulerMoreau, ThetaGamma])
def test_parameters_out_of_range(method, name):
    with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\], got 1.2"):
        method(**{name: 1.2})


def test_a_mechanical_method_says_who_steps_a_first_order_system():
    with pytest.raises(ValueError, match="use EulerMoreau, ThetaGamma or ZeroOrderHold"):
        attempt(conducting(), MoreauJean())


@pytest.mark.parametrize("method", [EulerMoreau(), ThetaGamma(), ZeroOrderHold()], ids=str)
def test_a_first_order_method_says_who_steps_a_mechanical_system(method):
    from diffnsd import State

    model = Model(LagrangianSystem(np.eye(1)))
    with pytest.raises(ValueError, match="use MoreauJean or BackwardEuler"):
        simulate(model, method, 0.0, 0.1, 0.1, State(jnp.zeros(1), jnp.zeros(1)))


def test_relations_of_the_wrong_kind():
    from diffnsd import State

    gap = Interaction(GapRelation(lambda t, q: q), Complementarity())
    with pytest.raises(ValueError, match="GapRelation is a relation between positions"):
        attempt(Model(FirstOrderSystem.linear([[1.0]]), gap), EulerMoreau())
    linear = Interaction(FirstOrderLinear([[1.0]], [[1.0]]), Complementarity())
    with pytest.raises(ValueError, match="FirstOrderLinear is a relation of first-order systems"):
        model = Model(LagrangianSystem(np.eye(1)), linear)
        simulate(model, MoreauJean(), 0.0, 0.1, 0.1, State(jnp.zeros(1), jnp.zeros(1)))


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        (
            FirstOrderType1(lambda t, x: x[:1], lambda t, z: z, 2),
            r"h\(t, x\) must return real numbers of shape \(2,\)",
        ),
        (
            FirstOrderType1(lambda t, x: x, lambda t, z: z[:1], 2),
            r"g\(t, lam\) must return real numbers of shape \(2,\)",
        ),
        (FirstOrderLinear(np.ones((1, 3)), np.ones((3, 1))), r"C must have shape \(1, 2\)"),
    ],
)
def test_functions_of_the_wrong_shape(relation, message):
    model = Model(FirstOrderSystem.linear(np.eye(2)), Interaction(relation, Complementarity()))
    with pytest.raises(ValueError, match=message):
        attempt(model, EulerMoreau(), (1.0, 1.0))


def test_operators_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"B must have shape \(2, 1\)"):
        FirstOrderLinear([[1.0, 0.0]], [[1.0]])
    with pytest.raises(ValueError, match=r"D must have shape \(1, 1\)"):
        FirstOrderLinear([[1.0, 0.0]], [[1.0], [0.0]], [1.0])
    with pytest.raises(ValueError, match=r"A must have shape \(n, n\)"):
        FirstOrderSystem.linear(np.ones((2, 3)))
    with pytest.raises(ValueError, match="give it, for example n=2"):
        FirstOrderSystem(field)
    with pytest.raises(ValueError, match="3 outputs are no whole number of contacts of 2"):
        FirstOrderLinear(np.ones((3, 2)), np.ones((2, 3)), rows_per_contact=2)


@pytest.mark.parametrize(
    ("method", "refused"),
    [
        (EulerMoreau(theta=0.0), True),
        (EulerMoreau(theta=0.5), False),
        (ThetaGamma(gamma=0.0), True),
    ],
    ids=str,
)
def test_a_relative_degree_that_a_scheme_cannot_handle(method, refused):
    """`y = x1`, `x1' = x2`, `x2' = lam`: explicit schemes do not see the multiplier in a step."""
    relation = FirstOrderLinear([[1.0, 0.0]], [[0.0], [1.0]])
    system = FirstOrderSystem.linear([[0.0, 1.0], [0.0, 0.0]])
    model = Model(system, Interaction(relation, Relay()))
    if refused:
        with pytest.raises(ValueError, match="output 0 is reached by no multiplier"):
            attempt(model, method, (1.0, 0.0))
    else:
        attempt(model, method, (1.0, 0.0))


def test_an_output_that_nothing_reaches():
    relation = FirstOrderLinear([[1.0, 0.0]], [[0.0], [1.0]])
    model = Model(FirstOrderSystem.linear(np.eye(2)), Interaction(relation, Relay()))
    with pytest.raises(ValueError, match="relative degree is too high"):
        attempt(model, EulerMoreau(), (1.0, 0.0))


def test_a_relay_with_its_bounds_the_wrong_way_round():
    relation = FirstOrderLinear([[1.0]], [[1.0]])
    model = Model(FirstOrderSystem.linear([[0.0]]), Interaction(relation, Relay(1.0, -1.0)))
    with pytest.raises(ValueError, match="must not exceed its upper bound"):
        attempt(model, EulerMoreau())


def test_positions_are_refused():
    from diffnsd import State

    model = conducting()
    with pytest.raises(ValueError, match="no positions"):
        simulate(model, EulerMoreau(), 0.0, 0.1, 0.1, State(jnp.zeros(1), jnp.ones(1)))


def test_a_solver_without_enough_passes_says_so():
    a, relation = -np.eye(3), FirstOrderLinear(np.eye(3), np.eye(3), np.ones((3, 3)))
    model = Model(FirstOrderSystem.linear(a), Interaction(relation, Relay()))
    method = EulerMoreau(solver=Auto(newton_steps=1, rounds=0))
    with pytest.raises(RuntimeError, match="did not reach its tolerance"):
        attempt(model, method, (1.0, -2.0, 3.0), dt=1.0)


def test_functions_of_relations_are_checked_by_name():
    with pytest.raises(TypeError, match=r"h must be a function of \(t, x, lam\), .* 1 argument"):
        FirstOrderRelation(lambda t: t, lambda t, x, lam: lam, 1)
    with pytest.raises(TypeError, match=r"g must be a function of \(t, lam\)"):
        FirstOrderType1(lambda t, x: x, lambda t, x, lam: lam, 1)
    system = FirstOrderSystem.linear(np.zeros((1, 1)))
    relation = FirstOrderRelation(lambda t, x, lam: x + lam, lambda t, x, lam: None, 1)
    with pytest.raises(TypeError, match=r"g\(t, x, lam\) must return real numbers of shape \(1,\)"):
        simulate(
            Model(system, Interaction(relation, Relay())),
            EulerMoreau(),
            0.0,
            0.1,
            0.01,
            system.state([1.0]),
        )
