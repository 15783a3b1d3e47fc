"""A satellite whose attitude is coupled to its orbit by the gradient of gravity.

    V = −mu (m/r + tr I/(2 r³) − 3 b·I b/(2 r⁵)),     b = R^T x,  r = |x|

This is the potential of a body in a central field to second order in its size. The body turns towards
the centre (torque `3 mu b × I b/r⁵` in the body frame), and its orbit is not quite an ellipse.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.scipy.linalg
from jaxtyping import Array, Float

from ..._arguments import Number, Three, checked_arguments
from ..._numerics import dot, safe_norm
from ...groups import PoseGroup, rotate
from ...model import Model
from ...systems import LagrangianSystem


class _CentralField(eqx.Module):
    mass: Float[Array, ""]
    moments: Float[Array, "3"]
    mu: Float[Array, ""]

    def __call__(self, q):
        x, turned = q.position[0], q.orientation[0]
        b = rotate(jnp.concatenate([turned[:1], -turned[1:]]), x)
        r = safe_norm(x)
        shape = jnp.sum(self.moments) / (2 * r**3) - 3 * dot(b, self.moments * b) / (2 * r**5)
        return -self.mu * (self.mass / r + shape)


@checked_arguments
def gravity_gradient(
    mass: Number = 1.0, moments: Three = (0.01, 0.02, 0.0275), mu: Number = 1.0
) -> Model:
    """A rigid body around a centre at the origin, with states on `PoseGroup(1)`.

    **Arguments:** `mass`; `moments`: principal moments of inertia, shape `(3,)`; `mu`:
    gravitational parameter. Any consistent units.

    Reference: P. Hughes, Spacecraft attitude dynamics (1986), chapter 8.
    """
    mass, moments, mu = (jnp.asarray(x, dtype=float) for x in (mass, moments, mu))
    inertia = jax.scipy.linalg.block_diag(mass * jnp.eye(3), jnp.diag(moments))
    return Model(
        LagrangianSystem(
            inertia, potential_energy=_CentralField(mass, moments, mu), space=PoseGroup(1)
        )
    )
