"""The step of systems whose matrices are not formed, with the laws of their contacts.

Where a system gives the matrix `S` of an implicit step as an operator (`AbstractSystem.step_operator`), each
Newton iteration factorises it once, or prepares products with it, and the laws are solved for

    S dv = −r(v) + H^T z,       w = W z + H (v − S^-1 r(v)) + offset,       W = H S^-1 H^T

with one column of `S^-1 H^T` for every row of a contact. Linear solves need no more digits than the next
iterate has (inexact Newton); they are of `r − H^T z0`, which vanishes at the solution. A step is shortened
where the slope of the incremental energy along it, `(r − H^T z) · dv`, has grown instead of vanishing, or
is not finite.

Where one linearisation solves the equations and there are no contacts, its linear solve is differentiated.
Iterations are not. As in `integrators._step`, differentiated passes start at the solution
and hold `S`, `H` and `W` constant there; each makes one more order of derivatives exact.

Reference: S. Eisenstat, H. Walker, Choosing the forcing terms in an inexact Newton method (1996),
doi:10.1137/0917003.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from ..._block_rows import AbstractRows, gather
from ..._jax import depends, with_value, without_derivative
from ..._numerics import max_abs
from ..._result import RESULTS, first_error
from ..._types import Vector
from ...complementarity import Block, MixedProblem, Statistics, solve_mixed
from ...complementarity.problem._dense import Contacts
from ...complementarity.problem._problem import join, split
from ...linear import DirectSum, Factored
from .._step import outcome
from ._line_search import shortened
from ._nodal_step import is_nodal, nodal_derivative, nodal_values

FORCING = 1e-3
PASSES = 2
# Of the linear solves in these passes: the second one corrects the first, so that a first derivative is
# accurate to the square of it, at the cost of one accurate solve.
PASS_RTOL = 1e-6


def refusal(scheme, model) -> str | None:
    """Why a scheme cannot step a large system with its contacts, or `None`."""
    if scheme.contacts_at.is_implicit:
        return "contacts of a large system are taken where they are known: use AtStart() or AtPrediction()"
    if any(i.relation.has_feedthrough for i in model.interactions):
        return (
            "relations of a large system have no compliance or other feedthrough; give springs as "
            "elements of the system"
        )
    return None


class LargeStep(NamedTuple):
    """A step of a scheme on a large system, `step`, as functions of the velocity at its end."""

    step: Any

    def defect(self, v: Vector) -> Vector:
        """The smooth equations, `r(v)`."""
        return self.step.scheme.smooth(self.step).defect(v)

    def operator(self, v: Vector) -> lx.AbstractLinearOperator:
        """`S = ∂r/∂v`."""
        return _operator(self.step, v)

    @property
    def is_curved(self) -> bool:
        """Whether `S` may depend on where it is evaluated; else one iteration solves the equations."""
        return depends(lambda v: jax.tree.leaves(self.operator(v)), self.step.state.v)

    @property
    def is_linear(self) -> bool:
        """Whether one linearisation is made, because it is exact or is the method."""
        return self.step.scheme.newton.max_iterations == 1 or not self.is_curved

    def linearised(self, v: Vector) -> Vector:
        """The equations, linearised where the step starts."""
        start = self.step.state.v
        return self.defect(start) + self.operator(start).mv(v - start)

    def blocks(self) -> tuple[Block, ...]:
        """The contacts, as functions of the velocity, their rows by entries where they are no arrays."""
        return tuple(
            eqx.tree_at(lambda x: x.output, b, b.output.entries())
            if isinstance(b.output, AbstractRows)
            else b
            for b in self.step.blocks(by_blocks=True)
        )


def _operator(step, v: Vector) -> lx.AbstractLinearOperator:
    """`∂r/∂v` of a step: as the system gives it, for a product one of each system."""
    system = step.model.system
    if system.uncoupled:
        states, places = system.split(step.state), system.slices()
        every = zip(system.uncoupled, states, places, strict=True)
        parts = [_operator(step.of_part(s, own), v[place]) for s, own, place in every]
        positive = all(map(lx.is_positive_semidefinite, parts))
        return DirectSum(parts, tags=lx.positive_semidefinite_tag if positive else ())
    a = step.h * step.scheme.theta
    at, t = step.at(1, v), step.t0 + step.h
    given = system.step_operator(t, at, step.args, a, a * a)
    if given is not None:
        return given
    return lx.MatrixLinearOperator(jax.jacfwd(step.scheme.smooth(step).defect)(v))


class Linear(NamedTuple):
    """The linearised step at a velocity: `S`, and for its contacts `S^-1 H^T (n, m)` and `W (m, m)`."""

    factored: Factored
    blocks: tuple[Block, ...]
    columns: Array
    compliance: Array
    solved: Array

    @staticmethod
    def at(operator, blocks: tuple[Block, ...], solver, like: Vector) -> "Linear":
        factored, shapes = Factored(operator, solver), [b.offset.shape for b in blocks]
        m = sum(k * c for k, c in shapes)
        if m == 0:
            none = jnp.zeros((like.shape[0], 0), like.dtype)
            return Linear(factored, blocks, none, none[:0], jnp.array(True))
        unit = jnp.eye(m, dtype=like.dtype)
        inputs = jax.vmap(lambda z: reactions(blocks, z), out_axes=1)(unit)
        columns, solved = factored.columns(inputs)
        compliance = jax.vmap(lambda v: local(blocks, v), in_axes=1, out_axes=1)(columns)
        return Linear(factored, blocks, columns, compliance, solved)


def reactions(blocks: tuple[Block, ...], z: Array) -> Vector:
    """`H^T z` for `z (m,)`, which comes row by row of every law."""
    parts = split([b.offset.shape[::-1] for b in blocks], z)
    return sum(gather(b.output, part) for b, part in zip(blocks, parts, strict=True))  # pyright: ignore[reportReturnType]


def local(blocks: tuple[Block, ...], v: Vector) -> Array:
    """`H v`, shape `(m,)`."""
    return join([b.local(v) for b in blocks])


def large_step(step, z0: tuple[Array, ...]):
    """Solves a `Step` of a system that gives its matrix as an operator.

    **Arguments:** `step`; `z0`: initial multipliers, per interaction `(k, c)`.

    **Returns:** the velocity at the end, `z`, `Statistics`, the result.
    """
    laws, frozen = _solver(step.scheme.solver), LargeStep(without_derivative(step))
    if is_nodal(frozen):
        v, z, stats, result = nodal_values(frozen, z0)
        v, z = nodal_derivative(LargeStep(step), *jax.lax.stop_gradient((v, z)))
        return v, z, stats, result
    v, z, stats, result = _values(frozen, z0, laws)
    v, z = _differentiated(LargeStep(step), *jax.lax.stop_gradient((v, z)), laws)
    shapes = [part.shape[::-1] for part in z0]
    return v, split(shapes, z) if z0 else (), stats, result


def _solver(solver):
    """The laws solved for a matrix: `(W, q, blocks, z) -> z, Statistics`, all flat."""

    def solve(compliance, q, blocks, z, *adjoint):
        contacts = tuple(Contacts(b.law, b.active, b.offset.shape[::-1]) for b in blocks)
        problem = MixedProblem.of_matrix(compliance, q, contacts)
        start = split([c.shape for c in contacts], z)
        _, parts, stats = solve_mixed(problem, start, solver, *adjoint)
        return join(parts), stats

    return solve


class _Iterate(NamedTuple):
    v: Vector
    z: Array
    r: Vector  # the smooth equations at v
    change: Array  # that another iteration would make, relative
    forcing: Array
    stats: Statistics
    solved: Array  # whether the last linear solves succeeded
    count: Array


def _values(equations: LargeStep, z0: tuple[Array, ...], laws):
    """Newton's iteration, without derivatives."""
    step, newton = equations.step, equations.step.scheme.newton
    solver, start = step.scheme.linear_solver, step.state.v
    tolerance = max(newton.tolerance, 64 * float(jnp.finfo(start.dtype).eps))
    blocks = equations.blocks()
    offset = join([b.offset for b in blocks]) if blocks else jnp.zeros(0, start.dtype)
    linearised_once = equations.is_linear

    def body(x: _Iterate) -> _Iterate:
        linear = Linear.at(equations.operator(x.v), blocks, solver, start)
        # Where contacts hold, `r` ends at `H^T z`: what vanishes is their difference, and with it the error
        # that an inexact solve leaves.
        load = reactions(blocks, x.z) if blocks else jnp.zeros_like(x.v)
        y, ended = linear.factored.values(x.r - load, x.forcing)
        z, stats, dv = x.z, x.stats, -y
        if blocks:
            q = local(blocks, x.v - y) + offset - linear.compliance @ x.z
            z, stats = laws(linear.compliance, q, blocks, x.z)
            dv = linear.columns @ (z - x.z) - y
        impulse = reactions(blocks, z) if blocks else jnp.zeros_like(x.v)
        _, v, r = shortened(equations.defect, x.v, x.r, dv, impulse, linearised_once)
        before, after = (jnp.sqrt(jnp.sum((a - impulse) ** 2)) for a in (x.r, r))
        ratio = after / jnp.where(before > 0, before, 1)
        change = ratio * max_abs(dv) / jnp.maximum(1.0, max_abs(v))
        forcing = jnp.minimum(FORCING, ratio**1.5)
        exact = (ended == lx.RESULTS.successful) & linear.solved
        return _Iterate(v, z, r, change, forcing, stats, exact, x.count + 1)

    def proceed(x: _Iterate):
        return ~(x.change <= tolerance) & (x.count < newton.max_iterations)

    forcing = jnp.asarray(0.0 if linearised_once else FORCING, start.dtype)
    z = join(z0) if z0 else jnp.zeros(0, start.dtype)
    none, done = jnp.zeros((), start.dtype), jnp.array(True)
    count = jnp.zeros((), jnp.int32)
    stats = Statistics(none, none, count, none + jnp.inf, count, done, count)
    guess = _Iterate(start, z, equations.defect(start), none + jnp.inf, forcing, stats, done, count)
    end = body(guess) if linearised_once else jax.lax.while_loop(proceed, body, guess)
    stats = end.stats
    if not blocks:
        stats = eqx.tree_at(lambda s: (s.residual, s.iterations), stats, (end.change, end.count))
    # An iterate that solves the equations is certified by them, whatever a solver said on the way.
    converged = done if linearised_once else end.change <= tolerance
    unsolved = ~end.solved & (linearised_once | ~converged)
    failed = RESULTS.where(unsolved, RESULTS.linear_not_solved, RESULTS.successful)
    if linearised_once and not blocks:
        stats = eqx.tree_at(lambda s: s.residual, stats, none)
    finite = outcome(stats, done, end.v)
    result = first_error(first_error(failed, finite), outcome(stats, converged, end.v))
    return end.v, end.z, stats, result


