"""Friction and restitution as functions of speed, learned through contact from measured motion.

    python benchmarks/learned_parts.py --out learned
    python benchmarks/learned_parts.py --only square --seeds 0 1 2

Inside Coulomb's law friction is a small network of the slip speed and restitution one of the approach speed,
drawn to constants where the data are silent (`_learned.py`). They are trained with Optax through the
simulated contacts, from estimated start velocities:

- `square`: drops of a square, their first 0.2 s; scored on other drops at 0.1 and 0.2 s;
- `cube`: tosses of a cube, their first 90 frames; scored on other tosses as a whole.

All other numbers are those of the fit with constants. The constants alone, trained with the same loss, stand
beside the curves, so that a better score is due to the curves. Scores are those of the scorers of the data,
from the start velocities of the file (raw) and from estimated ones. The data lie in the folder
`DIFFNSD_DATA`. Of each a page with what was learned, and its file, go to `--out`.
"""

import argparse
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# Compiles in half the time.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import _harness
import _measured
import _square
from _learned import GRID, Curve, law_of_speed, trained
from diffnsd import SaveAt, identification
from diffnsd.apps.fit import identify
from diffnsd.apps.pages import LearnedCurve, Scores, write_learned
from diffnsd.apps.toss import load_tosses
from diffnsd.apps.toss._cube import (
    CubeMotion,
    CubeParameters,
    cube_job,
    lanes,
    pose_error,
    smooth_start,
    toss_run,
)
from diffnsd.groups import rotate
from diffnsd.laws import GapStabilized
from diffnsd.models._tossed_cube import CORNERS
from diffnsd.rollout import rollout

FREE = ("mu", "e", "half_width", "gravity", "inertia_over_mass")
SUBSTEPS, FRAMES = 4, 90
"""Of the cube: steps of a frame, and frames that are trained on."""
ERROR, EFFECTIVE, HUBER = 0.3, 10.0, identification.Huber(0.3)
"""As of the square: error of a pose [sizes, rad], how many frames a motion counts for, the robust loss."""
SLOW = 0.05
"""Approaches slower than this say nothing of restitution [m/s]."""
SCORES = {
    "pos_err_pct": "position [%]",
    "rot_err_deg": "rotation [deg]",
    "face_agree_pct": "same face [%]",
}


class Problem(NamedTuple):
    """One data set: `loss`, `scores` by what they are and `speeds` of a pair of curves.

    `mu`, `e`: constants to start from; `speeds`: slip and approach speeds at the contacts of the motions that
    are trained on; `about`: the data.
    """

    mu: float
    e: float
    loss: Callable
    scores: Callable
    speeds: Callable
    about: str


class LearnedSquare(eqx.Module):
    """The square with what was learned of its law."""

    square: _square.Square
    curves: tuple[Curve, Curve]

    def model(self):
        law = GapStabilized(law_of_speed(*self.curves, self.square.e_t), rest_speed=0.02)
        return eqx.tree_at(lambda m: m.interactions[0].law, self.square.model(), law)


def square_problem(seed: int, count: int) -> Problem:
    """Drops of the square; all other numbers are of the fit of `measured.py`."""
    drops = _square.Drops()
    train, test = _measured.split(drops.scored, count / len(drops.scored), seed)
    starts = {"raw": (drops.q0, drops.v0), "estimated": _square.estimated_starts(drops)}
    fit = _square.fit(drops, train, *starts["estimated"])
    square = _square.chosen()[1](fit.params)
    batch = _square.batch_of(drops, train, *starts["estimated"])

    def loss(curves):
        errors = _square.errors(LearnedSquare(square, curves), batch)
        return _half_square(HUBER.weigh(errors))

    def scores(curves):
        found = {}
        for start, (q, v) in starts.items():
            seen = _square.predictions(LearnedSquare(square, curves), q[test], v[test])
            for until in _square.HORIZONS:
                row = drops.score(test, seen, until)
                found[f"{start} start, {until} s: position [%]"] = row["pos_pct"]
                found[f"{start} start, {until} s: angle [deg]"] = row["ang_deg"]
        return found

    def speeds(curves):
        learned = LearnedSquare(square, curves)
        corners = square.model().interactions[0].relation.function

        def local(q, v):
            moved = jax.jvp(lambda q: corners(0.0, q)[0], (q,), (v,))[1]
            return moved[:, ::-1]

        def one(start):
            q, v = start
            run = _square.run_of(learned, q, v, _square.FRAMES, SaveAt())
            return jax.vmap(local)(run.states.q, run.states.v), run.impulses[0][..., 0]

        return contact_speeds(*eqx.filter_jit(jax.vmap(one))(batch[:2]))

    about = (
        f"dropped_square: {len(train)} drops, their first 0.2 s; scored on {len(test)} other drops"
    )
    return Problem(float(square.mu), float(square.e), loss, scores, speeds, about)


