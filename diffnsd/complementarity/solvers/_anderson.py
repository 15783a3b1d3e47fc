"""The projected gradient with Anderson's acceleration."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._jax import one_by_one
from ..problem._dense import DenseProblem, norm
from ._base import AbstractContactSolver, AbstractSolver, check_tolerance
from ._first_order import BLOCK, gradient_steps

RELATIVE = 1e-12
"""Regularisation of the least-squares problem, relative to the size of its matrix."""


class AndersonGradient(AbstractContactSolver):
    """The projected gradient, extrapolated from its last moves by least squares.

        T(y) = P_K(y − rho (W y + q + lift e_N) / L),     y ← T(y) − Σ g_j ΔT_j,
        g minimises |T(y) − y − Σ g_j Δ(T(y) − y)_j|

    The steps are those of `AcceleratedProjectedGradient`, and so is the norm, in which `T` is symmetric. One
    product with W per iteration. The history is dropped where the moves grow. Nesterov's acceleration
    is often faster far from the solution and stalls where contacts are dense, where this one goes on:
    alternate both, as `Auto().by_products()` does. Steps of bodies in piles: `ColouredGaussSeidel`.

    **Arguments:** `steps`: largest number of iterations; `tolerance`: residual to reach (`None`: 1e-9 in
    float64, 1e-5 in float32); `memory`: number of moves.

    Reference: H. Walker, P. Ni, Anderson acceleration for fixed-point iterations (2011),
    doi:10.1137/10078356X.
    """

    steps: int = eqx.field(default=5000, static=True)
    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)
    memory: int = eqx.field(default=10, static=True, kw_only=True)

    explores = True
    resumes = False
    block = BLOCK

    def __check_init__(self):
        check_tolerance(self.tolerance)
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}.")

    def init(self, problem: DenseProblem, z0: Array) -> "_History":
        m, lanes = z0.shape
        step = gradient_steps(problem)
        moves = jnp.zeros((self.memory, m, lanes), z0.dtype)
        products = jnp.zeros((self.memory, self.memory, lanes), z0.dtype)
        none = jnp.zeros(lanes, jnp.int32)
        y = z0 / jnp.sqrt(step)
        return _History(z0, y, y, y, moves, moves, products, none, step)

    def step(self, problem: DenseProblem, state: "_History") -> "_History":
        """`BLOCK` extrapolated steps."""
        root = jnp.sqrt(state.step)
        size = jnp.sqrt(jnp.finfo(root.dtype).tiny)

        def once(_, s):
            z = root * s.y
            z = problem.project(z - state.step * problem.lift(problem.velocity(z)))
            image = z / root
            move = image - s.y
            fits = (s.count > 0) & (norm(move) <= 2 * norm(s.move))
            kept = fits[None, None]
            place = jnp.maximum(s.count - 1, 0) % self.memory
            here = (jnp.arange(self.memory, dtype=place.dtype)[:, None] == place[None])[:, None]
            images = jnp.where(here & kept, (image - s.image)[None], jnp.where(kept, s.images, 0))
            moves = jnp.where(here & kept, (move - s.move)[None], jnp.where(kept, s.moves, 0))
            newest = jnp.where(fits[None], move - s.move, 0)
            row = jnp.sum(moves * newest[None], axis=1)
            at = here[:, 0]
            products = jnp.where(kept, s.products, 0)
            products = jnp.where(at[:, None], row[None], products)
            products = jnp.where(at[None], row[:, None], products)
            level = RELATIVE * jnp.einsum("aal->l", products) + size
            unit = jnp.eye(self.memory, dtype=z.dtype)
            matrix = jnp.moveaxis(products, 2, 0) + level[:, None, None] * unit[None]
            right = jnp.sum(moves * move[None], axis=1).T
            weights = one_by_one(jnp.linalg.solve, matrix, right).T
            weights = jnp.where(jnp.all(jnp.isfinite(weights), axis=0)[None], weights, 0)
            y = image - jnp.sum(weights[:, None] * images, axis=0)
            count = jnp.where(fits, s.count, 0) + 1
            return _History(z, y, image, move, images, moves, products, count, state.step)

        return jax.lax.fori_loop(0, BLOCK, once, state)

    def by_products(self) -> AbstractSolver:
        return self


class _History(eqx.Module):
    """The point; in coordinates `z / sqrt(step)` the next argument `y`, the last image `T` and move
    `T − y`, and the last changes of both; products of the changes of moves; how many moves since the start of
    the history; the steps.
    """

    z: Array
    y: Array
    image: Array
    move: Array
    images: Array
    moves: Array
    products: Array
    count: Array
    step: Array
