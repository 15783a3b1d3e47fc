"""Simulating a ready model from the command line."""

import jax
import numpy as np

from ..models import READY
from ..simulation import simulate


def simulate_ready(name: str, folder) -> list[str]:
    """Simulates the ready model `name`; writes `motion.npz` and `motion.svg` to `folder`, if any.

    **Raises:** `ValueError` naming the models that exist.
    """
    if name not in READY:
        raise ValueError(f"there is no model {name!r}; there are: {', '.join(READY)}.")
    ready = READY[name]()
    solution = jax.jit(
        lambda state: simulate(ready.model, ready.integrator, 0.0, ready.t1, ready.dt, state)
    )(ready.state0)
    total = np.asarray(solution.energy.total)
    impulses = sum(float(np.abs(np.asarray(p)).sum()) for p in solution.impulses)
    gaps = [float(np.min(np.asarray(g))) for g in solution.gaps if g is not None]
    if folder is not None:
        _write(solution, ready, folder)
    return [
        f"{name}: {ready.summary}",
        f"{len(solution.ts) - 1} steps of {ready.dt:g} s; largest relative residual "
        f"{float(np.max(np.asarray(solution.stats.residual))):.1e}",
        f"energy {total[0]:.6g} J at the start, {total[-1]:.6g} J at the end",
        f"sum of contact impulses {impulses:.6g} N s; smallest gap {min(gaps, default=0.0):.3g} m",
    ]


def _write(solution, ready, folder) -> None:
    leaves = jax.tree.leaves(solution.states.q)
    arrays = {"t": np.asarray(solution.ts), "v": np.asarray(solution.states.v)}
    arrays |= {f"q{i}": np.asarray(x) for i, x in enumerate(leaves)}
    arrays["energy"] = np.asarray(solution.energy.total)
    for i, p in enumerate(solution.impulses):
        arrays[f"impulse{i}"] = np.asarray(p)
    np.savez_compressed(folder / "motion.npz", allow_pickle=False, **arrays)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True)
    for j, label in enumerate(ready.coordinates):
        top.plot(arrays["t"], arrays["v"][:, j], label=label)
    top.legend(fontsize="small")
    top.set_title(ready.summary)
    bottom.plot(arrays["t"], arrays["energy"], color="black")
    bottom.set_xlabel("time [s]")
    bottom.set_ylabel("energy [J]")
    figure.savefig(folder / "motion.svg")
