"""Cube, ball, hopper, ant, a circuit and a batch of contact problems on a GPU, in one table.

    python benchmarks/gpu.py --out results
    python benchmarks/gpu.py --out results --workloads cube --methods plain --dtypes float32 --batches 65536

writes `results/gpu.json` (rows as of the other benchmarks) and `results/gpu.md` (device, versions,
table, ratios), after every batch size, so that what was measured survives an interruption. A batch is
one program: all lanes are stepped together, plainly, under `Located` and under `Corrected`; with
`--ways forward` no gradient is compiled. MJX and, in float32, MuJoCo Warp run on the GPU too where they are
installed, MuJoCo (C) on the cores of the host; a circuit and contact problems have no peer here.

    python benchmarks/gpu.py --count --workloads cube hopper --methods plain

needs no GPU: it lowers every program (forward and gradient, both precisions) for CUDA and counts its
operations, its calls out of XLA and its calls to the host, of which there must be none. `--kernels` also
compiles them for the device that JAX finds and counts the kernels of a step: outside of inner loops, and
inside, each loop once. Counts on a CPU are estimates: a GPU fuses differently.

Without a GPU it says so and ends; with `--allow-cpu` it first runs a batch of 4 on the CPU, which
shows that it works and measures nothing.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import _device_programs
import _harness
import _peers
import _warp
from _drive import OURS, Start, check_physics, compare, our_worker
from _harness import Row, Worker

BATCHES = (1, 1024, 16384, 65536, 262144)
CHECKED = ("cube", "ball")
"""Workloads whose whole motion is looked at first; of the others the ends of all lanes are."""


def main(arguments: list[str] | None = None) -> None:
    parser = _harness.parser(__doc__ or "", BATCHES)
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR")
    parser.add_argument(
        "--workloads", nargs="+", choices=tuple(_device_programs.WORKLOADS), default=[]
    )
    parser.add_argument(
        "--count", action="store_true", help="lower for CUDA and count, time nothing"
    )
    methods = tuple(_device_programs.METHODS)
    parser.add_argument(
        "--methods", nargs="+", choices=methods, default=methods, help="ways to step"
    )
    ways = _device_programs.WAYS
    parser.add_argument(
        "--ways", nargs="+", choices=ways, default=ways, help="forward is timed always"
    )
    parser.add_argument(
        "--kernels", action="store_true", help="with --count: compile, count kernels"
    )
    dtypes = ("float64", "float32")
    parser.add_argument("--dtypes", nargs="+", choices=dtypes, default=list(dtypes))
    parser.add_argument(
        "--ahead", type=int, default=1, help="engines that are compiled side by side"
    )
    parser.add_argument(
        "--lock",
        type=Path,
        help="a file: runs that share it compile together, time in turns",
    )
    parser.add_argument("--allow-cpu", action="store_true", help="without a GPU, try a batch of 4")
    options = parser.parse_args(arguments)

    if options.count:
        return count(options)
    import jax

    facts = _harness.header()
    gpu = jax.default_backend() == "gpu"
    if not gpu:
        print(f"No GPU: JAX finds {facts['device']}.")
        if not options.allow_cpu:
            return
        print("A batch of 4 on the CPU follows; its times mean nothing.")
        options.batches = [4]
    _harness.print_header("On a GPU" if gpu else "Trial on the CPU", facts)

    rows: list[Row] = []
    for workload in options.workloads or _device_programs.WORKLOADS:
        steps = _device_programs.WORKLOADS[workload].steps
        for dtype in options.dtypes:
            physics = check_physics(workload, dtype, options) if workload in CHECKED else {}
            for batch in options.batches:
                one = argparse.Namespace(**{**vars(options), "batches": [batch]})
                engines = _engines(workload, dtype, gpu, options)
                try:
                    found = compare(workload, dtype, steps, engines, (), physics, one)
                except SystemExit:
                    found = []
                if found:
                    rows += found
                    _harness.write_json(rows, options.out / "gpu.json", facts)
                    (options.out / "gpu.md").write_text(_markdown(rows, facts), encoding="utf-8")
                ours = [row for row in found if row.engine == OURS]
                if not found or any(row.us_per_step is None for row in ours):
                    # larger batches will not fit either
                    print(f"{workload}, {dtype}: ends at a batch of {batch}", file=sys.stderr)
                    break
    if options.json is not None:
        _harness.write_json(rows, options.json, facts)
    print(f"{len(rows)} rows in {options.out / 'gpu.json'} and {options.out / 'gpu.md'}")


def count(options: argparse.Namespace) -> None:
    """Lowers every program for CUDA and prints what it consists of; ends with 1 if one calls the host."""
    import jax

    columns = ("workload", "method", "way", "dtype", "operations", "calls", "host")
    rows, broken = [], False
    for workload, method in _device_programs.names():
        wanted = not options.workloads or workload in options.workloads
        if not wanted or method not in options.methods:
            continue
        for dtype in options.dtypes:
            jax.config.update("jax_enable_x64", dtype == "float64")
            for way in options.ways:
                program = workload, method, way, dtype
                found = _device_programs.lower_for_cuda(*program)
                row = [*program, str(found.operations), " ".join(found.calls), str(len(found.host))]
                if options.kernels:
                    kernels = _device_programs.kernels(*program)
                    row += [str(kernels.step), str(kernels.inner)]
                print(*row, flush=True)
                rows.append(row)
                broken |= bool(found.host)
    columns += ("kernels", "in loops") if options.kernels else ()
    print()
    _harness.print_table(columns, rows)
    if broken:
        raise SystemExit(1)


def _engines(workload: str, dtype: str, gpu: bool, options: argparse.Namespace) -> dict[str, Start]:
    seed, timeout = options.seed, options.timeout
    ways = tuple(dict.fromkeys(("forward", *options.ways)))  # a row has a forward time in any case

    def ours(method: str) -> Start:
        return lambda batch: Worker(
            _device_programs.prepare, (workload, method, batch, dtype, ways), timeout_s=timeout
        )

    engines = {
        OURS if method == "plain" else method: ours(method)
        for name, method in _device_programs.names()
        if name == workload and method in options.methods
    }
    if workload == "ball":
        engines["scan"] = our_worker("ball", "scan", dtype, options)
    installed = _peers.installed() if workload in _peers.TASKS else ()
    slope = "friction" if "gradient" in ways else None
    if "mujoco-mjx" in installed and gpu:
        engines["mujoco-mjx"] = lambda batch: _peers.mjx_worker(
            workload, batch, dtype, seed, gradient=slope, timeout_s=timeout
        )
    if workload in _peers.TASKS and _warp.installed() and gpu and dtype == "float32":
        engines["mujoco-warp"] = lambda batch: _warp.worker(
            workload, batch, seed, timeout_s=timeout
        )
    if "mujoco" in installed:
        engines["mujoco"] = lambda batch: _peers.mujoco_worker(
            workload, batch, seed, timeout_s=timeout
        )
    return {n: start for n, start in engines.items() if n in (options.engines or engines)}


def _markdown(rows: Sequence[Row], facts: Mapping[str, str]) -> str:
    """The rows as a table, under the device and the versions; then the ratios."""
    lines = [f"# {facts['device']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += [
        "",
        "Times in µs per step and system: median (min to max). Steps a second are those of all systems "
        "of a batch, gradients a second whole gradients times their steps. Memory is the device's, for "
        "`mujoco` the process's, for `mujoco-warp` unknown.",
        "",
        "| engine | workload | batch | dtype | forward | steps/s | gradient | gradients x steps/s "
        "| compile s | gradient compile s | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row.engine, row.workload, str(row.batch), row.dtype)
        for which in ("", "gradient_"):
            middle = getattr(row, f"{which}us_per_step")
            cells += (_spread(row, which), f"{1e6 / middle:.3g}" if middle else "")
        figures = (row.compile_s, row.gradient_compile_s, row.peak_mb)
        cells += tuple("" if x is None else f"{x:.1f}" for x in figures)
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| ratio of times | workload | batch | dtype | min | median | max |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        for name, spread in row.checks.get("ratios_min_median_max", {}).items():
            cells = (name, row.workload, str(row.batch), row.dtype, *(f"{x:.3g}" for x in spread))
            lines.append("| " + " | ".join(cells) + " |")
    notes = [
        f"- {row.engine}, {row.workload}, batch {row.batch}, {row.dtype}: {row.checks[key]}"
        for row in rows
        for key in ("failed", "not_timed")
        if isinstance(row.checks.get(key), str)
    ]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def _spread(row: Row, which: str) -> str:
    middle, low, high = (getattr(row, f"{which}us_per_step{end}") for end in ("", "_min", "_max"))
    return "" if middle is None else f"{middle:.3g} ({low:.3g} to {high:.3g})"


if __name__ == "__main__":
    main()
