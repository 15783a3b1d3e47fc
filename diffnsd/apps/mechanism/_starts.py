"""Start velocities of runs, estimated from the frames before their first contact.

A run is simulated from its first frame, and an impact multiplies the error of its start: the velocity of one
frame is too noisy for that. Before the first contact the motion is smooth, so that the errors `e(v)` of its
frames are nearly linear in the velocity. The most probable one minimises

    2 rho(e(v) / s) + |(v − v0) / d|²

with Huber's loss `rho`, the measured `v0`, its deviation `d`, and the scatter `s` of the frames, found from
their residuals.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ...identification import Huber
from ...io import Elements
from ...rollout import rollout
from ._data import Runs
from ._job import MechanismMotion, as_batch, deviations_of, is_contact, metric_of

LONGEST, LEAST = 24, 4
"""Most and least number of frames that a start is estimated from: errors of the model add up in many."""
CLEAR = 0.1
"""How far contacts must be open [sizes of the mechanism]; limits of joints by the same number, in rad."""
SCATTER = 3e-3
"""Of the frames at first [sizes, rad]."""
OUTLIERS = Huber(3.0)
"""A lost frame counts little."""
STEPS = 5
CHUNK, FRAMES = 64, 1024
"""How many runs, and frames, are simulated or placed at a time."""


def with_estimated_starts(elements: Elements, runs: Runs, substeps: int) -> tuple[Runs, np.ndarray]:
    """The runs with estimated start velocities, and which of them have one, `(n,)`.

    Runs with fewer than `LEAST` frames before they come within `CLEAR` of something keep the measured
    velocity, and so do runs that never do: their starts are not amplified.
    """
    metric, flying = metric_of(elements), flying_frames(elements, runs)
    batch, known = as_batch(metric, elements, runs)
    frames = np.sum(flying & known.any(axis=2), axis=1)
    estimated = (frames >= LEAST) & (flying.sum(axis=1) < runs.lengths)
    if not estimated.any():
        return runs, estimated
    last = min(LONGEST, known.shape[1])
    batch = dataclasses.replace(
        batch,
        position=batch.position[:, :last],
        orientation=batch.orientation[:, :last],
        controls=None if batch.controls is None else batch.controls[:, :last],
    )
    mask = (known & flying[:, :, None])[:, :last]
    motion = MechanismMotion(metric, runs.dt, substeps, touches=False)
    most_probable = eqx.Partial(_most_probable, elements, motion, deviations_of(metric))
    start = batch, jnp.asarray(runs.velocities), jnp.asarray(mask, float)
    found = np.asarray(rollout(most_probable, start, chunk=CHUNK))
    estimated &= np.all(np.isfinite(found), axis=1) & np.any(found != runs.velocities, axis=1)
    velocities = np.where(estimated[:, None], found, runs.velocities)
    return dataclasses.replace(runs, velocities=velocities), estimated


def flying_frames(elements: Elements, runs: Runs) -> np.ndarray:
    """Which frames are measured before the first contact of their run, `(n, f)`."""
    clear = CLEAR * float(metric_of(elements).size)
    q = runs.padded(runs.qpos)
    lost: np.ndarray = np.any(np.isnan(q), axis=2)
    q = np.where(lost[:, :, None], q[:, :1], q)  # the first frame is complete
    frames = jnp.asarray(q.reshape(-1, q.shape[2]))
    gaps = np.asarray(rollout(eqx.Partial(_least_gap, elements), frames, chunk=FRAMES))
    touching = (gaps.reshape(lost.shape) < clear) & ~lost
    return runs.mask() & ~np.logical_or.accumulate(touching, axis=1)


def _least_gap(elements: Elements, q):
    """The smallest gap of contacts and limits, infinite without any."""
    model, whole = elements.model(), elements.state(q).q
    gaps = zip(model.interactions, model.gaps(jnp.zeros(()), whole), strict=True)
    known = [gap for i, gap in gaps if is_contact(i) and gap is not None]
    return jnp.min(jnp.concatenate([jnp.full(1, jnp.inf), *known]))


def _most_probable(elements: Elements, motion: MechanismMotion, deviations, start):
    """The start velocity of a run: the best one on the way of some Gauss-Newton steps."""
    run, measured, mask = start
    weight = jnp.tile(mask, (1, 2))[:, :, None]
    freedom = jnp.maximum(3 * jnp.sum(weight) - measured.size, 1)

    def errors(x, scatter):
        found = motion(elements, run, measured + x * deviations)
        flat = (found.errors * weight).ravel()
        weighed = OUTLIERS.weigh(flat / scatter)
        return weighed, (weighed, flat, found.failed)

    def step(known, _):
        x, scatter = known
        slope, (weighed, flat, failed) = jax.jacfwd(errors, has_aux=True)(x, scatter)
        # As reweighted least squares, whose steps do not overshoot.
        bent = jnp.sqrt(1 + OUTLIERS.missing_curvature(weighed))
        slope, weighed = bent[:, None] * slope, weighed / bent
        change = -jnp.linalg.solve(slope.T @ slope + jnp.eye(x.size), slope.T @ weighed + x)
        left = weighed + slope @ change
        narrower = jnp.clip(scatter * jnp.sqrt(left @ left / freedom), 1e-6, SCATTER)
        return (x + change, narrower), (x, flat, failed)

    first = jnp.zeros_like(measured), jnp.full((), SCATTER)
    (_, scatter), (visited, flat, failed) = jax.lax.scan(step, first, length=STEPS)
    cost = jnp.sum(OUTLIERS.weigh(flat / scatter) ** 2, axis=1) + jnp.sum(visited**2, axis=1)
    cost = jnp.where(failed | ~jnp.isfinite(cost), jnp.inf, cost)
    return measured + visited[jnp.argmin(cost)] * deviations
