"""The derivative of the solution of a step problem.

With `Phi(v, z; p) = (A v − b − B z, F(v, z; p)) = 0` at the solution, the implicit function theorem
gives `Phi_(v,z) (dv, dz) = −Phi_p dp`. The same linear solve, transposed, serves reverse mode. At a
change of mode the derivative is that of one side (the element of `AbstractSet.jacobian`); for
redundant contacts it is that of the limit in `step`.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from ..._jax import AbstractKernel, call, with_value
from ..problem._elimination import blockwise, linearised, solve_both, solve_both_transposed
from ..problem._natural_map import argument, at_point, sides, tilt_for
from ._adjoint import pair, surface


def solution_tangents(instance, floats, tangent, point, tilted):
    """Tangents of the solution of the tilted problem, `F + tilt z = 0`, and of its limit.

    Where contacts are redundant, the equations of the limit leave a part of the multipliers undetermined.
    The tangent of that part is that of the tilted solution. It is exact up to the tilt, because the
    solution is a smooth function of the tilt. The rest comes from the equations of the limit alone.
    """
    problem, kappa = instance(floats)
    if kappa is not None:  # on the central path nothing is redundant
        tilted = point
    rho = problem.penalties()
    (v, z), (tilted_v, tilted_z) = point, tilted
    w, x = sides(problem, point, tilted, rho, kappa)
    limit = Point(v, z, w, x, jnp.array(False))
    w, x = jax.lax.stop_gradient(at_point(problem, tilted_v, tilted_z, rho))
    around = Point(tilted_v, tilted_z, w, x, jnp.array(True))
    # Both at once, so that the program is as long as for one.
    both = jax.tree.map(lambda *x: jnp.stack(x), around, limit)
    d, n = jax.vmap(lambda at: at.linearised(instance, floats))(both)

    # The tilted solution takes the modes that are differentiated at the limit: between two modes a
    # projection's derivative jumps by a matrix of norm one, and one system would not be a small change of the
    # other. Where the tilted problem was not solved, the limit takes the place of its solution.
    unknown = jnp.all(tilted_v == v)
    other = [(jnp.max(jnp.abs(a[0] - a[1]), axis=(0, 1)) > 0.1) | unknown for a in d]

    def limits(part):
        return [a.at[0].set(jnp.where(o, a[1], a[0])) for a, o in zip(part, other, strict=True)]

    d, n = limits(d), limits(n)
    both = dataclasses.replace(both, w=limits(both.w), x=limits(both.x))
    right = jax.vmap(lambda at, d: at.parameter_tangent(instance, floats, tangent, d))(both, d)
    first, second = (
        (
            linearised(problem, [a[i] for a in d], [a[i] for a in n]),
            jax.tree.map(lambda a, i=i: a[i], right),
        )
        for i in (0, 1)
    )
    return _linear_solve(first, second)


class Point(eqx.Module):
    """A point `(v, z)`, and the side of its kinks that is differentiated, see `sides`.

    **Arguments:** `w`, `x`: local velocities and arguments of the projections on that side; `depends`:
    whether the solution depends on the penalties `rho`, as that of the tilted problem does.
    """

    v: Array
    z: tuple[Array, ...]
    w: list[Array]
    x: list[Array]
    depends: Array

    def arguments(self, instance, floats):
        """Local velocities, arguments of the projections, and penalties."""
        problem, _ = instance(floats)
        rho = problem.penalties()
        fixed = jax.lax.stop_gradient(rho)
        rho = [jnp.where(self.depends, a, b) for a, b in zip(rho, fixed, strict=True)]
        w = list(map(with_value, problem.local(self.v), self.w))
        x = map(argument, problem.blocks, w, self.z, rho)
        return w, list(map(with_value, x, self.x)), rho

    def linearised(self, instance, floats):
        """The derivative `D`, `N` of the natural map, per block."""
        problem, kappa = instance(floats)
        moved, x, rho = self.arguments(instance, floats)
        pairs = [
            pair(b, u, a, r, kappa)
            for b, u, a, r in zip(problem.blocks, moved, x, rho, strict=True)
        ]
        return [d for d, _ in pairs], [n for _, n in pairs]

    def parameter_tangent(self, instance, floats, tangent, d):
        """`−Phi_p dp` at fixed `(v, z)`: the right-hand sides `(r_v, r_z)` of the linear solve.

        The derivative of the projection with respect to its argument is the set's own `jacobian`,
        so that the right-hand side and the matrix take the same side of a kink.
        """

        def moving(p):
            q, _ = instance(p)
            return q.defect(self.v, self.z), *self.arguments(instance, p)

        (_, _, x, _), (r_v, _, dx, _) = jax.jvp(moving, (floats,), (tangent,))

        def projections(p):
            q, kappa = instance(p)
            rho = self.arguments(instance, p)[2]
            return tuple(surface(b, a, r, kappa) for b, a, r in zip(q.blocks, x, rho, strict=True))

        _, from_sets = jax.jvp(projections, (floats,), (tangent,))
        return r_v, tuple(blockwise(a, b) + c for a, b, c in zip(d, dx, from_sets, strict=True))


def _linear_solve(first, second):
    """The tangents of both solutions, from the linearised equations and right-hand sides of both."""
    (around, limit), right = zip(first, second, strict=True)
    eps = tilt_for(right[0][0].dtype)

    # One flat vector: the transposition rule of the linear solve requires every part of the right-hand
    # side to be linear in the tangents, and parts of it may be constant.
    flat, unravel = ravel_pytree(right)

    def product(x):
        (dv, dz), second = unravel(x)
        top, low = around.product(dv, dz)
        low = tuple(a + eps * b for a, b in zip(low, dz, strict=True))
        return ravel_pytree(((top, low), limit.product(*second)))[0]

    def solver(transpose):
        def run(_, right):
            return ravel_pytree(call(SolveBoth(eps, transpose), around, limit, *unravel(right)))[0]

        return run

    return unravel(jax.lax.custom_linear_solve(product, flat, solver(False), solver(True)))


class SolveBoth(AbstractKernel):
    """The linear solve of the derivative, or its transpose; see `solve_both`."""

    eps: float
    transpose: bool

    def __call__(self, around, limit, first, second):
        solve = solve_both_transposed if self.transpose else solve_both
        return solve(around, limit, first, second, self.eps)

    def shapes(self, around, limit, first, second):
        del around, limit
        return first, second
