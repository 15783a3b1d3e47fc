"""One identification from the command line: fit, predict, write."""

import numpy as np

from ...identification.information._contradictions import APART
from ..fit import (
    Identified,
    about_predictions,
    draw_and_show,
    fit_and_show,
    padded_frames,
    print_notes,
    write_result,
)
from ._cube import (
    RELATIVE,
    CubeMotion,
    CubeParameters,
    check_flight,
    check_free,
    cube_job,
    lanes,
    smooth_start,
)
from ._data import Tosses
from ._outputs import Predicted, write_pages

SUBSTEPS = 4
FLIGHT_APART = 2.0
"""So many standard errors between gravity of a fit and of the free flights are said. Less than `APART`, since
this is one check of a number that is known: one right fit in 22 is told to look again, no ten numbers are."""
DRAWN = 30
"""Default number of tosses drawn for the fit."""


def run_identification(
    session,
    tosses: Tosses,
    folder,
    names,
    count,
    other,
    seed,
    smooth,
    title,
    truth=None,
    starts=1,
    sampler=None,
):
    """Fits the named parameters and writes result, predictions, report and replay to `folder`.

    `sampler`: draws from the posterior, which are written too; none by default.

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
    flight = check_flight(tosses)
    # Measured velocities are noisy, and that noise would bias the fit.
    fitted = smooth_start(tosses.select(chosen))
    target = tosses if other is None else other
    target = smooth_start(target) if smooth else target
    # Fixed restitution is zero, an inelastic cube; free restitution starts where it can change.
    start = CubeParameters.nominal(tosses, e=0.1 if "e" in free else 0.0)
    motion = CubeMotion(2 * float(start.half_width), float(tosses.dt), SUBSTEPS)
    frames = padded_frames(int(fitted.lengths.max()), int(target.lengths.max()))
    job, prediction = cube_job(start, lanes(fitted, frames), free, motion), {}

    def extra(record):
        return {
            "tosses": [int(i) for i in fitted.toss_id],
            "seed": seed,
            "smooth_start": smooth,
            "flight_gravity": flight,
            "failed_tosses": [int(fitted.toss_id[i]) for i in record.failed],
            **session.origin(),
            **prediction,
        }

    record = fit_and_show(session, job, folder, extra, truth, starts)
    said = len(record.warnings)
    record.warnings += about_gravity(record, flight)
    prediction |= draw_and_show(session, record, sampler, folder, f"Posterior of {title}", seed)
    with session.stage(f"predicting {len(target)} tosses and writing the pages"):
        predicted = Predicted(target, record)
        failed = int(predicted.failed.sum())
        if failed:
            record.warnings.append(
                f"{failed} of {len(target)} predicted tosses have a step that did not reach its "
                f"tolerance (largest residual {predicted.residual.max():.1e})."
            )
        predicted.save(folder / "predictions.npz")
        errors = predicted.errors()
        record.warnings += about_predictions(
            errors["position_percent"] / 100,
            predicted.still,
            [f"toss {i}" for i in target.toss_id],
        )
        prediction["prediction"] = {
            "tosses": len(target),
            "position_percent": float(errors["position_percent"].mean()),
            "rotation_deg": float(errors["rotation_deg"].mean()),
            "same_face_percent": float(100 * errors["same_face"].mean()),
            "largest_residual": float(predicted.residual.max()),
            "failed": failed,
            "deepest_penetration_mm": float(1e3 * predicted.penetration.max()),
        }
        details = {
            "tosses fitted": len(fitted),
            "seed": seed,
            "start of predictions": "fitted before contact" if smooth else "as measured",
            **session.origin(),
        }
        band = write_pages(folder, record, predicted, f"Identification of {title}", details)
        prediction["prediction"]["band_90_share"] = None if band is None else band.share
        write_result(folder / "result.json", record, extra(record))
    p = prediction["prediction"]
    session.print(
        f"predicted {p['tosses']} tosses from their first frame: position "
        f"{p['position_percent']:.2f} % of the width, rotation {p['rotation_deg']:.2f} deg, "
        f"same face {p['same_face_percent']:.1f} %"
    )
    print_notes(session, record.warnings[said:])
    drawn = "posterior.html, posterior.json, " * bool(record.posterior_page)
    session.print(
        f"wrote result.json, predictions.npz, {drawn}report.html, replay.html to {folder}"
    )
    return record


def about_gravity(record: Identified, flight: tuple[float, float] | None) -> list[str]:
    """Sentences if the fit, or the number of the file, disagrees with the free flights about gravity."""
    label, sentences = "gravity", []
    if flight is None:
        return sentences
    seen = f"the tosses fall with {flight[0]:.4g} m/s² before their first contact"
    of_file, width = record.job.value(record.job.model, label), RELATIVE[label]
    if abs(of_file - flight[0]) > APART * np.hypot(width * of_file, flight[1]):
        use = (
            f"its prior, {of_file:.4g} ± {width * of_file:.2g} m/s², pulls the fit there"
            if label in record.job.free
            else "all other numbers are fitted with it"
        )
        sentences.append(
            f"gravity of the file is {of_file:.4g} m/s², but {seen}: {use}; correct `gravity` in the data."
        )
    if label in record.standard_errors:
        factors = record.value("length_factor") / record.value("clock_factor") ** 2
        value, spread = record.value(label) * factors, record.standard_errors[label]
        apart = abs(value - flight[0]) / np.hypot(spread, flight[1])
        if apart > FLIGHT_APART:
            sentences.append(
                f"gravity is {value:.4g} m/s², but {seen}, {apart:.1f} standard errors apart: the fit makes "
                "up for an error of the model. Hold gravity at that value, or free `length_factor` in its "
                "place."
            )
    return sentences
