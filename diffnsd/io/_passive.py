"""Forces on bodies that nothing in the file exerts: drag of a medium, and compensation of their weight."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Args, Scalar, State
from ..groups import rotation_matrix
from ..systems import Wrenches


def wrench_of(elements: Any) -> Callable | None:
    """The wrench on the bodies of a file; `None` without one."""
    if not (elements.plan.is_in_fluid or elements.plan.carries_weight):
        return None

    def of_bodies(key: str) -> Array:
        return jnp.stack([elements[f"{name}/{key}"] for name, _ in elements.plan.bodies])

    centre = of_bodies("ipos")
    parts: list[Callable] = []
    if elements.plan.is_in_fluid:
        box = equal_box(of_bodies("mass"), of_bodies("inertia"))
        axes = jax.vmap(rotation_matrix)(of_bodies("iquat"))
        density, viscosity = elements["option/density"], elements["option/viscosity"]
        parts.append(Fluid(density, viscosity, elements["option/wind"], box, centre, axes))
    if elements.plan.carries_weight:
        share = of_bodies("gravcomp") * of_bodies("mass")
        parts.append(Compensation(share, elements["option/gravity"], centre))
    return parts[0] if len(parts) == 1 else Wrenches(tuple(parts))


class Compensation(eqx.Module):
    """A force that carries a share of the weight of every body at its centre of mass: `gravcomp` of MJCF.

    **Arguments:** `mass` that is carried [kg], `(b,)`; `gravity` [m/s²]; `centre` of mass in the frame of the
    body, `(b, 3)`.
    """

    mass: Float[Array, " b"]
    gravity: Float[Array, "3"]
    centre: Float[Array, "b 3"]

    def __call__(self, t: Scalar, state: State, args: Args) -> Float[Array, "b 6"]:
        rotation = _rotations(state)
        force = -self.mass[:, None] * self.gravity[None]
        own = jnp.einsum("bji,bj->bi", rotation, force)
        return jnp.concatenate([force, jnp.cross(self.centre, own)], axis=1)


class Fluid(eqx.Module):
    """Drag of a medium on bodies, each replaced by the box with its mass and moments of inertia.

    **Arguments:** `density` [kg/m³], `viscosity` [Pa s], `wind` [m/s], `(3,)`; `box`: edges `(b, 3)`;
    `centre`, `axes`: of the box in the frame of the body, `(b, 3)`, `(b, 3, 3)`.

    Reference: E. Todorov, T. Erez, Y. Tassa, MuJoCo (2012), doi:10.1109/IROS.2012.6386109, whose
    documentation calls it the inertia model of passive forces.
    """

    density: Scalar
    viscosity: Scalar
    wind: Float[Array, "3"]
    box: Float[Array, "b 3"]
    centre: Float[Array, "b 3"]
    axes: Float[Array, "b 3 3"]

    def __call__(self, t: Scalar, state: State, args: Args) -> Float[Array, "b 6"]:
        rotation = _rotations(state)
        v = state.v.reshape(-1, 6)
        own = jnp.einsum("bji,bj->bi", rotation, v[:, :3] - self.wind[None])
        linear = _turned(self.axes, own + jnp.cross(v[:, 3:], self.centre))
        angular = _turned(self.axes, v[:, 3:])
        edge, mean = self.box, jnp.mean(self.box, axis=1, keepdims=True)
        other, third = jnp.roll(edge, -1, axis=1), jnp.roll(edge, -2, axis=1)
        force = -3 * jnp.pi * mean * self.viscosity * linear
        force -= self.density / 2 * other * third * jnp.abs(linear) * linear
        couple = -jnp.pi * mean**3 * self.viscosity * angular
        couple -= self.density / 64 * edge * (other**4 + third**4) * jnp.abs(angular) * angular
        force = jnp.einsum("bij,bj->bi", self.axes, force)
        couple = jnp.einsum("bij,bj->bi", self.axes, couple) + jnp.cross(self.centre, force)
        return jnp.concatenate([jnp.einsum("bij,bj->bi", rotation, force), couple], axis=1)


def _rotations(state: State) -> Float[Array, "b 3 3"]:
    """From bodies to the world."""
    return jnp.moveaxis(rotation_matrix(state.q.orientation.T), -1, 0)


def _turned(axes: Float[Array, "b 3 3"], x: Float[Array, "b 3"]) -> Float[Array, "b 3"]:
    """Coordinates along axes given as columns."""
    return jnp.einsum("bji,bj->bi", axes, x)


def equal_box(mass: Float[Array, " b"], moments: Float[Array, "b 3"]) -> Float[Array, "b 3"]:
    """Edges [m] of boxes with these masses and principal moments of inertia, `m (b² + c²) / 12`."""
    square = 6 * (jnp.sum(moments, axis=1, keepdims=True) - 2 * moments)
    heavy = mass > 0
    square = square / jnp.where(heavy, mass, 1)[:, None]
    there = heavy[:, None] & (square > 0)
    return jnp.where(there, jnp.sqrt(jnp.where(there, square, 1)), 0)
