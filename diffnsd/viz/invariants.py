"""A figure of the invariants of a motion."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from .._arguments import checked_kinds
from .._optional import require


@checked_kinds
def invariants_figure(ts: Float[np.ndarray, " t"], invariants: Mapping[str, np.ndarray]) -> Any:
    """Plots the largest change so far of invariants over time, on a logarithmic scale.

    A bounded error stays level and a drift rises, which distinguishes variational methods from others.
    The change is relative to the larger of 1 and the first value, as in `diagnostics.drift`.

    **Arguments:** `ts` [s], `(t,)`; `invariants`: for each name the values along a solution, `(t,)`
    or `(t, k)`. Examples: `{"energy": solution.energy.total}`, momenta from
    `diagnostics.spatial_momentum`, `diagnostics.casimirs`, or the defect of a group from
    `diagnostics.defect`, each with `jax.vmap`.

    **Returns:** a `matplotlib.figure.Figure`; `figure.savefig(...)` writes it.

    **Raises:** `ImportError` without the extra `viz`; `ValueError` if the numbers of values and times
    differ.
    """
    ts = np.asarray(ts)
    figure = require("matplotlib.figure", "the picture of invariants").Figure(
        figsize=(6.4, 3.2), layout="constrained"
    )
    axes = figure.subplots()
    for name, values in invariants.items():
        values = np.asarray(values)
        if values.shape[:1] != ts.shape:
            raise ValueError(
                f"invariants: {name} has {len(np.atleast_1d(values))} values for {ts.size} times: give "
                "one for every time of the solution."
            )
        values = values.reshape(ts.size, -1)
        change = np.max(np.abs(values - values[:1]), axis=1) / max(1, np.max(np.abs(values[0])))
        seen = np.maximum.accumulate(change)
        # Draw unchanged values at the level of rounding, the bottom of the plot.
        axes.plot(ts, np.maximum(seen, np.finfo(values.dtype).eps / 2), label=name, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_xlabel("t [s]", fontsize=8)
    axes.set_ylabel("largest change so far", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    if invariants:
        axes.legend(fontsize=7)
    return figure
