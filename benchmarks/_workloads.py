"""The cube and the ball in diffnsd, prepared for timing.

A *lane* is one trajectory: a dictionary of its parameters and its initial state, all of them arrays,
so that a batch of lanes is the same dictionary with a leading axis. `forward` maps a lane to its
final state, `gradient` to its loss and the derivative of the loss by everything in the lane; both
go through `diffnsd.rollout`, in chunks on all cores. The peers run the same lanes (see `_peers`).
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import diffnsd as nsd
from _checks import (
    BALL_LIMITS,
    CUBE_LIMITS,
    END_LIMITS,
    ball_checks,
    cube_checks,
    end_checks,
    refuse,
    slide_checks,
)
from _harness import Prepared, compile_timed, first_call
from _peers import BALL, CUBE, drops, final_loss, slides, tosses
from diffnsd.models import bouncing_ball, cube_state, tossed_cube

Lanes = dict[str, Any]

# Lanes that `diffnsd.rollout` steps together on a CPU by default.
CHUNK = 64

# ------------------------------------------------------------------------------------------
# The lanes, and what one of them computes


def cube_lanes(batch: int, dtype: str, seed: int = 0, initial: Callable = tosses) -> Lanes:
    """Tossed (or otherwise started) cubes: parameters and initial state."""
    qpos, qvel = initial(batch, seed)
    constants = {
        "friction": CUBE.friction,
        "restitution": 0.0,
        "mass": CUBE.mass,
        "inertia": CUBE.inertia,
    }
    lanes = {name: np.full(batch, value) for name, value in constants.items()}
    return {n: x.astype(dtype) for n, x in (lanes | {"qpos": qpos, "qvel": qvel}).items()}


def ball_lanes(batch: int, dtype: str, seed: int = 0) -> Lanes:
    """Dropped balls: parameters and initial state."""
    gap, speed = drops(batch, seed)
    lanes = {"restitution": np.full(batch, BALL.restitution), "mass": np.full(batch, BALL.mass)}
    return {n: x.astype(dtype) for n, x in (lanes | {"gap": gap, "speed": speed}).items()}


def cube_model(lane: Lanes) -> tuple[nsd.Model, nsd.State]:
    """Model and initial state of a lane."""
    model = tossed_cube(
        lane["friction"],
        lane["restitution"],
        lane["mass"],
        lane["inertia"],
        CUBE.half_width,
        CUBE.gravity,
    )
    qpos, qvel = lane["qpos"], lane["qvel"]
    return model, cube_state(qpos[:3], qpos[3:], qvel[:3], qvel[3:])


def cube_scheme() -> nsd.MoreauJean:
    """The scheme of the cube: the gap-stabilised law needs positions moved with the end velocity."""
    return nsd.MoreauJean(theta=1.0)


def simulate_cube(lane: Lanes, steps: int = CUBE.steps, **options: Any) -> nsd.Solution:
    """The motion of one cube: eight corners, exact cone, gap-stabilised."""
    model, state = cube_model(lane)
    return _simulate(model, cube_scheme(), steps, CUBE.dt, state, options)


def simulate_ball(
    lane: Lanes, steps: int = BALL.steps, dt: float = BALL.dt, **options: Any
) -> nsd.Solution:
    """The motion of one ball."""
    model = bouncing_ball(lane["restitution"], BALL.gravity, lane["mass"])
    state = nsd.State(lane["gap"], lane["speed"])
    return _simulate(model, nsd.MoreauJean(), steps, dt, state, options)


def _simulate(model, integrator, steps, dt, state, options) -> nsd.Solution:
    options = {"saveat": nsd.SaveAt.end(), "throw": False} | options
    return nsd.simulate(model, integrator, 0.0, steps * dt, dt, state, **options)


def plain_ball(lane: Lanes) -> tuple[Any, Any]:
    """The same scheme for the same ball written by hand: what generality costs."""
    h, gravity, e = BALL.dt, BALL.gravity, lane["restitution"]

    def step(state, _):
        q, v = state
        free = v - h * gravity
        hit = q + 0.5 * h * v <= 0
        new = jnp.where(hit, jnp.maximum(free, -e * v), free)
        return (q + 0.5 * h * (v + new), new), None

    return jax.lax.scan(step, (lane["gap"], lane["speed"]), None, length=BALL.steps)[0]


def _end(solution: nsd.Solution) -> dict[str, Any]:
    stats = solution.stats
    return {
        "q": solution.states.q,
        "v": solution.states.v,
        "residual": stats.residual,
        "failed_step": stats.failed_step,
    }


def cube_forward(lane: Lanes) -> dict[str, Any]:
    """Final state of a cube, its largest residual, and the step that failed (-1: none)."""
    return _end(simulate_cube(lane))


def cube_loss(lane: Lanes) -> Any:
    """Half the squared final distance from the origin, as for the peers."""
    return final_loss(simulate_cube(lane).states.q.position[0])


def ball_forward(lane: Lanes) -> dict[str, Any]:
    """As `cube_forward`, of a ball."""
    return _end(simulate_ball(lane))


def ball_loss(lane: Lanes) -> Any:
    """Half the squared final height."""
    return 0.5 * simulate_ball(lane).states.q[0] ** 2


def plain_ball_forward(lane: Lanes) -> dict[str, Any]:
    """`plain_ball`, as `ball_forward`."""
    q, v = plain_ball(lane)
    return {"q": q, "v": v}


def plain_ball_loss(lane: Lanes) -> Any:
    """`plain_ball`, as `ball_loss`."""
    return 0.5 * plain_ball(lane)[0][0] ** 2


@dataclasses.dataclass(frozen=True)
class Workload:
    """Functions of one lane; at module level, because `rollout` keys its compilation by them."""

    lanes: Callable[[int, str, int], Lanes]
    forward: Callable[[Lanes], dict[str, Any]]
    gradient: Callable[[Lanes], Any]
    steps: int


WORKLOADS = {
    ("cube", "diffnsd"): Workload(
        cube_lanes, cube_forward, jax.value_and_grad(cube_loss), CUBE.steps
    ),
    ("ball", "diffnsd"): Workload(
        ball_lanes, ball_forward, jax.value_and_grad(ball_loss), BALL.steps
    ),
    ("ball", "scan"): Workload(
        ball_lanes, plain_ball_forward, jax.value_and_grad(plain_ball_loss), BALL.steps
    ),
}


# ------------------------------------------------------------------------------------------
# Prepared for a worker


def prepare(workload: str, engine: str, batch: int, dtype: str, seed: int = 0) -> Prepared:
    """For `Worker`: a workload through `diffnsd.rollout`, compiled, its results looked at.

    **Raises:** `BrokenRun` if the results of the batch cannot be trusted.
    """
    jax.config.update("jax_enable_x64", dtype == "float64")
    task = WORKLOADS[workload, engine]
    lanes = jax.tree.map(jnp.asarray, task.lanes(batch, dtype, seed))
    chunk = None if jax.default_backend() == "cpu" else batch  # an accelerator takes all at once

    forward, compile_s = _compile(task.forward, lanes, chunk)
    gradient, gradient_compile_s = _compile(task.gradient, lanes, chunk)
    checks = end_checks(forward())
    finite = [np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient())]
    checks |= {"gradient_finite": bool(np.all(finite))}
    checks |= {"gradient": "reverse mode, by " + ", ".join(lanes)}
    refuse(checks, END_LIMITS[dtype])
    return Prepared(forward, gradient, compile_s, gradient_compile_s, checks)


def _compile(function: Callable, lanes: Lanes, chunk: int | None) -> tuple[Callable, float]:
    """`rollout` of a function, and the seconds of tracing and compiling in its first call.

    As few lanes are used as make the chunks have the shape that they have for all of them.
    """
    enough = None if chunk else CHUNK * (os.cpu_count() or 1)
    few = jax.tree.map(lambda x: x[:enough], lanes)

    compile_s = first_call(lambda: nsd.rollout(function, few, chunk=chunk))
    return (lambda: nsd.rollout(function, lanes, chunk=chunk)), compile_s


# ------------------------------------------------------------------------------------------
# A long run in reverse mode


def prepare_long(adjoint: str, steps: int, batch: int, dtype: str, seed: int = 0) -> Prepared:
    """For `Worker`: the gradient of `steps` steps of the cube; `forward` is that one call.

    `adjoint` is "Checkpointed" or "Direct", as of `simulate`, or "scan": a plain `jax.lax.scan` over
    the step of the integrator, which stores whatever JAX stores.
    """
    jax.config.update("jax_enable_x64", dtype == "float64")
    lanes = jax.tree.map(jnp.asarray, cube_lanes(batch, dtype, seed))
    chosen = {"Checkpointed": nsd.Checkpointed(), "Direct": nsd.Direct()}

    def final(lane: Lanes) -> Any:
        if adjoint == "scan":
            return _scanned(lane, steps).q.position[0]
        return simulate_cube(lane, steps, adjoint=chosen[adjoint]).states.q.position[0]

    gradient = jax.vmap(jax.value_and_grad(lambda lane: final_loss(final(lane))))
    program, compile_s = compile_timed(gradient, lanes)
    value, slope = program(lanes)
    checks = {
        "program_mb": program.memory_analysis().temp_size_in_bytes / 1e6,
        "finite": bool(np.all([np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope)])),
        "loss": float(value[0]),
        "by_friction": float(slope["friction"][0]),
    }
    return Prepared(lambda: program(lanes), compile_s=compile_s, checks=checks)


def _scanned(lane: Lanes, steps: int) -> nsd.State:
    model, state = cube_model(lane)
    scheme, dt = cube_scheme(), CUBE.dt
    start = state, scheme.init(model, jnp.zeros_like(state.v[0]), state, None)

    def step(carry, i):
        state, warm = carry
        t = i.astype(state.v.dtype) * dt
        state, _, warm, _ = scheme.step(model, t, dt, state, warm, None)
        return (state, warm), None

    return jax.lax.scan(step, start, jnp.arange(steps))[0][0]


# ------------------------------------------------------------------------------------------
# The physics, looked at before anything is timed


def prepare_checks(workload: str, dtype: str, seed: int = 0) -> Prepared:
    """For `Worker`: nothing to time, only the facts of `checks`.

    **Raises:** `BrokenRun`.
    """
    jax.config.update("jax_enable_x64", dtype == "float64")
    check = {"cube": check_cube, "ball": check_ball}[workload]
    return Prepared(lambda: None, checks=check(dtype, seed))


def check_cube(dtype: str, seed: int = 0, batch: int = 64) -> dict[str, Any]:
    """Facts about tossed cubes, every step saved, and about sliding ones, with the derivatives."""
    lanes = cube_lanes(batch, dtype, seed)
    solution = _all_steps(simulate_cube, lanes)
    pose = solution.states.q
    facts = cube_checks(
        np.concatenate([pose.position[:, :, 0], pose.orientation[:, :, 0]], axis=-1),
        solution.energy.total,
        solution.impulses[0],
        solution.stats.residual,
        solution.stats.failed_step >= 0,
    )

    def travelled(lane):
        return simulate_cube(lane).states.q.position[0, 0]

    lanes = cube_lanes(16, dtype, seed, slides)
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(travelled)))(lanes)
    value, slope = jax.tree.map(_double, (value, slope))
    speed = _double(lanes["qvel"])[:, 0]
    facts |= slide_checks(value, slope["qvel"][:, 0], slope["friction"], speed)
    refuse(facts, CUBE_LIMITS[dtype])
    return facts


def check_ball(dtype: str, seed: int = 0, batch: int = 16) -> dict[str, Any]:
    """Facts about dropped balls, every step saved, at the step of the benchmark and an eighth."""
    lanes = ball_lanes(batch, dtype, seed)
    facts = {}
    for name, refinement in (("", 1), ("_eighth_step", 8)):
        dt = BALL.dt / refinement
        solution = _all_steps(simulate_ball, lanes, steps=BALL.steps * refinement, dt=dt)
        stats = solution.stats
        gap, energy = solution.states.q[..., 0], solution.energy.total
        now = ball_checks(gap, energy, stats.residual, stats.failed_step >= 0, dt)
        facts |= now if not name else {"heights" + name: now["heights"]}
    refuse(facts, BALL_LIMITS[dtype])
    return facts


def _all_steps(simulated: Callable, lanes: Lanes, **options: Any) -> nsd.Solution:
    """Solutions with every step saved, as NumPy arrays; floating-point ones in double precision."""
    run = jax.jit(jax.vmap(lambda lane: simulated(lane, saveat=nsd.SaveAt(), **options)))
    return jax.tree.map(_double, run(lanes))


def _double(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array
