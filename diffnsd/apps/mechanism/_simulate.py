"""Simulating the mechanism of a file from the command line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from ..._result import RESULTS, failed
from ..._types import Args, State
from ...integrators import MoreauJean
from ...io import Elements, SampledControls, load_mjcf
from ...laws import CoulombFriction, Equality, GapStabilized
from ...model import Interaction, Model
from ...simulation import Solution, simulate
from .._files import read_archive

ENDINGS = (".xml", ".mjcf", ".urdf")


PENETRATION = 1e-6
"""An overlap at the start that is worth a note [m, rad]."""


def is_file(name: str) -> bool:
    """Whether the name is that of a file, not of a ready model."""
    return Path(name).suffix.lower() in ENDINGS


REST_SPEED = 0.05
"""Rebounds slower than this [m/s] are landings."""


def landing(mu, e):
    """The law of contacts between geoms: no penetration at the ends of steps, slow rebounds are landings."""
    return GapStabilized(CoulombFriction(mu, e), REST_SPEED)


class Loading(NamedTuple):
    """How the command line loads a file, see `load_mjcf`; `max_active` and `near` are 0 for no limit."""

    ignore: Sequence[str] = ()
    max_active: int = 16
    restitution: float | None = None
    near: int = 0
    max_vertices: int = 64

    def load(self, path: str) -> tuple[Model, Elements, State]:
        """The model of a file, with contacts that do not penetrate.

        **Raises:** as `load_mjcf`.
        """
        return load_mjcf(
            path,
            ignore=self.ignore,
            law=landing,
            max_active=self.max_active or None,
            restitution=self.restitution,
            near=self.near or None,
            max_vertices=self.max_vertices,
        )


LOADING = Loading()


class Simulated(NamedTuple):
    """The motion of a file from a keyframe, or its start; the step [s] and the controls."""

    model: Model
    elements: Elements
    run: Solution
    h: float
    args: Args


def simulated(
    path: str,
    seconds: float,
    dt: float | None = None,
    controls: Path | None = None,
    keyframe: str | None = None,
    loading: Loading = LOADING,
) -> Simulated:
    """Simulates a file, with its own step if `dt` is `None`.

    `keyframe`: its name or number; `None` is the first one, or the start of a file that has none.

    **Raises:** `ValueError` if the file, the times, the controls or the keyframe are wrong.
    """
    model, elements, start = loading.load(path)
    h = elements.timestep if dt is None else dt
    if not seconds > 0 or not h > 0:
        raise ValueError(f"--seconds and --dt must be positive, got {seconds:g} and {h:g}.")
    count, args = len(elements.plan.actuators), None
    if elements.keyframes or keyframe is not None:
        q, v, activations, held = _keyframe(elements, keyframe)
        start = elements.state(q, v, activations)
        args = held if count else None
    if controls is not None:
        args = load_controls(controls, count, h)
    steps = max(1, round(seconds / h))
    run = jax.jit(
        lambda state, args: simulate(
            model,
            MoreauJean(theta=1.0),
            0.0,
            steps * h,
            h,
            state,
            args,
            start_tolerance=np.inf,
            throw=False,
        )
    )(start, args)
    return Simulated(model, elements, run, h, args)


def _keyframe(elements: Elements, wanted: str | None) -> tuple[Array, Array, Array, Array]:
    """A keyframe by its name or its number; the first one for `None`."""
    known = elements.keyframes
    by_number = {str(k): name for k, name in enumerate(known)}
    name = "0" if wanted is None else wanted
    found = known.get(name if name in known else by_number.get(name, ""))
    if found is None:
        listed = ", ".join(known) or "none"
        raise ValueError(f"--keyframe {wanted}: the file has no such keyframe; it has {listed}.")
    return found


def simulate_file(
    path: str, folder: Path | None, loading: Loading = LOADING, **options: Any
) -> tuple[list[str], bool]:
    """Simulates a file with the options of `simulated`; writes `motion.npz` to `folder`, if given.

    **Returns:** lines to print, and whether all steps were solved.

    **Raises:** as `simulated`.
    """
    shown = simulated(path, loading=loading, **options)
    model, elements, run, h, args = shown
    if folder is not None:
        readings = elements.sensors()(model, run, args)
        write_motion(run, elements, readings, folder / "motion.npz")
    worst = float(np.max(np.asarray(run.stats.residual)))
    gaps = [float(np.min(np.asarray(g))) for g in run.gaps if g is not None and np.size(g)]
    lines = [f"of the file: {line}" for line in elements.report]
    lines.append(f"{len(run.ts) - 1} steps of {h:g} s; largest relative residual {worst:.1e}")
    if run.energy is not None:
        total = np.asarray(run.energy.total)
        lines.append(f"energy {total[0]:.6g} J at the start, {total[-1]:.6g} J at the end")
    lines += _open_at_the_start(model, run)
    lines.append(f"smallest gap {min(gaps, default=0.0):.3g} (m, or rad of a joint)")
    wrong = failure(shown)
    return lines + wrong, not wrong


def failure(shown: Simulated) -> list[str]:
    """Why a run ended early, and what helps; without what its message says of derivatives."""
    if not bool(failed(shown.run.result)):
        return []
    if not bool(shown.run.result == RESULTS.contact_overflow):
        return [shown.run.outcome]
    return [shown.run.outcome, crowding(shown.elements)]


def crowding(elements: Elements) -> str:
    """What helps where more contacts close than a step has room for."""
    limits = {"--max-active": elements.max_active, "--near": elements.near}
    given = " and ".join(f"{k} is {most}" for k, most in limits.items() if most is not None)
    return f"{given}: give a larger number, or 0 for no limit"


def _open_at_the_start(model: Model, run: Solution) -> list[str]:
    """Notes on contacts that overlap, and equalities that do not hold, in the first state."""
    first: list[tuple[Interaction, np.ndarray]] = [
        (i, np.asarray(gap)[0])
        for i, gap in zip(model.interactions, run.gaps, strict=True)
        if gap is not None
    ]
    deepest = max(
        (float(np.max(-g, initial=0)) for i, g in first if i.law.is_unilateral), default=0
    )
    furthest = max(
        (float(np.max(np.abs(g), initial=0)) for i, g in first if isinstance(i.law, Equality)),
        default=0,
    )
    notes = []
    if deepest > PENETRATION:
        notes.append(
            f"note: at the start a contact or limit is violated by {deepest:.3g} (m, or rad of a joint), "
            "and stays so: contacts do not push apart what overlaps"
        )
    if furthest > PENETRATION:
        notes.append(
            f"note: at the start an equality is open by {furthest:.3g} (m, or rad), and stays so: "
            "only velocities are held; correct the keyframe"
        )
    return notes


def load_controls(path: Path, count: int, h: float) -> SampledControls:
    """Controls of a `.npz` file: `controls (k, nu)`, held from the times `times (k,)`, or a step each.

    **Raises:** `ValueError` naming the key that is missing or has the wrong shape.
    """
    data = read_archive(path, ("controls",), ("controls", "times"), "a file of controls")
    values = np.asarray(data["controls"], float)
    times = np.asarray(data["times"], float) if "times" in data else h * np.arange(len(values))
    if values.ndim != 2 or values.shape[1] != count:
        raise ValueError(f"controls in {path} must have shape (k, {count}), got {values.shape}.")
    if not np.all(np.isfinite(values)):
        raise ValueError(f"controls in {path} has entries that are not finite.")
    return SampledControls(times, values)


def write_motion(run: Solution, elements: Elements, readings: dict, path: Path) -> None:
    """Times, `qpos`, `qvel` and `act` in the order of the file, energy, impulses of contacts, and sensors."""
    bodies, activations = elements.split(run.states)
    arrays = {
        "times": np.asarray(run.ts),
        "qpos": np.asarray(bodies.q),
        "qvel": np.asarray(bodies.v),
        "act": np.asarray(activations),
        "joints": np.array([joint[0] for joint in elements.plan.joints]),
    }
    if run.energy is not None:
        arrays["energy"] = np.asarray(run.energy.total)
    for i, impulse in enumerate(run.impulses):
        arrays[f"impulse{i}"] = np.asarray(impulse)
    for name, reading in readings.items():
        arrays[f"sensor/{name}"] = np.asarray(reading)
    np.savez_compressed(path, allow_pickle=False, **arrays)
