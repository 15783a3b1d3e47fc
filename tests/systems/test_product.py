"""Several systems as one: motors against matrix exponentials, circuits against their own schemes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

import diffnsd as nsd

# An armature: moment of inertia, bearing, inductance, resistance, voltage, motor constant.
J, B, L, R, U, K = 2e-3, 1e-3, 5e-3, 0.8, 12.0, 0.05


def motor(k):
    rotor = nsd.LagrangianSystem.linear([[J]], [[B]])
    armature = nsd.FirstOrderSystem.linear([[-R]], [U], [[L]])
    return nsd.SystemProduct((rotor, armature), nsd.Gyrator(k))


def motor_after(k, t):
    """Angle, speed and current after a start at rest, from the matrix exponential."""
    a = np.zeros((4, 4), np.result_type(k, float))
    a[0, 1] = 1
    a[1, 1:3] = -B / J, k / J
    a[2, 1:] = -k / L, -R / L, U / L
    return (scipy.linalg.expm(t * a) @ np.array([0, 0, 0, 1.0]))[:3]


def test_a_motor_is_its_matrix_exponential():
    def end(k, h):
        system = motor(k)
        start = system.state(nsd.State(jnp.zeros(1), jnp.zeros(1)), nsd.State(None, jnp.zeros(1)))
        model = nsd.Model(system)
        solution = nsd.simulate(
            model, nsd.MoreauJean(), 0.0, 0.1, h, start, saveat=nsd.SaveAt.end()
        )
        rotor, armature = system.split(solution.states)
        return jnp.concatenate([rotor.q, rotor.v, armature.v])

    exact = motor_after(K, 0.1)
    slope = motor_after(K + 1e-30j, 0.1).imag / 1e-30
    errors = []
    for h in (1e-3, 5e-4):
        value, tangent = jax.jvp(lambda k, h=h: end(k, h), (jnp.array(K),), (jnp.array(1.0),))
        errors.append((np.max(np.abs(value / exact - 1)), np.max(np.abs(tangent / slope - 1))))
    # Measured at h = 5e-4: values 8.6e-7, derivatives 2.1e-6, each four times that at 1e-3.
    for coarse, fine in zip(*errors, strict=True):
        assert fine < 4e-6
        assert 3.9 < coarse / fine < 4.1


def to_stop(t, q):
    return 4e-3 - q


def voice_coil(k, e):
    """A coil that drives a carriage against a stop at 4 mm."""
    carriage = nsd.LagrangianSystem.linear([[0.05]], [[0.4]])
    coil = nsd.FirstOrderSystem.linear([[-2.0]], [6.0], [[3e-3]])
    system = nsd.SystemProduct((carriage, coil), nsd.Gyrator(k))
    stop = nsd.OnPart(system, 0, nsd.GapRelation(to_stop))
    start = system.state(nsd.State(jnp.zeros(1), jnp.zeros(1)), nsd.State(None, jnp.zeros(1)))
    return nsd.Model(system, nsd.Interaction(stop, nsd.NewtonImpact(e))), start


def voice_coil_after(k, e, t):
    """Position, speed and current after one impact, event by event."""
    a = np.zeros((4, 4))
    a[0, 1] = 1
    a[1, 1:3] = -0.4 / 0.05, k / 0.05
    a[2, 1:] = -k / 3e-3, -2.0 / 3e-3, 6.0 / 3e-3
    z0 = np.array([0.0, 0, 0, 1])
    strike = scipy.optimize.brentq(
        lambda s: (scipy.linalg.expm(s * a) @ z0)[0] - 4e-3, 1e-3, 0.025, xtol=1e-15
    )
    z = scipy.linalg.expm(strike * a) @ z0
    z[1] *= -e
    return strike, (scipy.linalg.expm((t - strike) * a) @ z)[:3]


def test_a_driven_carriage_strikes_a_stop():
    k, e, t = 5.0, 0.5, 0.0104

    def end(p, h):
        model, start = voice_coil(p[0], p[1])
        solution = nsd.simulate(
            model, nsd.Located(nsd.MoreauJean()), 0.0, t, h, start, saveat=nsd.SaveAt.end()
        )
        (x, coil) = model.system.split(solution.states)
        return jnp.concatenate([x.q, x.v, coil.v])

    strike, exact = voice_coil_after(k, e, t)
    assert 0.005 < strike < 0.02
    # Differences of the oracle, which is another program.
    d = 1e-6
    slopes = np.stack(
        [
            (voice_coil_after(k + d, e, t)[1] - voice_coil_after(k - d, e, t)[1]) / (2 * d),
            (voice_coil_after(k, e + d, t)[1] - voice_coil_after(k, e - d, t)[1]) / (2 * d),
        ],
        axis=1,
    )
    errors = []
    for h in (2e-4, 5e-5):
        p = jnp.array([k, e])
        value, jacobian = end(p, h), jax.jacfwd(lambda p, h=h: end(p, h))(p)
        errors.append(
            (
                np.max(np.abs(value - exact) / np.abs(exact)),
                np.max(np.abs(jacobian - slopes)) / np.max(np.abs(slopes)),
            )
        )
    # Measured at h = 5e-5: values 1.3e-4, derivatives 7.5e-5, each 16 times that at 2e-4.
    for coarse, fine in zip(*errors, strict=True):
        assert fine < 2e-4
        assert 14 < coarse / fine < 18


def rectifier():
    """A resonant circuit that feeds a resistor through a bridge of four diodes."""
    lc = nsd.FirstOrderSystem.linear([[0.0, -1e6], [100.0, 0.0]])
    bridge = nsd.FirstOrderLinear(
        C=[[0.0, 0.0], [0.0, 0.0], [-1.0, 0.0], [1.0, 0.0]],
        B=[[0.0, 0.0, -1e6, 1e6], [0.0, 0.0, 0.0, 0.0]],
        D=[[1e-3, 1e-3, -1.0, 0.0], [1e-3, 1e-3, 0.0, -1.0], [1.0, 0, 0, 0], [0, 1.0, 0, 0]],
    )
    return lc, bridge


@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_a_circuit_beside_a_mechanism_is_stepped_as_alone(theta):
    lc, bridge = rectifier()
    x0, h, end = jnp.array([10.0, 0.0]), 1e-6, 2e-4
    alone = nsd.simulate(
        nsd.Model(lc, nsd.Interaction(bridge, nsd.Complementarity())),
        nsd.EulerMoreau(theta),
        0.0, end, h, lc.state(x0),
    )  # fmt: skip
    ball = nsd.LagrangianSystem([[1.0]], f_ext=[-9.81])
    system = nsd.SystemProduct((ball, lc))
    diodes = nsd.Interaction(nsd.OnPart(system, 1, bridge), nsd.Complementarity())
    method = nsd.MoreauJean(
        theta, newton=nsd.Newton(max_iterations=20), solver=nsd.EulerMoreau().solver
    )
    start = system.state(ball.state([1.0]), lc.state(x0))
    both = nsd.simulate(nsd.Model(system, diodes), method, 0.0, end, h, start)
    own = system.split(both.states)[1]
    assert np.max(np.abs(alone.states.v)) > 5
    np.testing.assert_allclose(own.v, alone.states.v, atol=1e-7)
    np.testing.assert_allclose(both.impulses[0], alone.impulses[0], atol=1e-12)
    np.testing.assert_allclose(system.split(both.states)[0].q[-1, 0], 1 - 9.81 / 2 * end**2, 1e-6)


def test_first_order_systems_alone():
    relay = nsd.FirstOrderLinear(C=[[1.0]], B=[[1.0]])
    plants = [nsd.FirstOrderSystem.linear([[0.0]], [b]) for b in (0.3, -0.2)]
    system = nsd.SystemProduct(plants)
    laws = [nsd.Interaction(nsd.OnPart(system, i, relay), nsd.Relay()) for i in range(2)]
    start = system.state(plants[0].state([0.5]), plants[1].state([-0.5]))
    together = nsd.simulate(nsd.Model(system, laws), nsd.EulerMoreau(), 0.0, 1.0, 1e-2, start)
    for i, x0 in enumerate((0.5, -0.5)):
        alone = nsd.simulate(
            nsd.Model(plants[i], nsd.Interaction(relay, nsd.Relay())),
            nsd.EulerMoreau(), 0.0, 1.0, 1e-2, plants[i].state([x0]),
        )  # fmt: skip
        np.testing.assert_allclose(together.states.v[:, i], alone.states.v[:, 0], atol=1e-12)


def test_a_contact_between_two_systems():
    """Two masses of two systems collide: momentum and Newton's law."""
    a = nsd.LagrangianSystem([[2.0]])
    b = nsd.LagrangianSystem([[1.0]])
    system = nsd.SystemProduct((a, b))
    touch = nsd.Interaction(nsd.GapRelation(lambda t, q: q[1] - q[0] - 1.0), nsd.NewtonImpact(0.5))
    start = system.state(a.state([0.0], [1.0]), b.state([1.5], [0.0]))
    end = nsd.simulate(nsd.Model(system, touch), nsd.MoreauJean(), 0.0, 1.0, 1e-2, start)
    va, vb = np.asarray(end.states.v[-1])
    np.testing.assert_allclose(2 * va + vb, 2.0, rtol=1e-12)
    np.testing.assert_allclose(vb - va, 0.5, rtol=1e-12)


