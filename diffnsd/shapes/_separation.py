"""The direction in which two convex shapes are furthest apart, or least deep in each other.

With `w(n)` the lowest point in direction `n` of the differences `x1 − x2` of points of two convex shapes,
`s(n) = n · w(n)` is their distance along `n`; its maximum over unit vectors is the signed distance. It is
searched by cutting planes: the maximum over `n` of `min_k n · w_k` for the few points met so far, which is
what the algorithms GJK (Gilbert, Johnson, Keerthi 1988, doi:10.1109/56.2083) and EPA (van den Bergen 2001)
do on a simplex and on a polytope. A search starts at the best local maxima of a fixed grid of directions.
"""

from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._cores import Core

MEMORY = 8
"""Points that a search keeps."""
STARTS = 10
"""Local maxima of the grid from which a search starts."""
FIRST_STEPS = 4
"""Steps of all searches."""
KEPT = 3
"""Searches that go on, with the one that is free."""
STEPS = 12
"""Largest number of steps of these."""
_PAIRS = np.array(list(combinations(range(MEMORY), 2)))
_TRIPLES = np.array(list(combinations(range(MEMORY), 3)))


def _grid() -> tuple[np.ndarray, np.ndarray]:
    """The 162 corners of an icosahedron divided twice, and the six nearest to each."""
    golden = (1 + 5**0.5) / 2
    corners = [(0, a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    points = np.array([np.roll(c, k) for c in corners for k in range(3)]) / np.hypot(1, golden)
    for _ in range(2):
        gaps = np.linalg.norm(points[:, None] - points, axis=-1) + 9 * np.eye(len(points))
        near = np.argwhere(np.triu(gaps < 1.3 * gaps.min()))
        middle = points[near].sum(axis=1)
        points = np.concatenate([points, middle / np.linalg.norm(middle, axis=1, keepdims=True)])
    order = np.argsort(-(points @ points.T), axis=1, kind="stable")
    return points, order[:, : MEMORY - 1]


_GRID, _AROUND = _grid()


def separation(core1: Core, core2: Core, n: Float[Array, "k 3"]) -> Float[Array, " k"]:
    """Distance of two shapes along each of some directions `n` that point from shape 2 to shape 1 [m]."""
    low = jnp.min(n @ core1.vertices.T, axis=-1) - core1.spread(n)
    return low - jnp.max(n @ core2.vertices.T, axis=-1) - core2.spread(n)


def lowest(core1: Core, core2: Core, n: Float[Array, "3"]) -> Float[Array, "3"]:
    """The lowest point in direction `n` of the differences `x1 − x2`."""
    point1 = core1.vertices[jnp.argmin(core1.vertices @ n)] - core1.offset(n)
    return point1 - core2.vertices[jnp.argmax(core2.vertices @ n)] - core2.offset(n)


def _unit(x: Float[Array, "k 3"]) -> tuple[Float[Array, "k 3"], Bool[Array, " k"]]:
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    usable = square > jnp.finfo(x.dtype).tiny
    return x / jnp.sqrt(jnp.where(usable, square, 1)), usable[:, 0]


def _candidates(points: Float[Array, "k 3"]) -> tuple[Float[Array, "c 3"], Bool[Array, " c"]]:
    """Normals of all planes through three points, nearest to the origin on lines through two, and points."""
    a, b, c = (points[_TRIPLES[:, i]] for i in range(3))
    planes, flat = _unit(jnp.cross(b - a, c - a))
    a, b = points[_PAIRS[:, 0]], points[_PAIRS[:, 1]]
    arm, apart = _unit(b - a)
    lines, off_line = _unit(a - jnp.sum(a * arm, axis=-1, keepdims=True) * arm)
    singles, off = _unit(points)
    return (
        jnp.concatenate([planes, -planes, lines, singles]),
        jnp.concatenate([flat, flat, apart & off_line, off]),
    )


class _Search(eqx.Module):
    """A search: its points, best direction and separation, radius of trust, and how far it may still rise."""

    points: Float[Array, "k 3"]
    n: Float[Array, "3"]
    best: Float[Array, ""]
    radius: Float[Array, ""]
    slack: Float[Array, ""]
    free: Bool[Array, ""]


def _start(core1: Core, core2: Core, near: Float[Array, "k 3"], free: Array) -> _Search:
    """A search at the first one of some directions, in all directions if it is free."""
    points = jax.vmap(lambda n: lowest(core1, core2, n))(near)
    extra = core1.vertices[:1] - core2.vertices[:1]
    best = jnp.dot(near[0], points[0])
    points = jnp.concatenate([points, extra])
    return _Search(
        points, near[0], best, jnp.full_like(best, 0.5), jnp.full_like(best, jnp.inf), free
    )


def _advance(core1: Core, core2: Core, at: _Search) -> _Search:
    """One cutting plane, near the best direction where shapes overlap, as there may be many maxima."""
    tried, usable = _candidates(at.points)
    free = at.free | (at.best > 0)
    within = free | (jnp.sum((tried - at.n[None]) ** 2, axis=-1) < at.radius**2)
    bounds = jnp.where(usable & within, jnp.min(tried @ at.points.T, axis=-1), -jnp.inf)
    k = jnp.argmax(bounds)
    found = jnp.isfinite(bounds[k])
    n = jnp.where(found, tried[k], at.n)
    point = lowest(core1, core2, n)
    value = jnp.dot(n, point)
    better = value > at.best
    best = jnp.where(better, value, at.best)
    return _Search(
        at.points.at[jnp.argmax(at.points @ n)].set(point),
        jnp.where(better, n, at.n),
        best,
        jnp.where(better | free, at.radius, at.radius / 2),
        jnp.where(found, bounds[k] - best, jnp.inf),
        at.free,
    )


def _ascend(core1: Core, core2: Core, searches: _Search, steps: int) -> _Search:
    """Searches after some steps, or sooner where all have found their local maximum."""
    tolerance = 100 * jnp.finfo(searches.n.dtype).eps * (core1.scale + core2.scale)

    def unfinished(state):
        at, step = state
        return (step < steps) & jnp.any((at.slack > tolerance) & (at.radius > 1e-9))

    def advance(state):
        at, step = state
        return jax.vmap(lambda one: _advance(core1, core2, one))(at), step + 1

    return jax.lax.while_loop(unfinished, advance, (searches, 0))[0]


def search(core1: Core, core2: Core) -> Float[Array, "3"]:
    """The unit vector from shape 2 to shape 1 along which they are furthest apart, nearly; a constant."""
    core1, core2 = jax.lax.stop_gradient((core1, core2))
    grid = jnp.asarray(_GRID, core1.vertices.dtype)
    values = separation(core1, core2, grid)
    behind = 10 * (core1.scale + core2.scale)
    peaks = values - jnp.where(values >= jnp.max(values[_AROUND], axis=1), 0, behind)
    _, starts = jax.lax.top_k(peaks, STARTS)
    starts = jnp.concatenate([starts[:1], starts])
    around = grid[jnp.asarray(_AROUND)[starts]]
    free = jnp.arange(STARTS + 1) == 0
    searches = jax.vmap(lambda *start: _start(core1, core2, *start))(around, free)
    searches = _ascend(core1, core2, searches, FIRST_STEPS)
    _, kept = jax.lax.top_k(jnp.where(free, jnp.inf, searches.best), KEPT + 1)
    searches = _ascend(core1, core2, jax.tree.map(lambda x: x[kept], searches), STEPS)
    return searches.n[jnp.argmax(searches.best)]