def _differentiated(equations: LargeStep, v_end: Vector, z_end: Array, laws):
    """The same values, with the derivative of the equations that they solve."""
    step = equations.step
    scheme = step.scheme
    once = scheme.newton.max_iterations == 1
    residual = equations.linearised if once and equations.is_curved else equations.defect
    frozen = LargeStep(without_derivative(step))
    point = step.state.v if once else v_end
    if equations.is_linear and not step.model.interactions:
        start = step.state.v
        moved = Factored(equations.operator(start), scheme.linear_solver)
        v = start - moved.solve(equations.defect(start))
        return with_value(v, v_end), z_end
    operator = frozen.operator(jax.lax.stop_gradient(point))
    held = frozen.blocks()
    linear = Linear.at(operator, held, scheme.linear_solver, v_end)
    blocks = equations.blocks()
    v, z = v_end, z_end
    for _ in range(PASSES):
        load = reactions(blocks, z) if blocks else 0
        y = linear.factored.solve(residual(v) - load, PASS_RTOL)
        if blocks:
            offset = join([b.offset for b in blocks])
            q = local(blocks, v) + offset - local(held, y) - linear.compliance @ z
            new, _ = laws(linear.compliance, q, blocks, z, scheme.adjoint)
            v, z = v - y + linear.columns @ (new - z), new
        else:
            v = v - y
    return with_value(v, v_end), with_value(z, z_end)
