"""Motion around a fixed centre of attraction, with its closed form.

q'' = −mu q/|q|³,     E − e sin E = sqrt(mu/a³) t     (Kepler's equation)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments import AnyShape, Number, checked_arguments
from ..._numerics import safe_norm
from ..._types import State
from ...model import Model
from ...systems import LagrangianSystem

NEWTON_STEPS = 30


class _Attraction(eqx.Module):
    mu: Float[Array, ""]

    def __call__(self, q):
        return -self.mu / safe_norm(q)


@checked_arguments
def kepler(mu: Number = 1.0) -> Model:
    """A body in the plane of its orbit, of mass 1: `q (2,)` its position, `v (2,)` its velocity.

    **Arguments:** `mu`: gravitational parameter, positive, in the units of `q³/t²`.
    """
    return Model(
        LagrangianSystem(jnp.eye(2), potential_energy=_Attraction(jnp.asarray(mu, dtype=float)))
    )


@checked_arguments
def kepler_state(
    t: AnyShape,
    e: AnyShape = 0.25,
    a: AnyShape = 1.0,
    mu: AnyShape = 1.0,
) -> State:
    """Closed form: the state at a time `t` after the passage of the pericentre, on the x axis.

    Differentiable in all arguments; for Kepler's equation by the implicit function theorem.

    **Arguments:** `t`, shape `()`; `e`: eccentricity in [0, 1); `a`: semi-major axis; `mu`.

    **Returns:** `State` with `q (2,)` and `v (2,)`.
    """
    t, e, a, mu = (jnp.asarray(x, dtype=float) for x in (t, e, a, mu))
    rate = jnp.sqrt(mu / a**3)

    def newton(anomaly, e, mean):
        defect = anomaly - e * jnp.sin(anomaly) - mean
        return anomaly - defect / (1 - e * jnp.cos(anomaly))

    fixed_e, fixed_mean = jax.lax.stop_gradient((e, rate * t))
    anomaly = fixed_mean + 0.85 * fixed_e * jnp.sign(jnp.sin(fixed_mean))
    for _ in range(NEWTON_STEPS):
        anomaly = newton(anomaly, fixed_e, fixed_mean)
    anomaly = newton(anomaly, e, rate * t)
    root = jnp.sqrt(1 - e**2)
    cosine, sine = jnp.cos(anomaly), jnp.sin(anomaly)
    speed = rate * a / (1 - e * cosine)
    return State(
        a * jnp.stack([cosine - e, root * sine]), speed * jnp.stack([-sine, root * cosine])
    )
