"""The reference cases of first-order systems: circuits, relays, a gene network, sampled control.

Each case is described in full in the `case.md` beside its data. Columns are those that the case
compares, in its order.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import diffnsd as nsd
from _cases import Case, Setup, Suite
from diffnsd.control import ImplicitSlidingMode, Sampled
from diffnsd.laws import Complementarity, Relay
from diffnsd.relations import FirstOrderLinear, FirstOrderType1
from diffnsd.systems import FirstOrderSystem

INDUCTANCE, CAPACITANCE, RESISTANCE = 1e-2, 1e-6, 1e3
TANK = np.array([[0, -1 / CAPACITANCE], [1 / INDUCTANCE, 0]])


def _setup(system, relation, law, method, dt, steps, x0) -> Setup:
    model = nsd.Model(system, nsd.Interaction(relation, law))
    return Setup(model, method, 0.0, steps * dt, dt, system.state(x0))


def _told(s: nsd.Solution):
    """Times, states, multipliers and outputs of the one interaction, all `(t, ...)`."""
    lam, y = s.details.multipliers[0], s.details.outputs[0]
    return (
        np.asarray(s.ts),
        np.asarray(s.states.v),
        np.asarray(lam[:, :, 0]),
        np.asarray(y[:, :, 0]),
    )


def circuit_rlcd() -> Setup:
    relation = FirstOrderLinear([[-1.0, 0.0]], [[-1 / CAPACITANCE], [0.0]], [[RESISTANCE]])
    system, method = FirstOrderSystem.linear(TANK), nsd.EulerMoreau(theta=0.5000000000001)
    return _setup(system, relation, Complementarity(), method, 1e-5, 499, [10.0, 0.0])


def _rlcd_columns(s):
    t, x, lam, y = _told(s)
    return np.column_stack([t, x, -y, lam])


def _bridge(method) -> Setup:
    r, c = 1 / RESISTANCE, 1 / CAPACITANCE
    relation = FirstOrderLinear(
        C=[[0.0, 0.0], [0.0, 0.0], [-1.0, 0.0], [1.0, 0.0]],
        B=[[0.0, 0.0, -c, c], [0.0, 0.0, 0.0, 0.0]],
        D=[[r, r, -1.0, 0.0], [r, r, 0.0, -1.0], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]],
    )
    system = FirstOrderSystem.linear(TANK)
    return _setup(system, relation, Complementarity(), method, 1e-6, 4999, [10.0, 0.0])


def diode_bridge() -> Setup:
    return _bridge(nsd.EulerMoreau(theta=0.5))


def diode_bridge_theta_gamma() -> Setup:
    return _bridge(nsd.ThetaGamma(theta=0.5, gamma=0.5))


def _bridge_columns(s):
    t, x, lam, y = _told(s)
    return np.column_stack([t, x, y[:, 0], -lam[:, :2], lam[:, 2], y[:, 0] + lam[:, 2]])


def _energy_columns(s):
    energy = (CAPACITANCE * s.states.v[:, 0] ** 2 + INDUCTANCE * s.states.v[:, 1] ** 2) / 2
    return np.column_stack([_bridge_columns(s)[:, :7], energy])


def _relay(a, b, c, x0, dt, steps) -> Setup:
    system, relation = FirstOrderSystem.linear(np.array(a, float)), FirstOrderLinear(c, b)
    return _setup(system, relation, Relay(), nsd.EulerMoreau(theta=0.5), dt, steps, x0)


def friction_oscillator() -> Setup:
    a, b, c = [[0, 1], [-1, 0]], [[0.0], [1.0]], [[0.0, 1.0]]
    return _relay(a, b, c, [12.0, 6.0], 1e-2, 9999)


def relay_oscillator() -> Setup:
    a, b, c = [[0, 1, 0], [0, 0, 1], [0, -3, -2]], [[0.0], [0.0], [1.0]], [[1.0, 0.0, 0.0]]
    return _relay(a, b, c, [0.0, 3 * np.sqrt(2) / (2 * np.pi), 0.0], 1e-2, 9999)


def relay_simple_2d() -> Setup:
    return _relay(np.zeros((2, 2)), 2 * np.eye(2), np.eye(2), [1.0, -1.0], 1e-3, 799)


def _relay_columns(s):
    return np.column_stack(_told(s))


def _decay(t, x, args):
    del t, args
    return x * np.array([-4.5, -1.5])


def _thresholds(t, x):
    del t
    return np.array([4.0, 4.0, 8.0, 8.0]) - x[np.array([0, 1, 0, 1])]


def _production(t, lam):
    del t
    return 40 * jnp.stack([(1 - lam[2]) * lam[1], lam[0] * (1 - lam[3])])


def step_system_genetic() -> Setup:
    system = FirstOrderSystem(_decay, n=2)
    relation = FirstOrderType1(_thresholds, _production, contacts=4)
    method = nsd.EulerMoreau(theta=0.5)
    return _setup(system, relation, Relay(0.0, 1.0), method, 1e-3, 2999, [1.0, 6.0])


def _gene_columns(s):
    t, x, lam, _ = _told(s)
    made = 40 * np.column_stack([(1 - lam[:, 2]) * lam[:, 1], lam[:, 0] * (1 - lam[:, 3])])
    return np.column_stack([t, x, lam, made - x * [4.5, 1.5]])


def _disturbance(t):
    return jnp.sin(50 * t) * np.array([1.0, -1.0])


def smc_implicit() -> Setup:
    """One step more than is recorded: row k of the reference holds the control of the step after."""
    b, c = [[0.0], [2.0]], [[0.0, 1.0]]
    system = FirstOrderSystem.linear(np.zeros((2, 2)), _disturbance, inputs=b)
    controller = ImplicitSlidingMode(np.zeros((2, 2)), b, c)
    method = Sampled(nsd.ZeroOrderHold(), controller, every=100)
    return Setup(nsd.Model(system), method, 0.0, 1.0001, 1e-4, system.state([1.0, -1.0]))


def _control_columns(s):
    controls = np.asarray(s.details.control)[1:]
    return np.column_stack([s.ts[:-1], s.states.v[:-1], controls])


CASES = [
    Case("circuit_rlcd", circuit_rlcd, _rlcd_columns),
    Case("diode_bridge", diode_bridge, _bridge_columns),
    Case("diode_bridge_theta_gamma", diode_bridge_theta_gamma, _energy_columns),
    Case("friction_oscillator", friction_oscillator, _relay_columns),
    Suite("onestep_lcp_suite", "lcp", "z", lambda problem: Complementarity(), relative=True),
    Suite(
        "onestep_relay_suite",
        "relay",
        "lam",
        lambda problem: Relay(problem["lb"], problem["ub"]),
        relative=False,
    ),
    Case("relay_oscillator", relay_oscillator, _relay_columns),
    Case("relay_simple_2d", relay_simple_2d, _relay_columns),
    Case("smc_implicit", smc_implicit, _control_columns),
    Case("step_system_genetic", step_system_genetic, _gene_columns),
]
