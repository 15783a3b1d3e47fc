"""Plots as inline SVG that use the colours and the font of the page."""

import html
import io
import re

import numpy as np

from ..._optional import require

# Matplotlib draws with these placeholders; the page replaces them by variables of its colour scheme.
_INK, _FAINT, _MEASURED, _SIMULATED = "#010101", "#020202", "#030303", "#040404"
_VARIABLES = {
    _INK: "var(--ink)",
    _FAINT: "var(--line)",
    _MEASURED: "var(--measured)",
    _SIMULATED: "var(--simulated)",
}
_SIZE = (4.3, 2.5)


def loss_plot(history: np.ndarray) -> str:
    """The loss against the iteration; logarithmic if the loss varies by more than a factor of 10."""
    figure, axes = _figure("loss", "iteration", "loss")
    finite = history[np.isfinite(history)]
    axes.plot(np.arange(len(history)), history, color=_SIMULATED, linewidth=1.8)
    if len(history) == 1:
        axes.plot([0], history, "o", color=_SIMULATED)
    if len(finite) and finite.min() > 0 and finite.max() > 10 * finite.min():
        axes.set_yscale("log")
    span = f", from {finite[0]:.3g} to {finite[-1]:.3g}" if len(finite) else ""
    return _svg(figure, "loss", f"Loss over {len(history)} iterations{span}.")


def height_plot(time, measured: np.ndarray, simulated: np.ndarray, key: str, band=None) -> str:
    """Height of the centre [mm] against time [s]; positions in m, shape (T, 3), `band` low and high ones."""
    figure, axes = _figure("height of the centre", "time [s]", "z [mm]")
    if band is not None:
        _shade(axes, time, 1e3 * band[0][:, 2], 1e3 * band[1][:, 2])
    _pair(axes, time, 1e3 * measured[:, 2], 1e3 * simulated[:, 2], "")
    axes.legend(**_LEGEND)
    apart = _apart(1e3 * (measured[:, 2] - simulated[:, 2]))
    return _svg(figure, key, f"Height of the centre, measured and simulated; {apart} mm apart.")


def path_plot(time, measured: np.ndarray, simulated: np.ndarray, key: str, band=None) -> str:
    """Horizontal path [mm] from the measured start against time [s], both directions."""
    figure, axes = _figure("horizontal path", "time [s]", "x, y [mm]")
    start = measured[0]
    for axis, style in ((0, "-"), (1, "--")):
        if band is not None:
            _shade(axes, time, *(1e3 * (side[:, axis] - start[axis]) for side in band))
        real, model = (1e3 * (track[:, axis] - start[axis]) for track in (measured, simulated))
        _pair(axes, time, real, model, style)
    axes.plot([], [], "-", color=_INK, linewidth=1, label="x")
    axes.plot([], [], "--", color=_INK, linewidth=1, label="y")
    handles, names = axes.get_legend_handles_labels()
    shown = [i for i, name in enumerate(names) if name in ("x", "y")]
    axes.legend([handles[i] for i in shown], [names[i] for i in shown], **_LEGEND)
    apart = _apart(1e3 * (measured[:, :2] - simulated[:, :2]))
    return _svg(figure, key, f"Horizontal path, measured and simulated; {apart} mm apart.")


def angle_plot(time: np.ndarray, angle: np.ndarray, key: str) -> str:
    """Angle [deg] between measured and simulated attitude against time [s]."""
    figure, axes = _figure("rotation error", "time [s]", "angle [deg]")
    axes.plot(time, angle, color=_SIMULATED, linewidth=1.6)
    axes.set_ylim(bottom=0)
    alt = f"Angle between measured and simulated attitude; {_apart(angle)} degrees."
    return _svg(figure, key, alt)


def histogram(values: np.ndarray, title: str, unit: str, key: str) -> str:
    """Histogram of an error over the runs, with its mean and median."""
    figure, axes = _figure(title, unit, "runs")
    # A few outliers would squeeze all others into one bar: count them in the last bar.
    limit = max(float(np.percentile(values, 98)), 1e-9)
    outside = int((values > limit * (1 + 1e-9)).sum())
    bins = int(np.clip(np.sqrt(len(values)) * 1.5, 5, 30))
    axes.hist(np.minimum(values, limit), bins=bins, range=(0, limit), color=_SIMULATED, alpha=0.75)
    for value, name, style in ((values.mean(), "mean", "-"), (np.median(values), "median", "--")):
        axes.axvline(value, color=_INK, linewidth=1.2, linestyle=style, label=f"{name} {value:.3g}")
    if outside:
        axes.plot([], [], " ", label=f"last bar: {outside} more, to {values.max():.3g}")
    axes.legend(**_LEGEND)
    middle = f"mean {values.mean():.3g}, median {np.median(values):.3g}"
    return _svg(figure, key, f"Histogram of the {title} [{unit}]: {middle}.")


