"""Dry friction, relays and diodes: nothing jumps, and most derivatives of plain steps are true."""

import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import State
from diffnsd.laws import Complementarity, CoulombFriction, Relay
from diffnsd.model import Interaction, Model
from diffnsd.models import block_state, rlc_diode, sliding_block
from diffnsd.relations import FirstOrderLinear, GapRelation
from diffnsd.systems import FirstOrderSystem, LagrangianSystem

from ._base import G, KnownMotion, read, root


def block(x, wrap):
    """A block on a plane; `x`: speed, friction."""
    speed, mu = x
    zero = jnp.zeros_like(speed)
    return sliding_block(mu, law=wrap(CoulombFriction(mu))), State(
        jnp.zeros(3), jnp.stack([speed, zero, zero])
    )


def block_that_stops(end=0.8):
    """It rests at `speed²/(2 mu g)`."""

    def exact(x):
        return read(block_state(end, *x))

    return KnownMotion(("speed [m/s]", "mu"), (1.7, 0.3), end, block, exact, jumps=False)


def _ramp(t, slope):
    return jnp.stack([slope * t, 0 * t, -G + 0 * t])


def _heights(t, q):
    del t
    return jnp.stack([q[2], q[0], q[1]])[None]


def pulled(x, wrap):
    """A block of 1 kg at rest on a plane, pulled by a force `k t`; `x`: `k`, friction."""
    slope, mu = x
    system = LagrangianSystem(np.eye(3), f_ext=jax.tree_util.Partial(_ramp, slope=slope))
    relation = GapRelation(_heights, rows_per_contact=3)
    model = Model(system, Interaction(relation, wrap(CoulombFriction(mu))))
    return model, State(jnp.zeros(3), jnp.zeros(3))


def stick_to_slip(end=1.0):
    """It sticks until `t1 = mu g/k`, then `v = k (t − t1)²/2` and `x = k (t − t1)³/6`."""

    def exact(x):
        slope, mu = x
        rest = end - mu * G / slope
        zero = jnp.zeros_like(rest)
        place, speed = slope * rest**3 / 6, slope * rest**2 / 2
        return jnp.stack([place, zero, zero, speed, zero, zero])

    return KnownMotion(("pull [N/s]", "mu"), (6.0, 0.3), end, pulled, exact, jumps=False)


def relay(x, wrap):
    """`x' = −a x − s Sgn(x)`, `y' = x`; `x`: start, `a`, `s`."""
    start, a, s = x
    zero = jnp.zeros_like(a)
    rates = jnp.stack([jnp.stack([-a, zero]), jnp.array([1.0, 0.0])])
    relation = FirstOrderLinear([[1.0, 0.0]], jnp.stack([s, zero])[:, None])
    model = Model(FirstOrderSystem.linear(rates), Interaction(relation, wrap(Relay())))
    return model, State(None, jnp.stack([start, zero]))


def relay_switches(end=0.8):
    """It slides from `t1 = log(1 + a x0/s)/a` on; by then `y = (x0 − s t1)/a`."""

    def exact(x):
        start, a, s = x
        t = jnp.log1p(a * start / s) / a
        return jnp.stack([jnp.zeros_like(t), (start - s * t) / a])

    names = "start", "rate [1/s]", "relay"
    return KnownMotion(names, (1.0, 0.7, 2.0), end, relay, exact, jumps=False)


def driven_relay(x, wrap):
    """`x' = b − s Sgn(x)`; `x`: start, drive `b`, `s`."""
    start, drive, s = x
    relation = FirstOrderLinear([[1.0]], s[None, None])
    system = FirstOrderSystem.linear(jnp.zeros((1, 1)), drive[None])
    return Model(system, Interaction(relation, wrap(Relay()))), State(None, start[None])


def relay_is_crossed(end=0.7):
    """With `b > s` it does not slide: the rate jumps from `b + s` to `b − s`."""

    def exact(x):
        start, drive, s = x
        return ((drive - s) * (end + start / (drive + s)))[None]

    return KnownMotion(
        ("start", "drive", "relay"), (-1.0, 2.3, 0.9), end, driven_relay, exact, jumps=False
    )


def double_relay(x, wrap):
    """`x'' = −s Sgn(x)`; `x`: start, rate, `s`."""
    start, rate, s = x
    relation = FirstOrderLinear([[1.0, 0.0]], jnp.stack([jnp.zeros_like(s), s])[:, None])
    system = FirstOrderSystem.linear(jnp.array([[0.0, 1.0], [0.0, 0.0]]))
    return Model(system, Interaction(relation, wrap(Relay()))), State(
        None, jnp.stack([start, rate])
    )


