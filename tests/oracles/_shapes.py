"""Bodies with shapes that strike bowls and the ground: flights and impacts in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from diffnsd import shapes
from diffnsd.laws import CoulombFriction, NewtonImpact
from diffnsd.model import Interaction, Model
from diffnsd.relations import Geom, shape_contacts
from diffnsd.systems import NewtonEulerSystem

from ._base import G, KnownMotion, root

INERTIA = 0.01


def _model(geom, ground, law) -> Model:
    system = NewtonEulerSystem(1.0, np.full(3, INERTIA))
    return Model(system, Interaction(shape_contacts([(geom, ground)]), law))


def _outside(x, radius):
    return radius**2 - jnp.sum(x**2)


def bowl(x, wrap):
    """A ball dropped into a round bowl, which is a function; `x`: its place, radii of both, restitution."""
    place, ball, hollow, e = x
    surface = shapes.Implicit(jax.tree_util.Partial(_outside, radius=hollow))
    model = _model(Geom(shapes.Sphere(ball), body=0), Geom(surface), wrap(NewtonImpact(e)))
    zero = jnp.zeros_like(place)
    return model, model.system.state(jnp.stack([place, zero, zero]))


def dropped_into_bowl(end=0.7):
    """It falls, strikes the wall beside the bottom, and flies across."""

    def exact(x):
        place, ball, hollow, e = x
        reach = hollow - ball
        depth = jnp.sqrt(reach**2 - place**2)
        t = jnp.sqrt(2 * depth / G)
        n = jnp.stack([-place, 0 * place, depth]) / reach
        v = jnp.stack([0 * place, 0 * place, -G * t])
        v = v - (1 + e) * jnp.sum(v * n) * n
        rest, down = end - t, jnp.array([0, 0, G])
        q = jnp.stack([place, 0 * place, -depth]) + v * rest - down * rest**2 / 2
        return jnp.concatenate([q, jnp.array([1.0, 0, 0, 0]), v - down * rest, jnp.zeros(3)])

    names = "place [m]", "radius of the ball [m]", "radius of the bowl [m]", "e"
    return KnownMotion(names, (0.3, 0.1, 1.0, 0.6), end, bowl, exact)


def tilted_box(x, wrap):
    """A box above the ground, turned about y; `x`: height, tilt, half width, half height, restitution."""
    height, tilt, a, b, e = x
    box = shapes.Box(jnp.stack([a, jnp.full_like(a, 0.2), b]))
    model = _model(Geom(box, body=0), Geom(shapes.HalfSpace()), wrap(NewtonImpact(e)))
    zero = jnp.zeros_like(height)
    turn = jnp.stack([jnp.cos(tilt / 2), zero, jnp.sin(tilt / 2), zero])
    return model, model.system.state(jnp.stack([zero, zero, height]), turn)


def edge_then_face(end=0.45):
    """It falls on one edge, which turns it onto the other edge of the face below."""

    def arms(side, theta, a, b):
        """Along x and z, of the lower edge on a side."""
        sine, cosine = jnp.sin(theta), jnp.cos(theta)
        return side * a * cosine - b * sine, -side * a * sine - b * cosine

    def struck(side, theta, up, spin, a, b, e):
        arm = -arms(side, theta, a, b)[0]
        push = -(1 + e) * (up + arm * spin) / (1 + arm**2 / INERTIA)
        return up + push, spin + arm * push / INERTIA

    def exact(x):
        height, tilt, a, b, e = x
        drop = height + arms(1, tilt, a, b)[1]
        first = jnp.sqrt(2 * drop / G)
        up, spin = struck(1, tilt, -G * first, jnp.zeros_like(first), a, b, e)
        z = height - drop

        def over(t, y):
            z, up, tilt, spin, a, b = y
            return z + up * t - G * t**2 / 2 + arms(-1, tilt + spin * t, a, b)[1]

        t = root(over, 0.017, jnp.stack([z, up, tilt, spin, a, b]))
        z, tilt, up = z + up * t - G * t**2 / 2, tilt + spin * t, up - G * t
        up, spin = struck(-1, tilt, up, spin, a, b, e)
        rest, zero = end - first - t, jnp.zeros_like(t)
        z, tilt = z + up * rest - G * rest**2 / 2, tilt + spin * rest
        q = jnp.stack([zero, zero, z, jnp.cos(tilt / 2), zero, jnp.sin(tilt / 2), zero])
        return jnp.concatenate([q, jnp.stack([zero, zero, up - G * rest, zero, spin, zero])])

    names = "height [m]", "tilt [rad]", "half width [m]", "half height [m]", "e"
    return KnownMotion(names, (0.9, 0.3, 0.15, 0.1, 0.4), end, tilted_box, exact)


CAPSULE, GRIP, BEFORE = 0.1, 0.8, 0.1
"""Radius of a capsule [m], its friction, and how far before the edge it starts [m]."""


def rolling_capsule(speed):
    """A capsule that rolls on the face of a box, along x towards the edge at x = 0."""
    half = np.sqrt(0.5)
    rod = Geom(shapes.Capsule(CAPSULE, 0.3), body=0, orientation=(half, half, 0.0, 0.0))
    table = Geom(shapes.Box((1.0, 1.0, 0.5)), position=(-1.0, 0.0, -0.5))
    model = _model(rod, table, CoulombFriction(GRIP))
    start = model.system.state([-BEFORE, 0.0, CAPSULE])
    zero = jnp.zeros_like(speed)
    v = jnp.stack([speed, zero, zero, zero, speed / CAPSULE, zero])
    return model, type(start)(start.q, v)


def rolled_off_an_edge(speed, end):
    """`(x, z, v_x, v_z, spin)` of the capsule, and its derivative by the speed, by scipy.

    Phases, ended by events: it rolls to the edge, turns about it as a pendulum that stands, slips where
    friction is used up, and flies where the normal force vanishes.
    """
    turning = CAPSULE**2 + INERTIA

    def push(y):
        return G * np.cos(y[0]) - CAPSULE * y[1] ** 2

    def sticks(t, y):
        rate = G * np.sin(y[0]) * CAPSULE / turning
        return [y[1], rate, rate]

    def slips(t, y):
        rub = GRIP * push(y)
        return [y[1], (G * np.sin(y[0]) - rub) / CAPSULE, rub * CAPSULE / INERTIA]

    def grips(t, y):
        return GRIP * push(y) - G * np.sin(y[0]) * INERTIA / turning

    def touches(t, y):
        return push(y)

    grips.terminal = touches.terminal = True

    def ended(speed):
        t, y = BEFORE / speed, [0, speed / CAPSULE, speed / CAPSULE]
        for field, event in ((sticks, grips), (slips, touches)):
            out = solve_ivp(field, (t, end), y, "DOP853", events=event, rtol=1e-13, atol=1e-14)
            t, y = out.t[-1], out.y[:, -1]
            if out.status == 0:
                break
        (angle, rate, spin), rest = y, end - t
        ahead, up = CAPSULE * np.sin(angle), CAPSULE * np.cos(angle)
        return np.array(
            [ahead + up * rate * rest, up - ahead * rate * rest - G * rest**2 / 2,
             up * rate, -ahead * rate - G * rest, spin]
        )  # fmt: skip

    d = 3e-4
    near, far = (ended(speed + k * d) - ended(speed - k * d) for k in (1, 2))
    return ended(speed), (8 * near - far) / (12 * d)
