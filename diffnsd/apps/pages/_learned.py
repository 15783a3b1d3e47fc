"""The report of learned parts of a model: what each has become, and whether predictions are better for it."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..._arguments import checked_kinds
from ..._expects import expects, shown
from ..._optional import require
from .._files import write_json, write_page
from . import _plots
from ._page import number
from ._report import check_details, details_table, plot_row, section, warnings_section
from ._tables import table
from ._template import filled_page

LEARNED_SCHEMA = "diffnsd.learned/1"
"""Name and version of the layout of the file beside `write_learned`; documented with that of results."""
LEGEND = (
    "<p>Grey columns and dots: where the data lie. Dashed: beyond 98 % of them, where a curve is what it was "
    "regularised to.</p>"
)
INNER = 0.01, 0.99
"""Quantiles of the data between which a learned part is drawn as known."""


@dataclass(frozen=True)
class LearnedCurve:
    """A function of one number that was learned, such as friction of the slip speed.

    `x`, `y`: points of the curve, `(g,)`; `across`, `up`: what they are, with units. `seen (s,)`: the `x` at
    which the data asked for the function. `prior`: what it is drawn to where they say nothing, `(g,)` or a
    number; `truth (g,)`: the true curve. None if there is none.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    across: str
    up: str
    seen: np.ndarray
    prior: np.ndarray | float | None = None
    truth: np.ndarray | None = None

    def checked(self) -> "LearnedCurve":
        """Itself with arrays of floats. **Raises:** `ValueError` for shapes or numbers that do not fit."""
        x, seen = _vector(self.name, "x", self.x), _floats(self.name, "seen", self.seen)
        given = {"y": self.y, "prior": self.prior, "truth": self.truth}
        found = {key: _floats(self.name, key, v) for key, v in given.items() if v is not None}
        if self.prior is not None and np.ndim(self.prior) == 0:
            found["prior"] = np.broadcast_to(found["prior"], x.shape)
        for key, values in found.items():
            if values.shape != x.shape:
                raise ValueError(
                    f"{self.name}: {key} must have shape {x.shape} as x has, got {values.shape}."
                )
        _check_seen(self.name, seen, [x])
        sides = found.get("prior"), found.get("truth")
        return LearnedCurve(self.name, x, found["y"], self.across, self.up, seen, *sides)

    def plots(self) -> list[str]:
        """The curve over a histogram of where the data lie."""
        low, high = self.known()
        values = self.y[(self.x >= low) & (self.x <= high)]
        alt = (
            f"{self.up} from {self.up_at(low)} at {number(low, 3)} to {self.up_at(high)} at "
            f"{number(high, 3)} ({self.across}), where 98 % of {len(self.drawn())} data lie"
        )
        if beyond := len(self.seen) - len(self.drawn()):
            alt += f"; {beyond} more lie beyond what is drawn"
        if len(values):
            alt += (
                f"; between {number(float(values.min()), 3)} and {number(float(values.max()), 3)}"
            )
        lines, known = {"without data": self.prior, "truth": self.truth}, (low, high)
        labels = self.across, self.up
        return [
            _plots.curve_plot(
                self.name, self.x, self.y, lines, self.drawn(), known, labels, f"{alt}."
            )
        ]

    def drawn(self) -> np.ndarray:
        """The data where the curve is given."""
        return self.seen[_within(self.seen, self.x[0], self.x[-1])]

    def known(self) -> np.ndarray:
        """Between which two `x` all but the outermost of these lie."""
        return np.quantile(self.drawn(), INNER)

    def up_at(self, x: float) -> str:
        """The value at a place, as text."""
        return number(float(np.interp(x, self.x, self.y)), 3)

    def facts(self) -> dict:
        """Its entry in the file."""
        keys = ("name", "x", "y", "across", "up", "prior", "truth")
        low, high = self.known()
        known = {"seen": len(self.seen), "known_between": [low, high]}
        return {key: getattr(self, key) for key in keys} | known


