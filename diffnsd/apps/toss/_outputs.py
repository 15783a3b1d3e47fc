"""Output files of an identification: result.json, predictions.npz, report.html, replay.html."""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ...groups import rotate
from ...rollout import rollout
from ._cube import BOUNDS, UNITS, CubeParameters, half_width, lanes, toss
from ._data import Tosses, save_predictions
from ._fit import Identified


def write_result(path: Path, record: Identified, extra: dict | None = None) -> None:
    """Writes `result.json` atomically, so that an interrupt cannot leave a partial file.

    Numbers that are not finite (the error of a parameter that the data do not determine, the loss of
    a rejected trial) become `null`, since JSON cannot represent them.
    """
    table = {}
    for name in UNITS:
        free = name in record.free
        table[name] = {
            "value": record.value(name),
            "standard_error": record.standard_errors.get(name),
            "unit": UNITS[name],
            "free": free,
            "determined": record.determined.get(name) if free else None,
            "start": float(getattr(record.start, name)),
        }
    content = {
        "status": record.status,
        "parameters": table,
        "loss": record.loss,
        "loss_history": record.losses,
        "loss_round": record.rounds,
        "rollouts": record.rollouts,
        "gradient_evaluations": record.gradients,
        "compile_seconds": round(record.compile_seconds, 3),
        "run_seconds": round(record.run_seconds, 3),
        "correlations": record.correlations,
        "free": list(record.free),
        "warnings": record.warnings,
        **(extra or {}),
    }
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")
    os.replace(temporary, path)


def _plain(content):
    """The content with arrays as lists, and `None` for numbers that are not finite."""
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple | np.ndarray):
        return [_plain(value) for value in content]
    if isinstance(content, float | np.floating):
        return float(content) if np.isfinite(content) else None
    return content


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
    from .pages import (
        ParameterRow,
        PoseErrors,
        RunFigures,
        TossComparison,
        write_replay,
        write_report,
    )

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
    rows = [
        ParameterRow(
            name,
            float(getattr(record.start, name)),
            record.value(name),
            record.standard_errors.get(name),
            UNITS[name],
            BOUNDS[name][0],
            BOUNDS[name][1],
            record.determined.get(name, True),
            name in record.free,
        )
        for name in UNITS
    ]
    write_report(
        out / "report.html",
        title=title,
        parameters=rows,
        loss_history=record.losses or [float("nan")],
        tosses_compared=compared,
        errors=PoseErrors(
            errors["position_percent"],
            errors["rotation_deg"],
            100 * float(np.mean(errors["same_face"])),
        ),
        meta=RunFigures(
            record.rollouts,
            record.gradients,
            record.compile_seconds,
            record.run_seconds,
            tuple(record.warnings),
            {"status": record.status},
        ),
        correlations=record.correlations,
    )
    write_replay(
        out / "replay.html",
        dt=dt,
        half_width=half_width(tosses),
        measured=[(c.measured_position, c.measured_quaternion) for c in compared],
        simulated=[(c.simulated_position, c.simulated_quaternion) for c in compared],
        labels=[c.label for c in compared],
    )
