"""What an identification says of tosses: predictions.npz, report.html, replay.html."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ...groups import rotate
from ..fit import Bands, Identified, banded_runs, bands, write_fit_report
from ._cube import (
    SIGMA,
    SIGMA_SPIN,
    SIGMA_VELOCITY,
    half_width,
    lanes,
)
from ._data import Tosses, save_predictions


class Predicted:
    """Simulations of tosses from their first frame: trimmed poses, residuals and failures."""

    def __init__(self, tosses: Tosses, record: Identified):
        # Tosses like those of the fit go through its program.
        frames = max(int(tosses.lengths.max()), record.job.mask.shape[1])
        self.batch, self.motions = lanes(tosses, frames), record.motions
        self.tosses = tosses
        out = self.simulate(
            np.arange(len(tosses)), np.tile(record.raw, (len(tosses), 1)), self.velocities
        )
        position, quaternion, residual, failed, penetration = map(np.asarray, out)
        lengths = np.asarray(tosses.lengths)
        self.positions = [position[j, :n] for j, n in enumerate(lengths)]
        self.quaternions = [quaternion[j, :n] for j, n in enumerate(lengths)]
        self.residual, self.failed, self.penetration = residual, failed, penetration

    @property
    def velocities(self) -> np.ndarray:
        """Start velocities and spins `(n, 6)`."""
        return np.concatenate([self.batch.velocity, self.batch.spin], axis=1)

    def simulate(self, which: np.ndarray, raw: np.ndarray, velocities: np.ndarray):
        """`toss` of some tosses, each with its own raw numbers of the parameters and start velocity."""
        batch = jax.tree.map(lambda x: np.asarray(x)[which], self.batch)
        return self.motions(batch, raw, velocities)[0].shown

    def bands(self, record: Identified, runs: np.ndarray) -> Bands | None:
        """The bands of some tosses."""
        return bands(
            record.spread,
            lambda *given: self.simulate(*given)[0],
            runs,
            self.velocities[runs],
            np.array([SIGMA_VELOCITY] * 3 + [SIGMA_SPIN] * 3),
            2 * half_width(self.tosses) * SIGMA[0],
            np.asarray(self.batch.position)[runs],
            np.asarray(self.batch.mask)[runs] > 0,
        )

    @property
    def still(self) -> np.ndarray:
        """Mean distances from where the tosses began, in widths `(n,)`."""
        tosses = (self.tosses.toss(j).position for j in range(len(self.tosses)))
        apart = [np.linalg.norm(x - x[:1], axis=1).mean() for x in tosses]
        return np.array(apart) / (2 * half_width(self.tosses))

    def save(self, path: Path) -> None:
        """Writes `predictions.npz`."""
        save_predictions(
            path,
            self.tosses.toss_id,
            self.tosses.offsets,
            np.concatenate(self.positions),
            np.concatenate(self.quaternions),
        )

    def errors(self) -> dict[str, np.ndarray]:
        """Per toss: mean position error [% of the width], mean angle [deg], whether upward faces agree.

        Also both errors in each frame `(n, f)`, NaN after the end of a toss.
        """
        width = 2 * half_width(self.tosses)
        position, angle, face = [], [], []
        places, turns = (np.full(self.batch.mask.shape, np.nan) for _ in range(2))
        for j in range(len(self.tosses)):
            true = self.tosses.toss(j)
            p, q, qm = self.positions[j], self.quaternions[j], true.quaternion_wxyz
            places[j, : len(p)] = 100 * np.linalg.norm(p - true.position, axis=1) / width
            position.append(places[j, : len(p)].mean())
            sign = np.where(np.sum(q * qm, axis=1, keepdims=True) < 0, -1.0, 1.0)
            apart = np.linalg.norm(q - sign * qm, axis=1)
            along = np.linalg.norm(q + sign * qm, axis=1)
            turns[j, : len(p)] = np.degrees(4 * np.arctan2(apart, along))
            angle.append(turns[j, : len(p)].mean())
            face.append(upward_face(q[-1]) == upward_face(qm[-1]))
        return {
            "position_percent": np.array(position),
            "rotation_deg": np.array(angle),
            "same_face": np.array(face),
            "position_by_frame": places,
            "rotation_by_frame": turns,
        }


def upward_face(q: np.ndarray) -> int:
    """Which body axis points up, with its sign: one of -3 ... 3."""
    inverse = jnp.asarray(q) * jnp.array([1.0, -1.0, -1.0, -1.0])
    up = np.asarray(rotate(inverse, jnp.array([0.0, 0.0, 1.0])))
    k = int(np.argmax(np.abs(up)))
    return (k + 1) * (1 if up[k] > 0 else -1)


def write_pages(
    out: Path, record: Identified, predicted: Predicted, title: str, details: dict
) -> Bands | None:
    """Writes `report.html`, with `details` as further lines, and `replay.html`; returns the bands."""
    from ..pages import PoseErrors, TossComparison, write_replay

    tosses, errors = predicted.tosses, predicted.errors()
    order = np.argsort(errors["position_percent"])
    shown = order[:: max(1, len(tosses) // 6)][:6]
    dt = float(tosses.dt)
    band = predicted.bands(record, banded_runs(order, shown))
    compared = []
    for j in shown:
        true = tosses.toss(int(j))
        compared.append(
            TossComparison(
                f"toss {int(tosses.toss_id[j])}",
                np.arange(len(true.position)) * dt,
                true.position,
                true.quaternion_wxyz,
                predicted.positions[j],
                predicted.quaternions[j],
                None if band is None else band.of(int(j), len(true.position)),
            )
        )
    shares = PoseErrors(
        errors["position_percent"],
        errors["rotation_deg"],
        100 * float(np.mean(errors["same_face"])),
        (
            dt * np.arange(errors["position_by_frame"].shape[1]),
            errors["position_by_frame"],
            errors["rotation_by_frame"],
        ),
    )
    write_fit_report(out / "report.html", record, title, compared, shares, details, band)
    write_replay(
        out / "replay.html",
        dt=dt,
        half_width=half_width(tosses),
        measured=[(c.measured_position, c.measured_quaternion) for c in compared],
        simulated=[(c.simulated_position, c.simulated_quaternion) for c in compared],
        labels=[c.label for c in compared],
    )
    return band