def errors_over_time_plot(time: np.ndarray, errors: np.ndarray, title: str, unit: str) -> str:
    """Median and range of nine in ten of the errors `(n, T)` in each frame; NaN where not measured."""
    figure, axes = _figure(title, "time [s]", unit)
    seen = np.isfinite(errors).any(axis=0)
    time, errors = np.asarray(time)[seen], errors[:, seen]
    low, middle, high = np.nanquantile(errors, [0.05, 0.5, 0.95], axis=0)
    axes.fill_between(
        time, low, high, color=_SIMULATED, alpha=0.2, linewidth=0, label="nine in ten"
    )
    axes.plot(time, middle, color=_SIMULATED, linewidth=1.6, label="median")
    axes.legend(**_LEGEND)
    axes.set_ylim(bottom=0)
    alt = f"{title} [{unit}] over time: median {middle[-1]:.3g} at the end, nine in ten below {high[-1]:.3g}."
    return _svg(figure, f"{title} over time", alt)


def corner_plot(samples: dict[str, np.ndarray], truth: dict[str, float]) -> str:
    """Draws of a posterior, each number against each other, and of one number its histogram.

    **Arguments:** `samples`: draws by label, `(n,)`; `truth`: known values by label.
    """
    names, k = list(samples), len(samples)
    side = max(5.5, 1.6 * k)
    figure = require("matplotlib.figure", "the report").Figure((side, side), layout="constrained")
    grid = figure.subplots(k, k, squeeze=False)
    for i, j in np.ndindex(k, k):
        axes, (x, y) = grid[i, j], (samples[names[j]], samples[names[i]])
        if j > i:
            axes.set_visible(False)
            continue
        _plain(axes)
        axes.locator_params(nbins=3)
        if i == j:
            axes.hist(x, bins=24, color=_SIMULATED, alpha=0.75)
            for end in np.quantile(x, [0.05, 0.95]):
                axes.axvline(end, color=_INK, linewidth=1, linestyle="--")
            axes.set_yticks([])
        else:
            axes.plot(x, y, ".", color=_SIMULATED, markersize=3, alpha=0.5, markeredgewidth=0)
            if names[i] in truth:
                axes.axhline(truth[names[i]], color=_MEASURED, linewidth=1.6)
        if names[j] in truth:
            axes.axvline(truth[names[j]], color=_MEASURED, linewidth=1.6)
        if i == k - 1:
            axes.set_xlabel(names[j], fontsize=9, color=_INK)
            axes.tick_params(axis="x", labelrotation=30)
        else:
            axes.set_xticklabels([])
        if j == 0 and i:
            axes.set_ylabel(names[i], fontsize=9, color=_INK)
        elif i != j:
            axes.set_yticklabels([])
    ends = (f"{n} from {a:.4g} to {b:.4g}" for n, (a, b) in _central(samples).items())
    return _svg(figure, "corner", f"Draws of the posterior; nine in ten have {', '.join(ends)}.")


def curve_plot(
    title: str,
    x: np.ndarray,
    y: np.ndarray,
    lines: dict[str, np.ndarray | None],
    seen: np.ndarray,
    known: tuple[float, float],
    labels: tuple[str, str],
    alt: str,
) -> str:
    """A learned curve over a histogram of its data, dashed outside of `known`.

    **Arguments:** `lines`: others than the learned one, by name, `(g,)`; `seen (s,)`; `labels`: of the axes.
    """
    figure, axes = _figure(title, *labels)
    behind = axes.twinx()
    behind.hist(np.clip(seen, x[0], x[-1]), bins=40, range=(x[0], x[-1]), color=_FAINT)
    behind.set_axis_off()
    behind.set_ylim(top=4 * max(behind.get_ylim()[1], 1))
    axes.set_zorder(behind.get_zorder() + 1)
    looks = {
        "without data": {"color": _INK, "linewidth": 1, "linestyle": ":"},
        "truth": {"color": _MEASURED, "linewidth": 3.2, "alpha": 0.75},
    }
    for name, look in looks.items():
        values = lines.get(name)
        if values is not None:
            axes.plot(x, values, label=name, **look)
    inside = (x >= known[0]) & (x <= known[1])
    axes.plot(x, y, "--", color=_SIMULATED, linewidth=1)
    axes.plot(x, np.where(inside, y, np.nan), color=_SIMULATED, linewidth=1.8, label="learned")
    axes.plot([], [], color=_FAINT, linewidth=6, label="data")
    axes.legend(**_LEGEND)
    return _svg(figure, f"curve {title}", alt)


