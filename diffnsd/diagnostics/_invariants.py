"""Quantities that a geometric method should preserve, as functions of a model, a state, or a step.

To evaluate them along a solution use `jax.vmap(lambda s: defect(model, s))(solution.states)`.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._argument_rules import of_numbers
from .._arguments import checked_arguments
from .._expects import of_shape, shown
from .._jax import concrete, is_traced
from .._types import Args, Scalar, State, Vector
from ..groups import AbstractGroup
from ..integrators import AbstractIntegrator, step_residuals
from ..model import Model
from ..simulation import Solution


@checked_arguments
def defect(model: Model, state: State) -> Scalar:
    """Distance of a configuration from its group or space: norms, orthogonality, determinants."""
    of_shape("v of the state", state.v, model.system.velocities)
    try:
        jax.eval_shape(model.system.defect, state.q)
    except (TypeError, ValueError, AttributeError, IndexError):
        raise ValueError(
            "the state has a q of another structure or shape than the points of the model; make a state by "
            "system.state(q, v)."
        ) from None
    return model.system.defect(state.q)


def _check_point(name: str, group: AbstractGroup, value) -> None:
    """Raises if a value is no point of a group: of another structure, other shapes, or not on it."""
    right = jax.eval_shape(group.identity)
    known = concrete(value)
    if not (
        jax.tree.structure(value) == jax.tree.structure(right)
        and all(map(of_numbers, jax.tree.leaves(value)))
        and [np.shape(x) for x in jax.tree.leaves(value)]
        == [x.shape for x in jax.tree.leaves(right)]
    ):
        raise ValueError(
            f"{name} must be an element of {type(group).__name__}, such as group.identity(); "
            f"got {shown(value)}."
        )
    hidden = any(map(is_traced, jax.tree.leaves(known)))
    if not hidden and (problem := group.check(known)):
        raise ValueError(f"{name} is no element of {type(group).__name__}: {problem}.")


@checked_arguments
def spatial_momentum(group: AbstractGroup, g, mu: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """The momentum in the spatial frame, `Ad(g^-1)^T mu`, shape `(n,)`; constant for a free motion.

    **Arguments:** `group`; `g`: placement; `mu`: body momentum, `(n,)`.
    """
    _check_point("g", group, g)
    return group.coAd(group.inverse(g), of_shape("mu", mu, group.dim, *np.shape(mu)[1:]))


@checked_arguments
def casimirs(group: AbstractGroup, mu: Float[Array, "n ..."]) -> Float[Array, "k ..."]:
    """Functions of a momentum that are constant on its coadjoint orbit, shape `(k,)`.

    `|pi|²` on SO(3), `(|p|², p . pi)` on SE(3), `|p|²` on SE(2), all of `mu` on commutative groups,
    the Casimirs of the factors on products.

    **Arguments:** `group`; `mu`: body momentum, `(n,)`.

    **Raises:** `ValueError` on GL(n), SL(n), SO(n).
    """
    return group.casimirs(of_shape("mu", mu, group.dim, *np.shape(mu)[1:]))


@checked_arguments
def drift(values: Float[Array, "t *k"]) -> Scalar:
    """Largest change of an invariant along a solution, relative to `max(1, |first value|)`."""
    values = jnp.asarray(values)
    if not values.ndim or not values.size:
        raise ValueError(f"values must have an axis of times, got shape {values.shape}.")
    scale = jnp.maximum(1.0, jnp.max(jnp.abs(values[0])))
    return jnp.max(jnp.abs(values - values[:1])) / scale


@checked_arguments
def first_order_residuals(
    model: Model, integrator: AbstractIntegrator, solution: Solution, args: Args = None
) -> tuple[Float[Array, "t n"], tuple[Float[Array, "t c k"], ...]]:
    """How well a simulated first-order system satisfies the equations of its steps.

    Computes the residual of the dynamics `R = d(x1) − G (gamma r1 + (1 − gamma) r0)` and the distance
    `lam − P_K(lam − y)` from the law. Here `d` is the left side of the scheme
    (`E (x1 − x0) − h theta f1 − h (1 − theta) f0` for the theta schemes) and `G` its factor of inputs,
    `h`. Outputs and inputs are recomputed from states and multipliers; nothing is taken from the
    solver.

    **Arguments:** `model`, `integrator`, `args`: as given to `simulate`; `solution`: with every step
    and `t0` saved.

    **Returns:** `R (t − 2, n)` and per interaction `(t − 2, c, k)`, for all steps but the first,
    because the multipliers before it are not recorded.
    """
    ts, x, lam = solution.ts, solution.states.v, solution.details.multipliers

    def one(t0, t1, x0, x1, lam0, lam1):
        pairs = (x0, x1), (lam0, lam1)
        return step_residuals(integrator, model, t0, t1 - t0, *pairs, args)

    before, after = (jax.tree.map(lambda a, s=s: a[s], lam) for s in (slice(1, -1), slice(2, None)))
    return jax.vmap(one)(ts[1:-1], ts[2:], x[1:-1], x[2:], before, after)


@checked_arguments
def step_map(
    model: Model, integrator: AbstractIntegrator, t0: float, h: float, args: Args = None
) -> Callable[[State], State]:
    """One step of an integrator as a function of the state alone."""

    def advance(state: State) -> State:
        carry = integrator.init(model, jnp.asarray(t0), state, args)
        return integrator.step(model, jnp.asarray(t0), jnp.asarray(h), state, carry, args)[0]

    return advance


@checked_arguments
def poisson_defect(
    step: Annotated[Callable[[Vector], Vector], "(mu)"], group: AbstractGroup, mu: Vector
) -> Scalar:
    """`|D B(mu) D^T - B(mu1)|` of a reduced step on momenta, `B(mu)_ij = mu . [e_i, e_j]`.

    It is zero up to round-off if the step is a Poisson map of the Lie-Poisson bracket. Variational
    methods are Poisson maps, Runge-Kutta-Munthe-Kaas methods are not.

    **Arguments:** `step`: maps the body momentum to the next one; `group`; `mu`: where to evaluate,
    shape `(n,)`.
    """

    of_shape("mu", mu, group.dim)

    def structure(mu):
        basis = jnp.eye(group.dim, dtype=mu.dtype)
        return jax.vmap(lambda e: group.ad(e).T @ mu)(basis)

    end = step(mu)
    if np.shape(end) != mu.shape:
        raise ValueError(f"step must return a momentum of shape {mu.shape}, got {shown(end)}.")
    derivative = jax.jacfwd(step)(mu)
    return jnp.max(jnp.abs(derivative @ structure(mu) @ derivative.T - structure(end)))
