"""Measured motions of three bodies: identified by gradients, predicted, and scored by their own scorers.

    python benchmarks/measured.py --json measured.json
    python benchmarks/measured.py --only elbow

Two boxes on a hinge that are tossed (`tossed_elbow`, beside MuJoCo with its fitted contact), a square that
is dropped (`dropped_square`) and single impacts of an ellipse (`ellipse_impacts`). The data lie in the
folder `DIFFNSD_DATA`. Parameters are fitted to a part of the open motions and scored on the rest; the
scores of other engines that come with the data (`BASELINES.md` there) are of motions that are not open.
`--quick` fits little or nothing: it shows that the program runs.
"""

import argparse
import json
from pathlib import Path

import jax

import _elbow
import _ellipse
import _harness
import _square

SETS = {"elbow": _elbow.rows, "square": _square.rows, "ellipse": _ellipse.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seed", type=int, default=0, help="which motions are fitted")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = []
    for name in options.only:
        for row in SETS[name](options.seed, options.quick):
            rows.append(row)
            print(", ".join(f"{k} {_short(v)}" for k, v in row.items()), flush=True)
    if options.json is not None:
        facts = {"header": _harness.header(), "seed": options.seed, "rows": rows}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


def _short(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
