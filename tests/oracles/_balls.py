"""Balls and point masses: flights are parabolas, impact times roots of quadratic equations."""

import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import State
from diffnsd.laws import CoulombFriction, NewtonImpact
from diffnsd.model import Interaction, Model
from diffnsd.models import ball_state, bouncing_ball, sliding_block
from diffnsd.relations import GapRelation
from diffnsd.systems import LagrangianSystem

from ._base import G, KnownMotion, read


def _fall(t, q, v):
    return State(q + v * t - G * t * t / 2, v - G * t)


def _landing(height, speed, g=G):
    """When a ball at `height` with `speed` upwards reaches the ground."""
    return (speed + jnp.sqrt(speed**2 + 2 * g * height)) / g


def ball(x, wrap):
    """A thrown ball; `x`: height, speed upwards, restitution, gravity."""
    model = bouncing_ball(x[2], x[3], law=wrap(NewtonImpact(x[2])))
    return model, State(x[0][None], x[1][None])


def thrown_ball(end, e):
    def exact(x):
        return read(ball_state(end, *x))

    return KnownMotion(
        ("height [m]", "speed [m/s]", "e", "g [m/s^2]"), (1.0, 0.4, e, G), end, ball, exact
    )


def block(x, wrap):
    """A point mass thrown along the ground; `x`: height, speed, friction, restitution."""
    height, speed, mu, e = x
    model = sliding_block(mu, law=wrap(CoulombFriction(mu, e)))
    zero = jnp.zeros_like(height)
    return model, State(jnp.stack([zero, zero, height]), jnp.stack([speed, speed / 2, zero]))


def oblique(mu, e, end=0.8):
    """With rebound: it slips for small mu, else it sticks."""

    def exact(x):
        height, speed, mu, e = x
        t = _landing(height, 0.0)
        normal = (1 + e) * G * t
        along = jnp.stack([speed, speed / 2])
        size = jnp.sqrt(jnp.sum(along**2))
        after = along * jnp.maximum(1 - mu * normal / size, 0)
        rest = end - t
        up = e * G * t
        q = [*(along * t + after * rest), up * rest - G * rest**2 / 2]
        return jnp.stack([*q, *after, up - G * rest])

    return KnownMotion(
        ("height [m]", "speed [m/s]", "mu", "e"), (1.0, 3.0, mu, e), end, block, exact
    )


def landing_block(mu, end=0.6):
    """Without rebound: after the landing it slides on, or has stuck."""

    def exact(x):
        height, speed, mu, _ = x
        t = _landing(height, 0.0)
        along = jnp.stack([speed, speed / 2])
        size = jnp.sqrt(jnp.sum(along**2))
        direction, rest = along / size, end - t
        after = jnp.maximum(size - mu * G * t, 0)
        pull = jnp.where(after > 0, mu * G, 0)
        q = along * t + direction * (after * rest - pull * rest**2 / 2)
        v = direction * (after - pull * rest)
        zero = jnp.zeros_like(t)
        return jnp.stack([*q, zero, *v, zero])

    return KnownMotion(
        ("height [m]", "speed [m/s]", "mu", "e"), (1.0, 3.0, mu, 0.0), end, block, exact, free=3
    )


def bounces_to_rest(mu, e, end=2.0):
    """It slides through all rebounds and after them; the ground has given it the impulse of its weight.

    The impulse up to any time, integrated twice, is that of the weight less the fall. So nothing depends on
    how the rebounds share it, nor on `e`.
    """

    def exact(x):
        height, speed, mu, _ = x
        size = speed * jnp.sqrt(1.25)
        far = size * end - mu * (G * end**2 / 2 - height)
        along = jnp.stack([speed, speed / 2]) / size
        zero = jnp.zeros_like(height)
        return jnp.stack([*(far * along), zero, *((size - mu * G * end) * along), zero])

    return KnownMotion(
        ("height [m]", "speed [m/s]", "mu", "e"), (1.0, 3.0, mu, e), end, block, exact
    )


def slope(end=0.6):
    """A ball on an inclined plane, without friction, in the plane of the slope's normal."""

    def gap(t, q, angle):
        del t
        return (jnp.cos(angle) * q[1] - jnp.sin(angle) * q[0])[None]

    def build(x, wrap):
        height, angle, e = x
        system = LagrangianSystem(np.eye(2), f_ext=np.array([0.0, -G]))
        law = wrap(NewtonImpact(e))
        model = Model(
            system, Interaction(GapRelation(jax.tree_util.Partial(gap, angle=angle)), law)
        )
        zero = jnp.zeros_like(height)
        return model, State(jnp.stack([zero, height]), jnp.zeros(2))

    def exact(x):
        height, angle, e = x
        n = jnp.stack([-jnp.sin(angle), jnp.cos(angle)])
        t = jnp.sqrt(2 * height / G)  # above the origin, where the slope is at height 0
        v = jnp.stack([jnp.zeros_like(t), -G * t])
        v = v - (1 + e) * n * jnp.sum(n * v)
        rest, g = end - t, jnp.array([0.0, -G])
        return jnp.concatenate([v * rest + g * rest**2 / 2, v + g * rest])

    return KnownMotion(("height [m]", "angle [rad]", "e"), (1.0, 0.3, 0.6), end, build, exact)


