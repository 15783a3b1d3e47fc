"""Dry friction whose sliding reverses without sticking: a block on a belt that turns round, a pendulum."""

import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import State
from diffnsd.laws import DryFriction
from diffnsd.model import Interaction, Model
from diffnsd.relations import RateRelation
from diffnsd.systems import LagrangianSystem

from ._base import G, KnownMotion, root, solved
from ._event_by_event import Mechanism, motion

PACE = 4.0
"""Of the belt [rad/s]: its speed is `belt cos(PACE t)`."""


def _spring(t, q, v, stiffness):
    del t, v
    return stiffness * q


def _slid(t, q, belt):
    """How far the block has slid on the belt."""
    return q - belt / PACE * jnp.sin(PACE * t)


def block(x, wrap):
    """A block of 1 kg on a spring and a belt; `x`: speed, belt, friction, stiffness."""
    speed, belt, friction, stiffness = x
    force = jax.tree_util.Partial(_spring, stiffness=stiffness)
    system = LagrangianSystem(np.eye(1), f_int=force)
    rubs = RateRelation(jax.tree_util.Partial(_slid, belt=belt))
    model = Model(system, Interaction(rubs, wrap(DryFriction(friction))))
    return model, State(jnp.zeros(1), speed[None])


def belt_turns_round(end=1.4):
    """The belt is faster at first, is overtaken twice, and pulls the other way in between.

    Between these times, which are roots, the block swings about `± friction/stiffness`.
    """

    def swings(q, v, pull, t, friction, stiffness):
        w, rest = jnp.sqrt(stiffness), pull * friction / stiffness
        c, s = jnp.cos(w * t), jnp.sin(w * t)
        return rest + (q - rest) * c + v / w * s, v * c - w * (q - rest) * s

    def exact(x):
        speed, belt, friction, stiffness = x
        q, v, since = jnp.zeros_like(speed), speed, jnp.zeros_like(speed)
        for pull, guess in ((1, 0.25), (-1, 0.85)):

            def apart(t, y, pull=pull):
                faster = swings(y[0], y[1], pull, t, y[2], y[3])[1]
                return faster - y[5] * jnp.cos(PACE * (y[4] + t))

            t = root(apart, guess, jnp.stack([q, v, friction, stiffness, since, belt]))
            q, v = swings(q, v, pull, t, friction, stiffness)
            since = since + t
        return jnp.stack(swings(q, v, 1, end - since, friction, stiffness))

    names = "speed [m/s]", "belt [m/s]", "friction [N]", "stiffness [N/m]"
    return KnownMotion(names, (0.3, 1.0, 0.8, 3.0), end, block, exact, jumps=False)


class _Pendulum(Mechanism):
    """A weight of 1 kg on a rod."""

    names = "angle [rad]", "friction [N m]", "length [m]"
    rubs = np.ones((1, 1))

    def mass(self, p, q, xp=np):
        return p[..., 2, None, None] ** 2

    def force(self, p, t, q, v, xp=np):
        return -G * p[..., 2:] * xp.sin(q)

    def gaps(self, p, q, xp=np):
        return q[..., :0]

    def gap_slopes(self, p, q):
        return q[..., :0, None]

    def gap_drifts(self, p, q, v):
        return q[..., :0]

    def restitutions(self, p):
        return p[..., :0]

    def limits(self, p):
        return p[..., 1:2]

    def belts(self, p):
        return 0 * p[..., 1:2]

    def start(self, p):
        return p[..., :1], 0 * p[..., :1]


def _weight(q, length):
    return -G * length * jnp.cos(q[0])


def _angle(t, q):
    del t
    return q


def pendulum(x, wrap):
    """A pendulum with friction in its bearing, released at rest; `x`: angle, friction, length."""
    angle, friction, length = x
    energy = jax.tree_util.Partial(_weight, length=length)
    system = LagrangianSystem(length[None, None] ** 2, potential_energy=energy)
    model = Model(system, Interaction(RateRelation(_angle), wrap(DryFriction(friction))))
    return model, State(angle[None], jnp.zeros(1))


def pendulum_with_friction(end=2.6):
    """It turns back twice."""
    mechanism = _Pendulum()

    def solve(x):
        value, slopes, events = motion(mechanism, x, end)
        assert [event.kind for event in events] == ["stops"] * 2
        return value, slopes

    x = 1.0, 0.6, 1.0
    return KnownMotion(mechanism.names, x, end, pendulum, solved(solve, 2), jumps=False)
