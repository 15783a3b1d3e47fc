"""The natural map of the laws, its derivative, and residuals.

    F(v, z) = z − P_K(x),     x = z − rho (w + lift(w) e_N),     w = H v + offset

A contact that is not active has F = z. Solutions do not depend on `rho`, nor do derivatives.
"""

from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._block_rows import dense
from ..._jax import staged
from ..._numerics import dot, matvec, short_sum, stacked
from ..._own_rows import OwnRows
from ...laws._base import AbstractLaw
from ._problem import MixedProblem, apply, moved

EDGE = 1e-5, 1e-8
"""Distance from a change of mode that counts as zero, relative to the largest argument: float32, float64."""

SETTLED = 0.01
"""Distance from a change of mode, relative to the tilt, at which a limit lies on it. A corner that slides
more slowly than the tilt moves it, but slides, is merely near."""

ROUNDED = 0.1, 3e-6
"""Least size of a problem relative to the terms of its velocities, above rounding error: float32, float64."""

STRICTEST = 4e3
"""How many times the residual of a contact counts, at most: a tolerance of 1e-9 is then 1000 roundings."""


def tilt_for(dtype) -> float:
    """The compliance, relative to a contact's own, that selects a solution where impulses are not unique."""
    return 1e-6 if jnp.finfo(dtype).bits >= 64 else 1e-3


class UnderLaw(Protocol):
    """Contacts under one law, with or without the matrices of a step."""

    @property
    def law(self) -> AbstractLaw: ...

    @property
    def active(self) -> Array: ...


def argument(block: UnderLaw, w: Array, z: Array, rho: Array) -> Array:
    """The argument `x` of the projection, shape `(k, c, ...)`."""
    lifted = jnp.concatenate([(w[0] + block.law.lift(w))[None], w[1:]])
    return z - rho[None] * lifted


def residual(block: UnderLaw, x: Array, z: Array) -> Array:
    """The natural map `F`, shape `(k, c, ...)`."""
    return z - projected(block, x)


def projected(block: UnderLaw, x: Array) -> Array:
    """Projection of `x` on the sets; zero where a contact is not active."""
    return jnp.where(block.active[None], block.law.set().project(x), 0)


def derivative(block: UnderLaw, w: Array, x: Array, rho: Array, rows=None) -> tuple[Array, Array]:
    """`D = dP_K/dx` and `N = rho D S`, `S = 1 + e_N grad(lift)^T`, each `(k, k, c, ...)`.

    `rows`, `k x k` arrays `(c, ...)`, take the place of `dP_K/dx` where another map is used.
    The tangent of the natural map is `dF = (1 − D) dz + N dw`.
    """
    rows = block.law.set().jacobian(x) if rows is None else rows
    slope = block.law.lift_gradient(w)
    d = jnp.where(block.active[None, None], stacked(rows), 0)
    return d, rho[None, None] * (d + d[:, :1] * slope[None])


def resting(blocks, w, z, rho, kappa) -> list[Array]:
    """The local velocities at which derivatives are taken, constants `(k, c, ...)` per block.

    A contact inside its set is at rest, `w = 0`. The computed velocity is only rounding error, and the
    derivatives of `lift`, which has a kink there, would be noise. On the central path (`kappa`) no contact
    is at rest.
    """
    out = []
    for block, u, p, r in zip(blocks, w, z, rho, strict=True):
        x = argument(block, u, p, r)
        inside = jnp.all(block.law.set().project(x) == x, axis=0) & (kappa is None)
        out.append(jax.lax.stop_gradient(jnp.where(inside[None], 0, u)))
    return out


