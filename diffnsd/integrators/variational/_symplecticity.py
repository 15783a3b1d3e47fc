"""How far a step is from being a symplectic map."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments import checked_arguments
from ..._expects import of_shape
from ..._numerics import lu_solve, max_abs
from ..._types import Args, Scalar, State, Vector
from ...groups import AbstractGroup
from ...model import Model
from .._base import AbstractIntegrator


@checked_arguments
def symplectic_form(group: AbstractGroup, momentum: Vector) -> Float[Array, "m m"]:
    """The canonical two-form of a cotangent bundle at `(q, μ)`, left-trivialised, `(2n, 2n)`.

    On tangent vectors `(η, ν)`, with `δq = q η^` and `δμ = ν`, it is
    `ν2 · η1 − ν1 · η2 + μ · [η1, η2]`; on `R^n` the bracket vanishes.
    """
    n = group.dim
    momentum = of_shape("momentum", momentum, n)
    one, zero = jnp.eye(n, dtype=momentum.dtype), jnp.zeros((n, n), momentum.dtype)
    bracket = jax.vmap(lambda eta: group.ad(eta).T @ momentum)(one)
    return jnp.concatenate(
        [jnp.concatenate([bracket, one], axis=1), jnp.concatenate([-one, zero], axis=1)]
    )


@checked_arguments
def symplecticity_defect(
    model: Model,
    integrator: AbstractIntegrator,
    t0: Scalar,
    h: Scalar,
    state: State,
    args: Args = None,
) -> Scalar:
    """Largest entry of `D^T ω(μ1) D − ω(μ0)` for the derivative `D` of one step in `(q, μ)`.

    Zero to rounding for a symplectic step with forces that have a potential. The derivative comes from
    automatic differentiation (implicit where equations are solved); the momentum is `μ = M v`.

    **Arguments:** `model`, `integrator`; `t0`, `h`: start and length of the step [s]; `state`; `args`.

    Reference: E. Hairer, C. Lubich, G. Wanner, Geometric numerical integration (2006), VI.2,
    doi:10.1007/3-540-30666-8; J. Marsden, T. Ratiu (1999), chapter 6,
    doi:10.1007/978-0-387-21792-5.
    """
    if problem := integrator.supports(model) or model.check(state):
        raise ValueError(f"no defect: {problem}.")
    system, group, n = model.system, model.system.group, state.v.shape[0]
    t0, h = jnp.asarray(t0, state.v.dtype), jnp.asarray(h, state.v.dtype)

    before = system.momentum(t0, state)

    def phase_map(x: Float[Array, " m"]):
        q = group.compose(state.q, group.exp(x[:n]))
        start = State(q, lu_solve(system.mass(t0, q), before + x[n:]))
        carry = integrator.init(model, t0, start, args)
        end = integrator.step(model, t0, h, start, carry, args)[0]
        here = group.inverse(jax.lax.stop_gradient(end.q))
        after = system.momentum(t0 + h, end)
        return jnp.concatenate([group.log(group.compose(here, end.q)), after]), after

    start = jnp.zeros(2 * n, state.v.dtype)
    derivative, after = jax.jacfwd(phase_map, has_aux=True)(start)
    form0, form1 = symplectic_form(group, before), symplectic_form(group, after)
    return max_abs(derivative.T @ form1 @ derivative - form0)
