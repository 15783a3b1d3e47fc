"""Random mechanisms with many events: each for the oracle that goes from event to event, and as a model.

Both sides share the formulas of masses, forces and gaps, which are smooth. Whatever is not smooth, and every
derivative, each side has by itself.
"""

from abc import abstractmethod
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffnsd import State
from diffnsd.laws import DryFriction, NewtonImpact
from diffnsd.model import Interaction, Model
from diffnsd.relations import GapRelation, RateRelation
from diffnsd.systems import LagrangianSystem

from ._base import G
from ._event_by_event import Discarded, Event, Mechanism, motion


class Family(Mechanism):
    """Mechanisms of one kind: parameters at random, and their model."""

    @abstractmethod
    def sample(self, random: np.random.Generator) -> np.ndarray:
        """Parameters."""

    @abstractmethod
    def system(self, p: jax.Array) -> LagrangianSystem:
        """What is smooth."""

    def build(self, p: jax.Array) -> tuple[Model, State]:
        """The model and its start, for `simulate`."""
        system = self.system(p)
        stops = Interaction(GapRelation(_Gaps(self, p)), NewtonImpact(self.restitutions(p)))
        friction = Interaction(RateRelation(_Rubbed(self, p)), DryFriction(self.limits(p)))
        return Model(system, (stops, friction)), system.state(*self.start(p))


class _Part(eqx.Module):
    """A function of a model; the parameters are its leaves, so that no draw is compiled anew."""

    family: Family = eqx.field(static=True)
    p: jax.Array


class _Mass(_Part):
    def __call__(self, q):
        return self.family.mass(self.p, q, jnp)


class _InternalForce(_Part):
    def __call__(self, t, q, v):
        return -self.family.force(self.p, t, q, v, jnp)


class _Gaps(_Part):
    def __call__(self, t, q):
        del t
        return self.family.gaps(self.p, q, jnp)


class _Rubbed(_Part):
    """How far the frictions have rubbed."""

    def __call__(self, t, q):
        return self.family.rubs @ q - self.family.belts(self.p) * t


def _entries(x) -> tuple:
    return tuple(x[..., i] for i in range(x.shape[-1]))