def sides(problem: MixedProblem, point, tilted, rho, kappa) -> tuple[list, list]:
    """The points of the natural map at which derivatives are taken, one side of each kink, as constants.

    A contact inside its set is at rest, as in `resting`. A contact on the edge of its set with no load to
    spare, such as the fourth corner of a face carried by three, also has a velocity that is only rounding
    error: there the solution of the tilted problem decides.

    **Arguments:** `point`, `tilted`: `(v, z)` of the solution and of the tilted problem.

    **Returns:** local velocities and arguments of the projections, `(k, c, ...)` per block.
    """
    (v, z), (tilted_v, tilted_z) = point, tilted
    if kappa is not None:
        return jax.lax.stop_gradient(at_point(problem, v, z, rho))
    velocities, arguments = [], []
    for block, w, part, w_tilted, part_tilted, r in zip(
        problem.blocks,
        problem.local(v),
        z,
        problem.local(tilted_v),
        tilted_z,
        rho,
        strict=True,
    ):
        law_set = block.law.set()
        x, x_tilted = argument(block, w, part, r), argument(block, w_tilted, part_tilted, r)
        on_edge = at_edge(block, x)[None]
        seen = jnp.where(on_edge, x_tilted, x)
        inside = jnp.all(law_set.project(seen) == seen, axis=0)[None]
        u = jnp.where(inside, 0, jnp.where(on_edge, w_tilted, w))
        velocities.append(u)
        arguments.append(jnp.where(on_edge, x_tilted, argument(block, u, part, r)))
    return jax.lax.stop_gradient((velocities, arguments))


def at_edge(block: UnderLaw, x: Array) -> Array:
    """Which contacts are at a change of mode up to the accuracy of a solution, shape `(c, ...)`."""
    size = jnp.max(jnp.where(block.active[None], jnp.abs(x), 0), axis=(0, 1))
    return block.law.set().margin(x) <= EDGE[jnp.finfo(x.dtype).bits >= 64] * size[None]


def distance_of_choice(problem: MixedProblem, x, tilted_x, size: Array, tilt: Array) -> Array:
    """Distance to the nearest change of mode of the choice among redundant impulses, relative to `size`.

    Where redundant contacts share a load, some of them lie exactly at a change of mode, and stay there as
    long as the contacts are redundant: the fourth corner of a face that three carry, or a corner that
    slides without speed. In the solution with the compliance `tilt` they are a distance away that is
    proportional to it, and the factor says how far the choice is from another one. The other contacts must
    be in the same mode in both solutions.

    **Arguments:** `x`, `tilted_x`: arguments of the projections at the limit and at the tilted solution.
    """
    least = jnp.full_like(size, jnp.inf)
    for block, y, y_tilted in zip(problem.blocks, x, tilted_x, strict=True):
        margin = block.law.set().margin
        here, least_known = margin(y), (tilt * size)[None]
        on_edge = at_edge(block, y) & (here <= SETTLED * least_known)
        near = jnp.maximum(here - least_known, 0)
        distance = jnp.where(on_edge, margin(y_tilted) / tilt[None], near)
        distance = jnp.where(block.active, distance, jnp.inf)
        least = jnp.minimum(least, jnp.min(distance, axis=0, initial=jnp.inf))
    return least / jnp.where(size > 0, size, 1)


def at_point(problem: MixedProblem, v, z, rho) -> tuple[list, list]:
    """Local velocities and arguments of the projections at a point `(v, z)`, per block."""
    w = list(problem.local(v))
    return w, list(map(argument, problem.blocks, w, z, rho))


def distances(problem: MixedProblem, w, z, x, rho, size: Array) -> tuple[Array, Array]:
    """Distance to the nearest change of mode, relative to `size`, and violation of the laws, `(...)`.

    The violation is the largest `rho |z · (w + lift e_N)|` of a contact, relative to the larger of
    `|z| |rho w|` and `|z| size`. `w`, `z`, the arguments `x` of the projections and `rho` are per block.
    """
    margin = jnp.full_like(size, jnp.inf)
    power, motion = jnp.zeros_like(size), jnp.zeros_like(size)
    unit = 1 / jnp.where(size > 0, size, 1)
    for block, u, p, y, r in zip(problem.blocks, w, z, x, rho, strict=True):
        distance = jnp.where(block.active, block.law.set().margin(y), jnp.inf)
        margin = jnp.minimum(margin, jnp.min(distance, axis=0, initial=jnp.inf))
        step = unit[None] * r
        lost = unit[None] * lost_power(block, u, p) * step
        power = jnp.maximum(power, jnp.max(lost, axis=0, initial=0))
        motion = motion + short_sum(jnp.where(block.active, dot(u, u) * step * step, 0), 0)
    norm = jnp.sqrt(squared(z, size))
    norm = norm * jnp.sqrt(jnp.maximum(motion, jnp.where(size > 0, jnp.ones_like(size), 0)))
    return unit * margin, power / jnp.where(norm > 0, norm, 1)