def test_integrals_of_a_product():
    """A relation of a circuit inside of the product that holds the integral; single precision."""
    lc, bridge = rectifier()
    ball = nsd.LagrangianSystem([[1.0]], f_ext=[-9.81])
    system = nsd.SystemProduct((ball, lc))
    diodes = nsd.Interaction(nsd.OnPart(system, 1, bridge), nsd.Complementarity())
    start = system.state(ball.state([1.0]), lc.state([10.0, 0.0]))
    method = nsd.MoreauJean(1.0, newton=nsd.Newton(max_iterations=20))
    fall = nsd.Integral(first_velocity)
    for dtype in (jnp.float64, jnp.float32):
        model, x = in_precision(dtype, (nsd.Model(system, diodes), start))
        out = nsd.simulate(model, method, 0.0, 1e-5, 1e-6, x, integrals=fall, throw=False)
        assert out.integrals[0].dtype == dtype
        height = np.asarray(out.states.q[0][:, 0], float)
        np.testing.assert_allclose(out.integrals[0], height - height[0], atol=1e-9)


def in_precision(dtype, tree):
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda x: x.astype(dtype), arrays), rest)


def first_velocity(t, state, args):
    return state.v[0]


def test_what_is_refused():
    system = motor(K)
    gap = nsd.GapRelation(lambda t, q: q)
    port = nsd.FirstOrderLinear([[1.0]], [[1.0]])
    with pytest.raises(ValueError, match="system 1 of the product is a FirstOrderSystem"):
        nsd.OnPart(system, 1, gap)
    with pytest.raises(ValueError, match="it fits system 1"):
        nsd.OnPart(system, 0, port)
    with pytest.raises(ValueError, match="systems 0 to 1, got part=2"):
        nsd.OnPart(system, 2, gap)
    with pytest.raises(ValueError, match="systems must be one system"):
        nsd.SystemProduct(())
    with pytest.raises(ValueError, match="2 systems, got 1 states"):
        system.state(nsd.State(None, jnp.zeros(1)))
    start = system.state(nsd.State(jnp.zeros(1), jnp.zeros(1)), nsd.State(None, jnp.zeros(1)))

    def run(model, method=None):
        nsd.simulate(model, method or nsd.MoreauJean(), 0.0, 1e-2, 1e-3, start)

    with pytest.raises(ValueError, match="OnPart"):
        run(nsd.Model(system, nsd.Interaction(port, nsd.Relay())))
    with pytest.raises(ValueError, match="ties states to forces"):
        model = nsd.Model(system, nsd.Interaction(nsd.OnPart(system, 1, port), nsd.Relay()))
        run(model, nsd.Located(nsd.MoreauJean()))
    with pytest.raises(ValueError, match="no first-order system"):
        run(nsd.Model(system), nsd.EulerMoreau())
    with pytest.raises(ValueError, match="force of a coupling on system 1"):
        wrong = nsd.SystemProduct(system.systems, lambda t, s, args: (s[0].v, jnp.zeros(2)))
        run(nsd.Model(wrong))


