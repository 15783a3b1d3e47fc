"""Geometric integrators against motions known to thirty digits, beside diffrax at equal accuracy.

For every file of the folder (13 motions, recognised by their keys) and every method that applies: the
error at three step sizes, the observed order, the drift of the invariants, microseconds per step. Then
work against precision: the time that the method and diffrax's adaptive Dopri8 take to the same error.

    python benchmarks/geometry.py --data ../shared/data/exact_solutions --json geometry.json
    python benchmarks/geometry.py --data DIR --files rigid_body_1 --methods "RKMK Dopri8"

The error is the largest deviation of any component at any time of the file.
"""

import argparse
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import diffnsd as nsd
from _motions import Motion, load
from diffnsd import ButcherTableau as Tableau
from diffnsd.integrators import TripleJump

jax.config.update("jax_enable_x64", True)

BAR = 1e-10
"""Error that the best method must reach on every motion."""

DOUBLINGS = 6
"""How often the steps of the best method are halved where no row reaches the bar."""

FLOOR = 2e-12
"""Errors below this are round-off, and no order is read from them."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A method: its theoretical order, how it is made, the steps that it takes between checkpoints.

    `steps`: multiples of the motion's `base` for the three step sizes; `kinds`: motions that it is for,
    `None` for all; `variational`: it wants positions and velocities.
    """

    order: int
    make: Callable
    steps: tuple[float, float, float] = (2, 4, 8)
    kinds: frozenset[str] | None = None
    variational: bool = False

    def motion(self, motion: Motion) -> Motion | None:
        """The motion in the form that the method is for, `None` if there is none."""
        if self.kinds is not None and motion.kind not in self.kinds:
            return None
        return motion.mechanical if self.variational else motion


LIE = frozenset({"rigid_body", "heavy_top", "kirchhoff", "spherical_pendulum", "gravity_gradient"})

# One entry, one line; methods for some kinds only name them.
METHODS: dict[str, Method] = {
    "RKMK RK4": Method(4, lambda: nsd.RKMK()),
    "RKMK RK4 Cayley": Method(4, lambda: nsd.RKMK(retraction=nsd.Cayley()), kinds=LIE),
    "RKMK Butcher 6": Method(6, lambda: nsd.RKMK(Tableau.butcher6()), (1, 2, 4)),
    "RKMK Dopri8": Method(8, lambda: nsd.RKMK(diffrax.Dopri8()), (0.5, 1, 2)),
    "RKMK Gauss 3": Method(6, lambda: nsd.RKMK(Tableau.gauss(3)), (0.5, 1, 2), kinds=LIE),
    "commutator-free 4": Method(4, lambda: nsd.CommutatorFree(), kinds=LIE),
    "Crouch-Grossman 3": Method(3, lambda: nsd.CrouchGrossman(), (4, 8, 16), kinds=LIE),
    "variational Cayley": Method(2, lambda: nsd.LieVariational(), (8, 16, 32), variational=True),
    "variational exp": Method(
        2, lambda: nsd.LieVariational(nsd.Exponential()), (8, 16, 32), LIE, variational=True
    ),
    "variational quaternion": Method(
        2, lambda: nsd.LieVariational(nsd.QuaternionVector()), (8, 16, 32), LIE, variational=True
    ),
    "triple jump 4": Method(
        4, lambda: TripleJump(nsd.LieVariational()), (4, 8, 16), variational=True
    ),
    "Galerkin 2": Method(4, lambda: nsd.Galerkin(2), (2, 4, 8), variational=True),
    "Galerkin 4": Method(8, lambda: nsd.Galerkin(4), (0.5, 1, 2), variational=True),
}


def largest_error(motion: Motion, states) -> float:
    found = motion.fields(states)
    errors = [np.max(np.abs(np.asarray(found[k]) - motion.exact[k])) for k in motion.exact]
    return float(max(errors))


def measure(motion: Motion, integrator, per_interval: int, repetitions: int):
    """Error, invariant drift and microseconds per step, with so many steps between checkpoints."""
    intervals = len(motion.t) - 1
    begin, end = float(motion.t[0]), float(motion.t[-1])
    dt = motion.interval / per_interval
    saveat = nsd.SaveAt(steps=per_interval)

    def run(state):
        sol = nsd.simulate(
            motion.model, integrator, begin, end, dt, state, saveat=saveat, throw=False
        )
        return sol.states, sol.result

    compiled = jax.jit(run).lower(motion.state0).compile()
    states, result = compiled(motion.state0)
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        jax.block_until_ready(compiled(motion.state0))
        seconds.append(time.perf_counter() - start)
    drift = float(nsd.diagnostics.drift(motion.invariants(states)))
    problem = None if result == nsd.RESULTS.successful else nsd.RESULTS[result]
    us = 1e6 * statistics.median(seconds) / (intervals * per_interval)
    return largest_error(motion, states), drift, us, statistics.median(seconds), problem


def rows_of(
    motion: Motion, name: str, method: Method, factors, repetitions: int, before=None
) -> list[dict]:
    rows = []
    for factor in factors:
        per_interval = max(1, round(factor * motion.base))
        error, drift, us, seconds, problem = measure(
            motion, method.make(), per_interval, repetitions
        )
        observed = None
        if before is not None and min(error, before) > FLOOR:
            observed = math.log2(before / error)
        rows.append(
            {
                "file": motion.name,
                "method": name,
                "h": motion.interval / per_interval,
                "error": error,
                "observed_order": observed,
                "invariant_drift": drift,
                "us_per_step": us,
                "steps": per_interval * (len(motion.t) - 1),
                "seconds": seconds,
                "order": method.order,
                "problem": problem,
            }
        )
        before = error
    return rows


