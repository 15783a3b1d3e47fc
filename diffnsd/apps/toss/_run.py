"""One identification from the command line: fit, predict, write."""

import numpy as np
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ._cube import UNITS, CubeParameters, lanes, smooth_start
from ._data import Tosses
from ._fit import Identified, check_free, identify
from ._outputs import Predicted, write_pages, write_result

SUBSTEPS = 4
DRAWN = 30
"""Default number of tosses drawn for the fit."""
ROUNDS, STEPS = 6, 7


def run_identification(session, tosses: Tosses, folder, names, count, other, seed, smooth, title):
    """Fits the named parameters and writes result, predictions, report and replay to `folder`.

    **Raises:** `ValueError` for unknown parameters, too many tosses, a box that is not a cube, or a
    failed fit; `KeyboardInterrupt` if the fit was interrupted. In the last two cases `result.json`
    has been written.
    """
    free = check_free(names)
    if count is None:
        count = min(DRAWN, len(tosses))
    if count > len(tosses):
        raise ValueError(f"--tosses is {count}, but the file has {len(tosses)}; 0 takes all.")
    chosen = np.arange(len(tosses))
    if 0 < count < len(tosses):
        chosen = np.sort(np.random.default_rng(seed).choice(len(tosses), count, replace=False))
    fitted = tosses.select(chosen)
    target = tosses if other is None else other
    if smooth:
        fitted, target = smooth_start(fitted), smooth_start(target)
    # Fixed restitution is zero, an inelastic cube; free restitution starts where it can change.
    start = CubeParameters.nominal(tosses, e=0.1 if "e" in free else 0.0)
    record = Identified(free, start, start)
    extra = {"tosses": [int(i) for i in fitted.toss_id], "seed": seed, "smooth_start": smooth}
    write_result(folder / "result.json", record, extra)

    with _progress(session.console) as progress:
        bar = progress.add_task("compiling", total=ROUNDS * STEPS)

        def notify(record, stage):
            loss = f", loss {record.loss:.4g}" if record.losses else ""
            progress.update(
                bar, description=f"{stage}{loss}", completed=record.gradients / len(chosen)
            )
            if stage == "saved":
                write_result(folder / "result.json", record, extra)

        identify(
            lanes(fitted),
            start,
            free,
            float(tosses.dt),
            substeps=SUBSTEPS,
            rounds=ROUNDS,
            steps=STEPS,
            state=record,
            notify=notify,
        )
        progress.update(bar, completed=ROUNDS * STEPS, description=f"fit: {record.status}")
    extra["failed_tosses"] = [int(fitted.toss_id[i]) for i in record.failed]
    write_result(folder / "result.json", record, extra)
    _print_table(session, record)
    if record.status == "interrupted":
        session.print(f"interrupted: the best so far is in {folder / 'result.json'}")
        raise KeyboardInterrupt
    if record.status == "failed":
        raise ValueError(f"the fit failed, nothing is predicted: {record.warnings[-1]}")

    with session.stage(f"predicting {len(target)} tosses and writing the pages"):
        predicted = Predicted(target, record.cube, SUBSTEPS)
        failed = int(predicted.failed.sum())
        if failed:
            record.warnings.append(
                f"{failed} of {len(target)} predicted tosses have a step that did not reach its "
                f"tolerance (largest residual {predicted.residual.max():.1e})."
            )
        predicted.save(folder / "predictions.npz")
        errors = predicted.errors()
        extra["prediction"] = {
            "tosses": len(target),
            "position_percent": float(errors["position_percent"].mean()),
            "rotation_deg": float(errors["rotation_deg"].mean()),
            "same_face_percent": float(100 * errors["same_face"].mean()),
            "largest_residual": float(predicted.residual.max()),
            "failed": failed,
            "deepest_penetration_mm": float(1e3 * predicted.penetration.max()),
        }
        write_result(folder / "result.json", record, extra)
        write_pages(folder, record, predicted, f"Identification of {title}")
    p = extra["prediction"]
    session.print(
        f"predicted {p['tosses']} tosses from their first frame: position "
        f"{p['position_percent']:.2f} % of the width, rotation {p['rotation_deg']:.2f} deg, "
        f"same face {p['same_face_percent']:.1f} %"
    )
    session.print(f"wrote result.json, predictions.npz, report.html, replay.html to {folder}")
    return record


def _progress(console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _print_table(session, record: Identified) -> None:
    table = Table("parameter", "value", "standard error", "unit")
    for name in record.free:
        error = record.standard_errors.get(name)
        shown = "-" if error is None else f"{error:.2g}"
        table.add_row(name, f"{record.value(name):.5g}", shown, UNITS[name])
    session.console.print(table)
    session.print(
        f"{record.rollouts} toss rollouts, {record.gradients} of them with gradient; "
        f"{record.compile_seconds:.1f} s compiling, {record.run_seconds:.1f} s running"
    )
    for warning in record.warnings:
        session.print(f"[yellow]note:[/] {warning}")
