"""The matrix of an implicit step of an elastic body, by the structure that its mesh gives it."""

import functools
from typing import Any

import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from ..._jax import staged
from ..._numerics import matvec, short_sum, skew
from ..._types import Args, Scalar, State
from ...linear import Banded, ElementSum, NodeBlocks
from ...linear._operators import widened
from . import _base as assembly

WIDEST_BAND = 11
"""Nodes in a row with up to this distance of coupled unknowns are solved by bands."""


def step_matrix(
    body: Any,
    t: Scalar,
    state: State,
    args: Args,
    a: Scalar,
    b: Scalar,
    *,
    massless: bool = False,
) -> lx.AbstractLinearOperator:
    """`M − a ∂f/∂v − b ∂f/∂q` of the unknowns; without `M` if `massless`.

    By its diagonals where unknowns that are coupled are at most `WIDEST_BAND` apart and loads do not couple
    others, by its blocks between nodes where it is symmetric, else as a sum over elements.
    """
    parts, tags = _elements(body, t, state, args, a, b, massless)
    if body.pattern is None and len(parts) == len(body.elements):
        return by_structure(_element_sum(body, parts, tags), body.bandwidth)
    if not tags or body.pattern is None:
        return _element_sum(body, parts, tags)
    (p, m), width = body.pattern.columns.shape, body.unknown.shape[1]
    total = jnp.zeros((p * m, width * width), state.q.dtype)
    for (blocks, nodes, w), slots in zip(parts, body.pattern.slots, strict=True):
        e, k = nodes.shape
        pairs = jnp.moveaxis(blocks.reshape(e, k, w, k, w), 3, 2)
        pairs = jnp.pad(pairs, [(0, 0)] * 3 + [(0, width - w)] * 2)
        place = nodes[:, :, None] * m + slots
        total = total.at[place.reshape(-1)].add(pairs.reshape(-1, width * width))
    total = jnp.swapaxes(total.reshape(p, m, width, width), 1, 2)
    pattern = body.pattern
    return NodeBlocks(total, pattern.columns, body.free, tags, colours=pattern.colours)


def element_sum(body: Any, t: Scalar, state: State, args: Args, a: Scalar, b: Scalar) -> ElementSum:
    """The same matrix as a sum over elements, whatever its structure."""
    return _element_sum(body, *_elements(body, t, state, args, a, b, False))


def _element_sum(body: Any, parts, tags) -> ElementSum:
    n = body.free.shape[0]
    parts = [(x, body.unknown[nodes, :w].reshape(x.shape[:2])) for x, nodes, w in parts]
    widest = max(dofs.shape[1] for _, dofs in parts)
    every = [widened(*part, widest, n) for part in parts]
    blocks, dofs = (jnp.concatenate(x) for x in zip(*every, strict=True))
    return ElementSum(blocks, dofs, n, tags=tags)


def _elements(body, t, state, args, a, b, massless):
    """Per group of elements their matrices `(e, k w, k w)`, nodes and `w`; what is known of the sum."""
    d = body.points.shape[1]
    x, v = body.positions(t, state.q), body.nodal_velocities(t, state)
    X = body.rest_nodes.astype(x.dtype)
    a, b = jnp.asarray(a, x.dtype), jnp.asarray(b, x.dtype)
    damping = body.damping
    viscosity = None if damping is None else damping.stiffness
    # The derivative of a moment in a frame that turns is symmetric where the moment vanishes.
    parts, symmetric = [], not body.turns
    for part in body.elements:
        w = part.width(d)
        nodal = (y[:, :w] for y in (X, x, v))
        # A stage of its own: fused into what follows, a second derivative is evaluated for every entry.
        one = functools.partial(assembly.stiffness_blocks, part)
        blocks = staged(jnp.isfinite(a), one, *nodal, viscosity, a, b)
        mass = None if massless else body.mass_model.blocks(part, X[:, :w])
        if mass is not None:
            blocks = blocks + mass * (1 if damping is None else 1 + a * damping.mass)
            if body.turns and w > d:
                blocks = blocks + a * _gyroscopic(mass, assembly.gathered(part, v))
        parts.append((blocks, part.nodes, w))
    for load in body.loads:
        found = load.blocks(t, x, args)
        if found is not None:
            nodes, blocks = found
            parts.append((-b * blocks, nodes, body.unknown.shape[1]))
            symmetric = False
    # With the mass the matrix is positive definite unless a step is too long for strongly compressed
    # elements; conjugate gradients notice that, and the step says so.
    tag = lx.symmetric_tag if massless else lx.positive_semidefinite_tag
    return parts, (tag,) if symmetric else ()


def _gyroscopic(mass: Array, v: Float[Array, "6 k e"]) -> Float[Array, "e d d"]:
    """`∂(ω × J ω)/∂ω` of every node of an element, from the mass matrices of elements that turn."""
    k, e = v.shape[1:]
    table = mass.reshape(e, k, 6, k, 6)
    total = jnp.zeros_like(table)
    for i in range(k):
        inertia = jnp.moveaxis(table[:, i, 3:, i, 3:], 0, -1)
        spin = v[3:, i]
        change = short_sum(skew(spin)[:, :, None] * inertia[None], 1) - skew(matvec(inertia, spin))
        total = total.at[:, i, 3:, i, 3:].set(jnp.moveaxis(change, -1, 0))
    return total.reshape(mass.shape)


def by_structure(matrix: ElementSum, width: int) -> lx.AbstractLinearOperator:
    """The same matrix by its diagonals where unknowns that are coupled are at most `width` apart."""
    if width > min(WIDEST_BAND, matrix.size - 1):
        return matrix
    i, j, values = matrix.coordinates()
    bands = jnp.zeros((matrix.size, 2 * width + 1), values.dtype)
    bands = bands.at[i, j - i + width].add(values)
    if width > 1:
        return Banded(bands, matrix.tags)
    if width == 0:
        return lx.DiagonalLinearOperator(bands[:, 0])
    return lx.TridiagonalLinearOperator(bands[:, 1], bands[1:, 0], bands[:-1, 2])