def cube_problem(seed: int, count: int) -> Problem:
    """Tosses of the cube; all other numbers are of the fit of `diffnsd identify`."""
    _, scorer = _measured.load("tossed_cube")
    everything = load_tosses(_measured.folder("tossed_cube") / "tossed_cube_open.npz")
    train, test = _measured.split(np.arange(len(everything)), count / len(everything), seed)
    others, fitted = everything.select(test), smooth_start(everything.select(train))
    nominal, dt = CubeParameters.nominal(everything, e=0.1), float(everything.dt)
    width = 2 * float(nominal.half_width)
    motion = CubeMotion(width, dt, SUBSTEPS)
    cube = identify(cube_job(nominal, lanes(fitted), FREE, motion)).model
    batch = lanes(fitted, FRAMES)

    def run(curves, lane, saveat):
        law = GapStabilized(law_of_speed(*curves))
        return toss_run(cube, lane, dt, SUBSTEPS, saveat, law)

    def poses(curves, lane):
        q = run(curves, lane, SaveAt(steps=SUBSTEPS)).states.q
        return q.position[:, 0], q.orientation[:, 0]

    def loss(curves):
        def one(lane):
            apart = pose_error(lane, *poses(curves, lane), width) / ERROR
            return apart * np.sqrt(EFFECTIVE / FRAMES) * lane.mask[:, None, None]

        return _half_square(HUBER.weigh(jax.vmap(one)(batch)))

    def scores(curves):
        found = {}
        for start, target in {"raw": others, "estimated": smooth_start(others)}.items():
            seen = rollout(eqx.Partial(poses, curves), lanes(target), chunk=64)
            rows = []
            for j, (p, q) in enumerate(zip(*map(np.asarray, seen), strict=True)):
                true = others.toss(j)
                n = len(true.position)
                metrics = scorer.toss_metrics(p[:n], q[:n], true.position, true.quaternion_wxyz)
                rows.append(metrics)
            for key, words in SCORES.items():
                found[f"{start} start: {words}"] = _measured.means(rows, (key,))[key]
        return found

    def speeds(curves):
        corners = cube.half_width * CORNERS

        def local(turn, v):
            arms = jnp.cross(jnp.broadcast_to(v[3:], corners.shape), corners)
            return (v[:3, None] + rotate(turn, arms.T)).T[:, ::-1]

        def one(lane):
            out = run(curves, lane, SaveAt())
            turns = out.states.q.orientation[:, 0]
            return jax.vmap(local)(turns, out.states.v), out.impulses[0][..., 0]

        return contact_speeds(*eqx.filter_jit(jax.vmap(one))(batch))

    about = (
        f"tossed_cube: {len(train)} tosses, their first {FRAMES} frames; scored on {len(test)} others as a "
        "whole"
    )
    return Problem(float(cube.mu), float(cube.e), loss, scores, speeds, about)


def contact_speeds(local, impulses) -> tuple[np.ndarray, np.ndarray]:
    """Slip speeds of contacts that carry, and approach speeds of those that begin to [m/s].

    **Arguments:** `local (n, s, c, k)`: local velocities after each step, the normal one first; `impulses
    (n, s, c)`: normal ones of the steps.
    """
    local, carries = np.asarray(local)[:, :-1], np.asarray(impulses) > 1e-9
    begins = carries[:, 1:] & ~carries[:, :-1]
    slip, approach = np.linalg.norm(local[..., 1:], axis=-1), -local[..., 0]
    return slip[carries[:, 1:]], approach[begins & (approach > SLOW)]