def map_plot(
    title: str,
    grid: tuple[np.ndarray, np.ndarray],
    values: np.ndarray,
    limits: tuple[float, float],
    seen: np.ndarray,
    labels: tuple[str, str, str],
    alt: str,
) -> str:
    """Filled contours of a learned map `(a, b)`, and the places of its data `(s, 2)`."""
    figure, axes = _figure(title, *labels[:2])
    x, y = grid
    levels = require("matplotlib.ticker", "the report").MaxNLocator(10).tick_values(*limits)
    filled = axes.contourf(x, y, values.T, levels=levels, cmap="cividis")
    every = -(-len(seen) // 400)
    places = {"markersize": 3.5, "markeredgewidth": 0}
    axes.plot(seen[::every, 0], seen[::every, 1], ".", color=_MEASURED, **places)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    bar = figure.colorbar(filled, ax=axes)
    bar.ax.tick_params(labelsize=8, labelcolor=_INK, color=_FAINT)
    bar.set_label(labels[2], fontsize=9, color=_INK)
    return _svg(figure, f"map {title}", alt)


def _central(samples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.quantile(x, [0.05, 0.95]) for name, x in samples.items()}


def _shade(axes, time, low: np.ndarray, high: np.ndarray) -> None:
    axes.fill_between(time, low, high, color=_SIMULATED, alpha=0.2, linewidth=0)


def _apart(difference: np.ndarray) -> str:
    """The largest difference, in words."""
    finite = difference[np.isfinite(difference)]
    return f"at most {np.max(np.abs(finite)):.2g}" if finite.size else "an unknown distance"


def rotation_angle(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Angle [rad] between attitudes given as quaternions (T, 4) of any sign and length."""
    a, b = (q / np.linalg.norm(q, axis=-1, keepdims=True) for q in (first, second))
    b = np.where((a * b).sum(axis=-1, keepdims=True) < 0, -b, b)
    # Accurate for small angles, unlike the arc cosine of the product.
    half = np.arctan2(np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1))
    return 4 * half


_LEGEND = {"frameon": False, "fontsize": 8, "labelcolor": _INK, "handlelength": 1.6}


def _pair(axes, time, measured: np.ndarray, simulated: np.ndarray, style: str) -> None:
    """Draws the measured curve, broad and pale, under the simulated one."""
    line = style or "-"
    axes.plot(time, measured, line, color=_MEASURED, linewidth=3.2, alpha=0.75, label="measured")
    axes.plot(time, simulated, line, color=_SIMULATED, linewidth=1.4, label="simulated")


def _figure(title: str, across: str, up: str):
    """A figure with one pair of axes, made without pyplot to avoid windows and global state."""
    figure = require("matplotlib.figure", "the report").Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=9.5, color=_INK, loc="left", fontweight="bold")
    axes.set_xlabel(across, fontsize=9, color=_INK)
    axes.set_ylabel(up, fontsize=9, color=_INK)
    _plain(axes)
    return figure, axes


def _plain(axes) -> None:
    axes.tick_params(labelsize=8.5, labelcolor=_INK, color=_FAINT)
    axes.grid(True, color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_FAINT)


def _svg(figure, key: str, alt: str) -> str:
    """The figure as an SVG element for HTML: no prolog, no XML namespaces, colours of the page.

    `alt` is read to those who do not see it.
    """
    matplotlib = require("matplotlib", "the report")
    stream = io.StringIO()
    # Keep text as text: smaller, sharp, searchable, and in the font of the page. A separate salt per
    # figure keeps identifiers unique within a page.
    options = {"svg.fonttype": "none", "svg.hashsalt": key, "font.family": ["sans-serif"]}
    with matplotlib.rc_context(options):
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=no_metadata)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r"font: ([^;\"]*?)px [^;\"]*", r"font: \1px var(--font)", text)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: m.group(0) if m.group(1) in used else "", text)
    label = html.escape(alt).replace("\\", r"\\")
    text = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>',
        rf'<svg viewBox="\1" role="img" aria-label="{label}">',
        text,
    )
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, variable)
    return text.strip()