@dataclass(frozen=True)
class LearnedMap:
    """A function of two numbers that was learned, such as the heights of a surface or a force.

    `x (a,)`, `y (b,)`: the grid; `values (a, b)`; `across`, `up`, `unit`: what they are. `seen (s, 2)`: the
    places at which the data asked for the function. `truth (a, b)`: the true values, None if unknown.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    values: np.ndarray
    across: str
    up: str
    unit: str
    seen: np.ndarray
    truth: np.ndarray | None = None

    def checked(self) -> "LearnedMap":
        """Itself with arrays of floats. **Raises:** `ValueError` for shapes or numbers that do not fit."""
        x, y = _vector(self.name, "x", self.x), _vector(self.name, "y", self.y)
        given = {"values": self.values, "truth": self.truth}
        found = {key: _floats(self.name, key, v) for key, v in given.items() if v is not None}
        for key, array in found.items():
            if array.shape != (len(x), len(y)):
                raise ValueError(
                    f"{self.name}: {key} must have shape {(len(x), len(y))}, one row for each x, got "
                    f"{array.shape}."
                )
        seen = _floats(self.name, "seen", self.seen)
        _check_seen(self.name, seen, [x, y])
        labels, truth = (self.across, self.up, self.unit), found.get("truth")
        return LearnedMap(self.name, x, y, found["values"], *labels, seen, truth)

    def plots(self) -> list[str]:
        """Filled contours, with the places of the data; the true map beside it if it is known."""
        shown = (
            {"": self.values} if self.truth is None else {"": self.values, ", truth": self.truth}
        )
        return [self._plot(f"{self.name}{end}", values) for end, values in shown.items()]

    def _plot(self, title: str, values: np.ndarray) -> str:
        ends = []
        for at in (values.argmin(), values.argmax()):
            i, j = np.unravel_index(at, values.shape)
            place = f"({number(float(self.x[i]), 3)}, {number(float(self.y[j]), 3)})"
            ends.append(f"{number(float(values[i, j]), 3)} {self.unit} at {place}")
        alt = f"{title} over {self.across} and {self.up}: from {' to '.join(ends)}; {len(self.seen)} data."
        grid, labels = (self.x, self.y), (self.across, self.up, self.unit)
        return _plots.map_plot(title, grid, values, self._limits(), self.seen, labels, alt)

    def _limits(self) -> tuple[float, float]:
        """Of the colours, the same for both maps."""
        both = self.values if self.truth is None else np.stack([self.values, self.truth])
        return float(np.min(both)), float(np.max(both))

    def facts(self) -> dict:
        """Its entry in the file."""
        keys = ("name", "x", "y", "values", "across", "up", "unit", "truth")
        return {key: getattr(self, key) for key in keys} | {"seen": len(self.seen)}


@dataclass(frozen=True)
class Scores:
    """Errors of predictions, of each model by its name: `rows[model][what]`, with the units in `what`.

    `remark`: of which data, in a sentence.
    """

    rows: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    remark: str = ""


@checked_kinds  # NaN has a meaning: a loss that is not finite
def write_learned(
    path: str | Path,
    parts: Sequence[LearnedCurve | LearnedMap],
    *,
    title: str = "Learned parts",
    scores: Scores | None = None,
    loss_history: Sequence[float] | np.ndarray = (),
    warnings: Sequence[str] = (),
    details: Mapping[str, str] | None = None,
) -> Path:
    """Writes what parts of a model have learned as one self-contained HTML page, and as JSON beside it.

    Each part is shown over the data it was learned from; beyond them a curve is drawn dashed, since there it
    is what it was regularised to.

    **Arguments:**

    - `path`: the page to write, for example `learned.html`; the JSON has the ending `.json`.
    - `parts`: the learned curves and maps, at least one.
    - `title`: heading of the page.
    - `scores`: errors of predictions with and without the learned parts, None leaves the table out.
    - `loss_history`: the loss after each step of the training, `(i,)`; may be empty.
    - `warnings`: sentences, shown first.
    - `details`: further lines, such as versions and data.

    **Returns:** the path of the page.

    **Raises:** `ImportError` if matplotlib is not installed; `ValueError` without parts, for shapes that do
    not match, numbers of a part that are not finite, data that lie elsewhere than its `x`, or a path that
    ends in `.json`; `TypeError` for details that are no text, or scores that are no numbers; `OutputDirError`
    if a file cannot be written.
    """
    require("matplotlib", "the report")
    path, history = Path(path), np.asarray(loss_history, dtype=float)
    if path.suffix == ".json":
        raise ValueError(
            f"{path}: the page needs another ending, such as .html; the JSON lies beside."
        )
    if not parts:
        raise ValueError("parts must hold at least one LearnedCurve or LearnedMap, got none.")
    if history.ndim != 1:
        raise ValueError(f"loss_history must have shape (i,), got {history.shape}.")
    for j, part in enumerate(parts):
        expects(f"parts[{j}]", part, (LearnedCurve, LearnedMap), "a LearnedCurve or a LearnedMap")
    checked, scores = [part.checked() for part in parts], scores or Scores()
    _check_scores(scores)
    check_details(details or {})
    sections = [
        warnings_section(warnings),
        section("Errors of predictions", _scores_table(scores)),
        section(
            "What was learned", plot_row([x for part in checked for x in part.plots()]) + LEGEND
        ),
        section("Training", plot_row([_plots.loss_plot(history)] if len(history) else [])),
        section("Details", details_table(details or {})),
    ]
    write_page(path, filled_page(title, "\n".join(sections)))
    content = {
        "schema": LEARNED_SCHEMA,
        "warnings": list(warnings),
        "parts": [part.facts() for part in checked],
        "scores": {model: dict(row) for model, row in scores.rows.items()},
        "loss_history": history,
        **({"details": dict(details)} if details else {}),
    }
    write_json(path.with_suffix(".json"), content)
    return path


def _scores_table(scores: Scores) -> str:
    """Errors in rows, models in columns."""
    if not scores.rows:
        return ""
    names = list(dict.fromkeys(name for row in scores.rows.values() for name in row))
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in ("error", *scores.rows))
    lines = []
    for name in names:
        found = (row.get(name) for row in scores.rows.values())
        cells = "".join(f"<td>{'—' if x is None else number(x)}</td>" for x in found)
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    remark = f"<p>{html.escape(scores.remark)}</p>" if scores.remark else ""
    return table(f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>") + remark


def _check_scores(scores: Scores) -> None:
    """**Raises:** `TypeError` for a row that is no mapping, or an error that is no number."""
    expects("rows", scores.rows, Mapping, 'a mapping such as {"learned": {"position [%]": 17.3}}')
    for model, row in scores.rows.items():
        expects(f"rows[{model!r}]", row, Mapping, 'a mapping such as {"position [%]": 17.3}')
        for what, value in row.items():
            if np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.number):
                raise TypeError(f"rows[{model!r}][{what!r}] must be a number, got {value!r:.80}.")


def _floats(name: str, key: str, values) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: {key} must be numbers, got {shown(values)}.") from None
    if not np.all(np.isfinite(array)):
        count = np.sum(~np.isfinite(array))
        raise ValueError(
            f"{name}: {count} of {array.size} numbers of {key} are not finite: leave them out, or look for "
            "where they come from."
        )
    return array


def _vector(name: str, key: str, values) -> np.ndarray:
    array = _floats(name, key, values)
    if array.ndim != 1 or len(array) < 2 or not np.all(np.diff(array) > 0):
        raise ValueError(f"{name}: {key} must hold two or more increasing numbers, got {array}.")
    return array


def _check_seen(name: str, seen: np.ndarray, axes: Sequence[np.ndarray]) -> None:
    """**Raises:** `ValueError` for another shape, or data most of which lie beside the grid."""
    many, shape = len(axes), seen.shape
    if len(shape) != min(many, 2) or not shape[0] or shape[1:] != (many,)[: many - 1]:
        wanted = "(s,)" if many == 1 else f"(s, {many})"
        raise ValueError(f"{name}: seen must have shape {wanted} with s at least 1, got {shape}.")
    ends = [(axis[0], axis[-1]) for axis in axes]
    places = seen.reshape(-1, many)
    inside = np.sum(
        np.all([_within(x, *two) for x, two in zip(places.T, ends, strict=True)], axis=0)
    )
    if 2 * inside < len(places):
        where = " and ".join(
            f"{key} from {low:.4g} to {high:.4g}"
            for key, (low, high) in zip("xy", ends, strict=False)
        )
        raise ValueError(
            f"{name}: only {inside} of {len(places)} data in seen lie where it is given, {where}: give it "
            "over most of them, and in the same units."
        )


def _within(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Which values lie between the ends of a grid, up to rounding."""
    slack = 1e-9 * (high - low)
    return (values >= low - slack) & (values <= high + slack)
