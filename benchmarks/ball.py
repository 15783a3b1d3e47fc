"""The bouncing ball: diffnsd beside MuJoCo (C, all cores), MJX and a loop written by hand.

A ball falls on the ground and rebounds with restitution 0.9, Newton's impact law, 2000 steps of
5 ms: it bounces some forty times and then rests. The forward run gives the final state; the gradient
is that of half the squared final height by restitution, mass and initial state. The engine `scan` is
the same scheme as ten lines of `jax.lax.scan` for this one ball, in the same chunks on the same
cores: what generality costs.

    python benchmarks/ball.py --json ball.json
    python benchmarks/ball.py --batches 1 --engines diffnsd scan

The physics is checked first; a broken run is not timed. From batch 1024 on MJX needs minutes for
one call on the one core that it does not hang on: there it is timed only if named with `--engines`.
"""

import _harness
import _peers
from _drive import check_physics, chosen, compare, figure, finish, our_worker

BATCHES = (1, 256, 1024, 16384)
BARS = (
    figure("diffnsd, µs a step", 3.0, "us_per_step", (1,)),
    figure("diffnsd, µs a step and ball", 0.1, "us_per_step", (16384,)),
)


def main(arguments: list[str] | None = None) -> None:
    parser = _harness.parser(__doc__ or "", BATCHES)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    options = parser.parse_args(arguments)
    dtype, seed, timeout = options.dtype, options.seed, options.timeout

    def mjx(batch: int) -> _harness.Worker:
        if batch >= _peers.MJX_HANGS_FROM and options.engines is None:
            raise _harness.WorkerError("left out: minutes a call; name it with --engines")
        return _peers.mjx_worker("ball", batch, dtype, seed, timeout_s=timeout)

    engines = {name: our_worker("ball", name, dtype, options) for name in ("diffnsd", "scan")}
    installed = _peers.installed()
    if "mujoco" in installed:
        engines["mujoco"] = lambda batch: _peers.mujoco_worker(
            "ball", batch, seed, timeout_s=timeout
        )
    if "mujoco-mjx" in installed:
        engines["mujoco-mjx"] = mjx
    engines = chosen(engines, options)

    facts = _harness.header()
    _harness.print_header("Bouncing ball, 2000 steps of 5 ms", facts)
    physics = check_physics("ball", dtype, options)
    rows = compare("ball", dtype, _peers.BALL.steps, engines, BARS, physics, options)
    finish(rows, facts, options)


if __name__ == "__main__":
    main()
