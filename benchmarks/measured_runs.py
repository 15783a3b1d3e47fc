"""Measured motions of three bodies as runs of MJCF files, for the command line.

    python benchmarks/measured_runs.py square --out square
    diffnsd identify benchmarks/square.xml square/fit.npz --predict square/other.npz --restitution 0.47 \\
        --free geom/floor/friction,contact/restitution --substeps 5 --out square/fitted
    python benchmarks/measured_runs.py square --score square/fitted/predictions.npz

Writes `fit.npz`, motions drawn by `--seed`, and `other.npz`, the rest, cut to `--frames`: of the elbow, the
square and the ellipse, beside `elbow.xml`, `square.xml` and `ellipse.xml`. The second form scores predictions
of `other.npz` with the scorer of the data set. Lost frames are NaN. Measured velocities are differences of
two frames; `identify` estimates start velocities from the frames before contact.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import _elbow
import _ellipse
import _measured
import _square


class Motions(NamedTuple):
    """Measured motions: coordinates `q (n, f, nq)`, NaN where lost; first velocities `v (n, nv)`; seconds
    between frames; which are usable; how many to fit; frames; and what scores predictions of some.
    """

    q: np.ndarray
    v: np.ndarray
    dt: float
    usable: np.ndarray
    fitted: int
    frames: int
    score: Callable[[np.ndarray, np.ndarray, int], dict[str, float]]


def square() -> Motions:
    """The drops over their first 0.2 s."""
    drops = _square.Drops()
    q = np.where(drops.there[..., None], drops.q, np.nan)
    q[:, 0] = drops.q0

    def score(which, motions, frames):
        return drops.score(which, motions, (frames - 2) * _square.DT)

    return Motions(q, drops.v0, _square.DT, drops.scored, 100, _square.FRAMES, score)


def elbow() -> Motions:
    """The tosses over their first 45 frames."""
    tosses = _elbow.Tosses()

    def score(which, motions, frames):
        padded = np.zeros((len(tosses.q), *tosses.q.shape[1:]))
        padded[which, : motions.shape[1]] = motions
        return tosses.score(which, padded, frames)

    return Motions(tosses.q, tosses.v, tosses.dt, tosses.clean, 120, 45, score)


GRAVITY = np.array([0.0, -9.81, 0.0])


def ellipse() -> Motions:
    """Single impacts, half a frame after the first one, and the free motion before and after them.

    The heights of the data are not calibrated: an impact is put where the ellipse touches the wall. The file
    mirrors x (README of the data set).
    """
    impacts = _ellipse.Impacts()
    d, frames = impacts.data, 4
    dt, mirrored = float(d["dt"]), np.array([-1.0, 1.0, 1.0])
    before, after = (v * mirrored for v in (impacts.before, impacts.after))
    angle = d["state_pre"][:, 2].astype(float)
    height = np.hypot(*(d["semi_axes"] * np.stack([np.sin(angle), np.cos(angle)], axis=1)).T)
    at = np.stack([-impacts.place, height, angle], axis=1)
    q = np.zeros((len(at), frames, 3))
    for k in range(frames):
        late = (k - 0.5) * dt
        q[:, k] = at + late * (before if k == 0 else after) + GRAVITY * late**2 / 2

    def score(which, motions, frames):
        # The rate between the frames after the impact, less what gravity added since.
        rate = (motions[:, 2] - motions[:, 1]) / dt - GRAVITY * dt
        return impacts.score(which, rate * mirrored)

    return Motions(q, before - GRAVITY * dt / 2, dt, impacts.which, 800, frames, score)


SETS = {"square": square, "elbow": elbow, "ellipse": ellipse}


def save(path: Path, motions: Motions, which: np.ndarray, frames: int) -> None:
    """Writes some motions as runs: `qpos`, first `qvel`, `times` and `offsets`."""
    q = motions.q[which, :frames]
    n, f = q.shape[:2]
    qvel = np.full((n, f, motions.v.shape[1]), np.nan)
    qvel[:, 0] = motions.v[which]
    np.savez(
        path,
        qpos=q.reshape(n * f, -1),
        qvel=qvel.reshape(n * f, -1),
        times=np.tile(motions.dt * np.arange(f), n),
        offsets=f * np.arange(n + 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=SETS)
    parser.add_argument("--seed", type=int, default=0, help="which motions are fitted")
    parser.add_argument("--count", type=int, help="how many are fitted")
    parser.add_argument("--frames", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--score", type=Path, help="predictions.npz of the others")
    options = parser.parse_args()
    motions = SETS[options.data]()
    count, frames = options.count or motions.fitted, options.frames or motions.frames
    fit, other = _measured.split(motions.usable, count / len(motions.usable), options.seed)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        save(options.out / "fit.npz", motions, fit, frames)
        save(options.out / "other.npz", motions, other, frames)
    if options.score is not None:
        with np.load(options.score) as found:
            q = found["qpos"].reshape(len(other), -1, motions.q.shape[2])
        scores = motions.score(other, q, min(frames, q.shape[1]))
        print(", ".join(f"{name} {x:.4g}" for name, x in scores.items()))


if __name__ == "__main__":
    main()
