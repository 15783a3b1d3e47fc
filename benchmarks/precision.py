"""What single precision keeps: workload by precision, of residuals, drift and gradients.

    python benchmarks/precision.py --json precision.json

The same lanes of the programs of `gpu.py` in float32 and float64. Columns: the largest residual of a step,
the tolerance it is held against, the drift (the deepest penetration at the end of a lane [m]), lanes whose
result is no success, how far the ends are from those in float64 (the median over the lanes, relative to the
largest entry), and the same of the gradient. Ends of
motions with impacts differ by more than rounding, because an impact may move by a step. Ends with status 1
if a success has a residual above its tolerance.
"""

import argparse
import json
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import _device_programs
import _harness

TOLERANCE = {"float64": 1e-8, "float32": 1e-5}
WORKLOADS = ("ball", "circuit", "solver", "cube", "hopper")


def measured(workload: str, method: str, dtype: str, batch: int) -> dict[str, np.ndarray]:
    """End, gradient, residual and success of every lane, in double precision."""
    with jax.enable_x64(dtype == "float64"):
        task = _device_programs.WORKLOADS[workload]
        lanes = task.lanes(batch, dtype)
        slope, outcome = _device_programs.program(workload, method, "gradient")(lanes)
        depth = np.zeros(batch)
        for gap in jax.tree.leaves(outcome.gaps):  # a circuit has none
            gap = np.asarray(gap, float).reshape(batch, -1)
            depth = np.maximum(depth, -np.min(gap, axis=1, initial=0)) + 0.0  # not -0
        end = [x.reshape(batch, -1) for x in jax.tree.leaves(outcome.end)]
        gradient = np.concatenate(
            [np.asarray(x, float).reshape(batch, -1) for x in jax.tree.leaves(slope)], axis=1
        )
        return {
            "end": np.asarray(jnp.concatenate(end, axis=1), float),
            "gradient": gradient,
            "drift": depth,
            "residual": np.asarray(outcome.residual, float).reshape(batch, -1).max(axis=1),
            "failed": np.asarray(outcome.failed).reshape(batch),
        }


def off(found: np.ndarray, exact: np.ndarray) -> float:
    """Median over the lanes of the largest difference, relative to the largest entry of the lane."""
    size = np.maximum(np.max(np.abs(exact), axis=1), np.finfo(float).tiny)  # a lane may be zero
    return float(np.median(np.max(np.abs(found - exact), axis=1) / size))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument(
        "--methods", nargs="+", choices=tuple(_device_programs.METHODS), default=["plain"]
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, table, lied = [], [], False
    for workload, method in _device_programs.names():
        if workload not in options.workloads or method not in options.methods:
            continue
        exact = measured(workload, method, "float64", options.batch)
        for dtype in TOLERANCE:
            found = (
                exact if dtype == "float64" else measured(workload, method, dtype, options.batch)
            )
            good = ~found["failed"]
            row = {
                "workload": workload,
                "method": method,
                "dtype": dtype,
                "residual": float(np.max(found["residual"])),
                "residual_of_successes": float(np.max(found["residual"], where=good, initial=0)),
                "drift": float(np.max(found["drift"])),
                "failed": int(np.sum(~good)),
                "end": off(found["end"], exact["end"]),
                "gradient": off(found["gradient"], exact["gradient"]),
            }
            lied |= row["residual_of_successes"] > TOLERANCE[dtype]
            rows.append(row)
            figures = (row["residual"], TOLERANCE[dtype], row["drift"], row["end"], row["gradient"])
            table.append(
                (
                    workload,
                    method,
                    dtype,
                    *(f"{x:.1e}" for x in figures),
                    f"{row['failed']}/{options.batch}",
                )
            )
            print(*table[-1], flush=True)
    print()
    columns = (
        "workload",
        "method",
        "dtype",
        "residual",
        "tolerance",
        "drift",
        "end off",
        "gradient off",
        "failed",
    )
    _harness.print_table(columns, table)
    if options.json:
        facts = {"jax": jax.__version__, "diffnsd": metadata.version("diffnsd")}
        options.json.write_text(
            json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n", "utf-8"
        )
    if lied:
        raise SystemExit("a success has a residual above its tolerance")


if __name__ == "__main__":
    main()
