"""Runge-Kutta methods on groups: orders, what they keep, derivatives, and what they refuse.

The oracle is a motion in closed form that depends on time, `y(t) = exp(a t) exp(b t)`: a rigid body
alone shows orders that a method does not have.
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from marks import nightly, slow, slow_but

from diffnsd import (
    RESULTS,
    RKMK,
    Adaptive,
    BackwardEuler,
    ButcherTableau,
    Cayley,
    CommutatorFree,
    CrouchGrossman,
    Exponential,
    Interaction,
    Model,
    MoreauJean,
    QuaternionVector,
    SaveAt,
    State,
    diagnostics,
    models,
    simulate,
)
from diffnsd.groups import (
    SE3,
    SL,
    SO3,
    Euclidean,
    IsospectralAction,
    LeftTranslation,
    ProductAction,
    SO3Matrix,
    SphereAction,
    StiefelAction,
    rotate,
    rotation_matrix,
    truncation,
)
from diffnsd.laws import NewtonImpact
from diffnsd.relations import GapRelation
from diffnsd.systems import LagrangianSystem, LieFlow, NewtonEulerSystem

T = ButcherTableau
A, B = np.array([0.7, -0.4, 0.5]), np.array([-0.3, 0.8, 0.6])


class Turning(eqx.Module):
    """The velocity in space of `exp(a t) exp(b t)`: `a + exp(a t) b`."""

    a: jax.Array
    b: jax.Array

    def __call__(self, t, y, args):
        return self.a + rotate(SO3().exp(self.a * t), self.b)


def turning(t, a=A, b=B):
    return SO3().compose(SO3().exp(jnp.asarray(a * t)), SO3().exp(jnp.asarray(b * t)))


FLOW = LieFlow(Turning(jnp.asarray(A), jnp.asarray(B)), LeftTranslation(SO3()))
MODEL, START = Model(FLOW), FLOW.state(SO3().identity())


@eqx.filter_jit
def integrate(model, integrator, state, end, steps):
    """The last state of steps of one length, all values traced: one program for every length."""
    h = end / steps

    def body(i, run):
        state, ok = run
        t = i * h
        state, _, _, result = integrator.step(model, t, h, state, (), None)
        return state, ok & (result == RESULTS.successful)

    return jax.lax.fori_loop(0, steps, body, (state, jnp.array(True)))


def error(integrator, steps, end=2.0):
    state, ok = integrate(MODEL, integrator, START, jnp.asarray(end), jnp.asarray(steps))
    assert ok
    return float(jnp.max(jnp.abs(state.q - turning(end))))


ORDERS = {  # method, theoretical order, steps; beside it the observed order
    "Euler": (RKMK(T.euler()), 1, 2000),  # 1.00
    "Heun": (RKMK(T.heun()), 2, 200),
    "midpoint": (RKMK(T.midpoint()), 2, 200),
    "Kutta 3": (RKMK(T.kutta3()), 3, 100),
    "RK4": (RKMK(), 4, 50),
    "RK4 Cayley": (RKMK(retraction=Cayley()), 4, 50),
    "RK4 quaternion": (RKMK(retraction=QuaternionVector()), 4, 50),
    "RK4 truncated": (RKMK(retraction=Exponential(truncation(4))), 4, 50),
    "Dopri5": (RKMK(diffrax.Dopri5()), 5, 20),
    "Butcher 6": (RKMK(T.butcher6()), 6, 16),
    "Dopri8": (RKMK(diffrax.Dopri8()), 8, 10),
    "Gauss 1": (RKMK(T.gauss(1)), 2, 100),
    "Gauss 2": (RKMK(T.gauss(2)), 4, 30),
    "Gauss 3": (RKMK(T.gauss(3)), 6, 10),
    "Radau 2": (RKMK(T.radau(2)), 3, 60),
    "Radau 3": (RKMK(T.radau(3)), 5, 20),
    "Crouch-Grossman 3": (CrouchGrossman(), 3, 100),
    "commutator-free 4": (CommutatorFree(), 4, 50),
}


# One of each kind: explicit and implicit, each retraction, products of exponentials.
QUICK = "Euler", "RK4", "RK4 Cayley", "RK4 quaternion", "Dopri8", "Gauss 2", *list(ORDERS)[-2:]


@pytest.mark.parametrize("name", slow_but(QUICK, ORDERS))
def test_order(name):
    integrator, order, steps = ORDERS[name]
    assert integrator.order == order
    end = 2.0 if order < 8 else 4.0
    coarse, fine = error(integrator, steps, end), error(integrator, 2 * steps, end)
    assert fine > 1e-13  # not round-off
    assert np.log2(coarse / fine) == pytest.approx(order, abs=0.1)


def test_a_tableau_for_vector_spaces_loses_its_order_in_products():
    classical = CrouchGrossman(T.rk4())
    assert (classical.order, CrouchGrossman().order) == (2, 3)
    assert CrouchGrossman(T.euler()).order == 1
    observed = np.log2(error(classical, 100) / error(classical, 200))
    assert observed == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize(("power", "order"), [slow(0, 2), slow(1, 3), (2, 5)])
def test_order_with_a_truncated_series(power, order):
    integrator = RKMK(diffrax.Dopri8(), Exponential(power))
    coarse, fine = error(integrator, 20), error(integrator, 40)
    assert np.log2(coarse / fine) == pytest.approx(order, abs=0.1)


def test_what_a_truncation_needs():
    assert [truncation(p) for p in range(2, 9)] == [0, 1, 2, 2, 4, 4, 6]


@pytest.mark.parametrize(
    "make",
    [T.rk4, T.kutta3, T.butcher6, lambda: T.gauss(4), lambda: T.gauss(8), lambda: T.radau(7)],
)
def test_quadrature_order_of_tableaux(make):
    """`sum b c^(k-1) = 1/k` up to the order: necessary, and independent of any problem."""
    tableau = make()
    b, c = np.array(tableau.b), np.array(tableau.c)
    for k in range(1, tableau.order + 1):
        assert np.sum(b * c ** (k - 1)) == pytest.approx(1 / k, abs=1e-15)  # measured 2.2e-16


# ----------------------------------------------------------------------------------------
# What is kept


@pytest.fixture(scope="module")
def body(data_dir):
    d = np.load(data_dir / "exact_solutions" / "rigid_body_1.npz")
    model = models.free_rigid_body(d["p_I"])
    state = models.rigid_body_state(d["pi"][0])
    run = simulate(model, RKMK(diffrax.Dopri8()), 0.0, 20.0, 0.05, state, saveat=SaveAt(steps=4))
    return d, model, run


@pytest.mark.slow
def test_free_rigid_body_against_elliptic_functions(body):
    d, _, run = body
    matrices = jax.vmap(rotation_matrix)(run.states.q[1])
    assert np.max(np.abs(run.states.q[0] - d["pi"])) < 1e-13  # measured 6e-15
    assert np.max(np.abs(matrices - d["R"])) < 2e-13  # measured 2e-14


@pytest.mark.slow
def test_invariants_of_the_free_rigid_body(body):
    _, model, run = body
    pi, q = run.states.q
    spatial = jax.vmap(lambda g, m: diagnostics.spatial_momentum(SO3(), g, m))(q, pi)
    assert diagnostics.drift(spatial) < 1e-13
    assert diagnostics.drift(jax.vmap(lambda m: diagnostics.casimirs(SO3(), m))(pi)) < 1e-13
    assert diagnostics.drift(run.energy.total) < 1e-13
    assert jnp.max(jax.vmap(lambda s: diagnostics.defect(model, s))(run.states)) < 1e-13


@pytest.mark.slow
def test_casimirs_and_spatial_momenta_on_se3():
    """Kept to round-off at a step where the motion itself has an error of 1e-3."""
    for model, state in (
        (
            models.heavy_top((1.0, 2.0, 3.0), (0.3, 0.2, 0.9)),
            models.heavy_top_state((1.0, 0.5, 2.0)),
        ),
        (models.kirchhoff_body(), models.kirchhoff_state((0.5, 1.0, -0.75), (1.0, 0.25, 0.5))),
    ):
        run = simulate(model, RKMK(), 0.0, 20.0, 0.2, state)
        mu, g = run.states.q
        spatial = jax.vmap(lambda g, m: diagnostics.spatial_momentum(SE3(), g, m))(g, mu)
        assert 1e-7 < diagnostics.drift(run.energy.total) < 1e-1
        assert diagnostics.drift(spatial) < 1e-12
        assert diagnostics.drift(jax.vmap(lambda m: diagnostics.casimirs(SE3(), m))(mu)) < 1e-12


X3 = np.array([0.4, -0.7, 0.3])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "y0", "exact"),
    [
        nightly(StiefelAction(3, 2), np.eye(3)[:, :2], lambda e, y: e @ y),
        (IsospectralAction(3), np.diag([1.0, 2.0, 4.0]), lambda e, y: e @ y @ e.T),
    ],
)
def test_homogeneous_spaces(action, y0, exact):
    """A field that is constant after a rotation of the point by a gauge: closed form, and kept sets."""
    x = jnp.asarray(X3)
    flow = LieFlow(lambda t, y, args: (1 + t) * x, action)
    run = simulate(Model(flow), RKMK(), 0.0, 1.0, 0.125, flow.state(jnp.asarray(y0)))
    turned = scipy.linalg.expm(np.asarray(action.group.hat(x)) * 1.5)
    np.testing.assert_allclose(run.states.q[-1], exact(turned, y0), atol=1e-13)
    assert jnp.max(jax.vmap(action.defect)(run.states.q)) < 1e-14
    rate = action.velocity(x, jnp.asarray(y0))
    hat = np.asarray(action.group.hat(x))
    expected = hat @ y0 if y0.shape[1] == 2 else hat @ y0 - y0 @ hat
    np.testing.assert_allclose(rate, expected, atol=1e-14)


def test_spherical_pendulum_stays_on_the_sphere():
    def field(t, y, args):
        q, w = y
        return jnp.concatenate([w, jnp.stack([-q[1], q[0], jnp.zeros(())])])

    flow = LieFlow(field, ProductAction((SphereAction(), LeftTranslation(Euclidean(3)))))
    q, v = jnp.array([np.sin(1.0), 0.0, -np.cos(1.0)]), jnp.array([0.0, 0.75, 0.0])
    run = simulate(Model(flow), RKMK(), 0.0, 10.0, 0.1, flow.state((q, jnp.cross(q, v))))
    assert jnp.max(jnp.abs(jnp.sum(run.states.q[0] ** 2, axis=1) - 1)) < 1e-13
    energy = jnp.sum(run.states.q[1] ** 2, axis=1) / 2 + run.states.q[0][:, 2]
    assert diagnostics.drift(energy) < 1e-5  # measured 2e-6


# ----------------------------------------------------------------------------------------
# Second-order systems of the package


def test_second_order_system_in_closed_form():
    system = LagrangianSystem(jnp.array([[2.0]]), potential_energy=lambda q: 9 * q[0] ** 2)
    start = State(jnp.array([1.0]), jnp.array([0.0]))
    errors = []
    for h in (0.05, 0.025):
        run = simulate(Model(system), RKMK(), 0.0, 2.0, h, start, saveat=SaveAt.end())
        errors.append(abs(run.states.q[0] - np.cos(6.0)) + abs(run.states.v[0] + 3 * np.sin(6.0)))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(4, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("inertia", [(1.0, 2.0, 2.5), nightly(np.diag([1.0, 2.0, 2.5]) + 0.1)])
def test_newton_euler_is_the_free_body(inertia):
    """The same body as second-order system, and its spatial spin constant."""
    model = Model(NewtonEulerSystem(2.0, inertia, gravity=(0.0, 0.0, -9.81)))
    state = models.cube_state(
        (0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 3.0), (0.6, 0.9, 0.3)
    )
    run = simulate(model, RKMK(diffrax.Dopri8()), 0.0, 2.0, 0.1, state)
    momenta = jax.vmap(lambda s: model.momentum(jnp.zeros(()), s))(run.states)
    spatial = jax.vmap(rotate)(run.states.q.orientation[:, 0], momenta[:, 3:])
    assert diagnostics.drift(spatial) < 1e-10
    fallen = 1.0 + 3.0 * 2.0 - 9.81 * 2.0**2 / 2
    assert run.states.q.position[-1, 0, 2] == pytest.approx(fallen, abs=1e-12)
    assert diagnostics.drift(run.energy.total) < 1e-10


# ----------------------------------------------------------------------------------------
# Adaptive steps, derivatives, batches


@pytest.mark.slow
def test_adaptive_steps_reach_their_tolerance():
    run = simulate(MODEL, Adaptive(RKMK(diffrax.Tsit5()), 1e-9), 0.0, 4.0, 2.0, START)
    assert np.max(np.abs(run.states.q[-1] - turning(4.0))) < 1e-8
    assert 5 < run.stats.iterations[-1] < 100
    few = Adaptive(RKMK(diffrax.Tsit5()), 1e-9, max_steps=3)
    late = simulate(MODEL, few, 0.0, 4.0, 2.0, START, throw=False)
    assert late.result == RESULTS.too_many_steps


@pytest.mark.slow
@pytest.mark.parametrize(
    "integrator",
    [RKMK(), nightly(RKMK(T.gauss(2))), nightly(Adaptive(RKMK(diffrax.Tsit5()), 1e-7))],
    ids=["explicit", "implicit", "adaptive"],
)
def test_derivatives_against_the_closed_form(integrator):
    def end(a):
        flow = LieFlow(Turning(a, jnp.asarray(B)), LeftTranslation(SO3()))
        run = simulate(Model(flow), integrator, 0.0, 1.0, 0.05, START, saveat=SaveAt.end())
        return run.states.q

    exact = jax.jacfwd(lambda a: SO3().compose(SO3().exp(a), SO3().exp(jnp.asarray(B))))(
        jnp.asarray(A)
    )
    np.testing.assert_allclose(eqx.filter_jit(jax.jacrev(end))(jnp.asarray(A)), exact, atol=1e-6)
    forward = eqx.filter_jit(jax.jacfwd(end))(jnp.asarray(A))
    np.testing.assert_allclose(forward, exact, atol=1e-6)


@pytest.mark.nightly
def test_adaptive_steps_are_chosen_once():
    """Reverse mode makes steps again in groups of 16; one grid step takes 30 here, and in a batch some fewer.

    The field closes over the number of the derivative, as the functions of a user do.
    """

    def end(a, speed):
        b = speed * jnp.asarray(B)
        field = LieFlow(lambda t, y, args: a + rotate(SO3().exp(a * t), b), LeftTranslation(SO3()))
        adaptive = Adaptive(RKMK(diffrax.Tsit5()), 1e-11)
        run = simulate(Model(field), adaptive, 0.0, 1.0, 1.0, START, saveat=SaveAt.end())
        return run.states.q, run.stats.iterations

    a, speeds = jnp.asarray(A), jnp.array([0.01, 1.0])
    both = (
        eqx.filter_jit(jax.vmap(d(end, has_aux=True), in_axes=(None, 0)))(a, speeds)
        for d in (jax.jacrev, jax.jacfwd)
    )
    (reverse, tried), (forward, _) = both
    exact = jax.vmap(jax.jacfwd(lambda a, s: turning(1.0, a, s * B)), (None, 0))(a, speeds)
    assert tried[1] > 20 and tried[0] < tried[1] - 5, tried
    np.testing.assert_allclose(reverse, forward, atol=1e-13)  # measured 3e-16
    np.testing.assert_allclose(forward, exact, atol=1e-10)  # measured 6e-13


def test_a_batch_is_its_lanes():
    starts = jnp.tile(SO3().exp(jnp.asarray(A)), (3, 1))

    def end(q):
        return simulate(MODEL, RKMK(), 0.0, 1.0, 0.1, FLOW.state(q), saveat=SaveAt.end()).states.q

    one = jax.jit(end)(starts[0])
    np.testing.assert_allclose(jax.jit(jax.vmap(end))(starts), jnp.tile(one, (3, 1)), atol=1e-15)


# ----------------------------------------------------------------------------------------
# What is refused, and what is reported


def test_a_step_that_leaves_the_chart():
    spinning = models.rigid_body_state((6.0, 18.0, 9.0))
    for retraction in (Exponential(), Cayley(), QuaternionVector()):
        integrator = RKMK(retraction=retraction)
        run = simulate(models.free_rigid_body(), integrator, 0.0, 1.0, 0.5, spinning, throw=False)
        assert run.result == RESULTS.chart_exceeded
        assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(run.states))
    with pytest.raises(Exception, match="smaller step"):
        jax.block_until_ready(
            simulate(models.free_rigid_body(), RKMK(), 0.0, 1.0, 0.5, spinning).states
        )


FALLING = LagrangianSystem([[1.0]], f_ext=[-9.81])
BALL = Model(FALLING, Interaction(GapRelation(lambda t, q: q), NewtonImpact(0.5)))
BALL_STATE = State(jnp.array([1.0]), jnp.array([0.0]))
SL3 = LieFlow(lambda t, y, args: jnp.zeros(8), LeftTranslation(SL(3)))
SE3_FLOW = LieFlow(lambda t, y, args: jnp.zeros(6), LeftTranslation(SE3()))
MATRICES = LieFlow(lambda t, y, args: jnp.zeros(3), LeftTranslation(SO3Matrix()))
FRAMES = LieFlow(lambda t, y, args: jnp.zeros(3), StiefelAction(3, 2))


@pytest.mark.parametrize(
    ("model", "integrator", "state", "words"),
    [
        (BALL, RKMK(), BALL_STATE, ["no impulses", "MoreauJean"]),
        (BALL, CrouchGrossman(), BALL_STATE, ["no impulses"]),
        (Model(SL3), RKMK(retraction=Cayley()), SL3.state(np.eye(3)), ["SL(3)", "exponential"]),
        (
            Model(SE3_FLOW),
            RKMK(retraction=QuaternionVector()),
            SE3_FLOW.state(SE3().identity()),
            ["SE3", "Exponential()"],
        ),
        (Model(SL3), RKMK(), SL3.state(2 * np.eye(3)), ["determinant 8"]),
        (Model(MATRICES), RKMK(), MATRICES.state(np.eye(3) + 0.1), ["not orthogonal", "nearest"]),
        (Model(MATRICES), RKMK(), MATRICES.state(np.diag([1.0, 1.0, -1.0])), ["reflection"]),
        (Model(FRAMES), RKMK(), FRAMES.state(np.ones((3, 2))), ["not orthonormal", "qr"]),
        (MODEL, RKMK(), FLOW.state(np.array([2.0, 0, 0, 0])), ["norm 2"]),
        (MODEL, MoreauJean(), START, ["LieFlow", "RKMK"]),
        (MODEL, BackwardEuler(), START, ["LieFlow", "RKMK"]),
    ],
)
def test_what_cannot_be_simulated(model, integrator, state, words):
    with pytest.raises(ValueError, match="cannot simulate") as caught:
        simulate(model, integrator, 0.0, 1.0, 0.1, state)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RKMK(diffrax.Kvaerno5()), ["no explicit", "gauss"]),
        (lambda: RKMK(diffrax.SemiImplicitEuler()), ["no explicit"]),
        (lambda: RKMK(diffrax.Dopri8), ["is a class", "Dopri8()"]),
        (lambda: CrouchGrossman(diffrax.Tsit5()), ["ButcherTableau", "Tsit5", "RKMK"]),
        (lambda: CrouchGrossman(T.gauss(2)), ["explicit tableau", "RKMK"]),
        (lambda: Adaptive(RKMK(), max_steps=0), ["at least 1"]),
        (lambda: T([[0, 0], [1, 0]], [0.5, 0.5], [0, 0.5], 2), ["sum to c"]),
        (lambda: T.gauss(0), ["between 1 and 8"]),
        (lambda: SL(3).cay(jnp.zeros(8)), ["leaves SL(3)"]),
        (lambda: SO3().cay_inv(jnp.array([0.0, 1.0, 0.0, 0.0])), ["rotation by pi", "log"]),
        (lambda: StiefelAction(2, 3), ["k <= n"]),
    ],
)
def test_what_cannot_be_made(make, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


# ----------------------------------------------------------------------------------------
# Diagnostics


@pytest.mark.slow
def test_rkmk_is_no_poisson_map():
    """A Gauss tableau is symplectic on vector spaces, and its RKMK method is not Poisson."""
    model = models.free_rigid_body()
    advance = diagnostics.step_map(model, RKMK(T.gauss(1)), 0.0, 0.4)

    def reduced(mu):
        return advance(models.rigid_body_state(mu)).q[0]

    found = diagnostics.poisson_defect(reduced, SO3(), jnp.array([0.6, 1.8, 0.9]))
    assert 1e-4 < found < 1e-1


@pytest.mark.nightly
def test_symplecticity_defect():
    """Gauss is symplectic on a vector space, and the classical method is not."""
    system = LagrangianSystem(
        jnp.diag(jnp.array([1.0, 2.0])), potential_energy=lambda q: jnp.sum(q**4)
    )
    model = Model(system)
    state = State(jnp.array([0.4, -0.7]), jnp.array([0.3, 0.5]))
    found = [
        diagnostics.symplecticity_defect(model, integrator, 0.0, 0.2, state)
        for integrator in (RKMK(T.gauss(2)), RKMK())
    ]
    assert found[0] < 1e-12
    assert found[1] > 1e-6
