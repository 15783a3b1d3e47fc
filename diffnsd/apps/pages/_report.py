"""The report of an identification: one HTML file that needs no network."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..._arguments import checked_arguments, checked_kinds
from ..._expects import expects
from ..._optional import require
from ...identification import Posterior
from .._files import write_json, write_page
from . import _plots
from ._page import number
from ._tables import (
    ParameterRow,
    correlation_table,
    parameter_table,
    posterior_rows,
    posterior_table,
    table,
    valley_table,
)
from ._template import filled_page

MOST, DRAWN = 8, 2000
"""Most numbers, and most draws of a posterior, in the corner plot."""


@dataclass(frozen=True)
class TossComparison:
    """One toss, or one body of another run, measured and simulated, at the same times.

    `time` [s] has shape (T,); positions [m], world frame with z up, have shape (T, 3); quaternions,
    scalar first, body to world, have shape (T, 4). The simulation may hold NaN where it failed.
    `band` holds the low and the high positions of a band of predictions, each (T, 3), None without one.
    """

    label: str
    time: np.ndarray
    measured_position: np.ndarray
    measured_quaternion: np.ndarray
    simulated_position: np.ndarray
    simulated_quaternion: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class PoseErrors:
    """Errors of the simulated tosses, one entry per toss, shape (n,); NaN for a failed simulation.

    `position_percent` is the mean distance of the centres in percent of the size (the width of a box),
    `rotation_deg` the mean angle in degrees, `same_face_percent` the share of tosses that end on
    the measured face, None if that has no meaning. `frames`, None if unknown, holds the times of frames
    `(T,)` [s] and the two errors in each `(n, T)`, NaN where nothing was measured.
    """

    position_percent: np.ndarray
    rotation_deg: np.ndarray
    same_face_percent: float | None = None
    frames: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class PosteriorDraws:
    """Draws from the posterior, and how good the bands are that they predict.

    `samples`: draws of each number by its label, `(n,)`. `truth`: known values by label. `remark`: how they
    were drawn, and what share of the measurements their bands hold, in sentences. `page`: a page beside the
    report with draws of another kind, empty if there is none.
    """

    samples: Mapping[str, np.ndarray]
    truth: Mapping[str, float] = field(default_factory=dict)
    remark: str = ""
    page: str = ""


@dataclass(frozen=True)
class RunFigures:
    """Cost of the run, warnings and details.

    `rollouts` and `gradients` count single tosses; times are in seconds; `warnings` are sentences;
    `details` are further lines such as versions, seed and data, in the given order.
    """

    rollouts: int
    gradients: int
    compile_seconds: float
    run_seconds: float
    warnings: Sequence[str] = ()
    details: Mapping[str, str] = field(default_factory=dict)


@checked_kinds  # NaN has a meaning: a loss that is not finite, a correlation that nothing determines
def write_report(
    path: str | Path,
    *,
    title: str,
    parameters: Sequence[ParameterRow],
    loss_history: Sequence[float] | np.ndarray,
    tosses_compared: Sequence[TossComparison],
    errors: PoseErrors | None,
    meta: RunFigures,
    correlations: np.ndarray | None = None,
    posterior: PosteriorDraws | None = None,
    valleys: Sequence[tuple[float, int, Mapping[str, np.ndarray]]] = (),
) -> Path:
    """Writes the report of an identification as one self-contained HTML page.

    The page follows the reader's light or dark mode, and reads well on a small screen.

    **Arguments:**

    - `path`: the file to write, for example `report.html`.
    - `title`: heading of the page.
    - `parameters`: the rows of the parameter table.
    - `loss_history`: the loss after each iteration, shape `(i,)`; may be empty, and NaN where a trial failed.
    - `tosses_compared`: the tosses to plot; about three are enough.
    - `errors`: errors of all tosses for the histograms, or None.
    - `meta`: cost of the run, warnings and details.
    - `correlations`: correlation matrix of the free parameters in the order of `parameters`, shape
        `(k, k)`, NaN where the data determine nothing; None leaves the table out.
    - `posterior`: draws for the corner plot; None leaves it out.
    - `valleys`: of a fit from several starts, where they led: loss, number of starts, values by name.

    **Returns:** the path of the file.

    **Raises:** `ImportError` if matplotlib is not installed; `ValueError` for shapes that do not
    match.
    """
    require("matplotlib", "the report")
    history = np.asarray(loss_history, dtype=float)
    free = [row.name for row in parameters if row.free]
    if history.ndim != 1:
        raise ValueError(f"loss_history must have shape (i,), got {history.shape}.")
    if correlations is not None and np.shape(correlations) != (len(free), len(free)):
        raise ValueError(
            f"correlations must have shape ({len(free)}, {len(free)}), one row for each that "
            f"is free of `parameters`, got {np.shape(correlations)}."
        )
    sections = [
        warnings_section(meta.warnings),
        _tiles(history, errors, meta),
        section("Parameters", parameter_table(parameters)),
        section("Correlations of the estimates", correlation_table(free, correlations)),
        section("Where the starts led", valley_table(valleys)),
        section("Distribution of the estimate", _posterior_plot(posterior)),
        section("Fit", _fit_plots(history, errors)),
        *(section(toss.label, _toss_plots(toss, j)) for j, toss in enumerate(tosses_compared)),
        section("Details", details_table(meta.details)),
    ]
    page = filled_page(title, "\n".join(sections))
    return write_page(path, page)


POSTERIOR_SCHEMA = "diffnsd.posterior/1"
"""Name and version of the layout of the file beside `write_posterior`; documented with that of results."""


@checked_arguments
def write_posterior(
    path: str | Path,
    posterior: Posterior,
    *,
    title: str = "Posterior",
    truth: Mapping[str, float] | None = None,
    details: Mapping[str, str] | None = None,
    level: float = 0.9,
) -> Path:
    """Writes the report of a posterior as one self-contained HTML page, and its numbers as JSON beside it.

    What speaks against the draws stands first. Then mean, standard deviation, interval and diagnostics of
    each number, and a corner plot of at most 2,000 draws of the first eight numbers.

    **Arguments:**

    - `path`: the page to write, for example `posterior.html`; the JSON has the ending `.json`.
    - `posterior`: of `identification.posterior`.
    - `title`: heading of the page.
    - `truth`: known values by label, shown in plot and table; None if none is.
    - `details`: further lines, such as versions and data.
    - `level`: share of the draws that the intervals hold.

    **Returns:** the path of the page.

    **Raises:** `ImportError` if matplotlib is not installed; `ValueError` for a path that ends in `.json`,
    a label in `truth` that is none of the posterior, or a level that is not between 0 and 1; `TypeError` for
    details that are no text; `OutputDirError` if a file cannot be written.
    """
    require("matplotlib", "the report")
    path = Path(path)
    if path.suffix == ".json":
        raise ValueError(
            f"{path}: the page needs another ending, such as .html; the JSON lies beside."
        )
    if unknown := [label for label in truth or {} if label not in posterior.labels]:
        known = ", ".join(map(repr, posterior.labels))
        raise ValueError(f"truth has {unknown[0]!r}, but the numbers of the posterior are {known}.")
    check_details(details or {})
    rows = posterior_rows(posterior, dict(truth or {}), level)
    chains, draws = posterior.log_density.shape
    figures = {
        "chains": chains,
        "draws": draws,
        "divergences": posterior.divergences,
        "acceptance": posterior.acceptance,
        "evaluations": posterior.evaluations,
    }
    flat = posterior.samples.reshape(-1, len(posterior.labels))
    thinned = flat[:: -(-len(flat) // DRAWN)]
    samples = dict(zip(posterior.labels, thinned.T, strict=True))
    shown = PosteriorDraws(
        samples, dict(truth or {}), f"{len(thinned)} of {len(flat)} draws are shown."
    )
    tiled = {
        f"{chains} × {draws}": "chains and draws of each",
        f"{posterior.divergences}": "divergences",
        f"{posterior.acceptance:.0%}": "of the moves accepted",
        f"{posterior.evaluations:,}".replace(",", " "): "evaluations of the likelihood",
    }
    tiles = "".join(f"<div><b>{x}</b><span>{name}</span></div>" for x, name in tiled.items())
    sections = [
        warnings_section(posterior.warnings),
        f'<div class="tiles">{tiles}</div>',
        section("Parameters", posterior_table(rows, level)),
        section("Posterior", _posterior_plot(shown)),
        section("Details", details_table(details or {})),
    ]
    write_page(path, filled_page(title, "\n".join(sections)))
    content = {
        "schema": POSTERIOR_SCHEMA,
        "warnings": list(posterior.warnings),
        "level": level,
        "parameters": rows,
        **figures,
        "log_evidence": posterior.log_evidence,
        **({"details": dict(details)} if details else {}),
    }
    write_json(path.with_suffix(".json"), content)
    return path


def section(heading: str, content: str) -> str:
    """A section of the page; the empty string if it has no content."""
    if not content:
        return ""
    return f"<section><h2>{html.escape(heading)}</h2>{content}</section>"


def warnings_section(warnings: Sequence[str]) -> str:
    """The warnings, at the top of the page."""
    if not warnings:
        return ""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in warnings)
    return f'<section class="warnings"><h2>Please note</h2><ul>{items}</ul></section>'


def _tiles(history: np.ndarray, errors: PoseErrors | None, meta: RunFigures) -> str:
    """The key figures, at the top of the page."""
    tiles = []
    if errors is not None:
        position, rotation = (_finite(errors.position_percent), _finite(errors.rotation_deg))
        if len(position) and len(rotation):
            tiles.append((f"{position.mean():.1f} %", "mean position error, of the size"))
            tiles.append((f"{rotation.mean():.1f}°", "mean rotation error"))
        if errors.same_face_percent is not None:
            tiles.append((f"{errors.same_face_percent:.0f} %", "end on the measured face"))
    if len(history):
        tiles.append((number(float(history[-1])), "final loss"))
    tiles += [
        (f"{meta.rollouts:,}".replace(",", " "), "rollouts"),
        (f"{meta.gradients:,}".replace(",", " "), "of them with gradient"),
        (f"{meta.compile_seconds:.1f} s", "compiling"),
        (f"{meta.run_seconds:.1f} s", "running"),
    ]
    cells = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in tiles)
    return f'<div class="tiles">{cells}</div>'


def _finite(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    return values[np.isfinite(values)]


def _posterior_plot(posterior: PosteriorDraws | None) -> str:
    """The corner plot with its explanation; empty without draws."""
    if posterior is None or not posterior.samples:
        return ""
    shown = dict(list(posterior.samples.items())[:MOST])
    plot = _plots.corner_plot(shown, dict(posterior.truth))
    words = (
        "Draws, by pairs of numbers. Dashed: the ends that hold nine in ten draws."
        f"{' Broad lines: true values.' if set(shown) & set(posterior.truth) else ''} {posterior.remark}"
    )
    more = ""
    if posterior.page:
        link = f'<a href="{html.escape(posterior.page)}">{html.escape(posterior.page)}</a>'
        more = f"<p>Draws from the posterior, with priors and its own shape: {link}</p>"
    return f'<figure class="corner">{plot}</figure><p>{html.escape(words)}</p>{more}'


def _fit_plots(history: np.ndarray, errors: PoseErrors | None) -> str:
    """The loss curve and the error histograms."""
    plots = [_plots.loss_plot(history)] if len(history) else []
    remark = ""
    if errors is not None:
        position, rotation = (_finite(errors.position_percent), _finite(errors.rotation_deg))
        failed = max(np.size(errors.position_percent) - len(position), 0)
        if failed:
            remark = f"<p>{failed} failed simulations are left out of the histograms.</p>"
        if len(position):
            title = f"position error of {len(position)} runs"
            plots.append(_plots.histogram(position, title, "percent of the size", "position"))
        if len(rotation):
            title = f"rotation error of {len(rotation)} runs"
            plots.append(_plots.histogram(rotation, title, "degrees", "rotation"))
        if errors.frames is not None:
            time, places, turns = errors.frames
            plots.append(
                _plots.errors_over_time_plot(time, places, "position error", "percent of the size")
            )
            plots.append(_plots.errors_over_time_plot(time, turns, "rotation error", "degrees"))
    return plot_row(plots) + remark


def _toss_plots(toss: TossComparison, index: int) -> str:
    """Height, horizontal path and rotation error of one toss, with the band of predictions if it has one."""
    time = np.asarray(toss.time, dtype=float)
    measured, simulated, attitude, simulated_attitude = (
        np.asarray(array, dtype=float)
        for array in (
            toss.measured_position,
            toss.simulated_position,
            toss.measured_quaternion,
            toss.simulated_quaternion,
        )
    )
    frames = len(time)
    shapes = [a.shape for a in (measured, simulated, attitude, simulated_attitude)]
    if frames == 0 or shapes != 2 * [(frames, 3)] + 2 * [(frames, 4)]:
        raise ValueError(
            f"{toss.label}: with {frames} times, positions must have shape ({frames}, 3) and "
            f"quaternions ({frames}, 4)."
        )
    angle = np.degrees(_plots.rotation_angle(attitude, simulated_attitude))
    return plot_row(
        [
            _plots.height_plot(time, measured, simulated, f"height {index}", toss.band),
            _plots.path_plot(time, measured, simulated, f"path {index}", toss.band),
            _plots.angle_plot(time, angle, f"angle {index}"),
        ]
    )


def plot_row(plots: Sequence[str]) -> str:
    if not plots:
        return ""
    return '<div class="plots">' + "".join(f"<figure>{plot}</figure>" for plot in plots) + "</div>"


def check_details(details: Mapping[str, str]) -> None:
    """Raises `TypeError` for a detail that is no text."""
    for name, line in details.items():
        expects(f"details[{name!r}]", line, str, "a line of text")


def details_table(details: Mapping[str, str]) -> str:
    """Versions, seed, data and the like."""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(str(name))}</th>'
        f'<td class="text">{html.escape(str(value))}</td></tr>'
        for name, value in details.items()
    )
    return table(f"<tbody>{rows}</tbody>") if rows else ""
