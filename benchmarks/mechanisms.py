"""Mechanisms from MJCF files: diffnsd beside MuJoCo (C, all cores) and MJX, and what of a file is loaded.

    python benchmarks/mechanisms.py FILE.xml [FILE.xml ...] --json mechanisms.json --batches 1 256
    python benchmarks/mechanisms.py quadruped.xml --ignore condim contact --only-load
    python benchmarks/mechanisms.py hopper.xml --batches 256 --max-active 4 --mjx
    python benchmarks/mechanisms.py gymnasium/envs/mujoco/assets/*.xml --only-load --table

Batches are stepped by `nsd.rollout`, on all cores as those of MuJoCo.

Of every file: whether it loads; the largest relative difference of mass matrix, forces, frames and
Jacobians from those of MuJoCo at 20 random states; a step of a fall from its reference without
controls, its gradient by the initial velocity (reverse mode), and what both cost to compile. A file
with other forces than MuJoCo's is not timed. MuJoCo's contacts are soft and ours are hard, so that the
motions differ after the first contact. `--mjx` times MJX too, which compiles for minutes. `--table` loads
what is refused once more without what it is refused for, and prints the table of docs/pages/mechanisms.md.
"""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import mujoco.rollout
import numpy as np

import _harness
import _peers
import diffnsd as nsd
from diffnsd import io
from diffnsd.groups import rotation_matrix
from diffnsd.laws import CoulombFriction, GapStabilized

STEPS, REPETITIONS = 200, 5


def stabilized(mu, e):
    return GapStabilized(CoulombFriction(mu, e))


def largest_difference(model: nsd.Model, elements: io.Elements, m: Any) -> float:
    """Relative, of `M`, forces and rates of activations, frames and Jacobians at random states."""
    # What is ignored of a file has no counterpart to compare with.
    actuated = len(elements.plan.actuators) == m.nu > 0
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    d, rng, system, zero = mujoco.MjData(m), np.random.default_rng(0), model.system, jnp.zeros(())
    activated = isinstance(system, nsd.SystemProduct)
    tree: Any = system.systems[0] if activated else system

    @jax.jit
    def ours(q, v, act, u):
        frames, state = tree.frames(q), elements.state(q, v, act)
        turns = rotation_matrix(frames.orientation.T)
        force = system.force(zero, state, u if actuated else None)
        inertia = jnp.diag(system.mass(zero, state.q))[m.nv :]
        return (
            tree.mass(zero, q),
            force[: m.nv],
            force[m.nv :] / inertia,
            frames.position,
            turns,
            tree.jacobian(q),
        )

    worst = 0.0
    for _ in range(20):
        q, d.ctrl[:] = m.qpos0.copy(), rng.normal(size=m.nu) if actuated else 0.0
        mujoco.mj_integratePos(m, q, 0.7 * rng.normal(size=m.nv), 1.0)
        d.qpos[:], d.qvel[:] = q, rng.normal(size=m.nv)
        d.act[:] = rng.normal(size=m.na) if actuated else 0.0
        mujoco.mj_forward(m, d)
        mass, rows = np.zeros((m.nv, m.nv)), []
        mujoco.mj_fullM(m, d, mass)
        for b in range(1, m.nbody):
            linear, angular = np.zeros((2, 3, m.nv))
            mujoco.mj_jacBody(m, d, linear, angular, b)
            rows += [linear, d.xmat[b].reshape(3, 3).T @ angular]
        turns = np.moveaxis(d.xmat[1:].reshape(-1, 3, 3), 0, -1)
        force = d.qfrc_passive - d.qfrc_bias + d.qfrc_actuator
        rates = d.act_dot[: m.na if activated else 0]
        theirs = mass, force, rates, d.xpos[1:], turns, np.concatenate(rows)
        for a, b in zip(ours(q, d.qvel, d.act if activated else None, d.ctrl), theirs, strict=True):
            scale = max(float(np.max(np.abs(b), initial=0)), 1e-9)
            worst = max(worst, float(np.max(np.abs(np.asarray(a) - b), initial=0)) / scale)
    return worst


def timed(name: str, function: Any, *given: Any) -> dict:
    """Seconds of compiling a function of a batch, and microseconds of a step of it.

    Compiling is what the first call takes longer.
    """
    times = []
    for _ in range(REPETITIONS + 1):
        begin = time.perf_counter()
        jax.block_until_ready(function(*given))
        times.append(time.perf_counter() - begin)
    run_s = float(np.median(times[1:]))
    step = run_s / len(given[0]) / STEPS * 1e6
    return {f"{name}compile_s": times[0] - run_s, f"{name}us_per_step": step}


def our_times(model: nsd.Model, h: float, start: nsd.State, controls, batch: int) -> dict:
    """Microseconds of a step and of its gradient, and seconds of compiling them."""
    velocities = jax.random.normal(jax.random.key(0), (batch, len(start.v)), start.v.dtype) / 10

    def run(v):
        return nsd.simulate(
            model,
            nsd.MoreauJean(theta=1.0),
            0.0,
            STEPS * h,
            h,
            nsd.State(start.q, v),
            controls,
            saveat=nsd.SaveAt.end(),
            start_tolerance=np.inf,
            throw=False,
        )

    def failed(v):
        solution = run(v)
        return jnp.sum(solution.states.v**2), solution.result == nsd.RESULTS.successful

    gradient = jax.grad(lambda v: failed(v)[0])
    both = partial(nsd.rollout, run), partial(nsd.rollout, gradient)
    found: dict = {}
    for name, function in zip(("", "gradient_"), both, strict=True):
        found |= timed(name, function, velocities)
    solved = nsd.rollout(lambda v: failed(v)[1], velocities)
    return found | {"failed": int(batch - np.sum(np.asarray(solved)))}


