"""Steps of first-order systems: their memory, their report, and a check that they can hold the laws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._jax import is_traced
from ..._types import Args, Scalar, State, Vector
from ...complementarity.problem._problem import broadcast_law
from ...model import Interaction, Model
from .._step import own_parts
from ._theta_step import Step, rows


class Memory(eqx.Module):
    """The data that schemes for first-order systems carry from step to step.

    **Arguments:** `multipliers`: per interaction `(c, k)`, where Newton's method starts; `input`:
    the total input `r (n,)` at the start of the step, `None` where it has no weight.
    """

    multipliers: tuple[Array, ...]
    input: Vector | None


class FirstOrderDetails(eqx.Module):
    """The report of a step of a first-order system, in `Solution.details`; zero at `t0`.

    **Arguments:** per interaction, at the point of the step where the law holds: `multipliers`:
    `lam (c, k)`, force-like; `outputs`: `y (c, k)` of the rows that take part in the law.
    """

    multipliers: tuple[Array, ...]
    outputs: tuple[Array, ...]


def total_input(model: Model, t: Scalar, state: State, lam) -> Vector:
    """The input `r` of all interactions, `(n,)`."""
    pairs = zip(model.interactions, lam, strict=True)
    parts = (i.input(model.system, t, state, part) for i, part in pairs)
    return sum(parts, jnp.zeros_like(state.v))


def on_their_sets(model: Model, details: FirstOrderDetails) -> tuple[Array, ...]:
    """Multipliers `P_K(lam − y)`: unchanged if the law holds, but without the solver's error.

    A multiplier within the solver's tolerance of a bound is set exactly to it. Otherwise it would start
    the next solve within the tolerance, and its error would persist and accumulate.
    """

    def one(i: Interaction, lam, y):
        law = broadcast_law(i.law, lam.shape[0], lam.dtype)
        return law.set().project((lam - y).T).T

    return tuple(map(one, model.interactions, details.multipliers, details.outputs))


def step_residuals(scheme, model: Model, t0, h, states: tuple[Vector, Vector], multipliers, args):
    """Residuals of the equations of a step, for two states and the multipliers between them.

    **Arguments:** `states`: `x0`, `x1`; `multipliers`: of the step before and of this one, each per
    interaction `(c, k)`.

    **Returns:** `R = d(x1) − G (w r + (1 − w) r0)`, `(n,)`, and per interaction the distance
    `lam − P_K(lam − y)` from the law, `(c, k)`.
    """
    lam0, lam = multipliers
    start = State(None, states[0])
    z0, z = (tuple(part.T for part in parts) for parts in multipliers)
    step = Step(scheme, model, t0, h, start, args, z0, total_input(model, t0, start, lam0))
    dynamics, found = step.motion()[0](states[1], z)
    details = FirstOrderDetails(lam, tuple(y.T for y in found))
    onto = on_their_sets(model, details)
    return dynamics, tuple(a - b for a, b in zip(lam, onto, strict=True))


def unreached(scheme, model: Model, t0, dt, state: State, args: Args) -> str | None:
    """Why a step cannot satisfy some law, whose output no multiplier reaches, or `None`.

    The one-step matrix `D + p w C W^-1 G B` is evaluated at the initial state, for multipliers 0 and 1.
    An entry that is zero for both, up to rounding, is taken to be zero.
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
            found = _first_step(scheme, model, t, h, state, lam, args)
            outputs, inputs, matrix = map(np.asarray, found)
            mobility = np.linalg.pinv(matrix)
            sizes.append(np.abs(outputs @ mobility @ inputs.T))
            scales.append(np.abs(outputs) @ np.abs(mobility) @ np.abs(inputs.T))
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


@eqx.filter_jit
def _first_step(scheme, model, t, h, state, lam, args) -> tuple[Array, Array, Array]:
    """Outputs, inputs and matrix of the first step, at the initial state and given multipliers."""
    v = jnp.concatenate([state.v, *own_parts(model.interactions, lam)])
    step = Step(scheme, model, t, h, state, args, lam, jnp.zeros_like(state.v))
    problem = step.equations()(v, lam)
    return *rows(problem), problem.matrix