def diffrax_seconds(motion: Motion, target: float, repetitions: int) -> dict:
    """diffrax's adaptive Dopri8 at the loosest tolerance that reaches an error."""
    term = diffrax.ODETerm(motion.field)
    times = jnp.asarray(motion.t)

    def run(state, tolerance):
        sol = diffrax.diffeqsolve(
            term,
            diffrax.Dopri8(),
            times[0],
            times[-1],
            None,
            state,
            saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
            max_steps=None,
            throw=False,
        )
        return sol.ys, sol.stats["num_accepted_steps"]

    compiled = jax.jit(run).lower(motion.state0, 1e-9).compile()
    for exponent in np.arange(7, 14.5, 0.5):
        tolerance = float(10.0**-exponent)
        states, steps = compiled(motion.state0, tolerance)
        error = largest_error(motion, states)
        if error <= target:
            break
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        jax.block_until_ready(compiled(motion.state0, tolerance))
        seconds.append(time.perf_counter() - start)
    return {
        "file": motion.name,
        "method": "diffrax Dopri8 adaptive",
        "h": float(motion.t[-1] - motion.t[0]) / int(steps),
        "error": error,
        "observed_order": None,
        "invariant_drift": float(nsd.diagnostics.drift(motion.invariants(states))),
        "us_per_step": 1e6 * statistics.median(seconds) / int(steps),
        "steps": int(steps),
        "seconds": statistics.median(seconds),
        "order": 8,
        "problem": None if error <= target else f"did not reach {target:.1e}",
    }


def show(row: dict) -> None:
    observed = row["observed_order"]
    order = "     " if observed is None else f"{observed:5.2f}"
    print(
        f"{row['file']:22} {row['method']:24} h {row['h']:9.2e}  steps {row['steps']:7d}  "
        f"error {row['error']:8.1e}  order {order}  drift {row['invariant_drift']:8.1e}  "
        f"{row['us_per_step']:7.3f} µs/step  {1e3 * row['seconds']:8.2f} ms"
        + (f"  {row['problem']}" if row["problem"] else ""),
        flush=True,
    )


def succeeded(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["problem"] is None and np.isfinite(row["error"])]


def refined(motion: Motion, rows: list[dict], repetitions: int) -> list[dict]:
    """The best method at shorter steps, while it misses the bar and halving them still helps."""
    more: list[dict] = []
    for _ in range(DOUBLINGS):
        good = succeeded(rows + more)
        best = min(good, key=lambda row: row["error"], default=None)
        if best is None or best["error"] < BAR or (more and best is not more[-1]):
            break
        method = METHODS[best["method"]]
        suited = method.motion(motion) or motion
        per_interval = best["steps"] // (len(motion.t) - 1)
        factors = [2 * per_interval / motion.base]
        more += rows_of(suited, best["method"], method, factors, repetitions, best["error"])
    return more


def verdict(motion: Motion, rows: list[dict]) -> None:
    """Says which row of a motion is the best."""
    best = min(succeeded(rows), key=lambda row: row["error"], default=None)
    if best is None:
        print(f"{motion.name}: no method succeeded")
        return
    word = "below" if best["error"] < BAR else "NOT below"
    found = f"best {best['method']}, {best['steps']} steps, {best['error']:.1e}"
    print(f"{motion.name}: {found}: {word} {BAR:.0e}", flush=True)


def peer(motion: Motion, rows: list[dict], repetitions: int) -> dict | None:
    """diffrax at the accuracy of the fastest row within 1e-9."""
    within = [row for row in succeeded(rows) if row["error"] <= 1e-9]
    if not within:
        return None
    fastest = min(within, key=lambda row: row["seconds"])
    theirs = diffrax_seconds(motion, max(fastest["error"], 1e-11), repetitions)
    show(theirs)
    ratio = fastest["seconds"] / theirs["seconds"]
    print(
        f"{motion.name}: {fastest['method']} takes {ratio:.2f} of diffrax's time at equal accuracy"
    )
    return theirs


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of exact motions (.npz)")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--files", nargs="*", help="only these, by name without .npz")
    parser.add_argument("--methods", nargs="*", choices=METHODS, help="only these")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--without-diffrax", action="store_true")
    options = parser.parse_args(arguments)
    if not options.data.is_dir():
        parser.error(f"{options.data} is no folder")
    paths = sorted(options.data.glob("*.npz"))
    paths = [p for p in paths if not options.files or p.stem in options.files]
    if not paths:
        parser.error(f"no motion in {options.data} fits")
    rows: list[dict] = []
    for path in paths:
        motion = load(path)
        here: list[dict] = []
        for name, method in METHODS.items():
            chosen = not options.methods or name in options.methods
            suited = method.motion(motion) if chosen else None
            if suited is not None:
                for row in rows_of(suited, name, method, method.steps, options.repetitions):
                    show(row)
                    here.append(row)
        more = refined(motion, here, options.repetitions)
        for row in more:
            show(row)
        here += more
        verdict(motion, here)
        theirs = None if options.without_diffrax else peer(motion, here, options.repetitions)
        rows += here + ([theirs] if theirs else [])
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
