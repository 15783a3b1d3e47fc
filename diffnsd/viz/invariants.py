"""A picture of what a motion keeps."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._optional import require


def invariants_figure(ts: np.ndarray, invariants: Mapping[str, np.ndarray]) -> Any:
    """Largest change so far of invariants over time, on a logarithmic scale.

    A band stays level, a drift rises: what tells a variational method from another one. The
    change is relative to the larger of 1 and the first value, as `diagnostics.drift` says it.

    **Arguments:** `ts` [s], `(t,)`; `invariants`: for each name the values along a solution, `(t,)`
    or `(t, k)`, for example `{"energy": solution.energy.total}`, momenta by
    `diagnostics.spatial_momentum`, `diagnostics.casimirs`, the defect of a group by
    `diagnostics.defect`, each with `jax.vmap`.

    **Returns:** a `matplotlib.figure.Figure`; `figure.savefig(...)` writes it.

    **Raises:** `ImportError` without the extra `viz`; `ValueError` where values and times differ in
    number.
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
                f"{name} has {len(np.atleast_1d(values))} values for {ts.size} times: give one for "
                "every time of the solution."
            )
        values = values.reshape(ts.size, -1)
        change = np.max(np.abs(values - values[:1]), axis=1) / max(1, np.max(np.abs(values[0])))
        seen = np.maximum.accumulate(change)
        # What has not changed at all lies on the floor of the picture, at rounding.
        axes.plot(ts, np.maximum(seen, np.finfo(values.dtype).eps / 2), label=name, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_xlabel("t [s]", fontsize=8)
    axes.set_ylabel("largest change so far", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    if invariants:
        axes.legend(fontsize=7)
    return figure
