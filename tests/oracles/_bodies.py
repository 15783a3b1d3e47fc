"""Rigid bodies that fall on one of their points; a pendulum, a moving table, a billiard."""

import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import State
from diffnsd.groups import Pose
from diffnsd.laws import CoulombFriction, NewtonImpact
from diffnsd.model import Interaction, Model
from diffnsd.models import pendulum_wall
from diffnsd.relations import BodyPointsPlane, GapRelation
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem

from ._base import G, KnownMotion, root


def _ends(t, q, half):
    del t
    return jnp.stack([q[1] - half * jnp.sin(q[2]), q[1] + half * jnp.sin(q[2])])


def rod(x, wrap):
    """A slender rod in the plane; `x`: height, angle, restitution, half its length."""
    height, angle, e, half = x
    one, zero = jnp.ones_like(half), jnp.zeros_like(half)
    mass = jnp.diag(jnp.stack([one, one, half**2 / 3]))
    system = LagrangianSystem(mass, f_ext=np.array([0.0, -G, 0.0]))
    relation = GapRelation(jax.tree_util.Partial(_ends, half=half))
    model = Model(system, Interaction(relation, wrap(NewtonImpact(e))))
    return model, State(jnp.stack([zero, height, angle]), jnp.stack([0.3 * one, zero, zero]))


def dropped_rod(end=0.44):
    """Dropped at an angle on one end."""

    def exact(x):
        height, angle, e, half = x
        drop = height - half * jnp.sin(angle)
        t = jnp.sqrt(2 * drop / G)
        arm = -half * jnp.cos(angle)  # u = y' + arm θ'
        push = (1 + e) * G * t / (1 + arm**2 * 3 / half**2)
        rest = end - t
        up, spin = -G * t + push, arm * push * 3 / half**2
        y = height - G * t**2 / 2 + up * rest - G * rest**2 / 2
        zero = jnp.zeros_like(t)
        q = jnp.stack([0.3 * end + zero, y, angle + spin * rest])
        return jnp.concatenate([q, jnp.stack([0.3 + zero, up - G * rest, spin])])

    return KnownMotion(
        ("height [m]", "angle [rad]", "e", "half length [m]"), (1.0, 0.6, 0.5, 0.3), end, rod, exact
    )


CORNER, INERTIA = np.array([0.3, -0.2, -0.5]), 0.2


LEVER = np.array(
    [[0, -CORNER[2], CORNER[1]], [CORNER[2], 0, -CORNER[0]], [-CORNER[1], CORNER[0], 0]]
)


def _on_corner(height, speed, law):
    """A body of equal moments above a plane, level, that moves along it with a speed."""
    zero = jnp.zeros_like(height)
    pose = Pose(jnp.stack([zero, zero, height])[None], jnp.array([[1.0, 0, 0, 0]]))
    model = Model(NewtonEulerSystem(1.0, INERTIA), Interaction(BodyPointsPlane(CORNER[None]), law))
    return model, State(pose, jnp.stack([speed, zero, zero, zero, zero, zero]))


def _strikes(height):
    """When its corner strikes."""
    return jnp.sqrt(2 * (height + CORNER[2]) / G)


def _pushed_corner(height, speed, push, end):
    """Its state at the end, after an impulse `push` on its corner."""
    t = _strikes(height)
    zero = jnp.zeros_like(t)
    after, spin = jnp.stack([speed, zero, -G * t]) + push, LEVER @ push / INERTIA
    rest = end - t
    fall = jnp.stack([speed * t, zero, height - G * t**2 / 2])
    x1 = fall + after * rest - jnp.array([0, 0, G / 2]) * rest**2
    turn = spin * rest
    angle = jnp.sqrt(jnp.sum(turn**2))
    q = jnp.concatenate([jnp.cos(angle / 2)[None], jnp.sin(angle / 2) * turn / angle])
    return jnp.concatenate([x1, q, after - jnp.array([0, 0, G]) * rest, spin])


MOBILITY = np.eye(3) - LEVER @ LEVER / INERTIA