def test_a_linear_step_of_a_product_has_the_derivatives_of_its_couplings():
    """At rest, where a tree leaves out nothing, it is that of all forces together."""
    arm = nsd.systems.Body(
        1.2,
        jnp.diag(jnp.array([0.1, 0.2, 0.3])),
        [nsd.systems.Hinge((0, 1, 0.0))],
        centre=(0.1, 0.0, 0.4),
    )
    tree = nsd.systems.Multibody([arm], gravity=(0.0, 0.0, 0.0))
    armature = nsd.FirstOrderSystem.linear([[-R]], [U], [[L]])
    system = nsd.SystemProduct((tree, armature), nsd.Gyrator(K))
    t, h = jnp.zeros(()), 0.01
    start = system.state(tree.state(jnp.array([0.3])), armature.state([0.7]))

    def moved(step):
        q = system.group.compose(start.q, system.group.exp(h * step))
        return system.force(t, nsd.State(q, start.v + step), None)

    matrix, force = system.linear_step(t, start, None, h)
    zero = jnp.zeros(2)
    expected = system.mass(t, start.q) - h * jax.jacfwd(moved)(zero)
    np.testing.assert_allclose(matrix, expected, atol=1e-15)
    np.testing.assert_allclose(force, moved(zero), atol=1e-15)
    no_tree = nsd.LagrangianSystem.linear([[J]])
    other = nsd.SystemProduct((no_tree, armature))
    both = other.state(nsd.State(zero[:1], zero[:1]), armature.state([0.0]))
    assert other.linear_step(t, both, None, h) is None
