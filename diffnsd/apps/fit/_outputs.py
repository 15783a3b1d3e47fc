"""An identification on the console, and its file `result.json`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..._arguments import checked_arguments
from .._files import write_json
from ._draws import LEVEL, Bands
from ._fit import Identified, by_label, identify
from ._job import Job

ROUNDS, STEPS = 1, 5
SCHEMA = "diffnsd.identify/1"
"""Name and version of the layout of `result.json`; a change that readers must know of counts it up. The
documentation has the table of its entries (identification, "The file of results")."""


@checked_arguments
def write_result(path: Path, record: Identified, extra: dict | None = None) -> None:
    """Writes `result.json`.

    The error of a parameter that the data do not determine, or the loss of a rejected trial, is `null`.
    """
    job, table = record.job, {}
    for name, quantity in job.quantities.items():
        free, labels = name in job.free, list(record.numbers(name))
        shape = job.value(job.model, name).shape

        def each(known, labels=labels, shape=shape):
            """What is known of the numbers of this quantity, in their shape; `None` if nothing is."""
            found = [known[label] for label in labels if label in known]
            array = np.array(found)
            return array.reshape(shape + array.shape[1:]).tolist() if found else None

        table[name] = {
            "value": job.value(record.model, name).tolist(),
            "standard_error": each(record.standard_errors),
            "standard_error_independent": each(record.independent_errors),
            "interval_95": each(record.intervals),
            "truth": each(record.truth),
            "unit": quantity.unit,
            "free": free,
            "determined": each(record.determined) if free else None,
            "start": job.value(job.model, name).tolist(),
            "prior": _prior(job, name),
        }
    content = {
        "schema": SCHEMA,
        "status": record.status,
        "parameters": table,
        "loss": record.loss,
        "loss_history": record.losses,
        "loss_round": record.rounds,
        "rollouts": record.rollouts,
        "gradient_evaluations": record.gradients,
        "compile_seconds": round(record.compile_seconds, 3),
        "run_seconds": round(record.run_seconds, 3),
        "correlations": record.correlations,
        "free": list(job.free),
        "not_determined": [label for label, known in record.determined.items() if not known],
        "warnings": record.warnings,
        "valleys": [
            {"loss": valley.loss, "starts": len(valley.starts), "values": valley.values}
            for valley in record.valleys
        ],
        **(extra or {}),
    }
    write_json(path, content)


@checked_arguments
def write_fit_report(
    path: Path,
    record: Identified,
    title: str,
    compared: list,
    errors: Any,
    details: dict | None = None,
    band: Bands | None = None,
) -> None:
    """Writes `report.html`.

    **Arguments:** `compared`: measured and predicted motions to plot; `errors`: of all runs; see
    `pages.write_report`. `details`: further lines; `band`: of the predictions, for its share.
    """
    from ..pages import ParameterRow, PosteriorDraws, RunFigures, write_report

    job, rows = record.job, []
    for name, quantity in job.quantities.items():
        starts, prior = by_label(name, job.value(job.model, name)), _prior(job, name)
        rows += [
            ParameterRow(
                label,
                starts[label],
                value,
                record.standard_errors.get(label),
                quantity.unit,
                *quantity.bounds,
                record.determined.get(label, True),
                name in job.free,
                "",
                record.intervals.get(label),
                record.truth.get(label),
                record.independent_errors.get(label),
                None if prior is None else (starts[label], prior["deviation"]),
            )
            for label, value in record.numbers(name).items()
        ]
    write_report(
        path,
        title=title,
        parameters=rows,
        loss_history=record.losses,
        tosses_compared=compared,
        errors=errors,
        meta=RunFigures(
            record.rollouts,
            record.gradients,
            record.compile_seconds,
            record.run_seconds,
            tuple(record.warnings),
            {"status": record.status, **{k: _text(x) for k, x in (details or {}).items()}},
        ),
        correlations=record.correlations,
        posterior=_posterior(record, band, PosteriorDraws),
        valleys=[(valley.loss, len(valley.starts), valley.values) for valley in record.valleys],
    )


def _prior(job: Job, name: str) -> dict | None:
    """The built-in prior of a free quantity, about its start value."""
    deviation = job.quantities[name].deviation
    if deviation is None or name not in job.free:
        return None
    return {"centre": job.value(job.model, name).tolist(), "deviation": deviation}


def _text(value: Any) -> str:
    """A detail as a line of text."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {what}" for name, what in value.items())
    return str(value)


