"""The tables of a report: parameters, correlations, valleys."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._page import number, with_error


@dataclass(frozen=True)
class ParameterRow:
    """One parameter of the model in the table of the report.

    `start`, `estimate`, `standard_error`, `lower` and `upper` are in `unit`. `standard_error` is
    None if unknown; `lower` and `upper` are None if there is no bound. `determined` says whether the
    data determine the parameter; `free` is False if it was held at its start value. `note` is a
    sentence for the reader. `interval` holds the ends of its 95 % interval, `truth` the true value,
    `independent_error` the standard error that would hold if all residuals were independent, `prior` the
    centre and the standard deviation of its prior, each None if unknown or if there is none.
    """

    name: str
    start: float
    estimate: float
    standard_error: float | None = None
    unit: str = ""
    lower: float | None = None
    upper: float | None = None
    determined: bool = True
    free: bool = True
    note: str = ""
    interval: tuple[float, float] | None = None
    truth: float | None = None
    independent_error: float | None = None
    prior: tuple[float, float] | None = None


def parameter_table(parameters: Sequence[ParameterRow]) -> str:
    """Name, start, estimate, errors, truth if any is known, unit, bounds, whether it is determined."""
    if len(parameters) == 0:
        return ""
    rows, names = [], ["parameter"]
    any_truth = any(row.truth is not None for row in parameters)
    any_prior = any(row.prior is not None for row in parameters)
    both_errors = any(row.independent_error is not None for row in parameters)
    for row in parameters:
        estimate, error = with_error(row.estimate, row.standard_error)
        if not row.free:
            estimate, error, state = number(row.estimate), "—", ("held", "held")
        elif row.determined:
            state = ("good", "yes")
        else:
            state = ("poor", "no")
        note = f'<div class="note">{html.escape(row.note)}</div>' if row.note else ""
        cells = {
            "start": number(row.start),
            "estimate": f"<b>{estimate}</b>",
            "standard error": error,
            **({"if residuals were independent": _independent(row)} if both_errors else {}),
            "95 % interval": _ends(row.interval),
            **({"prior": _about(row.prior)} if any_prior else {}),
            **({"truth": _known(row)} if any_truth else {}),
            "unit": html.escape(row.unit) or "—",
            "bounds": _bounds(row.lower, row.upper),
            "determined": f'<span class="pill {state[0]}">{state[1]}</span>',
        }
        names = ["parameter", *cells]
        rows.append(_line(f"{html.escape(row.name)}{note}", cells))
    return f'<table class="wide">{_body(names, rows)}</table>'


def _line(heading: str, cells: dict[str, str]) -> str:
    """A row of a table of parameters, its cells by the names of their columns."""
    content = "".join(
        f'<td{_kind(name)} data-name="{name}">{cell}</td>' for name, cell in cells.items()
    )
    return f'<tr><th scope="row">{heading}</th>{content}</tr>'


def _body(names: list[str], lines: list[str]) -> str:
    head = "".join(f'<th scope="col"{_kind(name)}>{name}</th>' for name in names)
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"


def _ends(interval: tuple[float, float] | None) -> str:
    if interval is None or not np.all(np.isfinite(interval)):
        return "—"
    return f"{number(interval[0])} to {number(interval[1])}"


def _about(prior: tuple[float, float] | None) -> str:
    """Centre and deviation of a prior."""
    return "none" if prior is None else f"{number(prior[0])} ± {number(prior[1], 2)}"


def _independent(row: ParameterRow) -> str:
    """The standard error for independent residuals."""
    if not row.free or row.independent_error is None:
        return "—"
    return with_error(row.estimate, row.independent_error)[1]


def _known(row: ParameterRow) -> str:
    """The true value, and whether the interval holds it."""
    if row.truth is None:
        return "—"
    if row.interval is None:
        return number(row.truth)
    inside = row.interval[0] <= row.truth <= row.interval[1]
    return f"{number(row.truth)} ({'inside' if inside else 'outside'})"


def _kind(column: str) -> str:
    """Aligns text to the left of its column, numbers to the right."""
    return ' class="text"' if column in ("parameter", "unit", "bounds", "determined") else ""


def table(content: str) -> str:
    """A table that scrolls on its own if the screen is too narrow."""
    return f'<div class="scroll"><table>{content}</table></div>'


def _bounds(lower: float | None, upper: float | None) -> str:
    has_lower = lower is not None and np.isfinite(lower)
    has_upper = upper is not None and np.isfinite(upper)
    if lower is not None and upper is not None and has_lower and has_upper:
        return f"{number(lower)} to {number(upper)}"
    if lower is not None and has_lower:
        return f"at least {number(lower)}"
    if upper is not None and has_upper:
        return f"at most {number(upper)}"
    return "none"


def correlation_table(names: Sequence[str], correlations: np.ndarray | None) -> str:
    """The correlation matrix, coloured by strength; empty for a single parameter."""
    if correlations is None or len(names) < 2:
        return ""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    rows = []
    for name, values in zip(names, np.asarray(correlations, dtype=float), strict=True):
        cells = "".join(_correlation_cell(value) for value in values.tolist())
        rows.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    return table(f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody>")


def _correlation_cell(value: float) -> str:
    if not np.isfinite(value):
        return "<td>—</td>"
    color = "--simulated" if value > 0 else "--measured"
    share = round(55 * min(abs(value), 1.0) ** 2)
    text = f"{value:+.2f}".replace("-", "−")
    paint = f"background: color-mix(in srgb, var({color}) {share}%, transparent)"
    return f'<td style="{paint}">{text}</td>'


def valley_table(valleys: Sequence[tuple[float, int, Mapping[str, np.ndarray]]]) -> str:
    """Loss, number of starts and values of every valley; empty for a fit from one start."""
    if not len(valleys):
        return ""
    names = list(valleys[0][2])
    head = "".join(f'<th scope="col">{html.escape(n)}</th>' for n in ("loss", "starts", *names))
    rows = []
    for loss, count, values in valleys:
        numbers = [", ".join(number(float(x)) for x in np.ravel(values[name])) for name in names]
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in (str(count), *numbers))
        rows.append(f'<tr><th scope="row">{number(loss)}</th>{cells}</tr>')
    return table(f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>")


def posterior_rows(posterior: Any, truth: Mapping[str, float], level: float) -> dict[str, dict]:
    """What is known of each number of a posterior, by label."""
    ends = posterior.interval(level)
    rows = {}
    for i, (label, unit) in enumerate(zip(posterior.labels, posterior.units, strict=True)):
        mean, deviation = posterior[label]
        rows[label] = {
            "mean": mean,
            "deviation": deviation,
            "interval": list(ends[label]),
            "unit": unit or "",
            "split_rhat": float(posterior.rhat[i]),
            "effective_draws": float(posterior.effective_sizes[i]),
            "truth": truth.get(label),
        }
    return rows


def posterior_table(rows: Mapping[str, dict], level: float) -> str:
    """The rows of `posterior_rows` as a table."""
    any_truth = any(row["truth"] is not None for row in rows.values())
    names, lines = [], []
    for label, row in rows.items():
        mean, deviation = with_error(row["mean"], row["deviation"])
        low, high = row["interval"]
        cells = {
            "mean": f"<b>{mean}</b>",
            "standard deviation": deviation,
            f"{level:.0%} interval": f"{number(low)} to {number(high)}",
            **(
                {"truth": "—" if row["truth"] is None else number(row["truth"])}
                if any_truth
                else {}
            ),
            "unit": html.escape(row["unit"]) or "—",
            "split R-hat": f"{row['split_rhat']:.3f}",
            "effective draws": f"{row['effective_draws']:.0f}",
        }
        names = ["parameter", *cells]
        lines.append(_line(html.escape(label), cells))
    return table(_body(names, lines))
