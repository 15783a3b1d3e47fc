"""Joints and impacts: a slider on a swinging arm with an end stop, a four-bar linkage that strikes a wall.

Each is a mechanism in as many coordinates as it has freedoms, for the oracle that goes from event to event,
and two models: bodies in the plane whose joints are constraints, and a tree of joints, whose loop is closed
by one. The formulas of the oracle are those of the energy in its coordinates: it knows no joints.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from diffnsd.laws import Equality, NewtonImpact
from diffnsd.model import Interaction, Model
from diffnsd.relations import GapRelation
from diffnsd.systems import Body, Hinge, LagrangianSystem, Multibody, Slide

from ._base import G, KnownMotion, solved
from ._event_by_event import Mechanism, motion


class _Stopped(Mechanism):
    """A mechanism with one stop and no friction."""

    def belts(self, p):
        return p[..., :0]

    def limits(self, p):
        return p[..., :0]


def _dot(a, b):
    return a[0] * b[0] + a[1] * b[1]


def _along(angle, xp=np):
    """A direction in the plane, and the one a quarter turn ahead: its derivative."""
    c, s = xp.cos(angle), xp.sin(angle)
    return xp.stack([c, s]), xp.stack([-s, c])


def _in_the_plane(masses, inertias, joints, gap, e):
    """Bodies with places and angles `(x, y, angle)`, one after the other."""
    diagonal = jnp.stack([x for m, i in zip(masses, inertias, strict=True) for x in (m, m, i)])
    weight = jnp.stack([x for m in masses for x in (0 * m, -G * m, 0 * m)])
    system = LagrangianSystem(jnp.diag(diagonal), f_ext=weight)
    held = Interaction(GapRelation(joints), Equality())
    return Model(system, (held, Interaction(GapRelation(gap), e)))


ARM, RADIUS_OF_GYRATION = 0.5, 0.1
"""Where the centre of the arm is, which has 1 kg and the length 1 m; of the slider, whose mass varies."""


class _Slider(_Stopped):
    """The angle of the arm from the vertical, and how far down the arm the slider is."""

    names = "angle [rad]", "place [m]", "stop [m]", "e", "mass [kg]"
    rubs = np.zeros((0, 2))

    def mass(self, p, q, xp=np):
        r, m = q[..., 1], p[..., 4]
        zero = xp.zeros_like(r)
        turning = 1 / 3 + m * (RADIUS_OF_GYRATION**2 + r**2)
        rows = [turning, zero], [zero, m + zero]
        return xp.stack([xp.stack(row, -1) for row in rows], -2)

    def force(self, p, t, q, v, xp=np):
        angle, r, rate, fast, m = q[..., 0], q[..., 1], v[..., 0], v[..., 1], p[..., 4]
        swing = -2 * m * r * fast * rate - (ARM + m * r) * G * xp.sin(angle)
        return xp.stack([swing, m * (r * rate**2 + G * xp.cos(angle))], -1)

    def gaps(self, p, q, xp=np):
        return (p[..., 2] - q[..., 1])[..., None]

    def gap_slopes(self, p, q):
        return np.broadcast_to(np.array([[0.0, -1.0]]), (*q.shape[:-1], 1, 2))

    def gap_drifts(self, p, q, v):
        return np.zeros_like(q[..., :1])

    def restitutions(self, p):
        return p[..., 3:4]

    def start(self, p):
        q = p[..., :2]
        return q, 0 * q


def _slider_apart(p, q, v, xp=np):
    """Places and velocities of arm and slider in the plane."""
    angle, r, rate, fast = q[..., 0], q[..., 1], v[..., 0], v[..., 1]
    ahead = angle - np.pi / 2  # from the horizontal
    down, aside = _along(ahead, xp)
    places = *(ARM * down), angle, *(r * down), angle
    rates = *(ARM * rate * aside), rate, *(fast * down + r * rate * aside), rate
    return xp.stack([*places, *rates], -1)


def _slider_joints(t, q):
    """The hinge, and what the slider may not do: turn on the arm, or leave it."""
    del t
    down, aside = _along(q[2] - np.pi / 2, jnp)
    return jnp.stack([*(q[:2] - ARM * down), q[5] - q[2], _dot(aside, q[3:5])])


def _slider_gap(t, q, stop):
    del t
    down, _ = _along(q[2] - np.pi / 2, jnp)
    return (stop - _dot(down, q[3:5]))[None]


def slider(x, wrap):
    """With joints as constraints."""
    one, m = jnp.ones_like(x[4]), x[4]
    gap = jax.tree_util.Partial(_slider_gap, stop=x[2])
    inertias = one / 12, m * RADIUS_OF_GYRATION**2
    model = _in_the_plane((one, m), inertias, _slider_joints, gap, wrap(NewtonImpact(x[3])))
    both = _slider_apart(x, *_Slider().start(x), jnp)
    return model, model.system.state(both[:6], both[6:])


def _tree_gap(t, q, stop):
    del t
    return stop - q[1:]


def slider_tree(x, wrap):
    """As a tree of joints."""
    arm = Body(1.0, 1 / 12, Hinge((0, -1, 0)), centre=(0.0, 0.0, -ARM))
    weight = Body(x[4], x[4] * RADIUS_OF_GYRATION**2, Slide((0, 0, -1)), parent=0)
    system = Multibody([arm, weight])
    gap = GapRelation(jax.tree_util.Partial(_tree_gap, stop=x[2]))
    model = Model(system, Interaction(gap, wrap(NewtonImpact(x[3]))))
    return model, system.state(*_Slider().start(x))


def _known(mechanism, x, end, build, size, see=None):
    def solve(x):
        value, slopes, events = motion(mechanism, x, end, see)
        assert [event.kind for event in events] == ["strikes"] * 2
        return value, slopes

    return KnownMotion(mechanism.names, x, end, build, solved(solve, size))


def slider_with_stop(build, end=0.6):
    """It slides down the swinging arm and strikes the stop twice."""
    see, size = (_slider_apart, 12) if build is slider else (None, 4)
    return _known(_Slider(), (0.9, 0.35, 0.7, 0.6, 0.8), end, build, size, see)


CRANK, ROCKER, GROUND = 0.25, 0.4, 0.6
"""Lengths [m]; that of the coupler varies. Bars have 1 kg for each metre."""


class _Bars(NamedTuple):
    """Angles, ends `B` and `C` of the coupler, and their derivatives by the angle of the crank."""

    angles: tuple
    rates: tuple
    bends: tuple
    places: tuple  # B, C
    slopes: tuple
    curves: tuple


def _bars(angle, b, xp=np) -> _Bars:
    """The loop `a e1 + b e2 = d + c e3`, closed above its pivots, and that equation differentiated twice."""
    e1, n1 = _along(angle, xp)
    pivot = xp.stack([GROUND + 0 * angle, 0 * angle])
    end = CRANK * e1
    apart = pivot - end
    far = xp.sqrt(_dot(apart, apart))
    near = (b**2 - ROCKER**2 + far**2) / (2 * far)
    aside = xp.sqrt(b**2 - near**2)
    over = xp.stack([-apart[1], apart[0]])
    tip = end + (near * apart + aside * over) / far

    e2, e3 = (tip - end) / b, (tip - pivot) / ROCKER
    # Half the tangent, since no complex step passes through `arctan2`.
    second, third = (2 * xp.arctan(e[1] / (1 + e[0])) for e in (e2, e3))
    n2, n3 = (xp.stack([-e[1], e[0]]) for e in (e2, e3))
    slope, curve = CRANK * n1, -CRANK * e1
    rate2 = -_dot(slope, e3) / (b * _dot(n2, e3))
    rate3 = _dot(slope, e2) / (ROCKER * _dot(n3, e2))
    both = _dot(e2, e3)
    bend2 = (-ROCKER * rate3**2 - _dot(curve, e3) + b * rate2**2 * both) / (b * _dot(n2, e3))
    bend3 = (_dot(curve, e2) - b * rate2**2 + ROCKER * rate3**2 * both) / (ROCKER * _dot(n3, e2))
    tips = tip, ROCKER * rate3 * n3, ROCKER * (bend3 * n3 - rate3**2 * e3)
    ends = zip((end, slope, curve), tips, strict=True)
    one = xp.ones_like(angle)
    return _Bars((angle, second, third), (one, rate2, rate3), (0 * one, bend2, bend3), *ends)


class FourBar(_Stopped):
    """The angle of the crank; the tip of the rocker strikes a wall."""

    names = "angle [rad]", "speed [rad/s]", "wall [m]", "e", "coupler [m]"
    rubs = np.zeros((0, 1))

    def mass(self, p, q, xp=np):
        b = p[..., 4]
        at = _bars(q[..., 0], b)
        middle = (at.slopes[0] + at.slopes[1]) / 2
        coupler = b * _dot(middle, middle) + b**3 / 12 * at.rates[1] ** 2
        return (CRANK**3 / 3 + coupler + ROCKER**3 / 3 * at.rates[2] ** 2)[..., None, None]

    def force(self, p, t, q, v, xp=np):
        """`−m' v²/2 − V'`, with `m` as above."""
        b = p[..., 4]
        at = _bars(q[..., 0], b)
        middle = (at.slopes[0] + at.slopes[1]) / 2
        bent = _dot(middle, (at.curves[0] + at.curves[1]) / 2)
        half = b * bent + b**3 / 12 * at.rates[1] * at.bends[1]
        half = half + ROCKER**3 / 3 * at.rates[2] * at.bends[2]
        weight = CRANK * at.slopes[0][1] / 2 + b * middle[1] + ROCKER * at.slopes[1][1] / 2
        return (-half * v[..., 0] ** 2 - G * weight)[..., None]

    def gaps(self, p, q, xp=np):
        return (p[..., 2] - _bars(q[..., 0], p[..., 4]).places[1][0])[..., None]

    def gap_slopes(self, p, q):
        return -_bars(q[..., 0], p[..., 4]).slopes[1][0][..., None, None]

    def gap_drifts(self, p, q, v):
        return -_bars(q[..., 0], p[..., 4]).curves[1][0][..., None] * v**2

    def restitutions(self, p):
        return p[..., 3:4]

    def start(self, p):
        return p[..., :1], p[..., 1:2]


def bars_apart(p, q, v, xp=np):
    """Places and velocities of the three bars in the plane."""
    at, rate = _bars(q[..., 0], p[..., 4], xp), v[..., 0]
    pivot = np.array([GROUND, 0.0]).reshape(2, *[1] * (q.ndim - 1))

    def of(ends, angles, pivot):
        b, c = ends
        middles = b / 2, (b + c) / 2, (c + pivot) / 2
        return [x for m, angle in zip(middles, angles, strict=True) for x in (*m, angle)]

    places, rates = of(at.places, at.angles, pivot), of(at.slopes, at.rates, 0 * pivot)
    return xp.stack([*places, *(rate * x for x in rates)], -1)


def bars_in_the_tree(p, q, v, xp=np):
    """The angle of the coupler is relative to the crank."""
    at, rate = _bars(q[..., 0], p[..., 4], xp), v[..., 0]

    def of(x):
        return x[0], x[1] - x[0], x[2]

    return xp.stack([*of(at.angles), *(rate * x for x in of(at.rates))], -1)


def _bar_joints(t, q, b):
    """Four pins."""
    del t
    (p1, p2, p3), (h1, h2, h3) = (
        q.reshape(3, 3)[:, :2],
        (
            length / 2 * _along(angle, jnp)[0]
            for length, angle in zip((CRANK, b, ROCKER), q[2::3], strict=True)
        ),
    )
    pins = p1 - h1, p1 + h1 - p2 + h2, p2 + h2 - p3 - h3, p3 - h3 - jnp.array([GROUND, 0.0])
    return jnp.concatenate(pins)


def _bar_gap(t, q, wall):
    del t
    return (wall - q[6] - ROCKER / 2 * jnp.cos(q[8]))[None]


def four_bar(x, wrap):
    """With joints as constraints."""
    one, b = jnp.ones_like(x[4]), x[4]
    lengths = CRANK * one, b, ROCKER * one
    joints = jax.tree_util.Partial(_bar_joints, b=b)
    gap = jax.tree_util.Partial(_bar_gap, wall=x[2])
    inertias = tuple(length**3 / 12 for length in lengths)
    model = _in_the_plane(lengths, inertias, joints, gap, wrap(NewtonImpact(x[3])))
    both = bars_apart(x, *FourBar().start(x), jnp)
    return model, model.system.state(both[:9], both[9:])


def _loop(t, q, b):
    """The coupler ends where the rocker does."""
    del t
    tip = CRANK * _along(q[0], jnp)[0] + b * _along(q[0] + q[1], jnp)[0]
    return tip - ROCKER * _along(q[2], jnp)[0] - jnp.array([GROUND, 0.0])


def _loop_gap(t, q, wall):
    del t
    return (wall - GROUND - ROCKER * jnp.cos(q[2]))[None]


def four_bar_tree(x, wrap):
    """As a tree of crank and coupler, and of the rocker, with one joint that closes the loop."""
    one, b = jnp.ones_like(x[4]), x[4]

    def bar(length, **place):
        centre = jnp.stack([length / 2, 0 * length, 0 * length])
        return Body(length, length**3 / 12, Hinge((0, -1, 0)), centre=centre, **place)

    crank = bar(CRANK * one)
    coupler = bar(b, parent=0, position=(CRANK, 0.0, 0.0))
    system = Multibody([crank, coupler, bar(ROCKER * one, position=(GROUND, 0.0, 0.0))])
    closed = Interaction(GapRelation(jax.tree_util.Partial(_loop, b=b)), Equality())
    gap = GapRelation(jax.tree_util.Partial(_loop_gap, wall=x[2]))
    model = Model(system, (closed, Interaction(gap, wrap(NewtonImpact(x[3])))))
    both = bars_in_the_tree(x, *FourBar().start(x), jnp)
    return model, system.state(both[:3], both[3:])


FOUR_BAR = 1.5, -2.0, 0.72, 0.6, 0.6
"""Angle, speed, wall, restitution and coupler."""


def four_bar_at_wall(build, end=0.6):
    """Its rocker strikes the wall twice."""
    see, size = (bars_apart, 18) if build is four_bar else (bars_in_the_tree, 6)
    return _known(FourBar(), FOUR_BAR, end, build, size, see)