def wedged(problem: MixedProblem, mobility: Array | None, z) -> Array:
    """How many loaded contacts slide where friction draws them in more than the load lifts them, `(...)`.

    A force on the edge of the cone, against the slip, changes the normal velocity by

        e_N · W_ii (e_N − grad lift) = W_NN − mu W_NT · w_T / |w_T|.

    Where that is not positive (P. Painlevé, 1895), a contact that slides has no or several solutions, and may
    be stopped at once. `W_ii` is the contact's own block. Without its impulse a contact that sticks slips
    too, about as fast as it approaches: what slides counts from ten times that speed on.
    """
    pairs = [(b, p) for b, p in zip(problem.blocks, z, strict=True) if len(p) > 1]
    count = jnp.zeros(problem.rhs.shape[1:], jnp.int32)
    if not pairs:
        return count
    blocks = tuple(block for block, _ in pairs)
    loaded = tuple(block.active & (p[0] > 0) for block, p in pairs)

    def without_impulses(blocks, mobility, rhs):
        free = moved(mobility, rhs)
        return tuple(block.local(free) + block.offset for block in blocks)

    # Evaluated only where a contact is loaded, and its own block only where one slides.
    w = staged(_any(loaded), without_impulses, blocks, mobility, problem.rhs)
    slides = tuple(
        on & (short_sum(u[1:] * u[1:], 0) > 100 * u[0] * u[0])
        for on, u in zip(loaded, w, strict=True)
    )

    def counted(blocks, mobility, w, slides):
        each = zip(blocks, w, slides, strict=True)
        bad = (on & (_lifted_by_an_edge(block, mobility, u) <= 0) for block, u, on in each)
        return sum((jnp.sum(x, axis=0, dtype=jnp.int32) for x in bad), count)

    return staged(_any(slides), counted, blocks, mobility, w, slides)


def _any(masks) -> Array:
    return jnp.any(jnp.stack([jnp.any(mask) for mask in masks]))


def _lifted_by_an_edge(block, mobility: Array | None, w: Array) -> Array:
    """What a force on the edge of the cone, against the slip `w`, adds to the normal velocity, `(c, ...)`."""
    slope = block.law.lift_gradient(w)
    edge = jnp.concatenate([jnp.ones_like(w[:1]), -slope[1:]])
    b = dense(block.output if block.input is None else block.input)
    push = short_sum(b * edge[:, None], 0)
    if mobility is not None:
        push = matvec(mobility[:, :, None], push)
    if isinstance(block.output, OwnRows):
        own = push[block.output.at : block.output.at + w.shape[1]]
        return jnp.moveaxis(jnp.diagonal(own), -1, 0)
    return jnp.sum(dense(block.output)[0] * push, axis=0)


def lost_power(block: UnderLaw, w: Array, z: Array) -> Array:
    """`|z · (w + lift e_N)|` of every contact, zero where the law holds, shape `(c, ...)`.

    Where a row is held at a bound, the distance from that bound takes the place of `z`.
    """
    bounds = block.law.set().interval()
    u = jnp.concatenate([(w[0] + block.law.lift(w))[None], w[1:]])
    if bounds is not None and not all(isinstance(x, float) for x in bounds):
        lower, upper = (jnp.asarray(x)[None] for x in bounds)
        z = z - jnp.where(u > 0, lower, jnp.where(u < 0, upper, z))
        z = jnp.where(jnp.isfinite(z), z, 0)
    return jnp.where(block.active, jnp.abs(dot(z, u)), 0)