def relay_of_degree_two(end=1.4):
    """One switch, at the root of a parabola: the acceleration jumps, and the derivative is lost."""

    def exact(x):
        start, rate, s = x
        fast = jnp.sqrt(rate**2 + 2 * s * start)
        rest = end - (rate + fast) / s
        return jnp.stack([-fast * rest + s * rest**2 / 2, -fast + s * rest])

    names = "start", "rate", "relay"
    return KnownMotion(names, (0.5, 0.2, 1.7), end, double_relay, exact, jumps=False)


SPEED = 8.0


def _source(t, peak, battery):
    return jnp.stack([(peak * jnp.sin(SPEED * t) - battery) / 0.1, 0 * t])


def rectifier(x, wrap):
    """`L i' = V sin(w t) − E − R i + lam`, `0 <= i ⟂ lam >= 0`, `L` = 0.1 H; `x`: V, E, R.

    With the charge, `Q' = i`. The multiplier is the reverse voltage of the diode.
    """
    peak, battery, r = x
    zero = jnp.zeros_like(r)
    rates = jnp.stack([jnp.stack([-r / 0.1, zero]), jnp.array([1.0, 0.0])])
    source = jax.tree_util.Partial(_source, peak=peak, battery=battery)
    relation = FirstOrderLinear([[1.0, 0.0]], [[10.0], [0.0]])
    model = Model(
        FirstOrderSystem.linear(rates, source), Interaction(relation, wrap(Complementarity()))
    )
    return model, State(None, jnp.zeros(2))


def conduction_angle(end=1.0):
    """It conducts from `sin(w t) = E/V` until the current, a sine and a decaying exponential, is 0.

    The end lies in the second conduction: charge of the first, current and charge of the second.
    """

    def exact(x):
        peak, battery, r = x
        size, lag = jnp.sqrt(r**2 + (SPEED * 0.1) ** 2), jnp.arctan2(SPEED * 0.1, r)
        opens = jnp.arcsin(battery / peak) / SPEED
        period, rate = 2 * np.pi / SPEED, r / 0.1

        def forced(t):
            return peak / size * jnp.sin(SPEED * t - lag) - battery / r

        def current(t, opens):
            return forced(t) - forced(opens) * jnp.exp(-rate * (t - opens))

        def charge(t, opens):
            swing = jnp.cos(SPEED * opens - lag) - jnp.cos(SPEED * t - lag)
            steady = peak / size * swing / SPEED - battery / r * (t - opens)
            return steady - forced(opens) * (1 - jnp.exp(-rate * (t - opens))) / rate

        def extinct(t, y):
            return (
                y[0] * jnp.sin(SPEED * t - y[1])
                - y[2]
                - (y[0] * jnp.sin(SPEED * y[3] - y[1]) - y[2]) * jnp.exp(-y[4] * (t - y[3]))
            )

        closes = root(extinct, 0.38, jnp.stack([peak / size, lag, battery / r, opens, rate]))
        since = end - period
        total = charge(closes, opens) + charge(since, opens)
        return jnp.stack([current(since, opens), total])

    names = "peak [V]", "battery [V]", "resistance [Ohm]"
    return KnownMotion(names, (5.0, 1.5, 0.8), end, rectifier, exact, jumps=False)


def resonator(x, wrap):
    """The resonator with a resistance behind a diode; `x`: voltage, `R`, `L`, `C`."""
    voltage, r, ind, c = x
    circuit = rlc_diode(r, ind, c)
    relation, law = circuit.interactions[0].relation, circuit.interactions[0].law
    model = Model(circuit.system, Interaction(relation, wrap(law)))
    return model, State(None, jnp.stack([voltage, jnp.zeros_like(voltage)]))


def resonator_with_diode(end=0.6):
    """A damped wave while `v > 0`, half an undamped one, and a damped one again."""

    def damped(t, v, i, r, ind, c):
        """`v'' + v'/(R C) + v/(L C) = 0`, and `i = −C v' − v/R`."""
        a = 1 / (2 * r * c)
        w = jnp.sqrt(1 / (ind * c) - a**2)
        b = (-(i + v / r) / c + a * v) / w
        cos, sin, decay = jnp.cos(w * t), jnp.sin(w * t), jnp.exp(-a * t)
        wave = decay * (v * cos + b * sin)
        slope = decay * w * (b * cos - v * sin) - a * wave
        return wave, -c * slope - wave / r

    def exact(x):
        voltage, r, ind, c = x
        a = 1 / (2 * r * c)
        w = jnp.sqrt(1 / (ind * c) - a**2)
        first = jnp.arctan2(w, a) / w  # cos = (a/w) sin
        _, i = damped(first, voltage, 0.0 * r, r, ind, c)
        half = np.pi * jnp.sqrt(ind * c)  # undamped: from (0, i) to (0, −i)
        return jnp.stack(damped(end - first - half, 0.0 * r, -i, r, ind, c))

    names = "voltage [V]", "resistance [Ohm]", "inductance [H]", "capacitance [F]"
    return KnownMotion(names, (2.0, 1.0, 0.1, 0.1), end, resonator, exact, jumps=False)
