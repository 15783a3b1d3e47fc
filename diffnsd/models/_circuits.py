"""Circuits with ideal diodes, all with the state `x = (voltage [V], current [A])`.

A resonator of a capacitor `C` and an inductor `L`, `C v' = −i − ...`, `L i' = v`, loses energy
through a resistor `R` behind a diode, or behind a bridge of four. The bridge rectifies the current
for either sign of `v`. Seen from the resonator it is the resistor itself, so the motion is that of a
damped oscillator, in closed form.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AnyShape, Number, checked_arguments
from .._numerics import as_float
from .._types import State
from ..laws import Complementarity
from ..model import Interaction, Model
from ..relations import FirstOrderLinear
from ..systems import FirstOrderSystem


class _Stored(eqx.Module):
    """Energy of a capacitor and a coil [J]."""

    capacitance: Array
    inductance: Array

    def __call__(self, x):
        return (self.capacitance * x[0] ** 2 + self.inductance * x[1] ** 2) / 2


def _matrix(rows) -> Array:
    """A matrix of numbers and parameters."""
    return jnp.stack([jnp.stack([as_float(x) for x in row]) for row in rows])


def _resonator(inductance: Array, capacitance: Array) -> FirstOrderSystem:
    a = _matrix([[0.0, -1 / capacitance], [1 / inductance, 0.0]])
    return FirstOrderSystem.linear(a, storage=_Stored(capacitance, inductance))


@checked_arguments
def rlc_diode(
    resistance: Number = 1e3, inductance: Number = 1e-2, capacitance: Number = 1e-6
) -> Model:
    """A resonator with a resistor behind one diode, which damps every other half wave.

        C v' = −i − lam,   L i' = v,    0 <= y = −v + R lam ⟂ lam >= 0

    The multiplier is the current of the diode [A]; the output is its reverse voltage [V].

    **Arguments:** `resistance` [Ohm]; `inductance` [H]; `capacitance` [F].
    """
    r, ind, c = (as_float(x) for x in (resistance, inductance, capacitance))
    relation = FirstOrderLinear([[-1.0, 0.0]], _matrix([[-1 / c], [0.0]]), r[None, None])
    return Model(_resonator(ind, c), Interaction(relation, Complementarity()))


@checked_arguments
def diode_bridge(
    resistance: Number = 1e3, inductance: Number = 1e-2, capacitance: Number = 1e-6
) -> Model:
    """A resonator that feeds a resistor through a bridge of four diodes.

        C v' = −i − lam3 + lam4,   L i' = v
        y = ((lam1 + lam2)/R − lam3,  (lam1 + lam2)/R − lam4,  lam1 − v,  lam2 + v)
        0 <= y ⟂ lam >= 0

    The multipliers are the reverse voltages of two diodes [V] and the currents of the other two [A];
    the outputs are the complementary quantities.

    **Arguments:** `resistance` [Ohm]; `inductance` [H]; `capacitance` [F].

    Reference: V. Acary, O. Bonnefon, B. Brogliato, Nonsmooth modeling and simulation for switched
    circuits (2011), doi:10.1007/978-90-481-9681-4.
    """
    r, ind, c = (as_float(x) for x in (resistance, inductance, capacitance))
    outputs = [[0.0, 0.0], [0.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]
    inputs = _matrix([[0.0, 0.0, -1 / c, 1 / c], [0.0] * 4])
    feedthrough = _matrix(
        [[1 / r, 1 / r, -1, 0], [1 / r, 1 / r, 0, -1], [1, 0, 0, 0], [0, 1, 0, 0]]
    )
    relation = FirstOrderLinear(outputs, inputs, feedthrough)
    return Model(_resonator(ind, c), Interaction(relation, Complementarity()))


@checked_arguments
def diode_bridge_state(
    t: AnyShape,
    voltage: AnyShape = 10.0,
    resistance: AnyShape = 1e3,
    inductance: AnyShape = 1e-2,
    capacitance: AnyShape = 1e-6,
) -> State:
    """Closed form: the state of `diode_bridge` started with a voltage and without current.

    Differentiable in all its arguments.

    **Arguments:** `t` [s]; `voltage` [V] at `t = 0`; the parameters of the circuit, underdamped:
    `4 R² C > L`.

    **Returns:** `State` with `x = (v, i)`.
    """
    t, v0, r, ind, c = (as_float(x) for x in (t, voltage, resistance, inductance, capacitance))
    damping = 1 / (2 * r * c)
    frequency = jnp.sqrt(1 / (ind * c) - damping**2)
    decay, phase = v0 * jnp.exp(-damping * t), frequency * t
    v = decay * (jnp.cos(phase) - damping / frequency * jnp.sin(phase))
    i = decay * jnp.sin(phase) / (ind * frequency)
    return State(None, jnp.stack([v, i]))


class _Switch(eqx.Module):
    """Resistance [Ohm] of a switch that is closed for a part of every period.

    Its logarithm changes along ramps, so that the motion depends smoothly on the duty.
    """

    duty: Array
    period: Array
    rise: Array
    closed: Array
    opened: Array

    def __call__(self, t) -> Float[Array, ""]:
        phase = jnp.mod(t / self.period, 1.0)
        from_edge = jnp.minimum(phase, self.duty - phase)
        wrapped = jnp.maximum(from_edge, phase - 1.0)
        part = jnp.clip(wrapped / self.rise + 0.5, 0.0, 1.0)
        return self.closed**part * self.opened ** (1 - part)


class _Converter(eqx.Module):
    """The operators of a buck converter as functions of time."""

    switch: _Switch
    source: Array
    load: Array
    inductance: Array
    capacitance: Array

    def a(self, t):
        r = self.switch(t)
        c, ind = self.capacitance, self.inductance
        return _matrix([[-1 / (self.load * c), 1 / c], [-1 / ind, -r / ind]])

    def b(self, t):
        del t
        return jnp.stack([jnp.zeros_like(self.source), self.source / self.inductance])

    def output(self, t):
        r = self.switch(t)
        return _matrix([[0.0, -r]])

    def input(self, t):
        return _matrix([[0.0], [self.switch(t) / self.inductance]])

    def feedthrough(self, t):
        return self.switch(t)[None, None]

    def offset(self, t):
        del t
        return self.source[None]


@checked_arguments
def buck_converter(
    duty: Number = 0.5,
    source: Number = 20.0,
    load: Number = 10.0,
    inductance: Number = 1e-3,
    capacitance: Number = 2e-5,
    period: Number = 1e-4,
    rise: Number = 0.1,
) -> Model:
    """A converter that lowers a voltage with a switch that is closed for a part of every period.

        C v' = i − v / load,    L i' = w − v,    w = source − R_s(t) (i − lam)
        0 <= w ⟂ lam >= 0

    The freewheeling diode takes the current `lam` [A] while the switch is open; the output `w` [V]
    is the voltage of the node between switch, diode and coil. As long as the current never stops,
    the mean voltage of the load is `duty * source`, less the losses of the switch (3 % here). The
    switch has 0.05 Ohm closed and 10 kOhm open, and a transition takes `rise` periods. With about 40
    steps per transition, derivatives with respect to `duty` are correct within a few percent. Use
    `EulerMoreau(theta=1.0)`: the open switch is stiff.

    **Arguments:** `duty`: in (0, 1); `source` [V]; `load` [Ohm]; `inductance` [H]; `capacitance`
    [F]; `period` [s]; `rise`: fraction of a period.

    Reference: V. Acary, O. Bonnefon, B. Brogliato, Nonsmooth modeling and simulation for switched
    circuits (2011), doi:10.1007/978-90-481-9681-4.
    """
    values = duty, period, rise, 0.05, 1e4
    circuit = _Converter(
        _Switch(*map(as_float, values)), *map(as_float, (source, load, inductance, capacitance))
    )
    storage = _Stored(circuit.capacitance, circuit.inductance)
    system = FirstOrderSystem.linear(circuit.a, circuit.b, storage=storage)
    relation = FirstOrderLinear(circuit.output, circuit.input, circuit.feedthrough, circuit.offset)
    return Model(system, Interaction(relation, Complementarity()))
