"""A mechanical system as a first-order system, for analysis and control."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import checked_arguments
from .._expects import of_shape
from .._jax import concrete
from .._numerics import lu_solve
from .._types import Args, Scalar, State, Vector
from ._base import AbstractSystem


@checked_arguments
def state_rate(
    system: AbstractSystem, t: Scalar, state: State, args: Args = None, p: Vector | None = None
) -> Float[Array, " 2n"]:
    """`(v, M^-1 (F + p))`: the rates of configuration (as a tangent of the group) and velocity.

    **Arguments:** `t` [s]; `state`; `args`: as given to `simulate`; `p`: an additional generalised
    force `(n,)`, for example that of contacts.

    **Returns:** shape `(2 n,)`.
    """
    _check_state(system, state)
    force = system.force(t, state, args)
    force = force if p is None else force + of_shape("p", p, *force.shape)
    return jnp.concatenate([state.v, lu_solve(system.mass(t, state.q), force)])


@checked_arguments
def state_rate_jacobian(
    system: AbstractSystem, t: Scalar, state: State, args: Args = None, p: Vector | None = None
) -> Float[Array, "2n 2n"]:
    """The derivative of `state_rate` with respect to the state, `[[0, 1], [∂(M^-1 (F + p))/∂q, ∂(..)/∂v]]`.

    Exact: it includes the derivative of `M^-1`. Derivatives with respect to `q` are along `q exp(eta)`.

    **Arguments:** as in `state_rate`. **Returns:** shape `(2 n, 2 n)`.
    """
    _check_state(system, state)
    group, n = system.group, state.v.shape[0]

    def rate(x):
        moved = State(group.compose(state.q, group.exp(x[:n])), state.v + x[n:])
        return state_rate(system, t, moved, args, p)

    return jax.jacfwd(rate)(jnp.zeros(2 * n, state.v.dtype))


@checked_arguments
def velocity_after(system: AbstractSystem, t: Scalar, state: State, p: Vector) -> Vector:
    """`v⁺ = v + M^-1 p`: the velocity after a generalised impulse `p (n,)` [N s]."""
    _check_state(system, state)
    p = of_shape("p", p, system.velocities)
    return state.v + lu_solve(system.mass(t, state.q), p)


def _check_state(system: AbstractSystem, state: State) -> None:
    if not system.kind.has_positions:
        raise ValueError(
            f"system must be mechanical; a {type(system).__name__} has no mass matrix."
        )
    of_shape("v of the state", state.v, system.velocities)
    if problem := system.check_point(concrete(state.q)):
        raise ValueError(f"state has a wrong q: {problem}.")
