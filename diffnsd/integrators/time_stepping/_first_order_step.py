"""The step of a first-order system, shared by its schemes.

With the smooth defect `d(x)` of a scheme, the gain `G` of its inputs, the point `p` of the step at
which relations are evaluated and the weight `w` of the new input, a step solves

    d(x1) = G (w r + (1 − w) r0),    r = g(t_p, x_p, lam),    y = h(t_p, x_p, lam),
    K* ∋ y ⟂ lam ∈ K,                t_p = t0 + p h,    x_p = (1 − p) x0 + p x1.

Outputs may depend on multipliers: `nonlinear_problem` linearises both.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._jax import is_traced
from ..._types import Args, Scalar, State, Vector
from ...complementarity import MixedProblem
from ...complementarity._problem import broadcast_law
from ...laws import Context
from ...model import Interaction, Model
from .._base import StepInfo
from .._contacts import law_at
from .._step import Contact, nonlinear_problem, outcome, own_parts, solve_step


class Memory(eqx.Module):
    """What the schemes of first-order systems carry from step to step.

    **Arguments:** `multipliers`: per interaction `(c, k)`, where Newton's method starts; `input`:
    the total input `r (n,)` at the start of the step.
    """

    multipliers: tuple[Array, ...]
    input: Vector

    def recall(self, model: Model, t: Scalar, state: State) -> "Memory":
        """The same multipliers, with the input that they are at a state."""
        z = tuple(lam.T for lam in self.multipliers)
        return Memory(self.multipliers, _Relations(model, t).input(state.v, z))


class FirstOrderDetails(eqx.Module):
    """What a step of a first-order system reports: `Solution.details`, zero at `t0`.

    **Arguments:** per interaction, at the point of the step where the law holds: `multipliers`:
    `lam (c, k)`, force-like; `outputs`: `y (c, k)` of the rows that take part in the law.
    """

    multipliers: tuple[Array, ...]
    outputs: tuple[Array, ...]


class Smooth(NamedTuple):
    """A scheme on one step: `defect(x)`, and `gain` times an input."""

    defect: Callable[[Vector], Vector]
    gain: Callable[[Vector], Vector]


class _Relations:
    """All interactions of a model at one time, their multipliers in the layout of the solver."""

    def __init__(self, model: Model, t: Scalar):
        self.model, self.t = model, t
        self.group = model.system.group

    def _padded(self, i: Interaction, z: Array) -> Array:
        """Multipliers `(c, k)` of all rows of a relation from those of the law, `(k', c)`."""
        rest = i.relation.rows - z.shape[0]
        return jnp.pad(z.T, ((0, 0), (0, rest))) if rest else z.T

    def output(self, i: Interaction, x: Vector, z: Array) -> Array:
        """The rows of `y` that take part in the law, `(k', c)`."""
        lam = self._padded(i, z)
        return i.relation.output(self.group, self.t, State(None, x), lam).T[: z.shape[0]]

    def input(self, x: Vector, z) -> Vector:
        """The total input `r`, `(n,)`."""
        state, total = State(None, x), jnp.zeros_like(x)
        for i, part in zip(self.model.interactions, z, strict=True):
            total = total + i.relation.input(self.group, self.t, state, self._padded(i, part))
        return total


def first_order_step(scheme, model: Model, t0, h, state: State, carry: Memory, args: Args):
    """One step of a scheme of first-order systems; see this module's docstring."""
    weight = scheme.weight
    warm = tuple(lam.T for lam in carry.multipliers)
    parameters = scheme, model, t0, h, state, carry, args
    guess = jnp.concatenate([state.v, *own_parts(model.interactions, warm)])
    v, z, stats, converged = solve_step(
        _equations, parameters, guess, warm, scheme.solver, scheme.newton, scheme.adjoint
    )
    x = v[: state.v.shape[0]]
    r = _Relations(model, t0 + h).input(x, z) if weight < 1 else jnp.zeros_like(x)
    details = _details(scheme, model, t0 + scheme.point * h, state.v, x, z)
    pairs = zip(details.multipliers, carry.multipliers, strict=True)
    impulses = tuple(h * (weight * new + (1 - weight) * old) for new, old in pairs)
    info = StepInfo.of(impulses, stats, details)
    result = outcome(stats, converged, jnp.array(False), x)
    return State(None, x), info, Memory(_on_their_sets(model, details), r), result


def _placed(scheme, x0: Vector, x: Vector) -> Vector:
    """The state where relations are evaluated."""
    return x if scheme.point == 1 else (1 - scheme.point) * x0 + scheme.point * x


def _details(scheme, model: Model, t, x0, x, z) -> FirstOrderDetails:
    relations, at = _Relations(model, t), _placed(scheme, x0, x)
    pairs = zip(model.interactions, z, strict=True)
    outputs = tuple(relations.output(i, at, part).T for i, part in pairs)
    return FirstOrderDetails(tuple(part.T for part in z), outputs)


def _on_their_sets(model: Model, details: FirstOrderDetails) -> tuple[Array, ...]:
    """Multipliers `P_K(lam − y)`: the same ones if the law holds, without the solver's rounding.

    A multiplier that is at a bound but for the solver's tolerance is there to all digits: it would
    start the next solve within the tolerance, and its error would be kept and add up.
    """

    def one(i: Interaction, lam, y):
        law = broadcast_law(i.law, lam.shape[0], lam.dtype)
        return law.set().project((lam - y).T).T

    return tuple(map(one, model.interactions, details.multipliers, details.outputs))


