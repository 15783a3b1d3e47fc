"""Where a body touches a surface `f(x) = 0`: the point `y` whose normal meets the point of the body that is
furthest out against it.

    f(y) = 0,    (1 − n nᵀ)(x(n) − y) = 0,    n = ∇f(y) / |∇f(y)|

For a fixed point `x` (a centre, an end, a corner) this is the condition of a nearest point.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._numerics import implicit_root
from .._features import orthogonal, unit
from ._implicit import AbstractSurface

MOST_STEPS = 40
"""Of a search; it ends when it has found the point, usually after four to eight."""
DRIFT = 2.0
"""Weight of the distance to the surface against that to the point; exact for every weight above 1."""
FLAT = 1e-6
"""Smallest stiffness, relative to the largest one, with which a place along the surface is determined."""


def frame_at(n: Float[Array, "3"]) -> Float[Array, "3 3"]:
    """Two tangents and the normal, as columns."""
    across = orthogonal(n)
    return jnp.stack([across, jnp.cross(n, across), n], axis=1)


def _level(surface: AbstractSurface, y: Float[Array, "3"]) -> tuple[Array, Array]:
    """The distance to the surface to first order, `f / |∇f|`, and the normal; finite where `∇f` vanishes."""
    value, slope = jax.value_and_grad(surface.value)(y)
    square = jnp.sum(slope * slope)
    usable = square > jnp.finfo(y.dtype).tiny ** 0.5
    size = jnp.sqrt(jnp.where(usable, square, 1))
    up = jnp.array([0, 0, 1], y.dtype)
    return value / size, jnp.where(usable, slope / size, up)


def normal_at(surface: AbstractSurface, y: Float[Array, "3"]) -> Float[Array, "3"]:
    """The outward unit normal at a point of the surface; the z axis where the gradient vanishes."""
    return _level(surface, y)[1]


def _stride(surface: AbstractSurface, x: Array, y: Array) -> Float[Array, "3"]:
    """A Newton step of the nearest point `y` to `x`, downhill also where the distance is not convex."""
    value, slope = jax.value_and_grad(surface.value)(y)
    bend = jax.hessian(surface.value)(y)
    square = jnp.sum(slope * slope)
    usable = square > jnp.finfo(y.dtype).tiny ** 0.5
    size = jnp.sqrt(jnp.where(usable, square, 0))
    frame = frame_at(unit(slope, jnp.array([0, 0, 1], y.dtype)))
    t1, t2, out = (x - y) @ frame
    curve = frame.T @ bend @ frame
    # Along the normal the quadratic f + |∇f| s + f'' s² / 2 leads to the surface also where ∇f vanishes.
    root = size + jnp.sqrt(jnp.maximum(square - 2 * value * curve[2, 2], 0))
    s = jnp.where(root > 0, -2 * value / jnp.where(root > 0, root, 1), 0)
    multiplier = jnp.where(usable, out / jnp.where(usable, size, 1), 0)
    a, b, c = 1 + multiplier * curve[0, 0], multiplier * curve[0, 1], 1 + multiplier * curve[1, 1]
    least = (a + c) / 2 - jnp.sqrt((a - c) ** 2 / 4 + b * b)
    shift = jnp.maximum(0.1 - least, 0)
    a, c = a + shift, c + shift
    inverse = 1 / (a * c - b * b)
    return frame @ jnp.stack([(c * t1 - b * t2) * inverse, (a * t2 - b * t1) * inverse, s])


def search(surface: AbstractSurface, x: Array, start: Array) -> Float[Array, "3"]:
    """A point of the surface nearest to `x`, the one that the way down from `start` leads to; a constant."""
    surface, x, start = jax.lax.stop_gradient((surface, x, start))
    eps = float(jnp.finfo(x.dtype).eps)

    def length(z):
        return jnp.sqrt(jnp.sum(z * z))

    def merit(y):
        level = _level(surface, y)[0]
        value = length(y - x) + DRIFT * jnp.abs(level)
        return jnp.where(jnp.isfinite(value), value, jnp.inf)

    def unfinished(state):
        y, _, _, moved, k = state
        small = eps**0.5 * (length(y - x) + length(y))
        return (k < MOST_STEPS) & (moved > 0.1 * small)

    def advance(state):
        y, best, part, _, k = state
        step = part * _stride(surface, x, y)
        step = jnp.where(jnp.all(jnp.isfinite(step)), step, 0)
        tried = y + step
        # Back to the surface: without it a long step along a curved one looks worse than it is.
        level, n = _level(surface, tried)
        back = tried - level * n
        tried = jnp.where(merit(back) < merit(tried), back, tried)
        value = merit(tried)
        better = value <= best * (1 + 4 * eps)
        part = jnp.where(better, jnp.minimum(4 * part, 1), part / 4)
        return (
            jnp.where(better, tried, y),
            jnp.where(better, value, best),
            part,
            length(step),
            k + 1,
        )

    one = jnp.ones((), x.dtype)
    return jax.lax.while_loop(unfinished, advance, (start, merit(start), one, one * jnp.inf, 0))[0]


def _is_firm(slopes: Float[Array, "3 3"]) -> Bool[Array, ""]:
    """Whether conditions determine the two places along the surface."""
    tangential = slopes[:2, :2]
    size = jnp.max(jnp.abs(tangential))
    determinant = tangential[0, 0] * tangential[1, 1] - tangential[0, 1] * tangential[1, 0]
    firm = jnp.abs(determinant) > FLAT * size * size
    return firm & (jnp.abs(tangential[0, 0]) > FLAT * size) & (size > FLAT) & jnp.isfinite(size)


def touching(
    surface: AbstractSurface, point: Callable[[Array], Array], start: Array, steps: int = 0
) -> tuple[Float[Array, "3"], Float[Array, "3"]]:
    """The point of the surface that is nearest to a body and the normal there, with their derivatives.

    Where its place along the surface is not determined, in the centre of a round bowl, it does not move along
    the surface; the derivative of the gap is right there too.

    **Arguments:** `point`: the point of the body for a normal; `start`: a point found by `search`;
    `steps`: Newton steps from there without derivatives.
    """
    start = jax.lax.stop_gradient(start)
    frame = frame_at(jax.lax.stop_gradient(normal_at(surface, start)))

    def condition(w, is_firm):
        y = start + frame @ w
        level, n = _level(surface, y)
        off = y - point(n)
        off = (off - jnp.dot(n, off) * n) @ frame
        return jnp.concatenate([jnp.where(is_firm, off[:2], w[:2]), level[None]])

    zero = jnp.zeros_like(start)
    slopes = jax.lax.stop_gradient(jax.jacfwd(lambda w: condition(w, True))(zero))
    is_firm = _is_firm(slopes)
    w = implicit_root(lambda w: condition(w, is_firm), zero, search=steps)
    y = start + frame @ w
    return y, normal_at(surface, y)
