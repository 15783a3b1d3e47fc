"""Every method with every wrapper on every kind of motion: right, or refused with a sentence.

The answers are computed by other code: closed forms, and the equations of a rod in its angle, which
scipy integrates from event to event. Where the method keeps the times of impacts the derivative is
compared too; a plain method loses it, which `tests/integrators` shows.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import nightly, slow
from scipy.integrate import solve_ivp

from diffnsd import (
    RESULTS,
    RKMK,
    Adaptive,
    BackwardEuler,
    CombinedProjection,
    Corrected,
    D1MinusLinear,
    EulerMoreau,
    EventDriven,
    Galerkin,
    Interaction,
    LieVariational,
    Located,
    Model,
    MoreauJean,
    Projected,
    SaveAt,
    SchatzmanPaoli,
    State,
    ThetaGamma,
    ZeroOrderHold,
    simulate,
)
from diffnsd.control import AbstractController, Sampled
from diffnsd.integrators import ElasticImpact, TripleJump
from diffnsd.laws import CoulombFriction, DryFriction, Equality, NewtonImpact, Relay
from diffnsd.relations import FirstOrderLinear, GapRelation, RateRelation
from diffnsd.systems import FirstOrderSystem, LagrangianSystem

G = 9.81
STEPS = 200


class Damper(AbstractController):
    """`u = −gain y`, of the last entry of what is measured: a velocity."""

    gain: float = 0.5

    def init(self, t, y):
        del t, y
        return ()

    def __call__(self, t, y, memory, period):
        del t, period
        return -self.gain * y[-1:], memory


# ---------------------------------------------------------------- the motions and their answers


def ball(p):
    """A ball from the height p, e = 0.8."""
    system = LagrangianSystem(jnp.eye(1), f_ext=jnp.array([-G]), forcing=_control)
    model = Model(system, Interaction(GapRelation(lambda t, q: q), NewtonImpact(0.8)))
    return model, State(p[None], jnp.zeros(1))


def elastic_ball(p):
    """The same, e = 1."""
    model, state = ball(p)
    return Model(
        model.system, Interaction(model.interactions[0].relation, NewtonImpact(1.0))
    ), state


def _control(t, state, u):
    del t
    return jnp.zeros_like(state.v) if u is None else u


def exact_ball(p, e=0.8):
    t = np.sqrt(2 * p / G)
    v, rest = e * G * t, 0.8 - t
    return np.array([v * rest - G * rest**2 / 2, v - G * rest])


def exact_sampled_ball(p, e=0.8, gain=0.5):
    """The ball under a force held for a tenth of the time, from sample to sample."""
    q, v, period = p, 0.0 * p, 0.08
    for _ in range(10):
        a, rest = -G - gain * v, period
        root = v**2 - 2 * a * q
        hit = (-v - np.sqrt(root)) / a
        if 0 < hit.real < rest:
            q, v, rest = 0.0 * p, -e * (v + a * hit), rest - hit
        q, v = q + v * rest + a * rest**2 / 2, v + a * rest
    return np.array([q, v])


def rod(p, *more):
    """A rod of length 1 on a hinge, in maximal coordinates (x, y, angle), let go at the angle p."""
    system = LagrangianSystem(
        jnp.diag(jnp.array([1.0, 1.0, 1 / 12])), f_ext=jnp.array([0, -G, 0.0])
    )

    def hinge(t, q):
        del t
        return q[:2] - jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])]) / 2

    state = State(jnp.stack([jnp.cos(p) / 2, jnp.sin(p) / 2, p]), jnp.zeros(3))
    return Model(system, (Interaction(GapRelation(hinge), Equality()), *more)), state


def rod_with_stop(p):
    """The same with a stop at the angle −1, e = 0.3."""
    return rod(p, Interaction(GapRelation(lambda t, q: 1.0 + q[2:]), NewtonImpact(0.3)))


def exact_rod(p, e=None, end=0.8):
    """Angle and rate from `angle'' = −3/2 g cos(angle)`, from event to event."""

    def field(t, y):
        return [y[1], -1.5 * G * np.cos(y[0])]

    def stop(t, y):
        return y[0] + 1.0

    stop.terminal, stop.direction = True, -1
    t, y = 0.0, [p, 0.0]
    while True:
        out = solve_ivp(
            field, (t, end), y, "DOP853", events=None if e is None else stop, rtol=1e-12, atol=1e-13
        )
        t, y = out.t[-1], out.y[:, -1]
        if out.status != 1:
            return np.array(y)
        y = np.array([-1.0, -e * y[1]])


def rubbing(p):
    """A block with dry friction that strikes a wall, beside a ball that strikes a rough floor."""
    system = LagrangianSystem(jnp.eye(3), f_ext=jnp.array([0.0, 0.0, -G]))
    model = Model(
        system,
        (
            Interaction(RateRelation(lambda t, q: q[:1]), DryFriction(1.0)),
            Interaction(GapRelation(lambda t, q: 0.5 - q[:1]), NewtonImpact(0.5)),
            Interaction(GapRelation(lambda t, q: q[None, :0:-1], 2), CoulombFriction(0.1, 0.8)),
        ),
    )
    zero = jnp.zeros_like(p)
    return model, State(jnp.stack([zero, zero, p]), jnp.stack([2 * p, 3 * jnp.ones_like(p), zero]))


def exact_rubbing(p, end=0.6):
    v = np.sqrt(4 * p**2 - 1)
    t = end - (2 * p - v)
    block = 0.5 - v / 2 * t + t**2 / 2, -v / 2 + t
    t = np.sqrt(2 * p / G)
    up, along, rest = 0.8 * G * t, 3 - 0.1 * 1.8 * G * t, end - t
    bounce = 3 * t + along * rest, up * rest - G * rest**2 / 2, along, up - G * rest
    return np.array([block[0], *bounce[:2], block[1], *bounce[2:]])


def resting_slide(p):
    """A block that slides on the floor, without an impact: the law of friction alone."""
    system = LagrangianSystem(jnp.eye(2), f_ext=jnp.array([0.0, -G]))
    floor = GapRelation(lambda t, q: q[None, ::-1], 2)
    state = State(jnp.zeros(2), jnp.stack([p, jnp.zeros_like(p)]))
    return Model(system, Interaction(floor, CoulombFriction(0.2))), state


def exact_slide(p, end=0.4):
    return np.array([p * end - 0.1 * G * end**2, 0 * p, p - 0.2 * G * end, 0 * p])


def relay(p):
    """`x'' = −sgn(x) + u` from the position p: the relay switches once."""
    system = FirstOrderSystem.linear([[0.0, 1.0], [0.0, 0.0]], inputs=[[0.0], [1.0]])
    model = Model(system, Interaction(FirstOrderLinear([[1.0, 0.0]], [[0.0], [1.0]]), Relay()))
    return model, State(None, jnp.stack([p, jnp.zeros_like(p)]))


def exact_relay(p, gain=0.0, end=1.8):
    x, v, sign, period = p, 0.0 * p, -1.0, end / 10
    for _ in range(10):
        a, rest = sign - gain * v, period
        hit = (-v - np.sqrt(v**2 - 2 * a * x)) / a if sign < 0 else -1.0
        if 0 < np.real(hit) < rest:
            x, v, rest, sign = 0.0 * p, v + a * hit, rest - hit, 1.0
            a = a + 2.0
        x, v = x + v * rest + a * rest**2 / 2, v + a * rest
    return np.array([x, v])


def complex_step(exact):
    """Derivative of a closed form, to rounding."""
    return lambda p: exact(p + 1e-30j).imag / 1e-30


def differences(exact):
    """Derivative of what scipy integrates to twelve digits."""
    return lambda p: (exact(p + 1e-4) - exact(p - 1e-4)) / 2e-4


class Kind(NamedTuple):
    """A motion: how it is built, its end, its parameter, what is compared, value and derivative."""

    build: Callable
    end: float
    p: float
    read: Callable
    exact: Callable
    slope: Callable
    sampled: bool = False


def everything(state):
    return jnp.concatenate([state.v] if state.q is None else [state.q, state.v])


def angle(state):
    return jnp.stack([state.q[2], state.v[2]])


stopped = functools.partial(exact_rod, e=0.3)
controlled = functools.partial(exact_relay, gain=0.5)
KINDS = {
    "impact": Kind(ball, 0.8, 1.0, everything, exact_ball, complex_step(exact_ball)),
    "elastic impact": Kind(
        elastic_ball, 0.8, 1.0, everything,
        functools.partial(exact_ball, e=1.0), complex_step(functools.partial(exact_ball, e=1.0)),
    ),
    "joint": Kind(rod, 0.8, 0.1, angle, exact_rod, differences(exact_rod)),
    "joint and stop": Kind(rod_with_stop, 0.8, 0.1, angle, stopped, differences(stopped)),
    "friction": Kind(rubbing, 0.6, 1.0, everything, exact_rubbing, complex_step(exact_rubbing)),
    "sliding": Kind(resting_slide, 0.4, 1.0, everything, exact_slide, complex_step(exact_slide)),
    "relay": Kind(relay, 1.8, 0.5, everything, exact_relay, complex_step(exact_relay)),
    "sampled impact": Kind(
        ball, 0.8, 1.0, everything, exact_sampled_ball, complex_step(exact_sampled_ball), True
    ),
    "sampled relay": Kind(relay, 1.8, 0.5, everything, controlled, complex_step(controlled), True),
}  # fmt: skip

# ---------------------------------------------------------------- the pairs

METHODS = {
    "MoreauJean": MoreauJean(),
    "BackwardEuler": BackwardEuler(),
    "SchatzmanPaoli": SchatzmanPaoli(),
    "D1MinusLinear": D1MinusLinear(),
    "LieVariational": LieVariational(),
    "Galerkin": Galerkin(2),
    "ElasticImpact": ElasticImpact(),
    "EventDriven": EventDriven(),
    "RKMK": RKMK(),
    "Adaptive": Adaptive(RKMK(diffrax.Tsit5())),
    "EulerMoreau": EulerMoreau(),
    "ThetaGamma": ThetaGamma(),
    "ZeroOrderHold": ZeroOrderHold(),
}


def sampled(inner):
    return Sampled(inner, Damper(), every=STEPS // 10)


WRAPPERS = {
    "plain": lambda inner: inner,
    "Located": Located,
    "Corrected": Corrected,
    "Projected": Projected,
    "CombinedProjection": CombinedProjection,
    "TripleJump": TripleJump,
    "Located(Projected)": lambda inner: Located(Projected(inner)),
    "Corrected(Projected)": lambda inner: Corrected(Projected(inner)),
    "Projected(Located)": lambda inner: Projected(Located(inner)),
    "Located(Located)": lambda inner: Located(Located(inner)),
    "Located(Corrected)": lambda inner: Located(Corrected(inner)),
    "Sampled": sampled,
    "Sampled(Located)": lambda inner: sampled(Located(inner)),
    "Sampled(Corrected)": lambda inner: sampled(Corrected(inner)),
    "Located(Sampled)": lambda inner: Located(sampled(inner)),
    "Corrected(Sampled)": lambda inner: Corrected(sampled(inner)),
    "TripleJump(Sampled)": lambda inner: TripleJump(sampled(inner)),
}


def start(integrator, kind: Kind, p):
    """A simulation of a motion: its end, whether it succeeded, and the drift of its joints."""
    model, state = kind.build(p)
    out = simulate(
        model,
        integrator,
        0.0,
        kind.end,
        kind.end / STEPS,
        state,
        None if kind.sampled else jnp.zeros(1),
        saveat=SaveAt.end(),
        throw=False,
    )
    joints = [g for i, g in zip(model.interactions, out.gaps, strict=True) if i.law.holds_gap]
    drift = jnp.max(jnp.abs(jnp.concatenate([jnp.zeros(1), *joints])))
    return kind.read(out.states), (out.result == RESULTS.successful, drift)


def outcome(integrator, kind: Kind):
    """Largest errors of value and derivative at the end, relative to the sizes of the answers; drift.

    The derivative only of methods that keep the times of impacts; 0 for others.
    """

    def run(p):
        return start(integrator, kind, p)

    def both(p):
        if not integrator.keeps_impact_times:
            value, aux = run(p)
            return value, None, aux
        return jax.jvp(run, (p,), (jnp.ones_like(p),), has_aux=True)

    value, slope, (done, drift) = eqx.filter_jit(both)(jnp.asarray(kind.p))
    assert done
    value = _relative(value, kind.exact(kind.p))
    slope = 0.0 if slope is None else _relative(slope, kind.slope(kind.p))
    return value, slope, float(drift)


def _relative(found, known):
    return np.max(np.abs(np.asarray(found) - known)) / (1 + np.max(np.abs(known)))


# ---------------------------------------------------------------- what is accepted, all else is refused

FRICTIONLESS = "impact", "elastic impact", "joint", "joint and stop"
ALL = *FRICTIONLESS, "friction", "sliding"
THETA = {"MoreauJean": ALL, "BackwardEuler": ALL}
VARIATIONAL = {"LieVariational": ALL, "Galerkin": ALL}
LOCATED = {
    **THETA, **VARIATIONAL, "D1MinusLinear": FRICTIONLESS,
    "EulerMoreau": ("relay",), "ZeroOrderHold": ("relay",),
}  # fmt: skip
PLAIN = {
    **LOCATED, "SchatzmanPaoli": ALL, "ElasticImpact": ("elastic impact",),
    "EventDriven": ALL, "ThetaGamma": ("relay",),
}  # fmt: skip
JUMPING = dict.fromkeys(("MoreauJean", "D1MinusLinear", "LieVariational", "Galerkin"), ("joint",))


def under_control(accepted):
    """The same methods, with what is moved by a sampled controller."""
    kinds = {
        name: ("sampled relay" if k == ("relay",) else "sampled impact",)
        for name, k in accepted.items()
    }
    kinds.pop("ElasticImpact", None)
    return kinds


ACCEPTED = {
    "plain": PLAIN,
    "Located": LOCATED,
    "Corrected": LOCATED,
    "Projected": THETA,
    "CombinedProjection": THETA,
    "TripleJump": JUMPING,
    "Located(Projected)": THETA,
    "Corrected(Projected)": THETA,
    "Projected(Located)": THETA,
    "Sampled": under_control(PLAIN),
    "Sampled(Located)": under_control(LOCATED),
    "Sampled(Corrected)": under_control(LOCATED),
}  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_is_not_accepted_is_refused_with_a_remedy(wrapper):
    for method, inner in METHODS.items():
        accepted = ACCEPTED.get(wrapper, {}).get(method, ())
        for name, kind in KINDS.items():
            if kind.sampled != ("Sampled" in wrapper):
                continue
            p = jnp.asarray(kind.p)
            if name in accepted:
                assert WRAPPERS[wrapper](inner).supports(kind.build(p)[0]) is None, (method, name)
                continue
            with pytest.raises(ValueError) as error:
                start(WRAPPERS[wrapper](inner), kind, p)
                pytest.fail(f"{wrapper} of {method} accepts {name}")
            assert "use " in str(error.value), (method, name, str(error.value))


# Errors of value and derivative in 200 steps, measured. The first ones are run always.
RIGHT = [
    ("plain", "MoreauJean", "joint and stop", 2.9e-2, 0),
    ("plain", "BackwardEuler", "joint and stop", 7.9e-3, 0),
    ("plain", "SchatzmanPaoli", "joint and stop", 3.2e-2, 0),
    ("plain", "D1MinusLinear", "joint and stop", 6.3e-3, 0),
    ("plain", "LieVariational", "friction", 8.1e-3, 0),
    ("plain", "ElasticImpact", "elastic impact", 1.6e-5, 9.0e-4),
    ("Projected", "MoreauJean", "joint and stop", 3.1e-2, 0),
    ("TripleJump", "LieVariational", "joint", 9.6e-8, 0),
    ("Sampled(Located)", "MoreauJean", "sampled impact", 1.5e-15, 4.6e-15),
    ("plain", "ThetaGamma", "relay", 1.4e-3, 0),
    ("plain", "EulerMoreau", "relay", 1.4e-3, 0),
    ("Located", "EulerMoreau", "relay", 6.0e-16, 5.2e-16),
]
MORE = [
    ("Located", "MoreauJean", "joint and stop", 5.5e-5, 5.7e-5),
    ("plain", "MoreauJean", "friction", 1.7e-2, 0),
    ("plain", "BackwardEuler", "friction", 1.2e-3, 0),
    ("plain", "SchatzmanPaoli", "friction", 1.5e-2, 0),
    ("plain", "LieVariational", "joint and stop", 1.8e-2, 0),
    ("plain", "Galerkin", "joint and stop", 1.8e-2, 0),
    ("CombinedProjection", "MoreauJean", "joint and stop", 3.1e-2, 0),
    ("Sampled(Corrected)", "MoreauJean", "sampled impact", 1.1e-2, 1.5e-15),
]
LONG = [
    ("Located", "MoreauJean", "friction", 4.4e-13, 6.1e-14),
    ("Located(Projected)", "MoreauJean", "joint and stop", 3.1e-5, 5.7e-5),
    ("plain", "EventDriven", "impact", 2e-15, 4e-16),
    ("Located", "D1MinusLinear", "joint and stop", 4.0e-5, 4.5e-5),
    ("Corrected", "MoreauJean", "joint and stop", 2.9e-2, 5.7e-5),
    ("Corrected", "EulerMoreau", "relay", 1.4e-3, 5.2e-16),
    ("Sampled(Located)", "EulerMoreau", "sampled relay", 1.1e-15, 1.2e-15),
    ("plain", "EventDriven", "joint and stop", 1.6e-13, 4.2e-10),
    ("Corrected", "MoreauJean", "friction", 1.7e-2, 7.0e-12),
    ("Located", "LieVariational", "joint and stop", 5.8e-5, 1.1e-5),
    ("Projected(Located)", "MoreauJean", "joint and stop", 3.1e-5, 5.7e-5),
    ("Corrected(Projected)", "MoreauJean", "joint and stop", 3.1e-2, 5.7e-5),
]


@pytest.mark.parametrize(
    ("wrapper", "method", "kind", "value", "slope"),
    [
        *RIGHT[:4],
        *(slow(*case) for case in RIGHT[4:]),
        *(nightly(*case) for case in [*MORE, *LONG]),
    ],
)
def test_what_is_accepted_is_right(wrapper, method, kind, value, slope):
    assert kind in ACCEPTED[wrapper][method]
    integrator = WRAPPERS[wrapper](METHODS[method])
    found = outcome(integrator, KINDS[kind])
    assert found[0] < 2 * value + 1e-9
    assert found[1] < 2 * slope + 1e-9
    if "Projected" in wrapper:
        assert found[2] <= 1e-8
