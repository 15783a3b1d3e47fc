"""Transforms that keep a rotational inertia physically realisable.

The inertia about the centre of mass is `I = tr(J) 1 - J` with the second moments of mass
`J = integral r r^T dm`. A body with inertia `I` exists exactly if `J` is positive definite, or
equivalently, if `I` is positive definite and its principal moments satisfy the triangle
inequalities `I1 < I2 + I3`, ... A factorisation of `J` with logarithms on its diagonal therefore
reaches every physical inertia, and no other.

Reference: C. Rucker, P. M. Wensing, "Smooth parameterization of rigid-body inertia", IEEE Robotics
and Automation Letters 7 (2022), doi:10.1109/LRA.2022.3155198; P. M. Wensing, S. Kim, J.-J. Slotine
(2018), doi:10.1109/LRA.2017.2729659.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._transforms import AbstractTransform

_THINNEST = 1e-6
"""Flat and thin bodies lie on the boundary of the admissible set. In a start value, second moments
below this fraction of their sum are raised to it."""


def _moments_problem(moments: np.ndarray) -> str | None:
    """Why principal moments `(..., 3)` are invalid, or `None`."""
    largest, total = moments.max(axis=-1), moments.sum(axis=-1)
    if np.any(moments <= 0):
        return f"principal moments of inertia must be positive, got {moments}."
    if np.any(2 * largest > total * (1 + 1e-9)):
        return (
            f"the principal moments {moments} break the triangle inequality: the largest exceeds "
            "the sum of the other two, and no distribution of mass has that; check units and axes."
        )
    return None


def _against_trace(matrix: Float[Array, "*b 3 3"], share: float) -> Float[Array, "*b 3 3"]:
    """`share tr(A) 1 - A`: inertia from second moments (share 1), or the inverse (share 1/2)."""
    unit = jnp.broadcast_to(jnp.eye(3, dtype=matrix.dtype), matrix.shape)
    return share * jnp.trace(matrix, axis1=-2, axis2=-1)[..., None, None] * unit - matrix


class PhysicalMoments(AbstractTransform):
    """Principal moments of inertia of a body: `I_i = sum(J) - J_i` with `J = exp(raw)`.

    Values [kg m^2] and raw numbers have shape `(..., 3)`. A flat body (`I3 = I1 + I2`) is given a
    thickness of about a thousandth of its size.

    Reference: Rucker, Wensing (2022), doi:10.1109/LRA.2022.3155198.
    """

    def forward(self, raw: Float[Array, "*b 3"]) -> Float[Array, "*b 3"]:
        second = jnp.exp(raw)
        return jnp.sum(second, axis=-1, keepdims=True) - second

    def to_raw(self, value: Float[Array, "*b 3"]) -> Float[Array, "*b 3"]:
        return jnp.log(jnp.sum(value, axis=-1, keepdims=True) / 2 - value)

    def inside(self, value: Float[Array, "*b 3"]) -> Float[Array, "*b 3"]:
        total = jnp.sum(value, axis=-1, keepdims=True) / 2
        second = jnp.maximum(total - value, _THINNEST * total)
        return jnp.sum(second, axis=-1, keepdims=True) - second

    def problem(self, value: np.ndarray) -> str | None:
        if value.ndim < 1 or value.shape[-1] != 3:
            return f"principal moments have shape (..., 3), got {value.shape}."
        return _moments_problem(value)

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(0.0), np.asarray(np.inf)


class PhysicalInertia(AbstractTransform):
    """Inertia matrices of a body: `I = tr(J) 1 - J`, `J = U U^T`,
    `U = exp(a) [[exp(d1), s12, s13], [0, exp(d2), s23], [0, 0, 1]]`.

    Values [kg m^2] have shape `(..., 3, 3)`. The raw numbers are `(a, d1, d2, s12, s13, s23)`, shape
    `(..., 6)`, all but `a` without unit. A flat or thin body is given a thickness of about a
    thousandth of its size. For three principal moments use `PhysicalMoments`.

    Reference: Rucker, Wensing (2022), doi:10.1109/LRA.2022.3155198 (their `U` without the rows of
    the centre of mass).
    """

    def forward(self, raw: Float[Array, "*b 6"]) -> Float[Array, "*b 3 3"]:
        a, d1, d2, s12, s13, s23 = (raw[..., i] for i in range(6))
        u1, u2, size = jnp.exp(d1), jnp.exp(d2), jnp.exp(2 * a)
        xx, yy, zz = u1 * u1 + s12 * s12 + s13 * s13, u2 * u2 + s23 * s23, jnp.ones_like(a)
        xy, xz, yz = s12 * u2 + s13 * s23, s13, s23
        rows = [[yy + zz, -xy, -xz], [-xy, xx + zz, -yz], [-xz, -yz, xx + yy]]
        inertia = jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)
        return size[..., None, None] * inertia

    def to_raw(self, value: Float[Array, "*b 3 3"]) -> Float[Array, "*b 6"]:
        second = _against_trace(value, 0.5)
        flipped = second[..., ::-1, ::-1]
        upper = jnp.linalg.cholesky(flipped)[..., ::-1, ::-1]
        corner = upper[..., 2, 2]
        upper = upper / corner[..., None, None]
        d1, d2 = jnp.log(upper[..., 0, 0]), jnp.log(upper[..., 1, 1])
        s12, s13, s23 = upper[..., 0, 1], upper[..., 0, 2], upper[..., 1, 2]
        return jnp.stack([jnp.log(corner), d1, d2, s12, s13, s23], axis=-1)

    def inside(self, value: Float[Array, "*b 3 3"]) -> Float[Array, "*b 3 3"]:
        value = (value + jnp.swapaxes(value, -1, -2)) / 2
        shares, axes = jnp.linalg.eigh(_against_trace(value, 0.5))
        # Only values on the boundary of the set change; all others keep every digit.
        lift = jnp.maximum(_THINNEST * jnp.sum(shares, -1, keepdims=True) - shares, 0.0)
        lifted = (axes * lift[..., None, :]) @ jnp.swapaxes(axes, -1, -2)
        return value + _against_trace(lifted, 1.0)

    def problem(self, value: np.ndarray) -> str | None:
        if value.ndim < 2 or value.shape[-2:] != (3, 3):
            return (
                f"an inertia matrix has shape (..., 3, 3), got {value.shape}; "
                "for three principal moments use PhysicalMoments()."
            )
        scale = np.max(np.abs(value))
        if np.any(np.abs(value - np.swapaxes(value, -1, -2)) > 1e-6 * scale):
            return f"an inertia matrix must be symmetric, got {value}."
        return _moments_problem(np.linalg.eigvalsh(value))
