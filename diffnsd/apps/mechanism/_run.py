"""One identification of a file from the command line: fit, predict, write."""

from pathlib import Path
from typing import Any

import numpy as np

from ...io import Elements, save_mjcf
from ...io._save import check_writable
from .._files import DataFileError, read_archive
from ..fit import (
    about_predictions,
    draw_and_show,
    fit_and_show,
    moved_by,
    padded_frames,
    print_notes,
    write_result,
)
from ._data import Runs, ignored_keys, load_runs, repeated_runs
from ._job import MechanismMotion, mechanism_job, metric_of, size_of
from ._names import quantities, with_rebound
from ._outputs import Predicted, write_pages
from ._simulate import Loading, crowding, is_file
from ._starts import with_estimated_starts
from ._units import check_units

MOVED = 1.0
"""By how many standard errors half the step may move an estimate without a warning."""


def runs_of_file(file: Path, runs: Path | None, tosses: int | None) -> Path:
    """The measured runs that a file is identified from.

    **Raises:** `ValueError` without any, or for an option that only tosses of a cube have.
    """
    if runs is None:
        raise ValueError(f"give the measured runs too: diffnsd identify {file} RUNS.npz.")
    if tosses is not None:
        raise ValueError(
            "--tosses draws from the tosses of a cube; of a file all runs are fitted: leave it out, or give "
            "fewer runs."
        )
    return runs


def check_cube(data: Path, runs: Path | None) -> None:
    """Refuses runs of a mechanism where tosses of a cube are expected.

    **Raises:** `DataFileError` for these and for what is no archive; `ValueError` for a second file.
    """
    if read_archive(data, (), ("qpos",), ""):
        file = runs if runs and is_file(str(runs)) else "FILE.xml"
        raise DataFileError(
            f"{data}: these are runs of a mechanism: give its MJCF or URDF file first: diffnsd identify "
            f"{file} {data}"
        )
    if runs is not None:
        raise ValueError(
            f"{runs}: a second file are the runs of an MJCF or URDF file (.xml, .mjcf, .urdf), but the first "
            f"one is {data}; to predict other tosses give --predict {runs}."
        )


