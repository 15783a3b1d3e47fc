"""A figure of the contributions to a gradient."""

from typing import Any

import numpy as np
from jaxtyping import Float

from .._arguments import checked_kinds
from .._optional import require

_COLOURS = "#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#64748b"


@checked_kinds
def gradient_figure(
    ts: Float[np.ndarray, " s"],
    through: Float[np.ndarray, "s c p"],
    growth: Float[np.ndarray, " s"],
    names: tuple[str, ...],
) -> Any:
    """Plots the contributions of contacts to a gradient over time, and the growth of sensitivities.

    The arguments are fields of a `diagnostics.GradientExplanation`. The figure has one row per
    parameter, at most four, with one stem for each contributing contact and step, coloured by
    contact. The last row shows the sensitivity of the loss to the state at each time.

    **Arguments:** `ts` [s], `(s,)`; `through`: `(s, c, p)`; `growth`: `(s,)`; `names`: `p` of them.

    **Returns:** a `matplotlib.figure.Figure`; `figure.savefig(...)` writes it.

    **Raises:** `ImportError` without the extra `viz`.
    """
    ts, through, growth = (np.asarray(x) for x in (ts, through, growth))
    if len(names) != through.shape[2]:
        raise ValueError(f"names must be {through.shape[2]}, one for each entry, got {len(names)}.")
    shown = min(len(names), 4)
    figure = require("matplotlib.figure", "the picture of a gradient").Figure(
        figsize=(6.4, 1.3 * (shown + 1)), layout="constrained"
    )
    rows = np.atleast_1d(figure.subplots(shown + 1, 1, sharex=True))
    for p, axes in enumerate(rows[:-1]):
        axes.axhline(0, color="#94a3b8", linewidth=0.6)
        for c in range(through.shape[1]):
            here = np.flatnonzero(through[:, c, p])
            colour = _COLOURS[c % len(_COLOURS)]
            axes.vlines(ts[here], 0, through[here, c, p], color=colour, linewidth=1.2)
            axes.plot(ts[here], through[here, c, p], "o", color=colour, markersize=3)
        axes.set_ylabel(names[p], fontsize=8)
    positive = np.where(growth > 0, growth, np.nan)
    rows[-1].plot(ts, positive, color="#64748b", linewidth=1.2)
    if np.any(growth > 0):
        rows[-1].set_yscale("log")
    rows[-1].set_ylabel("growth", fontsize=8)
    rows[-1].set_xlabel("t [s]", fontsize=8)
    for axes in rows:
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
