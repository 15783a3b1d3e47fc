"""Reverse mode over a long run of the cube: what is stored, and what that costs in time.

The gradient of half the squared final distance after 10,000 steps, by friction, restitution, mass,
inertia and initial state, three times: `simulate` with `Checkpointed()` (its default at that
length), with `Direct()`, and a plain `jax.lax.scan` over the step of the integrator. Each runs in a
process of its own.

    python benchmarks/memory.py --json memory.json

"run MB" is how far the resident memory of the process rose during the call, "program MB" is what
XLA reserved for the intermediate values of the program, "process MB" is the peak with interpreter,
libraries and compiled code in it, which is the same for all three.
"""

import sys

import _harness
import _workloads
from _harness import Row, Worker, WorkerError

BAR = 20
ADJOINTS = ("Checkpointed", "Direct", "scan")


def main(arguments: list[str] | None = None) -> None:
    parser = _harness.parser(__doc__ or "", (1,))
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    options = parser.parse_args(arguments)
    names = options.engines or ADJOINTS
    facts = _harness.header()
    _harness.print_header(f"Reverse mode over {options.steps} steps of the cube", facts)
    rows = []
    for batch in options.batches:
        measured = [row for name in names if (row := _row(name, batch, options)) is not None]
        _print(measured)
        rows += measured
    if options.json is not None:
        _harness.write_json(rows, options.json, facts)
    if len(rows) < len(names) * len(options.batches):
        raise SystemExit(1)


def _row(name: str, batch: int, options) -> Row | None:
    arguments = (name, options.steps, batch, options.dtype, options.seed)
    try:
        with Worker(_workloads.prepare_long, arguments, timeout_s=options.timeout) as worker:
            times = [worker.forward() * 1e6 / (options.steps * batch) for _ in range(3)]
            peak, checks = worker.peak_mb(), worker.checks()
    except WorkerError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None
    return Row(
        name,
        f"cube, {options.steps} steps, reverse mode",
        batch,
        options.dtype,
        gradient_us_per_step=sorted(times)[1],
        gradient_us_per_step_min=min(times),
        gradient_us_per_step_max=max(times),
        gradient_compile_s=worker.compile_s,
        peak_mb=peak,
        repetitions=len(times),
        checks={**checks, "run_mb": peak - worker.rest_mb},
    )


def _print(rows: list[Row]) -> None:
    found = {row.engine: row for row in rows}
    table = [
        (
            row.engine,
            str(row.batch),
            f"{row.checks['run_mb']:.2f}",
            f"{row.checks['program_mb']:.2f}",
            f"{row.peak_mb:.0f}",
            f"{row.gradient_us_per_step:.3g}",
            f"{row.gradient_compile_s:.1f}",
            f"{row.checks['by_friction']:.8g}",
        )
        for row in rows
    ]
    columns = ("stored by", "batch", "run MB", "program MB", "process MB")
    columns += ("gradient µs/step", "compile s", "dloss/dfriction, lane 0")
    _harness.print_table(columns, table)
    if {"Checkpointed", "scan"} <= set(found):
        for field in ("run_mb", "program_mb"):
            ours, plain = (found[name].checks[field] for name in ("Checkpointed", "scan"))
            times = plain / ours if ours > 0 else float("inf")
            verdict = "met" if times >= BAR else "MISSED"
            print(f"scan / Checkpointed, {field}: {times:.0f} (bar: >= {BAR}) {verdict}")


if __name__ == "__main__":
    main()
