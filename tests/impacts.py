"""Motions with impacts whose sensitivities are known in closed form, shared by several tests.

A problem maps parameters to a model and a start, and to the state at its end in closed form; both
are differentiated by JAX. Impact times are written out, so that the derivative of the closed form
is that of the motion.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from quick import quick_jit

from diffnsd import RESULTS, Interaction, Model, Pose, SaveAt, State, simulate
from diffnsd.laws import CoulombFriction, NewtonImpact
from diffnsd.models import ball_state, bouncing_ball, sliding_block
from diffnsd.relations import BodyPointsPlane, GapRelation
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem

G = 9.81


@dataclass(frozen=True)
class Problem:
    """`build(x, wrap) -> (model, state)` with `wrap` around every law; `exact(x)` at `end`.

    Problems with the same `build` run in the same compiled program. `free`: how many of the
    parameters, the first ones, may be varied.
    """

    x: tuple[float, ...]
    end: float
    build: Callable
    exact: Callable
    free: int | None = None

    def compare(self, found):
        """Largest errors of values and of sensitivities, relative to the largest of each."""
        x = jnp.asarray(self.x)
        value, slopes = jax.jit(lambda x: (self.exact(x), jax.jacfwd(self.exact)(x)))(x)
        slopes = slopes[:, : self.free]
        return tuple(
            float(np.max(np.abs(a - b)) / np.max(np.abs(b)))
            for a, b in ((found[0], value), (found[1][:, : self.free], slopes))
        )


def read(state: State):
    """A state as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(state)])


def unchanged(law):
    return law


@functools.cache
def program(build: Callable, integrator, wrap: Callable = unchanged) -> Callable:
    """`(x, end, steps) -> (state, sensitivities, success)`, one program for every step length."""

    def run(x, end, steps):
        model, state = build(x, wrap)
        h = end / steps
        carry = integrator.init(model, jnp.zeros(()), state, None)

        def body(i, run):
            state, carry, ok = run
            t = i * h
            state, _, carry, result = integrator.step(model, t, t + h, state, carry, None)
            return state, carry, ok & (result == RESULTS.successful)

        state, _, ok = jax.lax.fori_loop(0, steps, body, (state, carry, jnp.array(True)))
        return read(state), (read(state), ok)

    @quick_jit
    def both(x, end, steps):
        slopes, (value, ok) = jax.jacfwd(run, has_aux=True)(x, end, steps)
        return value, slopes, ok

    return both


def final(problem: Problem, integrator, h: float, wrap: Callable = unchanged) -> Callable:
    """The end of a simulation as a function of the parameters, for reverse mode and batches."""

    def run(x):
        model, state = problem.build(x, wrap)
        out = simulate(
            model, integrator, 0.0, problem.end, h, state, saveat=SaveAt.end(), throw=False
        )
        return read(out.states)

    return run


def errors(problem: Problem, integrator, lengths, wrap: Callable = unchanged):
    """Errors of values and sensitivities for step lengths, two arrays."""
    run, out = program(problem.build, integrator, wrap), []
    for h in lengths:
        steps = round(problem.end / h)
        value, slopes, ok = run(
            jnp.asarray(problem.x), jnp.asarray(problem.end), jnp.asarray(steps)
        )
        assert ok
        out.append(problem.compare((value, slopes)))
    return np.array(out).T


def _fall(t, q, v):
    return State(q + v * t - G * t * t / 2, v - G * t)


def _landing(height, speed, g=G):
    """When a ball at `height` with `speed` upwards reaches the ground."""
    return (speed + jnp.sqrt(speed**2 + 2 * g * height)) / g


def ball(x, wrap):
    """A thrown ball; `x`: height, speed upwards, restitution, gravity."""
    model = bouncing_ball(x[2], x[3], law=wrap(NewtonImpact(x[2])))
    return model, State(x[0][None], x[1][None])


def _ball(end, e):
    def exact(x):
        return read(ball_state(end, *x))

    return Problem((1.0, 0.4, e, G), end, ball, exact)


def block(x, wrap):
    """A point mass thrown along the ground; `x`: height, speed, friction, restitution."""
    height, speed, mu, e = x
    model = sliding_block(mu, law=wrap(CoulombFriction(mu, e)))
    zero = jnp.zeros_like(height)
    return model, State(jnp.stack([zero, zero, height]), jnp.stack([speed, speed / 2, zero]))


def _oblique(mu, e, end=0.8):
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

    return Problem((1.0, 3.0, mu, e), end, block, exact)


def _landing_block(mu, end=0.6):
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

    return Problem((1.0, 3.0, mu, 0.0), end, block, exact, free=3)


def _slope(end=0.6):
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

    return Problem((1.0, 0.3, 0.6), end, build, exact)


