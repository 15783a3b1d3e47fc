"""Methods without linear solves: projected Gauss-Seidel and the accelerated projected gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..problem._dense import DenseProblem, norm
from ..problem._natural_map import argument, projected
from ._base import AbstractContactSolver, AbstractSolver, check_tolerance

BLOCK = 10
"""Iterations between two tests of the residual."""


class ProjectedGaussSeidel(AbstractContactSolver):
    """Block Gauss-Seidel: contact after contact, each with the newest multipliers of the others.

        z_i ← P_K(z_i − rho_i (w_i + lift_i e_N)),   `inner` times on the contact's own block of W

    Nothing is factorised, and it rarely fails at a loose tolerance. Convergence is linear, and slow for
    long stacks and large mass ratios. It is sequential, so of little use on a GPU. The blocks on the
    diagonal of W must not vanish, as they do in circuits.

    **Arguments:** `tolerance`: residual to reach (`None`: 1e-9 in float64, 1e-5 in float32);
    `steps`: largest number of sweeps; `inner`: iterations on one contact.

    Reference: F. Jourdan, P. Alart, M. Jean, A Gauss-Seidel like algorithm to solve frictional contact
    problems (1998), doi:10.1016/S0045-7825(97)00137-0.
    """

    steps: int = eqx.field(default=2000, static=True)
    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)
    inner: int = eqx.field(default=8, static=True, kw_only=True)

    explores = True
    block = BLOCK

    def __check_init__(self):
        check_tolerance(self.tolerance)

    def init(self, problem: DenseProblem, z0: Array) -> "_Point":
        del problem
        return _Point(z0)

    def step(self, problem: DenseProblem, state: "_Point") -> "_Point":
        """`BLOCK` sweeps over all contacts."""
        sweep = _sweeper(problem, self.inner)
        return _Point(jax.lax.fori_loop(0, BLOCK, lambda _, z: sweep(z), state.z))


class _Point(eqx.Module):
    z: Array


def _sweeper(problem: DenseProblem, inner: int):
    """Returns a function that does one sweep, from `z (m, l)` to `z`."""
    lanes, m, _ = problem.W.shape

    def sweep(z):
        at = 0
        for contacts in problem.contacts:
            c, k = contacts.shape
            rows = problem.W[:, at : at + c * k].reshape((lanes, k, c, m))
            offset = problem.q[at : at + c * k].reshape((k, c, lanes))
            places = jnp.asarray(at + np.arange(c * k).reshape(k, c).T, jnp.int32)

            def visit(i, z, contacts=contacts, rows=rows, offset=offset, places=places):
                own = jax.tree.map(lambda x: x[i][None], (contacts.law, contacts.active))
                block = eqx.tree_at(lambda b: (b.law, b.active), contacts, own)
                here, place = rows[:, :, i], places[i]
                w = jnp.einsum("lim,ml->il", here, z) + offset[:, i]
                square, part = here[:, :, place], z[place]
                size = jnp.sqrt(jnp.sum(square * square, axis=(1, 2)))
                rho = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)[None]

                def once(_, pair):
                    p, u = pair
                    new = projected(block, argument(block, u[:, None], p[:, None], rho))[:, 0]
                    return new, u + jnp.einsum("lij,jl->il", square, new - p)

                part, _ = jax.lax.fori_loop(0, inner, once, (part, w))
                return z.at[place].set(part, unique_indices=True)

            z = jax.lax.fori_loop(0, c, visit, z)
            at += c * k
        return z

    return sweep


class AcceleratedProjectedGradient(AbstractContactSolver):
    """Nesterov's accelerated projected gradient with restarts.

        z ← P_K(y − rho (W y + q + lift e_N) / L),   y = z + beta (z − z_before)

    `rho` is the step of the natural map, one for each contact, and `L` the largest eigenvalue of
    `rho^(1/2) W rho^(1/2)`. One product with W per iteration and no other linear algebra: for very large
    problems.

    **Arguments:** `tolerance`: residual to reach (`None`: 1e-9 in float64, 1e-5 in float32);
    `steps`: largest number of iterations.

    Reference: H. Mazhar, T. Heyn, D. Negrut, A. Tasora, Using Nesterov's method to accelerate multibody
    dynamics with friction and contact (2015), doi:10.1145/2735627.
    """

    steps: int = eqx.field(default=5000, static=True)
    tolerance: float | None = eqx.field(default=None, static=True, kw_only=True)

    explores = True
    resumes = False
    block = BLOCK

    def __check_init__(self):
        check_tolerance(self.tolerance)

    def init(self, problem: DenseProblem, z0: Array) -> "_Accelerated":
        return _Accelerated(z0, z0, jnp.ones(z0.shape[1:], z0.dtype), gradient_steps(problem))

    def step(self, problem: DenseProblem, state: "_Accelerated") -> "_Accelerated":
        """Accelerated steps; the momentum restarts where the move turns back."""

        def once(_, carry):
            z, y, theta = carry
            w = problem.velocity(y)
            new = problem.project(y - state.step * problem.lift(w))
            after = (1 + jnp.sqrt(1 + 4 * theta * theta)) / 2
            back = jnp.sum((y - new) * (new - z) / state.step, axis=0) > 0
            beta = jnp.where(back, 0, (theta - 1) / after)
            return new, new + beta[None] * (new - z), jnp.where(back, 1, after)

        first = state.z, state.y, state.theta
        z, y, theta = jax.lax.fori_loop(0, BLOCK, once, first)
        return _Accelerated(z, y, theta, state.step)

    def by_products(self) -> AbstractSolver:
        return self


class _Accelerated(eqx.Module):
    """The point, the extrapolated point, the momentum, and the steps `0.9 rho / L`."""

    z: Array
    y: Array
    theta: Array
    step: Array


def gradient_steps(problem: DenseProblem) -> Array:
    """Steps `0.9 rho / L` of a gradient method, one for each row and equal within a contact, `(m, l)`."""
    rho = problem.steps()
    return 0.9 * rho / largest_gain(problem, jnp.sqrt(rho))[None]


def largest_gain(problem: DenseProblem, weight: Array, passes: int = 30) -> Array:
    """The largest eigenvalue of `w W w`, `w = diag(weight)`, estimated by power iterations, `(l,)`."""
    m = problem.q.shape[0]
    x = jnp.cos(jnp.arange(m, dtype=problem.q.dtype) * 1.7 + 0.3)
    x = jnp.broadcast_to(x[:, None], problem.q.shape)

    def once(_, pair):
        x, _ = pair
        x = weight * problem.apply(weight * x / jnp.where(norm(x) > 0, norm(x), 1)[None])
        return x, norm(x)

    _, size = jax.lax.fori_loop(0, passes, once, (x, norm(x)))
    return jnp.where(size > 0, size, 1)
