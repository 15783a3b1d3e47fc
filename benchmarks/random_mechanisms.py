"""Derivatives through random mechanisms with stops, springs and dry friction, beside an oracle of the tests.

Masses on a line and driven arms are run for 1 s under `Located(MoreauJean())`. The oracle goes from event to
event in complex arithmetic and shares nothing with the package but formulas of masses, forces and gaps. An
error is that of a whole derivative of the end by all parameters, relative to its largest entry. What counts
is whether a wrong one is silent: of a run that succeeded and does not say that a derivative is missing.

    python benchmarks/random_mechanisms.py --lines 600 --arms 400 --seed 101

The oracle takes 0.4 to 0.6 s a mechanism, the package 0.08 s.
"""

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import _harness
import diffnsd as nsd

# The oracle belongs to the tests.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from oracles._mechanisms import FAMILIES, draws, off

DT, TOGETHER, WRONG = 1e-3, 100, 0.05


class Compared(NamedTuple):
    """Errors of the ends and of their derivatives `(n,)`; `said`: whether one is said to be missing."""

    ends: np.ndarray
    slopes: np.ndarray
    said: np.ndarray


@functools.cache
def program(name: str):
    """End, its derivative, and whether one is said to be missing, of a batch of parameters."""

    def run(p):
        model, start = FAMILIES[name].build(p)
        scheme, last = nsd.Located(nsd.MoreauJean()), nsd.SaveAt.end()
        out = nsd.simulate(model, scheme, 0.0, 1.0, DT, start, saveat=last, throw=False)
        end = jnp.concatenate([out.states.q, out.states.v])
        left = sum(jnp.sum(x) for x in (out.stats.missed, out.stats.slow, out.stats.merged))
        return end, (end, (left > 0) | (out.result != nsd.RESULTS.successful))

    @jax.jit
    @jax.vmap
    def all_of(p):
        jacobian, (end, said) = jax.jacfwd(run, has_aux=True)(p)
        return end, jacobian, said

    return all_of


def compared(name: str, p: np.ndarray, ends: np.ndarray, slopes: np.ndarray) -> Compared:
    """The package beside known ends and derivatives `(n, ...)`."""
    found, jacobian, said = (np.asarray(x) for x in program(name)(jnp.asarray(p)))
    # Contacts stay closed without restitution, and bounce with any: there is no derivative by it at zero.
    restitutions = np.array([parameter.startswith("e ") for parameter in FAMILIES[name].names])
    without = (restitutions & (p == 0))[:, None]
    jacobian, slopes = np.where(without, 0, jacobian), np.where(without, 0, slopes)
    return Compared(off(found, ends), off(jacobian, slopes), said)


def row(name: str, count: int, seed: int) -> dict:
    """Statistics of `count` mechanisms of a family."""
    known = draws(FAMILIES[name], count, seed)
    parts, events = [], []
    while count > 0:
        some = [next(known) for _ in range(min(count, TOGETHER))]
        events += [[event.kind for event in x[3]] for x in some]
        padded = some + some[-1:] * (TOGETHER - len(some))  # one program for all
        found = compared(name, *(np.stack([x[i] for x in padded]) for i in range(3)))
        parts.append([x[: len(some)] for x in found])
        count -= len(some)
    ends, slopes, said = (np.concatenate(x) for x in zip(*parts, strict=True))
    silent = np.where(said, 0, slopes)
    worst = int(np.argmax(silent))
    return {
        "family": name,
        "mechanisms": len(said),
        "seed": seed,
        "events_of_each": float(np.mean([len(kinds) for kinds in events])),
        "largest_error_of_an_end": float(ends.max()),
        "median_error_of_a_derivative": float(np.median(slopes)),
        "nine_tenths_at_most": float(np.quantile(slopes, 0.9)),
        "largest_that_is_silent": float(silent[worst]),
        "silent_and_wrong": int(np.sum(~(silent <= WRONG))),
        "said_to_be_missing": int(said.sum()),
        "events_of_the_worst": ", ".join(events[worst]),
    }


def main(arguments: list[str] | None = None) -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=60)
    parser.add_argument("--arms", type=int, default=40)
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    facts, rows = _harness.header(), []
    _harness.print_header(f"Random mechanisms, steps of {DT * 1e3:g} ms", facts)
    for name, count in (("line", options.lines), ("arm", options.arms)):
        if count > 0:
            rows.append(row(name, count, options.seed))
            for key, value in rows[-1].items():
                print(f"  {key} {value:.3g}" if isinstance(value, float) else f"  {key} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps({"header": facts, "rows": rows}, indent=1, default=str))


if __name__ == "__main__":
    main()
