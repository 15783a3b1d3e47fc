"""Synthetic tosses for the demo: simulated, with sensor noise, from a seed."""

import jax
import jax.numpy as jnp
import numpy as np

from ...rollout import rollout
from ._cube import CubeParameters, Lane, toss
from ._data import Tosses

TRUTH = {"mu": 0.22, "e": 0.15}
DT, FRAMES, SUBSTEPS = 1 / 148, 90, 4
HALF_WIDTH, MASS, INERTIA, GRAVITY = 0.0524, 0.37, 8.1e-4, 9.81


def make_tosses(count: int = 24, seed: int = 0) -> Tosses:
    """Tosses of a cube with known friction and restitution, as a camera would measure them.

    Noise (standard deviations): 0.1 mm and 0.05 degrees per frame; 5 mm/s and 0.04 rad/s at the start.
    """
    rng = np.random.default_rng(seed)
    position = np.column_stack([rng.normal(0, 0.1, (count, 2)), rng.uniform(0.16, 0.3, count)])
    quaternion = rng.normal(size=(count, 4))
    quaternion /= np.linalg.norm(quaternion, axis=1, keepdims=True)
    heading = rng.uniform(0, 2 * np.pi, count)
    speed = rng.uniform(0.9, 1.3, count)
    velocity = np.column_stack(
        [speed * np.cos(heading), speed * np.sin(heading), rng.normal(-0.1, 0.2, count)]
    )
    spin = rng.uniform(-4, 4, (count, 3))
    cube = CubeParameters.nominal(_file(count, position, quaternion, velocity, spin), **TRUTH)
    cubes = jax.tree.map(lambda x: jnp.broadcast_to(x, (count,)), cube)
    frames = Lane(
        jnp.repeat(jnp.asarray(position)[:, None], FRAMES, 1),
        jnp.repeat(jnp.asarray(quaternion)[:, None], FRAMES, 1),
        jnp.ones((count, FRAMES)),
        jnp.asarray(velocity),
        jnp.asarray(spin),
    )
    out = rollout(lambda pair: toss(pair[0], pair[1], DT, SUBSTEPS), (cubes, frames))
    poses, attitudes = np.array(out[0]), np.array(out[1])
    poses += rng.normal(0, 1e-4, poses.shape)
    attitudes += rng.normal(0, np.radians(0.05) / 2, attitudes.shape)
    attitudes /= np.linalg.norm(attitudes, axis=-1, keepdims=True)
    seen_velocity = velocity + rng.normal(0, 0.005, velocity.shape)
    seen_spin = spin + rng.normal(0, 0.04, spin.shape)
    return _file(count, poses, attitudes, seen_velocity, seen_spin)


def _file(count, position, quaternion, velocity, spin) -> Tosses:
    """Packs tosses of equal length; repeats single start states over two frames."""

    def frames(x):
        x = x if x.ndim == 3 else np.repeat(x[:, None], 2, axis=1)
        return x.reshape(-1, x.shape[-1])

    length = position.shape[1] if position.ndim == 3 else 2
    repeat = [np.repeat(x[:, None], length, axis=1) for x in (velocity, spin)]
    return Tosses(
        np.arange(count),
        np.arange(count + 1) * length,
        frames(position),
        frames(quaternion),
        frames(repeat[0]),
        frames(repeat[1]),
        DT,
        HALF_WIDTH,
        MASS,
        INERTIA,
        GRAVITY,
    )