def _posterior(record: Identified, band: Bands | None, draws: type) -> Any:
    """The draws of what the data determine, with the share that the bands hold."""
    if record.spread is None:
        return None
    samples = {
        label: x
        for label, x in record.spread.samples().items()
        if np.isfinite(record.standard_errors.get(label, np.nan)) and np.ptp(x) > 0
    }
    remark = (
        "It is Student's t distribution with the standard errors and correlations above, cut off at "
        "the bounds."
    )
    if band is not None:
        remark += (
            f" The shaded bands below hold {LEVEL:.0%} of predictions with draws of the parameters, of the "
            "start velocities and of the error of a frame; they hold "
            f"{band.share:.0%} of what was measured in {len(band.runs)} runs."
        )
    return draws(samples, record.truth, remark, record.posterior_page)


@checked_arguments
def fit_and_show(
    session: Any,
    job: Job,
    folder: Path,
    extra: Callable[[Identified], dict],
    truth: dict[str, float] | None = None,
    starts: int = 1,
    remedy: str = "",
) -> Identified:
    """Fits a job with a progress bar, writes `result.json` after every round, and prints the estimates.

    **Arguments:** `session`: prints; `extra`: further entries of the result; `truth`: true values, if
    they are known; `starts`: see `identify`; `remedy`: what helps where a step fails in every run.

    **Raises:** `KeyboardInterrupt` if the fit was interrupted, `ValueError` if it failed; `result.json` has
    been written in both cases.
    """
    record, result = Identified(job, truth=dict(truth or {})), folder / "result.json"
    write_result(result, record, extra(record))
    with _progress(session.console) as progress:
        bar = progress.add_task("compiling", total=(ROUNDS + (starts if starts > 1 else 0)) * STEPS)

        def notify(record, stage):
            loss = f", loss {record.loss:.4g}" if record.losses else ""
            done = record.gradients / len(job)
            progress.update(bar, description=f"{stage}{loss}", completed=done)
            if stage == "saved":
                write_result(result, record, extra(record))

        identify(job, rounds=ROUNDS, steps=STEPS, starts=starts, record=record, notify=notify)
        progress.update(bar, completed=ROUNDS * STEPS, description=f"fit: {record.status}")
    if remedy and record.status == "failed" and len(record.failed) == len(job):
        record.warnings[-1] += f" {remedy[0].upper()}{remedy[1:]}."
    write_result(result, record, extra(record))
    _print_table(session, record)
    if record.status == "interrupted":
        session.print(f"interrupted: the best so far is in {result}")
        raise KeyboardInterrupt
    if record.status == "failed":
        raise ValueError(f"the fit failed, nothing is predicted: {record.warnings[-1]}")
    return record


def _progress(console):
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _print_table(session: Any, record: Identified) -> None:
    from rich.table import Table

    table = Table("parameter", "value", "standard error", "95 % interval", "unit")
    for name in record.job.free:
        for label, value in record.numbers(name).items():
            error = record.standard_errors.get(label)
            shown = "-" if error is None else f"{error:.2g}"
            ends = record.intervals.get(label)
            interval = "-" if ends is None else f"{ends[0]:.5g} to {ends[1]:.5g}"
            unit = record.job.quantities[name].unit
            table.add_row(label, f"{value:.5g}", shown, interval, unit)
    session.console.print(table)
    session.print(
        f"{record.rollouts} rollouts, {record.gradients} of them with gradient; "
        f"{record.compile_seconds:.1f} s compiling, {record.run_seconds:.1f} s running"
    )
    print_notes(session, record.warnings)


def print_notes(session: Any, warnings: list[str]) -> None:
    """Prints warnings, those of a fit after its table, those of predictions after theirs."""
    for warning in warnings:
        session.print(f"[yellow]note:[/] {warning}")
