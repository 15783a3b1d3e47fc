"""Coordinates of joints and lengths of tendons: functions of the configuration, and what depends on them."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._jax import entries_at
from .._numerics import safe_norm
from .._types import Args, Scalar, State, Vector
from ..groups import AbstractGroup, Pose, rotate
from ..systems import Multibody


class Coordinates(eqx.Module):
    """One number for each entry of `v`: angle, displacement, or part of a rotation vector.

    **Arguments:** `group`: of the joint coordinates; `free`: which entries belong to free joints: 0;
    `places`: where an angle or a displacement is in `q`, −1 for the others.
    """

    group: AbstractGroup = eqx.field(static=True)
    free: tuple[bool, ...] = eqx.field(static=True)
    places: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, q: Array) -> Vector:
        free, places = np.array(self.free, bool), np.array(self.places, np.int32)
        turns = np.any(~free & (places < 0))
        found = self.group.log(q) if turns else entries_at(q, np.maximum(places, 0))
        return jnp.where(free, 0, found)


class AbstractPath(eqx.Module):
    """Lengths of tendons, a function `(t, q) -> (k,)` [m, rad]."""

    @abstractmethod
    def __call__(self, t: Scalar, q: Array) -> Float[Array, " k"]:
        """The lengths."""

    def moving(
        self, group: AbstractGroup, t: Scalar, state: State
    ) -> tuple[Array, Array, Callable]:
        """Lengths, their rates, and the generalised force of forces along them, by virtual power."""

        def rates(v):
            moving = (group.rate(state.q, v),)
            length, rate = jax.jvp(lambda q: self(t, q), (state.q,), moving)
            return rate, length

        rate, pull, length = jax.vjp(rates, state.v, has_aux=True)
        return length, rate, lambda force: pull(force)[0]


class JointPath(AbstractPath):
    """Lengths of fixed tendons, weighted sums of angles and displacements; zero for the others.

    **Arguments:** `coefficients`: for each entry of `v`, `(k, n)`; `places`: where its coordinate is in `q`,
    −1 for those of rotations and free joints, whose coefficients are zero.
    """

    coefficients: Float[Array, "k n"]
    places: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, t: Scalar, q: Array) -> Float[Array, " k"]:
        return self.coefficients @ entries_at(q, np.maximum(np.array(self.places, np.int32), 0))

    def moving(
        self, group: AbstractGroup, t: Scalar, state: State
    ) -> tuple[Array, Array, Callable]:
        length, rate = self(t, state.q), self.coefficients @ state.v
        return length, rate, lambda force: force @ self.coefficients


def placed_sites(frames: Pose, points: Array, body: tuple[int | None, ...]) -> Float[Array, "3 i"]:
    """Points of bodies `(i, 3)`, `None` for the world, in the frame of the world."""
    moves = np.array([b is not None for b in body])
    which = np.array([0 if b is None else b for b in body], np.int32)
    placed = frames.position[which].T + rotate(frames.orientation[which].T, points.T)
    return jnp.where(moves[None], placed, points.T)


class SitePath(AbstractPath):
    """Lengths of spatial tendons, the sum of `|p_a − p_b| / divisor` of their straight segments.

    Where both ends of a segment coincide, its derivative is zero.

    **Arguments:** `mechanism`: which places the bodies; `points`: of the sites [m], frames of their bodies,
    `(i, 3)`; `body`: of every site, `None` for the world; `segments`: `(tendon, site a, site b, divisor)`;
    `count`: of all tendons, zero for those without segments.
    """

    mechanism: Multibody
    points: Float[Array, "i 3"]
    body: tuple[int | None, ...] = eqx.field(static=True)
    segments: tuple[tuple[int, int, int, float], ...] = eqx.field(static=True)
    count: int = eqx.field(static=True)

    def __call__(self, t: Scalar, q: Array) -> Float[Array, " k"]:
        placed = placed_sites(self.mechanism.frames(q), self.points, self.body)
        tendon, a, b = np.array([s[:3] for s in self.segments], np.int32).T
        divisor = np.array([s[3] for s in self.segments]).astype(q.dtype)
        lengths = safe_norm(placed[:, a] - placed[:, b]) / divisor
        return jnp.zeros(self.count, q.dtype).at[tendon].add(lengths)


class TendonLength(eqx.Module):
    """Lengths of tendons, the sums of their paths, a function `(t, q) -> (k,)` [m, rad]."""

    paths: tuple[AbstractPath, ...]
    group: AbstractGroup = eqx.field(static=True)
    count: int = eqx.field(static=True)

    def __call__(self, t: Scalar, q: Array) -> Float[Array, " k"]:
        return sum((path(t, q) for path in self.paths), jnp.zeros(self.count, q.dtype))

    def moving(self, t: Scalar, state: State) -> tuple[Array, Array, Callable]:
        """As of a path, of their sums."""
        lengths, rates, pulls = zip(
            *(path.moving(self.group, t, state) for path in self.paths), strict=True
        )
        return sum(lengths), sum(rates), lambda force: sum(pull(force) for pull in pulls)  # pyright: ignore[reportReturnType]


class TendonSprings(eqx.Module):
    """Springs, relaxed within a range of lengths, and dampers along tendons."""

    length: TendonLength
    stiffness: Float[Array, " k"]
    damping: Float[Array, " k"]
    relaxed: Float[Array, "k 2"]

    def __call__(self, t: Scalar, state: State, args: Args) -> Vector:
        length, rate, pull = self.length.moving(t, state)
        return -pull(self.stiffness * self._beyond(length) + self.damping * rate)

    def potential(self, t: Scalar, q: Array) -> Scalar:
        """Energy of the springs [J]."""
        return jnp.sum(self.stiffness * self._beyond(self.length(t, q)) ** 2) / 2

    def _beyond(self, length: Array) -> Array:
        return length - jnp.clip(length, self.relaxed[:, 0], self.relaxed[:, 1])


class BallLimit(eqx.Module):
    """`largest − angle` of a ball joint with the quaternion at `q[at : at + 4]`."""

    largest: Array
    at: int = eqx.field(static=True)

    def __call__(self, t, q):
        turned = 2 * jnp.arctan2(safe_norm(q[self.at + 1 : self.at + 4]), jnp.abs(q[self.at]))
        return (self.largest - turned)[None]


class Coupled(eqx.Module):
    """`x1 − Σ c_k x2^k` of two coordinates, counted from `start`; of one alone, `x1 − c_0`."""

    coefficients: Array
    start: Array
    coordinates: tuple[Callable, ...]

    def __call__(self, t, q):
        moved = [x(t, q) - start for x, start in zip(self.coordinates, self.start, strict=True)]
        second = moved[1] if len(moved) > 1 else jnp.zeros_like(moved[0])
        return moved[0] - jnp.polyval(self.coefficients[::-1], second)