def _half_square(x: Any) -> Any:
    return jnp.sum(x**2) / 2


def shown(curves: tuple[Curve, Curve], seen: tuple[np.ndarray, np.ndarray]) -> list[LearnedCurve]:
    """What was learned, for the page."""
    names = (
        ("Friction", "friction", "slip speed [m/s]"),
        ("Restitution", "e", "approach speed [m/s]"),
    )
    found = []
    for (name, up, across), curve, x in zip(names, curves, seen, strict=True):
        level = float(jax.nn.sigmoid(curve.level))
        y = np.asarray(curve(jnp.asarray(GRID)))
        found.append(LearnedCurve(name, GRID, y, across, up, x, level))
    return found


def learn(name: str, problem: Problem, steps: int, rate: float, out: Path | None) -> None:
    """Trains the constants alone and then the curves; prints, and writes the page."""
    start = Curve.constant(problem.mu), Curve.constant(problem.e)
    rows = {"fitted constants": problem.scores(start)}

    def levels(both):
        return eqx.tree_at(lambda c: (c[0].level, c[1].level), start, both)

    both, fit, seconds = trained(
        lambda both: problem.loss(levels(both)), (start[0].level, start[1].level), steps, rate
    )
    print(
        f"{name}: constants {jax.nn.sigmoid(jnp.stack(both))}, {seconds:.0f} s of processor",
        flush=True,
    )
    rows["constants, trained"] = problem.scores(levels(both))

    def loss(curves):
        return problem.loss(curves) + sum(curve.unlikely() for curve in curves)

    curves, learned, seconds = trained(loss, levels(both), steps, rate)
    print(f"{name}: curves, {learned.steps} steps, {seconds:.0f} s of processor", flush=True)
    rows["curves, trained"] = problem.scores(curves)
    parts = shown(curves, problem.speeds(curves))
    for part in parts:
        ends = np.quantile(part.seen, [0.05, 0.25, 0.5, 0.75, 0.95])
        at = ", ".join(f"{part.up_at(x)} at {x:.2f} m/s" for x in ends)
        print(
            f"{part.name}: {at} (5 to 95 % of {len(part.seen)} contacts); drawn to {part.prior:.3g}"
        )
    cells = [
        [what, *(f"{row[what]:.2f}" for row in rows.values())] for what in next(iter(rows.values()))
    ]
    _harness.print_table(["held-out error", *rows], cells)
    print(
        f"loss of training: {fit.history.loss[0]:.2f} of the fitted constants, {fit.loss:.2f} of those "
        f"trained, {learned.loss:.2f} with curves and their prior"
    )
    if out is not None:
        facts = {"data": problem.about, "steps of training": learned.steps, **_harness.header()}
        write_learned(
            out / f"{name}.html",
            parts,
            title=f"What was learned: {name}",
            scores=Scores(rows, f"Of {problem.about}."),
            loss_history=np.asarray(learned.history.loss, float),
            details={key: str(value) for key, value in facts.items()},
        )


PROBLEMS = {"square": (square_problem, 100), "cube": (cube_problem, 60)}
"""What makes a problem, and on how many motions it is trained."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=PROBLEMS, nargs="+", default=list(PROBLEMS))
    parser.add_argument("--steps", type=int, default=80, help="of the training")
    parser.add_argument("--rate", type=float, default=0.02, help="of Adam, at the start")
    parser.add_argument("--count", type=int, help="motions to train on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="which motions these are")
    parser.add_argument("--out", type=Path, help="folder for the pages")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    for name, seed in itertools.product(options.only, options.seeds):
        make, count = PROBLEMS[name]
        print(f"\n{name}, seed {seed}")
        problem = make(seed, options.count or count)
        title = name if len(options.seeds) == 1 else f"{name}-{seed}"
        learn(title, problem, options.steps, options.rate, options.out)


if __name__ == "__main__":
    main()
