"""What a reference case is, and how a simulation is compared with its recorded rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import diffnsd as nsd


@dataclasses.dataclass(frozen=True)
class Setup:
    """The arguments of `simulate`."""

    model: nsd.Model
    integrator: Any
    t0: float
    t1: float
    dt: float
    state0: nsd.State

    def simulate(self, steps: int | None = None) -> nsd.Solution:
        """The motion, or its first `steps` steps."""
        t1 = self.t1 if steps is None else self.t0 + steps * self.dt
        return nsd.simulate(self.model, self.integrator, self.t0, t1, self.dt, self.state0)


@dataclasses.dataclass(frozen=True)
class Case:
    """A reference case: how it is set up, and the columns of a solution that it compares."""

    name: str
    setup: Callable[[], Setup]
    columns: Callable[[nsd.Solution], np.ndarray]

    def difference(self, folder: Path, steps: int | None = None) -> tuple[float, float]:
        """Largest absolute difference to the recorded rows, and the tolerance of the case."""
        meta = json.loads((folder / self.name / "meta.json").read_text())
        recorded = np.load(folder / self.name / "reference.npz", allow_pickle=False)
        rows, data = recorded["rows"], recorded["data"][:, meta["compare_columns"]]
        ours = self.columns(self.setup().simulate(steps))
        first = meta.get("compare_from_row") or 0
        kept = (rows >= first) & (rows < len(ours))
        return float(np.max(np.abs(ours[rows[kept]] - data[kept]))), meta["tolerance"]
