"""Proofs that a problem has no solution.

A direction `y` proves it if `y · w >= 0` for every velocity that the laws admit, while no multiplier
produces such a velocity:

    y · (W z + q) <= y · q + sup_(z in K) (W^T y) · z < 0.

Half lines admit velocities `w >= 0`, and free rows `w = 0`. Cones around the normal, with or without the
shift of friction, require at least `w_N >= 0` (`AbstractSet.unilateral`). Where iterates diverge, they do
so along such a `y`; otherwise the initially violated velocities are also tried as a certificate.
"""

import jax.numpy as jnp
from jaxtyping import Array

from ..problem._dense import DenseProblem, norm
from ..problem._problem import join, split
from ._drive import Best

SLACK = 1e-7
"""Largest part of `W^T y` outside the polar of K, relative to `|W| |y|`."""
REACH = 1e7
"""Size up to which a proof must exclude multipliers, relative to `|q| / |W|`: `outside` may be rounding."""


def certificate(problem: DenseProblem, best: Best) -> Array:
    """A normalised direction that proves infeasibility, `(m, l)`, or zero."""
    out = jnp.zeros_like(best.z)
    for ray in (best.z, best.ray, -problem.q):
        y = _admissible(problem, ray)
        proof = _proves(problem, y) & (jnp.max(jnp.abs(out), axis=0) == 0)
        out = jnp.where(proof[None], y, out)
    return out


def _admissible(problem: DenseProblem, ray: Array) -> Array:
    """The part of a direction that no admitted velocity opposes, normalised."""
    parts = []
    for contacts, x in zip(problem.contacts, split(problem.shapes, ray), strict=True):
        bounds = contacts.law.set().interval()
        if bounds is None:
            pushed = jnp.where(contacts.law.set().unilateral(), jnp.maximum(x[:1], 0), 0)
            y = jnp.concatenate([pushed, 0 * x[1:]])
        else:
            # A row with two bounds may move either way; one with none not at all.
            lower, upper = (jnp.isfinite(_rows(b, x)) for b in bounds)
            y = jnp.where(lower & upper, 0, jnp.where(lower, jnp.maximum(x, 0), x))
            y = jnp.where(upper & ~lower, jnp.minimum(x, 0), y)
        parts.append(jnp.where(contacts.active[None], y, 0))
    y = join(parts)
    size = norm(y)
    return jnp.where(size[None] > 0, y / jnp.where(size > 0, size, 1)[None], 0)


def _rows(bound, x: Array) -> Array:
    """A bound for every row of `x (k, c, l)`."""
    return jnp.broadcast_to(
        jnp.broadcast_to(jnp.asarray(bound, x.dtype), x.shape[1:])[None], x.shape
    )


def _proves(problem: DenseProblem, y: Array) -> Array:
    back = jnp.einsum("lij,il->jl", problem.W, y)
    matrix = problem.frobenius()
    gain = jnp.sum(y * problem.q, axis=0)
    outside = jnp.zeros_like(gain)
    for contacts, x in zip(problem.contacts, split(problem.shapes, back), strict=True):
        bounds = contacts.law.set().interval()
        if bounds is None:
            gone = contacts.law.set().project(x)
        else:
            lower, upper = (_rows(b, x) for b in bounds)
            end = jnp.where(x > 0, upper, lower)
            finite = jnp.isfinite(end)
            best = jnp.where(finite, x * jnp.where(finite, end, 0), 0)
            gain = gain + jnp.sum(jnp.where(contacts.active[None], best, 0), axis=(0, 1))
            gone = jnp.where(finite, 0, x)
        gone = jnp.where(contacts.active[None], gone, 0)
        outside = outside + jnp.sum(gone * gone, axis=(0, 1))
    outside, size = jnp.sqrt(outside), norm(problem.q)
    excluded = outside * size * REACH <= -gain * matrix
    return excluded & (outside <= SLACK * matrix) & (gain < -SLACK * size)


def far(problem: DenseProblem, z: Array) -> Array:
    """Whether multipliers are so large that a proof may exclude them, `(l,)`."""
    return norm(z) * problem.frobenius() > REACH * norm(problem.q)