def corner(x, wrap):
    """It falls on one corner; `x`: height, speed, friction, restitution."""
    height, speed, mu, e = x
    return _on_corner(height, speed, wrap(CoulombFriction(mu, e)))


def dropped_corner(mu, end=0.45):
    """With friction: its corner slips or sticks while it strikes."""

    def exact(x):
        height, speed, mu, e = x
        t = _strikes(height)
        zero = jnp.zeros_like(t)
        v = jnp.stack([speed, zero, -G * t])
        wanted = jnp.stack([zero, zero, -e * v[2]]) - v  # at the point, if it sticks
        stick = jnp.linalg.solve(MOBILITY, wanted)

        def slip_after(direction):
            pull = jnp.stack([*(-mu * direction), 1 + zero])
            normal = wanted[2] / jnp.sum(MOBILITY[2] * pull)
            return normal * pull, (v + normal * MOBILITY @ pull)[:2]

        def settle(d):  # the direction of slip after the impact
            u = slip_after(d)[1]
            return u / jnp.sqrt(jnp.sum(u**2))

        d = jnp.stack([1 + zero, zero])
        for _ in range(30):
            d = settle(d)
        sticks = jnp.sum(stick[:2] ** 2) <= (mu * stick[2]) ** 2
        push = jnp.where(sticks, stick, slip_after(d)[0])
        return _pushed_corner(height, speed, push, end)

    return KnownMotion(
        ("height [m]", "speed [m/s]", "mu", "e"), (1.0, 1.5, mu, 0.3), end, corner, exact
    )


def smooth_corner(x, wrap):
    """The same without friction; `x`: height, speed, restitution."""
    height, speed, e = x
    return _on_corner(height, speed, wrap(NewtonImpact(e)))


def dropped_smooth_corner(end=0.45):
    """Without friction: the ground pushes upwards, and the body turns."""

    def exact(x):
        height, speed, e = x
        zero = jnp.zeros_like(e)
        push = (1 + e) * G * _strikes(height) / MOBILITY[2, 2]
        return _pushed_corner(height, speed, jnp.stack([zero, zero, push]), end)

    names = "height [m]", "speed [m/s]", "e"
    return KnownMotion(names, (1.0, 1.5, 0.3), end, smooth_corner, exact)


def table(x, wrap):
    """A ball above a table that moves up and down; `x`: height, amplitude, frequency, restitution."""
    height, amplitude, frequency, e = x

    def gap(t, q, a, w):
        return q - a * jnp.sin(w * t)

    above = jax.tree_util.Partial(gap, a=amplitude, w=frequency)
    system = LagrangianSystem(np.eye(1), f_ext=np.array([-G]))
    model = Model(system, Interaction(GapRelation(above), wrap(NewtonImpact(e))))
    return model, State(height[None], jnp.zeros(1))


def oscillating_table(end=0.7):
    """One impact, `height - g t^2/2 = a sin(w t)`; the rebound is relative to the table's speed."""

    def exact(x):
        _, _, _, e = x
        t = root(lambda t, x: x[0] - G * t**2 / 2 - x[1] * jnp.sin(x[2] * t), 0.44, x)
        place, speed = x[1] * jnp.sin(x[2] * t), x[1] * x[2] * jnp.cos(x[2] * t)
        up, rest = speed + e * (speed + G * t), end - t
        return jnp.stack([place + up * rest - G * rest**2 / 2, up - G * rest])

    names = "height [m]", "amplitude [m]", "frequency [rad/s]", "e"
    return KnownMotion(names, (1.0, 0.05, 9.0, 0.7), end, table, exact)


def pendulum(x, wrap):
    """A pendulum at a wall, released at rest; `x`: angle, restitution, length, distance."""
    angle, e, length, distance = x
    model = pendulum_wall(e, length, distance, G, law=wrap(NewtonImpact(e)))
    return model, State(angle[None], jnp.zeros(1))


NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def _elliptic(low, high, k):
    """`∫ dφ / sqrt(1 − k² sin² φ)` by Gauss's quadrature: to rounding, the integrand is analytic."""
    middle, half = (low + high) / 2, (high - low) / 2
    phi = middle + half * NODES
    return half * jnp.sum(WEIGHTS / jnp.sqrt(1 - (k * jnp.sin(phi)) ** 2))