def _equations(parameters):
    """The step linearised at any point, as a function of its parameters only."""
    scheme, model, t0, h, state, carry, args = parameters
    x0, p, weight = state.v, scheme.point, scheme.weight
    smooth = scheme.smooth(model.system, t0, h, state, args)
    relations = _Relations(model, t0 + p * h)
    start = _Relations(model, t0)

    def residual(x, z):
        r = weight * relations.input(_placed(scheme, x0, x), z)
        return smooth.defect(x) - smooth.gain(r if weight == 1 else r + (1 - weight) * carry.input)

    def motion(x, z):
        at = _placed(scheme, x0, x)
        pairs = zip(model.interactions, z, strict=True)
        return residual(x, z), tuple(relations.output(i, at, part) for i, part in pairs)

    def contact(i: Interaction, lam0) -> Contact:
        around = _context(start.output(i, x0, lam0.T), h, p)
        shift, law, active = law_at(i, around)
        return Contact(shift, law, active, i.relation.has_feedthrough)

    contacts = tuple(map(contact, model.interactions, carry.multipliers))
    return nonlinear_problem(motion, contacts, x0.shape[0])


def _context(y0: Array, h: Scalar, point: float) -> Context:
    """What a law may know: the output at the start of the step, `(k, c)`; there are no gaps."""
    ones = jnp.ones_like(y0[0])
    return Context(y0, -jnp.inf * ones, h * ones, point * ones)


def step_residuals(scheme, model: Model, t0, h, states: tuple[Vector, Vector], multipliers, args):
    """How well two states and the multipliers between them satisfy the equations of a step.

    **Arguments:** `states`: `x0`, `x1`; `multipliers`: of the step before and of this one, each per
    interaction `(c, k)`.

    **Returns:** `R = d(x1) − G (w r + (1 − w) r0)`, `(n,)`, and per interaction the distance
    `lam − P_K(lam − y)` from the law, `(c, k)`.
    """
    (x0, x1), (lam0, lam) = states, multipliers
    z0, z = (tuple(part.T for part in parts) for parts in (lam0, lam))
    time = t0 + scheme.point * h
    details = _details(scheme, model, time, x0, x1, z)
    smooth = scheme.smooth(model.system, t0, h, State(None, x0), args)
    r = scheme.weight * _Relations(model, time).input(_placed(scheme, x0, x1), z)
    r = r + (1 - scheme.weight) * _Relations(model, t0).input(x0, z0)
    onto = _on_their_sets(model, details)
    law = tuple(a - b for a, b in zip(lam, onto, strict=True))
    return smooth.defect(x1) - smooth.gain(r), law


def unreached(scheme, model: Model, t0, dt, state: State, args: Args) -> str | None:
    """Why a step cannot hold some law: its output is not reached by any multiplier, or `None`.

    The one-step matrix `D + p w C W^-1 G B` is taken at the initial state, for multipliers 0 and 1:
    an entry that is zero for both is taken to be zero. What is zero but for rounding counts as zero.
    """
    hidden = any(map(is_traced, jax.tree.leaves((model, dt, state, args))))
    if hidden or not model.interactions or state.v.size == 0:
        return None
    sizes, scales = [], []
    with jax.ensure_compile_time_eval():
        h, t = jnp.asarray(dt, state.v.dtype), jnp.asarray(t0, state.v.dtype)
        for value in (0.0, 1.0):
            lam = tuple(
                jnp.full((i.rows, c), value, state.v.dtype)
                for c, i in zip(model.contacts(t, state.q), model.interactions, strict=True)
            )
            matrix, scale = _one_step_matrix(scheme, model, t, h, state, lam, args)
            sizes.append(np.abs(matrix))
            scales.append(scale)
    size, scale = np.maximum(*sizes), np.maximum(*scales)
    reached = size > 64 * float(jnp.finfo(state.v.dtype).eps) * scale
    dead = ~reached.any(axis=0) & ~reached.any(axis=1)
    if not dead.any():
        return None
    return (
        f"output {int(np.argmax(dead))} is reached by no multiplier within a step of dt={dt:g}, and "
        "its multiplier reaches no output: the relative degree is too high for this scheme (zero "
        "row and column of the one-step matrix). Use theta > 0 and gamma > 0, differentiate the "
        "output, or check B, C and D of the relation"
    )


def _one_step_matrix(scheme, model, t, h, state, lam, args):
    """The one-step matrix of all outputs by all multipliers, and the sizes of what it sums."""
    problem = _first_problem(scheme, model, t, h, state, lam, args)
    size = problem.rhs.shape[0]
    outputs, inputs = (
        np.concatenate([np.asarray(x).swapaxes(1, 2).reshape(-1, size) for x in parts])
        for parts in ([b.output for b in problem.blocks], [b.input for b in problem.blocks])
    )
    mobility = np.linalg.pinv(np.asarray(problem.matrix))
    matrix = outputs @ mobility @ inputs.T
    return matrix, np.abs(outputs) @ np.abs(mobility) @ np.abs(inputs.T)


@eqx.filter_jit
def _first_problem(scheme, model, t, h, state, lam, args) -> MixedProblem:
    """The first step linearised at the initial state and at given multipliers."""
    memory = Memory(tuple(part.T for part in lam), jnp.zeros_like(state.v))
    v = jnp.concatenate([state.v, *own_parts(model.interactions, lam)])
    return _equations((scheme, model, t, h, state, memory, args))(v, lam)
