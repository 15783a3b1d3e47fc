"""Beams in space, whose nodes turn."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jaxtyping import Array, Float, Int

from ..._numerics import as_float, cross, dot, safe_norm
from ..._types import Scalar
from ...groups import SO3, quaternion_log, quaternion_product, rotate
from ._base import NO_LENGTH, AbstractElements, connectivity, negative


class Beams(AbstractElements):
    """Slender beams in space, corotational: small strains, large displacements and rotations.

        E = EA/(2 L) (l − L)² + GJ/(2 L) (β_x − α_x)² + Σ_(i = y, z) 2 E I_i/L (α_i² + α_i β_i + β_i²)

    `α`, `β` are the rotation vectors of the two nodes relative to the beam, in its axes at rest: `x` along
    it, `y` and `z` the principal axes of its section. The beam's own frame is the mean of its two ends, swung
    onto the chord on the shortest way. Nodes have the coordinates `(position, rotation vector)`, the latter
    zero at rest. Their velocities are linear ones in the world frame and angular ones in the frame that
    turns with the node; moments are in that frame too.

    Forces at the nodes of an Euler–Bernoulli beam with free torsion are exact for small motions. Mass is
    interpolated linearly, rotary inertia is at the nodes, so that frequencies are of second order.

    **Arguments:** `nodes`: `(e, 2)`; `young`: E, `shear`: G [Pa]; `area`: A [m²]; `moment_y`, `moment_z`:
    second moments of area about the two axes of the section [m⁴], the second by default as the first;
    `torsion`: torsion constant J [m⁴], by default `moment_y + moment_z`, as of a circle; `density`: ρ
    [kg/m³]; each `()` or `(e,)`. `orientation`: a direction near the axis `y` of the section, which is
    perpendicular to the beam, `(3,)` or `(e, 3)`; by default the axis of the world that is most nearly across
    the beam, the first of several.

    Reference: M. A. Crisfield, A consistent co-rotational formulation for non-linear, three-dimensional
    beam elements (1990), doi:10.1016/0045-7825(90)90106-V, for the frame by the mean rotation.
    """

    dimensions: ClassVar[tuple[int, ...]] = (3,)
    nodes: Int[Array, "e 2"]
    young: Float[Array, "..."]
    shear: Float[Array, "..."]
    area: Float[Array, "..."]
    moment_y: Float[Array, "..."]
    moment_z: Float[Array, "..."]
    torsion: Float[Array, "..."]
    density: Float[Array, "..."]
    orientation: Float[Array, "e 3"] | None

    def __init__(
        self,
        nodes,
        young,
        shear,
        area,
        moment_y,
        moment_z=None,
        torsion=None,
        density=0.0,
        orientation=None,
    ):
        self.nodes = connectivity("Beams", nodes, (2,))
        self.young, self.shear, self.area = as_float(young), as_float(shear), as_float(area)
        self.moment_y = as_float(moment_y)
        self.moment_z = self.moment_y if moment_z is None else as_float(moment_z)
        self.torsion = self.moment_y + self.moment_z if torsion is None else as_float(torsion)
        self.density = as_float(density)
        shape = (self.nodes.shape[0], 3)
        near = None if orientation is None else as_float(orientation)
        if near is not None and near.shape not in ((3,), shape):
            raise ValueError(
                f"orientation of Beams must have shape (3,) or {shape}, got {near.shape}."
            )
        self.orientation = None if near is None else jnp.broadcast_to(near, shape)

    def width(self, dimension: int) -> int:
        return dimension + 3

    def gradient(self, X: Array) -> Array:
        return jnp.eye(2, dtype=X.dtype)

    def measure(self, X: Array) -> Scalar:
        return safe_norm(X[:3, 1] - X[:3, 0])

    def section(self, X: Array) -> Float[Array, "3 3"]:
        """The axes `x`, `y`, `z` of one element at rest, as columns."""
        chord = X[:3, 1] - X[:3, 0]
        along = chord / safe_norm(chord)
        near = self.orientation
        if near is None:
            near = jnp.asarray(np.eye(3), X.dtype)[jnp.argmin(jnp.abs(along))]
        side = near - dot(near, along) * along
        side = side / safe_norm(side)
        return jnp.stack([along, side, cross(along, side)], axis=1)

    def placed(self, F: Array) -> Float[Array, "7 2"]:
        return jnp.concatenate([F[:3], SO3().exp(F[3:])])

    def moved(self, F: Float[Array, "7 2"], move: Array) -> Float[Array, "7 2"]:
        # Cayley's map is the exponential to second order, and short.
        turn = jax.vmap(SO3().cay, in_axes=1, out_axes=1)(move[3:])
        return jnp.concatenate([F[:3] + move[:3], quaternion_product(F[3:], turn)])

    def density_of_energy(self, X: Array, F: Float[Array, "7 2"]) -> Scalar:
        length, section, turns = self.measure(X), self.section(X), F[3:]
        one, other = jnp.unstack(turns, axis=1)
        mean = one + jnp.where(dot(one, other) < 0, -other, other)
        mean = mean / safe_norm(mean)
        chord, along = F[:3, 1] - F[:3, 0], rotate(mean, section[:, 0])
        stretched = safe_norm(chord)
        way = chord / stretched
        swing = jnp.concatenate([1 + dot(along, way)[None], cross(along, way)])
        frame = quaternion_product(swing / safe_norm(swing), mean)
        local = quaternion_log(quaternion_product(SO3().inverse(frame)[:, None], turns))
        (ax, bx), (ay, by), (az, bz) = (
            jnp.unstack(dot(axis[:, None], local)) for axis in jnp.unstack(section, axis=1)
        )
        axial = self.young * self.area / 2 * (stretched / length - 1) ** 2
        twist = self.shear * self.torsion / 2 * (bx - ax) ** 2
        bent = self.moment_y * (ay**2 + ay * by + by**2) + self.moment_z * (az**2 + az * bz + bz**2)
        return axial + (twist + 2 * self.young * bent) / length**2

    def carried(self, increment: Array, move: Array) -> Array:
        turned = jax.vmap(SO3().dexp, in_axes=1, out_axes=1)(-increment[3:], move[3:])
        return jnp.concatenate([move[:3], turned])

    def axes(self, X: Array) -> Array:
        section = self.section(X)
        return jax.scipy.linalg.block_diag(section, section)

    def inertia(self, X: Array) -> Array:
        moments = jnp.stack([self.moment_y + self.moment_z, self.moment_y, self.moment_z])
        mass = self.density * self.measure(X)
        linear = jnp.asarray([[1 / 3, 1 / 6], [1 / 6, 1 / 3]], X.dtype) * (mass * self.area)
        half = jnp.asarray(np.eye(2)[None] / 2, X.dtype)
        turning = mass * moments[:, None, None] * half
        return jnp.concatenate([jnp.broadcast_to(linear, (3, 2, 2)), turning])

    def flaws(self, X):
        chord = X[:, 1, :3] - X[:, 0, :3]
        length = np.linalg.norm(chord, axis=1)
        if self.orientation is None or np.any(length == 0):
            return NO_LENGTH, length == 0
        near = np.asarray(self.orientation)
        across = np.linalg.norm(np.cross(chord, near), axis=1)
        parallel = across <= 1e-6 * length * np.linalg.norm(near, axis=1)
        return "are parallel to their orientation; give a direction across the beam", parallel

    def check(self) -> str | None:
        return negative(
            "Beams",
            young=self.young,
            shear=self.shear,
            area=self.area,
            moment_y=self.moment_y,
            moment_z=self.moment_z,
            torsion=self.torsion,
            density=self.density,
        )