def pendulum_at_wall(end=1.0, impacts=1):
    """One impact, or more. With `sin(θ/2) = k sin φ` and `k² = sin²(θ/2) + l θ'²/(4 g)` time is an integral:
    `sqrt(g/l) t = ∫ dφ / sqrt(1 − k² sin² φ)`, before an impact and after it.
    """

    def exact(x):
        angle, e, length, distance = x
        pace = jnp.sqrt(G / length)
        wall = -jnp.arcsin(distance / length)
        k = jnp.sin(angle / 2)
        low = jnp.arcsin(jnp.sin(wall / 2) / k)
        strikes = _elliptic(low, np.pi / 2, k) / pace
        rate = pace * jnp.sqrt(2 * (jnp.cos(wall) - jnp.cos(angle)))

        # Afterwards it swings up from the wall with another energy, and back to it.
        for i in range(impacts):
            strikes = strikes + (2 * _elliptic(low, np.pi / 2, k) / pace if i else 0)
            rate = e * rate
            k = jnp.sqrt(jnp.sin(wall / 2) ** 2 + (rate / (2 * pace)) ** 2)
            low = jnp.arcsin(jnp.sin(wall / 2) / k)
        left = pace * (end - strikes)
        high = root(lambda s, y: _elliptic(y[0], s, y[1]) - y[2], 0.3, jnp.stack([low, k, left]))
        theta = 2 * jnp.arcsin(k * jnp.sin(high))
        return jnp.stack([theta, 2 * pace * k * jnp.cos(high)])

    names = "angle [rad]", "e", "length [m]", "distance [m]"
    return KnownMotion(names, (1.1, 0.8, 1.0, 0.2), end, pendulum, exact)


RADIUS = 0.1


def _between(t, q):
    del t
    a, b, c = q[:2], q[2:4], q[4:]
    apart = jnp.stack([b - a, c - b, c - a])
    return jnp.sqrt(jnp.sum(apart**2, axis=1)) - 2 * RADIUS


def billiard(x, wrap):
    """Three equal discs without rotation; `x`: aim of the first (its offset), speed, restitution."""
    offset, speed, e = x
    zero, one = jnp.zeros_like(e), jnp.ones_like(e)
    model = Model(
        LagrangianSystem(np.eye(6)), Interaction(GapRelation(_between), wrap(NewtonImpact(e)))
    )
    q = jnp.stack([-0.5 * one, offset, zero, zero, 0.6 * one, 0.3 * one])
    return model, State(q, jnp.stack([speed, zero, zero, zero, zero, zero]))


def three_ball_billiard(end=1.2):
    """The first strikes the second, the second the third: straight lines and quadratic equations."""

    def collide(q, v, i, j, e):
        apart, closing = q[j] - q[i], v[j] - v[i]
        a, b = jnp.sum(closing**2), jnp.sum(closing * apart)
        c = jnp.sum(apart**2) - 4 * RADIUS**2
        t = -(b + jnp.sqrt(b**2 - a * c)) / a
        q = q + t * v
        normal = (q[j] - q[i]) / (2 * RADIUS)
        push = (1 + e) / 2 * jnp.sum(normal * closing) * normal
        return t, q, v.at[i].add(push).at[j].add(-push)

    def exact(x):
        offset, speed, e = x
        zero = jnp.zeros_like(e)
        q = jnp.array([[-0.5, 0.0], [0.0, 0.0], [0.6, 0.3]]).at[0, 1].set(offset)
        v = jnp.zeros((3, 2)).at[0].set(jnp.stack([speed, zero]))
        t1, q, v = collide(q, v, 0, 1, e)
        t2, q, v = collide(q, v, 1, 2, e)
        return jnp.concatenate([jnp.ravel(q + (end - t1 - t2) * v), jnp.ravel(v)])

    return KnownMotion(("offset [m]", "speed [m/s]", "e"), (-0.08, 2.0, 0.9), end, billiard, exact)
