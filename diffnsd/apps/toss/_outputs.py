"""What an identification says of tosses: predictions.npz, report.html, replay.html."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ...groups import rotate
from ...rollout import rollout
from ..fit import Identified, write_fit_report
from ._cube import CubeParameters, half_width, lanes, toss
from ._data import Tosses, save_predictions


class Predicted:
    """Simulations of tosses from their first frame: trimmed poses, residuals and failures."""

    def __init__(self, tosses: Tosses, cube: CubeParameters, substeps: int):
        batch = lanes(tosses)
        dt = float(tosses.dt)
        count = len(tosses)
        cubes = jax.tree.map(lambda x: jnp.broadcast_to(x, (count,)), cube)
        out = rollout(lambda pair: toss(pair[0], pair[1], dt, substeps), (cubes, batch))
        position, quaternion, residual, failed, penetration = map(np.asarray, out)
        lengths = np.asarray(tosses.lengths)
        self.positions = [position[j, :n] for j, n in enumerate(lengths)]
        self.quaternions = [quaternion[j, :n] for j, n in enumerate(lengths)]
        self.residual, self.failed, self.penetration = residual, failed, penetration
        self.tosses = tosses

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
        """Per toss: mean position error [% of the width], mean angle [deg], whether upward faces agree."""
        width = 2 * half_width(self.tosses)
        position, angle, face = [], [], []
        for j in range(len(self.tosses)):
            true = self.tosses.toss(j)
            p, q, qm = self.positions[j], self.quaternions[j], true.quaternion_wxyz
            position.append(100 * np.linalg.norm(p - true.position, axis=1).mean() / width)
            sign = np.where(np.sum(q * qm, axis=1, keepdims=True) < 0, -1.0, 1.0)
            apart = np.linalg.norm(q - sign * qm, axis=1)
            along = np.linalg.norm(q + sign * qm, axis=1)
            angle.append(np.degrees(4 * np.arctan2(apart, along).mean()))
            face.append(upward_face(q[-1]) == upward_face(qm[-1]))
        return {
            "position_percent": np.array(position),
            "rotation_deg": np.array(angle),
            "same_face": np.array(face),
        }


def upward_face(q: np.ndarray) -> int:
    """Which body axis points up, with its sign: one of -3 ... 3."""
    inverse = jnp.asarray(q) * jnp.array([1.0, -1.0, -1.0, -1.0])
    up = np.asarray(rotate(inverse, jnp.array([0.0, 0.0, 1.0])))
    k = int(np.argmax(np.abs(up)))
    return (k + 1) * (1 if up[k] > 0 else -1)


def write_pages(out: Path, record: Identified, predicted: Predicted, title: str) -> None:
    """Writes `report.html` and `replay.html`."""
    from ..pages import PoseErrors, TossComparison, write_replay

    tosses, errors = predicted.tosses, predicted.errors()
    shown = np.argsort(errors["position_percent"])[:: max(1, len(tosses) // 6)][:6]
    dt = float(tosses.dt)
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
            )
        )
    shares = PoseErrors(
        errors["position_percent"],
        errors["rotation_deg"],
        100 * float(np.mean(errors["same_face"])),
    )
    write_fit_report(out / "report.html", record, title, compared, shares)
    write_replay(
        out / "replay.html",
        dt=dt,
        half_width=half_width(tosses),
        measured=[(c.measured_position, c.measured_quaternion) for c in compared],
        simulated=[(c.simulated_position, c.simulated_quaternion) for c in compared],
        labels=[c.label for c in compared],
    )
