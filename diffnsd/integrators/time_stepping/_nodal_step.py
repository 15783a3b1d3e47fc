"""Steps of elastic bodies with contacts of their nodes: motion and laws in one Newton iteration.

A contact of a node touches few unknowns, so that its law is one more element of the body. With the natural
map of the laws, linearised with the slip of the last iterate in the lift of friction,

    S dv − H^T dz = −(r − H^T z),      (1 − D) dz + rho D H dv = −F,
    F = z − P_K(z − rho (w + lift(w) e_N)),      D = dP_K

`dz` is eliminated contact by contact. What remains is one solve with the matrix of the step and a block
for every contact, symmetric and positive definite as `D` has eigenvalues between 0 and 1:

    (S + H^T G H) dv = −(r − H^T z) − H^T A F,     A = (1 − (1 − eps) D)^-1,     G = rho A D,
    dz = −A F − G H dv

A direction in which a contact holds has `D = 1` and so a stiffness of `rho / eps`; it is prescribed in the
limit. Neither the solution nor its certificate depends on `eps` or `rho`.

The laws need more iterations than the motion, with matrices that differ only in these blocks: `S` is
evaluated again only where its error is larger than what the linear solve left.

Derivative. As in `_large_step`, passes that start at the solution, here with the exact slope of the lift,
which makes the matrix unsymmetric where contacts slip.

Reference: P. Alart, A. Curnier (1991), doi:10.1016/0045-7825(91)90022-X; M. Hintermüller, K. Ito,
K. Kunisch, The primal-dual active set strategy as a semismooth Newton method (2002),
doi:10.1137/S1052623401383558; V. Acary, F. Cadoux, C. Lemaréchal, J. Malick (2011),
doi:10.1002/zamm.201000073, for the lift of the last iterate.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array

from ..._block_rows import EntryRows
from ..._jax import with_value, without_derivative
from ..._numerics import matrix_inverse, matvec, max_abs
from ..._result import RESULTS, first_error
from ..._types import Vector
from ...complementarity import Block, Statistics
from ...complementarity.problem._natural_map import argument, derivative, lost_power, projected
from ...linear import AbstractSparse, Factored
from .._step import outcome
from ._line_search import shortened

EPS = 1e-3, 1e-6
"""Of this module's docstring: float32, float64."""
FORCING = 0.03
"""Relative residual of the linear solve of an iteration."""
LIMIT = 100
"""Iterations that the laws may need beside those of the motion."""
PASSES, PASS_RTOL = 2, 1e-8
"""Passes that carry the derivative, and the relative residual of their linear solves."""


def is_nodal(equations: Any) -> bool:
    """Whether the contacts of a step, a `LargeStep`, are of nodes, and its matrix takes more elements."""
    blocks = equations.blocks()
    if not blocks or equations.step.scheme.solver.by_products() is None:
        return False
    matrix = eqx.filter_eval_shape(equations.operator, equations.step.state.v)
    by_entries = all(isinstance(b.output, EntryRows) and b.input is None for b in blocks)
    return by_entries and isinstance(matrix, AbstractSparse) and matrix.takes_elements


class Nodal(eqx.Module):
    """Contacts of nodes under one law: the block, and the steps `rho (c,)` of its natural map."""

    block: Block
    rho: Array

    @staticmethod
    def at(block: Block, diagonal: Vector) -> "Nodal":
        rows = block.output
        squares = EntryRows(rows.values**2, rows.columns, rows.n)
        mean = jnp.mean(squares.apply(1 / diagonal), axis=0)
        return Nodal(block, 1 / jnp.where(mean > 0, mean, 1))

    def velocity(self, v: Vector) -> Array:
        return self.block.local(v) + self.block.offset

    def natural(self, v: Vector, z: Array) -> tuple[Array, Array]:
        """`F` and the argument of the projection, each `(k, c)`."""
        x = argument(self.block, self.velocity(v), z, self.rho)
        return z - projected(self.block, x), x

    def slopes(self, v: Vector, x: Array, exact: bool) -> tuple[Array, Array]:
        """`A` and `G`, each `(k, k, c)`; `exact`: with the slope of the lift."""
        w, k = self.velocity(v), len(x)
        w = jnp.where(projected(self.block, x) == x, 0, w)  # at rest, see `_natural_map.resting`
        d, n = derivative(self.block, w, x, self.rho)
        eps = EPS[jnp.finfo(x.dtype).bits >= 64]
        a = matrix_inverse(jnp.asarray(np.eye(k), x.dtype)[:, :, None] - (1 - eps) * d)
        return a, _product(a, n if exact else self.rho[None, None] * d)

    def element(self, g: Array) -> tuple[Array, Array]:
        """`H^T G H` of every contact, `(c, d, d)`, and its unknowns, `(c, d)`."""
        h = self.block.output.values  # (k, d, c)
        return jnp.einsum("kdc,klc,lec->cde", h, g, h), self.block.output.columns

    def sizes(self, v: Vector, z: Array) -> tuple[Array, Array]:
        """Squares of `F`, and of the larger of `z` and `rho w`."""
        f, _ = self.natural(v, z)
        w = self.rho[None] * jnp.where(self.block.active[None], self.velocity(v), 0)
        return jnp.sum(f * f), jnp.maximum(jnp.sum(z * z), jnp.sum(w * w))


