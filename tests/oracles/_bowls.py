"""A point that slides without friction in a round bowl, by scipy: contact that lasts on a hollow surface."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from diffnsd.laws import NewtonImpact
from diffnsd.model import Interaction, Model
from diffnsd.relations import GapRelation
from diffnsd.systems import LagrangianSystem

from ._base import G, KnownMotion, solved

SOLVER = {"method": "DOP853", "rtol": 1e-13, "atol": 1e-14}
STOP = 0.5
"""Where the stop of `strikes_a_stop` is: a radial plane at this angle from the lowest point."""


def _inside(t, q):
    del t
    return (1.0 - jnp.sqrt(jnp.sum(q * q)))[None]


def _before_the_stop(t, q):
    del t
    return (-jnp.cos(STOP) * q[0] - jnp.sin(STOP) * q[1])[None]


def _on_the_bowl(angle, rate):
    """Place and velocity; the angle is from the lowest point, and the radius is 1 m."""
    q = jnp.stack([jnp.sin(angle), -jnp.cos(angle)])
    return q, rate * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def _point(x, *contacts):
    system = LagrangianSystem(np.eye(2), f_ext=np.array([0.0, -G]))
    return Model(system, contacts), system.state(*_on_the_bowl(x[0], x[1]))


def loose(x, wrap):
    """The bowl alone; `x`: angle, angular velocity, restitution."""
    return _point(x, Interaction(GapRelation(_inside), wrap(NewtonImpact(x[2]))))


def stopped(x, wrap):
    """The bowl, from which nothing rebounds, and the stop; `x`: angle, angular velocity, restitution."""
    bowl = Interaction(GapRelation(_inside), wrap(NewtonImpact(0.0)))
    return _point(x, bowl, Interaction(GapRelation(_before_the_stop), wrap(NewtonImpact(x[2]))))


def _until(t, y, end, event):
    """The motion on the bowl until an event or the end."""
    event.terminal = True
    out = solve_ivp(lambda t, y: [y[1], -G * np.sin(y[0])], (t, end), y, events=event, **SOLVER)
    return out.t[-1], out.y[:, -1].copy(), out.status == 1


def _with_slopes(value: Callable, width: float = 1e-3) -> Callable:
    """With differences of fourth order, of this oracle: their error is 1e-10."""

    def solve(x):
        def change(k, d):
            return value(x + k * d) - value(x - k * d)

        columns = [(8 * change(1, d) - change(2, d)) / (12 * width) for d in width * np.eye(len(x))]
        return value(x), np.stack(columns, axis=1)

    return solve


NAMES = "angle [rad]", "rate [rad/s]", "e"


def lets_go(end=1.4):
    """It slides up past the height of the centre, lets go, flies, and strikes the bowl at the other side."""

    def value(x):
        angle, rate, e = x
        t, y, done = _until(0.0, [angle, rate], end, lambda t, y: y[1] ** 2 + G * np.cos(y[0]))
        assert done
        q, v = (np.asarray(a) for a in _on_the_bowl(*y))
        # It lets go where the normal part of `g` is the acceleration of the circle, so that
        # `|q + v s + g s²/2|² − 1` is `s³ (v·g + s g·g/4)`.
        g = np.array([0.0, -G])
        s = -4 * (v @ g) / (g @ g)
        q, v = q + v * s + g * s * s / 2, v + g * s
        v = v - (1 + e) * (v @ q) * q
        rest = end - t - s
        assert rest > 0
        last = q + v * rest + g * rest**2 / 2
        assert last @ last < 1
        return np.concatenate([last, v + g * rest])

    x = 0.0, 5.8, 0.5
    return KnownMotion(NAMES, x, end, loose, solved(_with_slopes(value), 4))


def strikes_a_stop(end=2.6):
    """It slides down from one side against the stop, back, and against it again."""

    def value(x):
        angle, rate, e = x
        t, y, strikes = 0.0, np.array([angle, rate]), 0
        while t < end:

            def stop(t, y):
                return STOP - y[0]

            stop.direction = -1
            t, y, done = _until(t, y, end, stop)
            y[1] *= -e if done else 1.0
            strikes += done
        assert strikes == 2
        return np.concatenate([np.asarray(a) for a in _on_the_bowl(*y)])

    x = -1.0, 0.0, 0.6
    return KnownMotion(NAMES, x, end, stopped, solved(_with_slopes(value), 4))
