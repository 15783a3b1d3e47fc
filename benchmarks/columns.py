"""Columns of 10, 100 and 1000 spheres, one on the other on a plane: compile time and time of a step.

Two laws, Newton's impact with restitution 0.5 ("newton") and the gap-stabilised one ("stabilised"), and
two descriptions: free spheres, six coordinates each and one relation for all pairs ("spheres"), and
spheres on a vertical line, one coordinate each and one gap function ("beads"). A column falls from a
little above where it rests. MuJoCo (C, one core) steps the same columns, of free joints and of slides;
its contacts are soft, so it is compared for speed alone.

    python benchmarks/columns.py --json columns.json
    python benchmarks/columns.py --bodies 10 30 --engines diffnsd

The program is the same for any number of bodies but for the sizes of its arrays: the last line says how
far compile times are apart. A run of which a step did not converge is no row.
"""

import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import _harness
import _peers
import diffnsd as nsd
from _harness import Prepared, Row, Worker, WorkerError, compile_timed
from diffnsd.groups import Pose
from diffnsd.laws import GapStabilized, NewtonImpact
from diffnsd.relations import GapRelation, sphere_on_plane, sphere_on_sphere
from diffnsd.systems import LagrangianSystem, NewtonEulerSystem

RADIUS, GRAVITY, DT, DROP = 0.1, 9.81, 2e-3, 1e-4
KINDS = ("spheres newton", "spheres stabilised", "beads newton", "beads stabilised")


def heights(n: int) -> np.ndarray:
    """Of the centres [m], all gaps `DROP`."""
    return RADIUS + DROP + (2 * RADIUS + DROP) * np.arange(n)


def column(kind: str, n: int) -> tuple[nsd.Model, nsd.State, nsd.MoreauJean]:
    """Model, initial state and scheme."""
    shape, law_name = kind.split()
    law = NewtonImpact(0.5) if law_name == "newton" else GapStabilized(NewtonImpact(0.0))
    scheme = nsd.MoreauJean(theta=0.5 if law_name == "newton" else 1.0)
    z = heights(n)
    if shape == "beads":

        def gaps(t, q):
            return jnp.concatenate([q[:1] - RADIUS, q[1:] - q[:-1] - 2 * RADIUS])

        system = LagrangianSystem(np.eye(n), f_ext=np.full(n, -GRAVITY))
        state = nsd.State(jnp.asarray(z), jnp.zeros(n))
        return nsd.Model(system, nsd.Interaction(GapRelation(gaps), law)), state, scheme
    position = np.stack([0 * z, 0 * z, z], axis=1)
    pose = Pose(jnp.asarray(position), jnp.tile(jnp.array([1.0, 0.0, 0.0, 0.0]), (n, 1)))
    system = NewtonEulerSystem(np.ones(n), np.full((n, 3), 0.4 * RADIUS**2))
    contacts = (
        sphere_on_plane(RADIUS),
        sphere_on_sphere(RADIUS, RADIUS, np.arange(1, n), np.arange(n - 1)),
    )
    model = nsd.Model(system, [nsd.Interaction(c, law) for c in contacts])
    return model, nsd.State(pose, jnp.zeros(6 * n)), scheme


def steps_of(n: int) -> int:
    """Steps in one call: fewer of what is large."""
    return max(2, 2000 // n)


def prepare(kind: str, n: int) -> Prepared:
    """Our column, compiled."""
    jax.config.update("jax_enable_x64", True)
    model, state, scheme = column(kind, n)
    steps = steps_of(n)

    def run(model, state):
        end = nsd.SaveAt.end()
        return nsd.simulate(model, scheme, 0.0, steps * DT, DT, state, saveat=end, throw=False)

    arrays, rest = eqx.partition((model, state), eqx.is_array)
    program, seconds = compile_timed(lambda a: outcome(run(*eqx.combine(a, rest))), arrays)
    facts = {name: float(x) for name, x in program(arrays).items()}
    if facts["failed_step"] >= 0:
        raise RuntimeError(f"{kind}, {n} bodies: a step did not converge: {facts}")
    return Prepared(lambda: program(arrays), None, seconds, None, facts)


def outcome(solution: nsd.Solution) -> dict[str, Any]:
    """What is checked of a run."""
    stats, first = solution.stats, solution.impulses[0]
    return {
        "failed_step": stats.failed_step,
        "residual": stats.residual,
        "plane_impulse": first.reshape(-1)[0],
    }


def prepare_mujoco(kind: str, n: int) -> Prepared:
    """The same column in MuJoCo."""
    import mujoco

    joint = "<freejoint/>" if kind.startswith("spheres") else '<joint type="slide" axis="0 0 1"/>'
    bodies = "".join(
        f'<body pos="0 0 {z}">{joint}<geom type="sphere" size="{RADIUS}" mass="1" condim="1"/></body>'
        for z in heights(n)
    )
    plane = '<geom type="plane" size="5 5 0.1" condim="1"/>'
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><option timestep="{DT}"/><worldbody>{plane}{bodies}</worldbody></mujoco>'
    )
    data, steps = mujoco.MjData(model), steps_of(n)

    def forward():
        mujoco.mj_resetData(model, data)
        mujoco.mj_step(model, data, nstep=steps)

    forward()
    return Prepared(forward, checks={"contacts": int(data.ncon)})


def main(arguments: list[str] | None = None) -> None:
    parser = _harness.parser(__doc__ or "", (1,))
    parser.add_argument("--bodies", type=int, nargs="+", default=(10, 100, 1000))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args(arguments)
    engines = {"diffnsd": prepare}
    if "mujoco" in _peers.installed():
        engines["mujoco"] = prepare_mujoco
    names = [name for name in options.engines or engines if name in engines]
    facts = _harness.header()
    _harness.print_header(f"Columns of spheres, steps of {DT * 1e3:g} ms", facts)
    rows = []
    for kind in options.kinds:
        mine = []
        for n in options.bodies:
            found = _rows({name: engines[name] for name in names}, kind, n, options)
            mine += [row.compile_s for row in found if row.compile_s is not None]
            rows += found
        if len(mine) > 1:
            print(f"  {kind}: compile times are apart by a factor {max(mine) / min(mine):.2f}")
    if options.json is not None:
        _harness.write_json(rows, options.json, facts)


def _rows(engines: dict[str, Any], kind: str, n: int, options) -> list[Row]:
    """The engines on one column, timed in turns."""
    workers = {}
    for name, start in engines.items():
        try:
            workers[name] = Worker(start, (kind, n), timeout_s=options.timeout)
        except WorkerError as error:
            print(f"{name}: {error}", file=sys.stderr)
    try:
        timings = _harness.alternate({name: w.forward for name, w in workers.items()})
        rows = []
        for name, timing in timings.items():
            middle, low, high = timing.us(steps_of(n))
            row = Row(
                name,
                f"column, {n} {kind}",
                1,
                "float64",
                us_per_step=middle,
                us_per_step_min=low,
                us_per_step_max=high,
                compile_s=workers[name].compile_s,
                repetitions=len(timing.seconds),
                checks=workers[name].checks(),
            )
            compiled = "" if row.compile_s is None else f"  compile {row.compile_s:6.1f} s"
            print(f"  {row.workload:32s} {name:8s} {middle:12.1f} µs a step{compiled}", flush=True)
            rows.append(row)
        return rows
    finally:
        for worker in workers.values():
            worker.close()


if __name__ == "__main__":
    main()