def _product(a: Array, b: Array) -> Array:
    return jnp.einsum("ijc,jkc->ikc", a, b)


def _impulse(blocks: Sequence[Block], z) -> Vector:
    """`H^T z`."""
    return sum(b.output.gather(p) for b, p in zip(blocks, z, strict=True))  # pyright: ignore[reportReturnType]


class _Iterate(NamedTuple):
    v: Vector
    z: tuple[Array, ...]
    r: Vector  # the smooth equations at v
    matrix: Any  # S
    stale: Array  # whether S is to be evaluated again
    change: Array  # that another iteration would make, relative
    residual: Array  # of the laws, relative
    forcing: Array
    solved: Array
    count: Array


def nodal_values(equations: Any, z0: tuple[Array, ...]):
    """The velocity, the multipliers, `Statistics` and the result of a step, without derivatives."""
    step, newton = equations.step, equations.step.scheme.newton
    solver, start = step.scheme.linear_solver, step.state.v
    tolerance = max(newton.tolerance, 64 * float(jnp.finfo(start.dtype).eps))
    accuracy = step.scheme.solver.tolerance_for(start.dtype)
    blocks, once = equations.blocks(), equations.is_linear
    residual = equations.linearised if once else equations.defect
    kind = eqx.filter_eval_shape(equations.operator, start)
    arrays, static = eqx.partition(kind, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def body(x: _Iterate) -> _Iterate:
        def evaluated():
            return eqx.filter(equations.operator(x.v), eqx.is_array)

        held = jax.lax.cond(x.stale, evaluated, lambda: x.matrix)
        matrix: Any = eqx.combine(held, static)
        diagonal = matrix.diagonal()
        contacts = [Nodal.at(b, diagonal) for b in blocks]
        maps = [c.natural(x.v, z) for c, z in zip(contacts, x.z, strict=True)]
        slopes = [c.slopes(x.v, a, False) for c, (_, a) in zip(contacts, maps, strict=True)]
        loads = [matvec(a, f) for (a, _), (f, _) in zip(slopes, maps, strict=True)]
        full = matrix
        for c, (_, g) in zip(contacts, slopes, strict=True):
            full = full.plus(*c.element(g), *matrix.tags)
        right = _impulse(blocks, x.z) - x.r - _impulse(blocks, loads)
        # What contacts prescribe and rigid bodies do comes first: the tolerance is then one of the rest.
        first = full.block_inverse(3)(right)
        y, ended = Factored(full, solver).values(right - full.mv(first), x.forcing)
        dv = first + y
        parts = zip(contacts, slopes, loads, strict=True)
        dz = [-f - matvec(g, c.block.local(dv)) for c, (_, g), f in parts]
        target = _impulse(blocks, x.z) + _impulse(blocks, dz)
        length, v, r = shortened(residual, x.v, x.r, dv, target, once)
        z = tuple(a + length * b for a, b in zip(x.z, dz, strict=True))
        impulse, planned = _impulse(blocks, z), x.r + length * matrix.mv(dv)
        before, after, left, error = (
            jnp.sqrt(jnp.sum(y * y))
            for y in (x.r - impulse, r - impulse, planned - impulse, r - planned)
        )
        ratio = after / jnp.where(before > 0, before, 1)
        change = ratio * max_abs(dv) / jnp.maximum(1.0, max_abs(v))
        stale = ~jnp.array(once) & (error > left) & ~(change <= tolerance)
        forcing = jnp.clip(ratio**1.5, 1e-6, FORCING)
        done = ended == lx.RESULTS.successful
        law = _relative(contacts, v, z)
        return _Iterate(v, z, r, held, stale, change, law, forcing, done, x.count + 1)

    def proceed(x: _Iterate):
        met = (x.change <= tolerance) & (x.residual <= accuracy)
        return ~met & (x.count < newton.max_iterations + LIMIT)

    one, yes = jnp.ones((), start.dtype), jnp.array(True)
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), arrays)
    first = residual(start), empty, yes, one * jnp.inf, one * jnp.inf, one * FORCING, yes
    guess = _Iterate(start, z0, *first, jnp.zeros((), jnp.int32))
    end = jax.lax.while_loop(proceed, body, guess)
    matrix: Any = eqx.combine(end.matrix, static)
    contacts = [Nodal.at(b, matrix.diagonal()) for b in blocks]
    stats = _statistics(contacts, end, step.scheme.solver.accept_tolerance_for(start.dtype))
    solved = end.change <= tolerance
    failed = RESULTS.where(~end.solved & ~solved, RESULTS.linear_not_solved, RESULTS.successful)
    return end.v, end.z, stats, first_error(failed, outcome(stats, solved, end.v))