def _between(t, q):
    """The ground and the balls above each other: the room below each ball."""
    del t
    return jnp.concatenate([q[:1], q[1:] - q[:-1]])


def _above_each_other(heights, mass, law):
    """Balls at rest at their heights, each `mass` times as heavy as the one below it, the lowest 1 kg."""
    weight = mass ** jnp.arange(float(len(heights)))
    system = LagrangianSystem(jnp.diag(weight), f_ext=-G * weight)
    model = Model(system, Interaction(GapRelation(_between), law))
    return model, State(heights, jnp.zeros(len(heights)))


def _struck(below, above, e, mass):
    """Two balls after they met, the upper one `mass` times as heavy."""
    push = (1 + e) * (below.v - above.v) / (1 + 1 / mass)
    return State(below.q, below.v - push), State(above.q, above.v + push / mass)


def column(end=0.45):
    """Two balls above each other: the lower one bounces and meets the upper one."""

    def build(x, wrap):
        low, high, e, mass = x
        return _above_each_other(jnp.stack([low, high]), mass, wrap(NewtonImpact(e)))

    def exact(x):
        low, high, e, mass = x
        t1 = jnp.sqrt(2 * low / G)
        up = e * G * t1  # the lower ball goes up from 0 at t1
        down = State(high - G * t1**2 / 2, -G * t1)
        t2 = down.q / (up - down.v)  # both fall alike: they approach at constant speed
        a, b = _fall(t2, 0.0 * low, up), _fall(t2, down.q, down.v)
        a, b = (_fall(end - t1 - t2, s.q, s.v) for s in _struck(a, b, e, mass))
        return jnp.stack([a.q, b.q, a.v, b.v])

    return KnownMotion(
        ("low [m]", "high [m]", "e", "mass [kg]"), (0.5, 0.9, 0.8, 0.4), end, build, exact
    )


def stack(end=0.36):
    """Three balls above each other, a few millimetres apart, each lighter than the one below it.

    The lowest one strikes the ground, meets the second one, and that one the third: within 1.2 ms.
    """

    def build(x, wrap):
        low, apart, e, mass = x
        heights = low + apart * jnp.arange(3.0)
        return _above_each_other(heights, mass, wrap(NewtonImpact(e)))

    def exact(x):
        low, apart, e, mass = x

        t1 = jnp.sqrt(2 * low / G)
        a = State(0.0 * low, e * G * t1)
        b, c = (State(k * apart, -G * t1) for k in (1, 2))
        t2 = apart / (a.v - b.v)  # all fall alike: they approach at constant speed
        a, b, c = (_fall(t2, s.q, s.v) for s in (a, b, c))
        a, b = _struck(a, b, e, mass)
        t3 = apart / (b.v - c.v)
        a, b, c = (_fall(t3, s.q, s.v) for s in (a, b, c))
        b, c = _struck(b, c, e, mass)
        last = [_fall(end - t1 - t2 - t3, s.q, s.v) for s in (a, b, c)]
        return jnp.stack([*(s.q for s in last), *(s.v for s in last)])

    names = "low [m]", "apart [m]", "e", "mass [kg]"
    return KnownMotion(names, (0.5, 0.004, 0.8, 0.25), end, build, exact)


def _heights(t, q):
    del t
    return q


def pair(x, wrap):
    """Two balls beside each other that never meet; `x`: two heights, restitution."""
    system = LagrangianSystem(np.eye(2), f_ext=np.array([-G, -G]))
    model = Model(system, Interaction(GapRelation(_heights), wrap(NewtonImpact(x[2]))))
    return model, State(x[:2], jnp.zeros(2))


def pair_at_once(end=0.7):
    """They strike at the same instant."""

    def exact(x):
        a, b = (ball_state(end, height, 0.0, x[2]) for height in (x[0], x[1]))
        return jnp.concatenate([a.q, b.q, a.v, b.v])

    return KnownMotion(("height 1 [m]", "height 2 [m]", "e"), (1.0, 1.0, 0.7), end, pair, exact)
