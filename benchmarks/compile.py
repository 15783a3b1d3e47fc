"""What compiling costs: the first forward run and the first gradient of models and problems, cold.

    python benchmarks/compile.py --json compile.json
    python benchmarks/compile.py --cases cube door

Every figure is from a process of its own, without a persistent compilation cache: seconds from the
call of `jax.jit(function).lower` to a compiled program, without imports. `operations` counts the
operations of the module that is compiled, of the gradient where there is one: it depends on neither
the machine nor what else runs there. The demo is a run of the command, all included.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _harness


def cube(wrap: Callable = lambda scheme: scheme) -> Callable:
    """The final place of a tossed cube after 150 steps, by friction."""
    import jax.numpy as jnp

    import diffnsd as nsd
    from diffnsd.models import cube_state, tossed_cube

    attitude = jnp.array([1.0, 0.1, 0.0, 0.0])
    start = cube_state(
        jnp.array([0.0, 0.0, 0.1]),
        attitude / jnp.linalg.norm(attitude),
        jnp.array([1.0, 0.0, 0.0]),
        jnp.ones(3),
    )
    ends, scheme = nsd.SaveAt.end(), wrap(nsd.MoreauJean(theta=1.0))

    def place(mu):
        model = tossed_cube(mu, 0.1)
        run = nsd.simulate(model, scheme, 0.0, 150 / 148, 1 / 148, start, saveat=ends, throw=False)
        return run.states.q.position[0, 0]

    return place


def located() -> Callable:
    """The cube with located impacts."""
    import diffnsd as nsd

    return cube(nsd.Located)


def corrected() -> Callable:
    """The cube with the tangents of located impacts."""
    import diffnsd as nsd

    return cube(nsd.Corrected)


def door() -> Callable:
    """A hinge with a stop and friction in the bearing, contacts at the end of the step."""
    import jax.numpy as jnp

    import diffnsd as nsd
    from diffnsd import laws
    from diffnsd.integrators import AtIterate, Projected
    from diffnsd.relations import GapRelation, RateRelation, hinge

    level = nsd.Pose(jnp.array([[0.5, 0.0, 0.0]]), jnp.array([[1.0, 0.0, 0.0, 0.0]]))
    pin = hinge(level, point=[0.0, 0.0, 0.0], axis=[0.0, 1.0, 0.0])
    rod = nsd.NewtonEulerSystem(1.0, jnp.array([1e-3, 1 / 12, 1 / 12]))
    scheme = Projected(nsd.MoreauJean(contacts_at=AtIterate(), joints_at=AtIterate()))
    start, ends = nsd.State(level, jnp.zeros(6)), nsd.SaveAt.end()

    def angle(mu):
        parts = (
            nsd.Interaction(GapRelation(pin), laws.Equality()),
            nsd.Interaction(GapRelation(pin.limits(pin.angle, -1.0, 1.2)), laws.NewtonImpact(0.3)),
            nsd.Interaction(RateRelation(pin.angle), laws.DryFriction(mu)),
        )
        model = nsd.Model(rod, parts)
        run = nsd.simulate(model, scheme, 0.0, 1.0, 1e-3, start, saveat=ends, throw=False)
        return pin.angle(jnp.asarray(1.0), run.states.q)

    return angle


def problem(contacts: int, rows: int) -> Callable:
    """The first multiplier of a complementarity problem, by a factor of its velocities."""
    import jax.numpy as jnp
    import numpy as np

    import diffnsd as nsd
    from diffnsd import laws

    size, random = contacts * rows, np.random.default_rng(0)
    H = random.normal(size=(size, size + 2))
    W, q = jnp.asarray(H @ H.T), jnp.asarray(random.normal(size=size))
    law = laws.Complementarity() if rows == 1 else laws.CoulombFriction(0.5)

    def multiplier(factor):
        posed = nsd.ComplementarityProblem(W, factor * q, laws=((law, (contacts, rows)),))
        return nsd.solve_complementarity(posed, throw=False).z[0]

    return multiplier


CASES: dict[str, tuple[str, Callable[[], Callable]]] = {
    "cube": ("cube, 150 steps", cube),
    "located": ("cube under Located", located),
    "corrected": ("cube under Corrected", corrected),
    "door": ("door: hinge, stop, friction, implicit contact point", door),
    "lcp10": ("solve_complementarity, LCP n = 10", lambda: problem(10, 1)),
    "friction1": ("solve_complementarity, 1 friction contact", lambda: problem(1, 3)),
    "friction5": ("solve_complementarity, 5 friction contacts", lambda: problem(5, 3)),
}
DEMO = "demo"


def operations(lowered: Any) -> int:
    """Number of operations of a lowered module."""
    return sum(" = " in line for line in lowered.as_text().splitlines())


def timed(function: Callable, *arguments: Any) -> tuple[float, int]:
    """Seconds until a function is compiled, and the operations of its module."""
    import jax

    begin = time.perf_counter()
    lowered = jax.jit(function).lower(*arguments)
    lowered.compile()
    return time.perf_counter() - begin, operations(lowered)


def measure(case: str, part: str) -> dict[str, Any]:
    """One figure, in this process."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    function, given = CASES[case][1](), jnp.asarray(0.2)
    if part == "forward":
        seconds, count = timed(function, given)
        return {"forward_s": seconds, "operations": count}
    seconds, count = timed(jax.grad(function), given)
    return {"gradient_s": seconds, "operations": count}


def cold(arguments: list[str], timeout: float, **options: Any) -> subprocess.CompletedProcess:
    """A process that finds no compiled program."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    return subprocess.run(
        arguments,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )


def in_a_process(case: str, part: str, timeout: float) -> dict[str, Any]:
    """One figure, from a process of its own."""
    out = cold([sys.executable, __file__, "--child", case, part], timeout)
    return json.loads(out.stdout.splitlines()[-1])


def demo(timeout: float) -> dict[str, Any]:
    """Seconds of the whole command, in an empty folder."""
    command = shutil.which("diffnsd", path=str(Path(sys.executable).parent)) or "diffnsd"
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        cold([command, "demo"], timeout, cwd=folder)
        return {"forward_s": time.perf_counter() - begin}


def row(case: str, timeout: float) -> dict[str, Any]:
    """The figures of one case; the operations are those of the gradient."""
    empty = {"name": case, "forward_s": None, "gradient_s": None, "operations": None}
    if case == DEMO:
        return empty | demo(timeout)
    forward, gradient = (in_a_process(case, part, timeout) for part in ("forward", "gradient"))
    return empty | forward | gradient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--cases", nargs="+", choices=[*CASES, DEMO], default=[*CASES, DEMO])
    parser.add_argument("--timeout", type=float, default=900.0, metavar="S", help="of one process")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "PART"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*options.child)))
        return
    facts, rows = _harness.header(), []
    _harness.print_header("Compiling, cold", facts)
    print(f"{'':52s}{'forward s':>12s}{'gradient s':>12s}{'operations':>12s}")
    for case in options.cases:
        found = row(case, options.timeout)
        rows.append(found)
        text = "`diffnsd demo`, all of it" if case == DEMO else CASES[case][0]
        cells = [found["forward_s"], found["gradient_s"]]
        shown = "".join(f"{'' if x is None else f'{x:.1f}':>12s}" for x in cells)
        print(f"{text:52s}{shown}{found['operations'] or '':>12}", flush=True)
    if options.json is not None:
        listed = [found | {"environment": facts} for found in rows]
        options.json.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
        print(f"\n{len(rows)} rows in {options.json}")


if __name__ == "__main__":
    main()
