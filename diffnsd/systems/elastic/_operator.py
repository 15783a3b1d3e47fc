"""The matrix of an implicit step of an elastic body, by the structure that its mesh gives it."""

from typing import Any

import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from ..._types import Args, Scalar, State
from ...linear import Banded, ElementSum
from . import _base as assembly

WIDEST_BAND = 8
"""Nodes in a row with up to this distance of coupled unknowns are solved by bands."""


def element_sum(
    body: Any,
    t: Scalar,
    state: State,
    args: Args,
    a: Scalar,
    b: Scalar,
    *,
    massless: bool = False,
) -> ElementSum:
    """`M − a ∂f/∂v − b ∂f/∂q` of the unknowns; without `M` if `massless`."""
    n, d = body.free.shape[0], body.points.shape[1]
    x, v = body.positions(t, state.q), body.nodal_velocities(t, state)
    X = body.rest_nodes.astype(x.dtype)
    a, b = jnp.asarray(a, x.dtype), jnp.asarray(b, x.dtype)
    damping = body.damping
    viscosity = None if damping is None else damping.stiffness
    parts, symmetric = [], True
    for part in body.elements:
        w = part.width(d)
        blocks = assembly.stiffness_blocks(part, X[:, :w], x[:, :w], v[:, :w], viscosity, a, b)
        mass = None if massless else body.mass_model.blocks(part, X[:, :w])
        if mass is not None:
            blocks = blocks + mass * (1 if damping is None else 1 + a * damping.mass)
        parts.append((blocks, body.unknown[part.nodes, :w].reshape(blocks.shape[:2])))
    for load in body.loads:
        found = load.blocks(t, x, args)
        if found is not None:
            nodes, blocks = found
            parts.append((-b * blocks, body.unknown[nodes].reshape(blocks.shape[:2])))
            symmetric = False
    widest = max(dofs.shape[1] for _, dofs in parts)
    blocks = jnp.concatenate([_padded(blocks, widest) for blocks, _ in parts])
    dofs = jnp.concatenate([_padded_dofs(dofs, widest, n) for _, dofs in parts])
    # With the mass the matrix is positive definite unless a step is too long for strongly compressed
    # elements; conjugate gradients notice that, and the step says so.
    tags = () if not symmetric else lx.symmetric_tag if massless else lx.positive_semidefinite_tag
    return ElementSum(blocks, dofs, n, tags=tags)


def by_structure(matrix: ElementSum, width: int) -> lx.AbstractLinearOperator:
    """The same matrix by its diagonals where unknowns that are coupled are at most `width` apart."""
    if not matrix.is_symmetric or width > min(WIDEST_BAND, matrix.size - 1):
        return matrix
    i, j, values = matrix.coordinates()
    bands = jnp.zeros((matrix.size, 2 * width + 1), values.dtype)
    bands = bands.at[i, j - i + width].add(values)
    if width > 1:
        return Banded(bands, matrix.tags)
    if width == 0:
        return lx.DiagonalLinearOperator(bands[:, 0])
    return lx.TridiagonalLinearOperator(bands[:, 1], bands[1:, 0], bands[:-1, 2])


def _padded(blocks: Array, k: int) -> Array:
    more = k - blocks.shape[1]
    return jnp.pad(blocks, ((0, 0), (0, more), (0, more)))


def _padded_dofs(dofs: Array, k: int, n: int) -> Array:
    """Unknowns of elements with fewer nodes, filled up with `n`, which is none."""
    return jnp.pad(dofs, ((0, 0), (0, k - dofs.shape[1])), constant_values=n)
