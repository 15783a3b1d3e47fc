"""Do disjoint halves of measured tosses give the same parameters, within their intervals?

    python benchmarks/split_halves.py --free mu,e --json halves.json

The data lie in the folder `DIFFNSD_DATA`. In each split twice `--tosses` of the tossed cube are drawn and
halved, each half is fitted as `diffnsd identify` does, and the differences are compared with their standard
errors. What both halves share (the model, the board, the camera) is not in these errors.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

import _harness
import _measured
from diffnsd.apps.fit import identify
from diffnsd.apps.toss import load_tosses
from diffnsd.apps.toss._cube import (
    CubeMotion,
    CubeParameters,
    check_free,
    cube_job,
    lanes,
    smooth_start,
)

SUBSTEPS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--free", default="mu,e")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--tosses", type=int, default=30, help="in each half")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    free = check_free(options.free.split(","))
    tosses = smooth_start(load_tosses(_measured.folder("tossed_cube") / "tossed_cube_open.npz"))
    frames = int(np.max(tosses.lengths))
    start = CubeParameters.nominal(tosses, e=0.1 if "e" in free else 0.0)
    motion = CubeMotion(2 * float(start.half_width), float(tosses.dt), SUBSTEPS)
    rows, agree, begin = [], dict.fromkeys(free, 0), time.perf_counter()
    for split in range(options.splits):
        rng = np.random.default_rng([options.seed, split])
        drawn = rng.choice(len(tosses), 2 * options.tosses, replace=False)
        halves = []
        for half in np.split(drawn, 2):
            batch = lanes(tosses.select(np.sort(half)), frames)
            halves.append(identify(cube_job(start, batch, free, motion)))
        row = {}
        for name in free:
            a, b = (half.value(name) for half in halves)
            s, t = (half.standard_errors[name] for half in halves)
            apart = abs(a - b) / np.hypot(s, t)
            half_widths = [np.ptp(h.intervals[name]) / 2 for h in halves]
            agree[name] += abs(a - b) <= np.hypot(*half_widths)
            row[name] = {"values": [a, b], "standard_errors": [s, t], "apart": apart}
        rows.append(row)
        told = ", ".join(
            f"{n} {r['values'][0]:.4g} and {r['values'][1]:.4g}, {r['apart']:.1f} standard errors"
            for n, r in row.items()
        )
        print(
            f"split {split}: {told}; {', '.join(h.status for h in halves)}; "
            f"{halves[0].rollouts} and {halves[1].rollouts} rollouts, "
            f"{time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    for name in free:
        print(f"{name}: the halves agree in {agree[name]} of {options.splits} splits")
    if options.json is not None:
        facts = {"header": _harness.header(), "seed": options.seed, "rows": rows}
        facts["agree"] = {name: int(count) for name, count in agree.items()}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
