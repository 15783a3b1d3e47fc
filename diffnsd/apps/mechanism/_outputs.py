"""What an identification of a file writes: predictions, report, replay and the file with its numbers."""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from ...io import Elements
from .._files import save_archive
from ..fit import Bands, Identified, banded_runs, bands, write_fit_report
from ._data import Runs
from ._job import TOLERANCE, MechanismMotion, as_batch
from ._solids import solids

SHOWN = 6
"""Number of runs in the report and in the replay."""


class Predicted:
    """Simulations of runs from their first frame, and their errors.

    `q`: coordinates `(n, f, nq)`; `position`, `rotation`: mean over measured frames and bodies, per run
    [sizes], [rad]; `failed`: whether a step did; `overflowed`: whether for too many contacts; `residual`:
    the largest.
    """

    def __init__(self, record: Identified, motion: MechanismMotion, elements: Elements, runs: Runs):
        self.runs, self.metric = runs, motion.metric
        self.motions = dataclasses.replace(record.motions, motion=motion)
        # Runs like those of the fit go through its program.
        frames = record.job.mask.shape[1]
        self.batch, self.known = as_batch(motion.metric, elements, runs, frames)
        raw = np.tile(record.raw, (len(runs), 1))
        found, _ = self.motions(self.batch, raw, runs.velocities)
        errors, self.failed, self.shown = found.errors, found.failed, found.shown
        self.q, self.residual = self.shown.q, self.shown.residual
        self.overflowed = self.shown.overflowed
        parts = np.linalg.norm(errors, axis=-1).reshape(*errors.shape[:2], 2, -1)
        count = np.maximum(self.known.sum(axis=(1, 2)), 1)
        means = np.where(self.known[:, :, None], parts, 0).sum(axis=(1, 3)) / count[:, None]
        self.position, self.rotation = means.T
        seen = np.where(self.known[:, :, None], parts, np.nan)
        count = np.maximum(self.known.sum(axis=2), 1)[:, :, None]
        # The mean over the bodies of a frame, NaN where none was measured.
        frames = np.nansum(seen, axis=3) / count
        measured = np.any(self.known, axis=2, keepdims=True)
        self.by_frame = np.where(measured, frames, np.nan)

    def bands(self, record: Identified, runs: np.ndarray) -> Bands | None:
        """The bands of the centres of mass of some runs."""

        def positions(which, raw, starts):
            batch = jax.tree.map(lambda x: np.asarray(x)[which], self.batch)
            found, _ = self.motions(batch, raw, starts)
            return found.shown.position

        return bands(
            record.spread,
            positions,
            runs,
            np.asarray(self.runs.velocities)[runs],
            np.asarray(record.job.deviations),
            TOLERANCE * float(self.metric.size),
            np.asarray(self.batch.position)[runs],
            self.known[runs],
        )

    @property
    def still(self) -> np.ndarray:
        """Mean distances of the bodies from where they began, in sizes `(n,)`."""
        places = np.asarray(self.batch.position) / float(self.metric.size)
        apart = np.where(self.known, np.linalg.norm(places - places[:, :1], axis=-1), 0.0)
        return apart.sum(axis=(1, 2)) / np.maximum(self.known.sum(axis=(1, 2)), 1)

    def save(self, path: Path) -> None:
        """Writes `predictions.npz`: `qpos`, `times` from the first frame of each run, and `offsets`."""
        runs = self.runs
        q = [self.q[j, :n] for j, n in enumerate(runs.lengths)]
        times = [runs.dt * np.arange(n) for n in runs.lengths]
        arrays = {
            "qpos": np.concatenate(q),
            "times": np.concatenate(times),
            "offsets": runs.offsets,
        }
        save_archive(path, arrays)

    def figures(self) -> dict:
        """The errors of all runs, for `result.json`."""
        return {
            "runs": len(self.runs),
            "position_percent": float(100 * self.position.mean()),
            "rotation_deg": float(np.degrees(self.rotation.mean())),
            "largest_residual": float(self.residual.max()),
            "failed": int(self.failed.sum()),
        }


def write_pages(
    out: Path, record: Identified, predicted: Predicted, title: str, origin: dict
) -> Bands | None:
    """Writes `report.html` and `replay.html` of the runs from the worst to the best predicted.

    **Arguments:** `origin`: further lines of the report. **Returns:** the bands of the predictions.
    """
    from ..pages import Motion, PoseErrors, TossComparison, write_motion

    elements, runs, metric = record.model, predicted.runs, predicted.metric
    order = np.argsort(-predicted.position)
    shown = order[:: max(1, len(runs) // SHOWN)][:SHOWN]
    moving = np.flatnonzero(predicted.known.any(axis=(0, 1)))
    size = float(metric.size)
    compared, motions = [], []
    band = predicted.bands(record, banded_runs(order, shown))
    for j in shown.tolist():
        n = int(runs.lengths[j])
        position, turn = predicted.shown.position[j], predicted.shown.orientation[j]
        seen = predicted.known[j]
        sides = None if band is None else band.of(j, n)
        measured, attitude = (
            np.where(seen[..., None], np.asarray(x[j]), np.nan)
            for x in (predicted.batch.position, predicted.batch.orientation)
        )
        compared += [
            TossComparison(
                f"run {j}, {elements.plan.bodies[b][0]}",
                runs.dt * np.arange(n),
                measured[:n, b],
                attitude[:n, b],
                position[:n, b],
                turn[:n, b],
                None if sides is None else (sides[0][:, b], sides[1][:, b]),
            )
            for b in dict.fromkeys((moving[0], moving[-1]))
        ]
        motions.append(
            Motion(
                f"run {j}",
                _origins(metric, position, turn, n),
                _origins(metric, measured, attitude, n),
            )
        )
    places, turns = np.moveaxis(predicted.by_frame, 2, 0)
    frames = runs.dt * np.arange(places.shape[1]), 100 * places, np.degrees(turns)
    errors = PoseErrors(100 * predicted.position, np.degrees(predicted.rotation), None, frames)
    details = {
        "size": f"{size:.4g} m",
        "runs": str(len(runs)),
        "step between frames": f"{runs.dt:.6g} s",
        **origin,
    }
    write_fit_report(out / "report.html", record, title, compared, errors, details, band)
    reach = max(size, float(np.abs(predicted.q[:, :, :3]).max(initial=0.0)))
    write_motion(
        out / "replay.html",
        dt=runs.dt,
        size=size / 2,
        solids=solids(elements, 3 * reach),
        motions=motions,
        title=title,
    )
    return band


def _origins(
    metric, position: np.ndarray, turn: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Frames of bodies from their centres of mass, `(n, b, 3)` and `(n, b, 4)`."""
    w, x = turn[..., :1], turn[..., 1:]
    arm = np.broadcast_to(np.asarray(metric.system.centres), x.shape)
    across = 2 * np.cross(x, arm)
    return (position - arm - w * across - np.cross(x, across))[:n], turn[:n]