def their_time(m: Any, batch: int) -> float:
    """Microseconds of a step of MuJoCo in C, all cores."""
    d = mujoco.MjData(m)
    size = mujoco.mj_stateSize(m, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    state = np.zeros((batch, size))
    mujoco.mj_getState(m, d, state[0], mujoco.mjtState.mjSTATE_FULLPHYSICS)
    state[:] = state[0]
    state[:, 1 + m.nq : 1 + m.nq + m.nv] = np.random.default_rng(0).normal(size=(batch, m.nv)) / 10
    workers = [mujoco.MjData(m) for _ in range(min(batch, 2))]
    times = []
    for _ in range(REPETITIONS + 1):
        begin = time.perf_counter()
        mujoco.rollout.rollout(m, workers, state, nstep=STEPS)
        times.append(time.perf_counter() - begin)
    return float(np.median(times[1:])) / batch / STEPS * 1e6


def mjx_times(m: Any, batch: int) -> dict:
    """Microseconds of a step of MJX on the same device, and seconds of compiling it."""
    velocities = np.random.default_rng(0).normal(size=(batch, m.nv)) / 10
    places = jnp.tile(jnp.asarray(m.qpos0), (batch, 1))
    steps = jax.jit(_peers.mjx_steps(m, STEPS))
    return timed("mjx_", steps, places, jnp.asarray(velocities))


def loaded(
    file: Path, ignore: list[str], max_active: int = 12
) -> tuple[nsd.Model, io.Elements, nsd.State]:
    """A file with contacts that do not penetrate."""
    return io.load_mjcf(file, ignore=ignore, law=stabilized, max_active=max_active)


def refused_for(error: ValueError) -> dict[str, str]:
    """What a file is refused for and can be loaded without, by the sentences of the error: name and why."""
    listed = (line.strip() for line in str(error).splitlines() if line.startswith("  "))
    return dict(line.split(": ", 1) for line in listed)


def table(rows: list[dict]) -> str:
    """A row of Markdown for each file."""
    lines = [
        "| file | loaded | largest difference from MuJoCo | left out, and why |",
        "|---|---|---|---|",
    ]
    for row in rows:
        why = row.get("refused_for", {})
        loaded = "no" if not row["loaded"] else "with `ignore`" if why else "yes"
        apart = f"{row['difference']:.0e}" if row["loaded"] else ""
        reasons = dict.fromkeys(f"{n.partition('/')[0]}: {text}" for n, text in why.items())
        lines.append(
            f"| {row['file']} | {loaded} | {apart} | {'; '.join(reasons) or row.get('why', '')} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = _harness.parser(__doc__ or "", (1, 256))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--ignore", nargs="*", default=[], help="elements left out, see load_mjcf")
    parser.add_argument("--max-active", type=int, default=12, help="contacts of a kind at a time")
    parser.add_argument("--only-load", action="store_true", help="compare, do not time")
    parser.add_argument("--table", action="store_true", help="a table of what loads")
    parser.add_argument("--mjx", action="store_true", help="time MJX too")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    rows = []
    for file in options.files:
        name = "/".join(file.parts[-2:])
        why: dict[str, str] = {}
        try:
            model, elements, start = loaded(file, options.ignore, options.max_active)
        except ValueError as error:
            why = refused_for(error)
            if not (options.table and why):
                print(f"{name}: refused: {str(error).splitlines()[1:4] or error}", flush=True)
                rows.append({"file": name, "loaded": False, "why": str(error)})
                continue
            model, elements, start = loaded(file, [*options.ignore, *why], options.max_active)
        m = mujoco.MjModel.from_xml_path(str(file))
        difference = largest_difference(model, elements, m)
        row = {"file": name, "loaded": True, "velocities": m.nv, "difference": difference}
        row |= {"refused_for": why, "report": elements.report}
        row["contacts"] = sum(model.contacts(jnp.zeros(()), start.q))
        print(name, {k: row[k] for k in ("velocities", "contacts", "difference")}, flush=True)
        if options.only_load or difference > 1e-8:
            rows.append(row)
            continue
        m = mujoco.MjModel.from_xml_path(str(file))
        for batch in options.batches:
            controls = jnp.zeros(m.nu) if elements.plan.actuators else None
            ours = our_times(model, elements.timestep, start, controls, batch)
            theirs = their_time(m, batch)
            ours |= {"mujoco_us_per_step": theirs, "ratio": theirs / ours["us_per_step"]}
            if options.mjx:
                ours |= mjx_times(m, batch)
                ours["mjx_ratio"] = ours["mjx_us_per_step"] / ours["us_per_step"]
            print(f"  batch {batch}:", {k: float(f"{v:.3g}") for k, v in ours.items()}, flush=True)
            rows.append(row | {"batch": batch} | ours)
    if options.table:
        print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
