"""The complementarity solvers on a folder of problems: what is solved, how well, how fast.

    python benchmarks/solvers.py --data DIR --out SOLUTIONS.npz --json FILE

The default method goes over every file of the folder, without a setting of its own for any. The array
`z` of each (of global problems the reaction) is stored under the file's stem; what is reported as
unsolvable is an array of NaN. Then every solver goes over the small problems, and batches are timed
beside the solvers of other packages that are installed. Success is what the residual says.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import _problems
import _solver_derivatives
import _solver_peers
from diffnsd import RESULTS, solve_complementarity
from diffnsd.complementarity import (
    AcceleratedProjectedGradient,
    Enumeration,
    InteriorPoint,
    Lemke,
    NonlinearComplementarityProblem,
    ProjectedGaussSeidel,
    SemismoothNewton,
    Splitting,
    solve_nonlinear_complementarity,
)

SOLVERS = (
    SemismoothNewton(),
    Splitting(),
    ProjectedGaussSeidel(),
    AcceleratedProjectedGradient(),
    Lemke(),
    Enumeration(),
    InteriorPoint(),
)
SMALL = 64
"""Most unknowns of the problems that every solver is tried on."""
REPEATED = 0.2
"""Seconds below which a solve is timed three times."""


@eqx.filter_jit
def solve(problem, start, solver=None):
    """One problem, linear or not."""
    if isinstance(problem, NonlinearComplementarityProblem):
        return solve_nonlinear_complementarity(problem, start, solver, throw=False)
    return solve_complementarity(problem, solver, throw=False)


def status(result) -> str:
    """The name of a result."""
    names = ("successful", "not_converged", "infeasible", "nonfinite_problem")
    found = [name for name in names if bool(result == getattr(RESULTS, name))]
    return "solved" if found == ["successful"] else found[0] if found else "failed"


def run(loaded, solver=None):
    """Solves and times one problem. **Returns:** its row, and `z`."""
    start = None if loaded.start is None else jnp.asarray(loaded.start)
    begin = time.perf_counter()
    out = jax.block_until_ready(solve(loaded.problem, start, solver))
    compile_s = time.perf_counter() - begin
    seconds = []
    while len(seconds) < (3 if not seconds or seconds[0] < REPEATED else 1):
        begin = time.perf_counter()
        out = jax.block_until_ready(solve(loaded.problem, start, solver))
        seconds.append(time.perf_counter() - begin)
        if compile_s > 60:
            break
    row = {
        "file": loaded.name,
        "kind": loaded.kind,
        "n": loaded.size,
        "status": status(out.result),
        "res_rel": float(out.residual),
        "res_vel": float(out.velocity_residual),
        "iterations": int(out.iterations),
        "us": 1e6 * float(np.median(seconds)),
        "compile_s": compile_s,
    }
    z = np.asarray(out.z)
    return row, (np.full_like(z, np.nan) if row["status"] == "infeasible" else z)


def serve(connection) -> None:
    """A process of its own: solves the files whose paths come in, one after the other."""
    jax.config.update("jax_enable_x64", True)
    for path in iter(connection.recv, None):
        connection.send(run(_problems.load(path)))
        jax.clear_caches()


class Worker:
    """Solves files in another process, which is ended when a file takes too long."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def solve(self, path: Path, limit: float | None):
        """Row and `z` of a file, `None` if it took longer than `limit` seconds or ended the process."""
        self.connection.send(path)
        try:
            return self.connection.recv() if self.connection.poll(limit) else None
        except EOFError:
            return None

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def default_method(
    files, rows: list[dict], solutions: dict, limit: float | None, keep: Callable[[], None]
) -> None:
    """The default method over the files that have no row yet; `keep` is called after each."""
    done = {row["file"] for row in rows}
    worker = None
    for path in files:
        if path.stem in done:
            continue
        worker = worker or Worker()
        begin = time.perf_counter()
        out = worker.solve(path, limit)
        if out is None:
            worker.close()
            worker = None
            loaded = _problems.load(path)
            out = (
                {
                    "file": loaded.name,
                    "kind": loaded.kind,
                    "n": loaded.size,
                    "status": "timeout",
                    "res_rel": None,
                    "res_vel": None,
                    "iterations": 0,
                    "us": 1e6 * (time.perf_counter() - begin),
                    "compile_s": None,
                },
                None,
            )
        row, z = out
        rows.append(row)
        if z is not None:
            solutions[path.stem] = z
        keep()
        measured = "" if z is None else f"{row['res_rel']:9.1e} {row['res_vel']:9.1e}"
        print(
            f"{row['file']:44} {row['kind']:6} {row['n']:6} {row['status']:14}{measured:19} "
            f"{row['iterations']:7} {row['us']:12.0f} us",
            flush=True,
        )
    if worker is not None:
        worker.close()


def solved(row) -> bool:
    """Whether a row passes the criterion of the problem set."""
    return row["res_rel"] is not None and row["res_rel"] <= 1e-8 and row["res_vel"] <= 1e-6


def table(files) -> list[dict]:
    """Every solver on every small problem that it is made for."""
    counts = []
    for solver in SOLVERS:
        tried = passed = 0
        spent = []
        for path in files:
            loaded = _problems.load(path)
            if loaded.size > SMALL or loaded.kind == "ncp":
                continue
            try:
                row, _ = run(loaded, solver)
            except ValueError:  # not made for these sets
                continue
            tried, passed = tried + 1, passed + solved(row)
            spent.append(row["us"])
        row = {"solver": type(solver).__name__, "tried": tried, "solved": passed}
        row["us"] = float(np.median(spent)) if spent else None
        counts.append(row)
        print(
            f"{row['solver']:30} {passed:4} of {tried:4}   median {row['us'] or 0:10.0f} us",
            flush=True,
        )
    return counts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of problems")
    parser.add_argument("--out", type=Path, help="where the solutions go (.npz)")
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--files", nargs="*", help="stems of the files, default all")
    parser.add_argument("--only-default", action="store_true", help="no table and no batches")
    parser.add_argument(
        "--derivatives", type=int, help="derivatives of problems with at most so many unknowns"
    )
    parser.add_argument("--limit", type=float, help="seconds for one file, compilation included")
    parser.add_argument("--resume", action="store_true", help="keep what --json and --out hold")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)

    files = sorted(options.data.glob("*.npz"), key=lambda path: path.stat().st_size)
    if options.files:
        files = [path for path in files if path.stem in options.files]
    rows, solutions = [], {}
    if options.resume and options.json and options.json.exists():
        rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
    if options.resume and options.out and options.out.exists():
        solutions = dict(np.load(options.out, allow_pickle=False))
    report: dict = {"rows": rows}

    def keep():
        if options.out:
            np.savez(options.out, **solutions)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")

    default_method(files, rows, solutions, options.limit, keep)
    print(f"solved: {sum(map(solved, rows))} of {len(rows)}")
    keep()
    if options.derivatives:
        report["derivatives"] = _solver_derivatives.sweep(files, solutions, options.derivatives)
        keep()
    if not options.only_default:
        report["solvers"] = table(files)
        report["batches"] = _solver_peers.batches()
        report["hard lanes"] = _solver_peers.hard_lanes()
        keep()


if __name__ == "__main__":
    main()