def scale(problem: MixedProblem, v: Array, rho: tuple[Array, ...]) -> tuple[Array, Array]:
    """Sizes `|rho w_free|` and `|w_free|` of the problem, shape `(...)`.

    Only contacts that would close at the velocity without multipliers, `v`, count, because distant contacts
    do not make a solution less accurate. Where contacts close only by rounding, the size is that of the
    rounded terms; where none closes, it is that of all contacts.
    """
    # Relative to the largest `rho`: squares of very light or heavy bodies leave the range of numbers.
    unit = largest(problem, rho)
    own, parts, closes, weights = [], [], [], []
    for block, r in zip(problem.blocks, rho, strict=True):
        w = jnp.where(block.active[None], block.local(v) + block.offset, 0)
        x = argument(block, w, jnp.zeros_like(w), r)
        closes.append(jnp.any(projected(block, x) != 0, axis=0))
        terms = apply(jax.tree.map(jnp.abs, block.output), jnp.abs(v)) + jnp.abs(block.offset)
        own.append(dot(w, w))
        parts.append(dot(terms, terms))
        weights.append(jnp.where(block.active, r / unit[None], 0) ** 2)

    def total(squares, weights, where):
        each = zip(squares, weights, where, strict=True)
        return sum(short_sum(jnp.where(on, w * x, 0), 0) for x, w, on in each)

    def length(weights):
        met, rounded = total(own, weights, closes), total(parts, weights, closes)
        size = jnp.maximum(met, ROUNDED[jnp.finfo(v.dtype).bits >= 64] ** 2 * rounded)
        everywhere = list(map(jnp.ones_like, closes))
        return jnp.sqrt(jnp.where(size > 0, size, total(own, weights, everywhere)))

    return unit * length(weights), length(list(map(jnp.ones_like, weights)))


def largest(problem: MixedProblem, rho: tuple[Array, ...]) -> Array:
    """The largest `rho` of an active contact, shape `(...)`; 1 where none is active."""
    most = jnp.zeros_like(problem.rhs[0])
    for block, r in zip(problem.blocks, rho, strict=True):
        most = jnp.maximum(most, jnp.max(jnp.where(block.active, r, 0), axis=0, initial=0))
    return jnp.where(most > 0, most, 1)


def shares(rho: tuple[Array, ...], size: Array, speed: Array) -> tuple[Array, ...] | None:
    """Weights of the residuals of contacts, at least 1, `(c, ...)`; `None` in single precision.

    A residual relative to the largest impulses leaves the velocity of a light body between heavy ones open.
    The velocity error `F / rho` therefore counts as well, relative to a hundred times the velocities.
    """
    if jnp.finfo(size.dtype).bits < 64:
        return None
    strict = 0.01 * size / jnp.where(speed > 0, speed, 1)
    return tuple(jnp.clip(strict[None] / jnp.where(r > 0, r, 1), 1, STRICTEST) for r in rho)


def squared(parts: tuple[Array, ...], size: Array) -> Array:
    """Sum of squares over rows and contacts of all blocks, in units of `size`, shape `(...)`.

    In other units squares of impulses of very light or heavy bodies leave the range of numbers.
    """
    unit = (1 / jnp.where(size > 0, size, 1))[None, None]
    scaled = (unit * part for part in parts)
    return sum(short_sum(dot(x, x), 0) for x in scaled)  # pyright: ignore[reportReturnType]


def within(parts: tuple[Array, ...], limit, z: tuple[Array, ...], size: Array) -> Array:
    """Whether `|parts| <= limit |z|`, shape `(...)`."""
    return squared(parts, size) <= limit**2 * squared(z, size)


def relative(residuals: tuple[Array, ...], z: tuple[Array, ...], size: Array) -> Array:
    """`|F|` relative to `|z|`, clipped to at least `size` and at most `1e3 size`, shape `(...)`.

    Multipliers grow without bound where a problem has no solution; the upper limit keeps them from
    making any residual look small. Zero where `F` is zero.
    """
    if not residuals:
        return jnp.zeros_like(size)
    reference = jnp.clip(jnp.sqrt(squared(z, size)), 1, 1e3)
    norm = jnp.sqrt(squared(residuals, size))
    # A residual that is NaN stays NaN: the point is not a solution.
    return jnp.where(norm == 0, 0, norm / reference)
