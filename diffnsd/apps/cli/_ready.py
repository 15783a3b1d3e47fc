"""Simulating a ready model from the command line."""

import jax
import numpy as np

from ...models import READY
from ...simulation import simulate


def simulate_ready(name: str, folder) -> list[str]:
    """Simulates the ready-made model `name`; writes `motion.npz` and `motion.svg` to `folder`, if given.

    **Raises:** `ValueError` listing the existing models if there is no such model.
    """
    if name not in READY:
        raise ValueError(f"there is no model {name!r}; there are: {', '.join(READY)}.")
    ready = READY[name]()
    solution = jax.jit(
        lambda state: simulate(ready.model, ready.integrator, 0.0, ready.t1, ready.dt, state)
    )(ready.state0)
    if folder is not None:
        _write(solution, ready, folder)
    return [
        f"{name}: {ready.summary}",
        f"{len(solution.ts) - 1} steps of {ready.dt:g} s; largest relative residual "
        f"{float(np.max(np.asarray(solution.stats.residual))):.1e}",
        *_told(solution),
    ]


def _told(solution) -> list[str]:
    """Summary of the motion: energies, impulses and gaps, or multipliers and outputs."""
    lines, total = [], _energy(solution)
    if total is not None:
        lines.append(f"energy {total[0]:.6g} J at the start, {total[-1]:.6g} J at the end")
    if solution.states.q is None:
        largest = [np.max(np.abs(x), initial=0.0) for x in solution.details.multipliers]
        smallest = [np.min(x, initial=0.0) for x in solution.details.outputs]
        return [
            *lines,
            f"largest multiplier {max(largest):.6g}; smallest output {min(smallest):.3g}",
        ]
    impulses = sum(float(np.abs(np.asarray(p)).sum()) for p in solution.impulses)
    gaps = [float(np.min(np.asarray(g))) for g in solution.gaps if g is not None]
    return [
        *lines,
        f"sum of contact impulses {impulses:.6g} N s; smallest gap {min(gaps, default=0.0):.3g} m",
    ]


def _energy(solution):
    return None if solution.energy is None else np.asarray(solution.energy.total)


def _write(solution, ready, folder) -> None:
    leaves = jax.tree.leaves(solution.states.q)
    arrays = {"t": np.asarray(solution.ts), "v": np.asarray(solution.states.v)}
    arrays |= {f"q{i}": np.asarray(x) for i, x in enumerate(leaves)}
    total = _energy(solution)
    if total is not None:
        arrays["energy"] = total
    for i, p in enumerate(solution.impulses):
        arrays[f"impulse{i}"] = np.asarray(p)
    if solution.states.q is None:
        for i, lam in enumerate(solution.details.multipliers):
            arrays[f"multipliers{i}"] = np.asarray(lam)
    np.savez_compressed(folder / "motion.npz", allow_pickle=False, **arrays)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True)
    for j, label in enumerate(ready.coordinates):
        top.plot(arrays["t"], arrays["v"][:, j], label=label)
    top.legend(fontsize="small")
    top.set_title(ready.summary)
    if total is not None:
        bottom.plot(arrays["t"], total, color="black")
        bottom.set_ylabel("energy [J]")
    else:
        for lam in solution.details.multipliers:
            bottom.plot(arrays["t"], np.asarray(lam).reshape(len(arrays["t"]), -1))
        bottom.set_ylabel("multipliers")
    bottom.set_xlabel("time [s]")
    figure.savefig(folder / "motion.svg")
