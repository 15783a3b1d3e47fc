"""The tossed cube: diffnsd beside MuJoCo (C, all cores) and MJX, in turns in one run.

A cube with eight corners falls on a plane: Coulomb friction 0.18, the exact cone, the gap-stabilised
law, 150 steps of 1/148 s. The forward run gives the final state; the gradient is that of half the
squared final distance, in diffnsd by friction, restitution, mass, inertia and initial state (reverse
mode), in MJX by friction alone (forward mode: it refuses the other), in MuJoCo there is none.

    python benchmarks/cube.py --json cube.json
    python benchmarks/cube.py --dtype float32 --batches 256 1024 --engines diffnsd mujoco

The physics is checked first; a broken run is not timed. Compile times are cold: every engine has a
process of its own, without a compilation cache. MJX can hang on two cores from batch 1024 on, and runs
on one there.
"""

import _harness
import _peers
from _drive import check_physics, chosen, compare, faster, figure, finish, gradient_cost, our_worker

BATCHES = (1, 256, 1024, 16384)
BARS = (
    faster("mujoco", 1.5, BATCHES[1:]),
    faster("mujoco-mjx", 8.0, BATCHES[1:]),
    gradient_cost(4.0, (1, 256)),
    figure("compile, rollout [s]", 8.0, "compile_s"),
    figure("compile, gradient [s]", 20.0, "gradient_compile_s"),
)


def main(arguments: list[str] | None = None) -> None:
    parser = _harness.parser(__doc__ or "", BATCHES)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    options = parser.parse_args(arguments)
    dtype, seed, timeout = options.dtype, options.seed, options.timeout

    engines = {"diffnsd": our_worker("cube", "diffnsd", dtype, options)}
    installed = _peers.installed()
    if "mujoco" in installed:
        engines["mujoco"] = lambda batch: _peers.mujoco_worker(
            "cube", batch, seed, timeout_s=timeout
        )
    if "mujoco-mjx" in installed:
        engines["mujoco-mjx"] = lambda batch: _peers.mjx_worker(
            "cube", batch, dtype, seed, timeout_s=timeout
        )
    engines = chosen(engines, options)

    facts = _harness.header()
    _harness.print_header("Tossed cube, 150 steps of 1/148 s", facts)
    physics = check_physics("cube", dtype, options)
    rows = compare("cube", dtype, _peers.CUBE.steps, engines, BARS, physics, options)
    finish(rows, facts, options)


if __name__ == "__main__":
    main()