def identify_file(
    session: Any,
    file: Path,
    data: Path,
    names: list[str],
    folder: Path,
    other: Path | None,
    loading: Loading,
    substeps: int,
    starts: int = 1,
    smooth_start: bool = True,
    sampler: Any = None,
    seed: int = 0,
) -> None:
    """Fits the named numbers of an MJCF or URDF file and writes everything to `folder`.

    `smooth_start`: whether predictions start from estimated velocities, as the fit does. `sampler`: draws
    from the posterior, which are written too; none by default. `seed`: of these draws.

    **Raises:** `ValueError` for files, data or names that cannot be used, or a failed fit;
    `KeyboardInterrupt` if the fit was interrupted. In the last two cases `result.json` has been written.
    """
    if substeps < 1:
        raise ValueError(f"--substeps must be 1 or more, got {substeps}.")
    _, elements, _ = loading.load(str(file))
    # Wrong names are refused before anything runs.
    check_writable(elements, quantities(elements, names, size_of(elements)), str(file))
    elements = with_rebound(elements, names)
    runs, target = _measured(session, elements, data, other)
    frames = padded_frames(int(runs.lengths.max()), int(target.lengths.max()))
    with session.stage("estimating start velocities from the frames before contact"):
        runs, estimated = with_estimated_starts(elements, runs, substeps)
    if estimated.any():
        session.print(
            f"note: start velocities of {estimated.sum()} of {len(runs)} runs are estimated"
        )
    job, metric = mechanism_job(elements, runs, names, substeps, frames), metric_of(elements)
    size, prediction = float(metric.size), {}

    def extra(record):
        return {
            "file": file.name,
            "runs": len(runs),
            "size": size,
            "not_loaded": list(elements.report),
            "failed_runs": list(record.failed),
            "estimated_starts": int(estimated.sum()),
            "smooth_start": smooth_start,
            **session.origin(),
            **prediction,
        }

    remedy = f"take shorter steps (--substeps {4 * substeps})"
    if loading.max_active or loading.near:
        remedy += f" or, if more contacts close at a time than are solved, make room ({crowding(elements)})"
    record = fit_and_show(session, job, folder, extra, starts=starts, remedy=remedy)
    said = len(record.warnings)
    record.warnings += repeated_runs(runs)
    with session.stage("repeating the runs with half the step"):
        finer = MechanismMotion(metric, runs.dt, 2 * substeps)
        record.warnings += [
            f"with {2 * substeps} steps per frame {name} would move by {moved:.2g} of its standard errors, "
            f"so that {substeps} are too few: fit again with --substeps {4 * substeps}, and compare."
            for name, moved in moved_by(record, finer).items()
            if moved > MOVED
        ]
    prediction |= draw_and_show(session, record, sampler, folder, f"Posterior of {file.stem}", seed)
    fitted = folder / "fitted.xml"
    try:
        save_mjcf(record.model, str(file), fitted)
    except ValueError as error:
        record.warnings.append(f"fitted.xml was not written: {error}")
    with session.stage(f"predicting {len(target)} runs and writing the pages"):
        smooth = np.zeros(len(target), bool)
        if smooth_start:
            target, smooth = with_estimated_starts(record.model, target, substeps)
        motion = MechanismMotion(metric, target.dt, substeps)
        predicted = Predicted(record, motion, record.model, target)
        if predicted.failed.any():
            record.warnings.append(
                f"{predicted.failed.sum()} of {len(target)} predicted runs have a step that did not reach "
                f"its tolerance (largest residual {predicted.residual.max():.1e})."
            )
        if crowded := int(predicted.overflowed.sum()):
            record.warnings.append(
                f"in {crowded} of {len(target)} predicted runs more contacts close at a time than are "
                f"solved: {crowding(elements)}."
            )
        record.warnings += about_predictions(
            predicted.position, predicted.still, [f"run {j}" for j in range(len(target))]
        )
        predicted.save(folder / "predictions.npz")
        prediction["prediction"] = predicted.figures()
        title = f"Identification of {file.stem}"
        starts_of = {"starts that are estimated": f"{smooth.sum()} of {len(target)}"}
        band = write_pages(folder, record, predicted, title, starts_of | session.origin())
        prediction["prediction"]["band_90_share"] = None if band is None else band.share
        write_result(folder / "result.json", record, extra(record))
    p = prediction["prediction"]
    session.print(
        f"predicted {p['runs']} runs from their first frame: position {p['position_percent']:.2f} % of the "
        f"size {size:.3g} m, rotation {p['rotation_deg']:.2f} deg"
    )
    print_notes(session, record.warnings[said:])
    written = "result.json, predictions.npz, report.html, replay.html"
    written += ", posterior.html, posterior.json" * bool(record.posterior_page)
    session.print(f"wrote {written}{', fitted.xml' * fitted.exists()} to {folder}")


def _measured(
    session: Any, elements: Elements, data: Path, other: Path | None
) -> tuple[Runs, Runs]:
    """The runs to fit and those to predict, checked, with notes on what is assumed about them."""
    read = [load_runs(path, elements) for path in (data, other) if path is not None]
    for one in read:
        check_units(elements, one)
    for path in dict.fromkeys(path for path in (data, other) if path is not None):
        for ignored in ignored_keys(path):
            session.print(f"note: {ignored}")
    runs, target = read[0], read[-1]
    if target.dt > 0 and not np.isclose(target.dt, runs.dt, rtol=0.01):
        session.print(f"note: frames are {runs.dt:g} s apart, those to predict {target.dt:g} s")
    if elements.plan.actuators and runs.controls is None:
        session.print("note: the data have no key controls; all actuators are given 0")
    if elements.plan.activations:
        session.print("note: every run starts with activations 0")
    return runs, target
