"""Rigid bodies as flows of momentum and attitude: free, in a field, in a fluid.

Points are pairs `(mu, g)`: the body momentum, and the attitude or placement. Both move by the same
group element, so that the spatial momentum `Ad(g^-1)^T mu` is constant to round-off.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments import Four, Three, checked_arguments
from ..._numerics import as_float, dot
from ..._types import Config, Scalar, State, Vector
from ...groups import SE3, SO3, AbstractGroup, CoadjointAction, Diagonal, RightTranslation
from ...model import Model
from ...systems import LieFlow


class _Velocity(eqx.Module):
    """`A = -xi`, with `xi = dH/dmu` the body velocity of a Hamiltonian flow."""

    gradient: Callable

    def __call__(self, t: Scalar, y: Config, args) -> Vector:
        del t, args
        return -self.gradient(y[0])


class _Energy(eqx.Module):
    hamiltonian: Callable

    def __call__(self, t: Scalar, y: Config) -> Scalar:
        del t
        return self.hamiltonian(y[0])


def _lie_poisson(group: AbstractGroup, hamiltonian) -> Model:
    action = Diagonal((CoadjointAction(group), RightTranslation(group)))
    return Model(LieFlow(_Velocity(hamiltonian.gradient), action, _Energy(hamiltonian)))


class _FreeBody(eqx.Module):
    inertia: Float[Array, "3"]

    def __call__(self, mu: Vector) -> Scalar:
        return dot(mu, self.gradient(mu)) / 2

    def gradient(self, mu: Vector) -> Vector:
        return mu * (1 / self.inertia)


class _HeavyTop(eqx.Module):
    inertia: Float[Array, "3"]
    lever: Float[Array, "3"]

    def __call__(self, mu: Vector) -> Scalar:
        return dot(mu[3:], mu[3:] * (1 / self.inertia)) / 2 + dot(self.lever, mu[:3])

    def gradient(self, mu: Vector) -> Vector:
        return jnp.concatenate([self.lever, mu[3:] * (1 / self.inertia)])


class _Kirchhoff(eqx.Module):
    inertia: Float[Array, "3"]
    mass: Float[Array, "3"]

    def __call__(self, mu: Vector) -> Scalar:
        return dot(mu, self.gradient(mu)) / 2

    def gradient(self, mu: Vector) -> Vector:
        return mu * (1 / jnp.concatenate([self.mass, self.inertia]))


@checked_arguments
def free_rigid_body(inertia: Three = (1.0, 2.0, 3.0)) -> Model:
    """A free rigid body: `pi' = pi x I^-1 pi`, `R' = R (I^-1 pi)^`; points `(pi, quaternion)`.

    The intermediate axis is unstable. Every method on the orbit conserves `|pi|` and `R pi` exactly.

    **Arguments:** `inertia`: principal moments [kg m²], shape `(3,)`.
    """
    return _lie_poisson(SO3(), _FreeBody(as_float(inertia)))


@checked_arguments
def heavy_top(inertia: Three = (1.0, 1.0, 0.5), lever: Three = (0.0, 0.0, 1.0)) -> Model:
    """A heavy top with a fixed point: `pi' = pi x w + G x c`, `G' = G x w`, `w = I^-1 pi`.

    A Lie-Poisson flow on the dual of se(3): points `((G, pi), (x, quaternion))`, with `G = R^T e3` the
    vertical in the body frame. `|G|` and `G . pi` are Casimirs, conserved exactly. `x` has no meaning
    for the top (it is the integral of `R c`).

    **Arguments:** `inertia`: about the fixed point [kg m²], `(3,)`; `lever`: `c = m g l` [N m] along
    the body vector from the fixed point to the centre of mass, `(3,)`.
    """
    return _lie_poisson(SE3(), _HeavyTop(as_float(inertia), as_float(lever)))


@checked_arguments
def kirchhoff_body(inertia: Three = (1.0, 2.0, 3.0), mass: Three = (1.0, 1.5, 2.0)) -> Model:
    """A body in an ideal fluid: `pi' = pi x w + p x v`, `p' = p x w`, `w = I^-1 pi`, `v = M^-1 p`.

    Points `((p, pi), (x, quaternion))`. `|p|` and `p . pi` are Casimirs; the spatial momenta `R p`
    and `R pi + x x R p` are constant.

    **Arguments:** `inertia` [kg m²], `mass` [kg]: principal values of body plus added mass, `(3,)` each.
    """
    return _lie_poisson(SE3(), _Kirchhoff(as_float(inertia), as_float(mass)))


@checked_arguments
def rigid_body_state(pi: Three, quaternion: Four = (1.0, 0.0, 0.0, 0.0)) -> State:
    """State of `free_rigid_body`: angular momentum [kg m²/s] in the body frame, attitude body to world."""
    pi = as_float(pi)
    return State((pi, as_float(quaternion, pi.dtype)), jnp.zeros(0, pi.dtype))


@checked_arguments
def heavy_top_state(pi: Three, quaternion: Four = (1.0, 0.0, 0.0, 0.0)) -> State:
    """State of `heavy_top`: angular momentum [kg m²/s] in the body frame, attitude body to world."""
    pi = as_float(pi)
    quaternion = as_float(quaternion, pi.dtype)
    vertical = SO3().coAd(quaternion, jnp.array([0.0, 0.0, 1.0], pi.dtype))
    placement = jnp.zeros(3, pi.dtype), quaternion
    return State((jnp.concatenate([vertical, pi]), placement), jnp.zeros(0, pi.dtype))


@checked_arguments
def kirchhoff_state(
    pi: Three,
    p: Three,
    position: Three = (0.0, 0.0, 0.0),
    quaternion: Four = (1.0, 0.0, 0.0, 0.0),
) -> State:
    """State of `kirchhoff_body`: angular momentum, linear momentum [kg m/s] (body frame), placement."""
    pi = as_float(pi)
    placement = as_float(position, pi.dtype), as_float(quaternion, pi.dtype)
    momentum = jnp.concatenate([as_float(p, pi.dtype), pi])
    return State((momentum, placement), jnp.zeros(0, pi.dtype))