class Line(Family):
    """Three masses on a line, held by springs; the first is driven and rubs on a belt.

    The first strikes the second, which rubs on the ground; the third strikes a wall. One spring has a
    cubic part. In three of ten mechanisms the first two stay together after they collide.
    """

    names = (
        *("mass 0", "mass 1", "mass 2", "spring 0", "spring 1", "spring 2", "spring 3"),
        *(
            "cubic",
            "damping",
            "drive",
            "pace",
            "wall",
            "distance",
            "e of the wall",
            "e of the masses",
        ),
        *("limit 0", "limit 1", "belt", "q 0", "q 1", "q 2", "v 0", "v 1", "v 2"),
    )
    rubs = np.eye(2, 3)
    _slopes = np.array([[0.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])

    def sample(self, random):
        masses, springs = random.uniform(0.5, 2, 3), random.uniform(5, 80, 3)
        last, cubic = random.uniform(0, 30, 1), random.uniform(0, 40, 1)
        damping, drive = random.uniform(0, 0.5, 1), random.uniform(0, 8, 1)
        pace, distances = random.uniform(3, 12, 1), random.uniform(0.05, 0.4, 2)
        bounces = np.array([1.0, random.uniform() < 0.7])
        e = bounces * random.uniform(0.2, 0.95, 2)
        limits, belt = random.uniform(0.05, 1.5, 2), random.uniform(-0.4, 0.4, 1)
        q, v = random.uniform(-0.1, 0.1, 3), random.uniform(-2, 2, 3)
        forces = masses, springs, last, cubic, damping, drive, pace
        return np.concatenate([*forces, distances, e, limits, belt, q, v])

    def mass(self, p, q, xp=np):
        del q, xp
        return p[..., :3, None] * np.eye(3)

    def force(self, p, t, q, v, xp=np):
        k0, k1, k2, k3, cubic, damping, drive, pace = _entries(p[..., 3:11])
        (x0, x1, x2), (u0, u1, u2) = _entries(q), _entries(v)
        pull0 = k0 * x0 + cubic * x0**3 + damping * u0
        pull1 = k1 * (x1 - x0) + damping * (u1 - u0)
        pull2 = k2 * (x2 - x1) + damping * (u2 - u1)
        driven = pull1 - pull0 + drive * xp.sin(pace * t)
        return xp.stack([driven, pull2 - pull1, -pull2 - k3 * x2], -1)

    def gaps(self, p, q, xp=np):
        del xp
        return q @ self._slopes.T + p[..., 11:13]

    def gap_slopes(self, p, q):
        del q
        return np.broadcast_to(self._slopes, (*p.shape[:-1], 2, 3))

    def gap_drifts(self, p, q, v):
        del q, v
        return np.zeros((*p.shape[:-1], 2))

    def restitutions(self, p):
        return p[..., 13:15]

    def limits(self, p):
        return p[..., 15:17]

    def belts(self, p):
        return p[..., 17:18] * np.array([1.0, 0.0])  # under the first; the ground is at rest

    def start(self, p):
        return p[..., 18:21], p[..., 21:24]

    def system(self, p):
        return LagrangianSystem(self.mass(p, None), f_int=_InternalForce(self, p))


class Arm(Family):
    """A double pendulum, driven, with springs and friction in its joints.

    The outer joint has a stop on either side, and the tip strikes a wall. The second angle is relative to
    the first.
    """

    names = (
        *("mass 0", "mass 1", "length 0", "length 1", "spring 0", "spring 1", "damping"),
        *(
            "drive",
            "pace",
            "stop above",
            "stop below",
            "wall",
            "e above",
            "e below",
            "e of the wall",
        ),
        *("limit 0", "limit 1", "q 0", "q 1", "v 0", "v 1"),
    )
    rubs = np.eye(2)

    def sample(self, random):
        masses, lengths = random.uniform(0.5, 2, 2), random.uniform(0.3, 0.8, 2)
        springs, damping = random.uniform(0, 5, 2), random.uniform(0, 0.1, 1)
        drive, pace = random.uniform(0, 4, 1), random.uniform(3, 12, 1)
        stops, wall = random.uniform(0.1, 0.4, 2), random.uniform(0.1, 0.35, 1)
        e, limits = random.uniform(0.2, 0.95, 3), random.uniform(0.02, 0.4, 2)
        q, v = random.uniform(-0.15, 0.15, 2), random.uniform(-3, 3, 2)
        forces = masses, lengths, springs, damping, drive, pace
        return np.concatenate([*forces, stops, wall, e, limits, q, v])

    def mass(self, p, q, xp=np):
        m0, m1, l0, l1 = _entries(p[..., :4])
        mixed = m1 * l0 * l1 * xp.cos(q[..., 1])
        outer = m1 * l1**2
        inner = (m0 + m1) * l0**2 + outer + 2 * mixed
        rows = [inner, outer + mixed], [outer + mixed, outer]
        return xp.stack([xp.stack(row, -1) for row in rows], -2)

    def force(self, p, t, q, v, xp=np):
        m0, m1, l0, l1, k0, k1, damping, drive, pace = _entries(p[..., :9])
        (a, b), (u, w) = _entries(q), _entries(v)
        swing = m1 * l0 * l1 * xp.sin(b)
        weight = m1 * G * l1 * xp.sin(a + b)
        all_weight = (m0 + m1) * G * l0 * xp.sin(a) + weight
        inner = swing * (2 * u + w) * w - all_weight - k0 * a - damping * u
        outer = -swing * u**2 - weight - k1 * b - damping * w
        return xp.stack([inner + drive * xp.sin(pace * t), outer], -1)

    def gaps(self, p, q, xp=np):
        l0, l1 = _entries(p[..., 2:4])
        above, below, wall = _entries(p[..., 9:12])
        a, b = _entries(q)
        tip = l0 * xp.sin(a) + l1 * xp.sin(a + b)
        return xp.stack([above - b, b + below, wall - tip], -1)

    def gap_slopes(self, p, q):
        a, b = _entries(q)
        inner, outer = p[..., 2] * np.cos(a), p[..., 3] * np.cos(a + b)
        zero, one = np.zeros_like(a), np.ones_like(a)
        rows = [zero, -one], [zero, one], [-inner - outer, -outer]
        return np.stack([np.stack(row, -1) for row in rows], -2)

    def gap_drifts(self, p, q, v):
        (a, b), (u, w) = _entries(q), _entries(v)
        zero = np.zeros_like(a)
        tip = p[..., 2] * np.sin(a) * u**2 + p[..., 3] * np.sin(a + b) * (u + w) ** 2
        return np.stack([zero, zero, tip], -1)

    def restitutions(self, p):
        return p[..., 12:15]

    def limits(self, p):
        return p[..., 15:17]

    def belts(self, p):
        return 0 * p[..., 15:17]

    def start(self, p):
        return p[..., 17:19], p[..., 19:21]

    def system(self, p):
        return LagrangianSystem(_Mass(self, p), f_int=_InternalForce(self, p), n=2)


FAMILIES = {"line": Line(), "arm": Arm()}


def draws(
    family: Family, count: int, seed: int, end: float = 1.0
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, list[Event]]]:
    """Parameters, state at the end, its derivatives and the events of `count` mechanisms.

    Those that the oracle discards are passed over, and those with a stop within 0.01 at the start, which
    might begin with an impact.
    """
    random = np.random.default_rng(seed)
    while count:
        p = family.sample(random)
        q, _ = family.start(p)
        if np.any(family.gaps(p, q) < 0.01):
            continue
        try:
            known = motion(family, p, end)
        except Discarded:
            continue
        yield (p, *known)
        count -= 1


def off(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The largest error of each mechanism, relative to its largest entry."""
    axes = tuple(range(1, exact.ndim))
    return np.max(np.abs(found - exact), axes) / np.max(np.abs(exact), axes)
