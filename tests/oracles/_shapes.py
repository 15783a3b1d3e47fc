"""Bodies with shapes that strike bowls and the ground: flights and impacts in closed form."""

import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import shapes
from diffnsd.laws import NewtonImpact
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
