"""What a reference case is: how it is compared with its recorded rows, and what of it is timed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import diffnsd as nsd


@dataclasses.dataclass(frozen=True)
class Work:
    """What is timed: a pure function of one lane, its starting point, and the steps that it takes."""

    call: Callable[[Any], Any]
    start: Any
    steps: int


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

    def work(self, folder: Path, limit: int) -> list[Work]:
        """The motion from a starting velocity (or state of first order), at most `limit` steps."""
        del folder
        setup = self.setup()
        steps = min(round((setup.t1 - setup.t0) / setup.dt), limit)
        t1 = setup.t0 + steps * setup.dt

        def call(v):
            state = nsd.State(setup.state0.q, v)
            saveat = nsd.SaveAt.end()
            solution = nsd.simulate(
                setup.model,
                setup.integrator,
                setup.t0,
                t1,
                setup.dt,
                state,
                saveat=saveat,
                throw=False,
            )
            return solution.states, solution.result

        return [Work(call, setup.state0.v, steps)]


@dataclasses.dataclass(frozen=True)
class Suite:
    """Problems of one step each: names of the arrays, their law, and what is recorded."""

    name: str
    prefix: str
    solution: str
    law: Callable[[dict[str, np.ndarray]], Any]
    relative: bool

    def problems(self, folder: Path) -> list[dict[str, np.ndarray]]:
        """The arrays of every problem."""
        recorded = np.load(folder / self.name / "reference.npz", allow_pickle=False)
        found: dict[str, dict[str, np.ndarray]] = {}
        for key in recorded.files:
            if key.startswith(self.prefix + "_"):
                _, number, array = key.split("_")
                found.setdefault(number, {})[array] = recorded[key]
        return [found[number] for number in sorted(found)]

    def solve(self, problem: dict[str, Any], q, throw: bool = True):
        """The multipliers of one problem, with `q` in place of its own."""
        laws = ((self.law(problem), (len(problem["q"]), 1)),)
        stated = nsd.ComplementarityProblem(jnp.asarray(problem["M"]), q, laws)
        solver = nsd.Auto(tolerance=1e-13)
        return nsd.solve_complementarity(stated, solver, throw=throw).z

    def difference(self, folder: Path, steps: int | None = None) -> tuple[float, float]:
        """Largest difference of a multiplier (as the case says) over the first `steps` problems.

        One program solves all problems, made as long as the longest by rows of their own.
        """
        problems = self.problems(folder)[:steps]
        length = max(len(problem["q"]) for problem in problems)
        padded = [_padded(problem, length) for problem in problems]
        stacked = {name: np.stack([p[name] for p in padded]) for name in padded[0]}
        solve = jax.jit(jax.vmap(lambda p: self.solve(p, p["q"], throw=False)))
        worst = 0.0
        for problem, found in zip(problems, np.asarray(solve(stacked)), strict=True):
            recorded = problem[self.solution]
            scale = 1 + np.max(np.abs(recorded)) if self.relative else 1.0
            error = np.max(np.abs(found[: len(recorded)] - recorded))
            worst = max(worst, float(error / scale))
        meta = json.loads((folder / self.name / "meta.json").read_text())
        return worst, meta["tolerance"]

    def work(self, folder: Path, limit: int) -> list[Work]:
        """The shortest, the middle and the longest problem, `limit` times in a row with varied `q`."""
        by_size = {len(problem["q"]): problem for problem in self.problems(folder)}
        sizes = sorted(by_size)
        chosen = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})

        def one(problem):
            def call(q):
                varied = q * (1 + 1e-3 * jnp.sin(jnp.arange(limit, dtype=q.dtype)))[:, None]
                solve = lambda _, q: (None, self.solve(problem, q, throw=False))  # noqa: E731
                return jax.lax.scan(solve, None, varied)[1]

            return Work(call, jnp.asarray(problem["q"]), limit)

        return [one(by_size[size]) for size in chosen]


def _padded(problem: dict[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """The arrays that state a problem, with rows `w = z + q` added whose solution is known.

    For complementarity `q > 0` and so `z = 0`; for a relay of the bounds ±1 `q = 0` and so `z = 0`.
    """
    more = length - len(problem["q"])
    matrix = np.eye(length)
    matrix[: -more or None, : -more or None] = problem["M"]
    bounded = "lb" in problem
    filled = {"q": 0.0 if bounded else np.max(np.abs(problem["q"])), "lb": -1.0, "ub": 1.0}
    rows = {
        name: np.concatenate([problem[name], np.full(more, filled[name])])
        for name in ("q", "lb", "ub")
        if name in problem
    }
    return {"M": matrix, **rows}
