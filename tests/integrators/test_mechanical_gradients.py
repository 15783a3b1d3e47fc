"""Derivatives and recovery of one parameter for every law, relation and scheme of mechanics.

Each problem is a motion whose events keep their steps while the parameter moves a little: there the
derivative of the scheme is that of its values. (What impact times add is tested elsewhere.)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly
from optimised import OPTIMISED

from diffnsd import (
    Auto,
    Interaction,
    Model,
    MoreauJean,
    Newton,
    Pose,
    SaveAt,
    State,
    simulate,
)
from diffnsd.integrators import (
    AtIterate,
    AtPrediction,
    CombinedProjection,
    D1MinusLinear,
    Projected,
    SchatzmanPaoli,
)
from diffnsd.laws import (
    Cohesive,
    CoulombFriction,
    DryFriction,
    Equality,
    NewtonImpact,
    RollingFriction,
    fremond_impact,
)
from diffnsd.relations import (
    ContactFrame,
    GapRelation,
    Harmonic,
    PlanarContact,
    PrescribedVelocity,
    RateRelation,
    ball_joint,
    hinge,
)
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem, SpringDamper

STILL = Pose(jnp.zeros((1, 3)), jnp.array([[1.0, 0.0, 0.0, 0.0]]))
IMPLICIT = dict(newton=Newton(20, 1e-12), contacts_at=AtIterate(), joints_at=AtIterate())


def run(model, method, q, v, t1=0.4, dt=0.01):
    start = State(q, jnp.asarray(v))
    return simulate(model, method, 0.0, t1, dt, start, saveat=SaveAt(8)).states


def height(t, q):
    del t
    return q[:1]


def ball(law, method):
    system = LagrangianSystem(np.eye(1) * 1.3, f_ext=[-1.3 * 9.81])
    model = Model(system, Interaction(GapRelation(height), law))
    return run(model, method, jnp.array([0.3]), [0.0])


def chain(stiffness, method):
    """Three masses on springs between walls, the first of which is struck by a fourth."""
    k = stiffness * jnp.asarray([[2.0, -1, 0], [-1, 2, -1], [0, -1, 2]])
    system = LagrangianSystem.linear([1.0, 0.7, 1.3], [0.1, 0.2, 0.1], k)
    wall = Interaction(GapRelation(lambda t, q: q[2:] + 0.05), NewtonImpact(0.5))
    return run(Model(system, wall), method, jnp.array([0.1, 0.0, 0.0]), [0.0, 0.0, -1.0])


def on_ground(t, q):
    del t
    up = jnp.array([[0.0, 0.0, 1.0]])
    return q.position - 0.1 * up, q.position * (1 - up), up


def sphere(law, rolling):
    system = NewtonEulerSystem(0.8, 0.4 * 0.8 * 0.01)
    contact = Interaction(ContactFrame(on_ground, rolling=rolling), law)
    start = Pose(jnp.array([[0.0, 0.0, 0.1 - 1e-9]]), STILL.orientation)
    v = [0.8, 0.3, 0.0, 0.5, 1.0, -2.0]
    return run(Model(system, contact), MoreauJean(contacts_at=AtPrediction()), start, v)


def disc_on_slope(t, q):
    del t
    normal = jnp.array([[-0.2, np.sqrt(0.96)]])
    return (q[:2] - 0.1 * normal[0])[None], (q[:2] - (normal[0] @ q[:2]) * normal[0])[None], normal


def disc(mu):
    system = LagrangianSystem(np.diag([1.0, 1.0, 0.005]), f_ext=[0.0, -9.81, 0.0])
    law = RollingFriction(mu, 0.01)
    model = Model(system, Interaction(PlanarContact(disc_on_slope, rolling=True), law))
    q = jnp.append((0.1 - 1e-9) * jnp.array([-0.2, np.sqrt(0.96)]), 0.0)
    method = MoreauJean(contacts_at=AtPrediction(), solver=Auto(tolerance=1e-13))
    return run(model, method, q, [0.6, 0.6 * 0.2 / np.sqrt(0.96), 60.0])


def swinging_beam(arm):
    inertia = [[0.1, 0.1, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 1.0]]
    joint = Interaction(
        GapRelation(ball_joint(STILL, jnp.stack([arm, arm - 0.6, 0.1]))), Equality()
    )
    model = Model(NewtonEulerSystem(1.0, inertia), joint)
    return run(model, MoreauJean(theta=1.0, **IMPLICIT), STILL, [0, 0, 0, 1.0, 2.0, -1.0])


def door(limit, method):
    """A hinged body slowed by friction in its hinge."""
    joint = hinge(STILL, [0.3, 0.0, 0.0], [0.0, 0.0, 1.0])
    parts = (
        Interaction(GapRelation(joint), Equality()),
        Interaction(RateRelation(joint.angle), DryFriction(limit)),
    )
    model = Model(NewtonEulerSystem(1.0, [0.1, 0.2, 0.15], gravity=(0.0, 0.0, 0.0)), parts)
    return run(model, method, STILL, [0.0, -0.6, 0.0, 0.0, 0.0, 2.0])


def driven(amplitude):
    """A mass on a spring whose other end is moved."""
    k = jnp.asarray([[30.0, -30.0], [-30.0, 30.0]])
    drive = PrescribedVelocity(0, Harmonic(0.1, amplitude, 9.0, 0.3))
    model = Model(LagrangianSystem.linear([1.0, 0.5], None, k), prescribed=drive)
    return run(model, MoreauJean(), jnp.zeros(2), [0.0, 0.0])


def spring(stiffness):
    wrench = SpringDamper([0.1, 0.0, 0.2], [0.5, 0.3, 0.9], stiffness, 0.4, 0.2)
    model = Model(NewtonEulerSystem(1.0, [0.1, 0.2, 0.15], wrench))
    return run(model, MoreauJean(newton=Newton(20)), STILL, [0.0] * 6)


def stuck(strength):
    """Leaves a cohesive zone."""
    model = Model(
        LagrangianSystem(np.eye(1)), Interaction(GapRelation(height), Cohesive(strength, 0.1))
    )
    return run(model, MoreauJean(theta=1.0), jnp.array([0.0]), [1.0])


def thrown(law):
    """A spinning disc bounces once on the ground and is sent back by friction."""
    system = LagrangianSystem(np.diag([1.0, 1.0, 0.02]), f_ext=[0.0, -9.81, 0.0])
    relation = GapRelation(lambda t, q: jnp.stack([q[1] - 0.2, q[0] + 0.2 * q[2]])[None], 2)
    return run(
        Model(system, Interaction(relation, law)),
        MoreauJean(),
        jnp.array([0.0, 0.4, 0.0]),
        [1.0, 0, 9],
    )


# The motion as a function of the parameter, and its true value.
PROBLEMS = {
    "restitution": (lambda e: ball(NewtonImpact(e), MoreauJean()).v, 0.7),
    "restitution, SchatzmanPaoli": (lambda e: ball(NewtonImpact(e), SchatzmanPaoli()).q, 0.7),
    "restitution, D1MinusLinear": (lambda e: ball(NewtonImpact(e), D1MinusLinear()).v, 0.7),
    "restitution, Projected": (lambda e: ball(NewtonImpact(e), Projected(MoreauJean())).v, 0.7),
    "restitution, CombinedProjection": (
        lambda e: ball(NewtonImpact(e), CombinedProjection(MoreauJean())).v,
        0.7,
    ),
    "stiffness": (lambda k: chain(k, MoreauJean()).q, 40.0),
    "stiffness, SchatzmanPaoli": (lambda k: chain(k, SchatzmanPaoli()).q, 40.0),
    "friction, 5 rows": (lambda mu: sphere(RollingFriction(mu, 0.002), True).v, 0.2),
    "rolling friction": (lambda r: sphere(RollingFriction(0.2, r), True).v, 0.004),
    "friction, 3 rows": (lambda mu: sphere(CoulombFriction(mu), False).v, 0.2),
    "friction in the plane": (lambda mu: disc(mu).v, 0.15),
    "arm of a ball joint": (lambda a: swinging_beam(a).q.position, 0.3),
    "friction of a hinge": (lambda x: door(x, MoreauJean(theta=1.0, **IMPLICIT)).v, 0.3),
    "hinge, Projected": (lambda x: door(x, Projected(MoreauJean(theta=1.0), 1e-9)).v, 0.3),
    "amplitude of a drive": (lambda a: driven(a).q, 0.5),
    "stiffness of a spring": (lambda k: spring(k).q.position, 20.0),
    "cohesion": (lambda s: stuck(s).v, 4.0),
    "tangential restitution": (lambda x: thrown(CoulombFriction(0.9, 0.6, x)).v, 0.4),
    "Frémond's friction": (lambda mu: thrown(fremond_impact(mu, 0.6)).v, 0.1),
}


def in_both_modes(motion):
    """Values, their derivative in forward mode, and by how much reverse mode differs."""

    def evaluate(p):
        y, tangent = jax.linearize(lambda p: motion(p).reshape(-1), p)
        forward = tangent(jnp.ones_like(p))
        weights = jnp.sin(jnp.arange(y.size, dtype=y.dtype))
        (back,) = jax.linear_transpose(tangent, p)(weights)
        return y, forward, back - weights @ forward

    return evaluate


LONG = "friction of a hinge", "hinge, Projected", "arm of a ball joint"
# Each repeats in kind what another one proves.
LONG += "friction, 5 rows", "rolling friction", "stiffness of a spring", "tangential restitution"


@pytest.fixture(
    scope="module", params=[nightly(name) if name in LONG else name for name in PROBLEMS]
)
def problem(request):
    """The true parameter, and values with their derivative in both modes, compiled once."""
    motion, true = PROBLEMS[request.param]
    return true, eqx.filter_jit(in_both_modes(motion))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fusion_emitters"),
    [
        nightly("tangential restitution", True),
        ("tangential restitution", False),
        nightly("friction, 3 rows", True),
        nightly("friction, 3 rows", False),
    ],
)
def test_derivatives_do_not_depend_on_how_the_compiler_rounds(name, fusion_emitters):
    """As users compile: a sliding or sticking contact has velocities that are rounding and nothing else."""
    motion, true = PROBLEMS[name]
    options = OPTIMISED | {"xla_cpu_use_fusion_emitters": fusion_emitters}
    evaluate = jax.jit(in_both_modes(motion), compiler_options=options)
    _, slope, difference = evaluate(jnp.asarray(true))
    assert np.abs(difference) < 1e-9 * np.max(
        np.abs(slope)
    )  # measured at most 4e-15; 1e-3 to 1 before


@pytest.mark.slow
def test_forward_is_reverse_is_central_differences(problem):
    true, evaluate = problem
    step = 1e-5 * true
    _, slope, difference = evaluate(jnp.asarray(true))
    size = np.max(np.abs(slope))
    assert size > 1e-3  # the parameter is seen at all
    assert np.abs(difference) < 1e-9 * size  # measured at most 2e-11
    wide = (evaluate(jnp.asarray(true + step))[0] - evaluate(jnp.asarray(true - step))[0]) / (
        2 * step
    )
    np.testing.assert_allclose(slope, wide, rtol=0, atol=1e-6 * size)


@pytest.mark.slow
def test_recovered_from_its_own_data(problem):
    true, evaluate = problem
    data, _, _ = evaluate(jnp.asarray(true))
    p = 0.93 * true
    for _ in range(12):
        y, slope, _ = evaluate(jnp.asarray(p))
        p -= float(slope @ (y - data) / (slope @ slope))
    np.testing.assert_allclose(p, true, rtol=1e-8)
