"""A ball that falls on the ground and bounces, with its motion in closed form.

    m v' = −m g,   q' = v,   0 <= q,   v⁺ = −e v⁻ at every impact

From height `q0` and speed `v0` the first impact comes at `T1 = (v0 + w)/g` with the speed
`w = sqrt(v0² + 2 g q0)`; flight `k` between impacts starts with the speed `e^k w` and lasts
`2 e^k w/g`. For `e < 1` infinitely many impacts occur in finite time; then the ball rests.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arguments import AnyShape, Number, checked_arguments
from .._types import State
from ..laws import AbstractLaw, NewtonImpact
from ..model import Interaction, Model
from ..relations import GapRelation
from ..systems import LagrangianSystem


@checked_arguments
def bouncing_ball(
    e=0.9, g: Number = 9.81, mass: Number = 1.0, *, law: AbstractLaw | None = None
) -> Model:
    """A ball above the ground, in one dimension: `q (1,)` is its height [m], `v (1,)` its speed.

    **Arguments:** `e`: restitution in [0, 1]; `g` [m/s²], downwards; `mass` [kg]; `law`: in
    place of `NewtonImpact(e)`, for example `GapStabilized(NewtonImpact(e))`.
    """
    mass, g, e = (jnp.asarray(x, dtype=float) for x in (mass, g, e))
    system = LagrangianSystem(mass[None, None], f_ext=-(mass * g)[None])
    return Model(system, Interaction(GapRelation(_height), NewtonImpact(e) if law is None else law))


def _height(t, q):
    del t
    return q


@checked_arguments
def ball_state(
    t: AnyShape,
    height: AnyShape = 1.0,
    speed: AnyShape = 0.0,
    e: AnyShape = 0.9,
    g: AnyShape = 9.81,
) -> State:
    """Closed form: the state at a time `t >= 0`, through any number of impacts.

    Differentiable in all its arguments. The derivative includes that of the impact times; at an
    impact it is that of the flight that follows. `t = 0` is the initial state.

    **Arguments:** `t` [s], shape `()`; `height` [m] at `t = 0`, nonnegative, and positive if the
    speed is 0; `speed` [m/s] at `t = 0`, upwards; `e`: restitution in [0, 1]; `g` [m/s²].

    **Returns:** `State` with `q (1,)` [m] and `v (1,)` [m/s].
    """
    t, height, speed, e, g = (jnp.asarray(x, dtype=float) for x in (t, height, speed, e, g))
    first, impact = _first_impact(height, speed, g)
    # After x = (t − T1) g/(2 w) the ball is in flight n + 1, the largest n with s(n) <= x.
    x = (t - first) * g / (2 * impact)
    flights, resting = _flights(jax.lax.stop_gradient(x), jax.lax.stop_gradient(e))
    since = t - first - 2 * impact / g * _geometric_sum(e, flights)
    rebound = impact * e * _power(e, flights)
    landed = jnp.where(resting, 0.0, rebound * since - g * since**2 / 2)
    bouncing = jnp.where(resting, 0.0, rebound - g * since)
    q = jnp.where(t < first, height + speed * t - g * t**2 / 2, landed)
    v = jnp.where(t < first, speed - g * t, bouncing)
    return State(q[None], v[None])


@checked_arguments
def ball_impact_times(
    count: int,
    height: Number = 1.0,
    speed: Number = 0.0,
    e: Number = 0.9,
    g: Number = 9.81,
) -> Float[Array, " count"]:
    """Closed form: times [s] of the first `count >= 1` impacts; arguments as in `ball_state`."""
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}.")
    height, speed, e, g = (jnp.asarray(x, dtype=float) for x in (height, speed, e, g))
    first, impact = _first_impact(height, speed, g)
    earlier = [_geometric_sum(e, jnp.asarray(float(k))) for k in range(count)]
    return first + 2 * impact / g * jnp.stack(earlier)


def _first_impact(height, speed, g):
    impact = jnp.sqrt(speed**2 + 2 * g * height)
    return (speed + impact) / g, impact


def _flights(x, e):
    """Flights completed after the first impact: the largest `n` with `e + ... + e^n <= x`.

    Also returns whether all impacts are over by then.
    """
    elastic = e == 1
    safe = jnp.where(elastic | (e == 0), 0.5, e)
    left = 1 - x * (1 - safe) / safe
    count = jnp.floor(jnp.log(jnp.where(left > 0, left, 1.0)) / jnp.log(safe))
    count = jnp.where(elastic, jnp.floor(x), jnp.where(left > 0, count, 0.0))
    resting = jnp.where(elastic, False, (e == 0) | (left <= 0)) & (x >= 0)
    return jnp.maximum(count, 0.0), resting


def _power(e, n):
    """`e^n` for integer `n >= 0`, also with the correct derivative at `e = 0`."""
    positive = e > 0
    power = jnp.where(positive, e, 1.0) ** n
    return jnp.where(positive, power, jnp.where(n == 0, 1.0, jnp.where(n == 1, e, 0.0)))


def _geometric_sum(e, n):
    """`e + e² + ... + e^n`, accurate near `e = 1`."""
    d = 1 - e
    near = d * (n + 1) < 1e-4
    full = e * (1 - _power(e, n)) / jnp.where(near, 1.0, d)
    series = n * (1 - d * (n + 1) / 2 * (1 - d * (n - 1) / 3))
    return jnp.where(near, series, full)
