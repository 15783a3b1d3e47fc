"""The tossed cube identified by gradients, and by finite differences through MuJoCo, from the same tosses.

    python benchmarks/peer_fit.py --seeds 0 1 2 --json peer_fit.json

Both fit five numbers to the same tosses with the same start velocities, weights and robust loss: here
friction, restitution, half width, gravity and inertia; in MuJoCo (C, elliptic cones) friction, stiffness and
damping of the contact, half width and gravity. MuJoCo's fit is its own, `mujoco.minimize.least_squares`, with
differences over `STEPS` of each number. A rollout is one simulated toss, with or without derivative. Whole
tosses that no fit saw are predicted from the measured first frame. The data lie in the folder `DIFFNSD_DATA`.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import _harness
import _measured
from _peer_fits import STEPS, fit_by_differences, motion
from _peers import cube_model
from diffnsd import identification
from diffnsd.apps.fit import Identified, identify
from diffnsd.apps.fit._fit import HUBER, _Rounds
from diffnsd.apps.toss import load_tosses
from diffnsd.apps.toss._cube import (
    CubeMotion,
    CubeParameters,
    check_free,
    cube_job,
    lanes,
    pose_error,
    smooth_start,
)
from diffnsd.apps.toss._outputs import Predicted

FREE = ("mu", "e", "half_width", "gravity", "inertia_over_mass")
KEYS = ("pos_err_pct", "rot_err_deg", "face_agree_pct")
SUBSTEPS = 4
START = {"mu": 0.25, "stiffness": 2770.0, "damping": 105.0, "half_width": 0.0524, "gravity": 9.81}
"""Where MuJoCo's fit starts: its default contact, otherwise as ours. Stiffness [1/s^2], damping [1/s]."""
BOUNDS = np.array([0.02, 0.02, 0.02, 0.8, 0.8]), np.array([4.0, 50.0, 50.0, 1.2, 1.2])
"""Of each number, in its start value."""


class MujocoTosses:
    """The same tosses in MuJoCo."""

    def __init__(self, batch, dt: float):
        import mujoco

        self.batch, self.dt = jax.tree.map(np.asarray, batch), dt
        self.model = cube_model()
        self.model.opt.timestep = dt / SUBSTEPS
        self.data = mujoco.MjData(self.model)
        self.lengths = np.sum(self.batch.mask > 0, axis=1).astype(int)

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions `(n, f, 3)` and quaternions `(n, f, 4)` of all tosses, for relative numbers `x`."""
        m, batch = self.model, self.batch
        mu, stiffness, damping, half_width, gravity = x * np.array(list(START.values()))
        m.opt.gravity[2] = -gravity
        m.geom_friction[:, 0], m.geom_solref[:] = mu, (-stiffness, -damping)
        m.geom_size[1], m.geom_rbound[1] = half_width, half_width * 3**0.5
        position, quaternion = batch.position.copy(), batch.quaternion.copy()
        for k, length in enumerate(self.lengths):
            v = np.concatenate([batch.velocity[k], batch.spin[k]])
            # Measured velocities are those half a frame earlier.
            v[2] -= gravity * self.dt / 2 * (1 - 1 / SUBSTEPS)
            q = np.concatenate([batch.position[k, 0], batch.quaternion[k, 0]])
            q = motion(m, self.data, q, v, length, SUBSTEPS)
            position[k, 1:length], quaternion[k, 1:length] = q[1:, :3], q[1:, 3:]
        return position, quaternion


def weighed_errors(tosses: MujocoTosses, weights, width: float):
    """`residual(x)`: robust, weighted errors of the tosses."""
    huber = identification.Huber(HUBER)
    batch = jax.tree.map(jnp.asarray, tosses.batch)

    @jax.jit
    def weighed(position, quaternion):
        errors = jax.vmap(lambda lane, p, q: pose_error(lane, p, q, width))(
            batch, position, quaternion
        )
        return huber.weigh(errors * weights[..., None])

    return lambda x: weighed(*tosses(x))


def row(
    name: str,
    rollouts: int,
    loss: float | None,
    numbers: dict,
    held_out,
    positions,
    quaternions,
    scorer,
):
    """Mean errors over whole tosses that were not fitted, by the scorer of the data."""
    found = []
    for j, (p, q) in enumerate(zip(positions, quaternions, strict=True)):
        true = held_out.toss(j)
        found.append(scorer.toss_metrics(p, q, true.position, true.quaternion_wxyz))
    means = _measured.means(found, KEYS)
    return {"fit": name, "rollouts": rollouts, "loss": loss, "numbers": numbers, **means}


def rows(seed: int, count: int, folds: tuple[int, ...]) -> list[dict]:
    """Our fit, and MuJoCo's with the same budget of rollouts and multiples of it."""
    _, scorer = _measured.load("tossed_cube")
    everything = load_tosses(_measured.folder("tossed_cube") / "tossed_cube_open.npz")
    chosen = np.sort(np.random.default_rng(seed).choice(len(everything), count, replace=False))
    held_out = everything.select(np.setdiff1d(np.arange(len(everything)), chosen))
    batch = lanes(smooth_start(everything.select(chosen)))
    start = CubeParameters.nominal(everything, e=0.1)
    motion = CubeMotion(2 * float(start.half_width), float(everything.dt), SUBSTEPS)
    job = cube_job(start, batch, check_free(list(FREE)), motion)
    begin = time.process_time()
    ours = identify(job)
    seconds = time.process_time() - begin
    seen = Predicted(held_out, ours)
    numbers = {name: ours.value(name) for name in FREE}
    given = ours.rollouts, None, numbers, held_out, seen.positions, seen.quaternions, scorer
    found = [
        row(f"diffnsd, {ours.status}", *given)
        | {"processor_seconds": seconds, "standard_errors": ours.standard_errors}
    ]
    weights, _ = _Rounds(Identified(job), lambda *_: None).weights("of the peer")
    budgets = [fold * ours.rollouts for fold in folds]
    for step in STEPS:
        begin = time.process_time()
        tosses = MujocoTosses(batch, float(everything.dt))
        residual = weighed_errors(tosses, weights, motion.width)
        fitted = fit_by_differences(residual, len(tosses.lengths), BOUNDS, step, budgets)
        seconds, other = time.process_time() - begin, MujocoTosses(lanes(held_out), tosses.dt)
        for spent, loss, x in fitted:
            positions, quaternions = other(x)
            motions = [
                [y[j, :n] for j, n in enumerate(other.lengths)] for y in (positions, quaternions)
            ]
            values = dict(zip(START, (x * list(START.values())).tolist(), strict=True))
            name = f"MuJoCo, steps of {step:g}"
            given = name, spent, loss, values, held_out, motions[0], motions[1], scorer
            found.append(row(*given) | {"processor_seconds": seconds})
    return [{"seed": seed} | one for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tosses", type=int, default=30)
    parser.add_argument("--folds", type=int, nargs="+", default=[1, 3], help="of our rollouts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = []
    for seed in options.seeds:
        for one in rows(seed, options.tosses, tuple(sorted(options.folds))):
            found.append(one)
            print(", ".join(f"{k} {_short(v)}" for k, v in one.items()), flush=True)
    if options.json is not None:
        facts = {"header": _harness.header(), "rows": found}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


def _short(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