def _relative(contacts, v: Vector, z) -> Array:
    """The residual of the laws relative to impulses, or to the local momentum where that is larger."""
    pairs = [c.sizes(v, p) for c, p in zip(contacts, z, strict=True)]
    left, size = (sum(x) for x in zip(*pairs, strict=True))
    return jnp.sqrt(left / jnp.where(size > 0, size, 1))


def _statistics(contacts, end: _Iterate, accepted: float) -> Statistics:
    none = jnp.zeros((), end.v.dtype)
    power, size, least, scale = none, none, none + jnp.inf, none
    for c, z in zip(contacts, end.z, strict=True):
        w, (_, x) = c.velocity(end.v), c.natural(end.v, z)
        power = jnp.maximum(power, jnp.max(c.rho * lost_power(c.block, w, z), initial=0))
        own = c.sizes(end.v, z)[1]
        size, scale = size + own, scale + own
        distance = jnp.where(c.block.active, c.block.law.set().margin(x), jnp.inf)
        least = jnp.minimum(least, jnp.min(distance, initial=jnp.inf))
    size, scale = jnp.where(size > 0, size, 1), jnp.where(scale > 0, jnp.sqrt(scale), 1)
    converged = end.residual <= accepted
    count = jnp.zeros((), jnp.int32)
    return Statistics(
        end.residual,
        power / size,
        end.count,
        least / scale,
        count,
        converged,
        jnp.zeros_like(count),
    )


def nodal_derivative(equations: Any, v_end: Vector, z_end: tuple[Array, ...]):
    """The same values, with the derivative of the equations that they solve."""
    step = equations.step
    once = step.scheme.newton.max_iterations == 1
    residual = equations.linearised if once and equations.is_curved else equations.defect
    frozen = type(equations)(without_derivative(step))
    point = frozen.step.state.v if once else v_end
    matrix: Any = jax.tree.map(jax.lax.stop_gradient, frozen.operator(point))
    held = [Nodal.at(b, matrix.diagonal()) for b in frozen.blocks()]
    slopes = [
        c.slopes(v_end, c.natural(v_end, z)[1], True) for c, z in zip(held, z_end, strict=True)
    ]
    full = matrix
    for c, (_, g) in zip(held, slopes, strict=True):
        full = full.plus(*c.element(g))
    factored, prescribed = Factored(full, step.scheme.linear_solver), full.block_inverse(3)
    blocks = equations.blocks()
    contacts = [Nodal(b, c.rho) for b, c in zip(blocks, held, strict=True)]
    v, z = v_end, z_end
    for _ in range(PASSES):
        maps = [c.natural(v, p)[0] for c, p in zip(contacts, z, strict=True)]
        loads = [matvec(a, f) for (a, _), f in zip(slopes, maps, strict=True)]
        right = _impulse(blocks, z) - residual(v) - _impulse([c.block for c in held], loads)
        first = prescribed(right)
        dv = first + factored.solve(right - full.mv(first), PASS_RTOL)
        parts = zip(z, held, slopes, loads, strict=True)
        z = tuple(p - f - matvec(g, c.block.local(dv)) for p, c, (_, g), f in parts)
        v = v + dv
    return with_value(v, v_end), tuple(map(with_value, z, z_end))