def _column(end=0.45):
    """Two balls above each other: the lower one bounces and meets the upper one."""

    def gap(t, q):
        del t
        return jnp.stack([q[0], q[1] - q[0]])

    def build(x, wrap):
        low, high, e, mass = x
        weight = jnp.stack([jnp.ones_like(mass), mass])
        system = LagrangianSystem(jnp.diag(weight), f_ext=-G * weight)
        model = Model(system, Interaction(GapRelation(gap), wrap(NewtonImpact(e))))
        return model, State(jnp.stack([low, high]), jnp.zeros(2))

    def exact(x):
        low, high, e, mass = x
        t1 = jnp.sqrt(2 * low / G)
        up = e * G * t1  # the lower ball goes up from 0 at t1
        down = State(high - G * t1**2 / 2, -G * t1)
        t2 = down.q / (up - down.v)  # both fall alike: they approach at constant speed
        a, b = _fall(t2, 0.0 * low, up), _fall(t2, down.q, down.v)
        push = (1 + e) * (a.v - b.v) / (1 + 1 / mass)
        rest = end - t1 - t2
        a, b = _fall(rest, a.q, a.v - push), _fall(rest, b.q, b.v + push / mass)
        return jnp.stack([a.q, b.q, a.v, b.v])

    return Problem((0.5, 0.9, 0.8, 0.4), end, build, exact)


def _heights(t, q):
    del t
    return q


def pair(x, wrap):
    """Two balls beside each other that never meet; `x`: two heights, restitution."""
    system = LagrangianSystem(np.eye(2), f_ext=np.array([-G, -G]))
    model = Model(system, Interaction(GapRelation(_heights), wrap(NewtonImpact(x[2]))))
    return model, State(x[:2], jnp.zeros(2))


def _pair(end=0.7):
    """They strike at the same instant."""

    def exact(x):
        a, b = (ball_state(end, height, 0.0, x[2]) for height in (x[0], x[1]))
        return jnp.concatenate([a.q, b.q, a.v, b.v])

    return Problem((1.0, 1.0, 0.7), end, pair, exact)


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


def _rod(end=0.44):
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

    return Problem((1.0, 0.6, 0.5, 0.3), end, rod, exact)


CORNER, INERTIA = np.array([0.3, -0.2, -0.5]), 0.2


def corner(x, wrap):
    """A body of equal moments falls on one corner; `x`: height, speed, friction, restitution."""
    height, speed, mu, e = x
    law = wrap(CoulombFriction(mu, e))
    zero = jnp.zeros_like(height)
    pose = Pose(jnp.stack([zero, zero, height])[None], jnp.array([[1.0, 0, 0, 0]]))
    model = Model(NewtonEulerSystem(1.0, INERTIA), Interaction(BodyPointsPlane(CORNER[None]), law))
    return model, State(pose, jnp.stack([speed, zero, zero, zero, zero, zero]))


def _corner(mu, end=0.45):
    """With friction: its corner slips or sticks while it strikes."""

    def exact(x):
        height, speed, mu, e = x
        t = jnp.sqrt(2 * (height + CORNER[2]) / G)
        zero = jnp.zeros_like(t)
        v = jnp.stack([speed, zero, -G * t])
        c = np.array(
            [[0, -CORNER[2], CORNER[1]], [CORNER[2], 0, -CORNER[0]], [-CORNER[1], CORNER[0], 0]]
        )
        W = np.eye(3) - c @ c / INERTIA
        wanted = jnp.stack([zero, zero, -e * v[2]]) - v  # at the point, if it sticks
        stick = jnp.linalg.solve(W, wanted)

        def slip_after(direction):
            pull = jnp.stack([*(-mu * direction), 1 + zero])
            normal = wanted[2] / jnp.sum(W[2] * pull)
            return normal * pull, (v + normal * W @ pull)[:2]

        def settle(d):  # the direction of slip after the impact
            u = slip_after(d)[1]
            return u / jnp.sqrt(jnp.sum(u**2))

        d = jnp.stack([1 + zero, zero])
        for _ in range(30):
            d = settle(d)
        sticks = jnp.sum(stick[:2] ** 2) <= (mu * stick[2]) ** 2
        push = jnp.where(sticks, stick, slip_after(d)[0])
        after, spin = v + push, c @ push / INERTIA
        rest = end - t
        fall = jnp.stack([speed * t, zero, height - G * t**2 / 2])
        x1 = fall + after * rest - jnp.array([0, 0, G / 2]) * rest**2
        turn = spin * rest
        angle = jnp.sqrt(jnp.sum(turn**2))
        q = jnp.concatenate([jnp.cos(angle / 2)[None], jnp.sin(angle / 2) * turn / angle])
        v1 = after - jnp.array([0, 0, G]) * rest
        return jnp.concatenate([x1, q, v1, spin])

    return Problem((1.0, 1.5, mu, 0.3), end, corner, exact)


PROBLEMS = {
    "ball, one impact": _ball(0.8, 0.9),
    "ball, two impacts": _ball(1.2, 0.8),
    "ball, four impacts": _ball(1.9, 0.7),
    "oblique, slips": _oblique(0.1, 0.6),
    "oblique, sticks": _oblique(0.9, 0.6),
    "oblique, slips on landing": _landing_block(0.1),
    "oblique, sticks on landing": _landing_block(0.9),
    "slope": _slope(),
    "column": _column(),
    "two at once": _pair(),
    "rod": _rod(),
    "corner, slips": _corner(0.15),
    "corner, sticks": _corner(1.2),
}
