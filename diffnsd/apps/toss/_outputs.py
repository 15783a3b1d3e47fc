"""What an identification says of tosses: predictions.npz, report.html, replay.html."""

import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ...groups import rotate
from ...rollout import rollout
from ..fit import Bands, Identified, banded_runs, bands, write_fit_report
from ._cube import (
    SIGMA,
    SIGMA_SPIN,
    SIGMA_VELOCITY,
    CubeParameters,
    Lane,
    half_width,
    lanes,
    toss,
)
from ._data import Tosses, save_predictions


class Predicted:
    """Simulations of tosses from their first frame: trimmed poses, residuals and failures."""

    def __init__(self, tosses: Tosses, cube: CubeParameters, substeps: int):
        self.batch, self.substeps = lanes(tosses), substeps
        self.tosses = tosses
        out = self.simulate(
            jax.tree.map(lambda x: jnp.broadcast_to(x, (len(tosses),)), cube), self.batch
        )
        position, quaternion, residual, failed, penetration = map(np.asarray, out)
        lengths = np.asarray(tosses.lengths)
        self.positions = [position[j, :n] for j, n in enumerate(lengths)]
        self.quaternions = [quaternion[j, :n] for j, n in enumerate(lengths)]
        self.residual, self.failed, self.penetration = residual, failed, penetration

    def simulate(self, cubes: CubeParameters, batch: Lane):
        """`toss` of pairs of parameters and tosses, in chunks for which the program is compiled once."""
        dt, substeps = float(self.tosses.dt), self.substeps
        chunk = min(256, -(-len(self.tosses) // (os.cpu_count() or 1)))
        pairs = cubes, batch
        return rollout(lambda pair: toss(pair[0], pair[1], dt, substeps), pairs, chunk=chunk)

    def bands(self, record: Identified, runs: np.ndarray) -> Bands | None:
        """The bands of some tosses."""

        def positions(drawn, which, starts):
            spread = record.spread
            assert spread is not None  # else there are no draws
            batch = jax.tree.map(lambda x: x[which], self.batch)
            moved = eqx.tree_at(
                lambda x: (x.velocity, x.spin), batch, (starts[:, :3], starts[:, 3:])
            )
            return np.asarray(self.simulate(jax.vmap(spread.rebuild)(drawn), moved)[0])

        batch = jax.tree.map(lambda x: np.asarray(x)[runs], self.batch)
        return bands(
            record.spread,
            positions,
            runs,
            np.concatenate([batch.velocity, batch.spin], axis=1),
            np.array([SIGMA_VELOCITY] * 3 + [SIGMA_SPIN] * 3),
            2 * half_width(self.tosses) * SIGMA[0],
            batch.position,
            batch.mask > 0,
        )

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
