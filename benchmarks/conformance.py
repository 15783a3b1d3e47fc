"""Every reference case of the established C++ system of this field, beside what it recorded.

For each case: the largest difference to the recorded rows, the tolerance that the case states, and
microseconds a step, here for one system and per system in a batch, and there.

    python benchmarks/conformance.py --json conformance.json
    python benchmarks/conformance.py --data DIR --cases diode_bridge rocking_block --no-timing

Times are medians of five turns. One system runs on one core, by itself; a batch by `rollout`, on all
cores, from starting velocities varied by parts in a thousand. The reference was timed on another
machine: take its times as within a factor of two.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

import jax

import _harness

BATCH = 1024
LIMIT, BATCHED_LIMIT = 10_000, 500
COLUMNS = (
    "case",
    "max_difference",
    "tolerance",
    "passed",
    "us_per_step",
    "us_per_step_batched",
    "reference_us_per_step",
)


def cases():
    """All cases, by name. Imported here: precision is set first."""
    import _cases_first_order
    import _cases_mechanical

    every = [*_cases_first_order.CASES, *_cases_mechanical.CASES]
    return {case.name: case for case in sorted(every, key=lambda case: case.name)}


def data_folder(given: Path | None) -> Path:
    """The folder of the reference trajectories."""
    root = given or Path(
        os.environ.get("DIFFNSD_DATA", Path(__file__).parents[2] / "shared" / "data")
    )
    for folder in (root / "reference_trajectories", root):
        if (folder / "circuit_rlcd" / "meta.json").exists():
            return folder
    raise SystemExit(f"no reference trajectories in {root}: give the folder with --data")


def median_us(call, steps: int) -> float:
    """Microseconds per step of a compiled call, the median of five turns."""
    _harness.wait(call())
    return statistics.median(_harness.timed(call) for _ in range(5)) / steps * 1e6


def alone(work) -> float:
    """Microseconds a step of one system."""
    run = jax.jit(work.call)
    return median_us(lambda: run(work.start), work.steps)


def batched(work) -> float:
    """Microseconds a step and system in a batch."""
    from diffnsd import rollout

    noise = jax.random.uniform(jax.random.key(0), (BATCH, *work.start.shape), minval=-1)
    starts = work.start * (1 + 1e-3 * noise.astype(work.start.dtype))
    return median_us(lambda: rollout(work.call, starts), work.steps * BATCH)


def row(case, folder: Path, timing: bool) -> dict:
    """One row of the table; a case that fails to run says why in place of its difference."""
    meta = json.loads((folder / case.name / "meta.json").read_text())
    found = dict.fromkeys(COLUMNS)
    found |= {"case": case.name, "tolerance": meta["tolerance"], "passed": False}
    found["reference_us_per_step"] = meta.get("siconos_us_per_step")
    try:
        found["max_difference"], _ = case.difference(folder)
        found["passed"] = found["max_difference"] <= found["tolerance"]
    except (RuntimeError, ValueError) as error:
        found["error"] = str(error).splitlines()[0]
    if timing and found["passed"]:
        with _harness.pinned(_harness.one_core()):
            found["us_per_step"] = statistics.mean(map(alone, case.work(folder, LIMIT)))
        rows = case.work(folder, BATCHED_LIMIT)
        found["us_per_step_batched"] = statistics.mean(map(batched, rows))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the data, or of the trajectories")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--no-timing", action="store_true", help="compare, but do not time")
    options = parser.parse_args(arguments)

    jax.config.update("jax_enable_x64", True)
    folder, known = data_folder(options.data), cases()
    if unknown := set(options.cases or ()) - set(known):
        raise SystemExit(f"unknown cases {sorted(unknown)}; there are {sorted(known)}")
    facts = _harness.header()
    _harness.print_header("Reference cases", facts)
    rows = []
    for name in options.cases or known:
        rows.append(row(known[name], folder, not options.no_timing))
        print(json.dumps(rows[-1]), flush=True)
    _harness.print_table(COLUMNS, [[_harness._short(r[c]) for c in COLUMNS] for r in rows])
    _summary(rows)
    if options.json:
        options.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")
    if not all(r["passed"] for r in rows):
        raise SystemExit(1)


def _summary(rows) -> None:
    timed = [r for r in rows if r["us_per_step"] and r["reference_us_per_step"]]
    print(f"{sum(r['passed'] for r in rows)} of {len(rows)} cases inside their tolerance")
    if timed:
        one = statistics.median(r["us_per_step"] / r["reference_us_per_step"] for r in timed)
        many = statistics.median(
            r["reference_us_per_step"] / r["us_per_step_batched"] for r in timed
        )
        print(f"one system: median {one:.2f} of the reference's time a step")
        print(f"batch of {BATCH}: median {many:.1f} times faster per system")


if __name__ == "__main__":
    main()
