"""The one function that solves the equations of a step together with the laws.

An integrator writes its smooth equations, linearised at any point `(v, z)`, as a mixed complementarity
problem (`Linearisation`); solving it for the next `(v, z)` is Newton's method on the smooth part with
the laws kept exact. The unknown is the increment of `v`, which avoids a loss of digits in stiff systems.
`linear_problem` builds the problem where the multipliers enter as a generalised impulse,
`residual(v) = B z`, and `nonlinear_problem` where they enter in any other way. Equations whose slopes do
not depend on the point are affine, and one pass solves them.

Derivative. The iterations are not differentiated. Where `y* = (v*, z*)` solves `F(y, p) + law(y) = 0`,
a differentiated pass that starts there returns `y*`; its slopes `S = ∂F/∂y (y*)` are held constant:

    F(y_k, p) + S (y_(k+1) − y_k) + law(y_(k+1)) = 0

The derivative with respect to `y_k` is `(S + law')^-1 (S − ∂F/∂y (y_k, p))`, which vanishes at `y*`. So each
pass makes one more order of derivatives exact: the first gives the derivative of the implicit function
theorem, and the second pass, also made, gives the second derivative. Slopes are derivatives themselves and
are not differentiated. With `max_iterations = 1` the linearised scheme is the method and is differentiated
as it stands.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._arguments import AbstractChecked
from .._block_diagonal import block_jacobian
from .._expects import refuse_below
from .._jax import depends, evaluated_again, without_derivative
from .._numerics import max_abs
from .._result import RESULTS, first_error
from .._types import Vector
from ..complementarity import Auto, Block, ImplicitAdjoint, MixedProblem, solve_mixed
from ..complementarity.problem._problem import gather
from ..laws import AbstractLaw

# Multipliers of relays follow a small quotient of states, and sensitivities of events are exact to rounding
# only if the velocities after impacts are: both need more digits than the impulses of a step.
PRECISE = Auto(tolerance=1e-13, accept_tolerance=1e-9)


class Newton(AbstractChecked):
    """Newton's method on the smooth equations of a step.

    **Arguments:** `max_iterations`: linearisations per step, 1 is the linearised scheme; where contacts of
    nodes of an elastic body are part of the iteration, 100 more for their laws; `tolerance`: largest change
    of `v`, relative to `max(1, |v|)`, at which it stops.
    """

    max_iterations: int = eqx.field(default=1, static=True)
    tolerance: float = eqx.field(default=1e-10, static=True)

    def __check_init__(self):
        if self.max_iterations < 1:
            raise ValueError(f"max_iterations must be at least 1, got {self.max_iterations}.")
        refuse_below("tolerance", self.tolerance, 0)


class Linearisation(NamedTuple):
    """The smooth equations of a step, linearised at any point.

    **Arguments:** `slopes(v, z)`: derivatives of the equations, a pytree; `problem(v, z, slopes)`: the
    `MixedProblem` for the increment of `v` from there; `z` per block, `(k, c)`.
    """

    slopes: Callable
    problem: Callable

    def __call__(self, v, z) -> MixedProblem:
        return self.problem(v, z, self.slopes(v, z))


def linear_problem(
    residual: Callable, blocks: Callable, size: int | None = None, matrix: Array | None = None
) -> Linearisation:
    """Equations `residual(v) = B z`: `A dv = −r(v) + B z`.

    **Arguments:** `residual(v)`: generalised impulse, `(n,)`; `blocks(v)`: the contacts at `v`;
    `size`: block size of `A` if it is block diagonal; `matrix`: `A`, default the derivative of `residual`.
    """

    def slopes(v, z):
        del z
        if matrix is not None:
            return matrix
        return jax.jacfwd(residual)(v) if size is None else block_jacobian(residual, v, size)

    def problem(v, z, matrix):
        del z
        return MixedProblem(matrix, -residual(v), _around(v, blocks(v)))

    return Linearisation(slopes, problem)


class Contact(NamedTuple):
    """The law of an interaction in a step that is nonlinear in its multipliers.

    **Arguments:** `shift`: added to the output by the law, `(k, c)`; `law`: in its form for the step;
    `active`: `(c,)`; `has_feedthrough`: whether the output depends on the multipliers.
    """

    shift: Array
    law: AbstractLaw
    active: Array
    has_feedthrough: bool


def own_parts(interactions, z) -> list[Vector]:
    """Zeros for the feedthrough parts of the outputs, which are unknowns of their own."""
    pairs = zip(interactions, z, strict=True)
    return [jnp.zeros(part.size, part.dtype) for i, part in pairs if i.relation.has_feedthrough]


def nonlinear_problem(
    motion: Callable, contacts: tuple[Contact, ...], n: int, inputs: Callable | None = None
) -> Linearisation:
    """Equations `r(v, z) = 0` that are nonlinear in multipliers, with the unknown `(v, s)`.

    `A dv = −r(v, z) − B z + B z'` with `A = ∂r/∂v` and `B = −∂r/∂z`, all at `(v, z)`. The output is
    `w = w* + C dv + ds`: with feedthrough, `ds = D (z' − z)` is an unknown of its own, so that the
    step problem keeps its form.

    **Arguments:** `motion(v, z)`: `r`, `(n,)`, and per contact the output `(k, c)`, in one function
    so that they share intermediate results; `z` a tuple with `(k, c)` per contact; `contacts`; `n`:
    number of smooth unknowns, which precede those of `own_parts`; `inputs(v, z)`: per contact
    `B (k, n, c)`, if known without differentiating `motion`.
    """

    def slopes(v, z):
        x = v[:n]
        matrix, by_motion = jax.jacfwd(motion)(x, z)
        by_input, by_output = (), ()
        if z and (inputs is None or v.shape[0] > n):
            by_input, by_output = jax.jacfwd(motion, argnums=1)(x, z)
        entered = inputs(x, z) if inputs else [-jnp.moveaxis(b, 0, 1) for b in by_input]
        return matrix, by_motion, entered, by_output

    def problem(v, z, slopes):
        matrix, by_motion, entered, by_output = slopes
        x, total = v[:n], v.shape[0]
        residual, outputs = motion(x, z)
        rhs = sum(map(gather, entered, z), residual)
        at, loads, blocks = n, [-rhs], []
        for i, (contact, part, b) in enumerate(zip(contacts, z, entered, strict=True)):
            c = jnp.moveaxis(by_motion[i], -1, 1)
            pad = ((0, 0), (0, total - n), (0, 0))
            c, b = jnp.pad(c, pad), jnp.pad(b, pad)
            if contact.has_feedthrough:
                own = np.eye(part.size, dtype=x.dtype).reshape(*part.shape, part.size)
                d = by_output[i][i].reshape(part.size, *part.shape).swapaxes(0, 1)
                c = c.at[:, at : at + part.size].set(own.swapaxes(1, 2))
                b = b.at[:, at : at + part.size].set(d)
                loads.append(-gather(d, part))
                at += part.size
            offset = outputs[i] + contact.shift
            blocks.append(Block(c, b, offset, contact.law, contact.active))
        matrix = jnp.pad(matrix, (0, total - n)) + np.diag(np.arange(total) >= n).astype(x.dtype)
        return MixedProblem(matrix, jnp.concatenate(loads), tuple(blocks))

    return Linearisation(slopes, problem)


def _around(v, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """The blocks as functions of the increment of `v`: their local velocities at `v` become offsets."""
    return tuple(eqx.tree_at(lambda b: b.offset, b, b.local(v) + b.offset) for b in blocks)


def solve_step(
    equations: Callable, parameters, v_guess: Vector, z0, solver, newton: Newton, adjoint=None
):
    """Solves the equations of one step.

    **Arguments:** `equations(parameters) -> Linearisation`, a pure function; `parameters`: everything
    it depends on; `v_guess`: first linearisation point, `(n,)`; `z0`: the same for the multipliers,
    also their warm start; `solver`; `newton`; `adjoint`: how the laws are differentiated, default
    `ImplicitAdjoint()`.

    **Returns:** `v`, `z`, `Statistics`, and whether Newton's iteration converged.
    """
    adjoint = ImplicitAdjoint() if adjoint is None else adjoint
    converged = jnp.array(True)
    iterates = newton.max_iterations > 1 and _is_curved(equations(parameters), v_guess, z0)
    if iterates:
        tolerance = max(newton.tolerance, 64 * float(jnp.finfo(v_guess.dtype).eps))
        frozen, v_start, z_start = without_derivative((parameters, v_guess, z0))
        start = equations(frozen)

        def body(carry):
            v, z, _, count = carry
            dv, z1, _ = solve_mixed(start(v, z), z, solver)
            v1 = v + dv
            return v1, z1, _change((v1, *z1), (v, *z)), count + 1

        def proceed(carry):
            _, _, change, count = carry
            return (change > tolerance) & (count < newton.max_iterations)

        first = v_start, z_start, jnp.full_like(v_start[0], jnp.inf), 0
        v_guess, z0, change, _ = jax.lax.stop_gradient(jax.lax.while_loop(proceed, body, first))
        converged = change <= tolerance
    linearise = equations(parameters)
    if not iterates:
        dv, z, stats = solve_mixed(linearise(v_guess, z0), z0, solver, adjoint)
        return v_guess + dv, z, stats, converged
    slopes = jax.lax.stop_gradient(start.slopes(v_guess, z0))

    def differentiated(carry, _):
        v, z = carry
        dv, z, stats = solve_mixed(linearise.problem(v, z, slopes), z, solver, adjoint)
        return (v + dv, z), stats

    (v, z), stats = jax.lax.scan(evaluated_again(differentiated), (v_guess, z0), length=2)
    return v, z, jax.tree.map(lambda x: x[-1], stats), converged


def _change(new, old):
    """The largest change over all arrays, each relative to its size, or to 1 if that is larger."""
    sizes = [max_abs(a - b) / jnp.maximum(1.0, max_abs(a)) for a, b in zip(new, old, strict=True)]
    return jnp.max(jnp.stack(sizes))


def _is_curved(linearise: Linearisation, v, z) -> bool:
    """Whether the slopes of the equations may depend on where they are linearised."""

    def slopes(v, z):
        problem = linearise(v, z)
        return problem.matrix, [(block.output, block.input) for block in problem.blocks]

    return depends(slopes, v, z)


def outcome(stats, newton_converged, v, crowded=None) -> RESULTS:
    """The result of a step from its parts; the most fundamental failure wins.

    **Arguments:** `crowded`: as in `StepInfo`, `None` for methods that solve all contacts.
    """
    ok = RESULTS.successful

    def when(bad, result):
        return RESULTS.where(bad, result, ok)

    result = when(~jnp.all(jnp.isfinite(v)), RESULTS.nonfinite)
    result = first_error(result, when(~stats.converged, RESULTS.not_converged))
    result = first_error(result, when(~newton_converged, RESULTS.nonlinear_not_converged))
    return result if crowded is None else first_error(result, overflowed(crowded))


def overflowed(crowded) -> RESULTS:
    """The result of a step in which there was no room for a contact, see `StepInfo.crowded`."""
    return RESULTS.where(crowded[0] < 0, RESULTS.successful, RESULTS.contact_overflow)
